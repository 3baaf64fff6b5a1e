"""The context of a job: a policy over bound roots, and the state that stores their history."""

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

# -- context -----------------------------------------------------------------------------------------


def path_of_address(text: str) -> str:
    """Return the path in the address of an entry (`muniment://…`); return any other text unchanged."""
    return unquote(text.removeprefix(URI)) if text.startswith(URI) else text


WAIT_SECONDS: Final = 60.0
"""Seconds that a commit outside a run waits for the locks of its roots."""


@dataclass(frozen=True, slots=True)
class Place:
    """The context of a job: a policy over bound roots, and the state that stores their history.

    Attributes:
        symlinks: the treatment of links inside the roots.
        in_process: run the tools in this process; the policy must allow it.
        clock: monotonic seconds.
        notes: notices for the user from opening the memory, such as an interrupted commit that was recovered.
        advice: notices for the user about another memory of the same project, for every response.
        on_model_failure: if the model of a remember or forget fails in any way except a path escape: let the
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
        """Return the scopes of a request: the requested one, or all if it is None.

        Raises:
            InvalidScope: no scope of that name is bound.
            ManagedMemoryUnavailable: a root, also one of another scope, was moved or replaced.
        """
        if scope is not None and scope not in self.roots:
            if scope in self.policy.scopes:
                raise InvalidScope(
                    f"scope {scope} not available: not inside a repository; pass --workspace DIR"
                )
            raise InvalidScope(f"unknown scope {scope!r}; use one of {', '.join(self.roots)}")
        for root in self.roots.values():
            root.verify()
        return tuple(self.roots) if scope is None else (Scope(scope),)

    def path(self, unsafe_path: str) -> CanonicalPath:
        """Return the path of a bound scope, from a path as text or an address (`muniment://…`).

        Raises:
            PathEscape, Refusal: not a path of the memory.
            NotFound: the scope has no directory yet, because no fact was remembered in it.
        """
        path = canonicalise(path_of_address(unsafe_path), self.policy.scopes)
        if path.scope not in self.roots:
            raise NotFound(f"nothing is remembered in {path.scope} yet")
        return path

    def patience(self, cancel: Cancelling | None = None) -> Patience:
        """Return a deadline for a commit outside a run, starting now."""
        return Patience(time.monotonic() + WAIT_SECONDS, cancel)

    def key(self, scope: Scope) -> RootKey:
        """Return the key of a bound root."""
        return root_key(self.state, self.roots[scope])

    def read(self, path: CanonicalPath) -> bytes:
        """Return the bytes of a file in a bound root.

        Raises:
            PathEscape, Refusal, ToolError: not a readable plain file; `NotFound`: the file is missing.
        """
        return self.roots[path.scope].root.read_bytes(path)

    def trust_at(self, path: CanonicalPath, data: bytes) -> Trust:
        """Return the trust of bytes at a path, see `store.trust`."""
        return trust_at(self.state, self.key(path.scope), path, data, self.policy)

    def assessed(self, path: CanonicalPath, data: bytes) -> Assessed:
        """Return the stored assessment of bytes at a path, completed by a check of the bytes."""
        assess = assessing(self.state, self.key(path.scope), path.scope, self.policy)
        return assess(path.rel, digest(data), data)

    def scopes_by_key(self) -> dict[RootKey, Scope]:
        """Return the bound scopes, by the keys of their roots."""
        return {root_key(self.state, root): scope for scope, root in self.roots.items()}

    def close(self) -> None:
        """Close the state, with its watchers of the roots, and then the roots."""
        self.state.close()
        self.close_roots()

    def close_roots(self) -> None:
        """Close only the roots, if other contexts share the state; no watcher may use them any more."""
        for root in self.roots.values():
            root.close()


# -- loaded entries ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Holding:
    """An entry that was read, as forget and dream use it.

    Attributes:
        row: its row in the catalog.
        data: the file.
        digest: of the file, as a precondition.
        trust: of these bytes, by the ledger.
        most: the highest trust of its sentences; a request needs it to remove them.
        at: when this memory wrote the bytes, ISO-8601 UTC; empty if a person or another program wrote them.
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
        """Return whether the file is still the one that its row describes."""
        return self.digest == self.row.digest

    def outlasts(self, other: Holding) -> bool:
        """Return whether this entry still applies or is still shown when `other` no longer is."""
        ours, theirs = self.row, other.row
        if theirs.expires is not None and (
            ours.expires is None or expiry_time(ours.expires) > expiry_time(theirs.expires)
        ):
            return True
        return theirs.ends is not None and (ours.ends is None or ours.ends > theirs.ends)

    @property
    def entry(self) -> Entry:
        """Return the file as text, parsed at each call."""
        return parse(self.data)


def read_holding(place: Place, scope: Scope, row: CatalogEntry) -> Holding | None:
    """Return the current entry of a row, or None if its file cannot be read as a regular file.

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
    """Return whether the policy lets any reader see the entry at `path`."""
    return judge.allows(Verb.LIST, path) and judge.allows(Verb.READ, path)


def reason_to_keep(judge: Judge, path: CanonicalPath, held: Trust, request: Trust) -> str | None:
    """Return why a request of trust `request` may not remove an entry of trust `held`, or None if it may."""
    try:
        judge.require_removal(path)
    except Refused as refused:
        return f"the policy protects it (rule {refused.rule!r})"
    if not request.satisfies(held):
        return f"it has trust {held}, and the request has trust {request}"
    return None
