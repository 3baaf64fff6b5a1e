"""The memory in one conversation: a recall for each turn, brought in once, and nothing twice.

A *turn* begins with a message of the user. The recall that it begins is taken at the first of two places at
which it is there: before the model is called for the turn, or once the results of the model's tool calls are
all in. So:

| scenario | what happens |
|---|---|
| settled before the model call | brought in with the user's message, without waiting |
| slow | not then; after the first tool results behind which it is there, however late |
| slow, no tool calls | missed |
| the next message of the user comes first | cancelled; the next recall begins |

- S1. No method but `close` waits, for a recall or for the disk, and none raises for want of a thread or a
  descriptor: the recall failed then.
- S2. At most one recall is brought in a turn, whatever number of times the model is called.
- S3. What was brought in is not recalled again until it was edited, or the conversation was compacted or
  reset, however many turns stay with it. Only where all of the memory that may be shown was told, and
  `repeat_after` tokens were said since then, it may come again, all at once.
- S4. Of a recall only that is brought in which the conversation has not had since the recall began; where
  that is nothing, nothing is.
- S5. Every recall that is not brought in is told with its reason (`Reason`), once.
- S6. What was brought in is recorded in the ledger, by path and digest, in its order.

Apart from `conversation.py`, which knows of messages: this knows of turns alone.

Methods are called by one thread, or from one event loop; recalls run on threads of their own.

Attacked in tests/units/recall/test_session.py and test_conversation.py.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, Generic, Self, TypeVar

from muniment import events
from muniment.cancelling import Cancel
from muniment.kernel.cancel import Patience
from muniment.recall.context import StaticContext
from muniment.recall.recaller import MAX_TOKENS, Chooser, Recaller
from muniment.recall.recollection import Recollection, keys_as_json, keys_in, latest
from muniment.recall.search import EntryKey

# -- prefetch ----------------------------------------------------------------------------------------
#
# Work that runs ahead: begun when it may be needed, taken when it is there, waited for by nobody.
#
# - P1. `Prefetch.begin` and everything that takes or cancels return at once, whatever the work does.
# - P2. What came of it is taken at most once.
# - P3. A handle that is cancelled, or whose parent is, gives nothing from then on, and its work ends: its
#   patience is cancelled, which interrupts a query and closes a model's socket. However it ends, that is no
#   failure, and is not told as one.
# - P4. No thread outlives `Prefetch.close` but one whose work takes no notice of its patience; that one holds
#   the one descriptor of its patience until it ends. After `close` nothing begins.
#
# Each piece of work has a thread of its own, so that one that hangs holds up no other.
#
# Attacked in tests/units/recall/test_prefetch.py.

END_SECONDS: Final = 5.0
"""Seconds that threads have to end once all is cancelled; each takes milliseconds, a busy disk longer."""

T = TypeVar("T")
Work = Callable[[Patience], T]


class Handle(Generic[T]):
    """One piece of work. Made by `Prefetch.begin`; threads may share it.

    Attributes:
        settled_at: second of the clock at which it was done, failed, or ended because it was cancelled; None:
            it runs.
        consumed: whether what came of it was taken.
    """

    def __init__(self, work: Work[T], cancel: Cancel, parent: Cancel, clock: Callable[[], float]) -> None:
        self._work, self._cancel, self._parent, self._clock = work, cancel, parent, clock
        self._lock = threading.Lock()
        self._came: tuple[T, ...] = ()
        self.settled_at: float | None = None
        self.consumed = False

    def take(self) -> T | None:
        """What came of it, once (P2).

        Returns:
            None: it was taken, is not there yet, failed, or was cancelled (P3).
        """
        with self._lock:
            if not self._came or self.consumed or self.is_cancelled:
                return None
            self.consumed = True
            return self._came[0]

    @property
    def has_failed(self) -> bool:
        """Whether it is over, and nothing came of it."""
        with self._lock:
            return self.settled_at is not None and not self._came

    @property
    def is_cancelled(self) -> bool:
        """Whether it, or its parent, was cancelled."""
        return self._cancel.is_set() or self._parent.is_set()

    def cancel(self) -> None:
        """End the work (P3); harmless when repeated."""
        self._cancel.set()

    def run(self) -> None:
        """Work, and settle whatever comes of it; on the thread of the handle."""
        try:
            self.settle(self._work(Patience(float("inf"), self._cancel)))
        except BaseException as problem:  # noqa: BLE001  nobody waits for this thread who could be told
            self.settle(problem=problem)

    def settle(self, *came: T, problem: BaseException | None = None) -> None:
        """Be over: with what came of it, because of a problem, or because it was cancelled before."""
        try:
            if problem is not None and not self.is_cancelled:
                events.emit_defect("prefetch_failed", problem)
        finally:
            with self._lock:
                self._came, self.settled_at = came, self._clock()
            self._cancel.close()


class Prefetch:
    """Begins work. Close it when done; threads may share one.

    Args:
        clock: monotonic seconds.
        parent: cancels all of it; stays the caller's.

    Raises:
        OSError: the process has no descriptor left.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, parent: Cancel | None = None) -> None:
        self._clock = clock
        self._cancel = Cancel() if parent is None else parent.child()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def begin(self, work: Work[T]) -> Handle[T]:
        """Begin some work (P1).

        Where the parent was cancelled before, or all was closed, it is not begun: the handle is cancelled.
        Where the system has no thread for it, the handle has failed.

        Raises:
            OSError: the process has no descriptor left.

        Cost: the start of a thread, some 50 µs; while it runs, a thread and a descriptor.
        """
        with self._lock:
            handle = Handle(work, self._cancel.child(), self._cancel, self._clock)
            if handle.is_cancelled:
                handle.settle()
                return handle
            thread = threading.Thread(target=handle.run, name="recall", daemon=True)
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            try:
                thread.start()
            except RuntimeError as problem:  # The system refuses, or the program is at its end.
                handle.settle(problem=problem)
            return handle

    def close(self) -> None:
        """Cancel what runs, and wait for its threads to end (P4); harmless when repeated.

        Cost: what it takes the work to notice, at most `END_SECONDS`; an event tells where that is too short.
        """
        self._cancel.set()
        with self._lock:  # Whoever begins something now sees that all is cancelled.
            running = [each for each in self._threads if each.is_alive()]
        end = time.monotonic() + END_SECONDS
        for thread in running:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in running):
            events.emit("recall_left_running")
        self._cancel.close()


