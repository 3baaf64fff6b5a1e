"""A memory in a chat loop: what the host calls, and where things come into its messages.

    conversation.on_user_turn(text)                      # as soon as the message is there
    messages = conversation.before_turn(messages)        # before the first call of the model
    messages = conversation.after_tools(messages)        # before each call behind tool results

- H1. No hook waits, for the disk or for a model. The constructor does, up to `FIRST_SECONDS`, and so does
  `close`: on an event loop, call these on a thread.
- H2. Nothing is put between a call and its results, nor anywhere while a call has no result.
- H3. At a user's turn the memory comes first among the reminders, these in a message of their own before the
  user's; at tool results it comes behind the last one.
- H4. `before_turn` checks in this order: compaction, pending calls, the host's context, the memory.
- H5. An entry is told once, by whichever part tells it first, until it was edited or the history compacted
  (but see S3 of `session.py` for a memory that was told whole, long ago).
  The system part alone may come to hold what was told before: it is read anew for each turn.

Hooks are called by one thread, or from one event loop. They raise what is wrong with their arguments and what
the caller's `count` raises, and nothing for what goes wrong with the memory.

Attacked in tests/units/recall/test_conversation.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from muniment import events
from muniment.cancelling import Cancel
from muniment.content.gates import one_line
from muniment.kernel.cancel import Patience
from muniment.recall.compaction import Compaction, Summarise
from muniment.recall.context import SEPARATOR, Budgets, StaticContext
from muniment.recall.context_graph import ContextGraph, ContextNode, results_within
from muniment.recall.excerpt import excerpt
from muniment.recall.keys import keys_as_json, keys_in
from muniment.recall.messages import (
    Message,
    behind_results,
    groups,
    has_pending_call,
    said,
    size_of,
    with_reminders,
)
from muniment.recall.prefetch import Handle, begun
from muniment.recall.recaller import Chooser, Recaller
from muniment.recall.session import REPEAT_AFTER, BroughtIn, Reason, RecallSession, tokens_in
from muniment.recall.touched import Touched
from muniment.types import Recalled, RecalledEntry
from muniment.types.keys import EntryKey

FIRST_SECONDS: Final = 5.0
"""Seconds that the memory has to be read before a conversation; it takes milliseconds, new files longer."""

FACT_CHARS: Final = 300
"""Characters of an entry that a summary keeps."""

MAX_FACTS: Final = 40
"""Entries that a summary keeps, those told last: some 4000 tokens at most."""


@dataclass(frozen=True, slots=True)
class Compacting:
    """How a conversation is kept small.

    Attributes:
        limit: tokens that the model can take.
        summarise: asks a model for a summary, see `compaction.Summarise`; None: the host does it by itself.
    """

    limit: int
    summarise: Summarise | None = None


class Conversation:
    """The memory in one chat loop. Close it when done.

    Args:
        recaller: stays the caller's.
        budgets: how many tokens the memory may take.
        compacting: how to keep the history small; None: the host does it, and the limit is unknown.
        choose: see `Recaller.recall`.
        parent: ends all that runs once cancelled; stays the caller's.
        clock: monotonic seconds.
        state: of an earlier run of the same conversation, from `as_json`. What is not so is left out.
        repeat_after: tokens, see S3 of `session.py`.

    Attributes:
        session: counts what was brought in.

    Raises:
        OSError: the process has no descriptor left.

    Cost: reads the system and project tiers, some dozen files.
    """

    def __init__(
        self,
        recaller: Recaller,
        *,
        budgets: Budgets = Budgets(),  # noqa: B008  frozen
        compacting: Compacting | None = None,
        choose: Chooser | None = None,
        parent: Cancel | None = None,
        clock: Callable[[], float] = time.monotonic,
        state: Mapping[str, Any] | None = None,
        repeat_after: int = REPEAT_AFTER,
    ) -> None:
        self._budgets, self._limit = budgets, compacting and compacting.limit
        kept = state if isinstance(state, Mapping) else {}
        self.session = RecallSession(
            recaller,
            budget=budgets.recalled,
            choose=choose,
            parent=parent,
            clock=clock,
            state=kept,
            repeat_after=repeat_after,
        )
        told = keys_in(kept["project"]) if isinstance(kept.get("project"), list | tuple) else None
        self._static = StaticContext(recaller, budgets, told)
        self._touched = Touched(
            self._static,
            self.session.prefetch,
            budgets.just_in_time,
            lambda: self.session.shown | self._static.keys,
            keys_in(kept.get("just_in_time")),
            tokens_in(kept.get("just_in_time_tokens")),
        )
        self._graph = ContextGraph()
        self._compaction: Compaction | None = None
        if compacting is not None and compacting.summarise is not None:
            self._compaction = Compaction(
                self._graph,
                compacting.summarise,
                compacting.limit,
                self.session.prefetch,
                count=recaller.count,
                facts=lambda: list(self._facts.values()),
                on_compacted=self.on_compaction,
            )
        self._facts = _facts_in(kept.get("facts"))
        self._refreshing: Handle[None] | None = None
        self._tokens, self._is_share_told = 0, False
        self._begun_for: str | None = None
        self._had_results = False
        self._recaller = recaller
        self._heard: int | None = None if kept else 0
        self._static.refresh(Patience(time.monotonic() + FIRST_SECONDS, parent))
        self._system, self._system_told = self._static.system, Recalled()

    @property
    def system_part(self) -> str:
        """What is to be added to the system prompt; empty if there is nothing.

        The same text from one `before_turn` to the next; read it behind that.
        """
        return f"{SEPARATOR}{self._system.text}" if self._system.text else ""

    def on_user_turn(self, text: str) -> None:
        """A turn begins, or a message is drained in mid-loop: recall for it, and read the tiers anew."""
        self._begun_for, self._had_results = text, False
        self.session.on_user_turn(text, told=self._static.keys | self._touched.told)
        if self._refreshing is None or self._refreshing.settled_at is not None:
            self._refreshing = begun(self.session.prefetch, self._static.refresh)

    def on_path(self, unsafe_path: str) -> None:
        """A tool touches a file of the workspace: look for what is about it, or the folders above."""
        self._touched.add(unsafe_path)

    def before_turn(self, messages: Sequence[Any], reminders: Sequence[str] = ()) -> list[Message]:
        """The messages for the first call of the model in a turn (H2 to H4); the history from then on.

        Args:
            messages: the history with the user's message, as the last call of a hook left it and with what
                came since; mappings, or objects of an SDK.
            reminders: what the host has to tell besides.
        """
        history = self._compacted(self._read(messages))
        if has_pending_call(history):
            return self._left(history)
        text = _last_said(history)
        # What was begun for a message that was drained in mid-loop is not what another one needs.
        if self._begun_for is None or (self._had_results and self._begun_for != text):
            self.on_user_turn(text)
        self._begun_for = None
        texts = [told.text for told in self._told_at_turn()]
        return self._left(with_reminders(history, [*texts, *reminders]))

    def after_tools(self, messages: Sequence[Any]) -> list[Message]:
        """The messages for a call of the model behind tool results (H2, H3); likewise the history then."""
        history = self._read(messages)
        if has_pending_call(history):
            return self._left(history)
        self._had_results = True
        parts = (
            self._noted(self.session.take(BroughtIn.TOOL_RESULTS, self._told_otherwise)),
            self._tier(self._touched.take(), BroughtIn.JUST_IN_TIME),
        )
        texts = [part.text for part in parts if part is not None]
        return self._left(behind_results(history, "\n\n".join(texts)) if texts else history)

    def abort(self, reason: Reason) -> None:
        """Cancel the recall that is on its way, because the turn ends otherwise."""
        self._begun_for = None
        self.session.abort(reason)

    def on_compaction(self) -> None:
        """The history was replaced by a summary: what it had been told is told again (H5)."""
        self.session.on_compaction()
        self._begin_anew()

    def on_reset(self) -> None:
        """The conversation begins anew."""
        self._begun_for = None
        self.session.on_reset()
        self._facts.clear()
        self._begin_anew()

    def loaded(self) -> dict[str, list[str]]:
        """What the conversation has of the memory now: by where it came in, the ids of its entries, sorted.

        The ids are those of `RecalledEntry.id`; `recalled` is what was brought in for messages. All is
        empty where the ledger cannot be read, which an event tells.

        Cost: a query of the ledger a scope.
        """
        parts = {
            "system": self._system.keys,
            "project": self._static.told or frozenset(),
            "just_in_time": self._touched.told,
            "recalled": self.session.shown,
        }
        return {name: self._recaller.ids_of(keys) for name, keys in parts.items()}

    def as_json(self) -> dict[str, Any]:
        """What a later run of this conversation must know. It holds text of entries, as the history does."""
        told = self._static.told
        return {
            **self.session.as_json(),
            "project": None if told is None else keys_as_json(told),
            "just_in_time": keys_as_json(self._touched.told),
            "just_in_time_tokens": self._touched.spent,
            "facts": [list(fact) for fact in self._facts.items()],
        }

    def close(self) -> None:
        """End what runs, as `Session.close`."""
        if self._compaction is not None:
            self._compaction.close()
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _read(self, messages: Sequence[Any]) -> list[Message]:
        """Messages as JSON has them; what came since a hook last left them was said meanwhile."""
        history = [_as_json(message) for message in messages]
        if self._heard is None:  # Of a conversation that goes on, most was counted in its earlier run.
            self._heard = len(history)
        if said := history[self._heard :]:
            self.session.heard(size_of(said, self._recaller.count))
        return history

    def _left(self, history: list[Message]) -> list[Message]:
        """Messages as a hook leaves them."""
        self._heard = len(history)
        return history

    def _told_at_turn(self) -> list[Recalled]:
        """What comes in with a message of the user, in order."""
        self._system = self._static.system
        if self._system.keys != self._system_told.keys:
            self._watch_share(self._system.tokens - self._system_told.tokens)
            self._system_told = self._system
            if self._system.entries:
                self.session.record(self._system, BroughtIn.SYSTEM)
        parts = (
            self._noted(self.session.take(BroughtIn.USER_TURN, self._told_otherwise)),
            self._tier(self._static.take_project(self.session.shown | self._touched.told), BroughtIn.PROJECT),
            self._tier(self._touched.take(), BroughtIn.JUST_IN_TIME),
        )
        return [part for part in parts if part is not None]

    @property
    def _told_otherwise(self) -> frozenset[EntryKey]:
        """What the conversation was told but by recalls."""
        return self._system.keys.union(self._static.told or (), self._touched.told)

    def _tier(self, told: Recalled | None, where: BroughtIn) -> Recalled | None:
        if told is not None:
            self.session.record(told, where)
        return self._noted(told)

    def _noted(self, told: Recalled | None) -> Recalled | None:
        """Keep what is told for a summary, and watch how much it is."""
        if told is None:
            return None
        for entry in told.entries:
            self._facts.pop(entry.path, None)
            self._facts[entry.path] = _fact(entry)
        for path in list(self._facts)[:-MAX_FACTS]:
            del self._facts[path]
        self._watch_share(told.tokens)
        return told

    def _watch_share(self, tokens: int) -> None:
        self._tokens += tokens
        if self._limit and self._tokens > self._budgets.share * self._limit and not self._is_share_told:
            self._is_share_told = True
            events.emit("memory_share_exceeded", tokens=self._tokens, limit=self._limit)

    def _compacted(self, history: list[Message]) -> list[Message]:
        """The history with a summary, if one was ready for it as it is, and with old results shortened."""
        if self._compaction is None and self._budgets.results is None:
            return history
        parts = groups(history)
        # By their places: a node whose messages were changed by the host shows it by its digest.
        self._graph.edit(
            lambda nodes: [
                ContextNode(node.id, tuple(part)) for node, part in zip(nodes, parts, strict=False)
            ]
        )
        for part in parts[len(self._graph.nodes()) :]:
            self._graph.append(part)
        if self._compaction is not None:
            try:
                self._compaction.check()
            except OSError as problem:  # The process has no descriptor left; at a later turn it may.
                events.emit_defect("recall_not_begun", problem)
        # A summary that is being made rests on the messages as they are.
        if self._budgets.results is not None and not (self._compaction and self._compaction.is_running):
            budget, count = self._budgets.results, self._recaller.count
            self._graph.edit(lambda nodes: results_within(nodes, budget, count))
        return self._graph.messages()

    def _begin_anew(self) -> None:
        self._static.begin_anew()
        self._touched.begin_anew()
        self._tokens, self._is_share_told = self._system_told.tokens, False


def _fact(entry: RecalledEntry) -> str:
    """An entry on one line, for a summary."""
    return excerpt(one_line(f"{entry.path} (trust: {entry.trust}): {entry.name}: {entry.text}"), FACT_CHARS)


def _facts_in(unsafe_listed: object) -> dict[str, str]:
    """The facts that `as_json` wrote; what it did not write is left out."""
    listed = unsafe_listed if isinstance(unsafe_listed, list | tuple) else ()
    pairs = [each for each in listed[-MAX_FACTS:] if isinstance(each, list | tuple)]
    return {
        pair[0]: excerpt(one_line(pair[1]), FACT_CHARS)
        for pair in pairs
        if len(pair) == 2 and all(isinstance(part, str) for part in pair)  # noqa: PLR2004  path and fact
    }


def _as_json(message: Any) -> Message:
    """A message as JSON has it; an SDK's object is one of pydantic."""
    return (
        dict(message) if isinstance(message, Mapping) else message.model_dump(mode="json", exclude_none=True)
    )


def _last_said(history: Sequence[Message]) -> str:
    """What the user wrote last."""
    written = [said(message) for message in history if message.get("role") == "user"]
    return written[-1] if written else ""
