"""Learn the weights by which `content/poison.py` tells harmful from ordinary facts where no rule does.

    python benchmarks/poison_weights.py [--write]

Logistic regression with AdaGrad over the words, classes and rules of each text of tests/facts: `poison.json`
against `harmless.json`, `ordinary.json`, `held_out.json` and `benign.json`. Prints what six-fold validation
finds, sets the threshold there so that `SHARE` of the texts of `harmless.json` that no rule stops exceed it,
and with `--write` writes `src/muniment/content/poison_weights.toml`. The same texts give the same file.
"""

from __future__ import annotations

import json
import math
import random
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from muniment.content import poison

ROOT = Path(__file__).parents[1]
OUT = ROOT / "src/muniment/content/poison_weights.toml"
FOLDS, EPOCHS, RATE, DECAY, HARMFUL_WEIGHT, MIN_COUNT = 6, 12, 0.3, 1e-3, 2.0, 2
SHARE = 0.02

Weights = tuple[Mapping[str, float], float]
Sample = tuple[frozenset[str], int]


def texts(name: str) -> list[str]:
    """The texts of a file of facts."""
    found = json.loads((ROOT / f"tests/facts/{name}.json").read_text(encoding="utf-8"))
    return [each if isinstance(each, str) else each["text"] for each in found]


def train(samples: Iterable[Sample]) -> Weights:
    """Fit weights and a bias."""
    weights: dict[str, float] = defaultdict(float)
    squares: dict[str, float] = defaultdict(lambda: 1e-6)
    bias, square = -2.0, 1e-6
    chosen, order = random.Random(0), list(samples)
    for _ in range(EPOCHS):
        chosen.shuffle(order)
        for found, harmful in order:
            raw = bias + sum(weights[each] for each in sorted(found))
            error = 1 / (1 + math.exp(-max(-30.0, min(30.0, raw)))) - harmful
            error *= HARMFUL_WEIGHT if harmful else 1
            for each in found:
                gradient = error + DECAY * weights[each]
                squares[each] += gradient * gradient
                weights[each] -= RATE * gradient / math.sqrt(squares[each])
            square += error * error
            bias -= RATE * error / math.sqrt(square)
    return weights, bias


def score(model: Weights, found: frozenset[str]) -> float:
    """How much a text looks like a harmful one."""
    weights, bias = model
    return bias + sum(weights.get(each, 0.0) for each in found)


def main() -> None:
    """Validate, and write the weights if asked to."""
    harmful = [(each, 1) for each in texts("poison")]
    near = [(each, 0) for each in texts("harmless")]
    far = [(each, 0) for name in ("ordinary", "held_out", "benign") for each in texts(name)]
    rows = [(text, poison.features(text), label) for text, label in [*harmful, *near, *far]]
    counts = Counter(each for _, found, _ in rows for each in found)
    rows = [(t, frozenset(each for each in f if counts[each] >= MIN_COUNT), label) for t, f, label in rows]
    is_near = {text for text, _ in near}
    random.Random(3).shuffle(rows)
    scored = []
    for fold in range(FOLDS):
        model = train((found, label) for at, (_, found, label) in enumerate(rows) if at % FOLDS != fold)
        scored += [(*row, score(model, row[1])) for at, row in enumerate(rows) if at % FOLDS == fold]
    stopped = {text for text, *_ in scored if poison.by_rules(text)}
    limits = sorted((s for t, _, _, s in scored if t in is_near and t not in stopped), reverse=True)
    threshold = limits[int(SHARE * len(limits))]
    for name, chosen in (("harmful", {t for t, _ in harmful}), ("near", is_near), ("far", {t for t, _ in far})):
        of_it = [row for row in scored if row[0] in chosen]
        learned = sum(row[3] > threshold for row in of_it)
        either = sum(row[3] > threshold or row[0] in stopped for row in of_it)
        print(f"{name}: {len(of_it)} texts, {learned} by weights, {either} by weights or rules")
    if "--write" in sys.argv:
        write(train((found, label) for _, found, label in rows), threshold)


def write(model: Weights, threshold: float) -> None:
    """Write the table."""
    weights, bias = model
    lines = [
        "# Weights in hundredths, by word stem (w), class (c) and rule (r) of poison.toml.",
        "# Written by benchmarks/poison_weights.py --write; do not edit.",
        "",
        f"bias = {round(100 * bias)}",
        f"threshold = {round(100 * threshold)}",
        "",
        "[weights]",
    ]
    for kind in "wcr":
        of_kind = {each[2:]: round(100 * w) for each, w in sorted(weights.items()) if each.startswith(f"{kind}:")}
        entries = ", ".join(f"{name} {weight}" for name, weight in of_kind.items() if weight)
        lines += [f'{kind} = """', textwrap.fill(entries, 118, break_on_hyphens=False, break_long_words=False), '"""']
    OUT.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
