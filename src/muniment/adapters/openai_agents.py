"""The memory as function tools of the OpenAI Agents SDK: `muniment[openai-agents]`.

    from agents import Agent
    from muniment.adapters.openai_agents import tools

    with muniment.open(".") as memory:
        agent = Agent(name="assistant", tools=tools(memory))

O1 Whatever a model asks, it is answered with text: a tool that fails says so, with our code, and ends no run.
O2 What stands in the memory stands between marks that it cannot imitate. No answer holds a host path.
O3 What is remembered has the trust that the caller names at most; entries of a higher one are not forgotten.
O4 Nothing is forgotten that the model was not shown before by name: a digest says what that was.

The SDK traces what tools are asked and answer, and sends it to OpenAI where there is a key for that:
`RunConfig(tracing_disabled=True)` ends it. Attacked in tests/surface/library/test_agents_tools.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from muniment import events
from muniment.adapters.quoting import marked
from muniment.adapters.threads import in_thread
from muniment.api import Memory
from muniment.cancelling import Cancel
from muniment.content.gates import one_line
from muniment.errors import (
    InvalidScope,
    JobError,
    MunimentError,
    PathEscape,
    Refusal,
    ToolError,
    printable,
)
from muniment.jobs.entries import Entries
from muniment.jobs.request import ForgetRequest, ForgetResult, RememberRequest
from muniment.kernel.cancel import Patience
from muniment.kernel.names import MAX_PATH_BYTES, Trust, Verb
from muniment.policy.frozen import Frozen

try:
    from agents import FunctionTool
    from agents.tool_context import ToolContext
except ImportError:
    raise ImportError("this needs openai-agents 0.24: pip install 'muniment[openai-agents]'") from None

MAX_RECALLED: Final = 20
"""Entries of one recall, as over HTTP."""

TOLD_CHARS: Final = 200
"""Characters of each entry in a preview."""

_NAME_CHARS: Final = 60


class _Remember(Frozen):
    """Keep one durable fact beyond this conversation, in a sentence or two. Never a secret."""

    fact: str
    scope: Annotated[str | None, Field(description="user or project; null: the memory chooses")] = None


class _Recall(Frozen):
    """Look up facts, preferences and decisions before you answer what may rest on them."""

    query: Annotated[str, Field(description="a message, or some words of what is looked for")]
    limit: Annotated[int | None, Field(ge=1, le=MAX_RECALLED, description="entries at most; null: five")] = (
        None
    )


class _Show(Frozen):
    """Read one entry of the memory whole."""

    path: Annotated[str, Field(max_length=MAX_PATH_BYTES, description="as recall gives it")]


class _Forget(Frozen):
    """Remove what a description means, where the user asks for it. Without digest: say what would go."""

    description: Annotated[str, Field(description="a path, or what is to be forgotten")]
    digest: Annotated[
        str | None, Field(description="of the preview that the user agreed to; null: preview")
    ] = None


def tools(memory: Memory, *, trust: Trust | str = Trust.AGENT) -> list[FunctionTool]:
    """Tools `remember`, `recall`, `show` and `forget` for an agent.

    Args:
        memory: stays the caller's, who closes it after the last run.
        trust: of what is remembered. Name a higher one than `agent` only where a person chose every word.

    Raises:
        ValueError: there is no such trust.
    """
    does = _Does(memory, Trust(trust))
    return [
        _tool("remember", _Remember, does.remember),
        _tool("recall", _Recall, does.recall),
        _tool("show", _Show, does.show),
        _tool("forget", _Forget, does.forget),
    ]


class _NotDone(Exception):
    """A tool could not do what it was asked; the message tells the model why."""


class _Does:
    """What the tools do; threads may share one."""

    def __init__(self, memory: Memory, trust: Trust) -> None:
        self._memory, self._trust, self._entries = memory, trust, Entries(memory.place)

    def remember(self, asked: _Remember, cancel: Cancel) -> str:
        result = self._memory.attempt(
            RememberRequest(asked.fact, asked.scope, trust=self._trust), cancel=cancel
        )
        if result.error is not None:
            raise result.error
        return result.summary

    def recall(self, asked: _Recall, cancel: Cancel) -> str:
        patience = Patience(float("inf"), cancel)
        recalled = self._memory.recall(asked.query, limit=asked.limit or 5, patience=patience)
        if recalled.error is not None:
            raise recalled.error
        return recalled.text or "Nothing in the memory is about that."

    def show(self, asked: _Show, _cancel: Cancel) -> str:
        path, kind = self._entries.at(asked.path, Verb.READ)
        if kind is None:
            raise _NotDone(f"there is no entry at {path.text}")
        held = self._entries.read(path)
        return marked(f"{path.text} (trust: {held.trust})\n{held.entry.body}")

    def forget(self, asked: _Forget, cancel: Cancel) -> str:
        is_agreed = asked.digest is not None
        request = ForgetRequest(asked.description, yes=is_agreed, trust=self._trust, digest=asked.digest)
        result = self._memory.attempt_forget(request, cancel=cancel)
        if result.error is not None:
            raise result.error
        return result.summary if is_agreed else _previewed(result)


def _tool(name: str, arguments: type[Frozen], does: Callable[[Any, Cancel], str]) -> FunctionTool:
    async def invoke(_context: ToolContext[Any], given: str) -> str:
        try:
            return await in_thread(partial(_done, name, arguments, does, given))
        except _NotDone as problem:
            return f"error: {problem}"

    schema = arguments.model_json_schema()
    return FunctionTool(name, arguments.__doc__ or "", schema, invoke)


def _done(
    name: str, arguments: type[Frozen], does: Callable[[Any, Cancel], str], given: str, cancel: Cancel
) -> str:
    """What a call comes to (O1).

    Raises:
        _NotDone: nothing.
    """
    try:
        return does(arguments.model_validate_json(given or "{}"), cancel)
    except _NotDone:
        raise
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False, include_context=False)[0]
        where = printable(".".join(str(part)[:_NAME_CHARS] for part in first["loc"]))
        raise _NotDone(
            f"{name} takes {', '.join(arguments.model_fields)}; {where or 'JSON'}: {first['msg']}"
        ) from None
    except MunimentError as error:
        if isinstance(error, _TOLD) or error.code == "forget_failed":
            raise _NotDone(f"{error} [{error.code}]") from None
        raise _NotDone(f"not done [{error.code}]{_ADVICE.get(error.code, '')}") from None
    except Exception as defect:  # noqa: BLE001  the run would end, with the words of whatever this is
        events.emit_defect("agents_tool_failed", defect, tool=name)
        raise _NotDone("the memory cannot be used now [internal]") from None


_TOLD: Final = (InvalidScope, JobError, PathEscape, Refusal, ToolError)
"""Errors whose messages are fit for a model; of others it is told the code."""

_ADVICE: Final = {
    "pending_review": ": it waits until the owner of the memory approves it; go on without",
    "store_conflict": ": somebody else was writing; try again",
}


def _previewed(preview: ForgetResult) -> str:
    kept = [f"{each.path} stays: {each.reason}" for each in preview.kept]
    if not preview.removed_entries:
        return marked("\n".join(["nothing would be forgotten", *kept]))
    going = [f"{each.path}: {one_line(each.summary)[:TOLD_CHARS]}" for each in preview.removed_entries]
    agreed = f"if they agree, call again with digest {preview.digest}."
    told = f"Nothing is forgotten yet. Show this to the user; {agreed}"
    return f"{told}\n{marked(chr(10).join([*going, *kept]))}"
