"""Measure how often meaning finds what words cannot, how often recall is silent without help, and the cost.

    python benchmarks/meaning.py MODEL [ENTRIES ...]

MODEL is the directory of a static embedding model, which is not part of this repository; see docs/recall.md.
The sets are those of the tests (`tests/kit/recall/quality`): the entries of a year with questions that they
answer and questions that they do not, and the facts of `paraphrases.toml`, each with a question that shares
no word with it. The thresholds of `muniment.recall.semantic_search` were chosen with every second question;
the rest
is held out.

For the cost, a memory of each size is generated with a fixed seed, with forty words per entry that the model
knows. CPU is milliseconds of one recall of three words, median.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / "tests")]

from kit.recall.contexts import format_entry, open_bench  # noqa: E402
from kit.recall.library import QUALITY  # noqa: E402
from muniment.recall.recaller import Recaller  # noqa: E402
from muniment.recall.semantic_search import StaticModel  # noqa: E402

SIZES = (1_000, 10_000)
QUERIES, WORDS = 200, 40
FOLDER, SHORT = 50, 3


def load_table(name: str) -> dict[str, Any]:
    """Return one of the sets."""
    return tomllib.loads((QUALITY / f"{name}.toml").read_text(encoding="utf-8"))


def count_silent(recall_paths: Callable[[str], Sequence[str]], messages: Sequence[str]) -> str:
    """Return how many of some messages get no entry."""
    return f"{sum(not recall_paths(each) for each in messages)} of {len(messages)}"


def print_quality(model: StaticModel | None) -> None:
    """Print the results, by words alone or also by meaning."""
    year = {each.pop("path"): format_entry(**each) for each in load_table("entries")["entry"]}
    asked, facts = load_table("queries")["query"], load_table("paraphrases")["fact"]
    nothing = [each["text"] for each in asked if not each["right"]]
    right = [each for each in asked if each["right"]]
    facts_by_path = {
        f"user/{at:04}.md": format_entry(each["text"], each["text"]) for at, each in enumerate(facts)
    }
    for name, entries in (("the year", year), ("with the facts", year | facts_by_path)):
        with open_recaller(entries, model) as (_, recall_paths):
            first = sum(
                recall_paths(each["text"])[:1] in [[path] for path in each["right"]] for each in right
            )
            print(f"  {name}: silent without a helpful entry: {count_silent(recall_paths, nothing)}", end="")
            print(
                f", and off topic: {count_silent(recall_paths, load_table('off_topic')['messages'])}", end=""
            )
            print(f"; right one first: {first} of {len(right)}")
            if entries is not year:
                found = [
                    path in recall_paths(fact["question"])
                    for path, fact in zip(facts_by_path, facts, strict=True)
                ]
                parts = {"tuning": found[::2], "held out": found[1::2], "all": found}
                shares = (f"{name} {sum(part)} of {len(part)}" for name, part in parts.items())
                print(f"  paraphrases: {', '.join(shares)}")


@contextmanager
def open_recaller(
    entries: dict[str, str], model: StaticModel | None
) -> Iterator[tuple[Recaller, Callable[[str], Sequence[str]]]]:
    """Yield a recaller over a memory, and a function from a message to the paths of its result."""
    with ExitStack() as opened:
        base = Path(opened.enter_context(tempfile.TemporaryDirectory())).resolve()
        place = opened.enter_context(open_bench(base, entries=entries, embedder=model)).place
        recaller = opened.enter_context(closing(Recaller(place.policy, place.roots, place.state)))
        yield recaller, lambda text: [each.path for each in recaller.recall(text).entries]


def print_cost(size: int, model: StaticModel | None, words: Sequence[str]) -> None:
    """Print the cost of a recall in a memory of this size."""
    dice = random.Random(20_261_126)
    entries = {
        f"user/topic-{at // FOLDER}/{at:06}.md": format_entry(
            f"Entry {at}", " ".join(dice.choices(words, k=WORDS))
        )
        for at in range(size)
    }
    queries = [" ".join(dice.choices(words, k=3)) for _ in range(QUERIES)]
    with open_recaller(entries, model) as (recaller, recall_paths):
        began = time.process_time()
        recall_paths(queries[0])
        made = time.process_time() - began
        times = []
        for query in queries:
            began = time.process_time()
            recaller.recall(query)
            times.append((time.process_time() - began) * 1e3)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"  {size} entries: CPU p50 {median(times):.2f} ms; rows made in {made:.1f} s; at most {resident} MB"
    )


def main() -> None:
    """Print the figures, by words alone and also by meaning."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("entries", type=int, nargs="*", default=SIZES, help="sizes of a memory")
    asked = parser.parse_args()
    model = json.loads((asked.model / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = (token.strip("\u2581\u0120") for token in model["vocab"])
    known = sorted({token for token in tokens if token.isascii() and token.isalpha() and len(token) > SHORT})
    for name in ("words alone", "meaning too"):
        print(name)
        print_quality(StaticModel(asked.model) if name == "meaning too" else None)
        for size in asked.entries:
            print_cost(size, StaticModel(asked.model) if name == "meaning too" else None, known)


if __name__ == "__main__":
    main()
