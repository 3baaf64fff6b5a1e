"""Implement `muniment setup`: edit the settings of coding tools, after a preview.

S1 Nothing is written without a confirmation, by a user at a terminal or by `--yes`.
S2 The preview shows exactly what is written. It shows no other line of the file, because other lines may
   contain keys.
S3 If a file changed between preview and confirmation, it is read again. It is written only if the change is
   still the same.
S4 If nothing else changed since the setup, `--remove` restores the original bytes. Otherwise it removes
   Muniment's entries, and leaves the rest unchanged.
S5 `--remove` also removes the directories that setup created, if they are empty.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from muniment.cli.command import Report, command, load_settings
from muniment.cli.options import Json, ToolName
from muniment.cli.own_memory import present_own_memory
from muniment.cli.service import DaemonService, format_service_result
from muniment.cli.terminal import (
    EXIT_FAILED,
    color_text,
    confirm_change,
    is_interactive,
    print_line,
    print_notes,
)
from muniment.content.gates import clean_foreign_line
from muniment.errors import ConfigInvalid, printable
from muniment.integrations.coding_tools.edits import Edit, edit_text
from muniment.integrations.coding_tools.files import (
    ChangedMeanwhile,
    CreatedDirectory,
    SavedFile,
    SettingsFile,
    create_directories,
    delete_saved_files,
    read_settings_file,
    remove_directories,
    write_settings_file,
)
from muniment.integrations.coding_tools.tools import NAME, TOOLS, CodingTool, Program, SettingsPart
from muniment.names import HOME_VARIABLE
from muniment.portable import IS_WINDOWS

if TYPE_CHECKING:
    from muniment.integrations.coding_tools.own_memory import OwnMemory

START_SECONDS: Final = 30.0
"""Maximum seconds for the program to print its version; it normally takes half a second."""

_TRIES: Final = 3
"""Maximum attempts to write a file that another program keeps changing."""

_BOM: Final = "\ufeff"

_PRIVATE_MEMBER: Final = re.compile(
    r'(?i)("?[\w.-]*(?:key|token|secret|passw|auth)[\w.-]*"?\s*[:=]\s*)("(?:\\.|[^"\\])*"|\S+)'
)
"""Matches a member of a settings file whose name shows that its value is private, such as `api_key`."""

_TEMPORARY: Final = re.compile(r"/uv/(?:archive|environments|builds)-v\d+/|/\.cache/pipx/|/pipx/\.cache/")
"""Matches the path of a temporary environment that `uvx` or `pipx run` created and may delete."""


class Piece(NamedTuple):
    """A part of a file that an edit changes.

    Attributes:
        line: the number of its first line.
        removed: the removed text.
        added: the added text.
        preview: the removed and the added text with private values masked.
    """

    line: int
    removed: str
    added: str
    preview: tuple[str, str]


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """A planned change of a settings file.

    Attributes:
        part: the description of Muniment's entries in the file.
        file: the file as it was read.
        after: the new content; None: the file is removed.
        pieces: the parts of the file that change.
        original: the content that `--remove` restores; None: it removes the file.
    """

    part: SettingsPart
    file: SettingsFile
    after: bytes | None
    pieces: tuple[Piece, ...]
    original: bytes | None

    @property
    def replacements(self) -> list[tuple[str, str]]:
        """Return the removed and the added text of each changed part, without line numbers."""
        return [(piece.removed, piece.added) for piece in self.pieces]

    @property
    def lines(self) -> list[str]:
        """Return the lines of the preview: only changed parts of the file, with private values masked."""
        lines = []
        for piece in self.pieces:
            lines.append(f"@@ line {piece.line} @@")
            for sign, text in zip("-+", piece.preview, strict=True):
                lines += [
                    f"{sign}{_PRIVATE_MEMBER.sub(_mask, line)}" for line in text.splitlines() if line.strip()
                ]
        return lines


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation; required without a terminal.")]


def _describe_failure(options: Mapping[str, Any]) -> str:
    problem = "not removed" if options["remove"] else "not set up"
    if options["tool"] and options["daemon"]:
        return f"{problem} completely"
    title = TOOLS[options["tool"]].title if options["tool"] else "the daemon" if options["daemon"] else ""
    return f"{problem}: {title}" if title else problem


@command(_describe_failure)
def setup(
    *,
    tool: Annotated[ToolName | None, typer.Argument(metavar="TOOL", show_default=False)] = None,
    daemon: Annotated[
        bool, typer.Option("--daemon", help="Run the daemon as a systemd service of this user.")
    ] = False,
    workspace: Annotated[
        list[Path] | None,
        typer.Option(
            help="With --daemon: a directory of a workspace to serve. May be repeated.",
            show_default="those of the existing service, or the current directory",
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what an earlier setup added.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> Report:
    """Add the MCP server and the recall hook to a coding tool.

    Both are added to the settings of the tool. The command shows the change first, and writes nothing before
    you confirm it. With --daemon, it does the same for a service that runs the daemon.
    """
    require_setup_support()
    if tool is None and not daemon:
        raise ConfigInvalid(f"missing TOOL: use one of {', '.join(TOOLS)}, or --daemon")
    if workspace and not daemon:
        raise ConfigInvalid("--workspace is only for --daemon; add --daemon or remove --workspace")
    home = load_settings().home
    program = None if remove else find_program(home)
    document, code = dict[str, Any](), 0
    if tool is not None:
        setting = ToolSetup(tool.value, TOOLS[tool], home, program)
        document, code = _set_up_tool(setting, yes=yes, json=json)
        if not json and not daemon and not remove and is_interactive():
            print_line(f"to run the daemon as a service: {NAME} setup --daemon")
    if daemon:
        service = DaemonService(home)
        if program is None:
            result = service.remove(yes=yes, quiet=json)
        else:
            result = service.install(program, workspace or (), yes=yes, quiet=json)
        document["daemon"] = result.as_json()
        code = EXIT_FAILED if result.status == "not_written" else code
        for line in () if json else format_service_result(result, is_removal=remove):
            print_line(clean_foreign_line(line) if line[0] != " " else line)
    statuses = {document.get("status"), document.get("daemon", {}).get("status")}
    hint = "nothing was written; answer yes at a terminal, or use --yes"
    return Report(document, problems=[hint] if "not_written" in statuses else [], code=code)


def _set_up_tool(setting: ToolSetup, *, yes: bool, json: bool) -> tuple[dict[str, Any], int]:
    """Set up a coding tool, or remove Muniment from it; return the JSON document and the exit code.

    Args:
        setting: the setup or removal.
        yes: whether the user has confirmed with `--yes`.
        json: whether to print no text and to ask nothing.
    """
    changes, notes = setting.changes(), setting.notes()
    is_removal = setting.program is None
    if not json:
        _print_changes(changes)
        print_notes(notes)
    status = "not_written" if changes else "unchanged"
    if changes and (yes or (not json and confirm_change("write these changes?"))):
        setting.write(changes)
        status = "removed" if is_removal else "written"
    elif not changes and is_removal:
        setting.forget()
    own_memory = None if is_removal else setting.find_own_memory()
    code = EXIT_FAILED if status == "not_written" else 0
    if not json:
        for line in _format_setup_result(setting, status):
            print_line(line)
        if own_memory is not None and code == 0:
            code = present_own_memory(own_memory, setting.tool.title, can_ask=not yes)
    files = [{"path": printable(str(each.file.configured_path)), "change": each.lines} for each in changes]
    document = {"tool": setting.name, "status": status, "files": files, "notes": notes}
    return {**document, "own_memory": own_memory and own_memory.as_json()}, code


def require_setup_support() -> None:
    """Check that this system is not Windows: the owner of a settings file is unknown there.

    Raises:
        ConfigInvalid: this system is Windows.
    """
    if IS_WINDOWS:
        raise ConfigInvalid(
            "not supported on Windows; add or remove the server and the hook by hand (docs/setup.md)"
        )


def find_program(home: Path) -> Program:
    """Return a command that starts this program from any directory.

    Args:
        home: the home to set in the command, if `MUNIMENT_HOME` is set.

    Raises:
        ConfigInvalid: no command works without the environment variables of this shell.
    """
    sibling = Path(sys.executable).absolute().with_name(NAME)
    called = Path(sys.argv[0])
    candidates = [[str(each)] for each in (called, sibling) if each.name == NAME and each.is_absolute()]
    candidates += [[sys.executable, "-m", NAME]]
    environment = {name: value for name in ("HOME", "PATH") if (value := os.environ.get(name))}
    for arguments in candidates:
        try:
            arguments[0].encode()
            done = subprocess.run(  # noqa: S603  this program itself
                [*arguments, "--version"],
                env=environment,
                cwd="/",
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=START_SECONDS,
                check=False,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.startswith(f"{NAME} ".encode()):
            return Program(tuple(arguments), str(home) if os.environ.get(HOME_VARIABLE) else None)
    raise ConfigInvalid(
        f"{NAME} cannot be started from another directory, as coding tools do; install it, for example with: "
        f"pip install '{NAME}[mcp]'"
    )


@dataclass(frozen=True, slots=True)
class ToolSetup:
    """The setup of Muniment in one coding tool, or its removal.

    Attributes:
        name: the name of the tool on the command line, such as `codex`.
        tool: the description of the tool.
        home: the home, `$MUNIMENT_HOME`.
        program: the command to add to the settings; None: remove Muniment's entries.
    """

    name: str
    tool: CodingTool
    home: Path
    program: Program | None

    def changes(self) -> list[SettingsChange]:
        """Return the changes of settings files that are needed; an empty list if no file must change.

        Raises:
            ConfigInvalid: a file does not belong to this user alone, or cannot be read or edited.
        """
        return [each for part in self._get_parts() if (each := self._compute_change(part)) is not None]

    def write(self, changes: list[SettingsChange]) -> None:
        """Write the changes to the settings files.

        Raises:
            ConfigInvalid: a change cannot be written, or the file has changed since the preview. Files that
                were written before the error stay changed.
        """
        created: list[CreatedDirectory] = []
        try:
            for change in changes:
                self._write_previewed(change, created)
        except BaseException:
            remove_directories(created)
            raise
        if self.program is None:
            self.forget()

    def notes(self) -> list[str]:
        """Return notes for the user, such as about a missing package or a hook of the user's own."""
        documents = [(part, self._read_document(part)) for part in self._get_parts()]
        notes = [note for part, document in documents for note in part.list_user_hook_notes(document)]
        if self.program is None:
            return notes
        notes += [note for part, document in documents for note in part.notes(document)]
        directory = self._get_parts()[-1].file.parent
        if not directory.is_dir():
            notes.append(f"{directory} not found: {self.tool.title} was never started here")
        first = self.program.arguments[0]
        if _TEMPORARY.search(first):
            notes.append(
                f"{first} is in a temporary environment that may be deleted; better: uv tool install "
                f"'{NAME}[mcp]', then run this again"
            )
        if importlib.util.find_spec("mcp") is None:
            notes.append(f"the server needs the extra `mcp`: pip install '{NAME}[mcp]'")
        return notes

    def find_own_memory(self) -> OwnMemory | None:
        """Find the memory that the tool keeps itself; None: it keeps none. Raises as `changes`."""
        from muniment.integrations.coding_tools.own_memory import find_own_memory

        documents = {part.file: self._read_document(part) for part in self._get_parts()}
        return find_own_memory(self.name, documents, os.environ)

    def forget(self) -> None:
        """Delete the saved copies of settings files, and the empty directories that setup created."""
        delete_saved_files([self._get_saved_file(part) for part in self._get_parts()])

    def files(self) -> list[Path]:
        """Return the paths of the tool's settings files, whether they exist or not."""
        return [part.file for part in self._get_parts()]

    def list_installed(self) -> list[Path]:
        """Return the settings files that contain entries of Muniment. Raises as `changes`."""
        return [part.file for part in self._get_parts() if part.has_entry(self._read_document(part))]

    def _get_parts(self) -> tuple[SettingsPart, ...]:
        return self.tool.parts(os.environ, Path(os.environ.get("HOME") or Path.home()))

    def _get_saved_file(self, part: SettingsPart) -> SavedFile:
        return SavedFile(self.home / "setup", self.name, part.file)

    def _read_document(self, part: SettingsPart) -> dict[str, Any]:
        file = read_settings_file(part.file)
        return self._parse(part, file, _decode_file(file)[1])

    def _parse(self, part: SettingsPart, file: SettingsFile, text: str) -> dict[str, Any]:
        try:
            return part.file_format.parse(text)
        except ConfigInvalid as error:
            raise self._create_error(part, file, error) from None

    def _create_error(self, part: SettingsPart, file: SettingsFile, error: ConfigInvalid) -> ConfigInvalid:
        by_hand = (
            "" if self.program is None else f"; or add this yourself:\n{part.render_entries(self.program)}"
        )
        return ConfigInvalid(f"{file.label} {error}; nothing was written; fix it and run this again{by_hand}")

    def _compute_change(self, part: SettingsPart) -> SettingsChange | None:
        """Return the planned change of the settings file of `part`, or None if the file does not change."""
        file = read_settings_file(part.file)
        bom, text = _decode_file(file)
        document = self._parse(part, file, text)
        is_unchanged, original = self._get_saved_file(part).read_original(file.content)
        original_text = _decode_file(SettingsFile(file.configured_path, file.path, original, None))[1]
        before, existed = self._parse_or_empty(part, original_text), self._get_saved_file(part).did_exist
        other_events = set[str]() if self.program is None else self._list_other_events(part)
        try:
            bare, removed = _apply_edits(part, text, part.remove(document, before))
            if is_unchanged:
                uninstalled = original
            else:
                is_deleted = existed is False and part.is_empty(bare)
                uninstalled = None if is_deleted else (bom + bare).encode()
            if self.program is None:
                removed = (_create_piece(part, text, ""),) if removed and uninstalled is None else removed
                return SettingsChange(part, file, uninstalled, removed, uninstalled) if removed else None
            after, added = _apply_edits(part, text, part.install(document, self.program, other_events))
        except ConfigInvalid as error:
            raise self._create_error(part, file, error) from None
        if not added:
            return None
        # At the first setup, an existing entry belongs to the user: if an earlier setup was killed, it wrote
        # nothing.
        is_first = existed is None or file.content == original
        before_setup = uninstalled if removed and not is_first else file.content
        return SettingsChange(part, file, (bom + after).encode(), added, before_setup)

    def _parse_or_empty(self, part: SettingsPart, text: str) -> Mapping[str, Any]:
        try:
            return part.file_format.parse(text)
        except ConfigInvalid:
            return {}

    def _list_other_events(self, part: SettingsPart) -> set[str]:
        """Return the events for which another settings file of the tool already contains the hook."""
        others = [each for each in self._get_parts() if each.file != part.file]
        return {event for each in others for event in each.collect_events(self._read_document(each))}

    def _write_previewed(self, previewed: SettingsChange, created: list[CreatedDirectory]) -> None:
        change: SettingsChange | None = previewed
        for _ in range(_TRIES):
            if change is None:
                return  # Another process has written it.
            if change.replacements != previewed.replacements:
                break
            try:
                self._write(change, created)
            except ChangedMeanwhile:
                change = self._compute_change(previewed.part)
            else:
                return
        raise ConfigInvalid(
            f"{previewed.file.label} was changed by another program; run this again and check the new preview"
        )

    def _write(self, change: SettingsChange, created: list[CreatedDirectory]) -> None:
        saved = self._get_saved_file(change.part)
        if change.after is None:
            saved.begin_removal()
        elif self.program is not None:
            created += (each for each in self._list_known_directories() if each not in created)
            create_directories(change.file, created)
            saved.save(change.file.path, change.original, change.after, created)
        write_settings_file(change.file, change.after)

    def _list_known_directories(self) -> Iterator[CreatedDirectory]:
        """Yield the directories that an earlier setup created for settings files that still exist."""
        for part in self._get_parts():
            if part.file.exists():
                yield from self._get_saved_file(part).list_directories()


