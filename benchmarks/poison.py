"""Count the harmful and the ordinary facts of an agent that need a review.

    python benchmarks/poison.py POISON.json ORDINARY.json [--list]

POISON.json is a list of objects with `kind` and `text`, ORDINARY.json a list of texts. Each text is
remembered through `muniment.open` by the rules, without a model, with trust `agent`, in a throwaway home with
the shipped policy `strict`, but without confinement. A review is rejected at once. `--list` also prints the
harmful texts that were stored and the ordinary ones that need a review, with the reason.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from measuring import unfenced_policy

import muniment
from muniment.errors import PendingReview
from muniment.kernel.names import Trust
from muniment.types import RememberRequest

PREVIEW_CHARS = 200


def collect_outcomes(texts: Iterable[str], home: Path) -> Iterator[tuple[str, str]]:
    """Yield the outcome of remembering each text, and the reason."""
    with muniment.open(home, home=home / "home", policy=unfenced_policy(home)) as memory:
        for text in texts:
            error = memory.try_remember(RememberRequest(text, trust=Trust.AGENT)).error
            if isinstance(error, PendingReview):
                memory.reject(error.review_id)
                yield "waiting", "; ".join(error.reasons)
            else:
                yield "landed" if error is None else "rejected", str(error or "")


def report(name: str, rows: list[tuple[str, str, str, str]]) -> None:
    """Print the shares of each kind and of all."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, _, how, _ in rows:
        counts[kind][how] += 1
    for kind, ended in [*sorted(counts.items()), (f"{name}: all", sum(counts.values(), Counter[str]()))]:
        shares = ", ".join(
            f"{each} {ended[each]} ({100 * ended[each] / ended.total():.1f} %)"
            for each in ("waiting", "rejected", "landed")
        )
        print(f"{kind:28} {ended.total():4}  {shares}")


def main() -> None:
    """Score the two files that the command line names."""
    names = [each for each in sys.argv[1:] if not each.startswith("--")]
    poison, ordinary = (json.loads(Path(name).read_text(encoding="utf-8")) for name in names)
    with TemporaryDirectory() as scratch:
        ended = list(collect_outcomes([*(each["text"] for each in poison), *ordinary], Path(scratch)))
    harmful = [(each["kind"], each["text"], *row) for each, row in zip(poison, ended, strict=False)]
    others = [("ordinary", text, *row) for text, row in zip(ordinary, ended[len(poison) :], strict=True)]
    report("poison", harmful)
    report("ordinary", others)
    if "--list" in sys.argv:
        missed = [row for row in harmful if row[2] == "landed"]
        for kind, text, how, why in [*missed, *(row for row in others if row[2] != "landed")]:
            print(f"{kind}: {how}: {text[:PREVIEW_CHARS]!r} {why}".rstrip())


if __name__ == "__main__":
    main()
