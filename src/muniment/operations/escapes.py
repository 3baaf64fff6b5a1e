r"""Decide whether a denied path of a run is a real path escape or a typo; no other module decides this.

If a run ends without a commit, the rules may store the fact (`JobContext.on_model_failure`), unless the model
tried to leave the memory. A denied path is a typo if E1, E2 or E3 is true. Any other denied path is an
escape.

- E1. The path is relative and stays below its start. Examples: a missing or misspelled scope, `./user/x`,
  `memory/user/x`, a missing extension, `user:x`, or backslashes for slashes. It contains no scope in which
  this run may not write, not even as a file name. Outside a scope it has no hidden name and no name of a
  system or home directory. After names from `MOUNTS` it has a scope of the run, or is one plain name.
- E2. The path is absolute, and has only names from `MEMORY_NAMES` and `MOUNTS` before a scope of the run, as
  in `/memory/user/x.md`. Or it has names from `MEMORY_NAMES` before a path of E1, as in `/memories/x.md`.
- E3. The path begins with the directory of a root in which the run may write.

These paths are always escapes:

- `..` in any spelling: backslashes, lookalikes, invisible characters;
- an encoded dot, slash or variable: percent signs, `\u002e`, `&#46;`;
- a system directory after `//`;
- NUL, a link, a mount or a special file;
- a home directory or a variable: `~`, `$HOME`, `%APPDATA%`;
- a drive, a network share, or the scheme of another program: `file:`;
- a path of more than `MAX_CHARS` characters.

If in doubt, a path is an escape.

This module does not open a path or allow a call: every call that it judges was already denied. Pure. Separate
from `operations/remember.py`, so that a reviewer finds the complete rule on one page.
"""

from __future__ import annotations

import html
import re
import sys
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from muniment.agent.runner import DeniedCall
from muniment.errors import PathEscape
from muniment.kernel.names import Scope, Via
from muniment.kernel.normal_forms import normalise
from muniment.kernel.path import BLANKS, CONFUSABLES
from muniment.sandbox.tools.calls import WRITING_TOOLS

MEMORY_NAMES: Final = frozenset({"memory", "memories", "mem", "muniment", ".muniment"})
"""Names that models use for the memory itself."""

MOUNTS: Final = frozenset({"workspace", "app", "mnt", "data", "path", "to"})
"""Names that models put before the memory if they do not know its location."""

MAX_CHARS: Final = 8_192
"""Maximum number of characters of a path that may be a typo; every valid path is shorter."""

REQUEST_SCOPE: Final = "request-scope"
"""The rule that denies a write outside the scope that the request names."""

_DOTS: Final = "\u0701\u0702\u3002\ua60e\U00010a50\U0001d16d"
_SPELLINGS: Final = str.maketrans(
    dict.fromkeys(CONFUSABLES - {*_DOTS}, "/") | dict.fromkeys(_DOTS, ".") | {"\\": "/"}
)
_ENCODED: Final = re.compile(
    r"%u([0-9a-f]{4})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})|\\u\{0*([0-9a-f]{1,6})\}|\\x(2[ef]|5c|7e|24|00)|\\0?(5[67])\b",
    re.IGNORECASE,
)
_ROUNDS: Final = 4
"""Number of rounds in which a path is decoded; a path with more levels of encoding is an escape."""

_MARKS: Final = frozenset("./~$\0\ufffd")
_QUOTES: Final = " \t\r\n'\"`<>"
_WRAPPING: Final = _QUOTES + "()[]{}"
_LEADING: Final = _WRAPPING + "=@|;,:&#!*+-?"
_OPENING: Final = frozenset(" \t:;|=&,(<[")
_BETWEEN: Final = re.compile(r"[/:;|=&,()<>\[\]{}]")
_HOME: Final = re.compile(
    r"\A/*[~$%]|(?:\A|[/:])~(?:/|\Z)|\$\(|\$\{?[A-Za-z_]{2}|%[A-Za-z_]{2,}%|\{[A-Z_]{2,}\}|`.*`/"
)
_SCHEME: Final = re.compile(r"\A([A-Za-z][A-Za-z0-9+.-]*)\s*[:\s]\s*(?=/)")
_SHARE_OR_DRIVE: Final = re.compile(r"\A(?://|/?[A-Za-z]:)")
_SYSTEM: Final = frozenset(
    {
        *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "opt", "proc", "root", "run", "sbin", "srv"),
        *("sys", "tmp", "usr", "var", "lost+found"),
        *("windows", "system32", "appdata", "documents and settings", "program files"),
    }
)
_HOMES: Final = frozenset({"home", "users"})


