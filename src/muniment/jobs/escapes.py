"""Tell a real path escape of a run from a path that is plainly a typo: the one place that decides it.

If a run ends without a commit, the rules may store the fact (`Place.on_model_failure`), unless the model
tried to leave the memory. A denied path is a typo only if one of these holds; any other is an escape:

- E1. The path is relative and stays below its start: a missing or misspelled scope, `./user/x`,
  `memory/user/x`, a missing extension, `user:x`, or backslashes for slashes. It names no scope in which this
  run may not write, and does not begin with a hidden name or a directory of the system.
- E2. The path is absolute, and has before a scope of the run only names from `MEMORY_NAMES` and `MOUNTS`, as
  in `/memory/user/x.md`; or it has names from `MEMORY_NAMES` before a relative path, as in `/memories/x.md`.
  No other name in it is hidden.
- E3. The path begins with the directory of a root in which the run may write.

An escape in every case: `..` in any spelling (backslashes, percent signs, lookalikes, invisible characters),
NUL, a link, a mount or a special file, a home directory or a variable (`~`, `$HOME`, `%APPDATA%`), a drive, a
network share, and the scheme of another program (`file:`).

Nothing here opens a path or allows a call: each of these calls was denied already. Pure. Apart from
`jobs/remember.py`, so that a reviewer finds the whole rule in one page.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from muniment.agent.runner import DeniedCall
from muniment.errors import PathEscape
from muniment.kernel.names import Scope, Via
from muniment.kernel.path import BLANKS, CONFUSABLES, normalised
from muniment.tools.calls import WRITING_TOOLS

MEMORY_NAMES: Final = frozenset({"memory", "memories", "mem", "muniment", ".muniment"})
"""Names by which models call the memory itself."""

MOUNTS: Final = frozenset({"workspace", "app", "mnt", "data", "path", "to"})
"""Names that models put before the memory if they do not know where it is."""

MAX_CHARS: Final = 8_192
"""Characters of a path that are read; the longest valid path is shorter."""

REQUEST_SCOPE: Final = "request-scope"
"""The rule that denies a write outside the scope that the request names."""

_DOTS: Final = "\u0701\u0702\u3002\ua60e\U00010a50\U0001d16d"
_SPELLINGS: Final = str.maketrans(
    dict.fromkeys(CONFUSABLES - {*_DOTS}, "/") | dict.fromkeys(_DOTS, ".") | {"\\": "/"}
)
_ENCODED_DOT: Final = re.compile("%(?:25)*2e", re.IGNORECASE)
_ENCODED_SLASH: Final = re.compile("%(?:25)*(?:2f|5c)", re.IGNORECASE)
_QUOTES: Final = " \t\r\n'\"`<>"
_HOME: Final = re.compile(r"\A/*[~$%]|\$\(|\$\{?[A-Z_]{2}|%[A-Z_]{2,}%|%(?:25)*00")
_SCHEME: Final = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_SHARE_OR_DRIVE: Final = re.compile(r"\A(?://|/?[A-Za-z]:)")
_SYSTEM: Final = frozenset({"etc", "proc", "sys", "usr", "var", "root"})


@dataclass(frozen=True, slots=True)
class RunScopes:
    """The scopes of a run.

    Attributes:
        writable: those in which it may write.
        others: those that its policy declares and in which it may not write.
        folders: the directories of the roots in which it may write.
    """

    writable: frozenset[str]
    others: frozenset[str]
    folders: tuple[str, ...] = ()

    @classmethod
    def of(cls, writable: Collection[Scope], declared: Iterable[Scope], folders: Sequence[str]) -> RunScopes:
        """Return the scopes of a run that may write in `writable`."""
        return cls(frozenset(writable), frozenset(declared) - frozenset(writable), tuple(folders))


def find_escape(denied: Iterable[DeniedCall], scopes: RunScopes) -> PathEscape | None:
    """Return the first real escape among denied calls, or None if all of them are typos or refusals."""
    for call in denied:
        if (via := escape_via(call, scopes)) is not None:
            return PathEscape(via, call.path, call.tool)
    return None


def escape_via(call: DeniedCall, scopes: RunScopes) -> Via | None:
    """Return how a denied call would have left the memory, or None if its path is a typo (E1 to E3).

    Cost: linear in the path, of which `MAX_CHARS` characters are read.
    """
    if call.outcome.code == PathEscape.code and call.outcome.via is not Via.ABSOLUTE:
        return call.outcome.via or Via.DOTDOT
    if call.outcome.rule == REQUEST_SCOPE:
        return None  # The path is valid, and only the request excludes its scope.
    raw = call.path[:MAX_CHARS].strip(_QUOTES)
    path = _respelled(raw)
    if any(len(name.strip()) > 1 and not name.strip(" .;") for name in path.split("/")):
        return Via.DOTDOT
    if any(path.startswith(f"{folder}/") for folder in scopes.folders):
        return None
    if (scheme := _SCHEME.match(path)) is not None:
        name, rest = scheme[1].casefold(), path[scheme.end() :]
        if name not in MEMORY_NAMES | scopes.writable:
            return Via.ABSOLUTE
        path = f"{name}{rest}"
    if _HOME.search(raw) or _SHARE_OR_DRIVE.match(path):
        return Via.ABSOLUTE
    names = [each for name in path.split("/") if (each := name.strip()) not in {"", "."}]
    leads_out = _absolute_leads_out if path.startswith("/") else _relative_leads_out
    return Via.ABSOLUTE if leads_out(call, names, scopes) else None


def _relative_leads_out(call: DeniedCall, names: Sequence[str], scopes: RunScopes) -> bool:
    """Return whether the names of a relative path are no typo (E1)."""
    left = _without(names, MEMORY_NAMES, scopes)
    if not left:
        return False
    first = left[0].casefold()
    is_home = first == "home" and len(left) > 2  # noqa: PLR2004  `home/anna/notes.md`, not `home/heating.md`
    return first.startswith(".") or first in _SYSTEM or is_home or _is_elsewhere(call, first, scopes)


def _absolute_leads_out(call: DeniedCall, names: Sequence[str], scopes: RunScopes) -> bool:
    """Return whether the names of an absolute path are no typo (E2)."""
    left = _without(names, MEMORY_NAMES, scopes)
    is_of_memory = len(left) < len(names)
    left = left if is_of_memory else _without(names, MEMORY_NAMES | MOUNTS, scopes)
    if any(name.startswith(".") for name in left):
        return True
    if is_of_memory:
        return bool(left) and _is_elsewhere(call, left[0].casefold(), scopes)
    known = scopes.writable if call.tool in WRITING_TOOLS else scopes.writable | scopes.others
    return not left or left[0].casefold() not in known


def _is_elsewhere(call: DeniedCall, first: str, scopes: RunScopes) -> bool:
    """Return whether a call would write in a scope of the policy that is not open to the run."""
    return call.tool in WRITING_TOOLS and first.partition(":")[0] in scopes.others


def _without(names: Sequence[str], left_out: Collection[str], scopes: RunScopes) -> Sequence[str]:
    """Return names without those at the front that are in `left_out` and are no scope."""
    known = {*left_out} - scopes.writable - scopes.others
    count = next((at for at, name in enumerate(names) if name.casefold() not in known), len(names))
    return names[count:]


def _respelled(path: str) -> str:
    """Return a path with one spelling for slashes and dots, and without what nobody sees."""
    plain = normalised("NFKC", _ENCODED_SLASH.sub("/", _ENCODED_DOT.sub(".", path))).translate(_SPELLINGS)
    return "".join(
        char for char in plain if char not in BLANKS and unicodedata.category(char) not in {"Cc", "Cf"}
    )
