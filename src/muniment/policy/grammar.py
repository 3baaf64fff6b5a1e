"""What of a name is no matter of the kernel: lookalikes, and where symbolic links lead."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

from muniment.errors import BadName, ConfigInvalid, PathEscape, printable
from muniment.files import shipped_tables
from muniment.kernel.names import MAX_DEPTH, RelPath, Scope, Via
from muniment.kernel.normal_forms import normalised
from muniment.kernel.path import CanonicalPath, check_suffix, segment_problem
from muniment.names import Symlinks

# -- lookalikes --------------------------------------------------------------------------------------
#
# Names that look like ours, or like those of files that other agents load as instructions.
#
# - L1. Two names look alike if their skeletons are equal: without white space, without case, every character
#   by the letter that it looks like, `i`, `1` and `|` as `l`, `0` as `o`, `rn` as `m`, `vv` as `w` (UTS #39,
#   section 4).
# - L2. A name that only differs in case is not told here: that deny rules cover, and what may stand depends
#   on the policy.
#
# Names and table are data, in `lookalikes.toml`. What does not hold: scripts and fonts have lookalikes that
# the standard does not list; `MEMORY-.md` is another name for everybody who reads it.
#
# Attacked in tests/units/policy/test_lookalikes.py.

_ASCII: Final = str.maketrans("i1|0", "lllo")


@cache
def tables() -> dict[str, dict[str, str]]:
    """`names`, `suffixes` and `confusables`, with sources. Cost: reads one file of ours, once a process."""
    return shipped_tables("muniment.policy", "lookalikes")


def looked_like(name: str) -> str | None:
    """The reserved name that `name` is taken for without being it (L1, L2). Cost: 1 µs, 5 beyond ASCII."""
    shown = skeleton(name)
    reserved = _reserved().get(shown)
    if reserved is not None:
        return None if reserved.lower() == name.lower() else reserved
    for suffix, ending in _reserved_suffixes().items():
        if shown.endswith(suffix):
            return None if name.lower().endswith(ending) else f"*{ending}"
    return None


def skeleton(name: str) -> str:
    """What is left of a name when all that looks alike is the same (L1)."""
    if not name.isascii():
        name = normalised("NFKC", name.translate(_letters()).casefold()).translate(_letters())
    name = "".join(name.lower().split()).translate(_ASCII)
    return name.replace("rn", "m").replace("vv", "w")


@cache
def _reserved() -> dict[str, str]:
    return {skeleton(name): name for name in tables()["names"]}


@cache
def _reserved_suffixes() -> dict[str, str]:
    return {skeleton(suffix): suffix for suffix in tables()["suffixes"]}


@cache
def _letters() -> dict[int, str]:
    return {ord(char): letter for letter, chars in tables()["confusables"].items() for char in chars}


def check_creatable(path: CanonicalPath) -> None:
    """Refuse a new file whose name does not end in `.md`, or a path that is taken for another.

    Raises:
        BadName: the suffix is missing or in another case, or only dots stand before it; or a part looks like
            one of ours or of an instruction file.
    """
    for name in path.segments:
        if (reserved := looked_like(name)) is not None:
            shown, problem = printable(path.text), f"{printable(name)!r} looks like {reserved}"
            raise BadName(f"{shown!r}: {problem}; use another name")
    check_suffix(path)


# -- links -------------------------------------------------------------------------------------------
#
# Where a path leads once the symbolic links of its scope are resolved beneath the root.
#
# The links are given as a map, read from the disk before: the way is walked over text, and nothing is opened.
#
#     1. Names are taken one by one, starting at the root of the scope.
#     2. A name that is a link of the map is replaced by its target, seen from the directory in which the link
#        really stands.
#     3. `..` takes back the name before it. Above the root there is nothing: an escape.
#     4. An empty name and `.` stay where they are. Like `..`, at the end of the way they ask for a
#        directory.
#
# Contract:
#     L1  What `resolve` returns is a canonical path of the same scope.
#     L2  It is the file that the kernel finds beneath the root (openat2(2), RESOLVE_BENEATH), if the map
#         tells every link on the way and the kernel finds one at all. Absolute targets lead outside here even
#         where they name something inside, and so do magic links, whose targets are absolute.
#     L3  A link that leads outside, or through more than `MAX_LINKS_FOLLOWED` links or `MAX_STEPS` names, is
#         a `PathEscape` via `symlink`. One that leads through a name outside the grammar is a `BadName`: its
#         target lies inside, but no policy can speak of it. An escape wins over a bad name.
#
# What does not hold: that anything exists on the way (`missing/../a.md` is `a.md` here), nor that the map
# still tells the truth. So what is resolved is opened as resolved and without following:
# `muniment.kernel.root`. Attacked by `tests/units/policy/test_links.py`, with the kernel as the oracle.

Links = Mapping[RelPath, str]
"""The links of one scope: targets as they stand in the links, by the canonical path of each link."""

NO_LINKS: Final[Mapping[Scope, Links]] = MappingProxyType({})
"""The links of all scopes where none is resolved."""

MAX_LINKS_FOLLOWED: Final = 40
"""Links on one way. Source: path_resolution(7)."""

MAX_STEPS: Final = 256
"""Names on one way, those that stay or go up included: a planted chain of long targets must not cost a
listing, which follows every link of a directory, more than it costs to plant."""

_STAYS: Final = frozenset({"", ".", ".."})
"""Segments of a target that name nothing."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """Where a path leads.

    Attributes:
        path: the one name of what it leads to.
        is_directory: the way ends in a segment that only a directory can have; else nobody asked yet.
    """

    path: CanonicalPath
    is_directory: bool


def resolve(path: CanonicalPath, links: Links) -> Resolved:
    """Follow `path` through `links`, the map of its scope.

    Raises:
        PathEscape: via `symlink`; see L3.
        BadName: see L3. The message does not tell the target.

    Cost: about 10 µs, and at most `MAX_STEPS` names: 0.5 ms.
    """
    if not links:
        return Resolved(path, is_directory=not path.rel)
    at: list[str] = []
    pending = path.rel.split("/")[::-1]
    followed, steps = 0, 0
    is_bad = False
    name = ""
    while pending:
        name = pending.pop()
        steps += 1
        if steps > MAX_STEPS:
            raise PathEscape(Via.SYMLINK, path.text)
        if name in _STAYS:
            if name == "..":
                _go_up(at, path)
            continue
        at.append(name)
        target = links.get(RelPath("/".join(at)))
        if target is None:
            is_bad = is_bad or len(at) >= MAX_DEPTH or segment_problem(name) is not None
            continue
        at.pop()
        followed += 1
        if followed > MAX_LINKS_FOLLOWED or not target or target.startswith("/"):
            raise PathEscape(Via.SYMLINK, path.text)
        pending += target.split("/")[::-1]
    if not is_bad:
        with suppress(BadName):  # As a whole it may be too long.
            return Resolved(CanonicalPath(path.scope, RelPath("/".join(at))), is_directory=name in _STAYS)
    raise BadName(f"{path.text} leads to a name that this memory cannot hold; use another file")


def _go_up(at: list[str], path: CanonicalPath) -> None:
    if not at:
        raise PathEscape(Via.SYMLINK, path.text)
    at.pop()


def check_symlinks(symlinks: str) -> Symlinks:
    """What a flag or setting says about links.

    Raises:
        ConfigInvalid: it is neither `"refuse"` nor `"beneath"`.
    """
    if symlinks not in list(Symlinks):
        raise ConfigInvalid(f"symlinks = {symlinks!r}: say {' or '.join(map(repr, map(str, Symlinks)))}")
    return Symlinks(symlinks)
