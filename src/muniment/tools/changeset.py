"""What a run proposes: not yet judged, so every path here is only text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from muniment.names import Digest


def digest(content: bytes) -> Digest:
    """SHA-256 of `content`."""
    return Digest(hashlib.sha256(content).hexdigest())


@dataclass(frozen=True, slots=True)
class Proposed:
    """One file as the run wants it.

    Attributes:
        unsafe_path: logical path, as the worker named it.
        base: digest of the bytes that it replaces, None if it creates.
        content: the whole file.
    """

    unsafe_path: str
    base: Digest | None
    content: bytes

    @property
    def digest(self) -> Digest:
        """SHA-256 of `content`."""
        return digest(self.content)


@dataclass(frozen=True, slots=True)
class Claim:
    """What must still hold at commit: the digest of a file, or its absence (None)."""

    unsafe_path: str
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """All pending writes of a run and the claims that they rest on.

    Attributes:
        removals: files that go, as they are now. No tool proposes that, only code does.
    """

    changes: tuple[Proposed, ...] = ()
    claims: tuple[Claim, ...] = ()
    removals: tuple[Claim, ...] = ()

    @property
    def unsafe_paths(self) -> tuple[str, ...]:
        """Every path that would be touched."""
        proposed = [item.unsafe_path for item in self.changes]
        return (*proposed, *(item.unsafe_path for item in self.removals))
