"""What the tools come to over a place of the library: what everybody reads alike, and a memory of one's own.

M1 Nothing is shown but what a recall might show: what the policy lets nobody see, what is held back from
   models and what has expired is as if it were not there.
M2 What comes this way has the trust that the operator gave, whatever is said of it; below the owner's it
   replaces, removes and takes back nothing of higher trust, nor what a person did or approved.
M3 What goes wrong is told by its code, and in words that hold no path of the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from muniment.adapters.mcp.tools import (
    MAX_STEPS_TOLD,
    ForgetAnswer,
    ForgetCall,
    HistoryAnswer,
    HistoryStep,
    RememberAnswer,
    RememberCall,
    ShowAnswer,
    ToolProblem,
    UndoAnswer,
)
from muniment.adapters.quoting import marked
from muniment.adapters.threads import until_ended
from muniment.cancelling import Cancel
from muniment.errors import (
    AlreadyUndone,
    Cancelled,
    DeadlineExceeded,
    Erased,
    ForgetFailed,
    ForgetTimeout,
    InvalidContent,
    InvalidScope,
    JobError,
    ManagedMemoryUnavailable,
    MunimentError,
    NotFound,
    PathEscape,
    PendingReview,
    PreviewChanged,
    Refusal,
    RememberFailed,
    RememberTimeout,
    StoreConflict,
    ToolError,
    UndoOverlap,
)
from muniment.kernel.cancel import Patience
from muniment.kernel.names import INDEX_NAME, RelPath, Scope, Trust
from muniment.kernel.path import CanonicalPath, canonicalise

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.jobs.place import Place
    from muniment.recall.recaller import Recalled, Recaller
    from muniment.store.catalog import CatalogEntry
    from muniment.store.ledger import Run

T = TypeVar("T")

Tell = Callable[[int, str], None]
"""Told of each turn of a run, from any thread: its number, and in a word what was done."""

PAGE: Final = 200
"""Entries of one page of the resources."""

MAX_SHOWN_BYTES: Final = 256 * 1024
"""Bytes of an entry that is shown; a client takes one MiB of an answer, which has it twice."""

THREADS: Final = 8
"""Calls at once of a memory of one's own; others wait."""

MAX_WAITING: Final = 16
"""Calls that write and wait for each other, as many as a lane takes."""

RECALL_SECONDS: Final = 5.0
"""Seconds of a recall. What it costs more than milliseconds is to read files that changed, the first time."""

WHERE: Final = "mcp"
"""Where entries are put before a model, in the ledger's words."""

_OWN_KINDS: Final = frozenset({"remember", "forget", "dream", "undo"})
"""Tasks that were asked for by a tool or a program; what was approved or edited is a person's."""


class Backend(Protocol):
    """Carries out what the tools are asked. Belongs to one event loop.

    Every method raises `ToolProblem` and `MunimentError`; cancelled, it ends what it had begun, unless that
    already writes.
    """

    async def remember(self, asked: RememberCall, tell: Tell) -> RememberAnswer:
        """File a fact."""

    async def recall(self, query: str, limit: int) -> Recalled:
        """What helps with a message."""

    async def forget(self, asked: ForgetCall) -> ForgetAnswer:
        """Preview what would go, or remove exactly what was previewed."""

    async def undo(self, task_id: str) -> UndoAnswer:
        """Take back what a task did."""

    async def at(self, body: Callable[[Place, Trust], T]) -> T:
        """What `body` reads at the place, in a thread; it is told the trust of whoever reads."""


class Workplace(Protocol):
    """Opens what is needed when it is needed, in any thread; all of it stays its own."""

    def place(self) -> Place:
        """The policy, roots and state."""

    def recaller(self) -> Recaller:
        """What recalls from it."""

    def model(self) -> Model:
        """What files facts."""


# -- reading -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listing:
    """Some of the entries.

    Attributes:
        indexes: logical paths of those that there are; on the first page alone.
        entries: logical paths, sorted, each with a name that code made of it.
        after: where the next page begins; None: there is none.
    """

    indexes: tuple[str, ...]
    entries: tuple[tuple[str, str], ...]
    after: str | None


