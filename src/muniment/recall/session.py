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
from typing import Any, Final, Self

from muniment import events
from muniment.cancelling import Cancel
from muniment.kernel.cancel import Patience
from muniment.recall.keys import keys_as_json, keys_in, latest
from muniment.recall.prefetch import Handle, Prefetch, begun
from muniment.recall.recaller import MAX_TOKENS, Chooser, Recaller
from muniment.types import Recalled
from muniment.types.keys import EntryKey


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
        self._handle: Handle[Recalled] | None = None
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

        def work(patience: Patience) -> Recalled:
            return self._recall(text, shown, known, patience, may_repeat=may_repeat)

        self._handle = begun(self.prefetch, work)
        if self._handle is None:
            self._discard(Reason.FAILED)

    def take(self, where: BroughtIn, told: Collection[EntryKey] = ()) -> Recalled | None:
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

    def record(self, recalled: Recalled, where: BroughtIn) -> None:
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
    ) -> Recalled:
        """On the thread of the handle."""

        def ask(exclude: frozenset[EntryKey]) -> Recalled:
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

    def __init__(self, write: Callable[[Recalled, str], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Recalled, str]] = deque()
        self._thread: threading.Thread | None = None
        self._is_writing = False

    def add(self, recalled: Recalled, where: str) -> None:
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


def _why_over(handle: Handle[Recalled]) -> Reason | None:
    """Why nothing will come of a recall; None: something may."""
    has_failed = handle.has_failed  # First: one that is cancelled ends only then.
    if handle.is_cancelled:
        return Reason.PARENT_CANCELLED
    return Reason.FAILED if has_failed else None


def _why_empty(recalled: Recalled, new: Recalled) -> Reason:
    if recalled.error is not None or new.error is not None:
        return Reason.FAILED
    return Reason.NOTHING_NEW if recalled.entries else Reason.NOTHING_FOUND
