"""The targets of the attack kit, which are memory tools, and how to select them.

    muniment           a `Sandbox` with a worker
    anthropic          the local memory tool of the `anthropic` SDK, if that is installed
    mcp=COMMAND        a filesystem server of the Model Context Protocol over stdio
    command=COMMAND    any program that reads and writes the JSON lines of `muniment tool`

In a COMMAND, `{user}`, `{project}` and `{state}` are replaced by directories of the case. For programs that
read Muniment policies, `{policy}` is replaced by a file with the required policy, and `{symlinks}` by
`refuse` or `beneath`. A command is split as in a shell but started without a shell, in a throwaway directory.
If a word of it is a file in the current directory, the word is replaced by the absolute path.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, Self

from muniment.names import __version__
from muniment.testing.corpus import (
    CallResult,
    Case,
    CaseOutcome,
    CommitOutcome,
    Failure,
    FailureKind,
    Stage,
    Subject,
    UnsupportedCall,
)
from muniment.testing.corpus.stage import ALL_SCOPES_PATHS, ROOTS
from muniment.testing.corpus.subjects import JsonLinesSubject, SandboxSubject, choose_symlinks, write_policy

# -- claims ------------------------------------------------------------------------------------------
#
# The claims of the authors of each tool, so that no tool is blamed for a promise that it never made.
#
# They are taken from documentation and code of the listed versions, in our words. A class that the authors do
# not mention counts as claimed if they mention its subject: names, links, or the target of a path.


@dataclass(frozen=True, slots=True)
class Claims:
    """The threat model of a tool, as its authors claim it.

    Attributes:
        covers: the claims of the authors, in a sentence or two.
        exclusions: the authors' exclusions, in a sentence; empty without exclusions.
        excluded: classes and ids of cases that are outside the claims.
        hides_paths: whether the authors claim that the output contains no host paths.
        sources: documents with the claims.
    """

    covers: str
    exclusions: str = ""
    excluded: frozenset[str] = frozenset()
    hides_paths: bool = True
    sources: tuple[str, ...] = ()

    def exclude(self, case: Case, bad: Collection[FailureKind]) -> bool:
        """Return whether the failures of a case are outside the claims.

        Args:
            case: the case.
            bad: the kinds of failure that made the outcome of the case a bad one.
        """
        if set(bad) == {FailureKind.PATH} and not self.hides_paths:
            return True
        return bool({case["class"], case["id"]} & self.excluded)


MUNIMENT: Final = Claims(
    covers="Every class of the corpus, also while another process of the same user exchanges names.",
    sources=("threat-model/README.md",),
)

ANTHROPIC: Final = Claims(
    covers=(
        "A model's path that leaves /memories, by .. or a symbolic link: it is resolved and compared with "
        "the root. Other users of the machine: files are made 0600, directories 0700. A file is opened "
        "without following a link at its own name, and only a regular one is read."
    ),
    exclusions=(
        "A process that races the tool's own system calls, and the size of what is read, as the store "
        "documents; hard links, which are regular files; a root that is replaced while the tool uses it; "
        "host paths in messages of the system."
    ),
    excluded=frozenset({"race", "hardlink", "root", "late-change", "disk-huge-read", "own-sparse-edit"}),
    hides_paths=False,
    sources=(
        "docs.claude.com/en/docs/agents-and-tools/tool-use/memory-tool: operations must stay in /memories",
        "anthropic 2.12.0, lib/tools/_beta_builtin_memory_tool.py: _validate_path, _secure_mkdir",
        "anthropic 2.12.0, lib/tools/_file_store.py: docstring, open_regular_file",
    ),
)

MCP_FILESYSTEM: Final = Claims(
    covers=(
        "All operations are restricted to the allowed directories: the path is resolved, links included, and "
        "compared. A link that is put at a file's own name between check and write is not written through."
    ),
    exclusions=(
        "Directories that are exchanged between check and use, races of reads, hard links, special files, a "
        "replaced root, sizes, host paths, and walls between allowed directories. The servers are reference "
        "implementations, in their authors' words not production-ready."
    ),
    excluded=frozenset(
        {"race", "hardlink", "special-file", "root", "late-change", "cross-scope", "content-huge"}
        | {"disk-huge-read"}
    ),
    hides_paths=False,
    sources=(
        "github.com/modelcontextprotocol/servers, SECURITY.md",
        '@modelcontextprotocol/server-filesystem 2026.8.31, README.md, "Directory Access Control"',
        "the same, dist/lib.js: validatePath, writeFileContent, applyFileEdits",
    ),
)

UNKNOWN: Final = Claims(covers="The claims of its authors, which the kit does not know; nothing is marked.")


# -- outcome -----------------------------------------------------------------------------------------
#
# Rules for the outcome of a case:
#
# 1. The outcome is the worst, in the order of `CaseOutcome`, that any failure means; `held` without failures.
# 2. Each kind of failure defines its outcome.
# 3. A call that had to succeed and failed is `broken` only if the case requires success and accepts nothing
#    else.
# 4. A tool that never promised our wording, an index, separate scopes or logical paths is not blamed for
#    other wording, a missing index, a change in another scope (if it got both), or host paths in its output.


@dataclass(frozen=True, slots=True)
class Promises:
    """The promises of a tool in addition to staying inside its roots.

    Attributes:
        is_exact: the tool does exactly what the corpus requires, including verdicts and codes, and reads
            nothing outside its roots at the start.
        separates_scopes: a call on one scope does not change the other.
        hides_paths: the output of the tool contains no host paths.
        keeps_index: each scope has an index of its entries.
    """

    is_exact: bool = False
    separates_scopes: bool = True
    hides_paths: bool = True
    keeps_index: bool = True


ORDINARY: Final = Promises()


def judge_outcome(case: Case, failures: Iterable[Failure], promises: Promises = ORDINARY) -> CaseOutcome:
    """Return the outcome of a case.

    Args:
        case: the case.
        failures: the failures that `run_case` or a driver reported.
        promises: the promises of the tool; a failure against another requirement counts less.
    """
    found = {_map_failure(case, failure.kind, promises) for failure in failures}
    return next(outcome for outcome in CaseOutcome if outcome in {*found, CaseOutcome.PASSED})


def _map_failure(case: Case, kind: FailureKind, promises: Promises) -> CaseOutcome:
    if kind in {FailureKind.WORDING, FailureKind.READ_AT_START} and not promises.is_exact:
        return CaseOutcome.PASSED
    if kind is FailureKind.PATH and not promises.hides_paths:
        return CaseOutcome.PASSED
    if kind is FailureKind.INDEX and not promises.keeps_index:
        return CaseOutcome.PASSED
    if kind is FailureKind.CROSSED and not promises.separates_scopes:
        return CaseOutcome.DIFFERS
    outcome = kind.outcome
    must_succeed = {case["expect"], *case.get("accept", ())} == {"allow"}
    return CaseOutcome.DIFFERS if outcome is CaseOutcome.BROKEN and not must_succeed else outcome


# -- mcp client --------------------------------------------------------------------------------------
#
# A client of the Model Context Protocol over a server's standard input and output: enough to call tools.
# Source: the specification of 2025-06-18, "stdio" and "tools". Notifications and requests of the server are
# skipped; a request of the server gets no response.

PROTOCOL: Final = "2025-06-18"

RESPONSE_SECONDS: Final = 60.0
"""Seconds to wait for one response: `npx` may have to download the server first."""

EXIT_SECONDS: Final = 10.0
"""Seconds that a server has to exit after the end of its input."""


class ServerError(RuntimeError):
    """The server responded to a request with an error."""


class ServerLost(RuntimeError):
    """The server ended, did not respond, or sent an invalid message."""


class Server:
    """A running MCP server, used over its standard input and output.

    Args:
        command: the command that starts the server.
        environment: variables in addition to those of this process.
        own_session: whether the server gets a separate session, all of whose processes are killed with it.
            Within a driver of the corpus it stays in the driver's session, which is killed when a case hangs.

    Attributes:
        pid: id of the started process.
        name: the name and version that the server reports.

    Raises:
        OSError: the server cannot be started.
        ServerLost: the server does not use the protocol.
        ServerError: the server uses another version of the protocol.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, own_session: bool = True
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the caller's own command
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=own_session,
        )
        self.pid = self._process.pid
        self._has_own_session = own_session
        self._request_id, self._unread = 0, b""
        about = {"name": "muniment", "version": __version__}
        params = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": about}
        try:
            info = self.request("initialize", params).get("serverInfo", {})
            self._send({"method": "notifications/initialized"})
        except BaseException:
            self.close()
            raise
        self.name = f"{info.get('name', 'unnamed server')} {info.get('version', '')}".strip()

    def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool of the server and wait for its result.

        Raises:
            ServerError: the tool failed.
            ServerLost: the server ended, did not respond, or sent an invalid message.
        """
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        if result.get("isError"):
            raise ServerError(f"{tool} failed: {result}")
        return result

    def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its result.

        Raises:
            ServerError: the response is an error.
            ServerLost: the server ended, did not respond, or sent an invalid message.
        """
        self._request_id += 1
        self._send({"id": self._request_id, "method": method, "params": params})
        while (message := self._read_message()).get("id") != self._request_id or "method" in message:
            pass
        result = message.get("result")
        if not isinstance(result, dict):
            raise ServerError(f"{method} failed: {message}")
        return result

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        remaining = memoryview(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        try:
            while remaining:
                remaining = remaining[self._process.stdin.write(remaining) :]
        except BrokenPipeError:
            raise ServerLost("the server ended; see its standard error") from None

    def _read_message(self) -> dict[str, Any]:
        line = self._read_line()
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ServerLost(f"the server sent an invalid message: {line[:200]!r}")
        return message

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], RESPONSE_SECONDS)[0]:
                raise ServerLost(f"no response in {RESPONSE_SECONDS} s")
            if not (block := self._process.stdout.read(1 << 16)):
                raise ServerLost("the server ended; see its standard error")
            self._unread += block
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def close(self) -> None:
        """Stop the server. If it does not exit and has a separate session, kill that whole session."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        self._process.stdin.close()
        try:
            self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            if self._has_own_session:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


# -- mcp ---------------------------------------------------------------------------------------------
#
# A filesystem server of the Model Context Protocol as a subject. Its allowed directories are the two roots,
# appended to its command unless the command has a placeholder. Such a server expects host paths: a path that
# starts with a scope is prefixed with the directory of the scopes, and the rest stays as the attacker wrote
# it.

MCP_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "read_file": ("read_text_file", "read_file"),
    "ls": ("list_directory",),
    "write_file": ("write_file",),
    "edit": ("edit_file",),
}
"""For each tool of the corpus, the names of the equivalent tool in MCP servers; the preferred name is first.

