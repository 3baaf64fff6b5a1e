"""What the kit can be pointed at, and how each is named.

    muniment           a `Sandbox` with a worker
    anthropic          the local memory tool of the `anthropic` SDK, if that is installed
    mcp=COMMAND        a filesystem server of the Model Context Protocol over stdio
    command=COMMAND    any program that speaks the JSON lines of `muniment tool`

In a COMMAND `{user}`, `{project}` and `{state}` stand for directories of the case. For programs that read our
policies `{policy}` stands for a file with the one that it asks for, `{symlinks}` for `refuse` or `beneath`.
A command is split as a shell would, and started without one, in a throwaway directory: a word that names a
file here and now is made absolute.
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
    Answer,
    Case,
    CaseOutcome,
    Committed,
    Failure,
    Inexpressible,
    Kind,
    Stage,
    Subject,
)
from muniment.testing.corpus.stage import EVERYTHING, ROOTS
from muniment.testing.corpus.subjects import JsonLinesSubject, SandboxSubject, symlinks, write_policy

# -- claims ------------------------------------------------------------------------------------------
#
# What each tool's own authors say that it covers, so that nobody is blamed for what they never claimed.
#
# Taken from their documentation and code, as of the versions named; the words are ours. Where they are
# silent, a class is theirs if they speak of what it attacks at all: names, links, and what a path leads to.


@dataclass(frozen=True, slots=True)
class Claims:
    """A tool's own threat model.

    Attributes:
        covers: what it claims, in a sentence or two.
        leaves_out: what it does not, in one; empty: nothing.
        beyond: classes, and single cases, of the corpus that lie outside of it.
        hides_paths: whether it claims that no host path comes out.
        sources: where that is said.
    """

    covers: str
    leaves_out: str = ""
    beyond: frozenset[str] = frozenset()
    hides_paths: bool = True
    sources: tuple[str, ...] = ()

    def leave_out(self, case: Case, bad: Collection[Kind]) -> bool:
        """Whether what was seen in a case lies outside of what is claimed.

        Args:
            case: that was run.
            bad: the kinds of failure that made its outcome a bad one.
        """
        if set(bad) == {Kind.PATH} and not self.hides_paths:
            return True
        return bool({case["class"], case["id"]} & self.beyond)


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
    leaves_out=(
        "A process that races the tool's own system calls, and the size of what is read, as the store "
        "beneath says; hard links, which are regular files; a root that is replaced while the tool has it; "
        "host paths in messages of the system."
    ),
    beyond=frozenset({"race", "hardlink", "root", "late-change", "disk-huge-read", "own-sparse-edit"}),
    hides_paths=False,
    sources=(
        "docs.claude.com/en/docs/agents-and-tools/tool-use/memory-tool: operations are to stay in /memories",
        "anthropic 2.12.0, lib/tools/_beta_builtin_memory_tool.py: _validate_path, _secure_mkdir",
        "anthropic 2.12.0, lib/tools/_file_store.py: docstring, open_regular_file",
    ),
)

MCP_FILESYSTEM: Final = Claims(
    covers=(
        "All operations are restricted to the allowed directories: the path is resolved, links included, and "
        "compared. A link that is put at a file's own name between check and write is not written through."
    ),
    leaves_out=(
        "Directories that are exchanged between check and use, races of reads, hard links, special files, a "
        "replaced root, sizes, host paths, and walls between allowed directories. The servers are reference "
        "implementations, in their authors' words not production-ready."
    ),
    beyond=frozenset(
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

UNKNOWN: Final = Claims(covers="What its authors say; the kit does not know it and marks nothing.")


# -- outcome -----------------------------------------------------------------------------------------
#
# What the failures of a case come to.
#
# 1. The outcome is the first of `CaseOutcome`, in the order there, that any failure leads to; `held` if none
#    does.
# 2. Each kind of failure says where it leads.
# 3. What was to succeed and did not is `broken` only where the case asks for success and accepts nothing
#    else.
# 4. Of a tool that never promised our wording, an index, separate scopes or logical paths, nobody is blamed
#    for other wording, a missing index, a change in another scope (if it was given both), or host paths in
#    its answers.


@dataclass(frozen=True, slots=True)
class Promises:
    """What a tool is held to beyond staying inside.

    Attributes:
        is_exact: every word of the corpus: its verdicts, its codes, and no look around when it starts.
        separates_scopes: that a call on one scope leaves the other alone.
        hides_paths: that no host path comes out.
        keeps_index: that there is an index of what is in each scope.
    """

    is_exact: bool = False
    separates_scopes: bool = True
    hides_paths: bool = True
    keeps_index: bool = True


ORDINARY: Final = Promises()


def outcome_of(case: Case, failures: Iterable[Failure], promises: Promises = ORDINARY) -> CaseOutcome:
    """What a case came to.

    Args:
        case: that was run.
        failures: what `run_case` or a driver told of it.
        promises: of the tool that it was run against.
    """
    found = {_meaning(case, failure.kind, promises) for failure in failures}
    return next(outcome for outcome in CaseOutcome if outcome in {*found, CaseOutcome.HELD})


def _meaning(case: Case, kind: Kind, promises: Promises) -> CaseOutcome:
    if kind in {Kind.WORDING, Kind.LOOKED} and not promises.is_exact:
        return CaseOutcome.HELD
    if kind is Kind.PATH and not promises.hides_paths:
        return CaseOutcome.HELD
    if kind is Kind.INDEX and not promises.keeps_index:
        return CaseOutcome.HELD
    if kind is Kind.CROSSED and not promises.separates_scopes:
        return CaseOutcome.DIFFERS
    means = kind.means
    has_to_succeed = {case["expect"], *case.get("accept", ())} == {"allow"}
    return CaseOutcome.DIFFERS if means is CaseOutcome.BROKEN and not has_to_succeed else means


# -- mcp client --------------------------------------------------------------------------------------
#
# A client of the Model Context Protocol over a server's standard input and output: enough to call tools.
#
# Source: the specification of 2025-06-18, "stdio" and "tools". Notifications and requests of the server are
# passed over; a server that waits for an answer to its own request gets none.

PROTOCOL: Final = "2025-06-18"

ANSWER_SECONDS: Final = 60.0
"""Seconds for one answer: `npx` may have to fetch the server first."""

ENDING_SECONDS: Final = 10.0
"""Seconds for a server to end once its input has ended."""


class ServerRefused(RuntimeError):
    """The server answered a request with an error."""


class ServerLost(RuntimeError):
    """The server ended, kept silent, or sent what is no message."""


class Server:
    """A server that runs.

    Args:
        command: what starts it.
        environment: in addition to ours.
        own_session: whether it gets a session of its own, which is ended with it. Within a driver of the
            corpus it stays in the driver's, which is ended when a case hangs.

    Attributes:
        pid: of the process that was started.
        name: what it calls itself, with its version.

    Raises:
        OSError: it cannot be started.
        ServerLost: it does not speak the protocol.
        ServerRefused: it speaks another version.
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
        self._own_session = own_session
        self._asked, self._unread = 0, b""
        about = {"name": "muniment", "version": __version__}
        asked = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": about}
        try:
            told = self.ask("initialize", asked).get("serverInfo", {})
            self._send({"method": "notifications/initialized"})
        except BaseException:
            self.close()
            raise
        self.name = f"{told.get('name', 'a server without a name')} {told.get('version', '')}".strip()

    def call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool, and wait for its answer.

        Raises:
            ServerRefused: the tool failed.
            ServerLost: as the class.
        """
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        if result.get("isError"):
            raise ServerRefused(f"{tool} failed: {result}")
        return result

    def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request; its result.

        Raises:
            ServerRefused: there is an error instead.
            ServerLost: as the class.
        """
        self._asked += 1
        self._send({"id": self._asked, "method": method, "params": params})
        while (message := self._message()).get("id") != self._asked or "method" in message:
            pass
        result = message.get("result")
        if not isinstance(result, dict):
            raise ServerRefused(f"{method} failed: {message}")
        return result

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        left = memoryview(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        try:
            while left:
                left = left[self._process.stdin.write(left) :]
        except BrokenPipeError:
            raise ServerLost("the server ended; its standard error says why") from None

    def _message(self) -> dict[str, Any]:
        line = self._line()
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ServerLost(f"the server sent what is no message: {line[:200]!r}")
        return message

    def _line(self) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], ANSWER_SECONDS)[0]:
                raise ServerLost(f"no answer in {ANSWER_SECONDS} s")
            if not (block := self._process.stdout.read(1 << 16)):
                raise ServerLost("the server ended; its standard error says why")
            self._unread += block
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def close(self) -> None:
        """End it, and in a session of its own whatever it has started."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        self._process.stdin.close()
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            if self._own_session:
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
# A filesystem server of the Model Context Protocol as a subject.
#
# Its allowed directories are the two roots, added to its command unless that has a placeholder. It is told
# host paths, since that is how such a server is spoken to: a path that begins like a scope is put where the
# scopes are, and stays as the attacker wrote it.

NAMES: Final[Mapping[str, Sequence[str]]] = {
    "read_file": ("read_text_file", "read_file"),
    "ls": ("list_directory",),
    "write_file": ("write_file",),
    "edit": ("edit_file",),
}
"""What each tool is called there, the preferred name first. A search in contents there is not."""


class _WritesAtOnce:
    """What adapters of others' tools have in common."""

    commits_often = True

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def commit(self) -> Committed:
        """It writes at once."""
        return Committed(None, "")

    def close(self) -> str:
        """What was written on the standard streams of this process."""
        return self._stage.log.read_text(errors="replace") if self._stage.log.exists() else ""

    @staticmethod
    def _named(tool: str, arguments: Any) -> dict[str, Any]:
        """The arguments of a call, which such a tool has by name, and for one scope.

        Raises:
            Inexpressible: these are none.
        """
        if not isinstance(arguments, dict):
            raise Inexpressible("arguments that are no object")
        if tool == "ls" and arguments.get("path") in EVERYTHING:
            raise Inexpressible("a listing of all scopes")
        return arguments


