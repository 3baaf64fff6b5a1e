"""Measure the standing context: how many of the most useful facts of a person a session starts with.

    python benchmarks/standing.py [PROFILE ...]

`profiles/` has the facts of twelve people, 40 to 2 000 facts each, in order of time (`PNN.jsonl`; `where` is
the scope). Different authors invented them without knowing this project. For each, another author chose
the ten facts that an assistant should know at the start of every session (`PNN.best.json`). The weights of
`recall/standing.toml` come from all profiles except P12.

Each profile is stored by the rules in a separate memory; then the standing context is read with the default
budget. One line is printed per profile: entries, estimated tokens, CPU of reading it, chosen facts present.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import muniment
from muniment.content.words import split_words
from muniment.errors import MunimentError

PROFILES = Path(__file__).with_name("profiles")
COMPARED_CHARS = 250
"""Characters of a fact that are searched in the text: a long entry is shortened."""


def normalize(text: str) -> str:
    """Return the folded words of a text."""
    return " ".join(split_words(text))


def measure(name: str, home: Path) -> tuple[int, int]:
    """Store a profile, print its line, and return how many chosen facts are present, and their number."""
    os.environ["MUNIMENT_HOME"] = str(home / "home")
    workspace = home / "work"
    (workspace / ".git").mkdir(parents=True)
    facts = [json.loads(line) for line in (PROFILES / f"{name}.jsonl").read_text().splitlines()]
    chosen = json.loads((PROFILES / f"{name}.best.json").read_text())
    rejected = 0
    with muniment.open(workspace=workspace) as memory:
        for fact in facts:
            try:
                memory.remember(fact["text"], scope=fact["where"])
            except MunimentError:
                rejected += 1
        started = time.process_time()
        standing = memory.standing_context()
        seconds = time.process_time() - started
    text = normalize(standing.text)
    present = sum(normalize(each)[:COMPARED_CHARS] in text for each in chosen)
    print(
        f"{name}  {len(facts):5} facts ({rejected} rejected)  {len(standing.entries):3} entries  "
        f"{standing.tokens:5} tokens  {1_000 * seconds:4.0f} ms  {present} of {len(chosen)} present",
        flush=True,
    )
    return present, len(chosen)


def main() -> None:
    """Measure the profiles, and print the share of all chosen facts."""
    names = sys.argv[1:] or sorted(each.stem for each in PROFILES.glob("P*.jsonl"))
    results = []
    for name in names:
        with TemporaryDirectory() as home:
            results.append(measure(name, Path(home)))
    present, chosen = (sum(column) for column in zip(*results, strict=True))
    print(f"present: {present} of {chosen}, {present / chosen:.1%}")


if __name__ == "__main__":
    main()