def listing(place: Place, reader: Trust, after: str | None) -> Listing:
    """The indexes, and the entries that a recall might show, from after a path on.

    Cost: a look at every directory, and the rows of all entries.
    """
    from muniment.store.index import shown_path
    from muniment.store.upkeep import view_of

    is_told = _telling(place)
    found = [
        path
        for scope, root in place.roots.items()
        for row in view_of(place.state, root, place.policy).entries()
        if is_told(path := CanonicalPath(scope, row.rel), row) and (after is None or path.text > after)
    ]
    page = sorted(found, key=lambda path: path.text)[:PAGE]
    indexes = () if after is not None else tuple(each.path for each in shown_indexes(place, reader))
    entries = tuple((path.text, f"{path.scope}/{shown_path(path.rel)}") for path in page)
    return Listing(indexes, entries, page[-1].text if len(found) > PAGE else None)


def _telling(place: Place) -> Callable[[CanonicalPath, CatalogEntry], bool]:
    """Tells of the row of an entry whether a recall might show it (M1)."""
    from muniment.jobs.place import may_see
    from muniment.kernel.decide import Judge
    from muniment.store.audit import timestamp

    judge, now = Judge(place.policy), timestamp()

    def is_told(path: CanonicalPath, row: CatalogEntry) -> bool:
        is_over = row.expires is not None and row.expires <= now
        return row.readable and row.held is None and not is_over and may_see(judge, path)

    return is_told


def shown_indexes(place: Place, reader: Trust) -> list[ShowAnswer]:
    """The indexes that there are, as data (M1)."""
    return [found for scope in place.roots if (found := _index_of(place, reader, scope)) is not None]


def shown(place: Place, reader: Trust, unsafe_path: str) -> ShowAnswer:
    """An entry, or the index of a scope, as data (M1).

    Raises:
        PathEscape, Refusal: it is no path of the memory.
        NotFound: nothing is there that a recall might show.
        ManagedMemoryUnavailable: the state cannot be used.
    """
    path = place.path(unsafe_path)
    if path.rel not in {"", INDEX_NAME}:
        return _shown_entry(place, path)
    found = _index_of(place, reader, path.scope)
    if found is None:
        raise NotFound(f"there is no index of {path.scope} yet")
    return found


def _index_of(place: Place, reader: Trust, scope: Scope) -> ShowAnswer | None:
    from muniment.jobs.remember import shown_index

    text = shown_index(place, place.policy, scope, reader)
    return None if text is None else ShowAnswer(path=f"{scope}/{INDEX_NAME}", trust=None, text=marked(text))


def _shown_entry(place: Place, path: CanonicalPath) -> ShowAnswer:
    from muniment.jobs.place import read_holding
    from muniment.recall.recaller import gate_of
    from muniment.store.upkeep import view_of

    view = view_of(place.state, place.roots[path.scope], place.policy, sweep=True)
    row = view.entry(RelPath(path.rel))
    is_told = row is not None and _telling(place)(path, row)
    holding = read_holding(place, path.scope, row) if row is not None and is_told else None
    if holding is None or not holding.is_as_listed or gate_of(holding.entry.text, holding.trust) is not None:
        raise NotFound(f"there is no entry at {path.text}; recall and the resources say which there are")
    if len(holding.data) > MAX_SHOWN_BYTES:
        raise ToolProblem(
            "too_large", f"{path.text} has more than {MAX_SHOWN_BYTES} bytes; recall parts of it"
        )
    return ShowAnswer(path=path.text, trust=holding.trust, text=marked(holding.entry.text))


def history(place: Place, unsafe_path: str) -> HistoryAnswer:
    """What was committed at or below a path, the newest first, but where the policy hides it (M1).

    Raises as `jobs.review.history_of`.
    """
    from muniment.jobs.review import history_of

    seen = _seen_at(place)
    steps = [each for each in history_of(place, unsafe_path or None) if seen(each.path)]
    return HistoryAnswer(
        steps=[
            HistoryStep(
                at=each.at,
                task_id=each.task,
                task=each.asked,
                path=each.path,
                change=each.kind,
                trust=each.trust,
            )
            for each in steps[:MAX_STEPS_TOLD]
        ],
        more=len(steps) > MAX_STEPS_TOLD,
    )


def _seen_at(place: Place) -> Callable[[str], bool]:
    """Tells of the text of a path whether the policy lets anybody see it."""
    from muniment.jobs.place import may_see
    from muniment.kernel.decide import Judge

    judge = Judge(place.policy)

    def seen(text: str) -> bool:
        try:
            return may_see(judge, canonicalise(text, place.policy.scopes))
        except (PathEscape, Refusal):
            return False

    return seen


