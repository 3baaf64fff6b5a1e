"""The broker's own view of a change: a canonical path, an opened root, bytes before and after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from muniment.confine.binding import BoundRoot
from muniment.names import Digest, Scope, Verb
from muniment.policy.grammar import CanonicalPath
from muniment.tools.changeset import digest


@dataclass(frozen=True, slots=True)
class Change:
    """A change as callers see it.

    Attributes:
        path: logical path.
        kind: whether the file is new.
        sha256_before: digest of what was there, None for a new file.
        sha256_after: digest of what the change-set puts there.
    """

    path: str
    kind: Literal["create", "modify"]
    sha256_before: Digest | None
    sha256_after: Digest


@dataclass(frozen=True, slots=True)
class Draft:
    """A change on its way to the disk.

    Attributes:
        root: the bound root in which the broker itself found the before-state.
        before: bytes that are there now, None if nothing is.
        after: bytes that shall be there.
    """

    path: CanonicalPath
    root: BoundRoot
    before: bytes | None
    after: bytes

    @property
    def verb(self) -> Verb:
        """What the change does to its path."""
        return Verb.CREATE if self.before is None else Verb.MODIFY

    @property
    def change(self) -> Change:
        """The public view."""
        before = None if self.before is None else digest(self.before)
        kind: Literal["create", "modify"] = "create" if before is None else "modify"
        return Change(self.path.text, kind, before, digest(self.after))


def classify_touched_scopes(drafts: Iterable[Draft]) -> tuple[Scope, ...]:
    """The scopes that a change-set touches, sorted: by the roots that the broker opened, never by text."""
    return tuple(sorted({draft.root.root.scope for draft in drafts}))
