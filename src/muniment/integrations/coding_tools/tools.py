"""Define the entries that `muniment setup` adds to the settings of each coding tool, and recognise them.

The tools document the paths and the content of their settings files; docs/setup.md links to these pages.

W1 An MCP server belongs to Muniment if its name is `muniment` and it runs `muniment mcp`. A hook belongs to
   Muniment if its line runs only `muniment recall --hook`. Other entries are not changed, even if they have
   this name. If a user's own hook for an event already calls Muniment, no second hook is added for this
   event.
W2 In an entry of Muniment, only the program and its home are changed. Additions of the user stay, and a shell
   line stays as typed.
W3 Muniment's hooks are added last, because Codex identifies trusted hooks by their position.
W4 Objects that are empty after the removal are also removed, unless they existed before.
W5 An entry that existed before the first setup belongs to the user, even if it runs the same command. It is
   corrected like an entry of Muniment, and restored at the removal.

To support a new tool, only this file must be changed.
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
from muniment.integrations.coding_tools.edits import Append, Cut, Edit, Format, Json, Put, Toml, apply_edit
from muniment.names import HOME_VARIABLE

NAME: Final = "muniment"

_HOOK_SECONDS: Final = 10
"""Seconds that a tool waits for the hook: the hook itself ends after 4 seconds, and a busy machine needs
more.
"""

_GROUP_DEPTH: Final = 3
"""Length of the path of a group of hooks, which consists of `hooks`, an event, and an index."""

_TOOL_SECONDS: Final = 300
"""Seconds that a tool waits for a response of the server; storing a fact takes at most 295."""

_WORD: Final = r"""(?:[\w@%+=:,./~-]|'[^']*'|"[^"$`\\!]*")+"""
"""Pattern of a word that a shell uses unchanged, except for quotes."""

_LINE: Final = re.compile(
    rf"(?:{HOME_VARIABLE}={_WORD}[ \t]+)?{_WORD}(?:[ \t]+-m[ \t]+{NAME})?[ \t]+recall[ \t]+--hook"
    r"(?P<tail>(?:[ \t][^|&;<>$`()\r\n]*)?)"
)
"""Pattern of a shell line that is Muniment's hook; the group `tail` is the text that the user added after it.
"""

_SECRET_OPTION: Final = re.compile(r"(?i)--?[\w-]*(?:key|token|secret|passw|auth|header|credential)")
"""Pattern of a command-line option whose value is private."""

_CALL: Final = re.compile(rf"{NAME}[\"']?\s+recall\b.*--hook", re.DOTALL)
"""Pattern of a shell line that calls Muniment's hook, possibly among other commands."""


@dataclass(frozen=True, slots=True)
class Program:
    """The command that starts Muniment.

    Attributes:
        arguments: the absolute path of the program, and its first arguments.
        home: the value of `MUNIMENT_HOME` for the program; None: the default.
    """

    arguments: tuple[str, ...]
    home: str | None = None

    @property
    def hook(self) -> str:
        """Return the shell line of the hook.

        The line is the same for every tool, because Cursor would otherwise run the hooks of two tools.
        """
        home = f"{HOME_VARIABLE}={shlex.quote(self.home)} " if self.home else ""
        return home + shlex.join((*self.arguments, "recall", "--hook"))


