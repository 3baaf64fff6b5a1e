"""What `muniment setup` puts into the settings of each coding tool, and how it knows it again.

Where each of these files lies and what stands in it comes from the tools' own pages, named in docs/setup.md.

W1 An MCP server is ours if it is called `muniment` and runs `muniment mcp`; a hook, if its line runs
   `muniment recall --hook` and does nothing else. Whatever else stands there, also under that name, is left
   as it is; an event whose hook calls Muniment in a way of a person's own gets no second one.
W2 Of an entry that is ours only the program and its home are changed: what a person added to it stays, a line
   for a shell as it was typed.
W3 Hooks of ours come last, since Codex knows the ones that a person trusts by their position.
W4 What is left empty by taking ours out goes too, unless it stood there before.
W5 An entry that stood there before the first setup is a person's own, also if it runs the same: it is
   corrected as ours is, and gets its words again.

Apart from `setup`: a tool that is new touches this alone.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from muniment.integrations.coding_tools import edits
from muniment.integrations.coding_tools.edits import Append, Cut, Edit, Format, Json, Put, Toml, applied
from muniment.names import HOME_VARIABLE

NAME: Final = "muniment"

_SECONDS: Final = 10
"""That a tool waits for the hook: its own 4, and twice as long for a machine that is busy."""

_GROUP: Final = 3
"""Steps to a group of hooks: `hooks`, an event, and a position."""

_TOOL_SECONDS: Final = 300
"""That a tool waits for the server: a fact takes 295 at most."""

_WORD: Final = r"""(?:[\w@%+=:,./~-]|'[^']*'|"[^"$`\\!]*")+"""
"""A word that a shell takes as it stands, but for quotes."""

_LINE: Final = re.compile(
    rf"(?:{HOME_VARIABLE}={_WORD}[ \t]+)?{_WORD}(?:[ \t]+-m[ \t]+{NAME})?[ \t]+recall[ \t]+--hook"
    r"(?P<tail>(?:[ \t][^|&;<>$`()\r\n]*)?)"
)
"""A line for a shell that is our hook, and what a person added behind."""

_SECRET_OPTION: Final = re.compile(r"(?i)--?[\w-]*(?:key|token|secret|passw|auth|header|credential)")
"""An argument whose value is nobody's business."""

_CALL: Final = re.compile(rf"{NAME}[\"']?\s+recall\b.*--hook", re.DOTALL)
"""In a line that calls our hook, whatever else it does."""


@dataclass(frozen=True, slots=True)
class Program:
    """How `muniment` is started.

    Attributes:
        words: the program, absolute, and its first arguments.
        home: `MUNIMENT_HOME` for it; None: the usual one.
    """

    words: tuple[str, ...]
    home: str | None = None

    @property
    def hook(self) -> str:
        """The hook, as a line for a shell; the same for every tool, or Cursor would run two of them."""
        home = f"{HOME_VARIABLE}={shlex.quote(self.home)} " if self.home else ""
        return home + shlex.join((*self.words, "recall", "--hook"))