# -- session -----------------------------------------------------------------------------------------


class Reason(StrEnum):
    """Why a recall was not brought in. `PARENT_CANCELLED` and `FAILED` are told before what came later."""

    SUPERSEDED = "superseded"
    """The next message of the user came first."""
    RESET = "reset"
    SHUTDOWN = "shutdown"
    TURN_LIMIT = "turn_limit"
    NO_TURNS_LEFT = "no_turns_left"
    TOKEN_LIMIT = "token_limit"  # noqa: S105  no password
    HOST_SIGNAL = "host_signal"
    PARENT_CANCELLED = "parent_cancelled"
    NOTHING_FOUND = "nothing_found"
    NOTHING_NEW = "nothing_new"
    FAILED = "failed"


class BroughtIn(StrEnum):
    """Where something was brought in: a recall at one of its two places, or a tier (`context.py`)."""

    USER_TURN = "user_turn"
    TOOL_RESULTS = "tool_results"
    SYSTEM = "system"
    PROJECT = "project"
    JUST_IN_TIME = "just_in_time"


REPEAT_AFTER: Final = 30_000
"""Tokens of a conversation behind which a model may have lost sight of what it was told (S3)."""

_RECORD_SECONDS: Final = 5.0
"""Seconds that records may take when a session ends; they take milliseconds, a busy disk longer."""


