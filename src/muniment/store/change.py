"""The broker's own view of a change: a canonical path, an opened root, bytes before and after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from muniment.confine.binding import BoundRoot
from muniment.names import Digest, Scope, Verb
from muniment.policy.grammar import CanonicalPath
from muniment.tools.overlay import digest

ChangeKind = Literal["create", "modify", "delete"]


@dataclass(frozen=True, slots=True)
class Change:
    """A change as callers see it.

    Attributes:
        path: logical path.
        kind: whether the file comes, changes or goes.
        sha256_before: digest of what was there, None for a new file.
        sha256_after: digest of what the change-set puts there, None for a file that goes.
    """

    path: str
    kind: ChangeKind
    sha256_before: Digest | None
    sha256_after: Digest | None

    @classmethod
    def between(cls, path: str, before: Digest | None, after: Digest | None) -> Change:
        """The change of the file at `path` from one digest to another; None is no file."""
        kind: ChangeKind = "create" if before is None else "delete" if after is None else "modify"
        return cls(path, kind, before, after)


@dataclass(frozen=True, slots=True)
class Draft:
    """A change on its way to the disk.

    Attributes:
        root: the bound root in which the broker itself found the before-state.
        before: bytes that are there now, None if nothing is.
        after: bytes that shall be there, None if the file goes.
    """

    path: CanonicalPath
    root: BoundRoot
    before: bytes | None
    after: bytes | None

    @property
    def verb(self) -> Verb:
        """What the policy must grant on its path; a removal, which only code proposes, needs to modify."""
        return Verb.CREATE if self.before is None else Verb.MODIFY

    @property
    def change(self) -> Change:
        """The public view."""
        before = None if self.before is None else digest(self.before)
        after = None if self.after is None else digest(self.after)
        return Change.between(self.path.text, before, after)


def classify_touched_scopes(drafts: Iterable[Draft]) -> tuple[Scope, ...]:
    """The scopes that a change-set touches, sorted: by the roots that the broker opened, never by text."""
    return tuple(sorted({draft.root.root.scope for draft in drafts}))
