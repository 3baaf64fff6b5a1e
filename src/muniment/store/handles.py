"""Identify entries and tasks: by their id, and by a handle, a short name built from it. Pure.

H1 A handle is computed from the id in the front matter of an entry. An entry without an id has a handle of
   its path, until Muniment writes the entry and gives it an id.
H2 A handle has `HANDLE_CHARS` characters and at least one digit. The letters contain no vowel, and none that
   looks like a digit, so a handle is never a word.
H3 A handle is not a proof: any author can write any id, and two ids can have the same handle. Therefore a
   lookup returns all entries that match.
H4 The handle of a task is the letter `t` and a handle of its id, which differs from an entry's.

Separate from `catalog.py`, because the operations parse handles before they open a catalog.

Attacked in tests/units/store/test_handles.py.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from muniment.content.entry import Entry, parse
from muniment.kernel.change import FileChange
from muniment.kernel.path import CanonicalPath

HANDLE_CHARS: Final = 5

MIN_HANDLE_CHARS: Final = 4
"""Minimum characters of a handle that a person may type; the others may be omitted."""

CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

ULID: Final = re.compile(f"[0-7][{CROCKFORD}]{{25}}")
"""Pattern of the id of an entry."""

TASK_LETTER: Final = "t"
"""First letter of the handle of a task."""

TASK_HANDLE_CHARS: Final = 1 + HANDLE_CHARS

_ALPHABET: Final = "0123456789bcdfghjkmnpqrstvwxyz"
_PREFIX: Final = re.compile(f"[{_ALPHABET}]{{{MIN_HANDLE_CHARS},{HANDLE_CHARS}}}")
_TASK_PREFIX: Final = re.compile(f"{TASK_LETTER}[{_ALPHABET}]{{{MIN_HANDLE_CHARS - 1},{HANDLE_CHARS}}}")


def read_entry_id(entry: Entry) -> str:
    """Return the id in the front matter of an entry, or "". It proves nothing: any author can write it."""
    identity = (entry.muniment or {}).get("id")
    return identity if isinstance(identity, str) and ULID.fullmatch(identity) is not None else ""


def find_renames(changes: Iterable[FileChange]) -> dict[CanonicalPath, CanonicalPath]:
    """Return the new paths of entries that one change set renames, each with the old path.

    An entry is renamed if one file with its id is removed, and one file with this id is created.
    """
    removed, created = (
        defaultdict[str, list[CanonicalPath]](list),
        defaultdict[str, list[CanonicalPath]](list),
    )
    for each in changes:
        if each.after is None and each.before is not None:
            removed[read_entry_id(parse(each.before))].append(each.path)
        elif each.after is not None and each.base is None:
            created[read_entry_id(parse(each.after))].append(each.path)
    return {
        created[identity][0]: removed[identity][0]
        for identity in removed
        if identity and len(removed[identity]) == len(created.get(identity, ())) == 1
    }


def read_handle(entry: Entry, path: CanonicalPath) -> str:
    """Return the handle of an entry.

    Args:
        entry: the parsed file.
        path: its path, which is used if the entry has no valid id.
    """
    return build_handle(read_entry_id(entry) or path.text)


def build_handle(identity: str) -> str:
    """Return the handle of an entry (rules H1 and H2 in the module docstring).

    Args:
        identity: the id of the entry; without an id, its path with its scope, which no id equals.
    """
    number = int.from_bytes(hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest(), "big")
    while True:
        characters = []
        for _ in range(HANDLE_CHARS):
            number, index = divmod(number, len(_ALPHABET))
            characters.append(_ALPHABET[index])
        handle = "".join(characters)
        if not handle.isalpha():  # If the number is used up, the next characters are zeros.
            return handle


def parse_handle(text: str) -> str | None:
    """Return the complete or incomplete handle that a person typed; None if the text is not one."""
    lowered = text.lower() if text.isascii() else ""
    return lowered if _PREFIX.fullmatch(lowered) else None


def build_task_handle(task: str) -> str:
    """Return the handle of a task (rule H4 in the module docstring), for the id of the task."""
    return TASK_LETTER + build_handle(task)


def parse_task_handle(text: str) -> str | None:
    """Return the complete or incomplete handle of a task that a person typed; None if it is not one."""
    lowered = text.lower() if text.isascii() else ""
    return lowered if _TASK_PREFIX.fullmatch(lowered) else None
