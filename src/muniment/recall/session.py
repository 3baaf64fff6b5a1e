"""Recall entries for each turn of a conversation, and inject every entry only once.

A *turn* begins with a message of the user, which starts a recall in the background. There are two points at
which the result can be injected: before the first model call of the turn, and after all results of the
model's tool calls have arrived. The result is injected at the first point at which it is ready:

| scenario | effect |
|---|---|
| ready before the model call | injected with the user's message, without waiting |
| not ready then | injected after the first tool results at which it is ready, however late |
| not ready then, and the model calls no tools | not injected |
| the next message of the user arrives first | the recall is cancelled, and the next one starts |

- S1. No method except `close` waits for a recall or the disk. If the system has no thread or descriptor left,
  the recall fails, but no method raises.
- S2. At most one recall is injected per turn, for any number of model calls.
- S3. After an entry was injected, it is not recalled again until it was edited, or the conversation was
  compacted or reset. Exception: if all visible entries of the memory were injected, and the conversation has
  since grown by `repeat_after` tokens, all of them may be recalled again.
- S4. Entries that the conversation received after the recall started are removed from the result. An empty
  result is not injected.
- S5. If a recall is not injected, the reason (`Reason`) is logged once.
- S6. Injected entries are recorded in the ledger, by path and digest, in order.

This module handles only turns; `conversation.py` handles messages.

Methods are called by one thread, or from one event loop; recalls run on separate threads.

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
from muniment.kernel.cancel import Deadline
from muniment.recall.keys import dump_keys, load_keys, merge_latest_keys
from muniment.recall.prefetch import Handle, Prefetch, begin_or_log
from muniment.recall.recaller import MAX_TOKENS, Chooser, Recaller
from muniment.types import Recalled
from muniment.types.keys import EntryKey


class Reason(StrEnum):
    """The reason why a recall was not injected.

    If a recall failed or its parent was cancelled, the reason is `FAILED` or `PARENT_CANCELLED`, even if
    another reason applies later.
    """

    SUPERSEDED = "superseded"
    """The next message of the user arrived before the result was injected."""
    RESET = "reset"
    SHUTDOWN = "shutdown"
    TURN_LIMIT = "turn_limit"
    NO_TURNS_LEFT = "no_turns_left"
    TOKEN_LIMIT = "token_limit"  # noqa: S105  not a password
    HOST_SIGNAL = "host_signal"
    PARENT_CANCELLED = "parent_cancelled"
    NOTHING_FOUND = "nothing_found"
    NOTHING_NEW = "nothing_new"
    FAILED = "failed"


class InjectionMode(StrEnum):
    """How entries were injected: at one of two points of a recall, or as one of the tiers in `context.py`."""

    USER_TURN = "user_turn"
    TOOL_RESULTS = "tool_results"
    SYSTEM = "system"
    PROJECT = "project"
    JUST_IN_TIME = "just_in_time"


REPEAT_AFTER: Final = 30_000
"""Tokens of a conversation after which a model may no longer remember injected entries (rule S3)."""

_RECORD_SECONDS: Final = 5.0
"""Maximum seconds to wait for the last records when a session ends; they need milliseconds, more on a busy
disk.
"""


class RecallSession:
    """The recalls of one conversation. Close it when done.

    Args:
        recaller: searches the memory; the caller closes it.
        budget: maximum tokens of one recall.
        choose: selects among the search results, see `Recaller.recall`.
        parent: a token that cancels all running work; the caller closes it.
        clock: returns monotonic seconds.
        state: the state of an earlier session of the same conversation, from `as_json`. Invalid parts are
            ignored.
        repeat_after: tokens after which entries may be injected again (rule S3 of the module).

    Attributes:
        prefetch: runs the background work; closed with the session.
        outcomes: how often entries were injected, by `InjectionMode`; and how many recalls were not injected,
            by `Reason`.

    Raises:
        OSError: the process has no free descriptor.
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
        saved = state if isinstance(state, Mapping) else {}
        self._injected, self._tokens_since = load_keys(saved.get("shown")), load_tokens(saved.get("since"))
        self._records = _RecordWriter(recaller.record)
        self.outcomes: Counter[str] = Counter()

    @property
    def injected(self) -> frozenset[EntryKey]:
        """Return the identifiers of the entries that recalls injected into this conversation."""
        return frozenset(self._injected)

    def count_tokens(self, tokens: int) -> None:
        """Add to the number of tokens that the conversation has received since the last injection.

        Args:
            tokens: the number of new tokens, without injected text.
        """
        self._tokens_since += tokens

    def on_user_turn(self, text: str, *, injected: Collection[EntryKey] = ()) -> None:
        """Start the recall for a message of the user, and cancel the previous recall.

        The message may also arrive during the tool calls of a turn.

        Args:
            text: the user's message.
            injected: entries that the conversation received in other ways; they are not recalled.
        """
        self._cancel_recall(Reason.SUPERSEDED)
        injected_before, known = self.injected, frozenset(injected)
        may_repeat = bool(injected_before) and self._tokens_since >= self._repeat_after

        def work(deadline: Deadline) -> Recalled:
            return self._recall(text, injected_before, known, deadline, may_repeat=may_repeat)

        self._handle = begin_or_log(self.prefetch, work)
        if self._handle is None:
            self._log_discarded(Reason.FAILED)

    def take_result(self, where: InjectionMode, injected: Collection[EntryKey] = ()) -> Recalled | None:
        """Return the entries of the current recall to inject now; None: no entries, or not ready yet.

        Args:
            where: the point: `USER_TURN` before the first model call, or `TOOL_RESULTS` after all tool
                results.
            injected: entries that the conversation has received in other ways; they are removed from the
                result.
        """
        handle = self._handle
        if handle is None:
            return None
        recalled = handle.take_result()
        if recalled is None:
            reason = _find_end_reason(handle)
            if reason is not None:
                self._cancel_recall(reason)
            return None
        self._handle = None
        before: frozenset[EntryKey] = frozenset() if recalled.is_repeat else self.injected
        new = self._recaller.remove_entries(recalled, before.union(injected), self._budget)
        if not new.entries:
            self._log_discarded(_find_empty_reason(recalled, new))
            return None
        self._injected = merge_latest_keys(before, new.keys)
        self._tokens_since = 0
        self.record(new, where)
        return new

    def abort(self, reason: Reason) -> None:
        """Cancel the current recall, because the turn ends early.

        Args:
            reason: the reason to log.
        """
        self._cancel_recall(reason)

    def on_compaction(self) -> None:
        """Forget which entries were injected, because a summary replaced the history that contained them."""
        self._injected.clear()
        self._tokens_since = 0

    def on_reset(self) -> None:
        """Cancel the current recall and forget all injected entries.

        Call this when the conversation starts again without its history.
        """
        self._cancel_recall(Reason.RESET)
        self.on_compaction()

    def as_json(self) -> dict[str, Any]:
        """Return the state that a later session of this conversation needs."""
        return {"shown": dump_keys(self._injected), "since": self._tokens_since}

    def record(self, recalled: Recalled, where: InjectionMode) -> None:
        """Count injected entries, and write them to the ledger on another thread.

        Args:
            recalled: the injected entries.
            where: the way in which they were injected.
        """
        self.outcomes[where] += 1
        events.emit("memory_injected", where=where, entries=len(recalled.entries), tokens=recalled.tokens)
        self._records.add(recalled, where)

    def close(self) -> None:
        """Cancel the running work, and wait until its threads end; repeated calls have no effect.

        Cost: the time until the threads end: usually milliseconds, at most some seconds if a disk hangs. If
            threads still run then, an event is logged.
        """
        self._cancel_recall(Reason.SHUTDOWN)
        self.prefetch.close()
        self._records.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _recall(
        self,
        text: str,
        injected_before: frozenset[EntryKey],
        injected: frozenset[EntryKey],
        deadline: Deadline,
        *,
        may_repeat: bool,
    ) -> Recalled:
        """Recall entries for a message, on the thread of the handle.

        Args:
            text: the message.
            injected_before: entries that earlier recalls injected; excluded, unless they may be repeated.
            injected: entries that the conversation received in other ways; always excluded.
            deadline: the time limit.
            may_repeat: if all visible entries were injected and nothing else is found, recall them again.
        """

        def run_recall(exclude: frozenset[EntryKey]) -> Recalled:
            return self._recaller.recall(
                text, exclude=exclude, budget=self._budget, choose=self._choose, deadline=deadline
            )

        recalled = run_recall(injected_before | injected)
        if (
            may_repeat
            and recalled.abstained
            and self._recaller.has_injected_all(injected_before | injected, deadline)
        ):
            repeated = run_recall(injected)
            return replace(repeated, is_repeat=True) if repeated.entries else recalled
        return recalled

    def _cancel_recall(self, reason: Reason) -> None:
        if self._handle is not None:
            reason = _find_end_reason(self._handle) or reason
            self._handle.cancel()
            self._handle = None
            self._log_discarded(reason)

    def _log_discarded(self, reason: Reason) -> None:
        self.outcomes[reason] += 1
        events.emit("recall_discarded", reason=reason)


