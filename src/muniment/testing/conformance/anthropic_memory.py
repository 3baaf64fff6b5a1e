"""The local memory tool of the `anthropic` SDK as a subject.

It knows one memory, `/memories`. So there is one tool for each scope, with the scope's root as its
`memory_root`: everything else is outside of it, the other scope as well. The first part of a path, `user` or
`project`, becomes `/memories`, and whatever follows stays as the attacker wrote it: `user-evil/x.md` becomes
`/memories-evil/x.md`.

`view` reads and lists, `create` writes, `str_replace` edits; there is no search. What it raises is answered
as the SDK's own runner answers the model: the text of a `ToolError`, else the `repr` of the exception.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

from muniment.testing.corpus import Answer, Case, Committed, Inexpressible, Stage
from muniment.testing.corpus.stage import EVERYTHING, ROOTS

_LINE_NUMBER_COLUMNS = 7
"""`view` puts the number of a line, in six columns, and a tab before it."""


class AnthropicSubject:
    """Two tools over the roots of a stage.

    Attributes:
        about: the version of the SDK.

    Raises:
        ImportError: the SDK is not installed.
    """

    commits_often = True

    def __init__(self, stage: Stage, case: Case) -> None:
        tool = import_module("anthropic.tools").BetaLocalFilesystemMemoryTool
        self.about = f"anthropic {version('anthropic')}"
        self._stage, self._case = stage, case
        self._tools = {scope: tool(str(stage.state)) for scope in ROOTS}
        for scope, each in self._tools.items():
            each.memory_root = stage.scope(scope)

    def call(self, tool: str, arguments: Any) -> Answer:
        """Give the command that does the same."""
        if not isinstance(arguments, dict):
            raise Inexpressible("arguments that are no object")
        path = arguments.get("path")
        if tool == "ls" and path in EVERYTHING:
            raise Inexpressible("a listing of all scopes")
        scope, unsafe_path = _split(path) if isinstance(path, str) else (ROOTS[0], path)
        command = _command(tool, unsafe_path, arguments)
        try:
            said = str(self._tools[scope].call(command))
        except MemoryError:
            raise  # Its runner would answer, but its process has had enough.
        except Exception as error:  # noqa: BLE001 - its runner shows the model whatever a tool raises
            text = str(error) if type(error).__name__ == "ToolError" else repr(error)
            if tool == "write_file" and text.endswith("already exists") and self._case["expect"] == "allow":
                raise Inexpressible("create does not replace a file") from None
            return Answer("error", None, text, "")
        return Answer("allow", None, _content(said), said)

    def commit(self) -> Committed:
        """It writes at once."""
        return Committed(None, "")

    def close(self) -> str:
        """Nothing to end; what this process wrote on its standard streams."""
        return self._stage.log.read_text(errors="replace") if self._stage.log.exists() else ""


def _split(path: str) -> tuple[str, str]:
    """The scope that a path names, the first one if none, and the path as the tool has it."""
    logical = path.removeprefix("/").removeprefix("memories/")
    for scope in ROOTS:
        if logical.startswith(scope):
            return scope, f"/memories{logical.removeprefix(scope)}"
    return ROOTS[0], path


def _command(tool: str, path: object, arguments: dict[str, Any]) -> dict[str, Any]:
    match tool:
        case "read_file" | "ls":
            return {"command": "view", "path": path}
        case "write_file":
            return {"command": "create", "path": path, "file_text": arguments.get("content")}
        case "edit":
            old, new = arguments.get("old_string"), arguments.get("new_string")
            return {"command": "str_replace", "path": path, "old_str": old, "new_str": new}
        case _:
            raise Inexpressible(f"no {tool}")


def _content(said: str) -> str:
    """What a file holds, without the heading and the numbers; a listing as it is."""
    head, _, lines = said.partition("\n")
    if not head.endswith("with line numbers:"):
        return said
    return "\n".join(line[_LINE_NUMBER_COLUMNS:] for line in lines.split("\n"))