@dataclass(frozen=True, slots=True)
class SettingsPart:
    """The description of Muniment's entries in one settings file of a coding tool.

    Attributes:
        file: the path that the tool uses.
        file_format: the format of the file.
        servers: the member that contains the MCP servers; None: they are in another file.
        server_prefix: members of a server entry before the command.
        server_suffix: members of a server entry after the command.
        events: events that get a hook; empty: hooks are in another file.
        hook_members: members of a hook in addition to its command.
        is_flat: whether hooks are directly in the list of their event, without groups.
        required_members: members that the file must have.
        disabling_members: paths and values of members that disable hooks or servers.
    """

    file: Path
    file_format: Format
    servers: str | None = None
    server_prefix: Mapping[str, Any] = field(default_factory=dict)
    server_suffix: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    hook_members: Mapping[str, Any] = field(default_factory=dict)
    is_flat: bool = False
    required_members: Mapping[str, Any] = field(default_factory=dict)
    disabling_members: tuple[tuple[tuple[str, ...], object], ...] = ()

    def install(
        self, document: dict[str, Any], program: Program, other_events: Collection[str] = ()
    ) -> Iterator[Edit]:
        """Yield the edits that add Muniment's entries to the settings; no edits if the entries exist.

        Args:
            document: the current settings.
            program: the command that starts Muniment.
            other_events: events whose hook is in another file of the tool.
        """
        for name, value in self.required_members.items():
            if name not in document:
                yield Put((name,), value)
        if self.servers is not None:
            yield from self._install_server(document, program)
        for event in self.events:
            if event not in other_events:
                yield from self._install_hook(document, event, program)

    def remove(self, document: dict[str, Any], before: Mapping[str, Any]) -> Iterator[Edit]:
        """Yield the edits that remove Muniment's entries from the settings, and restore entries of the user.

        Args:
            document: the current settings.
            before: the settings before the first setup; empty if unknown.
        """
        muniment_paths: list[edits.Path] = []
        server, user_server = self.get_server(document), self.get_server(before)
        if _is_muniment_server(server) and _is_muniment_server(user_server):
            for name in ("command", "args", "env"):
                path: edits.Path = (str(self.servers), NAME, name)
                if name in user_server and user_server[name] != server.get(name):
                    yield Put(path, user_server[name])
                elif name in server and name not in user_server:
                    yield Cut(path)
        elif _is_muniment_server(server):
            muniment_paths.append((str(self.servers), NAME))
        lines = [(path[1], hook["command"]) for path, hook in self._find_hooks(before)]
        for path, hook in self._find_hooks(document):
            line = next((each for each in lines if each[0] == path[1]), None)
            if line is None:
                muniment_paths.append(path)
                continue
            lines.remove(line)
            if hook["command"] != line[1]:
                yield Put((*path, "command"), line[1])
        original_document: Mapping[str, Any] = (
            {} if isinstance(self.file_format, Toml) else before
        )  # An empty TOML table cannot stay.
        for path in reversed(muniment_paths):
            edit = Cut(_widen_path(document, path, original_document))
            document = apply_edit(document, edit)
            yield edit

    def notes(self, document: dict[str, Any]) -> Iterator[str]:
        """Yield remarks for the user about settings that prevent Muniment's entries from working."""
        for path, value in self.disabling_members:
            if _get_value(document, path) == value:
                member = f"{'.'.join(path)} = {str(value).lower()}"
                yield f"{self.file} contains {member}: no hook runs until you change that"
        server = self.get_server(document)
        if server is not None and not _is_muniment_server(server):
            yield f"{self.file} has a server {NAME!r} that is started in another way; it was not changed"
        allowed = _get_value(document, ("mcp", "allowed"))
        if self.servers is not None and isinstance(allowed, list) and NAME not in allowed:
            yield f"{self.file} allows only some servers (mcp.allowed); add {NAME!r} there"

    def has_entry(self, document: dict[str, Any]) -> bool:
        """Return whether the settings contain an entry of Muniment."""
        return _is_muniment_server(self.get_server(document)) or bool(self._find_hooks(document))

    def collect_secrets(self, document: Mapping[str, Any]) -> set[str]:
        """Return the private values of all servers.

        These are values in `env` and in headers, and the values of options such as `--token`. A value that is
        not a string is returned as JSON.
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
            arguments = server.get("args")
            arguments = (
                [each for each in arguments if isinstance(each, str)] if isinstance(arguments, list) else []
            )
            for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
                if _SECRET_OPTION.match(argument):
                    found.add(argument if "=" in argument else following)
        return found - {""}

    def is_empty(self, text: str) -> bool:
        """Return whether a text has no members and no comments, except the required members."""
        heads = {"", "{}", json.dumps(dict(self.required_members))}
        return "".join(text.split()) in {"".join(each.split()) for each in heads}

    def collect_events(self, document: Mapping[str, Any]) -> set[str]:
        """Return the events that have a hook of Muniment, or a user's own hook that calls Muniment."""
        return {*(str(path[1]) for path, _ in self._find_hooks(document)), *self._list_user_events(document)}

    def list_user_hook_notes(self, document: Mapping[str, Any]) -> Iterator[str]:
        """Yield a remark for each of the user's own hooks that call Muniment; these are never changed."""
        for event in self._list_user_events(document):
            yield f"{self.file} has your own hook for {event} that calls {NAME}; it is not changed"

    def get_server(self, document: Mapping[str, Any]) -> Any:
        """Return the server entry with the name `muniment`, or None."""
        return None if self.servers is None else _get_value(document, (self.servers, NAME))

    def render_entries(self, program: Program) -> str:
        """Return Muniment's entries as text that a user can paste."""
        document: dict[str, Any] = {}
        for edit in self.install({}, program):
            document = apply_edit(document, edit)
        return self.file_format.render(document)

    def _install_server(self, document: dict[str, Any], program: Program) -> Iterator[Edit]:
        path = (str(self.servers), NAME)
        found = self.get_server(document)
        first, rest = program.arguments[0], [*program.arguments[1:], "mcp"]
        if found is None:
            env = {"env": {HOME_VARIABLE: program.home}} if program.home else {}
            command = {"command": first, "args": rest}
            yield Put(path, {**self.server_prefix, **command, **self.server_suffix, **env})
        elif _is_muniment_server(found):
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
        muniment_hooks = [(path, hook) for path, hook in self._find_hooks(document) if path[1] == event]
        for path, hook in muniment_hooks:
            line = _LINE.fullmatch(hook["command"])
            command = program.hook + (line["tail"] if line else "")
            if hook["command"] != command:
                yield Put((*path, "command"), command)
        if not muniment_hooks and event not in self._list_user_events(document):
            hook = {"command": program.hook, **self.hook_members}
            yield Append(("hooks", event), hook if self.is_flat else {"hooks": [{"type": "command", **hook}]})

    def _list_user_events(self, document: Mapping[str, Any]) -> list[str]:
        """Return the events for which the user has an own hook that calls Muniment."""
        found = self._find_hooks(document, _calls_muniment_hook)
        return list(dict.fromkeys(str(path[1]) for path, hook in found if not _is_muniment_hook(hook)))

    def _find_hooks(
        self, document: Mapping[str, Any], wanted: Callable[[Mapping[str, Any]], bool] | None = None
    ) -> list[tuple[edits.Path, Mapping[str, Any]]]:
        """Return the hooks of all events that satisfy a condition, each with its path.

        Args:
            document: the settings.
            wanted: the condition; None: the hook belongs to Muniment.
        """
        is_wanted = wanted or _is_muniment_hook
        found: list[tuple[edits.Path, Mapping[str, Any]]] = []
        every = document.get("hooks")
        for event, groups in every.items() if isinstance(every, dict) else ():
            for index, group in enumerate(_list_objects(groups)):
                base: edits.Path = ("hooks", event, index)
                if self.is_flat and is_wanted(group):
                    found.append((base, group))
                hooks = () if self.is_flat else _list_objects(group.get("hooks"))
                found += [
                    ((*base, "hooks", hook_index), hook)
                    for hook_index, hook in enumerate(hooks)
                    if is_wanted(hook)
                ]
        return found


