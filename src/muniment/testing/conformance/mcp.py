"""A filesystem server of the Model Context Protocol as a subject.

Its allowed directories are the two roots, added to its command unless that has a placeholder. It is told host
paths, since that is how such a server is spoken to: a path that begins like a scope is put where the scopes
are, and stays as the attacker wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from muniment.testing.conformance.mcp_client import Server, ServerRefused
from muniment.testing.corpus import Answer, Committed, Inexpressible, Stage
from muniment.testing.corpus.stage import EVERYTHING, ROOTS

NAMES: Final[Mapping[str, Sequence[str]]] = {
    "read_file": ("read_text_file", "read_file"),
    "ls": ("list_directory",),
    "write_file": ("write_file",),
    "edit": ("edit_file",),
}
"""What each tool is called there, the preferred name first. A search in contents there is not."""


class McpSubject:
    """A server over the roots of a stage.

    Attributes:
        about: name and version that the server gives.
    """

    commits_often = True

    def __init__(self, stage: Stage, command: Sequence[str]) -> None:
        self._stage = stage
        self._server = Server(command, {}, own_session=False)
        self.about = self._server.name
        try:
            listed = self._server.ask("tools/list", {}).get("tools", [])
        except BaseException:
            self._server.close()
            raise
        self._offers = {tool["name"] for tool in listed}

    def call(self, tool: str, arguments: Any) -> Answer:
        """Call the tool of the server that does the same."""
        name = next((name for name in NAMES.get(tool, ()) if name in self._offers), None)
        if name is None:
            raise Inexpressible(f"no {tool}")
        if not isinstance(arguments, dict):
            raise Inexpressible("arguments that are no object")
        if tool == "ls" and arguments.get("path") in EVERYTHING:
            raise Inexpressible("a listing of all scopes")
        try:
            result = self._server.ask("tools/call", {"name": name, "arguments": self._translated(arguments)})
        except ServerRefused as refused:
            return Answer("error", None, str(refused), "")
        texts = [str(part.get("text", "")) for part in result.get("content", ())]
        verdict = "error" if result.get("isError") else "allow"
        return Answer(verdict, None, "\n".join(texts), json.dumps(result))

    def _translated(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        told = dict(arguments)
        if isinstance(path := told.get("path"), str):
            logical = path.removeprefix("/").removeprefix("memories/")
            told["path"] = f"{self._stage.tree}/{logical}" if logical.startswith(ROOTS) else path
        if "old_string" in told or "new_string" in told:
            told["edits"] = [
                {"oldText": told.pop("old_string", None), "newText": told.pop("new_string", None)}
            ]
        return told

    def commit(self) -> Committed:
        """It writes at once."""
        return Committed(None, "")

    def close(self) -> str:
        """End it; what it wrote on standard error, within a driver."""
        self._server.close()
        return self._stage.log.read_text(errors="replace") if self._stage.log.exists() else ""
