"""The coding tools of `coding_tools.py`: how each is started, and the settings that point it at a server.

Every tool runs in a new home, without telemetry and without updates, against a server on 127.0.0.1.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_server import ToolCall

KEY = "sk-scripted-000000000000000000000000000000"
MODEL = "scripted"
SECONDS = 120


class ToolFailed(Exception):
    """A tool ended with an error; the text is its output."""


@dataclass(frozen=True)
class Tool:
    """A coding tool and its command lines; the base class of the tools.

    Attributes:
        name: the name that `muniment setup` uses.
        package: the npm package.
        program: the name of the program.
        compact_command: the command that a user types for a compaction.
        subagent_tools: names of the tool that starts a subagent.
        subagent_arguments: arguments of this tool, except the task.
        task_member: the argument with the task of the subagent.
        usage_tokens: the tokens that the server reports; some tools compact only long conversations.
    """

    name: str
    package: str
    program: str
    compact_command: str
    subagent_tools: tuple[str, ...]
    subagent_arguments: Mapping[str, Any]
    task_member: str = "prompt"
    usage_tokens: int = 60_000

    def prepare(self, home: Path, workspace: Path, url: str) -> dict[str, str]:
        """Write the settings of the tool before `muniment setup`, and return its variables."""
        raise NotImplementedError

    def trust_hooks(self, command: list[str], workspace: Path, environment: Mapping[str, str]) -> None:
        """Trust the hooks that `muniment setup` has written, if the tool requires it."""

    def start(self, prompt: str) -> list[str]:
        """Return the arguments for a new session with one prompt."""
        raise NotImplementedError

    def resume(self, prompt: str) -> list[str]:
        """Return the arguments that continue the last session with one prompt."""
        raise NotImplementedError

    def compact(self) -> list[str] | None:
        """Return the arguments that compact the last session; None: the next prompt does, or it cannot."""
        return None

    def resume_after_compaction(self, prompt: str) -> list[str] | None:
        """Return the arguments for a prompt after a compaction; None: impossible without a terminal."""
        return self.resume(prompt)

    def call_subagent(self, tools: set[str], task: str) -> ToolCall | None:
        """Return the call that starts a subagent; None: the request offers no such tool."""
        name = next((each for each in self.subagent_tools if each in tools), None)
        return None if name is None else ToolCall(name, {**self.subagent_arguments, self.task_member: task})

    def continue_subagent(self, tools: set[str], result: str) -> ToolCall | None:
        """Return the call that follows the result of the first one; None: no further call."""
        del tools, result
        return None


class ClaudeCode(Tool):
    """Claude Code, with the messages interface of Anthropic."""

    def prepare(self, home: Path, workspace: Path, url: str) -> dict[str, str]:
        """Accept the key and the workspace, which are otherwise asked for at the first start."""
        _write_json(
            home / ".claude.json",
            {
                "hasCompletedOnboarding": True,
                "theme": "dark",
                "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
                "projects": {str(workspace): {"hasTrustDialogAccepted": True}},
            },
        )
        return {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        }

    def start(self, prompt: str) -> list[str]:
        """Return the arguments for a new session with one prompt."""
        return ["-p", prompt]

    def resume(self, prompt: str) -> list[str]:
        """Return the arguments that continue the last session with one prompt."""
        return ["-p", "--continue", prompt]

    def compact(self) -> list[str]:
        """Return the arguments that compact the last session."""
        return self.resume(self.compact_command)


class Codex(Tool):
    """Codex, with the responses interface of OpenAI."""

    def prepare(self, home: Path, workspace: Path, url: str) -> dict[str, str]:
        """Write a provider and trust the workspace."""
        directory = home / ".codex"
        directory.mkdir()
        (directory / "config.toml").write_text(
            f'model = "{MODEL}"\nmodel_provider = "{MODEL}"\ncheck_for_update_on_startup = false\n\n'
            "[analytics]\nenabled = false\n\n"
            "[features]\ndaemon_auto_start = false\n\n"
            f'[model_providers.{MODEL}]\nname = "{MODEL}"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
            'env_key = "SCRIPTED_KEY"\nrequest_max_retries = 0\nstream_max_retries = 0\n\n'
            f'[projects.{json.dumps(str(workspace))}]\ntrust_level = "trusted"\n'
        )
        return {"CODEX_HOME": str(directory), "SCRIPTED_KEY": KEY}

    def trust_hooks(self, command: list[str], workspace: Path, environment: Mapping[str, str]) -> None:
        """Trust all hooks through the app server, as the dialog `/hooks` does."""
        with subprocess.Popen(
            [*command, "app-server"],
            cwd=workspace,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as server:
            try:
                _call(server, 1, "initialize", {"clientInfo": {"name": "benchmark", "version": "1"}})
                _send(server, {"method": "initialized"})
                listed = _call(server, 2, "hooks/list", {"cwds": [str(workspace)]})
                hooks = [each for found in listed["data"] for each in found["hooks"]]
                state = {each["key"]: {"trusted_hash": each["currentHash"]} for each in hooks}
                edit = {"keyPath": "hooks.state", "value": state, "mergeStrategy": "upsert"}
                _call(server, 3, "config/batchWrite", {"edits": [edit]})
            finally:
                server.terminate()

    def start(self, prompt: str) -> list[str]:
        """Return the arguments for a new session with one prompt."""
        return ["exec", prompt]

    def resume(self, prompt: str) -> list[str]:
        """Return the arguments that continue the last session with one prompt."""
        return ["exec", "resume", "--last", prompt]

    def resume_after_compaction(self, prompt: str) -> list[str]:
        """Return arguments with a limit so low that Codex compacts the session before the prompt."""
        return ["exec", "resume", "--last", "-c", "model_auto_compact_token_limit=500", prompt]

    def continue_subagent(self, tools: set[str], result: str) -> ToolCall | None:
        """Return a call that waits for the subagent."""
        wait = next((each for each in tools if each.rpartition(".")[2] == "wait_agent"), None)
        try:
            identity = json.loads(result)["agent_id"]
        except (ValueError, TypeError, KeyError):
            return None
        return ToolCall(wait, {"targets": [identity], "timeout_ms": 20_000}) if wait else None


class QwenCode(Tool):
    """Qwen Code, with the chat completions interface of OpenAI."""

    def prepare(self, home: Path, workspace: Path, url: str) -> dict[str, str]:
        """Choose the interface, which is otherwise asked for at the first start."""
        del workspace
        _write_json(
            home / ".qwen" / "settings.json",
            {
                "security": {"auth": {"selectedType": "openai"}},
                "general": {"enableAutoUpdate": False},
                "privacy": {"usageStatisticsEnabled": False},
                "telemetry": {"enabled": False},
            },
        )
        return {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL}

    def start(self, prompt: str) -> list[str]:
        """Return the arguments for a new session with one prompt."""
        return ["--approval-mode", "yolo", prompt]

    def resume(self, prompt: str) -> list[str]:
        """Return the arguments that continue the last session with one prompt."""
        return ["--continue", prompt]

    def compact(self) -> list[str]:
        """Return the arguments that compact the last session."""
        return self.resume(self.compact_command)


class GeminiCli(Tool):
    """Gemini CLI, with the interface of Gemini."""

    def prepare(self, home: Path, workspace: Path, url: str) -> dict[str, str]:
        """Choose the interface and trust all folders."""
        del workspace
        _write_json(
            home / ".gemini" / "settings.json",
            {
                "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
                "general": {"enableAutoUpdate": False},
                "privacy": {"usageStatisticsEnabled": False},
                "telemetry": {"enabled": False},
                "model": {"name": "gemini-2.5-flash"},
            },
        )
        return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": KEY}

    def start(self, prompt: str) -> list[str]:
        """Return the arguments for a new session with one prompt."""
        return ["--approval-mode", "yolo", "-p", prompt]

    def resume(self, prompt: str) -> list[str]:
        """Return the arguments that continue the last session with one prompt."""
        return ["--resume", "latest", "-p", prompt]

    def resume_after_compaction(self, prompt: str) -> None:
        """Return None: without a terminal, Gemini CLI sends `/compress` to the model as a prompt."""
        del prompt


TOOLS = (
    ClaudeCode(
        "claude-code",
        "@anthropic-ai/claude-code",
        "claude",
        "/compact",
        ("Agent", "Task"),
        {"description": "List files", "subagent_type": "general-purpose", "run_in_background": False},
    ),
    Codex(
        "codex",
        "@openai/codex",
        "codex",
        "/compact",
        ("multi_agent_v1.spawn_agent", "spawn_agent"),
        {},
        "message",
        usage_tokens=1_000,
    ),
    QwenCode(
        "qwen-code",
        "@qwen-code/qwen-code",
        "qwen",
        "/compress",
        ("agent", "task"),
        {"description": "List files", "subagent_type": "general-purpose", "run_in_background": False},
    ),
    GeminiCli(
        "gemini-cli",
        "@google/gemini-cli",
        "gemini",
        "/compress",
        ("invoke_agent",),
        {"agent_name": "generalist"},
    ),
)


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2))


def _send(server: subprocess.Popen[str], message: Mapping[str, Any]) -> None:
    assert server.stdin is not None
    server.stdin.write(json.dumps(message) + "\n")
    server.stdin.flush()


def _call(server: subprocess.Popen[str], number: int, method: str, params: Mapping[str, Any]) -> Any:
    """Call a method of the app server and return its result."""
    _send(server, {"id": number, "method": method, "params": params})
    assert server.stdout is not None
    for line in server.stdout:
        message = json.loads(line)
        if message.get("id") == number:
            if "result" not in message:
                raise ToolFailed(line)
            return message["result"]
    raise ToolFailed(f"the app server ended before it answered {method}")
