"""Brings one file of a commit back to what it was, from whatever point its writing came to.

What is asked is the disk, never a memory of what was done: the same code serves a commit that fails half way
and a recovery after its process was killed. Two names are looked at: the file's own, and the temporary one
that only this commit uses.

T1 A file is touched only if what stands there is the before- or the after-state; anything else is somebody's
   later work and stays.
T2 What a peer had put in our way, and we displaced, gets its name back.
T3 Afterwards nothing of this commit stands under either name, unless `StoreConflict` is raised.
"""

from __future__ import annotations

from muniment.confine.writing import Directory, Staged
from muniment.errors import NotFound, StoreConflict
from muniment.names import joined
from muniment.tools.overlay import digest


def take_back(
    directory: Directory, name: str, before: bytes | None, after: bytes | None, temporary: str
) -> None:
    """Bring `name` from `after`, or from a point on the way there, back to `before`; None is no file.

    Raises:
        StoreConflict: somebody else changed it since; that was left alone (T1).
        MunimentError: something that is no file stands at a name, or the disk fails.
    """
    conflict = StoreConflict((f"{directory.root.scope}/{joined(directory.rel, name)}",))
    aside = bytes_at(directory, temporary)
    if aside is not None and aside == after:
        directory.discard(Staged(temporary, digest(aside)))  # It never got its name, or was put back already.
        return
    current = bytes_at(directory, name)
    if aside is not None and current == after:
        _return(directory, name, Staged(temporary, digest(aside)), after)
        return
    if aside is not None:
        # The ledger has the before-state; what is ours and not whole yet is worth nothing.
        if aside != before and not _is_unfinished(aside, after):
            raise conflict
        directory.discard(Staged(temporary, digest(aside)))
    if current == before:
        return
    if current != after:
        raise conflict
    if before is None:
        directory.withdraw(name, temporary, digest(after or b""))
        return
    again = directory.stage(temporary, before)
    try:
        _put(directory, name, again, after)
    except BaseException:
        directory.discard(again)
        raise


def _return(directory: Directory, name: str, aside: Staged, after: bytes | None) -> None:
    """Give what was displaced its name back, in place of our bytes or of nothing."""
    try:
        _put(directory, name, aside, after)
    except StoreConflict:
        # Somebody exchanged the name once more. Where our bytes are aside again, nothing else of us is left.
        if after is None or bytes_at(directory, aside.temporary) != after:
            raise
        directory.discard(Staged(aside.temporary, digest(after)))


def _is_unfinished(aside: bytes, after: bytes | None) -> bool:
    """Whether these are our bytes, cut off by a kill, or filled up with zeros when the power failed."""
    return after is not None and after.startswith(aside.rstrip(b"\0"))


def _put(directory: Directory, name: str, staged: Staged, after: bytes | None) -> None:
    if after is None:
        directory.publish_new(staged, name)
    else:
        directory.replace(staged, name, digest(after))


def bytes_at(directory: Directory, name: str) -> bytes | None:
    """The bytes of a file, or None where nothing has the name.

    Raises:
        MunimentError: as `Directory.read`.
    """
    try:
        return directory.read(name)
    except NotFound:
        return None