Such servers have no search in the contents of files.
"""


class _DirectWriter:
    """The common part of the adapters of tools that write files immediately."""

    commits_often = True

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def commit(self) -> CommitOutcome:
        """Do nothing, because the tool writes immediately."""
        return CommitOutcome(None, "")

    def close(self) -> str:
        """Return the output on this process's standard streams, if a driver recorded it."""
        return self._stage.log.read_text(errors="replace") if self._stage.log.exists() else ""

    @staticmethod
    def _require_named(tool: str, arguments: Any) -> dict[str, Any]:
        """Return the arguments of a call. They must be an object and concern one scope.

        Raises:
            UnsupportedCall: the arguments are not an object, or request a listing of all scopes.
        """
        if not isinstance(arguments, dict):
            raise UnsupportedCall("arguments that are not an object")
        if tool == "ls" and arguments.get("path") in ALL_SCOPES_PATHS:
            raise UnsupportedCall("a listing of all scopes")
        return arguments


class McpSubject(_DirectWriter):
    """The adapter for an MCP server, over the roots of a stage.

    Attributes:
        about: name and version that the server reports.
    """

    def __init__(self, stage: Stage, command: Sequence[str]) -> None:
        super().__init__(stage)
        self._server = Server(command, {}, own_session=False)
        self.about = self._server.name
        try:
            listed = self._server.request("tools/list", {}).get("tools", [])
        except BaseException:
            self._server.close()
            raise
        self._offered = {tool["name"] for tool in listed}

    def call(self, tool: str, arguments: Any) -> CallResult:
        """Call the equivalent tool of the server.

        Raises:
            UnsupportedCall: the server has no such tool.
        """
        name = next((name for name in MCP_NAMES.get(tool, ()) if name in self._offered), None)
        if name is None:
            raise UnsupportedCall(f"no {tool}")
        translated = self._translate(self._require_named(tool, arguments))
        try:
            result = self._server.request("tools/call", {"name": name, "arguments": translated})
        except ServerError as error:
            return CallResult("error", None, str(error), "")
        texts = [str(part.get("text", "")) for part in result.get("content", ())]
        verdict = "error" if result.get("isError") else "allow"
        return CallResult(verdict, None, "\n".join(texts), json.dumps(result))

    def _translate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        translated = dict(arguments)
        if isinstance(path := translated.get("path"), str):
            logical = path.removeprefix("/").removeprefix("memories/")
            translated["path"] = f"{self._stage.tree}/{logical}" if logical.startswith(ROOTS) else path
        if "old_string" in translated or "new_string" in translated:
            translated["edits"] = [
                {"oldText": translated.pop("old_string", None), "newText": translated.pop("new_string", None)}
            ]
        return translated

    def close(self) -> str:
        """Stop the server; return the output on this process's standard streams, if a driver recorded it."""
        self._server.close()
        return super().close()


