"""The loop of a run: at most six turns, each with one call of the model and then its tool calls, in order.

`Runner._run` contains the complete loop. The model replies; each of its tool calls gets a decision and a
result; then the run ends, or the next turn begins.

The loop treats the model as hostile. The model decides only when it is done. The worker decides which reads
and proposals are allowed, and the broker decides what is committed. Whether the run was successful depends on
its change set, never on the words of the model.

A run ends for one of the reasons in `EndedBy`; its changes may be committed only after `final_text`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from muniment.agent.chat import (
    NOTHING_WRITTEN,
    NUDGE,
    IndexExcerpt,
    create_job_message,
    create_system_message,
    list_tools,
)
from muniment.agent.model import (
    AssistantMessage,
    Brief,
    Budget,
    ContextOverflow,
    Message,
    Model,
    ModelError,
    Reply,
    ToolCall,
    ToolMessage,
    ToolSpec,
    query_model,
)
from muniment.content.markdown import remove_fences
from muniment.errors import Cancelled, DeadlineExceeded, PathEscape, Refusal, WorkerLost
from muniment.events import span
from muniment.kernel.names import Via
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.sandbox.tools.calls import WRITING_TOOLS, Outcome, get_path_argument, get_tool_label

RUN_NAME: Final = "managed-auto-memory-remember"

MAX_DENIALS: Final = 3
"""Number of denials after which a run ends, including path escapes by reading tools.

A model that is denied so often is probing.
"""

EndedBy = Literal[
    "final_text", "escape", "refusals", "deadline", "cancelled", "turns", "model_error", "worker_lost"
]


@dataclass(frozen=True, slots=True)
class ToolDecision:
    """A tool call and its outcome, without the content of the call, for observers and records."""

    turn: int
    tool: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class DeniedCall:
    """A denied tool call, with the path that the model sent. The path is never displayed or recorded."""

    tool: str
    path: str
    outcome: Outcome


_TEXT_ARGUMENTS: Final = frozenset({"content", "new_string"})
"""Arguments that contain text to write.

