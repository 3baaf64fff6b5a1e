"""Measure the names of entries: length, words, uniqueness, and whether a name fits its text after a change.

    python benchmarks/names.py [--stored COUNT]

Four parts:

- `shape`: the name of each fact of the sets in `tests/facts` and `benchmarks/profiles`: the longest name with
  number and suffix, the most words, and the facts whose name would leave out a word that denies something.
  For each name: the number of facts of the set whose text has all its words.
- `stored`: COUNT facts (default 1 500) are stored in one scope by the rules; each must have its own file.
- `updated`, `edited`: pairs of facts are stored one after the other, and pairs are stored and edited. A name
  contradicts its text if it has a word that the text does not have, or leaves out a denial.
- `cost`: microseconds to build a name, and milliseconds to load the tables.

`ordinary` and the first batch of `updates` were read while the rules were written; the other sets were not.
The oracle shares no code with the subject.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import muniment
from muniment.content.titles import build_slug, derive_title
from muniment.errors import MunimentError

REPOSITORY = Path(__file__).parent.parent
FACTS = REPOSITORY / "tests" / "facts"
PROFILES = REPOSITORY / "benchmarks" / "profiles"
MAX_FILE_CHARS = 40
MAX_WORDS = 5
LONGEST_ENDING = "-9999.md"
_NUMBER = re.compile(r"-[0-9]{1,4}\Z")
_SENTENCE = re.compile("(?<=[.!?;])\\s|[\u3002\uff01\uff1f\u0964\n]")
_UNSPACED = re.compile("[\u0e00-\u0eff\u3041-\u30ff\u3400-\u9fff]")
_DENIALS = """
    no not never none nobody nothing cannot without don't doesn't isn't aren't won't can't shouldn't mustn't
    didn't
    nicht nie niemals kein keine keinen keinem keiner keines ohne pas jamais sans nunca jamás sin
    mai senza não sem niet nooit geen zonder не нет никогда без nie nigdy bez değil inte aldrig ikke
"""
DENIALS = frozenset(_DENIALS.replace("'", "").split())


def split_words(text: str) -> list[str]:
    """Return the folded words of a text, in which an apostrophe does not end a word."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("'", "").replace("\u2019", "")
    spaced = "".join(char if unicodedata.category(char)[0] in "LMN" else " " for char in plain)
    return spaced.split()


def list_words(text: str) -> set[str]:
    """Return the folded words of a text, also those that an apostrophe separates (`l'heure`)."""
    return {*split_words(text), *split_words(text.replace("'", " ").replace("\u2019", " "))}


def read_list(name: str) -> list[dict[str, str]]:
    """Return the rows of a set in `tests/facts`."""
    return json.loads((FACTS / f"{name}.json").read_text())


def load_sets() -> dict[str, list[str]]:
    """Return the distinct facts of each set."""
    updates = read_list("updates")
    sets = {
        "ordinary, updates 1 (read)": [
            *(row["text"] for row in read_list("ordinary")),
            *(row[key] for row in updates if row["batch"] == 1 for key in ("old", "new")),
        ],
        "updates 2-5": [row[key] for row in updates if row["batch"] != 1 for key in ("old", "new")],
        "held_out, matters": [row["text"] for name in ("held_out", "matters") for row in read_list(name)],
        "siblings, forget": [
            *(text for row in json.loads((FACTS / "siblings.json").read_text())["pairs"] for text in row[2:]),
            *(row["text"] for row in json.loads((FACTS / "forget.json").read_text())["facts"]),
        ],
        "corrected": [
            row[key] for row in read_list("corrected") for key in ("fact", "corrected") if row[key]
        ],
    }
    for path in sorted(PROFILES.glob("P*.jsonl")):
        sets[path.stem] = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    return {name: list(dict.fromkeys(texts)) for name, texts in sets.items()}