class RecallSession:
    """The memory in one conversation. Close it when done.

    Args:
        recaller: recalls; stays the caller's.
        budget: tokens of one recall.
        choose: see `Recaller.recall`.
        parent: ends all that runs once cancelled; stays the caller's.
        clock: monotonic seconds.
        state: of an earlier session of the same conversation, from `as_json`. What is not so is left out.
        repeat_after: tokens, see S3.

    Attributes:
        prefetch: carries out what runs beside the conversation; ends with the session.
        outcomes: how often something was brought in, by `BroughtIn`, and how many were not, by `Reason`.

    Raises:
        OSError: the process has no descriptor left.
    """

    def __init__(
        self,
        recaller: Recaller,
        *,
        budget: int = MAX_TOKENS,
        choose: Chooser | None = None,
        parent: Cancel | None = None,
        clock: Callable[[], float] = time.monotonic,
        state: Mapping[str, Any] | None = None,
        repeat_after: int = REPEAT_AFTER,
    ) -> None:
        self._recaller, self._budget, self._choose = recaller, budget, choose
        self._repeat_after = repeat_after
        self.prefetch = Prefetch(clock=clock, parent=parent)
        self._handle: Handle[Recollection] | None = None
        kept = state if isinstance(state, Mapping) else {}
        self._shown, self._since = keys_in(kept.get("shown")), tokens_in(kept.get("since"))
        self._records = _Records(recaller.record)
        self.outcomes: Counter[str] = Counter()

    @property
    def shown(self) -> frozenset[EntryKey]:
        """What was brought in."""
        return frozenset(self._shown)

    def heard(self, tokens: int) -> None:
        """So much was said in the conversation, by anybody, beside what was brought in (S3)."""
        self._since += tokens

    def on_user_turn(self, text: str, *, told: Collection[EntryKey] = ()) -> None:
        """Begin the recall of a turn; that of the turn before ends. Also for a message drained in mid-loop.

        Args:
            text: what the user wrote.
            told: entries that the conversation has otherwise, which are not recalled either.
        """
        self._drop(Reason.SUPERSEDED)
        shown, known = self.shown, frozenset(told)
        may_repeat = bool(shown) and self._since >= self._repeat_after

        def work(patience: Patience) -> Recollection:
            return self._recall(text, shown, known, patience, may_repeat=may_repeat)

        self._handle = begun(self.prefetch, work)
        if self._handle is None:
            self._discard(Reason.FAILED)

    def take(self, where: BroughtIn, told: Collection[EntryKey] = ()) -> Recollection | None:
        """What is to be put first among the reminders of the turn, or behind its last tool result.

        Args:
            where: which of the two; behind results only once all are in.
            told: entries that the conversation has otherwise by now (S4).

        Returns:
            None: nothing, or nothing yet.
        """
        handle = self._handle
        if handle is None:
            return None
        recalled = handle.take()
        if recalled is None:
            reason = _why_over(handle)
            if reason is not None:
                self._drop(reason)
            return None
        self._handle = None
        before: frozenset[EntryKey] = frozenset() if recalled.is_repeat else self.shown
        new = self._recaller.without(recalled, before.union(told), self._budget)
        if not new.entries:
            self._discard(_why_empty(recalled, new))
            return None
        self._shown = latest(before, new.keys)
        self._since = 0
        self.record(new, where)
        return new

    def abort(self, reason: Reason) -> None:
        """Cancel the recall that is on its way, because the turn ends otherwise."""
        self._drop(reason)

    def on_compaction(self) -> None:
        """The history was replaced by a summary: what was brought in may be needed again (S3)."""
        self._shown.clear()
        self._since = 0

    def on_reset(self) -> None:
        """The conversation begins anew."""
        self._drop(Reason.RESET)
        self.on_compaction()

    def as_json(self) -> dict[str, Any]:
        """What a later session of this conversation must know."""
        return {"shown": keys_as_json(self._shown), "since": self._since}

    def record(self, recalled: Recollection, where: BroughtIn) -> None:
        """Count what was brought in, and have it written to the ledger (S6), beside the caller (S1)."""
        self.outcomes[where] += 1
        events.emit("memory_injected", where=where, entries=len(recalled.entries), tokens=recalled.tokens)
        self._records.add(recalled, where)

    def close(self) -> None:
        """End what runs; harmless when repeated.

        Cost: what it takes the threads to end, which is milliseconds unless a disk hangs, and at most some
        seconds; an event tells where that is too short.
        """
        self._drop(Reason.SHUTDOWN)
        self.prefetch.close()
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _recall(
        self,
        text: str,
        shown: frozenset[EntryKey],
        told: frozenset[EntryKey],
        patience: Patience,
        *,
        may_repeat: bool,
    ) -> Recollection:
        """On the thread of the handle."""

        def ask(exclude: frozenset[EntryKey]) -> Recollection:
            return self._recaller.recall(
                text, exclude=exclude, budget=self._budget, choose=self._choose, patience=patience
            )

        recalled = ask(shown | told)
        if may_repeat and recalled.abstained and self._recaller.has_told_all(shown | told, patience):
            again = ask(told)
            return replace(again, is_repeat=True) if again.entries else recalled
        return recalled

    def _drop(self, reason: Reason) -> None:
        if self._handle is not None:
            reason = _why_over(self._handle) or reason
            self._handle.cancel()
            self._handle = None
            self._discard(reason)

    def _discard(self, reason: Reason) -> None:
        self.outcomes[reason] += 1
        events.emit("recall_discarded", reason=reason)


