"""Define the entries that `muniment setup` adds to the settings of each coding tool, and recognise them.

The paths and the content of these files are documented by the tools; docs/setup.md links to their pages.

W1 An MCP server belongs to Muniment if its name is `muniment` and it runs `muniment mcp`; a hook, if its line
   runs only `muniment recall --hook`. Other entries, also with that name, are not changed. An event that
   already has a user's own hook which calls Muniment gets no second one.
W2 In an entry of Muniment only the program and its home are changed: additions of the user stay, and a shell
   line stays as typed.
W3 Muniment's hooks are added last, since Codex identifies trusted hooks by their position.
W4 Objects that are empty after the removal are also removed, unless they existed before.
W5 An entry that existed before the first setup belongs to the user, also if it runs the same command. It is
   corrected like one of Muniment, and restored at the removal.

Separate from `setup`: support for a new tool changes only this file.
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
"""Seconds that a tool waits for the hook: the hook's 4, and more for a busy machine."""

_GROUP: Final = 3
"""Length of the path of a group of hooks: `hooks`, an event, and an index."""

_TOOL_SECONDS: Final = 300
"""Seconds that a tool waits for the server: a fact takes at most 295."""

_WORD: Final = r"""(?:[\w@%+=:,./~-]|'[^']*'|"[^"$`\\!]*")+"""
"""Matches a word that a shell uses unchanged, except for quotes."""

_LINE: Final = re.compile(
    rf"(?:{HOME_VARIABLE}={_WORD}[ \t]+)?{_WORD}(?:[ \t]+-m[ \t]+{NAME})?[ \t]+recall[ \t]+--hook"
    r"(?P<tail>(?:[ \t][^|&;<>$`()\r\n]*)?)"
)
"""Matches a shell line that is Muniment's hook, and text that the user added after it."""

_SECRET_OPTION: Final = re.compile(r"(?i)--?[\w-]*(?:key|token|secret|passw|auth|header|credential)")
"""Matches an argument whose value is private."""

_CALL: Final = re.compile(rf"{NAME}[\"']?\s+recall\b.*--hook", re.DOTALL)
"""Matches a line that calls Muniment's hook, possibly among other commands."""


@dataclass(frozen=True, slots=True)
class Program:
    """The command that starts `muniment`.

    Attributes:
        words: the program, absolute, and its first arguments.
        home: `MUNIMENT_HOME` for it; None: the default.
    """

    words: tuple[str, ...]
    home: str | None = None

    @property
    def hook(self) -> str:
        """Return the hook as a shell line; the same for every tool, or Cursor would run two of them."""
        home = f"{HOME_VARIABLE}={shlex.quote(self.home)} " if self.home else ""
        return home + shlex.join((*self.words, "recall", "--hook"))


