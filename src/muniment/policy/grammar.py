"""Checks of names outside the kernel: lookalikes of reserved names, and targets of symbolic links."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Final

from muniment.errors import BadName, ConfigInvalid, PathEscape, printable
from muniment.files import load_package_tables
from muniment.kernel.names import MAX_DEPTH, RelPath, Scope, Via
from muniment.kernel.normal_forms import normalise
from muniment.kernel.path import CanonicalPath, check_suffix, find_segment_problem
from muniment.names import Symlinks

# -- lookalikes --------------------------------------------------------------------------------------
#
# Names that look like those of Muniment, or of files that other agents load as instructions.
#
# - L1. Two names look the same if their skeletons are equal. A skeleton is a name without white space and in
#   lower case, in which each character is replaced by the letter that it looks like: `i`, `1` and `|` by `l`,
#   `0` by `o`, `rn` by `m`, `vv` by `w` (UTS #39, section 4).
# - L2. A name that differs only in case is not reported here: deny rules cover it, and the policy decides.
#
# The names and the table of characters are in `lookalikes.toml`. Not guaranteed: scripts and fonts have
# lookalikes that the standard does not list; `MEMORY-.md` is a different name for every reader.
#
# Tested with attacks in tests/units/policy/test_lookalikes.py.

_ASCII: Final = str.maketrans("i1|0", "lllo")


@cache
def load_tables() -> dict[str, dict[str, str]]:
    """Return the tables `names`, `suffixes` and `confusables` of `lookalikes.toml`; the file is read once."""
    return load_package_tables("muniment.policy", "lookalikes")


def find_lookalike(name: str) -> str | None:
    """Return the reserved name that `name` only resembles, or None. A difference only in case does not count.

    Cost: 1 µs; 5 µs for a name with characters outside ASCII.
    """
    name_skeleton = compute_skeleton(name)
    reserved = _load_reserved_names().get(name_skeleton)
    if reserved is not None:
        return None if reserved.lower() == name.lower() else reserved
    for suffix, ending in _load_reserved_suffixes().items():
        if name_skeleton.endswith(suffix):
            return None if name.lower().endswith(ending) else f"*{ending}"
    return None


def compute_skeleton(name: str) -> str:
    """Return the skeleton of a name, which is equal for all names that look the same."""
    if not name.isascii():
        name = normalise("NFKC", name.translate(_load_confusables()).casefold()).translate(
            _load_confusables()
        )
    name = "".join(name.lower().split()).translate(_ASCII)
    return name.replace("rn", "m").replace("vv", "w")


@cache
def _load_reserved_names() -> dict[str, str]:
    return {compute_skeleton(name): name for name in load_tables()["names"]}


@cache
def _load_reserved_suffixes() -> dict[str, str]:
    return {compute_skeleton(suffix): suffix for suffix in load_tables()["suffixes"]}


@cache
def _load_confusables() -> dict[int, str]:
    return {ord(char): letter for letter, chars in load_tables()["confusables"].items() for char in chars}


def check_creatable(path: CanonicalPath) -> None:
    """Raise if a new file may not have this path.

    Raises:
        BadName: the file name does not end in `.md`, or has only dots or nothing before it. Or a segment
            looks like a name of Muniment or of an instruction file.
    """
    for name in path.segments:
        if (reserved := find_lookalike(name)) is not None:
            displayed_path, problem = printable(path.text), f"{printable(name)!r} looks like {reserved}"
            raise BadName(f"{displayed_path!r}: {problem}; use another name")
    check_suffix(path)


# -- links -------------------------------------------------------------------------------------------
#
# Resolve the symbolic links of a path under the root of its scope.
#
# The links are given as a map, read from the disk before: the resolution uses text, and opens no file.
#
#     1. Names are processed one by one, starting at the root of the scope.
#     2. A name that is a link of the map is replaced by its target, relative to the real directory of the
#        link.
#     3. `..` removes the name before it. Above the root it is an escape.
#     4. An empty name and `.` have no effect. Like `..`, at the end of the path they require a directory.
#
# Contract:
#     L1  `resolve` returns a canonical path of the same scope.
#     L2  This path is the file that the kernel finds under the root (openat2(2), RESOLVE_BENEATH), if the map
#         contains every link on the way and the kernel finds a file. Absolute targets count as outside, even
#         if they point inside, and so do magic links, whose targets are absolute.
#     L3  A link that points outside, or through more than `MAX_LINKS_FOLLOWED` links or `MAX_STEPS` names, is
#         a `PathEscape` via `symlink`. A link that points through a name outside the grammar is a `BadName`:
#         its target is inside, but no policy can refer to it. An escape takes precedence over a bad name.
#
# Not guaranteed: that any file on the way exists (`missing/../a.md` is `a.md` here), or that the map is still
# correct. So the resolved path is opened without following links: `muniment.kernel.root`. Tested with attacks
# by `tests/units/policy/test_links.py`, with the kernel as the oracle.

Links = Mapping[RelPath, str]
"""The symbolic links of one scope: the text of each target, by the canonical path of its link."""

NO_LINKS: Final[Mapping[Scope, Links]] = MappingProxyType({})
"""An empty map of links for code that does not resolve links."""

MAX_LINKS_FOLLOWED: Final = 40
"""Maximum number of links in one resolution. Source: path_resolution(7)."""

MAX_STEPS: Final = 256
"""Maximum number of names in one resolution, including `.` and `..`.