def load_pairs() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the pairs of an outdated and a new fact, and the pairs of a fact and a corrected text."""
    rows = read_list("updates")
    siblings = json.loads((FACTS / "siblings.json").read_text())["pairs"]
    corrections = [(row["old"], row["new"]) for row in rows if not row["update"]]
    return [(row["old"], row["new"]) for row in rows if row["update"]], [
        *corrections,
        *((old, new) for _, _, old, new in siblings),
        *((row["fact"], row["corrected"]) for row in read_list("corrected") if row["corrected"]),
    ]


def read_stem(path: str) -> str:
    """Return the name in a path without suffix and number."""
    return path.rpartition("/")[2].removesuffix(".md")


def find_problem(stem: str, text: str) -> str | None:
    """Return why a name does not fit a text, or None if it does."""
    words, found = list_words(text), "".join(split_words(text))
    wanted = split_words(stem)
    if stem.startswith("note-"):
        return None if len(stem.split("-")) > 1 else "no words"
    if wanted and wanted[-1].isdigit() and wanted[-1] not in words:
        wanted = wanted[:-1]
    for word in wanted:
        if word not in words and not (_UNSPACED.search(word) and word in found) and not is_cut(word, words):
            return f"word {word!r} is not in the text"
    return "lost denial" if loses_denial(wanted, text) else None


def is_cut(word: str, words: Iterable[str]) -> bool:
    """Return whether a word is the beginning of a long word that was cut."""
    return len(word) >= MAX_FILE_CHARS // 2 and any(each.startswith(word) for each in words)


def loses_denial(wanted: list[str], text: str) -> bool:
    """Return whether the words of a name surround a denial in their sentence that the name lacks."""
    for sentence in _SENTENCE.split(text):
        words = split_words(sentence)
        places = [words.index(word) for word in wanted if word in words]
        if len(places) == len(wanted) and places:
            denied = [word for word in words[: max(places)] if word in DENIALS]
            return not set(denied) <= set(wanted)
    return False


def measure_shape(name: str, texts: list[str]) -> None:
    """Print the line of a set."""
    stems = {text: build_slug(derive_title(text), text) for text in texts}
    too_long = [stem for stem in stems.values() if len(stem + LONGEST_ENDING) > MAX_FILE_CHARS]
    wordy = [stem for stem in stems.values() if len(stem.removeprefix("note-").split("-")) > MAX_WORDS]
    problems = [(stem, text) for text, stem in stems.items() if find_problem(stem, text)]
    vocabularies = [(list_words(text), "".join(split_words(text))) for text in texts]
    fits = [
        sum(
            all(word in words or word in joined for word in split_words(stem))
            for words, joined in vocabularies
        )
        for stem in stems.values()
    ]
    length = sum(map(len, stems.values())) / len(stems)
    print(
        f"{name:27} {len(texts):5} facts  longest {max(map(len, stems.values())) + len('.md'):2} characters  "
        f"mean {length + len('.md'):4.1f}  {len(too_long)} too long  {len(wordy)} with too many words  "
        f"{len(problems)} do not fit  {sum(1 for each in fits if each <= 1):5} fit one fact  "
        f"{sum(1 for each in fits if each <= 3):5} at most three",  # noqa: PLR2004  as printed
        flush=True,
    )
    for stem, text in problems[:20]:
        print(f"  {stem}: {find_problem(stem, text)}: {text[:90]!r}")


def list_files(scope: Path) -> Iterator[Path]:
    """Yield the entries of a scope."""
    for path in scope.rglob("*.md"):
        rel = path.relative_to(scope).as_posix()
        if rel != "MEMORY.md" and not rel.startswith("index/"):
            yield path


def read_body(path: Path) -> str:
    """Return the text of an entry without front matter."""
    return path.read_text().split("\n---\n", 1)[-1].strip()


def measure_stored(texts: list[str], base: Path) -> None:
    """Store facts in one scope, and print whether each has its own file."""
    rejected, expected, superseded, known = Counter[str](), set[str](), 0, 0
    with muniment.open(home=base / "home", workspace=base) as memory:
        for text in texts:
            try:
                done = memory.remember(text, scope="user")
            except MunimentError as problem:
                rejected[problem.code] += 1
                continue
            known += not done.files_touched
            expected |= {text.strip()} if done.files_touched else set()
            for change in done.changes:
                if change.superseded:
                    superseded += 1
                    expected.discard(str(change.superseded.previous_text).strip())
    files = list(list_files(base / "home" / "user"))
    bodies = Counter(map(read_body, files))
    missing = [text for text in expected if bodies[text] != 1]
    names = [path.name for path in files]
    numbered = [name for name in names if _NUMBER.search(name.removesuffix(".md"))]
    problems = [path.stem for path in files if find_problem(path.stem, read_body(path))]
    print(
        f"stored: {len(texts)} facts, {sum(rejected.values())} rejected {dict(rejected)}, {known} known, "
        f"{superseded} superseded; {len(files)} files, {len(missing)} facts without their own file; "
        f"{len(numbered)} names with a number; longest {max(map(len, names))} characters; "
        f"{len(problems)} names do not fit",
        flush=True,
    )
    for text in missing[:20]:
        print(f"  not found: {text[:90]!r}")


def measure_changes(pairs: list[tuple[str, str]], base: Path, *, is_edit: bool) -> None:
    """Change entries by a new fact or by an edit, and print how many names fit the new text."""
    renamed, kept, others, problems = 0, 0, 0, []
    for number, (old, new) in enumerate(pairs):
        with muniment.open(home=base / str(number), workspace=base) as memory:
            try:
                (path,) = memory.remember(old, scope="user").files_touched
                if is_edit:
                    after = memory.edit(path, new).path
                else:
                    done = memory.remember(new, scope="user")
                    if not done.superseded:
                        others += 1
                        continue
                    (after,) = done.files_touched
            except (MunimentError, ValueError):
                others += 1
                continue
        renamed, kept = renamed + (after != path), kept + (after == path)
        text = read_body(base / str(number) / after)
        if problem := find_problem(read_stem(after), text):
            problems.append((after, problem, text))
        if len(Path(after).name) > MAX_FILE_CHARS:
            problems.append((after, "too long", text))
    print(
        f"{'edited' if is_edit else 'updated'}: {renamed + kept} changes, {renamed} renamed, {kept} kept, "
        f"{others} pairs without a change; {len(problems)} names contradict their text",
        flush=True,
    )
    for each in problems[:20]:
        print("  ", each)


def measure_cost(texts: list[str]) -> None:
    """Print the cost of a name."""
    titles = [(derive_title(text), text) for text in texts]
    started = time.process_time()
    for title, text in titles:
        build_slug(title, text)
    print(f"cost: {1e6 * (time.process_time() - started) / len(titles):.0f} microseconds per name")


def main() -> None:
    """Print all parts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stored", type=int, default=1_500)
    count = parser.parse_args().stored
    sets = load_sets()
    for name, texts in sets.items():
        measure_shape(name, texts)
    everything = list(dict.fromkeys(text for texts in sets.values() for text in texts))
    updates, corrections = load_pairs()
    for step, run in enumerate(
        (
            lambda base: measure_stored(everything[:count], base),
            lambda base: measure_changes(updates, base, is_edit=False),
            lambda base: measure_changes(corrections, base, is_edit=True),
        )
    ):
        with TemporaryDirectory(prefix=f"names{step}-") as base:
            os.environ["MUNIMENT_HOME"] = str(Path(base) / "home")
            run(Path(base))
    measure_cost(everything)


if __name__ == "__main__":
    sys.exit(main())
