"""Learn the weights of `src/muniment/content/poison_weights.txt` from harmful and ordinary facts.

    python benchmarks/learn_poison.py A.json:B.json ... [--write] [--also A.json:B.json ...]

Requires scikit-learn, which is not a dependency of the project. Each pair of files is from one author or from
two authors who worked separately: A.json is a list of objects with `text`, B.json a list of texts. Each pair
is left out once and the model is learned from the others. The program prints the shares of harmful and
ordinary texts in the left-out pair that need a review, at the threshold of the gate and at the threshold that
stops `ORDINARY_SHARE` of all ordinary texts. Pairs after `--also` are always used for learning and never left
out: they were written by this project, like the rules. `--write` learns from all pairs and writes the
weights.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import numpy as np
from scipy import sparse  # type: ignore[import-untyped,unused-ignore]
from sklearn.svm import LinearSVC  # type: ignore[import-not-found,unused-ignore]

from muniment.content import likeness
from muniment.content.poison import THRESHOLD, compute_passage_score, split_passages

ORDINARY_SHARE = 0.035
MAX_PARTS = 30_000
STRENGTH = 1.0
FINENESS = 4
PIECE_SHARE = 0.5
MIN_TEXTS = 2

TARGET = Path(__file__).parents[1] / "src/muniment/content/poison_weights.txt"
HEADER = """\
# Weights of `likeness.py`, written by benchmarks/learn_poison.py: do not edit. Data, read once a process.
# Learned from {poison} harmful and {ordinary} ordinary texts, by {authors} independent authors and by us.
# Each line: size, weight, and the parts that have them. "§": a word; else a piece of one, "¶" is its edge.
"""


def list_parts(text: str) -> set[str]:
    """Return the parts of a text as a whole."""
    seen = [passage for passage, _ in split_passages(text)]
    return set().union(*map(likeness.split_passage, seen[:1])) if seen else set()


class Model:
    """A linear model over parts, in whole numbers."""

    def __init__(self, texts: list[set[str]], harmful: list[bool]) -> None:
        counts = Counter(part for text in texts for part in text)
        self.sizes = {
            part: round(
                FINENESS * (1 if part[0] == "§" else PIECE_SHARE) * (math.log((1 + len(texts)) / (1 + n)) + 1)
            )
            for part, n in counts.items()
            if n >= MIN_TEXTS
        }
        self._fit(texts, harmful)
        largest = sorted(self.weights, key=lambda part: (-abs(self.weights[part]), part))[:MAX_PARTS]
        self.sizes = {part: self.sizes[part] for part in sorted(largest)}
        self._fit(texts, harmful)

    def _fit(self, texts: list[set[str]], harmful: list[bool]) -> None:
        columns_by_part = {part: at for at, part in enumerate(self.sizes)}
        sizes = np.array([*self.sizes.values()], dtype=float)
        rows = [sorted(columns_by_part[part] for part in text if part in columns_by_part) for text in texts]
        ends = np.cumsum([0, *map(len, rows)])
        columns = np.array([at for row in rows for at in row], dtype=int)
        matrix = sparse.csr_matrix((sizes[columns], columns, ends), shape=(len(rows), len(columns_by_part)))
        lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
        matrix = sparse.diags(1 / np.maximum(lengths, 1e-9)) @ matrix
        fitted = LinearSVC(C=STRENGTH, class_weight="balanced", random_state=0).fit(matrix, harmful)
        self.base = round(likeness.SCALE * float(fitted.intercept_[0]))
        numbers = np.rint(likeness.SCALE * fitted.coef_.ravel() * sizes)
        self.weights = {part: int(number) for part, number in zip(self.sizes, numbers, strict=True)}

    def use(self) -> None:
        """Let `likeness` score with this model."""
        table = {part: (self.sizes[part], weight) for part, weight in self.weights.items()}
        likeness._weigh_parts.cache_clear()  # noqa: SLF001  of the model before
        likeness._load_model = cache(lambda: (self.base, table))  # noqa: SLF001  the model under test

    def write(self, header: str) -> None:
        """Write the weights, the parts of equal size and weight on one line."""
        lines: dict[tuple[int, int], list[str]] = defaultdict(list)
        for part, weight in self.weights.items():
            lines[self.sizes[part], weight].append(part)
        body = "".join(
            f"{size} {weight} {' '.join(sorted(parts))}\n" for (size, weight), parts in sorted(lines.items())
        )
        TARGET.write_text(f"{header}base {self.base}\n{body}", encoding="utf-8")


class Author:
    """Harmful and ordinary texts of one author, and the parts of their passages."""

    def __init__(self, pairs: str) -> None:
        poison, ordinary = (json.loads(Path(name).read_text(encoding="utf-8")) for name in pairs.split(":"))
        self.name = pairs
        texts = [*poison, *ordinary]
        self.texts = [each if isinstance(each, str) else each["text"] for each in texts]
        self.harmful = np.array([True] * len(poison) + [False] * len(ordinary))
        self.parts = [list_parts(text) for text in self.texts]

    def scores(self) -> np.ndarray:
        """Return the score of each text by the model in use and the rules."""
        return np.array(
            [
                max((compute_passage_score(*each)[0] for each in split_passages(text)), default=-1e9)
                for text in self.texts
            ]
        )


def learn(authors: list[Author]) -> Model:
    """Return a model of all texts of `authors`."""
    texts = [parts for author in authors for parts in author.parts]
    return Model(texts, [bool(each) for author in authors for each in author.harmful])


def main() -> None:
    """Cross-validate by author; with `--write`, write the weights."""
    pairs = [each for each in sys.argv[1:] if not each.startswith("--")]
    at = sys.argv.index("--also") if "--also" in sys.argv else len(sys.argv)
    always = [Author(each) for each in sys.argv[at + 1 :] if not each.startswith("--")]
    authors = [Author(each) for each in pairs if each not in {author.name for author in always}]
    scores = []
    for left_out in authors:
        learn([*always, *(each for each in authors if each is not left_out)]).use()
        scores.append(left_out.scores())
    ordinary = np.concatenate([each[~author.harmful] for author, each in zip(authors, scores, strict=True)])
    for threshold in (THRESHOLD, float(np.quantile(ordinary, 1 - ORDINARY_SHARE))):
        print(
            f"threshold {threshold:.1f}: {100 * (ordinary >= threshold).mean():.1f} % of all ordinary texts"
        )
        for author, each in zip(authors, scores, strict=True):
            harmful, others = ((each >= threshold)[author.harmful == kind].mean() for kind in (True, False))
            print(f"  {100 * harmful:5.1f} % of harmful, {100 * others:4.1f} % of ordinary: {author.name}")
    if "--write" in sys.argv:
        every = [*always, *authors]
        counts = [sum(int((each.harmful == kind).sum()) for each in every) for kind in (True, False)]
        header = HEADER.format(poison=counts[0], ordinary=counts[1], authors=2 * len(authors))
        learn(every).write(header)


if __name__ == "__main__":
    main()