@dataclass(frozen=True, slots=True)
class RunScopes:
    """The scopes of a run.

    Attributes:
        writable: scopes in which the run may write, or could if they had a directory, such as `project`
            outside a repository.
        others: the other scopes that the run's policy declares; the run may not write in them.
        folders: the directories of the roots in which the run may write.
    """

    writable: frozenset[str]
    others: frozenset[str]
    folders: tuple[str, ...] = ()

    @classmethod
    def from_policy(
        cls, writable: Collection[Scope], declared: Iterable[Scope], folders: Sequence[str]
    ) -> RunScopes:
        """Return the scopes of a run.

        Args:
            writable: the scopes in which the run may write.
            declared: all scopes that the run's policy declares.
            folders: the directories of the roots in which the run may write.
        """
        return cls(frozenset(writable), frozenset(declared) - frozenset(writable), tuple(folders))


def find_escape(denied_calls: Iterable[DeniedCall], scopes: RunScopes) -> PathEscape | None:
    """Return the first real escape among denied calls, or None if all of them are typos or other denials."""
    for call in denied_calls:
        if (via := escape_via(call, scopes)) is not None:
            return PathEscape(via, call.path, call.tool)
    return None


def escape_via(call: DeniedCall, scopes: RunScopes) -> Via | None:
    """Return how a denied call would have left the memory, or None if its path is only a typo.

    The rules E1 to E3 in the module docstring define a typo.

    Cost: linear in the path; at most `MAX_CHARS` characters are read.
    """
    if call.outcome.code == PathEscape.code and call.outcome.via is not Via.ABSOLUTE:
        return call.outcome.via or Via.DOTDOT
    if call.outcome.rule == REQUEST_SCOPE:
        return None  # The path is valid, and only the request excludes its scope.
    if len(call.path) > MAX_CHARS:
        return Via.ABSOLUTE
    raw = call.path.strip(_WRAPPING)
    path = _normalize_path(raw)
    if _hides_marks(raw) or any(_is_dots(name) for name in _BETWEEN.split(path)):
        return Via.DOTDOT
    if _restarts_at_system_root(path):
        return Via.ABSOLUTE
    if any(path.startswith(f"{folder}/") for folder in scopes.folders):
        return None
    path = path.lstrip(_LEADING)
    if (scheme := _SCHEME.match(path)) is not None:
        name, rest = scheme[1].casefold(), path[scheme.end() :]
        if name not in MEMORY_NAMES | scopes.writable:
            return Via.ABSOLUTE
        path = f"{name}{rest}"
    if any(map(_HOME.search, (call.path.strip(_QUOTES), raw, path))) or _SHARE_OR_DRIVE.match(path):
        return Via.ABSOLUTE
    names = [each for name in path.split("/") if (each := name.strip()) not in {"", "."}]
    leads_out = _absolute_leads_out if path.startswith("/") else _relative_leads_out
    return Via.ABSOLUTE if leads_out(call, names, scopes) else None


def _restarts_at_system_root(path: str) -> bool:
    """Return whether a system or home directory follows `//`, or a slash after a mark such as `:` or `=`."""
    is_restart = False
    for number, name in enumerate(path.split("/")):
        plain = name.strip().casefold()
        if is_restart and plain in _SYSTEM | _HOMES:
            return True
        is_restart = (number > 0 and not plain) or name[-1:] in _OPENING
    return False


def _is_dots(name: str) -> bool:
    return len(name.strip()) > 1 and not name.strip(" .")