@dataclass(frozen=True, slots=True)
class Part:
    """Muniment's entries in one settings file.

    Attributes:
        file: the path that the tool uses.
        form: the format of the file.
        servers: the member with its MCP servers; None: they are in another file.
        kind: members of a server entry before the command.
        server: members of a server entry after the command.
        events: events with a hook; empty: they are in another file.
        hook: members of a hook in addition to its command.
        flat: hooks are directly in the list of their event, without groups.
        head: members that the file must have.
        off: members and values that disable hooks or servers.
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
        """Yield the edits that add Muniment's entries; none if they exist.

        Args:
            document: the current settings.
            program: the command that starts Muniment.
            elsewhere: events whose hook is in another file of the tool.
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
        """Yield the edits that remove Muniment's entries, and restore entries of the user (W5).

        Args:
            document: the current settings.
            before: the settings before the first setup, if known (W4).
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
        )  # An empty TOML table cannot stay.
        for path in reversed(ours):
            edit = Cut(_widened(document, path, known))
            document = applied(document, edit)
            yield edit

    def notes(self, document: dict[str, Any]) -> Iterator[str]:
        """Yield remarks for the user about this file."""
        for path, value in self.off:
            if _at(document, path) == value:
                shown = f"{'.'.join(path)} = {str(value).lower()}"
                yield f"{self.file} contains {shown}: no hook runs until you change that"
        server = self.server_in(document)
        if server is not None and not _is_our_server(server):
            yield f"{self.file} has a server {NAME!r} that is started in another way; it was not changed"
        allowed = _at(document, ("mcp", "allowed"))
        if self.servers is not None and isinstance(allowed, list) and NAME not in allowed:
            yield f"{self.file} allows only some servers (mcp.allowed); add {NAME!r} there"

    def is_ours_in(self, document: dict[str, Any]) -> bool:
        """Return whether the settings contain an entry of Muniment."""
        return _is_our_server(self.server_in(document)) or bool(self._hooks_in(document))

    def secrets_in(self, document: Mapping[str, Any]) -> set[str]:
        """Return the private values of servers: in `env`, in headers, and of options such as --token.

        Strings as they are, other values as JSON.
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
        """Return whether a file has no member and no comment except the required members."""
        heads = {"", "{}", json.dumps(dict(self.head))}
        return "".join(text.split()) in {"".join(each.split()) for each in heads}

    def events_in(self, document: Mapping[str, Any]) -> set[str]:
        """Return the events with a hook of Muniment, or with a user's own hook that calls it."""
        return {*(str(path[1]) for path, _ in self._hooks_in(document)), *self._own_in(document)}

    def notes_of_own(self, document: Mapping[str, Any]) -> Iterator[str]:
        """Yield remarks about a user's own hooks, which setup and removal do not change."""
        for event in self._own_in(document):
            yield f"{self.file} has your own hook for {event} that calls {NAME}; it is not changed"

    def server_in(self, document: Mapping[str, Any]) -> Any:
        """Return the server entry named `muniment`, or None."""
        return None if self.servers is None else _at(document, (self.servers, NAME))

    def pasted(self, program: Program) -> str:
        """Return the entries as text for a user to paste."""
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
        """Return the events with a user's own hook that calls Muniment (W1)."""
        found = self._hooks_in(document, _calls_our_hook)
        return list(dict.fromkeys(str(path[1]) for path, hook in found if not _is_our_hook(hook)))

    def _hooks_in(
        self, document: Mapping[str, Any], wanted: Callable[[Mapping[str, Any]], bool] | None = None
    ) -> list[tuple[edits.Path, Mapping[str, Any]]]:
        """Return the wanted hooks with their paths, for all events; by default the hooks of Muniment."""
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
    """Return the path of the outermost value that is empty without the value at a path (W4)."""
    if len(path) > _GROUP and len(_at(document, path[:-1])) == 1:
        path = path[:_GROUP]
    while len(path) > 1 and len(_at(document, path[:-1])) == 1 and _at(before, path[:-1]) is None:
        path = path[:-1]
    return path


def _items(value: Any) -> list[Any]:
    """Return the items of an array; items that are not objects become {}, so that indexes stay valid."""
    return [each if isinstance(each, dict) else {} for each in value] if isinstance(value, list) else []


def _at(document: Any, path: edits.Path) -> Any:
    """Return the value at a path, or None."""
    for step in path:
        try:
            document = document[step]
        except (LookupError, TypeError):
            return None
    return document


def _is_our_server(entry: Any) -> bool:
    """Return whether a server entry belongs to Muniment (W1)."""
    if not isinstance(entry, dict) or not isinstance(entry.get("args"), list):
        return False
    words = [entry.get("command"), *entry["args"]]
    return all(isinstance(each, str) for each in words) and _runs(words, "mcp")


def _is_our_hook(hook: Mapping[str, Any]) -> bool:
    """Return whether a hook belongs to Muniment (W1)."""
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
    """Return whether a command line runs a command of Muniment."""
    is_program = words[1:2] == [command] and Path(words[0]).name == NAME
    return is_program or words[1:4] == ["-m", NAME, command]


# -- the tools ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CodingTool:
    """A coding tool.

    Attributes:
        title: the name of the product.
        parts: returns its settings files, given the environment and the user's home directory.
        then: steps that the user must do by hand.
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
    if beside.exists():  # Codex warns if hooks are in both.
        return (
            Part(config, Toml(), "mcp_servers", server=server, off=off),
            Part(beside, Json(), events=events, hook=hook),
        )
    return (Part(config, Toml(), "mcp_servers", server=server, events=events, hook=hook, off=off),)


def _cursor(environment: Mapping[str, str], home: Path) -> tuple[Part, ...]:
    del environment  # No variable changes its directory.
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
    # Current versions use seconds below 1000 and milliseconds from 1000 on; older ones always use
    # milliseconds.
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
        "claude-code": CodingTool("Claude Code", _claude_code, ("new sessions use it",)),
        "codex": CodingTool(
            "Codex",
            _codex,
            ("start Codex and trust the hooks with /hooks: until then Codex silently skips them",),
        ),
        "cursor": CodingTool(
            "Cursor",
            _cursor,
            (
                "restart Cursor, and enable the server under Customize, MCPs",
                "some versions of Cursor ignore entries recalled for a prompt; the server works in all",
            ),
        ),
        "qwen-code": CodingTool("Qwen Code", _qwen_code, ("restart Qwen Code",)),
        "gemini-cli": CodingTool("Gemini CLI", _gemini_cli, ("restart Gemini CLI",)),
    }
)
