"""What is to be done to files: `FileChange`, from the words of a worker to the row of a ledger.

`read_proposal` is where a worker's words become paths: an escape anywhere in them, claims included, wins over
whatever else is wrong. Nothing here is judged yet.
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
    """SHA-256 of `content`."""
    return Digest(hashlib.sha256(content).hexdigest())


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file goes from one state to another.

    Attributes:
        path: which file.
        base: digest of the bytes that the change rests on; None: there must be no such file.
        after: the whole file as it shall be; None: it goes.
        before: the bytes that stood there when the broker looked; None until then, and where none did.
        trust: of `after`; None where it goes, and as long as nobody said.
    """

    path: CanonicalPath
    base: Digest | None
    after: bytes | None
    before: bytes | None = None
    trust: Trust | None = None

    @property
    def kind(self) -> ChangeKind:
        """Whether the file comes, changes or goes."""
        return "delete" if self.after is None else "create" if self.base is None else "modify"

    @property
    def verb(self) -> Verb:
        """What the policy must grant on its path; a removal, which only code proposes, needs to modify."""
        return Verb.CREATE if self.base is None else Verb.MODIFY

    @property
    def digest(self) -> Digest | None:
        """Of `after`."""
        return None if self.after is None else digest(self.after)

    @property
    def size(self) -> int:
        """Bytes of `after`."""
        return len(self.after or b"")


@dataclass(frozen=True, slots=True)
class Claim:
    """What must still hold at commit: the digest of a file, or its absence (None)."""

    path: CanonicalPath
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Changes that are made all or none, and the claims that they rest on besides their own bases."""

    changes: tuple[FileChange, ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def paths(self) -> tuple[CanonicalPath, ...]:
        """Every path that would be touched."""
        return tuple(change.path for change in self.changes)


_SEAL = object()


class Sealed:
    """What may be landed, and where: made by the kernel alone, and neither copied nor changed."""

    __slots__: tuple[str, ...] = ()

    def __init__(self, seal: object, *parts: object) -> None:
        if seal is not _SEAL:
            raise TypeError(f"{type(self).__name__} is made by the kernel alone")
        for name, part in zip(self.__slots__, parts, strict=True):
            object.__setattr__(self, name, part)

    def __init_subclass__(cls, seal: object = None) -> None:
        if seal is not _SEAL:
            raise TypeError("what is sealed is of no other kind")

    def __setattr__(self, name: str, _value: object) -> None:
        raise AttributeError(f"{name} of {type(self).__name__} stays what it is")

    def __reduce_ex__(self, _protocol: object) -> str:
        raise TypeError(f"{type(self).__name__} is not copied")


class Judged(Sealed, seal=_SEAL):
    """Changes that `judge` allowed, each with what stood there before.

    Attributes:
        change_set: the changes, with final bytes, and the claims that they rest on.
        made: for each change, directories that it needs and that do not exist yet, outermost first.
        roots: the very ones for which it was judged: it lands there, under the same locks, or nowhere.
    """

    __slots__ = ("_change_set", "made", "roots")
    _change_set: ChangeSet
    made: tuple[tuple[CanonicalPath, ...], ...]
    roots: object

    @property
    def change_set(self) -> ChangeSet:
        """A copy: nobody else has hold of what is landed."""
        return plain(self._change_set)


class Standing(Enum):
    """What must stand at the name of an index file, where that is not known bytes."""

    ABSENT = "absent"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A generated file.

    Attributes:
        path: an index name.
        before: the bytes that it replaces; `ABSENT`: it must be new; `LINK`: a link, which is dropped.
        after: the new bytes; None: the file goes.
        kept: name in the root under which what is replaced is kept; None: it is dropped.
    """

    path: CanonicalPath
    before: bytes | Standing
    after: bytes | None
    kept: str | None = None


class Generated(Sealed, seal=_SEAL):
    """Files at index names, which nobody judges: all or none of them are landed."""

    __slots__ = ("files",)
    files: tuple[IndexFile, ...]


class Replayed(Sealed, seal=_SEAL):
    """Changes that were judged and done in another copy of a memory, and are carried out in this one."""

    __slots__ = ("changes",)
    changes: tuple[FileChange, ...]


class Rollback(Sealed, seal=_SEAL):
    """Changes that are rolled back, each by itself, the last first: to bytes that the journal knows of it.

    Attributes:
        begun: positions of the changes that may have touched their file; of the others temporary names go.
    """

    __slots__ = ("begun", "changes")
    begun: frozenset[int]
    changes: tuple[FileChange, ...]


def plain(change_set: ChangeSet) -> ChangeSet:
    """The change-set in objects of its own, if nothing in it could say something else once it was looked at.

    Raises:
        TypeError: something could.
    """
    changes = tuple(change_set.changes)
    for item in changes:
        if type(item) is not FileChange or type(item.path) is not CanonicalPath:
            raise TypeError("what is judged is a FileChange of a CanonicalPath")
        texts, base = {type(item.before), type(item.after)}, type(item.base)
        if not texts <= {bytes, NoneType} or base not in {str, NoneType}:
            raise TypeError("what is judged is made of plain bytes and digests")
    return ChangeSet(tuple(replace(item) for item in changes), tuple(change_set.claims))


def joint(parts: Iterable[ChangeSet]) -> ChangeSet:
    """All of `parts` as one."""
    every = tuple(parts)
    return ChangeSet(
        tuple(change for part in every for change in part.changes),
        tuple(claim for part in every for claim in part.claims),
    )


def read_proposal(
    changes: Sequence[tuple[str, Digest | None, bytes]],
    claims: Sequence[tuple[str, Digest | None]],
    scopes: Collection[Scope],
) -> ChangeSet:
    """What a worker proposes, who may have lied about everything.

    Args:
        changes: path, digest of what is replaced or None, and the whole file.
        claims: path, and digest of what was read or None.
        scopes: the declared scopes of the run.

    Raises:
        PathEscape: a path leads outside the scopes.
        BadName, Refused: a path is not canonical, or names a scope.
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