@dataclass(frozen=True, slots=True)
class Part:
    """What one settings file has of ours.

    Attributes:
        file: where the tool looks for it.
        form: how it is written.
        servers: the member that holds its MCP servers; None: they stand elsewhere.
        kind: of an entry there, before the command.
        server: of an entry there, behind the command.
        events: of its hooks; empty: they stand elsewhere.
        hook: of a hook, besides its command.
        flat: hooks stand right below their event, not in groups.
        head: members that such a file must have.
        off: where it says that hooks or servers do not run, and what to tell then.
    """

    file: Path
    form: Format
    servers: str | None = None
    kind: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    hook: Mapping[str, Any] = field(default_factory=dict)
    flat: bool = False
    head: Mapping[str, Any] = field(default_factory=dict)
    off: tuple[tuple[tuple[str, ...], object], ...] = ()

    def install(
        self, document: dict[str, Any], program: Program, elsewhere: Collection[str] = ()
    ) -> Iterator[Edit]:
        """The edits that put ours in; none where it is there.

        Args:
            document: what stands there.
            program: how we are started.
            elsewhere: events whose hook stands in another file of the tool.
        """
        for name, value in self.head.items():
            if name not in document:
                yield Put((name,), value)
        if self.servers is not None:
            yield from self._install_server(document, program)
        for event in self.events:
            if event not in elsewhere:
                yield from self._install_hook(document, event, program)

    def remove(self, document: dict[str, Any], before: Mapping[str, Any]) -> Iterator[Edit]:
        """The edits that take ours out, and give a person's own of the time before its words again (W5).

        Args:
            document: what stands there.
            before: what stood there before ours, as far as it is known (W4).
        """
        ours: list[edits.Path] = []
        server, own = self.server_in(document), self.server_in(before)
        if _is_our_server(server) and _is_our_server(own):
            for name in ("command", "args", "env"):
                path: edits.Path = (str(self.servers), NAME, name)
                if name in own and own[name] != server.get(name):
                    yield Put(path, own[name])
                elif name in server and name not in own:
                    yield Cut(path)
        elif _is_our_server(server):
            ours.append((str(self.servers), NAME))
        lines = [(path[1], hook["command"]) for path, hook in self._hooks_in(before)]
        for path, hook in self._hooks_in(document):
            line = next((each for each in lines if each[0] == path[1]), None)
            if line is None:
                ours.append(path)
                continue
            lines.remove(line)
            if hook["command"] != line[1]:
                yield Put((*path, "command"), line[1])
        known: Mapping[str, Any] = (
            {} if isinstance(self.form, Toml) else before
        )  # An empty table cannot stay.
        for path in reversed(ours):
            edit = Cut(_widened(document, path, known))
            document = applied(document, edit)
            yield edit

    def notes(self, document: dict[str, Any]) -> Iterator[str]:
        """What a person should know of this file."""
        for path, value in self.off:
            if _at(document, path) == value:
                shown = f"{'.'.join(path)} = {str(value).lower()}"
                yield f"{self.file} says {shown}: no hook runs until that is changed"
        server = self.server_in(document)
        if server is not None and not _is_our_server(server):
            yield f"{self.file} has a server {NAME!r} that is started otherwise; it was left as it is"
        allowed = _at(document, ("mcp", "allowed"))
        if self.servers is not None and isinstance(allowed, list) and NAME not in allowed:
            yield f"{self.file} allows only some servers (mcp.allowed); add {NAME!r} there"

    def is_ours_in(self, document: dict[str, Any]) -> bool:
        """Whether anything of ours stands there."""
        return _is_our_server(self.server_in(document)) or bool(self._hooks_in(document))

    def secrets_in(self, document: Mapping[str, Any]) -> set[str]:
        """The values of servers that nobody is to see: of `env`, headers, and options such as --token.

        Texts as they are, others as JSON writes them.
        """
        found: set[str] = set()
        servers = document.get(self.servers or "")
        for server in servers.values() if isinstance(servers, dict) else ():
            if not isinstance(server, dict):
                continue
            for name, members in server.items():
                if isinstance(members, dict) and (name == "env" or "headers" in name):
                    values = (each for key, each in members.items() if key != HOME_VARIABLE)
                    found.update(
                        each if isinstance(each, str) else json.dumps(each, default=str) for each in values
                    )
            words = server.get("args")
            words = [each for each in words if isinstance(each, str)] if isinstance(words, list) else []
            for word, following in zip(words, [*words[1:], ""], strict=False):
                if _SECRET_OPTION.match(word):
                    found.add(word if "=" in word else following)
        return found - {""}

    def is_empty(self, text: str) -> bool:
        """Whether nothing stands there but what such a file must have: no member, no comment."""
        heads = {"", "{}", json.dumps(dict(self.head))}
        return "".join(text.split()) in {"".join(each.split()) for each in heads}

    def events_in(self, document: Mapping[str, Any]) -> set[str]:
        """The events that have a hook of ours there, or a person's own that calls it."""
        return {*(str(path[1]) for path, _ in self._hooks_in(document)), *self._own_in(document)}

    def notes_of_own(self, document: Mapping[str, Any]) -> Iterator[str]:
        """What stays there, put in and taken out alike."""
        for event in self._own_in(document):
            yield f"{self.file} has a hook of your own for {event} that calls {NAME}; it is left as it is"

    def server_in(self, document: Mapping[str, Any]) -> Any:
        """What stands there as our server; None: nothing."""
        return None if self.servers is None else _at(document, (self.servers, NAME))

    def pasted(self, program: Program) -> str:
        """What a person would add by hand."""
        document: dict[str, Any] = {}
        for edit in self.install({}, program):
            document = applied(document, edit)
        return self.form.rendered(document)

    def _install_server(self, document: dict[str, Any], program: Program) -> Iterator[Edit]:
        path = (str(self.servers), NAME)
        found = self.server_in(document)
        first, rest = program.words[0], [*program.words[1:], "mcp"]
        if found is None:
            env = {"env": {HOME_VARIABLE: program.home}} if program.home else {}
            command = {"command": first, "args": rest}
            yield Put(path, {**self.kind, **command, **self.server, **env})
        elif _is_our_server(found):
            args = [*rest, *found["args"][found["args"].index("mcp") + 1 :]]
            if found["command"] != first:
                yield Put((*path, "command"), first)
            if found["args"] != args:
                yield Put((*path, "args"), args)
            env = found["env"] if isinstance(found.get("env"), dict) else {}
            others = {name: value for name, value in env.items() if name != HOME_VARIABLE}
            wanted = {**others, HOME_VARIABLE: program.home} if program.home else others
            if env != wanted:
                yield Put((*path, "env"), wanted)

    def _install_hook(self, document: dict[str, Any], event: str, program: Program) -> Iterator[Edit]:
        mine = [(path, hook) for path, hook in self._hooks_in(document) if path[1] == event]
        for path, hook in mine:
            line = _LINE.fullmatch(hook["command"])
            command = program.hook + (line["tail"] if line else "")
            if hook["command"] != command:
                yield Put((*path, "command"), command)
        if not mine and event not in self._own_in(document):
            hook = {"command": program.hook, **self.hook}
            yield Append(("hooks", event), hook if self.flat else {"hooks": [{"type": "command", **hook}]})

    def _own_in(self, document: Mapping[str, Any]) -> list[str]:
        """The events that have a hook which calls ours in a way of a person's own (W1)."""
        found = self._hooks_in(document, _calls_our_hook)
        return list(dict.fromkeys(str(path[1]) for path, hook in found if not _is_our_hook(hook)))

    def _hooks_in(
        self, document: Mapping[str, Any], wanted: Callable[[Mapping[str, Any]], bool] | None = None
    ) -> list[tuple[edits.Path, Mapping[str, Any]]]:
        """The hooks that are wanted, else ours, and where they stand, whatever the event."""
        is_wanted = wanted or _is_our_hook
        found: list[tuple[edits.Path, Mapping[str, Any]]] = []
        every = document.get("hooks")
        for event, groups in every.items() if isinstance(every, dict) else ():
            for index, group in enumerate(_items(groups)):
                base: edits.Path = ("hooks", event, index)
                if self.flat and is_wanted(group):
                    found.append((base, group))
                hooks = () if self.flat else _items(group.get("hooks"))
                found += [((*base, "hooks", at), hook) for at, hook in enumerate(hooks) if is_wanted(hook)]
        return found


