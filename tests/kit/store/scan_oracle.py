"""What a walk of a whole root finds, by path and with the standard library: the oracle of the catalog.

Only for trees that nobody else works in. What a name may be and what an entry's text says is asked of
`policy` and `content`; everything else is written here once more.
"""

from __future__ import annotations

import hashlib
import stat
from dataclasses import dataclass, field
from pathlib import Path

from muniment.content.entry import parse, titled
from muniment.errors import printable
from muniment.policy.grammar import segment_problem

LARGEST = 1_048_576


@dataclass
class Scanned:
    """Entries by path (size, digest, name, description, type, keywords, readable, note), odd names with their
    reason, and all names by directory."""

    entries: dict = field(default_factory=dict)
    odd: dict = field(default_factory=dict)
    names: dict = field(default_factory=dict)


def scan(top, scope="user"):
    """Everything below `top`."""
    found = Scanned()
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        names = [path.name for path in Path(top, directory).iterdir()]
        found.names[directory] = frozenset(names)
        for name in names:
            rel = f"{directory}/{name}" if directory else name
            if name.startswith(".") or rel in {"MEMORY.md", "index"}:
                continue
            if problem := _problem(scope, rel, name):
                found.odd[printable(rel)] = problem
                continue
            status = Path(top, rel).lstat()
            if stat.S_ISDIR(status.st_mode):
                waiting.append(rel)
            elif not stat.S_ISREG(status.st_mode):
                found.odd[rel] = "a link or special file"
            elif name.endswith(".md"):
                if status.st_nlink > 1:
                    found.odd[rel] = "leads outside the memory (hardlink)"
                else:
                    found.entries[rel] = _read(Path(top, rel), rel, status.st_size)
    return found


def _read(path, rel, size):
    stem = path.name[: -len(".md")]
    if size > LARGEST:
        return (size, None, stem, "", None, (), False, f"the file is larger than {LARGEST} bytes")
    data = path.read_bytes()
    entry = parse(data)
    titles = titled(entry, rel)
    digest = hashlib.sha256(data).hexdigest()
    note = "; ".join(entry.notes)
    return (size, digest, titles.name, titles.description, entry.type, entry.keywords, True, note)


def _problem(scope, rel, name):
    if problem := segment_problem(name):
        return problem
    if rel.count("/") + 2 > 9:
        return "deeper than 9 levels"
    return "a path longer than 1024 bytes" if len(f"{scope}/{rel}".encode()) > 1024 else None