def _relative_leads_out(call: DeniedCall, names: Sequence[str], scopes: RunScopes) -> bool:
    """Return whether the names of a relative path lead out of the memory, so that it is not a typo (E1)."""
    left = _strip_leading_names(names, MEMORY_NAMES, scopes)
    if len(left) < len(names):
        return _below_leads_out(call, left, scopes)
    left = _strip_leading_names(names, MEMORY_NAMES | MOUNTS, scopes)
    if len(left) == len(names):
        return _below_leads_out(call, left, scopes)
    is_plain = len(left) < 2 or _is_in(left[0], scopes.writable)  # noqa: PLR2004  a file alone
    return not is_plain or _below_leads_out(call, left, scopes)


def _absolute_leads_out(call: DeniedCall, names: Sequence[str], scopes: RunScopes) -> bool:
    """Return whether the names of an absolute path lead out of the memory, so that it is not a typo (E2)."""
    left = _strip_leading_names(names, MEMORY_NAMES, scopes)
    if len(left) < len(names):
        return any(name.startswith(".") for name in left) or _below_leads_out(call, left, scopes)
    left = _strip_leading_names(names, MEMORY_NAMES | MOUNTS, scopes)
    known = scopes.writable if call.tool in WRITING_TOOLS else scopes.writable | scopes.others
    return not left or left[0].casefold() not in known or any(name.startswith(".") for name in left)


def _below_leads_out(call: DeniedCall, names: Sequence[str], scopes: RunScopes) -> bool:
    """Return whether names below the start of the memory lead out of the scopes of the run (E1)."""
    if not names or _is_in(names[0], scopes.writable):
        return False
    first, *others = [name.casefold() for name in names]
    is_of_home = first in _HOMES and (len(others) > 1 or (first == "home" and "." not in "".join(others)))
    is_of_system = first in _SYSTEM or not _SYSTEM.isdisjoint(others[:-1])
    is_hidden = any(name.startswith(".") for name in names)
    return is_of_home or is_of_system or is_hidden or _writes_other_scope(call, first, scopes)


def _is_in(name: str, scopes: Collection[str]) -> bool:
    """Return whether a name is one of `scopes`, or begins with one and a colon."""
    return name.casefold().partition(":")[0].strip() in scopes


def _writes_other_scope(call: DeniedCall, first: str, scopes: RunScopes) -> bool:
    """Return whether a call would write in a declared scope in which the run may not write.

    Args:
        call: the denied call.
        first: the first name of its path, in lower case.
        scopes: the scopes of the run.
    """
    return call.tool in WRITING_TOOLS and re.split("[:.]", first)[0].strip() in scopes.others


def _strip_leading_names(
    names: Sequence[str], removable: Collection[str], scopes: RunScopes
) -> Sequence[str]:
    """Return `names` without leading names that are in `removable` and are not scopes."""
    known = {*removable} - scopes.writable - scopes.others
    count = next((index for index, name in enumerate(names) if name.casefold() not in known), len(names))
    return names[count:]


def _normalize_path(path: str) -> str:
    """Return a path with one spelling for slashes and dots, and without invisible characters."""
    plain = normalise("NFKC", path).translate(_SPELLINGS)
    return "".join(char for char in plain if not _is_unseen(char))


def _is_unseen(char: str) -> bool:
    return char in BLANKS or unicodedata.category(char) in {"Cc", "Cf"}


def _hides_marks(path: str) -> bool:
    """Return whether a path hides a dot, slash, tilde, dollar sign or invisible character by an encoding."""
    for _ in range(_ROUNDS):
        if any(_count_marks(_decode_character(found)) for found in _ENCODED.finditer(path)):
            return True
        plain = html.unescape(unquote(path, errors="replace"))
        if plain == path:
            return False
        if _count_marks(plain) > _count_marks(path):
            return True
        path = plain
    return True


def _decode_character(found: re.Match[str]) -> str:
    """Return the character that an escape sequence encodes, or a dot if it begins another encoding."""
    code = int(found[6], 8) if found[6] else int(next(filter(None, found.groups())), 16)
    char = chr(code) if code <= sys.maxunicode else "\ufffd"
    return "." if char in "%&" else char


def _count_marks(path: str) -> int:
    plain = normalise("NFKC", path).translate(_SPELLINGS)
    return sum(char in _MARKS or _is_unseen(char) for char in plain)