def _widened(document: dict[str, Any], path: edits.Path, before: Mapping[str, Any]) -> edits.Path:
    """The path of what is to go with what stands at a path, since nothing would be left in it (W4)."""
    if len(path) > _GROUP and len(_at(document, path[:-1])) == 1:
        path = path[:_GROUP]
    while len(path) > 1 and len(_at(document, path[:-1])) == 1 and _at(before, path[:-1]) is None:
        path = path[:-1]
    return path


def _items(value: Any) -> list[Any]:
    """The objects of an array, others as empty ones, so that positions hold."""
    return [each if isinstance(each, dict) else {} for each in value] if isinstance(value, list) else []


def _at(document: Any, path: edits.Path) -> Any:
    """What stands at a path; None: nothing."""
    for step in path:
        try:
            document = document[step]
        except (LookupError, TypeError):
            return None
    return document


def _is_our_server(entry: Any) -> bool:
    """W1."""
    if not isinstance(entry, dict) or not isinstance(entry.get("args"), list):
        return False
    words = [entry.get("command"), *entry["args"]]
    return all(isinstance(each, str) for each in words) and _runs(words, "mcp")


def _is_our_hook(hook: Mapping[str, Any]) -> bool:
    """W1."""
    command = hook.get("command")
    line = _LINE.fullmatch(command) if isinstance(command, str) else None
    try:
        words = shlex.split(line[0]) if line else []
    except ValueError:
        return False
    words = words[1:] if words and words[0].startswith(f"{HOME_VARIABLE}=") else words
    return _runs(words, "recall")


def _calls_our_hook(hook: Mapping[str, Any]) -> bool:
    command = hook.get("command")
    return isinstance(command, str) and _CALL.search(command) is not None


