"""The symbolic links beneath a root, read by the broker when a run starts.

On success of `read_links`:

- K1 every name in the map was, at one moment during the call, a link of that target, in a directory
  beneath the root and on its mount. Directories are reached by handle; links are read, never followed.
- K2 every link is in the map that a canonical path can name, dot names included: a policy may grant
  those. Left out is what no such path leads to, what cannot be listed or read, and what vanished
  meanwhile.
- K3 no more than `MAX_NAMES` names were looked at, and the map holds no more than `MAX_LINKS` links and
  `MAX_LINK_BYTES` bytes.

Does not hold: that the links are still so. Whoever opens what the map leads to follows nothing either, so
a link that is missing here, or became one later, is refused. Targets are text that nobody has looked at:
they may be absolute, endless, or outside the grammar (`muniment.policy.grammar`). Attacked by
`tests/units/kernel/test_root.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from muniment.errors import BadName, ManagedMemoryUnavailable, PathEscape, TooLarge, ToolError
from muniment.kernel.names import MAX_DEPTH, RelPath
from muniment.kernel.path import CanonicalPath
from muniment.kernel.root import MAX_ENTRIES, Kind, Listed, Root

MAX_NAMES: Final = MAX_ENTRIES
"""Names of all kinds that are looked at: three times the files that the default policy allows. A single
directory of more cannot be listed either. Looking at as many takes about 0.3 s."""

MAX_LINKS: Final = 4_096
"""Links of one root. People link some dozens by hand, and tools a folder for each tag."""

MAX_LINK_BYTES: Final = 1 << 20
"""Bytes of all paths and targets of one root, 256 for each of `MAX_LINKS`: every worker is sent them."""


def read_links(root: Root) -> dict[RelPath, str]:
    """The target of each link beneath `root`, by the link's canonical path inside the scope.

    Targets that are not UTF-8 hold surrogate escapes; absolute ones are told as `/`, since the map is handed
    to workers.

    Raises:
        ManagedMemoryUnavailable: there are more names or links than K3 allows; says what to do.

    Cost: a listing a directory and a system call a link: 50 ms for 10 000 names in 500 directories.
    """
    links: dict[RelPath, str] = {}
    directories = [CanonicalPath(root.scope, RelPath(""))]
    names, size = 0, 0
    while directories:
        directory = directories.pop()
        listed = _listed(root, directory)
        names += len(listed)
        if names > MAX_NAMES:
            raise _too_many(root, f"more than {MAX_NAMES} names")
        directories += _of(directory, listed, "directory")
        for path in _of(directory, listed, "other"):
            target = root.link_target(path)
            if target is None:
                continue  # Something else than a link, or gone.
            # Wherever an absolute target leads, it leads outside: where is nobody's business.
            target = b"/" if target.startswith(b"/") else target
            links[path.rel] = target.decode(errors="surrogateescape")
            size += len(path.rel.encode()) + len(target)
            if len(links) > MAX_LINKS or size > MAX_LINK_BYTES:
                raise _too_many(root, f"more than {MAX_LINKS} links, or links with very long targets")
    return links


def _listed(root: Root, directory: CanonicalPath) -> tuple[Listed, ...]:
    """What stands in a directory; nothing if it cannot be listed, or is as deep as paths lead."""
    if len(directory.segments) >= MAX_DEPTH:
        return ()
    try:
        return root.list_directory(directory)
    except TooLarge:
        raise _too_many(root, f"more than {MAX_NAMES} names") from None
    except (PathEscape, ToolError):
        return ()  # A mount, or gone, or not ours to read: its links stay out and are refused (K2).


def _of(directory: CanonicalPath, listed: Sequence[Listed], kind: Kind) -> list[CanonicalPath]:
    """What is of a kind and has a canonical path."""
    found: list[CanonicalPath] = []
    for item in listed:
        if item.kind == kind:
            with suppress(BadName, PathEscape):
                found.append(directory.child(item.name))
    return found


def _too_many(root: Root, what: str) -> ManagedMemoryUnavailable:
    reason = f"it holds {what}, too many to resolve its links; bind a smaller directory, or refuse links"
    return ManagedMemoryUnavailable(root.scope, f"{reason} (symlinks = 'refuse')")