class _RecordWriter:
    """Writes records in order, on a thread that runs only while there are records to write.

    Args:
        write: writes one record; must not raise, and may be slow.
    """

    def __init__(self, write: Callable[[Recalled, str], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._queue: deque[tuple[Recalled, str]] = deque()
        self._thread: threading.Thread | None = None
        self._is_writing = False

    def add(self, recalled: Recalled, where: str) -> None:
        """Queue a record. If the system has no thread left, it is written together with the next record."""
        with self._lock:
            self._queue.append((recalled, where))
            if self._is_writing:
                return
            thread = threading.Thread(
                target=self._run, args=(self._thread,), name="recall-record", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:
                events.emit("injection_not_recorded", code="no_thread")
                return
            self._thread, self._is_writing = thread, True

    def close(self) -> None:
        """Wait until all records are written, for at most `_RECORD_SECONDS`."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(_RECORD_SECONDS)
            if thread.is_alive():
                events.emit("recall_left_running")

    def _run(self, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # It has written its last record, so that joining this thread joins all.
        while True:
            with self._lock:
                if not self._queue:
                    self._is_writing = False
                    return
                recalled, where = self._queue.popleft()
            self._write(recalled, where)


def load_tokens(unsafe_number: object) -> int:
    """Return the number of tokens from a saved state; 0 if the value is invalid."""
    return max(0, unsafe_number) if isinstance(unsafe_number, int) else 0


def _find_end_reason(handle: Handle[Recalled]) -> Reason | None:
    """Return the reason why a recall has no result and will have none; None if it may still have one."""
    has_failed = handle.has_failed  # First: a cancelled one ends only then.
    if handle.is_cancelled:
        return Reason.PARENT_CANCELLED
    return Reason.FAILED if has_failed else None


def _find_empty_reason(recalled: Recalled, new: Recalled) -> Reason:
    if recalled.error is not None or new.error is not None:
        return Reason.FAILED
    return Reason.NOTHING_NEW if recalled.entries else Reason.NOTHING_FOUND
