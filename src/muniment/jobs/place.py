"""Where jobs work: a policy over bound roots, and what knows their history."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

from muniment import events
from muniment.agent.filing import RuleWriter
from muniment.agent.model import Budget, Model, ModelError, OnModelFailure
from muniment.agent.runner import MAX_OPTIONS, Asker
from muniment.confine.binding import BoundRoot
from muniment.confine.cancel import Cancel, Patience
from muniment.content.entry import Entry, parse
from muniment.errors import (
    InvalidContent,
    InvalidScope,
    MunimentError,
    PathEscape,
    PendingReview,
    Refusal,
    Refused,
    ToolError,
)
from muniment.jobs.request import MAX_TASK_CHARS
from muniment.names import Digest, Scope, Symlinks, Trust, Verb
from muniment.policy.decide import Judge, Policy
from muniment.policy.grammar import CanonicalPath
from muniment.recall.recaller import Chooser, Recaller
from muniment.store.catalog import CatalogEntry
from muniment.store.ledger import Kept, Origin, of_task, root_key, source_of
from muniment.store.review import waiting_of
from muniment.store.state import State
from muniment.store.trust import new_ulid
from muniment.tools.overlay import digest

# -- place -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job works: a policy over bound roots, and the state that knows their history.

    Attributes:
        symlinks: what becomes of links beneath the roots.
        in_process: run the tools in this process; the policy must allow it.
        clock: monotonic seconds.
        notes: what a person should know of how it was found, such as that a commit had been interrupted.
        on_model_failure: what follows a language model that makes no call, proposes nothing, uses up its
            turns, or gives no usable answer.
    """

    policy: Policy
    roots: Mapping[Scope, BoundRoot]
    state: State
    symlinks: Symlinks = Symlinks.REFUSE
    in_process: bool = False
    clock: Callable[[], float] = time.monotonic
    notes: tuple[str, ...] = ()
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

    def close(self) -> None:
        """Close the roots and the state."""
        self.close_roots()
        self.state.close()

    def close_roots(self) -> None:
        """Close the roots alone, where the state is shared with other places."""
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
        at: when this memory wrote them, ISO-8601 UTC; empty: it did not, somebody's hand or program did.
    """

    path: CanonicalPath
    row: CatalogEntry
    data: bytes
    digest: Digest
    trust: Trust
    at: str

    @property
    def is_as_listed(self) -> bool:
        """Whether the file is the one that its row tells of."""
        return self.digest == self.row.digest

    def outlasts(self, other: Holding) -> bool:
        """Whether this is still to be told when `other` no longer is."""
        ours, theirs = self.row.expires, other.row.expires
        return theirs is not None and (ours is None or ours > theirs)

    @property
    def entry(self) -> Entry:
        """The file as text; parsed at each call."""
        return parse(self.data)


def read_holding(place: Place, scope: Scope, row: CatalogEntry) -> Holding | None:
    """The entry of a row as it is now; None where no file of its own can be read there.

    Cost: an open, a read and one query of the ledger.
    """
    root = place.roots[scope]
    try:
        data = root.root.read_bytes(row.rel)
    except (PathEscape, Refusal, ToolError):
        return None
    found = digest(data)
    source = source_of(place.state, root_key(place.state, root), row.rel, found)
    return Holding(
        CanonicalPath(scope, row.rel),
        row,
        data,
        found,
        place.policy.trust_of(scope) if source is None else source.trust,
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


# -- recalling ---------------------------------------------------------------------------------------
#
# Recall at a place: its recaller, and a language model that picks among what the search finds.
#
# Attacked in tests/recall/test_recalling.py.

_TOKEN_BYTES: Final = 8


def recaller_of(place: Place) -> Recaller:
    """What recalls from a place; close it before the place."""
    return Recaller(place.policy, place.roots, place.state)


def chooser_of(place: Place, model: Model) -> Chooser | None:
    """What lets `model` pick; None: the embedded rules pick nothing.

    Each question is one turn, and ends with the seconds that the policy gives a run, or with the patience. It
    is about `MAX_OPTIONS` entries at most. Whatever goes wrong while the patience lasts is no answer.
    """
    if isinstance(model, RuleWriter):
        return None

    def choose(message: str, about: Sequence[str], limit: int, patience: Patience) -> Sequence[int] | None:
        with Cancel() if patience.cancel is None else nullcontext(patience.cancel) as cancel:
            budget = Budget(place.policy.limits, cancel, place.clock)
            left = patience.deadline - time.monotonic()  # The clock of the place may be another one.
            budget.deadline = min(budget.deadline, place.clock() + left)
            asker = Asker(model, budget, secrets.token_hex(_TOKEN_BYTES))
            try:
                return asker.which_help(message, about[:MAX_OPTIONS], limit)
            except (ModelError, MunimentError) as error:
                patience.check()
                events.emit("recall_model_failed", problem=type(error).__name__)
                return None

    return choose


# -- repeating ---------------------------------------------------------------------------------------
#
# A task that names itself commits at most once, and waits for the owner at most once.
#
# Asked again, it answers with what it did then, or that it still waits.

_TASK_ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_TASK_CHARS}}}", re.ASCII)


def id_of_task(kind: str, asked: str | None) -> str:
    """The id that was asked for, not yet checked; None: a new one."""
    return f"{kind}-{new_ulid()}" if asked is None else asked


def check_task_id(task: str) -> None:
    """Refuse what cannot be the id of a task.

    Raises:
        InvalidContent: it is empty, too long, or has other characters.
    """
    if _TASK_ID.fullmatch(task) is None:
        raise InvalidContent(f"a task id has 1 to {MAX_TASK_CHARS} of A-Z a-z 0-9 . _ -")


def done_before(place: Place, kind: str, task: str, fact: str | None = None) -> Kept | None:
    """The commit of a task, with the names that its scopes have here; None: it is to be carried out.

    Args:
        place: where it is asked for now.
        kind: of job, likewise.
        task: its id.
        fact: keyed digest of what is asked for; None: nothing is said.

    Raises:
        InvalidContent: the id is that of another job, of one in another workspace, or of one that was asked
            for something else, as far as that was not erased. Its commit must not stand for what is asked
            for now.
        PendingReview: it waits for the owner; nothing of it is asked of a model once more.
        ManagedMemoryUnavailable: the ledger cannot be read.
    """
    here = {root_key(place.state, root): scope for scope, root in place.roots.items()}
    done, waiting = of_task(place.state, task), waiting_of(place.state, task)
    if done is not None:
        _check_same(task, kind, fact, done.origin, is_here=all(item.root in here for item in done.changes))
        return replace(done, changes=tuple(replace(item, scope=here[item.root]) for item in done.changes))
    if waiting is not None:
        _check_same(task, kind, fact, waiting.origin, is_here=here.keys() >= set(waiting.roots.values()))
        raise PendingReview(waiting.id, waiting.reasons)
    return None


def _check_same(task: str, kind: str, fact: str | None, origin: Origin, *, is_here: bool) -> None:
    is_other = None not in (fact, origin.fact) and fact != origin.fact
    if origin.kind != kind or is_other or not is_here:
        raise InvalidContent(f"another task has the id {task!r}; nothing was written, choose another id")
