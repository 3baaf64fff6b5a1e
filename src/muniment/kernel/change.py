"""Changes of files, from the proposal of a worker to a row of the ledger.

`read_proposal` converts the texts of a worker to paths. If any path in the proposal is a path escape, that
error takes precedence over every other error. The result of `read_proposal` is not judged yet.
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
    """The creation, modification or deletion of one file.

    Attributes:
        path: the file.
        base: digest of the file content that the change is based on; None: the file must not exist.
        after: the complete new content; None: the file is deleted.
        before: the content that the broker found; None for a new file, and until the broker reads the file.
        trust: trust of the new content; None for a deletion, and until it is set.
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
        """Return the verb that the policy must grant: `create` for a new file, else `modify`.

        A deletion, which only code proposes, needs `modify`.
        """
        return Verb.CREATE if self.base is None else Verb.MODIFY

    @property
    def digest(self) -> Digest | None:
        """Return the digest of the new content, or None for a deletion."""
        return None if self.after is None else digest(self.after)

    @property
    def size(self) -> int:
        """Return the number of bytes of the new content; 0 for a deletion."""
        return len(self.after or b"")


@dataclass(frozen=True, slots=True)
class Claim:
    """A condition that must be true at commit: the file has this digest or, if None, does not exist."""

    path: CanonicalPath
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes of which all or none are written.

    Attributes:
        changes: the changes.
        claims: further conditions that must be true at commit.
    """

    changes: tuple[FileChange, ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def paths(self) -> tuple[CanonicalPath, ...]:
        """Return the path of every change."""
        return tuple(change.path for change in self.changes)


_SEAL = object()


class Sealed:
    """Base class of objects that permit a write.

    Only the kernel creates such objects. They cannot be copied or changed.
    """

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
        change_set: the changes, with their final bytes, and the claims.
        new_directories: for each change, the missing directories that it needs, outermost first.
        roots: the locked roots for which the changes were judged. They can be written only there, under the
            same locks.
    """

    __slots__ = ("_change_set", "new_directories", "roots")
    _change_set: ChangeSet
    new_directories: tuple[tuple[CanonicalPath, ...], ...]
    roots: object

    @property
    def change_set(self) -> ChangeSet:
        """Return a copy of the change set, so that no caller can change the original."""
        return validated_copy(self._change_set)


class Precondition(Enum):
    """The state that a path must have before an index file is written there.

    It is used if no file with known bytes is at the path. `ABSENT`: the path is free. `LINK`: it is a link.
    """

    ABSENT = "absent"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A generated index file, which is to be written or deleted.

    Attributes:
        path: the path of the index file.
        before: the bytes of the file that it replaces, or the required state of the path. A link at the path
            is removed.
        after: the new bytes; None: the file is deleted.
        saved_as: file name in the root under which the replaced file is saved; None: it is not saved.
    """

    path: CanonicalPath
    before: bytes | Precondition
    after: bytes | None
    saved_as: str | None = None


class GeneratedFiles(Sealed, seal=_SEAL):
    """Index files, which are written without being judged: all of them or none."""

    __slots__ = ("files",)
    files: tuple[IndexFile, ...]


class ReplayedChanges(Sealed, seal=_SEAL):
    """Changes that were judged and written in another copy of a memory, and are repeated in this copy."""

    __slots__ = ("changes",)
    changes: tuple[FileChange, ...]


class Rollback(Sealed, seal=_SEAL):
    """Changes to roll back: each file gets the bytes back that the journal recorded.

    Each change is rolled back independently, the last change first.

    Attributes:
        begun: positions of the changes that may have touched their file. For the other changes, only
            temporary files are removed.
    """

    __slots__ = ("begun", "changes")
    begun: frozenset[int]
    changes: tuple[FileChange, ...]


def validated_copy(change_set: ChangeSet) -> ChangeSet:
    """Return a copy of `change_set` in new objects, if every value has an exact, immutable class.

    An object of another class could return other values after it was checked.

    Raises:
        TypeError: a value has another class.
    """
    changes = tuple(change_set.changes)
    for item in changes:
        if type(item) is not FileChange or type(item.path) is not CanonicalPath:
            raise TypeError("expected a FileChange with a CanonicalPath")
        texts, base = {type(item.before), type(item.after)}, type(item.base)
        if not texts <= {bytes, NoneType} or base not in {str, NoneType}:
            raise TypeError("a FileChange must contain only bytes, str and None")
    return ChangeSet(tuple(replace(item) for item in changes), tuple(change_set.claims))


def merge(parts: Iterable[ChangeSet]) -> ChangeSet:
    """Return one change set with the changes and claims of all `parts`."""
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
    """Convert the proposal of a worker, which is not trusted, to a change set.

    Args:
        changes: for each change: path, digest of the replaced file or None, and the complete new content.
        claims: for each claim: path, and digest of the file that the worker read; None: it did not exist.
        scopes: the declared scopes of the run.

    Raises:
        PathEscape: a path leaves the memory.
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