A listing resolves every link of a directory. So a chain of long targets that an attacker planted must not
cost the listing more than it costs the attacker.
"""

_DOT_SEGMENTS: Final = frozenset({"", ".", ".."})
"""Segments of a target that are not names."""


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """The target of a path after its links are resolved.

    Attributes:
        path: the canonical path of the target, without links.
        is_directory: True: the path ends in a segment that only a directory can have; False: not checked yet.
    """

    path: CanonicalPath
    is_directory: bool


def resolve(path: CanonicalPath, links: Links) -> ResolvedPath:
    """Return the path to which `path` leads if the links of its scope are resolved.

    Args:
        path: a canonical path.
        links: the links of its scope.

    Raises:
        PathEscape: via `symlink`: a link points outside the root, or too many links or names are on the way.
        BadName: a link points to a name that is not allowed in a memory. The message does not contain the
            name.

    Cost: about 10 µs, and at most `MAX_STEPS` names: 0.5 ms.
    """
    if not links:
        return ResolvedPath(path, is_directory=not path.rel)
    segments: list[str] = []
    pending = path.rel.split("/")[::-1]
    links_followed, steps = 0, 0
    is_bad = False
    name = ""
    while pending:
        name = pending.pop()
        steps += 1
        if steps > MAX_STEPS:
            raise PathEscape(Via.SYMLINK, path.text)
        if name in _DOT_SEGMENTS:
            if name == "..":
                _remove_last(segments, path)
            continue
        segments.append(name)
        target = links.get(RelPath("/".join(segments)))
        if target is None:
            is_bad = is_bad or len(segments) >= MAX_DEPTH or find_segment_problem(name) is not None
            continue
        segments.pop()
        links_followed += 1
        if links_followed > MAX_LINKS_FOLLOWED or not target or target.startswith("/"):
            raise PathEscape(Via.SYMLINK, path.text)
        pending += target.split("/")[::-1]
    if not is_bad:
        with suppress(BadName):  # The complete path may be too long.
            return ResolvedPath(
                CanonicalPath(path.scope, RelPath("/".join(segments))), is_directory=name in _DOT_SEGMENTS
            )
    raise BadName(f"{path.text} points to a name that is not allowed in this memory; use another file")


def _remove_last(segments: list[str], path: CanonicalPath) -> None:
    if not segments:
        raise PathEscape(Via.SYMLINK, path.text)
    segments.pop()


def parse_symlinks(symlinks: str) -> Symlinks:
    """Return the treatment of symbolic links for the value of a flag or setting.

    Raises:
        ConfigInvalid: the value is neither `"refuse"` nor `"beneath"`.
    """
    if symlinks not in list(Symlinks):
        raise ConfigInvalid(f"symlinks = {symlinks!r}: use {' or '.join(map(repr, map(str, Symlinks)))}")
    return Symlinks(symlinks)