# -- anthropic memory --------------------------------------------------------------------------------
#
# The local memory tool of the `anthropic` SDK as a subject. It has one memory, `/memories`. Therefore each
# scope gets one tool, with the scope's root as its `memory_root`: every other path is outside, including the
# other scope. The first part of a path, `user` or `project`, becomes `/memories`, and the rest stays as the
# attacker wrote it: `user-evil/x.md` becomes `/memories-evil/x.md`. `view` reads and lists, `create` writes,
# `str_replace` edits; a search is missing. Exceptions become the same text that the SDK's own runner returns
# to the model: the text of a `ToolError`, otherwise the `repr` of the exception.

_LINE_NUMBER_COLUMNS = 7
"""Columns before a line in the output of `view`: six for its number, and a tab."""


class AnthropicSubject(_DirectWriter):
    """The adapter for the memory tool of the `anthropic` SDK: one tool for each root of a stage.

    Attributes:
        about: the version of the SDK.

    Raises:
        ImportError: the SDK is not installed.
    """

    def __init__(self, stage: Stage, case: Case) -> None:
        super().__init__(stage)
        tool = import_module("anthropic.tools").BetaLocalFilesystemMemoryTool
        self.about = f"anthropic {version('anthropic')}"
        self._case = case
        self._tools = {scope: tool(str(stage.state)) for scope in ROOTS}
        for scope, each in self._tools.items():
            each.memory_root = stage.get_scope_path(scope)

    def call(self, tool: str, arguments: Any) -> CallResult:
        """Run the equivalent command of the memory tool.

        Raises:
            UnsupportedCall: the memory tool has no such command.
        """
        path = self._require_named(tool, arguments).get("path")
        scope, unsafe_path = _split_path(path) if isinstance(path, str) else (ROOTS[0], path)
        command = _build_command(tool, unsafe_path, arguments)
        try:
            output = str(self._tools[scope].call(command))
        except MemoryError:
            raise  # Its runner would respond, but its process is out of memory.
        except Exception as error:  # noqa: BLE001 - its runner returns any exception of a tool to the model
            text = str(error) if type(error).__name__ == "ToolError" else repr(error)
            if tool == "write_file" and text.endswith("already exists") and self._case["expect"] == "allow":
                raise UnsupportedCall("create does not replace a file") from None
            return CallResult("error", None, text, "")
        return CallResult("allow", None, _extract_content(output), output)