def _decode_file(file: SettingsFile) -> tuple[str, str]:
    """Return the byte order mark of a settings file (empty if it has none), and its text.

    Raises:
        ConfigInvalid: the file is not UTF-8.
    """
    try:
        text = (file.content or b"").decode()
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{file.label} is not UTF-8; convert it to UTF-8; nothing was written") from None
    return (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)


def _apply_edits(part: SettingsPart, text: str, edits: Iterable[Edit]) -> tuple[str, tuple[Piece, ...]]:
    """Return a text after edits, and the parts that the edits changed.

    Args:
        part: the description of the settings file.
        text: the content of the file.
        edits: the edits, in order.

    Raises:
        ConfigInvalid: an edit cannot be applied.
    """
    pieces = []
    for edit in edits:
        after = edit_text(part.file_format, text, edit)
        pieces.append(_create_piece(part, text, after))
        text = after
    return text, tuple(pieces)


def _create_piece(part: SettingsPart, text: str, after: str) -> Piece:
    """Return the part of a text that an edit changed; in its preview, private values are masked.

    Args:
        part: the description of the settings file.
        text: the text before the edit.
        after: the text after the edit.
    """
    private_values = [part.collect_secrets(part.file_format.parse(each)) for each in (text, after)]
    secrets = private_values[0] | private_values[1]
    _, *preview = _find_difference(*(part.file_format.mask(each, secrets) for each in (text, after)))
    line, removed, added = _find_difference(text, after)
    return Piece(line, removed, added, (preview[0], preview[1]) if any(preview) else ('"…"', '"…"'))


