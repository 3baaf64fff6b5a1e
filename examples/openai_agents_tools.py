"""Use Muniment as function tools and instructions of the OpenAI Agents SDK.

Run this program with `python examples/openai_agents_tools.py`; it needs `pip install
'muniment[openai-agents]'`. The model is scripted, and no network is used. For a real model omit `model=`. The
tracing of the SDK is disabled, because it would send the results of the tools to OpenAI.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from agents import Agent, RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message, function_call

import muniment
from muniment.integrations.openai_agents import create_instructions, tools

CALLS = (
    ("remember", {"fact": "The user prefers dark mode in all editors", "scope": None}),
    ("recall", {"query": "which mode in editors?", "limit": None}),
    ("forget", {"description": "dark mode", "digest": None}),
    ("show", {"path": "user/../../.bashrc"}),
)


def main() -> None:
    """Run an agent, and print the result of each of its tool calls, and its instructions."""
    model = ScriptedModel(
        [
            *([function_call(name, given, call_id=name)] for name, given in CALLS),
            [assistant_message("Noted.")],
        ]
    )
    with (
        tempfile.TemporaryDirectory() as scratch,
        muniment.open(scratch, home=Path(scratch, "home")) as memory,
    ):
        memory.remember("Always answer in British English", scope="user")
        instructions = create_instructions(memory, "Be brief.")
        agent = Agent(name="assistant", model=model, instructions=instructions, tools=tools(memory))
        config = RunConfig(tracing_disabled=True)
        result = asyncio.run(Runner.run(agent, "I like dark mode.", run_config=config))
        for item in model.last_call.input:
            if item.get("type") == "function_call_output":
                print(f"--- {item['call_id']}\n{item['output']}")
        print(f"--- instructions\n{model.last_call.system_instructions}")
        print("--- model:", result.final_output)


if __name__ == "__main__":
    main()
