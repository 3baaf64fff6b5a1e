"""Where jobs work: a policy over bound roots, and what knows their history."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from muniment.content.entry import Entry, parse
from muniment.content.expiry import expiry_time
from muniment.errors import InvalidScope, NotFound, PathEscape, Refusal, Refused, ToolError
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Cancelling, Patience
from muniment.kernel.change import digest
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import Digest, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.names import URI, Symlinks
from muniment.store.catalog import CatalogEntry
from muniment.store.ledger import root_key, source_of
from muniment.store.rows import Assessed
from muniment.store.state import State
from muniment.store.trust import assessing, authorship_at, trust_at
from muniment.types.keys import RootKey

if TYPE_CHECKING:
    from muniment.agent.model import OnModelFailure

# -- place -------------------------------------------------------------------------------------------


def path_of_address(text: str) -> str:
    """Return the path in the address of an entry (`muniment://…`); any other text as it is."""
    return unquote(text.removeprefix(URI)) if text.startswith(URI) else text


WAIT_SECONDS: Final = 60.0
"""Seconds that a commit outside a run waits for the locks of its roots."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job works: a policy over bound roots, and the state that knows their history.

    Attributes:
        symlinks: what becomes of links beneath the roots.
        in_process: run the tools in this process; the policy must allow it.
        clock: monotonic seconds.
        notes: what a person should know of how it was found, such as that a commit had been interrupted.
        advice: what the user should know of another memory of the same project, for every answer.
        on_model_failure: if the model of a remember or forget fails in any way but a path escape: let the
            rules do the work, or fail the task.
    """

    policy: Policy
    roots: Mapping[Scope, BoundRoot]
    state: State
    symlinks: Symlinks = Symlinks.REFUSE
    in_process: bool = False
    clock: Callable[[], float] = time.monotonic
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    on_model_failure: OnModelFailure = "rules"

    def chosen(self, scope: str | None) -> tuple[Scope, ...]:
        """The scopes that a request is about: the one that it names, else all.

        Raises:
            InvalidScope: none of that name is bound.
            ManagedMemoryUnavailable: a root, also one of another scope, is not where it was.
        """
        if scope is not None and scope not in self.roots:
            if scope in self.policy.scopes:
                raise InvalidScope(
                    f"there is no repository around here; for a {scope} name its --workspace DIR"
                )
            raise InvalidScope(f"there is no scope {scope!r}; there are {', '.join(self.roots)}")
        for root in self.roots.values():
            root.verify()
        return tuple(self.roots) if scope is None else (Scope(scope),)

    def path(self, unsafe_path: str) -> CanonicalPath:
        """Return the path of a scope that is bound, for a path as text or its address (`muniment://…`).

        Raises:
            PathEscape, Refusal: it is no path of the memory.
            NotFound: nothing is remembered in its scope yet.
        """
        path = canonicalise(path_of_address(unsafe_path), self.policy.scopes)
        if path.scope not in self.roots:
            raise NotFound(f"nothing is remembered in {path.scope} yet")
        return path

    def patience(self, cancel: Cancelling | None = None) -> Patience:
        """How long a commit outside a run waits, from now on."""
        return Patience(time.monotonic() + WAIT_SECONDS, cancel)

    def key(self, scope: Scope) -> RootKey:
        """The key of a root that is bound."""
        return root_key(self.state, self.roots[scope])

    def read(self, path: CanonicalPath) -> bytes:
        """The bytes of a file in a root that is bound.

        Raises:
            PathEscape, Refusal, ToolError: no plain file can be read there; `NotFound`: nothing is there.
        """
        return self.roots[path.scope].root.read_bytes(path)

    def trust_at(self, path: CanonicalPath, data: bytes) -> Trust:
        """How far bytes that stand at a path are trusted, see `store.trust`."""
        return trust_at(self.state, self.key(path.scope), path, data, self.policy)

    def assessed(self, path: CanonicalPath, data: bytes) -> Assessed:
        """What is known of bytes that stand at a path, and what a look at them says."""
        assess = assessing(self.state, self.key(path.scope), path.scope, self.policy)
        return assess(path.rel, digest(data), data)

    def scopes_by_key(self) -> dict[RootKey, Scope]:
        """The scopes that are bound, by the keys of their roots."""
        return {root_key(self.state, root): scope for scope, root in self.roots.items()}

    def close(self) -> None:
        """Close the state, with what looks at the roots beside others, and the roots."""
        self.state.close()
        self.close_roots()

    def close_roots(self) -> None:
        """Close the roots alone, where the state is shared with other places, once nothing looks at them."""
        for root in self.roots.values():
            root.close()


# -- holding -----------------------------------------------------------------------------------------
#
# An entry as forget and dream go by it: the bytes of its file, and whether code may remove it.


@dataclass(frozen=True, slots=True)
class Holding:
    """An entry that was read.

    Attributes:
        row: what the catalog says of it.
        data: the file.
        digest: of the file, as a claim.
        trust: of these bytes, by the ledger.
        most: the highest of their sentences: whoever removes them needs it.
        at: when this memory wrote them, ISO-8601 UTC; empty: it did not, somebody's hand or program did.
    """

    path: CanonicalPath
    row: CatalogEntry
    data: bytes
    digest: Digest
    trust: Trust
    most: Trust
    at: str

    @property
    def is_as_listed(self) -> bool:
        """Whether the file is the one that its row tells of."""
        return self.digest == self.row.digest

    def outlasts(self, other: Holding) -> bool:
        """Return whether this is still shown, or still holds, when `other` no longer does."""
        ours, theirs = self.row, other.row
        if theirs.expires is not None and (
            ours.expires is None or expiry_time(ours.expires) > expiry_time(theirs.expires)
        ):
            return True
        return theirs.ends is not None and (ours.ends is None or ours.ends > theirs.ends)

    @property
    def entry(self) -> Entry:
        """The file as text; parsed at each call."""
        return parse(self.data)


def read_holding(place: Place, scope: Scope, row: CatalogEntry) -> Holding | None:
    """The entry of a row as it is now; None where no file of its own can be read there.

    Cost: an open, a read and one query of the ledger.
    """
    try:
        path = CanonicalPath(scope, row.rel)
        data = place.read(path)
    except (PathEscape, Refusal, ToolError):
        return None
    found = digest(data)
    key = place.key(scope)
    source = source_of(place.state, key, row.rel, found)
    by = authorship_at(place.state, key, path, data, place.policy, source)
    return Holding(
        path,
        row,
        data,
        found,
        by.trust,
        by.most,
        "" if source is None else source.at,
    )


def may_see(judge: Judge, path: CanonicalPath) -> bool:
    """Whether the policy lets anybody see the entry at `path`."""
    return judge.allows(Verb.LIST, path) and judge.allows(Verb.READ, path)


def reason_to_keep(judge: Judge, path: CanonicalPath, held: Trust, request: Trust) -> str | None:
    """Why an entry of trust `held` may not be removed by a request of trust `request`; None: it may."""
    try:
        judge.require_removal(path)
    except Refused as refused:
        return f"the policy protects it (rule {refused.rule!r})"
    if not request.satisfies(held):
        return f"it has trust {held}, and the request has trust {request}"
    return None