def _find_difference(text: str, after: str) -> tuple[int, str, str]:
    """Return the part in which two texts differ; it is extended to complete lines and values if possible.

    Returns:
        The line number of the part, its text in `text`, and its text in `after`.
    """
    begin = _count_common_prefix(text, after)
    rest = _count_common_prefix(text[begin:][::-1], after[begin:][::-1])
    removed, added = (each[begin : len(each) - rest] for each in (text, after))
    while (
        begin
        and not (removed and added)
        and (removed + added)[:1] not in {",", "\n"}
        and (removed + added)[-1:] == text[begin - 1]
    ):
        begin -= 1  # Choose the same change, but one character earlier.
        removed, added = (text[begin] + each[:-1] if each else "" for each in (removed, added))
    while removed and added and begin and text[begin - 1] not in '"\n':
        begin -= 1  # Show a replaced value completely.
        removed, added = text[begin] + removed, text[begin] + added
    while removed and added and rest and text[len(text) - rest] not in '"\n':
        removed, added = removed + text[len(text) - rest], added + text[len(text) - rest]
        rest -= 1
    return text.count("\n", 0, begin) + 1, removed.lstrip(",\r\n"), added.lstrip(",\r\n")


def _count_common_prefix(one: str, other: str) -> int:
    """Return the number of characters with which both texts begin. Cost: a binary search over slices."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _mask(found: re.Match[str]) -> str:
    return f'{found[1]}"…"'


def _print_changes(changes: list[SettingsChange]) -> None:
    """Print the preview of the changes, before the user is asked for confirmation."""
    for change in changes:
        what = "new file" if change.file.content is None else "file"
        print_line(f"{'file to remove' if change.after is None else what} {change.file.label}")
        for line in change.lines:
            print_line(color_text(line, {"+": "green", "-": "red"}.get(line[0], "dim")))


def _format_setup_result(setting: ToolSetup, status: str) -> Iterator[str]:
    title = setting.tool.title
    if status == "unchanged" and setting.program is None:
        yield f"the settings of {title} do not contain Muniment"
    elif status == "unchanged":
        yield f"{title} is already set up"
    elif status == "removed":
        yield f"removed from {title}"
    elif status == "written":
        yield f"{title} is set up; the previous files are saved in {setting.home / 'setup'}"
        for step in setting.tool.manual_steps:
            yield f"  {step}"
        yield f"  to undo it: {NAME} setup {setting.name} --remove"