def take_back(task_id: str, place: Place, trust: Trust, cancel: Cancel) -> UndoAnswer:
    """Take back what a task did, if whoever asks may (M2).

    Raises:
        ToolProblem: somebody of more trust, or a person, had it done.
        MunimentError: as `Memory.undo`.
    """
    from muniment.jobs.review import undo
    from muniment.store.ledger import of_task

    kept = of_task(place.state, task_id)
    if kept is not None and not _may_take_back(kept.run, trust):
        raise owner_required()
    result = undo(task_id, place, trust=trust, cancel=cancel)
    if result.error is not None:
        raise result.error
    return UndoAnswer(
        task_id=result.task_id,
        undone=result.undone,
        paths=[change.path for change in result.changes],
        notes=list(result.notes),
    )


def _may_take_back(run: Run, trust: Trust) -> bool:
    is_owner = trust is Trust.OWNER
    return is_owner or (run.kind in _OWN_KINDS and trust.satisfies(run.trust))


def owner_required() -> ToolProblem:
    """Why somebody may not take a task back."""
    return ToolProblem(
        "owner_required",
        "only the owner of the memory may take that back: muniment undo, or the page, does it",
    )


# -- commits -------------------------------------------------------------------------------------------


class CommitsSince:
    """What other tasks and programs commit to the roots of a place.

    Args:
        place: asks for it, as it is by now.
        number: of the last event that is known.
    """

    def __init__(self, place: Callable[[], Place], number: int) -> None:
        self._place, self._number = place, number

    def since(self) -> list[str] | None:
        """Logical paths of what changed since the last time, at most `PAGE`; None: nothing did.

        Of what the policy hides it is told that something changed, and not what (M1).

        Raises:
            MunimentError: as `place`; or the ledger cannot be read.

        Cost: a query, one for each root, and one more for each commit.
        """
        from muniment.store.ledger import of_task, root_key
        from muniment.store.tasks import read

        place = self._place()
        state, seen = place.state, _seen_at(place)
        names = {root_key(state, root): scope for scope, root in place.roots.items()}
        is_changed, paths = False, dict[str, None]()
        while found := read(state.ledger, self._number, PAGE):
            self._number = found[-1].number
            for event in found:
                if event.type != "memory_changed" or names.keys().isdisjoint(event.roots):
                    continue
                is_changed = True
                kept = of_task(state, event.task)
                for row in () if kept is None else kept.changes:
                    if row.root in names and not row.is_erased and len(paths) < PAGE:
                        path = f"{names[row.root]}/{row.change.path.rel}"
                        paths |= {path: None} if seen(path) else {}
        return list(paths) if is_changed else None


# -- problems ----------------------------------------------------------------------------------------

_FOR_MODELS: Final = (
    *(PathEscape, Refusal, ToolError, InvalidContent, InvalidScope, AlreadyUndone, Erased),
    PreviewChanged,
)
"""What says of itself what a model may read."""


def problem_of(error: MunimentError) -> ToolProblem:
    """What a model is told of an error (M3)."""
    match error:
        case StoreConflict() | UndoOverlap() | PendingReview():
            text = marked(str(error))  # It names files.
        case ForgetFailed() if error.meant is not None:
            text = marked(str(error))
        case Cancelled():
            text = "it was cancelled; nothing was written"
        case DeadlineExceeded() | RememberTimeout() | ForgetTimeout():
            text = "it took too long; nothing was written; try again later"
        case RememberFailed() | ForgetFailed():
            text = "the language model or the worker failed; nothing was written; try again, or tell the user"
        case ManagedMemoryUnavailable():
            text = "the memory cannot be used now; tell the user, who learns why by: muniment ls"
        case _ if isinstance(error, (*_FOR_MODELS, JobError)):
            text = str(error)
        case _:
            text = "the memory is not set up as it should be; tell the user, who learns why by: muniment ls"
    return ToolProblem(error.code, text)


# -- memory ------------------------------------------------------------------------------------------


