"""`policy.lock`: the digests that the policies of a folder had when somebody last looked at them.

    1. A lock lies in the folder of the policies that it names, and holds for each file that is loaded from
       there, ancestors of a policy included, by the folder that the file is named in and by the one that it
       really stands in.
    2. What is locked is the digest of the effective policy: a change of a parent is one of its children,
       and a change of comments or tests is none.

Codes of this module: E130 a policy has another digest than the locked one · E131 the lock does not name a
policy · E132 the lock cannot be read, or is none.

What does not hold: a lock stops nobody who may write the folder. It belongs into version control, where a
change of it is a line that somebody reads.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from muniment.errors import PolicyInvalid, printable
from muniment.names import Digest
from muniment.policy.family import PolicyText, read_text, refuse_long_keys
from muniment.policy.tables import POLICY_NAME

LOCK_NAME: Final = "policy.lock"

_HEADER: Final = """\
# The digest of each policy in this folder, as `muniment policy lock` wrote it. A policy here that has another
# digest, or that is not named, does not load.
"""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SHOWN_CHARS: Final = 8
"""Characters of a digest in a message, as in a label."""


def parse_lock(text: str) -> dict[str, Digest]:
    """The digests of a lock by the names of their policies.

    Raises:
        ValueError: the text is no TOML of names and digests; the message says what is wrong with it.
    """
    refuse_long_keys(text)
    data: dict[str, Any] = tomllib.loads(text)
    for name, digest in data.items():
        if POLICY_NAME.fullmatch(name) is None:
            raise ValueError(f"{printable(name)!r} is no name of a policy")
        if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
            raise ValueError(f"{name} has no SHA-256 of 64 hexadecimal digits")
    return {name: Digest(digest) for name, digest in data.items()}


def render_lock(digests: Mapping[str, Digest]) -> str:
    """The text of a lock, a line a policy, sorted by name."""
    return _HEADER + "".join(f'{name} = "{digests[name]}"\n' for name in sorted(digests))


def read_lock(path: Path) -> dict[str, Digest] | None:
    """The digests of a lock file; None if there is none.

    Raises:
        PolicyInvalid: E132.
    """
    shown = printable(str(path))
    try:
        read = read_text(path)
        return None if read is None else parse_lock(read[0])
    except PolicyInvalid as error:
        problem = error.problem
    except (RecursionError, ValueError) as error:
        problem = f"is no lock: {error}"
    raise PolicyInvalid("E132", shown, f"{problem}; write it anew: {_command(path)}")


def hold_to_locks(files: Iterable[tuple[PolicyText, Digest]], unlocked: Path | None) -> tuple[Path, ...]:
    """Hold every file to the locks beside it, and return these.

    Args:
        files: with the digest of the effective policy of each.
        unlocked: a folder whose lock does not count.

    Raises:
        PolicyInvalid: E130, E131 or E132.
    """
    locks: dict[Path, dict[str, Digest] | None] = {}
    for file, digest in files:
        for path in _locks_beside(file, unlocked):
            if path not in locks:
                locks[path] = read_lock(path)
            locked = locks[path]
            if locked is not None:
                _require_locked(file, digest, locked, path)
    return tuple(path for path, locked in locks.items() if locked is not None)


def _locks_beside(file: PolicyText, unlocked: Path | None) -> Iterator[Path]:
    folders = [each for each in (file.path and file.path.parent, file.folder) if each is not None]
    if len({os.path.realpath(each) for each in folders}) == 1:
        folders = folders[1:]
    for folder in folders:
        if unlocked is None or not _is_same(folder, unlocked):
            yield folder / LOCK_NAME


def _is_same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _require_locked(file: PolicyText, digest: Digest, locked: Mapping[str, Digest], path: Path) -> None:
    shown, remedy = printable(str(path)), f"look at it, then run: {_command(path)}"
    if file.name not in locked:
        raise PolicyInvalid("E131", file.where, f"the policy {file.name} is not in {shown}; {remedy}")
    if locked[file.name] != digest:
        was, now = locked[file.name][:_SHOWN_CHARS], digest[:_SHOWN_CHARS]
        problem = f"the policy {file.name} is locked as {was}… in {shown}, and is {now}…; {remedy}"
        raise PolicyInvalid("E130", file.where, problem)


def _command(path: Path) -> str:
    return f"muniment policy lock {printable(str(path.parent))}"