def _runs(words: list[str], command: str) -> bool:
    """Whether a command line is one of ours."""
    is_program = words[1:2] == [command] and Path(words[0]).name == NAME
    return is_program or words[1:4] == ["-m", NAME, command]


# -- the tools ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CodingTool:
    """A coding tool.

    Attributes:
        title: what people call it.
        parts: its settings files, by the environment and the user's home directory.
        then: what is left to do by hand.
    """

    title: str
    parts: Callable[[Mapping[str, str], Path], tuple[Part, ...]]
    then: tuple[str, ...]


def _moved(environment: Mapping[str, str], variable: str, usual: Path) -> Path:
    named = environment.get(variable)
    return Path(named).absolute() if named else usual


def _claude_code(environment: Mapping[str, str], home: Path) -> tuple[Part, ...]:
    moved = environment.get("CLAUDE_CONFIG_DIR")
    directory = Path(moved).absolute() if moved else home / ".claude"
    servers = (directory if moved else home) / ".claude.json"
    return (
        Part(servers, Json(), "mcpServers", {"type": "stdio"}),
        Part(
            directory / "settings.json",
            Json(),
            events=("UserPromptSubmit", "SessionStart"),
            hook={"timeout": _SECONDS},
            off=((("disableAllHooks",), True),),
        ),
    )


def _codex(environment: Mapping[str, str], home: Path) -> tuple[Part, ...]:
    directory = _moved(environment, "CODEX_HOME", home / ".codex")
    config, beside = directory / "config.toml", directory / "hooks.json"
    server = {"tool_timeout_sec": _TOOL_SECONDS}
    events, hook = ("UserPromptSubmit", "SessionStart"), {"timeout": _SECONDS}
    off = tuple((("features", name), False) for name in ("hooks", "codex_hooks"))
    if beside.exists():  # Codex warns where hooks stand in both.
        return (
            Part(config, Toml(), "mcp_servers", server=server, off=off),
            Part(beside, Json(), events=events, hook=hook),
        )
    return (Part(config, Toml(), "mcp_servers", server=server, events=events, hook=hook, off=off),)


def _cursor(environment: Mapping[str, str], home: Path) -> tuple[Part, ...]:
    del environment  # None moves its directory.
    return (
        Part(home / ".cursor" / "mcp.json", Json(), "mcpServers"),
        Part(
            home / ".cursor" / "hooks.json",
            Json(),
            events=("beforeSubmitPrompt", "sessionStart", "preCompact"),
            hook={"timeout": _SECONDS},
            flat=True,
            head={"version": 1},
        ),
    )


def _qwen_code(environment: Mapping[str, str], home: Path) -> tuple[Part, ...]:
    file = _moved(environment, "QWEN_HOME", home / ".qwen") / "settings.json"
    # Seconds in current versions, where 1000 and more are milliseconds, as all were in older ones.
    hook = {"name": NAME, "timeout": _SECONDS * 1_000}
    off = ((("disableAllHooks",), True),)
    events = ("UserPromptSubmit", "SessionStart")
    return (Part(file, Json(comments=True), "mcpServers", events=events, hook=hook, off=off),)


def _gemini_cli(environment: Mapping[str, str], home: Path) -> tuple[Part, ...]:
    file = _moved(environment, "GEMINI_CLI_HOME", home) / ".gemini" / "settings.json"
    hook = {"name": NAME, "timeout": _SECONDS * 1_000}
    off = ((("hooksConfig", "enabled"), False),)
    events = ("BeforeAgent", "SessionStart", "PreCompress")
    return (Part(file, Json(comments=True), "mcpServers", events=events, hook=hook, off=off),)


TOOLS: Final[Mapping[str, CodingTool]] = MappingProxyType(
    {
        "claude-code": CodingTool("Claude Code", _claude_code, ("sessions that begin from now on have it",)),
        "codex": CodingTool(
            "Codex",
            _codex,
            ("start Codex and trust the hooks with /hooks: until then Codex passes over them in silence",),
        ),
        "cursor": CodingTool(
            "Cursor",
            _cursor,
            (
                "restart Cursor, and enable the server under Customize, MCPs",
                "whether Cursor heeds what is recalled for a prompt depends on its version; the server works",
            ),
        ),
        "qwen-code": CodingTool("Qwen Code", _qwen_code, ("restart Qwen Code",)),
        "gemini-cli": CodingTool("Gemini CLI", _gemini_cli, ("restart Gemini CLI",)),
    }
)
