"""Paths for tests that begin with one, and some that nothing makes."""

from __future__ import annotations

from muniment.kernel.path import CanonicalPath


def at(scope, rel=""):
    """The path of `rel` in a scope; refused where there is no such path."""
    return CanonicalPath(scope, rel)


def forged(scope, rel):
    """A path whose text nobody looked at, as no caller can make it."""
    path = object.__new__(CanonicalPath)
    object.__setattr__(path, "scope", scope)
    object.__setattr__(path, "rel", rel)
    return path