class _Records:
    """Writes records in their order, on a thread that lives while there is one to be written.

    Args:
        write: one record; never raises, and may take long.
    """

    def __init__(self, write: Callable[[Recollection, str], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Recollection, str]] = deque()
        self._thread: threading.Thread | None = None
        self._is_writing = False

    def add(self, recalled: Recollection, where: str) -> None:
        """Have one written. Where the system has no thread for that, it is written with the next one."""
        with self._lock:
            self._waiting.append((recalled, where))
            if self._is_writing:
                return
            thread = threading.Thread(
                target=self._work, args=(self._thread,), name="recall-record", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                events.emit("injection_not_recorded", code="no_thread")
                return
            self._thread, self._is_writing = thread, True

    def close(self) -> None:
        """Wait until all are written, for `_RECORD_SECONDS` at most."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(_RECORD_SECONDS)
            if thread.is_alive():
                events.emit("recall_left_running")

    def _work(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # It has done its last one, so that whoever joins this one has joined all.
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_writing = False
                    return
                recalled, where = self._waiting.popleft()
            self._write(recalled, where)


def tokens_in(unsafe_number: object) -> int:
    """A number of tokens out of a saved state; what is none is 0."""
    return max(0, unsafe_number) if isinstance(unsafe_number, int) else 0


def begun(prefetch: Prefetch, work: Work[T]) -> Handle[T] | None:
    """Begin some work where nothing may be raised.

    Returns:
        None: the process has no descriptor left, which an event tells.
    """
    try:
        return prefetch.begin(work)
    except OSError as problem:
        events.emit_defect("recall_not_begun", problem)
        return None


def _why_over(handle: Handle[Recollection]) -> Reason | None:
    """Why nothing will come of a recall; None: something may."""
    has_failed = handle.has_failed  # First: one that is cancelled ends only then.
    if handle.is_cancelled:
        return Reason.PARENT_CANCELLED
    return Reason.FAILED if has_failed else None


def _why_empty(recalled: Recollection, new: Recollection) -> Reason:
    if recalled.error is not None or new.error is not None:
        return Reason.FAILED
    return Reason.NOTHING_NEW if recalled.entries else Reason.NOTHING_FOUND


# -- touched -----------------------------------------------------------------------------------------
#
# What the memory has about the files that a conversation touches, looked up in the background.
#
# - F1. No method waits, or raises for want of a thread or a descriptor.
# - F2. A path is looked up once, and again only where some of what came of it was told otherwise meanwhile.
# - F3. All that is told takes at most the budget, until the conversation is compacted.
#
# Attacked in tests/units/recall/test_touched.py.

MAX_PATHS: Final = 2_000
"""Paths of one conversation that are looked up; a tool that lists a disk names more."""

PATHS_AT_ONCE: Final = 50
"""Paths of one lookup, a query each, so that something comes soon."""


class Touched:
    """The third tier of one conversation, one lookup at a time.

    Args:
        static: looks up.
        prefetch: carries it out; stays the caller's.
        budget: tokens of all that is told.
        known: what the conversation was told otherwise.
        told: what it was told by this tier before.
        spent: tokens that this took.

    Attributes:
        told: what it was told by this tier.
        spent: tokens that this took.
    """

    def __init__(
        self,
        static: StaticContext,
        prefetch: Prefetch,
        budget: int,
        known: Callable[[], Collection[EntryKey]],
        told: Collection[EntryKey] = (),
        spent: int = 0,
    ) -> None:
        self._static, self._prefetch, self._budget, self._known = static, prefetch, budget, known
        self._seen: set[str] = set()
        self._waiting: list[str] = []
        self._running: tuple[Handle[Recollection], list[str]] | None = None
        self.told, self.spent = set(told), spent

    def add(self, unsafe_path: str) -> None:
        """A tool touches a file of the workspace."""
        if unsafe_path not in self._seen and len(self._seen) < MAX_PATHS:
            self._seen.add(unsafe_path)
            self._waiting.append(unsafe_path)
            self._begin()

    def take(self) -> Recollection | None:
        """What is to be told now; None: nothing, or nothing yet."""
        if self._running is None:
            self._begin()  # What could not be begun before.
            return None
        (handle, paths), recalled = self._running, None
        if handle.settled_at is None:
            return None
        self._running, recalled = None, handle.take()
        if recalled is not None and not recalled.keys.isdisjoint(self._known()):
            self._waiting = paths + self._waiting  # Something of it was told meanwhile.
            recalled = None
        if recalled is not None:
            self.spent += recalled.tokens
            self.told |= recalled.keys
        self._begin()
        return recalled if recalled is not None and recalled.entries else None

    def begin_anew(self) -> None:
        """The conversation lost what it was told: paths are looked up again once they are touched again."""
        if self._running is not None:
            self._running[0].cancel()
        self._running, self.spent = None, 0
        for kept in (self._seen, self._waiting, self.told):
            kept.clear()

    def _begin(self) -> None:
        left = self._budget - self.spent
        if self._running is not None or not self._waiting or left < 1:
            return
        paths, later = self._waiting[:PATHS_AT_ONCE], self._waiting[PATHS_AT_ONCE:]
        exclude = self.told.union(self._known())
        handle = begun(self._prefetch, lambda patience: self._static.about(paths, exclude, left, patience))
        if handle is not None:
            self._running, self._waiting = (handle, paths), later
