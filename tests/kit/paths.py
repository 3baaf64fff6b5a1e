"""Valid paths for tests, and paths that cannot be created normally."""

from __future__ import annotations

from muniment.kernel.path import CanonicalPath


def at(scope, rel=""):
    """Return the path of `rel` in a scope; raise if it is invalid."""
    return CanonicalPath(scope, rel)


def forged(scope, rel):
    """Return a path with unchecked text, which no caller can create normally."""
    path = object.__new__(CanonicalPath)
    object.__setattr__(path, "scope", scope)
    object.__setattr__(path, "rel", rel)
    return path