class McpSubject(_WritesAtOnce):
    """A server over the roots of a stage.

    Attributes:
        about: name and version that the server gives.
    """

    def __init__(self, stage: Stage, command: Sequence[str]) -> None:
        super().__init__(stage)
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
        named = self._translated(self._named(tool, arguments))
        try:
            result = self._server.ask("tools/call", {"name": name, "arguments": named})
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

    def close(self) -> str:
        """End it; what it wrote on standard error, within a driver."""
        self._server.close()
        return super().close()


# -- anthropic memory --------------------------------------------------------------------------------
#
# The local memory tool of the `anthropic` SDK as a subject.
#
# It knows one memory, `/memories`. So there is one tool for each scope, with the scope's root as its
# `memory_root`: everything else is outside of it, the other scope as well. The first part of a path, `user`
# or `project`, becomes `/memories`, and whatever follows stays as the attacker wrote it: `user-evil/x.md`
# becomes `/memories-evil/x.md`.
#
# `view` reads and lists, `create` writes, `str_replace` edits; there is no search. What it raises is
# answered as the SDK's own runner answers the model: the text of a `ToolError`, else the `repr` of the
# exception.

_LINE_NUMBER_COLUMNS = 7
"""`view` puts the number of a line, in six columns, and a tab before it."""