def _widen_path(document: dict[str, Any], path: edits.Path, before: Mapping[str, Any]) -> edits.Path:
    """Return the path of the outermost value that would be empty after the value at a path is removed.

    Args:
        document: the current settings.
        path: the path of the value to remove.
        before: the settings before the first setup; values that existed there are not removed.
    """
    if len(path) > _GROUP_DEPTH and len(_get_value(document, path[:-1])) == 1:
        path = path[:_GROUP_DEPTH]
    while (
        len(path) > 1 and len(_get_value(document, path[:-1])) == 1 and _get_value(before, path[:-1]) is None
    ):
        path = path[:-1]
    return path


def _list_objects(value: Any) -> list[Any]:
    """Return the items of an array; replace items that are not objects by {}, so that indexes stay valid."""
    return [each if isinstance(each, dict) else {} for each in value] if isinstance(value, list) else []


def _get_value(document: Any, path: edits.Path) -> Any:
    """Return the value at a path, or None if a step of the path is missing."""
    for step in path:
        try:
            document = document[step]
        except (LookupError, TypeError):
            return None
    return document


def _is_muniment_server(entry: Any) -> bool:
    """Return whether a server entry belongs to Muniment: it runs `muniment mcp`."""
    if not isinstance(entry, dict) or not isinstance(entry.get("args"), list):
        return False
    arguments = [entry.get("command"), *entry["args"]]
    return all(isinstance(each, str) for each in arguments) and _runs_command(arguments, "mcp")


def _is_muniment_hook(hook: Mapping[str, Any]) -> bool:
    """Return whether a hook belongs to Muniment: its line runs only `muniment recall --hook`."""
    command = hook.get("command")
    line = _LINE.fullmatch(command) if isinstance(command, str) else None
    try:
        arguments = shlex.split(line[0]) if line else []
    except ValueError:
        return False
    arguments = arguments[1:] if arguments and arguments[0].startswith(f"{HOME_VARIABLE}=") else arguments
    return _runs_command(arguments, "recall")


def _calls_muniment_hook(hook: Mapping[str, Any]) -> bool:
    command = hook.get("command")
    return isinstance(command, str) and _CALL.search(command) is not None


def _runs_command(arguments: list[str], command: str) -> bool:
    """Return whether a command line runs a certain command of Muniment.

    Args:
        arguments: the words of the command line.
        command: the command, such as `mcp`.
    """
    is_program = arguments[1:2] == [command] and Path(arguments[0]).name == NAME
    return is_program or arguments[1:4] == ["-m", NAME, command]


