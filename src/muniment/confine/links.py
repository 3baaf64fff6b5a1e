"""The symbolic links beneath a root, read by the broker when a run starts.

On success of `read_links`:

- K1 every name in the map was, at one moment during the call, a link of that target, in a directory beneath
  the root and on its mount. Directories are reached by handle; links are read, never followed.
- K2 every link is in the map that a canonical path can name, dot names included: a policy may grant those.
  Left out is what no such path leads to, what cannot be listed or read, and what vanished meanwhile.
- K3 no more than `MAX_NAMES` names were looked at, and the map holds no more than `MAX_LINKS` links and
  `MAX_LINK_BYTES` bytes.

Does not hold: that the links are still so. Whoever opens what the map leads to follows nothing either, so a
link that is missing here, or became one later, is refused. Targets are text that nobody has looked at: they
may be absolute, endless, or outside the grammar (`muniment.policy.grammar`). Attacked by
`tests/confine/test_links.py`.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Final

from muniment.confine.root import MAX_ENTRIES, Kind, Listed, Root, encoded
from muniment.confine.syscalls import EXAMINE
from muniment.errors import ManagedMemoryUnavailable, PathEscape, TooLarge, ToolError
from muniment.names import MAX_DEPTH, RelPath, joined
from muniment.policy.grammar import segment_problem

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
    directories = [RelPath("")]
    names, size = 0, 0
    while directories:
        directory = directories.pop()
        listed = _listed(root, directory)
        names += len(listed)
        if names > MAX_NAMES:
            raise _too_many(root, f"more than {MAX_NAMES} names")
        directories += (joined(directory, name) for name in _of(listed, "directory"))
        with closing(_targets(root, directory, _of(listed, "other"))) as targets:
            for rel, target in targets:
                links[rel] = target
                size += len(rel.encode()) + len(target.encode(errors="surrogateescape"))
                if len(links) > MAX_LINKS or size > MAX_LINK_BYTES:
                    raise _too_many(root, f"more than {MAX_LINKS} links, or links with very long targets")
    return links


def _listed(root: Root, directory: RelPath) -> tuple[Listed, ...]:
    """What stands in a directory; nothing if it cannot be listed, or is deeper than any path leads."""
    if directory.count("/") + 2 >= MAX_DEPTH:
        return ()
    try:
        return root.list_directory(directory)
    except TooLarge:
        raise _too_many(root, f"more than {MAX_NAMES} names") from None
    except (PathEscape, ToolError):
        return ()  # A mount, or gone, or not ours to read: its links stay out and are refused (K2).


def _of(listed: Sequence[Listed], kind: Kind) -> list[str]:
    """The names of a kind that a canonical path may hold."""
    return [item.name for item in listed if item.kind == kind and segment_problem(item.name) is None]


def _targets(root: Root, directory: RelPath, names: Sequence[str]) -> Generator[tuple[RelPath, str]]:
    """Each of `names` in `directory` that is a link, as a path inside the scope, with its target."""
    if not names:
        return
    try:
        fd = root.resolver.open(root.fd, encoded(directory), EXAMINE)
    except OSError:
        return  # The directory went, or was replaced, since it was listed.
    try:
        for name in names:
            try:
                target = os.readlink(name.encode(), dir_fd=fd)
            except OSError:
                continue  # Something else than a link, or gone.
            # Wherever an absolute target leads, it leads outside: where is nobody's business.
            shown = b"/" if target.startswith(b"/") else target
            yield joined(directory, name), shown.decode(errors="surrogateescape")
    finally:
        os.close(fd)


def _too_many(root: Root, what: str) -> ManagedMemoryUnavailable:
    reason = f"it holds {what}, too many to resolve its links; bind a smaller directory, or refuse links"
    return ManagedMemoryUnavailable(root.scope, f"{reason} (symlinks = 'refuse')")