def _split_path(path: str) -> tuple[str, str]:
    """Return the scope in a path (the first scope if it is missing), and the path for the memory tool."""
    logical = path.removeprefix("/").removeprefix("memories/")
    for scope in ROOTS:
        if logical.startswith(scope):
            return scope, f"/memories{logical.removeprefix(scope)}"
    return ROOTS[0], path


def _build_command(tool: str, path: object, arguments: dict[str, Any]) -> dict[str, Any]:
    match tool:
        case "read_file" | "ls":
            return {"command": "view", "path": path}
        case "write_file":
            return {"command": "create", "path": path, "file_text": arguments.get("content")}
        case "edit":
            old, new = arguments.get("old_string"), arguments.get("new_string")
            return {"command": "str_replace", "path": path, "old_str": old, "new_str": new}
        case _:
            raise UnsupportedCall(f"no {tool}")


def _extract_content(output: str) -> str:
    """Return the content of a file from the output of `view`, without heading and line numbers.

    A listing is returned unchanged.
    """
    head, _, lines = output.partition("\n")
    if not head.endswith("with line numbers:"):
        return output
    return "\n".join(line[_LINE_NUMBER_COLUMNS:] for line in lines.split("\n"))


# -- targets -----------------------------------------------------------------------------------------

TargetKind = Literal["muniment", "anthropic", "mcp", "command"]

COMMON_VARIANTS: Final = frozenset({"outside_changes", "dotfiles"})
"""Variants of the corpus policy that a tool without policies fulfils anyway."""

INDEX_CLASS: Final = "index-forgery"
"""The class of cases that are not attacks on a tool without an index."""

