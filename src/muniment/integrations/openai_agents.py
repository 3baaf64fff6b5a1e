"""Provide the memory as function tools of the OpenAI Agents SDK: `muniment[openai-agents]`.

    import muniment
    from agents import Agent
    from muniment.integrations.openai_agents import create_instructions, tools

    with muniment.open(".") as memory:
        instructions = create_instructions(memory, "Be brief.")
        agent = Agent(name="assistant", instructions=instructions, tools=tools(memory))

O1 Every call returns text. A tool that fails returns the error with its code, and does not end the run.
O2 Memory text is between marks that it cannot imitate. No result contains a host path.
O3 A remembered fact has at most the trust that the caller of `tools` gives. Entries with a higher trust are
   not forgotten.
O4 Instructions contain only entries of trust `owner`, because they are a system prompt.
O5 Only entries that the model has seen in a preview are forgotten; the digest identifies the preview.

The SDK traces arguments and results of tools, and sends them to OpenAI if it has a key for that. To disable
this, use `RunConfig(tracing_disabled=True)`. Attacked in tests/surface/library/test_agents_tools.py.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final

from pydantic import Field

from muniment.api import Memory
from muniment.cancelling import Cancel, run_in_thread
from muniment.content.gates import clean_line
from muniment.integrations.results import ToolProblem, convert_errors, quote_as_data, validate_arguments
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import MAX_PATH_BYTES, Trust, Verb
from muniment.names import MAX_RECALLED
from muniment.operations.entries import Entries
from muniment.operations.visibility import Reader, Visibility
from muniment.policy.frozen import Frozen
from muniment.recall.block import build_system_block
from muniment.store.handles import parse_handle
from muniment.types import ForgetRequest, ForgetResult

try:
    from agents import Agent, FunctionTool, RunContextWrapper
    from agents.tool_context import ToolContext
except ImportError:
    raise ImportError(
        "this module needs openai-agents 0.24; run: pip install 'muniment[openai-agents]'"
    ) from None

PREVIEW_CHARS: Final = 200
"""Maximum characters of each entry in a preview."""


class _Tool(Frozen):
    @abstractmethod
    def execute(self, memory: Memory, trust: Trust, cancel: Cancel) -> str:
        """Execute the call, and return text for the model; raise the errors of the memory."""


class _Remember(_Tool):
    """Store one durable fact beyond this conversation, in one or two sentences. Never a secret."""

    fact: str
    scope: Annotated[str | None, Field(description="user or project; null: the memory chooses")] = None

    def execute(self, memory: Memory, trust: Trust, cancel: Cancel) -> str:
        result = memory.remember(self.fact, scope=self.scope, trust=trust, cancel=cancel)
        return "\n".join([result.summary, *(f"similar: {each.path}" for each in result.similar)])


class _Recall(_Tool):
    """Search for facts, preferences and decisions before you answer anything that may depend on them."""

    query: Annotated[str, Field(description="a message, or words to search for")]
    limit: Annotated[int | None, Field(ge=1, le=MAX_RECALLED, description="maximum entries; null: five")] = (
        None
    )

    def execute(self, memory: Memory, _: Trust, cancel: Cancel) -> str:
        deadline = Deadline(float("inf"), cancel)
        recalled = memory.recall(self.query, limit=self.limit or 5, deadline=deadline)
        if recalled.error is not None:
            raise recalled.error
        return recalled.text or "No entry matches."


class _Show(_Tool):
    """Read one complete entry of the memory."""

    path: Annotated[str, Field(max_length=MAX_PATH_BYTES, description="path or handle, as in recall")]

    def execute(self, memory: Memory, trust: Trust, _cancel: Cancel) -> str:
        entries, text = Entries(memory.context), self.path
        if parse_handle(text) is not None:
            text = Visibility(memory.context, Reader(trust)).resolve_entry(text, recallable_only=True).text
        path, _kind = entries.resolve(text, Verb.READ)
        stored = entries.read(path)
        return quote_as_data(f"{path.text} (trust: {stored.trust})\n{stored.entry.body}")


class _Forget(_Tool):
    """Remove the entries that match a description, if the user asks for it. Without digest: preview only."""

    description: Annotated[str, Field(description="a path, or a description of what to forget")]
    digest: Annotated[
        str | None, Field(description="of the preview that the user accepted; null: preview")
    ] = None

    def execute(self, memory: Memory, trust: Trust, cancel: Cancel) -> str:
        is_agreed = self.digest is not None
        request = ForgetRequest(self.description, dry_run=not is_agreed, trust=trust, digest=self.digest)
        result = memory.try_forget(request, cancel=cancel)
        if result.error is not None:
            raise result.error
        return result.summary if is_agreed else _format_preview(result)


def create_instructions(
    memory: Memory, base: str = "", *, budget: int | None = None
) -> Callable[[RunContextWrapper[Any], Agent[Any]], Awaitable[str]]:
    """Return a function for `Agent(instructions=…)` that adds the owner's standing facts to a text.

    The SDK calls the function before each call of the model, so that new facts are in the next one. For the
    same facts, the text is the same. If the memory cannot be read, the function returns only `base`.

    Args:
        memory: an open memory; the caller closes it after the last run.
        base: the instructions of the agent itself.
        budget: maximum tokens of the facts, as for `Memory.standing_context`.
    """

    def read_facts(cancel: Cancel) -> str:
        recalled = memory.standing_context(budget, deadline=Deadline(float("inf"), cancel))
        owned = [each for each in recalled.entries if each.trust is Trust.OWNER]
        facts = build_system_block(owned, recalled.tokens, memory.recaller.count).text
        return "\n\n".join(filter(None, [base, facts]))

    async def build_instructions(_context: RunContextWrapper[Any], _agent: Agent[Any]) -> str:
        return await run_in_thread(read_facts)

    return build_instructions


def tools(memory: Memory, *, trust: Trust | str = Trust.AGENT) -> list[FunctionTool]:
    """Return the tools `remember`, `recall`, `show` and `forget` for an agent.

    Args:
        memory: an open memory; the caller closes it after the last run.
        trust: the trust of facts that the agent remembers. Give a higher trust than `agent` only if a person
            chose every word.

    Raises:
        ValueError: the trust is unknown.
    """
    return [_create_tool(each, memory, Trust(trust)) for each in (_Remember, _Recall, _Show, _Forget)]


def _create_tool(arguments_type: type[_Tool], memory: Memory, trust: Trust) -> FunctionTool:
    name = arguments_type.__name__.strip("_").lower()

    def execute_call(arguments: str, cancel: Cancel) -> str:
        try:
            with convert_errors("agents_tool_failed", tool=name):
                return validate_arguments(name, arguments_type, _parse_arguments(arguments)).execute(
                    memory, trust, cancel
                )
        except ToolProblem as problem:  # Otherwise the run would end (O1).
            return f"error: {problem.text_with_code}"

    async def invoke(_context: ToolContext[Any], arguments: str) -> str:
        return await run_in_thread(partial(execute_call, arguments))

    return FunctionTool(name, arguments_type.__doc__ or "", arguments_type.model_json_schema(), invoke)


def _parse_arguments(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call, parsed from JSON.

    Raises:
        ToolProblem: the text is not a JSON object.
    """
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ToolProblem("bad_arguments", "the arguments are not a JSON object")
    return found


def _format_preview(preview: ForgetResult) -> str:
    unchanged = [f"{each.path} stays: {each.reason}" for each in preview.kept]
    if not preview.removed_entries:
        return quote_as_data("\n".join(["nothing would be forgotten", *unchanged]))
    removed = [f"{each.path}: {clean_line(each.summary)[:PREVIEW_CHARS]}" for each in preview.removed_entries]
    next_step = f"if they agree, call again with digest {preview.digest}."
    instruction = f"Nothing was forgotten yet. Show this to the user; {next_step}"
    return f"{instruction}\n{quote_as_data(chr(10).join([*removed, *unchanged]))}"
