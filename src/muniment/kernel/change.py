"""Changes of files: `FileChange`, from a worker's proposal to a ledger row.

`read_proposal` turns the text of a worker into paths. An escape anywhere in it, claims included, takes
precedence over every other error. Nothing here is judged yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import NoneType
from typing import Literal

from muniment.kernel.names import Digest, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.kernel.refusal import Refusal, Refused

ChangeKind = Literal["create", "modify", "delete"]


def digest(content: bytes) -> Digest:
    """Return the SHA-256 of `content`."""
    return Digest(hashlib.sha256(content).hexdigest())


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change of one file from one state to another.

    Attributes:
        path: the file.
        base: digest of the bytes that the change is based on; None: the file must not exist.
        after: the complete new file; None: delete it.
        before: the bytes that the broker found at the path; None until it reads them, and for a new file.
        trust: trust of `after`; None for a deletion, and until it is set.
    """

    path: CanonicalPath
    base: Digest | None
    after: bytes | None
    before: bytes | None = None
    trust: Trust | None = None

    @property
    def kind(self) -> ChangeKind:
        """Return whether the change creates, modifies or deletes the file."""
        return "delete" if self.after is None else "create" if self.base is None else "modify"

    @property
    def verb(self) -> Verb:
        """Return the verb that the policy must grant; deletions, which only code proposes, need `modify`."""
        return Verb.CREATE if self.base is None else Verb.MODIFY

    @property
    def digest(self) -> Digest | None:
        """Return the digest of `after`."""
        return None if self.after is None else digest(self.after)

    @property
    def size(self) -> int:
        """Return the number of bytes of `after`."""
        return len(self.after or b"")


@dataclass(frozen=True, slots=True)
class Claim:
    """A condition at commit: the digest that a file must have, or its absence (None)."""

    path: CanonicalPath
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes that are written all or none, and the claims that they need in addition to their bases."""

    changes: tuple[FileChange, ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def paths(self) -> tuple[CanonicalPath, ...]:
        """Return every path that the changes touch."""
        return tuple(change.path for change in self.changes)


_SEAL = object()


class Sealed:
    """Permission to write, and where: only the kernel creates it, and it cannot be copied or changed."""

    __slots__: tuple[str, ...] = ()

    def __init__(self, seal: object, *parts: object) -> None:
        if seal is not _SEAL:
            raise TypeError(f"{type(self).__name__} can be created only by the kernel")
        for name, part in zip(self.__slots__, parts, strict=True):
            object.__setattr__(self, name, part)

    def __init_subclass__(cls, seal: object = None) -> None:
        if seal is not _SEAL:
            raise TypeError("sealed classes cannot be subclassed outside the kernel")

    def __setattr__(self, name: str, _value: object) -> None:
        raise AttributeError(f"{name} of {type(self).__name__} cannot be changed")

    def __reduce_ex__(self, _protocol: object) -> str:
        raise TypeError(f"{type(self).__name__} cannot be copied")


class JudgedChanges(Sealed, seal=_SEAL):
    """Changes that `judge` allowed, each with the bytes that it replaces.

    Attributes:
        change_set: the changes, with final bytes, and the claims that they rest on.
        new_directories: for each change, the missing directories that it needs, outermost first.
        roots: the roots for which it was judged. It can be written only there, under the same locks.
    """

    __slots__ = ("_change_set", "new_directories", "roots")
    _change_set: ChangeSet
    new_directories: tuple[tuple[CanonicalPath, ...], ...]
    roots: object

    @property
    def change_set(self) -> ChangeSet:
        """Return a copy, so that no caller can change the original."""
        return validated_copy(self._change_set)


class Precondition(Enum):
    """The required state of an index name before the write, if it is not a file with known bytes."""

    ABSENT = "absent"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A generated file.

    Attributes:
        path: an index name.
        before: the bytes that it replaces; `ABSENT`: the name must be free; `LINK`: a link, which is dropped.
        after: the new bytes; None: delete the file.
        saved_as: name in the root under which the replaced file is saved; None: it is dropped.
    """

    path: CanonicalPath
    before: bytes | Precondition
    after: bytes | None
    saved_as: str | None = None


class GeneratedFiles(Sealed, seal=_SEAL):
    """Files at index names, which are not judged: all or none of them are written."""

    __slots__ = ("files",)
    files: tuple[IndexFile, ...]


class ReplayedChanges(Sealed, seal=_SEAL):
    """Changes that were judged and written in another copy of a memory, and are repeated in this one."""

    __slots__ = ("changes",)
    changes: tuple[FileChange, ...]


class Rollback(Sealed, seal=_SEAL):
    """Changes to roll back, each independently and the last first, to bytes that the journal contains.

    Attributes:
        begun: positions of the changes that may have touched their file. Of the others only temporary names
            are removed.
    """

    __slots__ = ("begun", "changes")
    begun: frozenset[int]
    changes: tuple[FileChange, ...]


def validated_copy(change_set: ChangeSet) -> ChangeSet:
    """Return the change set in new objects, if every part is of an exact, immutable class.

    An object of another class could return other values after it was checked.

    Raises:
        TypeError: a part is of another class.
    """
    changes = tuple(change_set.changes)
    for item in changes:
        if type(item) is not FileChange or type(item.path) is not CanonicalPath:
            raise TypeError("expected a FileChange with a CanonicalPath")
        texts, base = {type(item.before), type(item.after)}, type(item.base)
        if not texts <= {bytes, NoneType} or base not in {str, NoneType}:
            raise TypeError("a change must contain plain bytes and digests")
    return ChangeSet(tuple(replace(item) for item in changes), tuple(change_set.claims))


def merge(parts: Iterable[ChangeSet]) -> ChangeSet:
    """Return all of `parts` as one change set."""
    change_sets = tuple(parts)
    return ChangeSet(
        tuple(change for part in change_sets for change in part.changes),
        tuple(claim for part in change_sets for claim in part.claims),
    )


def read_proposal(
    changes: Sequence[tuple[str, Digest | None, bytes]],
    claims: Sequence[tuple[str, Digest | None]],
    scopes: Collection[Scope],
) -> ChangeSet:
    """Return the proposal of a worker as a change set. The worker is not trusted.

    Args:
        changes: path, digest of the replaced file or None, and the complete new file.
        claims: path, and digest of the file that was read, or None.
        scopes: the declared scopes of the run.

    Raises:
        PathEscape: a path is outside the scopes.
        BadName, Refused: a path is not canonical, or is a scope.
    """
    refusal: Refusal | None = None
    paths: dict[str, CanonicalPath] = {}
    for unsafe_path in (*(item[0] for item in changes), *(item[0] for item in claims)):
        try:
            paths[unsafe_path] = canonicalise(unsafe_path, scopes)
        except Refusal as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    for unsafe_path, _, _ in changes:
        if paths[unsafe_path].text != unsafe_path or not paths[unsafe_path].rel:
            raise Refused("a proposed path is not canonical", rule="change-set", layer="judge")
    return ChangeSet(
        tuple(FileChange(paths[path], base, after) for path, base, after in changes),
        tuple(Claim(paths[path], seen) for path, seen in claims),
    )
