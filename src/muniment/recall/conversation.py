"""Connect a memory with a chat loop: hooks for the host that insert entries into its messages.

The *host* is the program that runs the chat loop. It calls:

    conversation.on_user_turn(text)                      # when the message arrives
    messages = conversation.before_turn(messages)        # before the first call of the model
    messages = conversation.after_tools(messages)        # before each call after tool results

- H1. No hook waits for the disk or for a model. But the constructor waits up to `FIRST_SECONDS`, and `close`
  also waits: on an event loop, call them on a thread.
- H2. Nothing is inserted between a tool call and its results, and nothing while a call has no result.
- H3. Before the first model call, recalled entries come first among the reminders. The reminders are a
  separate message before the user's message. After tool calls, entries are inserted after the last result.
- H4. `before_turn` does these steps in this order: compact the history, stop if a call is pending, insert the
  entries and the reminders of the host.
- H5. An entry is injected once, by the first part that has it, until it is edited or the history is compacted
  (for an exception see S3 of `session.py`). Only the system part may contain entries that were injected
  before: it is read again for each turn.

Hooks are called by one thread, or from one event loop. They raise errors of their arguments and of the
caller's `count`, but no errors of the memory.

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
"""Maximum seconds to read the memory before a conversation; it takes milliseconds, more if files are new."""

FACT_CHARS: Final = 300
"""Maximum characters of an entry that a summary of the history keeps."""

MAX_FACTS: Final = 40
"""Maximum number of entries that a summary of the history keeps, the latest ones: about 4000 tokens."""


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """The options for replacing the older part of a conversation by a summary.

    Attributes:
        limit: the number of tokens that the model accepts.
        summarise: calls a model for a summary, see `compaction.Summarise`; None: the caller shortens the
            history.
    """

    limit: int
    summarise: Summarise | None = None


class Conversation:
    """The memory of one chat loop. Close it when done.

    Args:
        recaller: searches the memory; the caller closes it.
        budgets: the tokens that the memory may use.
        compacting: how to compact the history; None: the host does it, and the model's limit is unknown.
        choose: selects among the search results, see `Recaller.recall`.
        parent: a token that cancels all running work; the caller closes it.
        clock: returns monotonic seconds.
        state: the state of an earlier run of the same conversation, from `as_json`. Invalid parts are
            ignored.
        repeat_after: tokens after which entries may be injected again, see S3 of `session.py`.

    Attributes:
        session: the recalls of this conversation, with counts of the injected entries.

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
        """Return the text of the memory to append to the system prompt; may be empty.

        The text changes only in `before_turn`; read it after that call.
        """
        return f"{SEPARATOR}{self._system.text}" if self._system.text else ""

    def on_user_turn(self, text: str) -> None:
        """Start a recall for a message of the user, and read the system and project tiers again.

        The message may also arrive during the tool calls of a turn.
        """
        self._recalled_text, self._had_results = text, False
        self.session.on_user_turn(text, injected=self._static.keys | self._touched.injected)
        if self._refreshing is None or self._refreshing.settled_at is not None:
            self._refreshing = begin_or_log(self.session.prefetch, self._static.refresh)

    def on_path(self, unsafe_path: str) -> None:
        """Report that a tool touches a file; entries about it and the folders above it are looked up.

        Args:
            unsafe_path: the path of a file in the workspace.
        """
        self._touched.add(unsafe_path)

    def before_turn(self, messages: Sequence[Any], reminders: Sequence[str] = ()) -> list[Message]:
        """Return the messages for the first model call of a turn, with entries inserted.

        The host must use the returned messages as its new history.

        Args:
            messages: the messages that the last hook returned, plus all later ones. The last one is the
                user's message. They are mappings, or objects of an SDK.
            reminders: further texts of the host to insert.
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
        """Return the messages for a model call after tool results, with entries inserted.

        The host must use the returned messages as its new history.

        Args:
            messages: the messages that the last hook returned, plus all later ones.
        """
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
        """Cancel the current recall, because the turn ends early.

        Args:
            reason: the reason to log.
        """
        self._recalled_text = None
        self.session.abort(reason)

    def on_compaction(self) -> None:
        """Allow entries to be injected again, because a summary replaced the history that contained them."""
        self.session.on_compaction()
        self._reset_tiers()

    def on_reset(self) -> None:
        """Cancel the current recall and forget all injected entries.

        Call this when the conversation starts again without its history.
        """
        self._recalled_text = None
        self.session.on_reset()
        self._facts.clear()
        self._reset_tiers()

    def list_loaded(self) -> dict[str, list[str]]:
        """Return the ids of the entries in the conversation, sorted, by the part that injected them.

        The parts are `system`, `project`, `just_in_time`, and `recalled` for the entries that recalls found.
        An id is `RecalledEntry.id`. If the ledger cannot be read, log an event and return empty lists.

        Cost: four queries of the ledger per scope.
        """
        parts = {
            "system": self._system.keys,
            "project": self._static.injected_project or frozenset(),
            "just_in_time": self._touched.injected,
            "recalled": self.session.injected,
        }
        return {name: self._recaller.list_ids(keys) for name, keys in parts.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the state that a later run of this conversation needs.

        Like the history, the state contains text of entries.
        """
        injected_project = self._static.injected_project
        return {
            **self.session.as_json(),
            "project": None if injected_project is None else dump_keys(injected_project),
            "just_in_time": dump_keys(self._touched.injected),
            "just_in_time_tokens": self._touched.spent,
            "facts": [list(fact) for fact in self._facts.items()],
        }

    def close(self) -> None:
        """Cancel the running work, and wait until its threads end; see `RecallSession.close`."""
        if self._compaction is not None:
            self._compaction.close()
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _read_messages(self, messages: Sequence[Any]) -> list[Message]:
        """Return messages as JSON values, and count the tokens of messages added since the last hook."""
        history = [_convert_message(message) for message in messages]
        if self._counted_messages is None:  # In a resumed conversation, most was counted in its earlier run.
            self._counted_messages = len(history)
        if added := history[self._counted_messages :]:
            self.session.count_tokens(count_tokens(added, self._recaller.count))
        return history

    def _leave_history(self, history: list[Message]) -> list[Message]:
        """Return the messages that a hook returns, and remember how many there are."""
        self._counted_messages = len(history)
        return history

    def _take_turn_parts(self) -> list[Recalled]:
        """Return the parts to inject before the first model call of a turn, in order."""
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
        """Return the entries that the conversation received in other ways than by recalls."""
        return self._system.keys.union(self._static.injected_project or (), self._touched.injected)

    def _record_tier(self, recalled: Recalled | None, where: InjectionMode) -> Recalled | None:
        if recalled is not None:
            self.session.record(recalled, where)
        return self._store_facts(recalled)

    def _store_facts(self, recalled: Recalled | None) -> Recalled | None:
        """Store the text of injected entries for a later summary, count their tokens; return `recalled`."""
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
        """Return the history with a summary if one is ready, and with old tool results shortened."""
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
    """Return the path, trust, name and text of an entry in one line, for a summary."""
    return cut_excerpt(
        clean_line(f"{entry.path} (trust: {entry.trust}): {entry.name}: {entry.text}"), FACT_CHARS
    )


def _load_facts(unsafe_listed: object) -> dict[str, str]:
    """Return the entry texts that `as_json` wrote, by path; skip invalid ones."""
    listed = unsafe_listed if isinstance(unsafe_listed, list | tuple) else ()
    pairs = [each for each in listed[-MAX_FACTS:] if isinstance(each, list | tuple)]
    return {
        pair[0]: cut_excerpt(clean_line(pair[1]), FACT_CHARS)
        for pair in pairs
        if len(pair) == 2 and all(isinstance(part, str) for part in pair)  # noqa: PLR2004  path and fact
    }


def _convert_message(message: Any) -> Message:
    """Return a message as a JSON value; a message that is an object of an SDK is a pydantic model."""
    return (
        dict(message) if isinstance(message, Mapping) else message.model_dump(mode="json", exclude_none=True)
    )


def _read_last_user_text(history: Sequence[Message]) -> str:
    """Return the text of the user's last message; empty if the user wrote nothing."""
    written = [read_text(message) for message in history if message.get("role") == "user"]
    return written[-1] if written else ""
