"""Removes directories that an undo or an erasure has left empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from muniment.confine.binding import BoundRoot
from muniment.confine.cancel import Patience
from muniment.confine.writing import lock_roots, remove_empty_directory
from muniment.errors import PathEscape
from muniment.names import RelPath, Scope


def remove_emptied(
    roots: Mapping[Scope, BoundRoot], directories: Mapping[Scope, Sequence[RelPath]], patience: Patience
) -> None:
    """Remove `directories` where nothing stands in them any more, the innermost first.

    Under the locks, since a commit that is under way may be about to put a file there.

    Raises:
        ManagedMemoryUnavailable: the system refuses.
        DeadlineExceeded, Cancelled: somebody held the lock of a root.
    """
    if not any(directories.values()):
        return
    with lock_roots([roots[scope] for scope in directories], patience):
        for scope, made in directories.items():
            for rel in sorted(set(made), key=len, reverse=True):
                with suppress(PathEscape):  # Somebody else's link has taken its place.
                    remove_empty_directory(roots[scope].root, rel)