If a model copies the fences around a text, only the text inside is used.
"""

_DROPPED: Final = "(dropped to save space; request less at a time)"

_REPEATED: Final = Outcome(
    "error", "bad_arguments", "you made this call before and its result has not changed; continue"
)

Observer = Callable[[ToolDecision], None]
Witness = Callable[[Message], None]
Call = Callable[[str, object], Outcome]
_Key = tuple[str, str]


@dataclass(slots=True)
class RunOutcome:
    """The end of a run.

    Attributes:
        ended_by: the reason.
        final_text: the last words of the model; for people, never for decisions of the program.
        detail: details of the reason for the operator; empty: none.
        escape: the path escape that ended the run, or None.
        decisions: all tool calls of the run with their outcomes, in order.
        denied: the denied calls, in order.
        decided_by: who decided where to store the fact, if that was not the model; empty: the model.
        read: the paths of entries that the model saw: in the brief, or by `read_file` or `edit`.
        messages: the conversation, as the model saw it in the last turn.
    """

    ended_by: EndedBy = "turns"
    final_text: str = ""
    detail: str = ""
    escape: PathEscape | None = None
    decisions: list[ToolDecision] = field(default_factory=list)
    denied: list[DeniedCall] = field(default_factory=list)
    decided_by: str = ""
    read: set[CanonicalPath] = field(default_factory=set)
    messages: list[Message] = field(default_factory=list)


class Runner:
    """One run of a model.

    Args:
        model: the model.
        call: executes a tool call in the worker.
        budget: the turns, calls and seconds that the run may use.
        abort_on_escape: whether the run ends when a writing tool names a path that leaves its root.
        token: random text that marks the fences around data.
        observe: called with each tool call and its outcome.
        witness: called with each message when it is added to the conversation.
    """

    def __init__(
        self,
        model: Model,
        call: Call,
        budget: Budget,
        *,
        abort_on_escape: bool,
        token: str,
        observe: Observer = lambda _: None,
        witness: Witness = lambda _: None,
    ) -> None:
        self._model, self._call, self._budget = model, call, budget
        self._abort_on_escape, self._token = abort_on_escape, token
        self._observe, self._witness = observe, witness
        self._outcome = RunOutcome()
        self._outcomes: dict[_Key, Outcome] = {}
        self._reminders_left = (
            2 if getattr(model, "protocol", "") == "auto" else 1
        )  # With `auto`, other forms of requests remain to try.
        self._has_dropped_results = False
        self._denials = 0
        self._unknown_tools = 0

    def run(self, brief: Brief, indexes: tuple[IndexExcerpt, ...] = ()) -> RunOutcome:
        """Let the model act until the run ends, and return how it ended.

        A failure of the model or of the worker is part of the result, and raises no exception.

        Args:
            brief: the job of the run.
            indexes: the indexes of the scopes, which the model sees first.
        """
        outcome = self._outcome
        with span("run") as trace:
            try:
                outcome.ended_by = self._run(brief, indexes)
            except DeadlineExceeded:
                outcome.ended_by = "deadline"
            except Cancelled:
                outcome.ended_by = "cancelled"
            except ModelError as error:
                outcome.ended_by, outcome.detail = "model_error", str(error)
            except WorkerLost as error:
                outcome.ended_by, outcome.detail = "worker_lost", str(error)
            trace.set_attributes(ended_by=outcome.ended_by, calls=len(outcome.decisions))
        return outcome

    def _run(self, brief: Brief, indexes: tuple[IndexExcerpt, ...]) -> EndedBy:
        """Execute the turns, and return the reason why the run ended."""
        self._outcome.read.update(each.path for each in brief.related if each.is_visible or each.statements)
        self._add_message(create_system_message(brief))
        self._add_message(create_job_message(brief, indexes, self._token))
        while self._budget.spend_turn():
            with span("turn", turn=self._budget.turns) as trace:
                self._budget.check()
                is_last = self._budget.turns_left == 0
                reply = self._next_reply(brief, () if is_last else list_tools(brief.context))
                trace.set_attributes(
                    input_tokens=reply.usage.input_tokens, output_tokens=reply.usage.output_tokens
                )
                if is_last or not reply.calls:
                    if (ended_by := self._end_or_remind(reply, brief, is_last=is_last)) is not None:
                        return ended_by
                    continue
                for call in reply.calls:
                    self._budget.check()
                    if self._repeats_write(call):
                        return "final_text"
                    outcome = self._decide(call, brief)
                    self._add_result(call, outcome)
                    if (ended_by := self._find_end(call, outcome)) is not None:
                        return ended_by
        return "turns"

    def _add_message(self, message: Message) -> None:
        self._outcome.messages.append(message)
        self._witness(message)

    def _next_reply(self, brief: Brief, tools: tuple[ToolSpec, ...]) -> Reply:
        """Return the reply of the model.

        If the messages are too long for it, drop tool results and retry once.
        """
        model, messages = self._model, self._outcome.messages
        with self._budget.record_turn() as usage:
            try:
                reply = query_model(model, self._budget, brief, messages, self._token, tools=tools)
            except ContextOverflow:
                if self._has_dropped_results or not self._drop_results():
                    raise
                reply = query_model(model, self._budget, brief, messages, self._token, tools=tools)
            usage.append(reply.usage)
        self._add_message(AssistantMessage(reply.text, reply.calls))
        self._outcome.final_text = reply.text.strip() or self._outcome.final_text
        self._outcome.decided_by = self._outcome.decided_by or reply.decided_by
        return reply

    def _drop_results(self) -> bool:
        """Drop tool results from the messages, so that they are shorter.

        Return whether any result was dropped.

        Drop those of earlier turns, or without earlier results those of the last turn.
        """
        messages = self._outcome.messages
        results = {index: each for index, each in enumerate(messages) if isinstance(each, ToolMessage)}
        last = max(
            (index for index, each in enumerate(messages) if isinstance(each, AssistantMessage)), default=0
        )
        earlier = {index: each for index, each in results.items() if index < last}
        for index, each in (earlier or results).items():
            messages[index] = replace(each, text=_DROPPED)
        self._has_dropped_results = True
        self._forget_reads()
        return bool(results)

    def _end_or_remind(self, reply: Reply, brief: Brief, *, is_last: bool) -> EndedBy | None:
        """Return the reason why a turn without tool calls ends the run.

        If the run should continue, send a reminder to the model, and return None.
        """
        has_text = bool(reply.text.strip())
        if has_text and (is_last or not self._reminders_left or not self._is_idle(brief)):
            return "final_text"
        if is_last:
            return "turns"
        if not self._reminders_left:
            raise ModelError("the model returned an invalid response again after a reminder")
        self._reminders_left -= 1
        self._add_message(NOTHING_WRITTEN if has_text else NUDGE)
        return None

    def _is_idle(self, brief: Brief) -> bool:
        """Return whether the run could write, but neither wrote nor named an entry that contains the fact."""
        writes = [each.outcome for each in self._outcome.decisions if each.tool in WRITING_TOOLS]
        is_done = any(each.verdict != "error" or each.code == "content_rejected" for each in writes)
        is_known = any(path.text in self._outcome.final_text for path in self._outcome.read)
        return not is_done and not is_known and bool(brief.writable)

    def _repeats_write(self, call: ToolCall) -> bool:
        """Return whether a call repeats a successful write: the model has then finished."""
        earlier = self._outcomes.get(_build_call_key(call))
        return earlier is not None and earlier.verdict == "allow" and call.tool in WRITING_TOOLS

    def _decide(self, call: ToolCall, brief: Brief) -> Outcome:
        """Return the outcome of a tool call.

        The worker decides about it, unless the call repeats an earlier one.
        """
        key = _build_call_key(call)
        earlier = self._outcomes.get(key)
        with span("tool", tool=get_tool_label(call.tool)) as trace:
            is_repeated = earlier is not None and earlier.code != "unknown_tool"
            outcome = _REPEATED if is_repeated else self._execute(call, brief)
            trace.set_attributes(verdict=outcome.verdict, code=outcome.code)
        self._outcomes[key] = outcome
        return outcome

    def _execute(self, call: ToolCall, brief: Brief) -> Outcome:
        offered = {tool.name for tool in list_tools(brief.context)}
        if call.tool not in offered:
            return Outcome("error", "unknown_tool", f"unknown tool; use one of {', '.join(sorted(offered))}")
        if not self._budget.spend_call():
            return Outcome("error", "budget", "no tool calls are left; answer in one sentence")
        arguments = call.arguments
        if call.tool in WRITING_TOOLS and isinstance(arguments, dict):
            if self._token in get_path_argument(arguments):
                return Outcome("error", "bad_arguments", "name the file after the content of the fact")
            arguments = {
                key: remove_fences(value, self._token)
                if key in _TEXT_ARGUMENTS and isinstance(value, str)
                else value
                for key, value in arguments.items()
            }
        outcome = self._call(call.tool, arguments)
        if outcome.verdict == "allow":
            if call.tool in WRITING_TOOLS:
                self._forget_reads()
            if call.tool in {"read_file", "edit"}:
                self._remember_read(call, brief)
        return outcome

    def _forget_reads(self) -> None:
        """Allow the same reads again, because their results may have changed or were dropped."""
        self._outcomes = {key: seen for key, seen in self._outcomes.items() if key[0] in WRITING_TOOLS}

    def _remember_read(self, call: ToolCall, brief: Brief) -> None:
        scopes = tuple(scope.name for scope in brief.scopes)
        try:
            self._outcome.read.add(canonicalise(get_path_argument(call.arguments), scopes))
        except (PathEscape, Refusal):
            raise WorkerLost("the worker allowed an invalid path") from None

    def _add_result(self, call: ToolCall, outcome: Outcome) -> None:
        """Record a tool call with its outcome, and add its result to the messages."""
        decision = ToolDecision(self._budget.turns, call.tool, outcome)
        self._outcome.decisions.append(decision)
        self._observe(decision)
        self._add_message(ToolMessage(call.id, outcome.verdict, outcome.code, outcome.text))

    def _find_end(self, call: ToolCall, outcome: Outcome) -> EndedBy | None:
        """Return the reason why the run ends after this tool call, or None if it continues."""
        if outcome.code == "unknown_tool":
            self._unknown_tools += 1
            if self._unknown_tools == 2:  # noqa: PLR2004  a second one shows that the model does not adapt
                self._outcome.detail = "the model called unknown tools"
                return "model_error"
        if outcome.verdict != "deny":
            return None
        self._outcome.denied.append(DeniedCall(call.tool, get_path_argument(call.arguments), outcome))
        if outcome.code == "path_escape" and call.tool in WRITING_TOOLS and self._abort_on_escape:
            self._outcome.escape = PathEscape(
                outcome.via or Via.DOTDOT, get_path_argument(call.arguments), call.tool
            )
            return "escape"
        self._denials += 1
        return "refusals" if self._denials == MAX_DENIALS else None


def _build_call_key(call: ToolCall) -> _Key:
    """Return a key for a tool call; it does not depend on the order of the arguments."""
    try:
        arguments = json.dumps(call.arguments, sort_keys=True, default=repr)
    except (TypeError, ValueError, RecursionError):
        arguments = "not JSON"  # No tool accepts such arguments, so the call always gets the same error.
    return call.tool, arguments