# -- the tools ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CodingTool:
    """A coding tool that setup supports.

    Attributes:
        title: the name of the product.
        parts: returns the settings files of the tool, for an environment and the user's home directory.
        manual_steps: steps that the user must do by hand.
    """

    title: str
    parts: Callable[[Mapping[str, str], Path], tuple[SettingsPart, ...]]
    manual_steps: tuple[str, ...]


def _read_directory(environment: Mapping[str, str], variable: str, default: Path) -> Path:
    value = environment.get(variable)
    return Path(value).absolute() if value else default


def _list_claude_code_parts(environment: Mapping[str, str], home: Path) -> tuple[SettingsPart, ...]:
    configured = environment.get("CLAUDE_CONFIG_DIR")
    directory = Path(configured).absolute() if configured else home / ".claude"
    servers = (directory if configured else home) / ".claude.json"
    return (
        SettingsPart(servers, Json(), "mcpServers", {"type": "stdio"}),
        SettingsPart(
            directory / "settings.json",
            Json(),
            events=("UserPromptSubmit", "SessionStart", "SubagentStart"),
            hook_members={"timeout": _HOOK_SECONDS},
            disabling_members=((("disableAllHooks",), True),),
        ),
    )


def _list_codex_parts(environment: Mapping[str, str], home: Path) -> tuple[SettingsPart, ...]:
    directory = _read_directory(environment, "CODEX_HOME", home / ".codex")
    config, hooks_file = directory / "config.toml", directory / "hooks.json"
    server = {"tool_timeout_sec": _TOOL_SECONDS}
    events = ("UserPromptSubmit", "SessionStart", "SubagentStart")
    hook = {"timeout": _HOOK_SECONDS}
    off = tuple((("features", name), False) for name in ("hooks", "codex_hooks"))
    if hooks_file.exists():  # Codex warns if hooks are in both.
        return (
            SettingsPart(config, Toml(), "mcp_servers", server_suffix=server, disabling_members=off),
            SettingsPart(hooks_file, Json(), events=events, hook_members=hook),
        )
    return (
        SettingsPart(
            config,
            Toml(),
            "mcp_servers",
            server_suffix=server,
            events=events,
            hook_members=hook,
            disabling_members=off,
        ),
    )


def _list_cursor_parts(environment: Mapping[str, str], home: Path) -> tuple[SettingsPart, ...]:
    del environment  # No variable changes its directory.
    return (
        SettingsPart(home / ".cursor" / "mcp.json", Json(), "mcpServers"),
        SettingsPart(
            home / ".cursor" / "hooks.json",
            Json(),
            events=("beforeSubmitPrompt", "sessionStart", "preCompact"),
            hook_members={"timeout": _HOOK_SECONDS},
            is_flat=True,
            required_members={"version": 1},
        ),
    )


def _list_qwen_code_parts(environment: Mapping[str, str], home: Path) -> tuple[SettingsPart, ...]:
    file = _read_directory(environment, "QWEN_HOME", home / ".qwen") / "settings.json"
    # Current versions use seconds below 1000 and milliseconds from 1000 on; older ones always use
    # milliseconds.
    hook = {"name": NAME, "timeout": _HOOK_SECONDS * 1_000}
    off = ((("disableAllHooks",), True),)
    events = ("UserPromptSubmit", "SessionStart")
    return (
        SettingsPart(
            file, Json(comments=True), "mcpServers", events=events, hook_members=hook, disabling_members=off
        ),
    )


def _list_gemini_cli_parts(environment: Mapping[str, str], home: Path) -> tuple[SettingsPart, ...]:
    file = _read_directory(environment, "GEMINI_CLI_HOME", home) / ".gemini" / "settings.json"
    hook = {"name": NAME, "timeout": _HOOK_SECONDS * 1_000}
    off = ((("hooksConfig", "enabled"), False),)
    events = ("BeforeAgent", "SessionStart", "PreCompress")
    return (
        SettingsPart(
            file, Json(comments=True), "mcpServers", events=events, hook_members=hook, disabling_members=off
        ),
    )


TOOLS: Final[Mapping[str, CodingTool]] = MappingProxyType(
    {
        "claude-code": CodingTool("Claude Code", _list_claude_code_parts, ("new sessions use it",)),
        "codex": CodingTool(
            "Codex",
            _list_codex_parts,
            ("start Codex and trust the hooks with /hooks: until then Codex silently skips them",),
        ),
        "cursor": CodingTool(
            "Cursor",
            _list_cursor_parts,
            (
                "restart Cursor, and enable the server under Customize, MCPs",
                "some versions of Cursor ignore entries recalled for a prompt; the server works in all",
            ),
        ),
        "qwen-code": CodingTool("Qwen Code", _list_qwen_code_parts, ("restart Qwen Code",)),
        "gemini-cli": CodingTool("Gemini CLI", _list_gemini_cli_parts, ("restart Gemini CLI",)),
    }
)