class OwnMemory:
    """A memory that is carried out in this process.

    Args:
        workplace: where, and by which model.
        trust: of whatever comes this way.
    """

    def __init__(self, workplace: Workplace, trust: Trust) -> None:
        self._workplace, self._trust = workplace, trust
        self._threads = ThreadPoolExecutor(THREADS, "memory")
        self._turn, self._waiting = asyncio.Lock(), 0

    async def remember(self, asked: RememberCall, tell: Tell) -> RememberAnswer:
        """File a fact, after those that were asked before."""
        from muniment.jobs.remember import remember
        from muniment.jobs.request import RememberRequest
        from muniment.tools.calls import known_tool

        request = RememberRequest(asked.content, asked.scope, trust=self._trust)

        def body(cancel: Cancel) -> RememberAnswer:
            place = self._workplace.place()
            result = remember(
                request,
                place,
                self._workplace.model(),
                cancel=cancel,
                observe=lambda done: tell(done.turn, f"{known_tool(done.tool)}: {done.outcome.verdict}"),
            )
            if result.error is not None:
                raise result.error
            return RememberAnswer(
                task_id=result.task_id,
                summary=result.summary,
                paths=list(result.files_touched),
                trust=result.trust,
                notes=list(result.notes),
            )

        return await self._in_turn(body)

    async def recall(self, query: str, limit: int) -> Recalled:
        """What helps with a message; it is on record before it is told."""

        def body(cancel: Cancel) -> Recalled:
            recaller = self._workplace.recaller()
            patience = Patience(time.monotonic() + RECALL_SECONDS, cancel)
            recalled = recaller.recall(query, limit=limit, patience=patience)
            if recalled.entries:
                recaller.record(recalled, WHERE)
            return recalled

        return await self._in_thread(body)

    async def forget(self, asked: ForgetCall) -> ForgetAnswer:
        """Preview, or remove what was previewed, after what was asked before."""
        from muniment.jobs.forget import forget
        from muniment.jobs.request import ForgetRequest

        request = ForgetRequest(asked.description, yes=asked.yes, trust=self._trust, digest=asked.digest)

        def body(cancel: Cancel) -> ForgetAnswer:
            result = forget(request, self._workplace.place(), self._workplace.model(), cancel=cancel)
            if result.error is not None:
                raise result.error
            notes = [*result.notes]
            if self._trust is Trust.OWNER:  # Who may not remove it learns not that it is there.
                notes += [f"{each.path} stays: {each.reason}" for each in result.kept[:PAGE]]
            removed = [(each.path, each.summary, each.text) for each in result.removed_entries]
            return forget_answer(
                result.task_id, result.summary, removed, result.digest, notes, is_done=asked.yes
            )

        return await self._in_turn(body)

    async def undo(self, task_id: str) -> UndoAnswer:
        """Take back what a task did, after what was asked before."""
        return await self._in_turn(
            lambda cancel: take_back(task_id, self._workplace.place(), self._trust, cancel)
        )

    async def at(self, body: Callable[[Place, Trust], T]) -> T:
        """What `body` reads."""
        return await self._in_thread(lambda _: body(self._workplace.place(), self._trust))

    def close(self) -> None:
        """Take no further call."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_turn(self, body: Callable[[Cancel], T]) -> T:
        if self._waiting >= MAX_WAITING:
            raise ToolProblem(
                "remember_queue_full", f"{MAX_WAITING} calls wait to write already; try again later"
            )
        self._waiting += 1
        try:
            async with self._turn:
                return await self._in_thread(body)
        finally:
            self._waiting -= 1

    async def _in_thread(self, body: Callable[[Cancel], T]) -> T:
        with Cancel() as cancel:
            running = asyncio.get_running_loop().run_in_executor(self._threads, body, cancel)
            return await until_ended(running, cancel)


def forget_answer(
    task_id: str,
    summary: str,
    removed: list[tuple[str, str, str | None]],
    digest: str | None,
    notes: list[str],
    *,
    is_done: bool,
) -> ForgetAnswer:
    """What a forget is answered with.

    Args:
        task_id: of the forget.
        summary: what is said where nothing is meant.
        removed: of each thing its path, a line that says what it is, and the lines that go where not all do.
        digest: of the preview.
        notes: what a person should know.
        is_done: whether it is no preview.
    """
    lines = [f"- {path}: {about}" + (f"\n{_indented(text)}" if text else "") for path, about, text in removed]
    return ForgetAnswer(
        done=is_done and bool(removed),
        digest=None if is_done else digest,
        task_id=task_id if is_done and removed else None,
        text=marked("\n".join(lines)) if removed else "",
        paths=list(dict.fromkeys(path for path, *_ in removed)),
        notes=notes if removed else [summary, *notes],
    )


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
