"""The memory on which a job works (`JobContext`), and the entries that it loads from it (`LoadedEntry`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from muniment.content.entry import Entry, parse
from muniment.content.expiry import compute_expiry_time
from muniment.errors import InvalidScope, NotFound, PathEscape, Refusal, Refused, ToolError
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import CancelToken, Deadline
from muniment.kernel.change import digest
from muniment.kernel.decide import Policy, PolicyEvaluator
from muniment.kernel.names import Digest, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.names import URI, Symlinks
from muniment.store.catalog import CatalogEntry
from muniment.store.ledger import find_source, get_root_key
from muniment.store.rows import Assessment
from muniment.store.state import State
from muniment.store.trust import build_assessment, compute_text_trust, compute_trust
from muniment.types.keys import RootKey

if TYPE_CHECKING:
    from muniment.agent.model_settings import OnModelFailure

# -- context -----------------------------------------------------------------------------------------


def parse_address(text: str) -> str:
    """Return the path in the address of an entry (`muniment://PATH`); return any other text unchanged."""
    return unquote(text.removeprefix(URI)) if text.startswith(URI) else text


WAIT_SECONDS: Final = 60.0
"""Maximum number of seconds that a commit outside an agent run waits for the locks of its roots."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """The memory on which a job works: a policy, the roots that it applies to, and the state.

    Attributes:
        policy: the effective policy.
        roots: the open directory of each bound scope.
        state: the databases of the memory, among them the ledger and the catalog.
        symlinks: whether symbolic links inside the roots are rejected or resolved.
        in_process: run the tools in this process, without a confined worker; the policy must allow this.
        clock: returns a monotonic time in seconds.
        notes: notices for the user from opening the memory, such as an interrupted commit that was recovered.
        advice: notices for the user about another memory of the same project, for every response.
        on_model_failure: if the model of a remember or forget fails, `rules` lets the embedded rules do the
            work, and `fail` fails the task. A path escape always fails the task.
        standing_tokens: maximum tokens of the standing context of a session; 0: there is none.
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
    standing_tokens: int = 0

    def select_scopes(self, scope: str | None) -> tuple[Scope, ...]:
        """Return the scopes that a request covers: the given one, or all bound scopes if `scope` is None.

        Raises:
            InvalidScope: no bound scope has this name.
            ManagedMemoryUnavailable: the directory of any root, not only of the given scope, was moved or
                replaced.
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

    def resolve_path(self, unsafe_path: str) -> CanonicalPath:
        """Return the canonical path for a path given as text or as an address (`muniment://PATH`).

        Raises:
            PathEscape, Refusal: the text is not a valid path of this memory.
            NotFound: the scope has no directory yet, because no fact was remembered in it.
        """
        path = canonicalise(parse_address(unsafe_path), self.policy.scopes)
        if path.scope not in self.roots:
            raise NotFound(f"nothing is remembered in {path.scope} yet")
        return path

    def start_deadline(self, cancel: CancelToken | None = None) -> Deadline:
        """Return a deadline for a commit outside an agent run: `WAIT_SECONDS` from now."""
        return Deadline(time.monotonic() + WAIT_SECONDS, cancel)

    def read_root_key(self, scope: Scope) -> RootKey:
        """Return the key that identifies the root of a bound scope in the state."""
        return get_root_key(self.state, self.roots[scope])

    def read_file(self, path: CanonicalPath) -> bytes:
        """Return the bytes of a file in a bound root.

        Raises:
            PathEscape, Refusal, ToolError: the path does not lead to a readable regular file; `NotFound` if
            the file is missing.
        """
        return self.roots[path.scope].root.read_bytes(path)

    def read_trust(self, path: CanonicalPath, data: bytes) -> Trust:
        """Return the trust of `data` as the content of the file at `path`; see `store.trust`."""
        return compute_trust(self.state, self.read_root_key(path.scope), path, data, self.policy)

    def assess(self, path: CanonicalPath, data: bytes) -> Assessment:
        """Return the trust and expiry of `data` at `path`, and the gate, if any, that withholds it."""
        assess_bytes = build_assessment(self.state, self.read_root_key(path.scope), path.scope, self.policy)
        return assess_bytes(path.rel, digest(data), data)

    def map_keys_to_scopes(self) -> dict[RootKey, Scope]:
        """Return the bound scopes, each by the key of its root."""
        return {get_root_key(self.state, root): scope for scope, root in self.roots.items()}

    def close(self) -> None:
        """Close the state, which stops its watchers of the roots; then close the roots."""
        self.state.close()
        self.close_roots()

    def close_roots(self) -> None:
        """Close the roots but not the state, which other contexts may share.

        No watcher may use the roots any more.
        """
        for root in self.roots.values():
            root.close()


# -- loaded entries ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadedEntry:
    """An entry: its row in the catalog, and the content that its file has now.

    Attributes:
        path: the path of the file.
        row: the row of the entry in the catalog.
        data: the bytes of the file.
        digest: the digest of `data`; a change of the entry uses it as a precondition.
        trust: the trust of `data` according to the ledger.
        highest_trust: the highest trust of a sentence in `data`; a request needs it to remove the entry.
        written_at: when this memory wrote `data`, ISO-8601 UTC; empty if a person or another program wrote
            it.
    """

    path: CanonicalPath
    row: CatalogEntry
    data: bytes
    digest: Digest
    trust: Trust
    highest_trust: Trust
    written_at: str

    @property
    def is_unchanged(self) -> bool:
        """Return whether the file still has the digest that its catalog row contains."""
        return self.digest == self.row.digest

    def outlasts(self, other: LoadedEntry) -> bool:
        """Return whether this entry expires or ends later than `other`.

        An entry without a date is later than an entry with one.
        """
        own_row, other_row = self.row, other.row
        if other_row.expires is not None and (
            own_row.expires is None
            or compute_expiry_time(own_row.expires) > compute_expiry_time(other_row.expires)
        ):
            return True
        return other_row.ends is not None and (own_row.ends is None or own_row.ends > other_row.ends)

    @property
    def entry(self) -> Entry:
        """Return the parsed file; each access parses it again."""
        return parse(self.data)


def load_entry(context: JobContext, scope: Scope, row: CatalogEntry) -> LoadedEntry | None:
    """Return the entry of a catalog row with the current content of its file, or None if it is unreadable.

    Cost: opening and reading the file, and one query of the ledger.
    """
    try:
        path = CanonicalPath(scope, row.rel)
        data = context.read_file(path)
    except (PathEscape, Refusal, ToolError):
        return None
    file_digest = digest(data)
    key = context.read_root_key(scope)
    source = find_source(context.state, key, row.rel, file_digest)
    authorship = compute_text_trust(context.state, key, path, data, context.policy, source)
    return LoadedEntry(
        path,
        row,
        data,
        file_digest,
        authorship.trust,
        authorship.highest_trust,
        "" if source is None else source.at,
    )


def is_visible(judge: PolicyEvaluator, path: CanonicalPath) -> bool:
    """Return whether the policy allows a reader to list and to read the entry at `path`."""
    return judge.allows(Verb.LIST, path) and judge.allows(Verb.READ, path)


def find_removal_obstacle(
    judge: PolicyEvaluator, path: CanonicalPath, entry_trust: Trust, request_trust: Trust
) -> str | None:
    """Return why a request may not remove the entry at a path, or None if it may.

    Args:
        judge: evaluates the policy.
        path: the path of the entry.
        entry_trust: the highest trust of a sentence in the entry.
        request_trust: the trust of the request; it must be at least `entry_trust`.
    """
    try:
        judge.require_removal(path)
    except Refused as refused:
        return f"the policy protects it (rule {refused.rule!r})"
    if not request_trust.satisfies(entry_trust):
        return f"it has trust {entry_trust}, and the request has trust {request_trust}"
    return None
