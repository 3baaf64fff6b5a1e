"""What became of the memory of a place: its history, and where a file comes from."""

from __future__ import annotations

from muniment.errors import NotFound
from muniment.jobs.place import Place
from muniment.policy.grammar import CanonicalPath, canonicalise
from muniment.store.ledger import Step, Why, content_at, history, root_key, why
from muniment.tools.overlay import digest


def history_of(place: Place, unsafe_path: str | None = None) -> tuple[Step, ...]:
    """What was committed to the roots that are bound here, the newest first; see `store.history.history`.

    Args:
        place: where.
        unsafe_path: a file, directory or scope; None: all of it.

    Raises:
        PathEscape, Refusal: it is no path of the memory.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    below = canonicalise(unsafe_path.removesuffix("/"), place.policy.scopes) if unsafe_path else None
    roots = {root_key(place.state, root): scope for scope, root in place.roots.items()}
    return history(place.state, roots, below)


def why_of(place: Place, unsafe_path: str) -> Why:
    """Where a file comes from, and whether it still is what was committed.

    Raises:
        PathEscape, Refusal: it is no path of the memory, or what stands there is no plain file.
        NotFound: nothing is there, nor was it.
        Erased: what was there was erased.
        ToolError: it cannot be read.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    path = _path(place, unsafe_path)
    root = place.roots[path.scope]
    try:
        present = digest(root.root.read_bytes(path.rel))
    except NotFound:
        present = None
    return why(place.state, root_key(place.state, root), path, present, place.policy.trust_of(path.scope))


def content_of(place: Place, unsafe_path: str, task: str) -> bytes | None:
    """The bytes of a file as a task left it; None if it removed the file.

    Raises:
        PathEscape, Refusal: it is no path of the memory.
        NotFound: the task did not change it.
        Erased: the bytes are no longer known.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    path = _path(place, unsafe_path)
    return content_at(place.state, root_key(place.state, place.roots[path.scope]), path, task)


def _path(place: Place, unsafe_path: str) -> CanonicalPath:
    path = canonicalise(unsafe_path, place.policy.scopes)
    if path.scope not in place.roots:
        raise NotFound(f"nothing is remembered in {path.scope} yet")
    return path
