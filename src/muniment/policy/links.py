"""Where a path leads once the symbolic links of its scope are resolved beneath the root.

The links are given as a map, read from the disk before: the way is walked over text, and nothing is opened.

    1. Names are taken one by one, starting at the root of the scope.
    2. A name that is a link of the map is replaced by its target, seen from the directory in which the link
       really stands.
    3. `..` takes back the name before it. Above the root there is nothing: an escape.
    4. An empty name and `.` stay where they are. Like `..`, at the end of the way they ask for a directory.

Contract:
    L1  What `resolve` returns is a canonical path of the same scope.
    L2  It is the file that the kernel finds beneath the root (openat2(2), RESOLVE_BENEATH), if the map tells
        every link on the way and the kernel finds one at all. Absolute targets lead outside here even where
        they name something inside, and so do magic links, whose targets are absolute.
    L3  A link that leads outside, or through more than `MAX_LINKS_FOLLOWED` links or `MAX_STEPS` names, is a
        `PathEscape` via `symlink`. One that leads through a name outside the grammar is a `BadName`: its
        target lies inside, but no policy can speak of it. An escape wins over a bad name.

What does not hold: that anything exists on the way (`missing/../a.md` is `a.md` here), nor that the map still
tells the truth. So what is resolved is opened as resolved and without following: `muniment.confine.root`.
Attacked by `tests/policy/test_links.py`, with the kernel as the oracle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from muniment.errors import BadName, ConfigInvalid, PathEscape
from muniment.names import MAX_DEPTH, MAX_PATH_BYTES, RelPath, Scope, Symlinks, Via
from muniment.policy.grammar import CanonicalPath, segment_problem

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
    resolved = CanonicalPath(path.scope, RelPath("/".join(at)))
    if is_bad or len(resolved.text.encode()) > MAX_PATH_BYTES:
        raise BadName(f"{path.text} leads to a name that this memory cannot hold; use another file")
    return Resolved(resolved, is_directory=name in _STAYS)


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
