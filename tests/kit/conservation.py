"""The conservation oracle: lines of a source that are neither in the memory nor in the report.

It shares no code with the subject: it reads raw bytes on both sides and does not parse front matter, YAML or
entries. A line is in the memory if its words appear in sequence in the text of one file, after YAML and JSON
quoting is undone. It is in the report if a row contains its file and number, or its file.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

WORDS = re.compile(r"\w+")
TIME = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)")
"""A time with its zone; entries store it in UTC."""


def flat(text):
    """Return the words of a text in lower case, separated by spaces, without JSON and YAML escapes."""
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
    text = TIME.sub(
        lambda found: str(datetime.fromisoformat(found[0]).astimezone(UTC).replace(microsecond=0)), text
    )
    text = text.replace(r"\u{d}", " ")  # A review displays invisible characters in this form.
    text = re.sub(r"\\u\{[0-9a-f]+\}|[\ufe0e\ufe0f\u200d\u20e3]", "", text)
    text = text.replace("\\n", " ").replace('\\"', '"').replace("\\\\", "\\")
    return " " + " ".join(WORDS.findall(text.replace("\u200b", ""))).lower() + " "


def bodies_of(roots):
    """Yield the text of every file of some directories, except generated indexes."""
    for root in roots:
        for path in sorted(root.rglob("*.md")):
            if path.name != "MEMORY.md" and "index" not in path.relative_to(root).parts[:1]:
                yield path.read_text("utf-8", "replace")


def named_lines(done):
    """Return the line numbers that a report contains, by file; None: the complete file."""
    found = {}
    for row in [*done["refused"], *done["not_taken"]]:
        name, lines = row["name"], row.get("lines", "")
        if not lines and (match := re.fullmatch(r"(.+):(\d+)", name)):
            name, lines = match[1], match[2]
        numbers = found.setdefault(name, set())
        if not lines:
            found[name] = None
        elif numbers is not None:
            for part in lines.split(", "):
                first, _, last = part.partition("-")
                numbers.update(range(int(first), int(last or first) + 1))
    return found


def is_named(name, number, named):
    """Return whether a report contains a line, its file, or a parent folder that was not read."""
    folders = name.split("/")
    if any(named.get("/".join(folders[:depth]) + "/", 0) is None for depth in range(1, len(folders))):
        return True
    lines = named.get(name, 0)
    return lines is None or (lines != 0 and number in lines)


def lost_lines(files, roots, done, texts=()):
    """Yield the lost lines of a source, with file and number.

    Args:
        files: the bytes of each source file, by name.
        roots: the directories of the memory.
        done: the document that `import --json` prints.
        texts: the texts of pending reviews.
    """
    kept = [*bodies_of(roots), *texts]
    memory = "\n".join(map(flat, kept))
    lines = {flat(line) for text in kept for line in text.splitlines()}
    named = named_lines(done)
    for name, data in files.items():
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "\n" if named.get(name, 0) is None else "not UTF-8, and not named"
        for number, line in enumerate(re.split("\r\n|\n|\r", text), 1):
            words = flat(line)
            if words in lines or not words.strip() or is_named(name, number, named):
                continue
            if words not in memory:
                without_key = flat(re.split("[:=]", line, maxsplit=1)[-1])
                if not line_is_value(line) or (without_key.strip() and without_key not in memory):
                    yield name, number, line


def line_is_value(line):
    """Return whether a line looks like a key with a value; then only the value must be preserved."""
    return re.match(r"\s*[\"']?[\w-]+[\"']?\s*[:=]", line) is not None


def texts_of_json(data):
    """Yield each text of a JSON or JSON Lines file once, without keys."""
    for each in re.findall(rb'"(?:[^"\\]|\\.)*"(?!\s*:)', data):
        try:
            yield json.loads(each)
        except ValueError:
            continue