POLICIES: Final = frozenset({"readonly", "limits", "quota"})


@dataclass(frozen=True, slots=True)
class Target:
    """A memory tool to be tested.

    Attributes:
        name: a short name, for the heading of a column.
        spec: name of the tool on the command line.
        kind: kind of the tool's interface.
        command: the command that starts the tool, split, with placeholders; empty if no process is started.
        claims: threat model of the tool.
        tools: the tools of the corpus that it supports.
        variants: the variants of the corpus policy that it supports.
    """

    name: str
    spec: str
    kind: TargetKind
    command: tuple[str, ...]
    claims: Claims
    tools: frozenset[str]
    variants: frozenset[str]

    @property
    def promises(self) -> Promises:
        """Return the promises of the tool. An MCP server does not separate the roots and shows host paths."""
        return Promises(
            is_exact=self.kind == "muniment",
            separates_scopes=self.kind != "mcp",
            hides_paths=self.kind != "mcp",
            keeps_index=self.kind in {"muniment", "command"},
        )

    def find_missing(self, case: Case) -> str | None:
        """Return a requirement of a case that the tool does not meet, or None if it meets all."""
        for call in (*case.get("first", ()), case["call"]):
            if call["tool"] in ALL_TOOLS - self.tools:
                return f"no {call['tool']}"
        if case["class"] == INDEX_CLASS and not self.promises.keeps_index:
            return "no index"
        missing = sorted(case.get("policy", {}).keys() - self.variants)
        return f"no policy for {missing[0]}" if missing else None

    def open(self, stage: Stage, case: Case) -> Subject:
        """Bind the tool to the roots of a stage, and return its adapter."""
        match self.kind:
            case "muniment":
                return SandboxSubject(stage, case, in_process=False)
            case "anthropic":
                return AnthropicSubject(stage, case)
            case "mcp":
                command = fill_placeholders(self.command, stage, case)
                roots = (
                    () if command != self.command else (str(stage.get_scope_path(scope)) for scope in ROOTS)
                )
                return McpSubject(stage, [*command, *roots])
            case "command":
                return JsonLinesSubject(stage, fill_placeholders(self.command, stage, case))


ALL_TOOLS: Final = frozenset({"read_file", "grep", "ls", "write_file", "edit"})


def parse_target(spec: str) -> Target:
    """Return the target that a text on the command line specifies.

    Raises:
        ValueError: unknown target; the message lists the known ones.
    """
    kind, _, text = spec.partition("=")
    match kind:
        case "muniment" if not text:
            return Target(
                kind, spec, kind, (), MUNIMENT, ALL_TOOLS, COMMON_VARIANTS | POLICIES | {"symlinks"}
            )
        case "anthropic" if not text:
            return Target(kind, spec, kind, (), ANTHROPIC, ALL_TOOLS - {"grep"}, COMMON_VARIANTS)
        case "mcp" if text.strip():
            tools = frozenset(MCP_NAMES)
            return Target("mcp", spec, kind, _split_command(text), MCP_FILESYSTEM, tools, COMMON_VARIANTS)
        case "command" if text.strip():
            variants = COMMON_VARIANTS | (POLICIES if "{policy}" in text else set())
            variants |= {"symlinks"} if "{symlinks}" in text else set()
            return Target("command", spec, kind, _split_command(text), UNKNOWN, ALL_TOOLS, variants)
        case _:
            raise ValueError(
                f"unknown target {spec!r}; use muniment, anthropic, mcp=COMMAND or command=COMMAND"
            )


def fill_placeholders(command: Sequence[str], stage: Stage, case: Case) -> tuple[str, ...]:
    """Return a command with its placeholders replaced.

    The policy of the case is written to a file only if the command contains `{policy}`.
    """
    values = {scope: str(stage.get_scope_path(scope)) for scope in ROOTS}
    values |= {"state": str(stage.state), "symlinks": choose_symlinks(case)}
    if any("{policy}" in word for word in command):
        values["policy"] = str(write_policy(stage, case, require="partial"))
    arguments = []
    for word in command:
        for name, value in values.items():
            word = word.replace(f"{{{name}}}", value)  # noqa: PLW2901 - one after the other
        arguments.append(word)
    return tuple(arguments)


def _split_command(text: str) -> tuple[str, ...]:
    try:
        arguments = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"invalid command {text!r}: {error}") from None
    return tuple(str(Path(word).absolute()) if Path(word).is_file() else word for word in arguments)
