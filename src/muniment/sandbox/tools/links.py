"""The symbolic links under a root, read by the broker when a run starts.

Promises of `read_links` if it succeeds:

- K1 Every name in the map was, at one moment during the call, a link with that target, in a directory under
  the root and on its mount. Directories are opened by handle; links are read, never followed.
- K2 The map contains every link with a canonical path, including names that begin with a dot, since a policy
  may grant those. Left out are links without a canonical path, links that cannot be listed or read, and links
  that vanished meanwhile.
- K3 At most `MAX_NAMES` names were read, and the map has at most `MAX_LINKS` links and `MAX_LINK_BYTES`
  bytes.

Not guaranteed: that the links are unchanged. Code that opens a target from the map follows no link either, so
a link that is missing here, or was created later, is rejected. Targets are unchecked text: they may be
absolute, cyclic, or outside the grammar (`muniment.policy.grammar`). Tested with attacks by
`tests/units/kernel/test_root.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from muniment.errors import BadName, ManagedMemoryUnavailable, PathEscape, TooLarge, ToolError
from muniment.kernel.names import MAX_DEPTH, RelPath
from muniment.kernel.path import CanonicalPath
from muniment.kernel.root import MAX_ENTRIES, Kind, ListedName, Root

MAX_NAMES: Final = MAX_ENTRIES
"""Maximum number of names that are read, of all kinds: three times the files that the default policy allows.
A single directory with more names cannot be listed either. Reading that many names takes about 0.3 s."""

MAX_LINKS: Final = 4_096
"""Maximum number of links of one root. People create some dozens by hand; tools, a folder for each tag."""

MAX_LINK_BYTES: Final = 1 << 20
"""Maximum bytes of all paths and targets of one root, which every worker receives: 256 for each link."""


def read_links(root: Root) -> dict[RelPath, str]:
    """Return the target of each link under `root`, by the path of the link inside the scope.

    Targets that are not UTF-8 contain surrogate escapes. Every absolute target becomes `/`, because workers
    receive the map.

    Raises:
        ManagedMemoryUnavailable: there are too many names or links to read; states what to do.

    Cost: one listing per directory and one system call per link: 50 ms for 10 000 names in 500 directories.
    """
    links: dict[RelPath, str] = {}
    directories = [CanonicalPath(root.scope, RelPath(""))]
    names, size = 0, 0
    while directories:
        directory = directories.pop()
        listed = _list_names(root, directory)
        names += len(listed)
        if names > MAX_NAMES:
            raise _build_limit_error(root, f"more than {MAX_NAMES} names")
        directories += _select_kind(directory, listed, "directory")
        for path in _select_kind(directory, listed, "other"):
            target = root.read_link_target(path)
            if target is None:
                continue  # Not a link, or deleted.
            # Every absolute target is outside; the worker must not learn where.
            target = b"/" if target.startswith(b"/") else target
            links[path.rel] = target.decode(errors="surrogateescape")
            size += len(path.rel.encode()) + len(target)
            if len(links) > MAX_LINKS or size > MAX_LINK_BYTES:
                raise _build_limit_error(
                    root, f"more than {MAX_LINKS} links, or links with very long targets"
                )
    return links


def _list_names(root: Root, directory: CanonicalPath) -> tuple[ListedName, ...]:
    """Return the names in a directory, or () if it cannot be listed or is at the maximum depth of paths."""
    if len(directory.segments) >= MAX_DEPTH:
        return ()
    try:
        return root.list_directory(directory)
    except TooLarge:
        raise _build_limit_error(root, f"more than {MAX_NAMES} names") from None
    except (PathEscape, ToolError):
        return ()  # A mount, deleted, or not readable: its links are left out and rejected (K2).


def _select_kind(directory: CanonicalPath, listed: Sequence[ListedName], kind: Kind) -> list[CanonicalPath]:
    """Return the paths of the listed names that have this kind and a canonical path."""
    found: list[CanonicalPath] = []
    for item in listed:
        if item.kind == kind:
            with suppress(BadName, PathEscape):
                found.append(directory.child(item.name))
    return found


def _build_limit_error(root: Root, excess: str) -> ManagedMemoryUnavailable:
    reason = f"it has {excess}, too many to resolve its links; bind a smaller directory, or reject links"
    return ManagedMemoryUnavailable(root.scope, f"{reason} (symlinks = 'refuse')")