class AnthropicSubject(_WritesAtOnce):
    """Two tools over the roots of a stage.

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
            each.memory_root = stage.scope(scope)

    def call(self, tool: str, arguments: Any) -> Answer:
        """Give the command that does the same."""
        path = self._named(tool, arguments).get("path")
        scope, unsafe_path = _split_path(path) if isinstance(path, str) else (ROOTS[0], path)
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


def _split_path(path: str) -> tuple[str, str]:
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


# -- targets -----------------------------------------------------------------------------------------

Sort = Literal["muniment", "anthropic", "mcp", "command"]

NAMELESS: Final = frozenset({"outside_changes", "dotfiles"})
"""Variants of the policy that ask nothing of a tool without policies."""

INDEX_CLASS: Final = "index-forgery"
"""Its cases write what is no attack on a tool without an index."""

POLICIES: Final = frozenset({"readonly", "limits", "quota"})


@dataclass(frozen=True, slots=True)
class Target:
    """A memory tool to be tried.

    Attributes:
        name: short, for the head of a column.
        spec: as it is named on the command line.
        sort: how it is spoken to.
        command: what starts it, split, with placeholders; empty where nothing is started.
        claims: its own threat model.
        tools: those of the corpus that it has.
        variants: of the policy that it can be given.
    """

    name: str
    spec: str
    sort: Sort
    command: tuple[str, ...]
    claims: Claims
    tools: frozenset[str]
    variants: frozenset[str]

    @property
    def promises(self) -> Promises:
        """What it is held to. An MCP server is given both roots as one, and spoken to with host paths."""
        return Promises(
            is_exact=self.sort == "muniment",
            separates_scopes=self.sort != "mcp",
            hides_paths=self.sort != "mcp",
            keeps_index=self.sort in {"muniment", "command"},
        )

    def lacks(self, case: Case) -> str | None:
        """What a case needs that the tool has not; None: nothing."""
        for call in (*case.get("first", ()), case["call"]):
            if call["tool"] in ALL_TOOLS - self.tools:
                return f"no {call['tool']}"
        if case["class"] == INDEX_CLASS and not self.promises.keeps_index:
            return "no index"
        missing = sorted(case.get("policy", {}).keys() - self.variants)
        return f"no policy for {missing[0]}" if missing else None

    def open(self, stage: Stage, case: Case) -> Subject:
        """Bind it to the roots of a stage; `OpenSubject`."""
        match self.sort:
            case "muniment":
                return SandboxSubject(stage, case, in_process=False)
            case "anthropic":
                return AnthropicSubject(stage, case)
            case "mcp":
                command = filled(self.command, stage, case)
                roots = () if command != self.command else (str(stage.scope(scope)) for scope in ROOTS)
                return McpSubject(stage, [*command, *roots])
            case "command":
                return JsonLinesSubject(stage, filled(self.command, stage, case))


ALL_TOOLS: Final = frozenset({"read_file", "grep", "ls", "write_file", "edit"})


def parse_target(spec: str) -> Target:
    """The target of a name.

    Raises:
        ValueError: there is none; the message says which there are.
    """
    sort, _, text = spec.partition("=")
    match sort:
        case "muniment" if not text:
            return Target(sort, spec, sort, (), MUNIMENT, ALL_TOOLS, NAMELESS | POLICIES | {"symlinks"})
        case "anthropic" if not text:
            return Target(sort, spec, sort, (), ANTHROPIC, ALL_TOOLS - {"grep"}, NAMELESS)
        case "mcp" if text.strip():
            tools = frozenset(NAMES)
            return Target("mcp", spec, sort, _split(text), MCP_FILESYSTEM, tools, NAMELESS)
        case "command" if text.strip():
            variants = NAMELESS | (POLICIES if "{policy}" in text else set())
            variants |= {"symlinks"} if "{symlinks}" in text else set()
            return Target("command", spec, sort, _split(text), UNKNOWN, ALL_TOOLS, variants)
        case _:
            raise ValueError(
                f"{spec!r} is no target; there are muniment, anthropic, mcp=COMMAND and command=COMMAND"
            )


def filled(command: Sequence[str], stage: Stage, case: Case) -> tuple[str, ...]:
    """A command with its placeholders filled in; the policy is written only where one is asked for."""
    values = {scope: str(stage.scope(scope)) for scope in ROOTS}
    values |= {"state": str(stage.state), "symlinks": symlinks(case)}
    if any("{policy}" in word for word in command):
        values["policy"] = str(write_policy(stage, case, require="partial"))
    words = []
    for word in command:
        for name, value in values.items():
            word = word.replace(f"{{{name}}}", value)  # noqa: PLW2901 - one after the other
        words.append(word)
    return tuple(words)


def _split(text: str) -> tuple[str, ...]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no command: {error}") from None
    return tuple(str(Path(word).absolute()) if Path(word).is_file() else word for word in words)
