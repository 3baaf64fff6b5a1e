"""Connect a memory with a chat loop: hooks for the host that insert entries into its messages.

    conversation.on_user_turn(text)                      # when the message arrives
    messages = conversation.before_turn(messages)        # before the first call of the model
    messages = conversation.after_tools(messages)        # before each call after tool results

- H1. No hook waits for the disk or for a model. The constructor does, up to `FIRST_SECONDS`, and so does
  `close`: on an event loop, call these on a thread.
- H2. Nothing is inserted between a call and its results, nor anywhere while a call has no result.
- H3. At a user's turn the memory comes first among the reminders, which are a separate message before the
  user's; at tool results it comes after the last one.
- H4. `before_turn` checks in this order: compaction, pending calls, the host's context, the memory.
- H5. An entry is injected once, by the part that is first, until it was edited or the history compacted (for
  an exception see S3 of `session.py`). Only the system part may contain entries that were injected before: it
  is read again for each turn.

Hooks are called by one thread, or from one event loop. They raise errors of their arguments and of the
caller's `count`, and no errors of the memory.

Attacked in tests/units/recall/test_conversation.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from muniment import events
from muniment.cancelling import Cancel
from muniment.content.gates import clean_line
from muniment.kernel.cancel import Deadline
from muniment.recall.compaction import Compaction, Summarise
from muniment.recall.context import SEPARATOR, Budgets, StaticContext
from muniment.recall.context_graph import ContextGraph, ContextNode, limit_results
from muniment.recall.excerpt import cut_excerpt
from muniment.recall.keys import dump_keys, load_keys
from muniment.recall.messages import (
    Message,
    count_tokens,
    group_messages,
    has_pending_call,
    insert_after_results,
    insert_reminders,
    read_text,
)
from muniment.recall.prefetch import Handle, begin_or_log
from muniment.recall.recaller import Chooser, Recaller
from muniment.recall.session import REPEAT_AFTER, InjectionMode, Reason, RecallSession, load_tokens
from muniment.recall.touched_paths import TouchedPaths
from muniment.types import Recalled, RecalledEntry
from muniment.types.keys import EntryKey

FIRST_SECONDS: Final = 5.0
"""Seconds for reading the memory before a conversation; it takes milliseconds, longer for new files."""

FACT_CHARS: Final = 300
"""Characters of an entry that a summary retains."""

MAX_FACTS: Final = 40
"""Entries that a summary retains, the latest ones: about 4000 tokens at most."""


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """The way in which a conversation is compacted.

    Attributes:
        limit: tokens that the model accepts.
        summarise: calls a model for a summary, see `compaction.Summarise`; None: the host compacts.
    """

    limit: int
    summarise: Summarise | None = None


class Conversation:
    """The memory in one chat loop. Close it when done.

    Args:
        recaller: the caller closes it.
        budgets: tokens that the memory may take.
        compacting: how to compact the history; None: the host does it, and the limit is unknown.
        choose: see `Recaller.recall`.
        parent: cancels all running work; the caller closes it.
        clock: monotonic seconds.
        state: of an earlier run of the same conversation, from `as_json`. Invalid parts are ignored.
        repeat_after: tokens, see S3 of `session.py`.

    Attributes:
        session: counts the injected entries.

    Raises:
        OSError: the process has no free descriptor.

    Cost: reads the system and project tiers, some dozen files.
    """

    def __init__(
        self,
        recaller: Recaller,
        *,
        budgets: Budgets = Budgets(),  # noqa: B008  frozen
        compacting: CompactionOptions | None = None,
        choose: Chooser | None = None,
        parent: Cancel | None = None,
        clock: Callable[[], float] = time.monotonic,
        state: Mapping[str, Any] | None = None,
        repeat_after: int = REPEAT_AFTER,
    ) -> None:
        self._budgets, self._limit = budgets, compacting and compacting.limit
        saved = state if isinstance(state, Mapping) else {}
        self.session = RecallSession(
            recaller,
            budget=budgets.recalled,
            choose=choose,
            parent=parent,
            clock=clock,
            state=saved,
            repeat_after=repeat_after,
        )
        injected_project = (
            load_keys(saved["project"]) if isinstance(saved.get("project"), list | tuple) else None
        )
        self._static = StaticContext(recaller, budgets, injected_project)
        self._touched = TouchedPaths(
            self._static,
            self.session.prefetch,
            budgets.just_in_time,
            lambda: self.session.injected | self._static.keys,
            load_keys(saved.get("just_in_time")),
            load_tokens(saved.get("just_in_time_tokens")),
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
        self._facts = _load_facts(saved.get("facts"))
        self._refreshing: Handle[None] | None = None
        self._tokens, self._is_share_logged = 0, False
        self._recalled_text: str | None = None
        self._had_results = False
        self._recaller = recaller
        self._counted_messages: int | None = None if saved else 0
        self._static.refresh(Deadline(time.monotonic() + FIRST_SECONDS, parent))
        self._system, self._injected_system = self._static.system, Recalled()

    @property
    def system_part(self) -> str:
        """Return the text to add to the system prompt; may be empty.

        The same text from one `before_turn` to the next; read it after that call.
        """
        return f"{SEPARATOR}{self._system.text}" if self._system.text else ""

    def on_user_turn(self, text: str) -> None:
        """Start a recall for a new turn, or for a message received mid-loop, and read the tiers again."""
        self._recalled_text, self._had_results = text, False
        self.session.on_user_turn(text, injected=self._static.keys | self._touched.injected)
        if self._refreshing is None or self._refreshing.settled_at is not None:
            self._refreshing = begin_or_log(self.session.prefetch, self._static.refresh)

    def on_path(self, unsafe_path: str) -> None:
        """Look up entries about a workspace file that a tool touches, or the folders above it."""
        self._touched.add(unsafe_path)

    def before_turn(self, messages: Sequence[Any], reminders: Sequence[str] = ()) -> list[Message]:
        """Return the messages for the first model call of a turn (H2 to H4); they become the history.

        Args:
            messages: the history with the user's message: the result of the last hook plus later messages;
                mappings, or objects of an SDK.
            reminders: further texts of the host.
        """
        history = self._compact(self._read_messages(messages))
        if has_pending_call(history):
            return self._leave_history(history)
        text = _read_last_user_text(history)
        # A recall for a message received mid-loop does not fit another message.
        if self._recalled_text is None or (self._had_results and self._recalled_text != text):
            self.on_user_turn(text)
        self._recalled_text = None
        texts = [part.text for part in self._take_turn_parts()]
        return self._leave_history(insert_reminders(history, [*texts, *reminders]))

    def after_tools(self, messages: Sequence[Any]) -> list[Message]:
        """Return the messages for a model call after tool results (H2, H3); they become the history."""
        history = self._read_messages(messages)
        if has_pending_call(history):
            return self._leave_history(history)
        self._had_results = True
        parts = (
            self._store_facts(self.session.take_result(InjectionMode.TOOL_RESULTS, self._injected_elsewhere)),
            self._record_tier(self._touched.take_result(), InjectionMode.JUST_IN_TIME),
        )
        texts = [part.text for part in parts if part is not None]
        return self._leave_history(insert_after_results(history, "\n\n".join(texts)) if texts else history)

    def abort(self, reason: Reason) -> None:
        """Cancel the current recall, because the turn ends in another way."""
        self._recalled_text = None
        self.session.abort(reason)

    def on_compaction(self) -> None:
        """Allow entries to be injected again, because a summary replaced the history (H5)."""
        self.session.on_compaction()
        self._reset_tiers()

    def on_reset(self) -> None:
        """Reset the state, because the conversation starts again."""
        self._recalled_text = None
        self.session.on_reset()
        self._facts.clear()
        self._reset_tiers()

    def list_loaded(self) -> dict[str, list[str]]:
        """Return the ids of the entries in the conversation, sorted, by the part that injected them.

        The ids are those of `RecalledEntry.id`; `recalled` are the entries for messages. All are empty if the
        ledger cannot be read; an event is logged.

        Cost: a query of the ledger per scope.
        """
        parts = {
            "system": self._system.keys,
            "project": self._static.injected_project or frozenset(),
            "just_in_time": self._touched.injected,
            "recalled": self.session.injected,
        }
        return {name: self._recaller.list_ids(keys) for name, keys in parts.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the state that a later run needs. Like the history, it contains text of entries."""
        injected_project = self._static.injected_project
        return {
            **self.session.as_json(),
            "project": None if injected_project is None else dump_keys(injected_project),
            "just_in_time": dump_keys(self._touched.injected),
            "just_in_time_tokens": self._touched.spent,
            "facts": [list(fact) for fact in self._facts.items()],
        }

    def close(self) -> None:
        """Cancel the running work, as `RecallSession.close`."""
        if self._compaction is not None:
            self._compaction.close()
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _read_messages(self, messages: Sequence[Any]) -> list[Message]:
        """Return messages as JSON; count the ones that were added since the last hook."""
        history = [_convert_message(message) for message in messages]
        if self._counted_messages is None:  # In a resumed conversation, most was counted in its earlier run.
            self._counted_messages = len(history)
        if added := history[self._counted_messages :]:
            self.session.count_tokens(count_tokens(added, self._recaller.count))
        return history

    def _leave_history(self, history: list[Message]) -> list[Message]:
        """Return messages as a hook leaves them."""
        self._counted_messages = len(history)
        return history

    def _take_turn_parts(self) -> list[Recalled]:
        """Return the parts to inject with a message of the user, in order."""
        self._system = self._static.system
        if self._system.keys != self._injected_system.keys:
            self._check_share(self._system.tokens - self._injected_system.tokens)
            self._injected_system = self._system
            if self._system.entries:
                self.session.record(self._system, InjectionMode.SYSTEM)
        parts = (
            self._store_facts(self.session.take_result(InjectionMode.USER_TURN, self._injected_elsewhere)),
            self._record_tier(
                self._static.take_project(self.session.injected | self._touched.injected),
                InjectionMode.PROJECT,
            ),
            self._record_tier(self._touched.take_result(), InjectionMode.JUST_IN_TIME),
        )
        return [part for part in parts if part is not None]

    @property
    def _injected_elsewhere(self) -> frozenset[EntryKey]:
        """Return the entries that the conversation received by other ways than recalls."""
        return self._system.keys.union(self._static.injected_project or (), self._touched.injected)

    def _record_tier(self, recalled: Recalled | None, where: InjectionMode) -> Recalled | None:
        if recalled is not None:
            self.session.record(recalled, where)
        return self._store_facts(recalled)

    def _store_facts(self, recalled: Recalled | None) -> Recalled | None:
        """Store injected entries for a summary, and watch their total size."""
        if recalled is None:
            return None
        for entry in recalled.entries:
            self._facts.pop(entry.path, None)
            self._facts[entry.path] = _format_fact(entry)
        for path in list(self._facts)[:-MAX_FACTS]:
            del self._facts[path]
        self._check_share(recalled.tokens)
        return recalled

    def _check_share(self, tokens: int) -> None:
        self._tokens += tokens
        if self._limit and self._tokens > self._budgets.share * self._limit and not self._is_share_logged:
            self._is_share_logged = True
            events.emit("memory_share_exceeded", tokens=self._tokens, limit=self._limit)

    def _compact(self, history: list[Message]) -> list[Message]:
        """Return the history with a summary, if one was ready for it, and with old results shortened."""
        if self._compaction is None and self._budgets.results is None:
            return history
        parts = group_messages(history)
        # By position: a node whose messages the host changed has another digest.
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
            except OSError as problem:  # The process has no free descriptor; a later turn may have one.
                events.emit_defect("recall_not_begun", problem)
        # A summary in progress depends on unchanged messages.
        if self._budgets.results is not None and not (self._compaction and self._compaction.is_running):
            budget, count = self._budgets.results, self._recaller.count
            self._graph.edit(lambda nodes: limit_results(nodes, budget, count))
        return self._graph.messages()

    def _reset_tiers(self) -> None:
        self._static.reset_project()
        self._touched.reset()
        self._tokens, self._is_share_logged = self._injected_system.tokens, False


def _format_fact(entry: RecalledEntry) -> str:
    """Return an entry on one line, for a summary."""
    return cut_excerpt(
        clean_line(f"{entry.path} (trust: {entry.trust}): {entry.name}: {entry.text}"), FACT_CHARS
    )


def _load_facts(unsafe_listed: object) -> dict[str, str]:
    """Return the facts that `as_json` wrote; invalid ones are left out."""
    listed = unsafe_listed if isinstance(unsafe_listed, list | tuple) else ()
    pairs = [each for each in listed[-MAX_FACTS:] if isinstance(each, list | tuple)]
    return {
        pair[0]: cut_excerpt(clean_line(pair[1]), FACT_CHARS)
        for pair in pairs
        if len(pair) == 2 and all(isinstance(part, str) for part in pair)  # noqa: PLR2004  path and fact
    }


def _convert_message(message: Any) -> Message:
    """Return a message as JSON; objects of an SDK are pydantic models."""
    return (
        dict(message) if isinstance(message, Mapping) else message.model_dump(mode="json", exclude_none=True)
    )


def _read_last_user_text(history: Sequence[Message]) -> str:
    """Return the last message of the user."""
    written = [read_text(message) for message in history if message.get("role") == "user"]
    return written[-1] if written else ""
