"""Implement `muniment setup` and `uninstall`: edit the settings of coding tools, after a preview.

S1 Nothing is written without confirmation, by a user at a terminal or by `--yes`.
S2 The preview shows exactly what is written, and no other line of the file: other lines may contain keys.
S3 A file that changed between preview and confirmation is read again. It is written only if the change is
   still the same.
S4 `--remove` restores the original bytes if nothing else changed since. Otherwise it removes Muniment's
   entries and leaves the rest unchanged.
S5 `--remove` also removes the directories that setup created, if they contain nothing else.

U1 The existing installation is shown first; nothing is done without confirmation.
U2 The memory is removed only on a separate request: by `--erase-memory`, and at a terminal by a second
   confirmation. Then only the files that Muniment creates in its home are removed. Other files there, and
   memory in directories that were bound from other places, stay and are listed.
U3 A daemon is never ended; while one runs no memory is erased.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from muniment.cli.command import Report, command, settings_of
from muniment.cli.options import Json, ToolName
from muniment.cli.terminal import (
    EXIT_FAILED,
    coloured,
    is_asked_on_terminal,
    say,
    say_notes,
    says_yes,
)
from muniment.content.gates import on_one_line
from muniment.errors import ConfigInvalid, printable
from muniment.files import opened
from muniment.integrations.coding_tools.edits import Edit, edit_text
from muniment.integrations.coding_tools.files import (
    ChangedMeanwhile,
    KeptFile,
    MadeDirectory,
    SettingsFile,
    kept_files,
    make_directories,
    read_settings_file,
    remove_directories,
    write_settings_file,
)
from muniment.integrations.coding_tools.tools import NAME, TOOLS, CodingTool, Part, Program
from muniment.names import HOME_VARIABLE
from muniment.portable import IS_WINDOWS

if TYPE_CHECKING:
    from muniment.settings import Settings

START_SECONDS: Final = 30.0
"""Maximum seconds for the program to print its version; it takes half a second."""

_TRIES: Final = 3
"""Maximum reads of a file that another program keeps changing."""

_BOM: Final = "\ufeff"

_SECRET: Final = re.compile(
    r'(?i)("?[\w.-]*(?:key|token|secret|passw|auth)[\w.-]*"?\s*[:=]\s*)("(?:\\.|[^"\\])*"|\S+)'
)
"""A member with a private value, recognised by its name."""

_TEMPORARY: Final = re.compile(r"/uv/(?:archive|environments|builds)-v\d+/|/\.cache/pipx/|/pipx/\.cache/")
"""Matches the path of a temporary environment that `uvx` or `pipx run` created and may delete."""


class Piece(NamedTuple):
    """A piece of a change: its line, the removed and the added text, and the preview of both."""

    line: int
    gone: str
    come: str
    shown: tuple[str, str]


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """The pending change of a settings file.

    Attributes:
        part: describes Muniment's entries in the file.
        file: as it was read.
        after: the new content; None: the file is removed.
        pieces: the preview of the change.
        before: the content that `--remove` restores.
    """

    part: Part
    file: SettingsFile
    after: bytes | None
    pieces: tuple[Piece, ...]
    before: bytes | None

    @property
    def words(self) -> list[tuple[str, str]]:
        """Return the removed and added texts, without their positions."""
        return [(piece.gone, piece.come) for piece in self.pieces]

    @property
    def lines(self) -> list[str]:
        """Return the preview of the change, without other lines of the file (S2)."""
        lines = []
        for piece in self.pieces:
            lines.append(f"@@ line {piece.line} @@")
            for sign, text in zip("-+", piece.shown, strict=True):
                lines += [f"{sign}{_SECRET.sub(_masked, line)}" for line in text.splitlines() if line.strip()]
        return lines


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation; required without a terminal.")]


def _not_done(given: Mapping[str, Any]) -> str:
    return f"{'not removed from' if given['remove'] else 'not set up:'} {TOOLS[given['tool']].title}"


@command(_not_done)
def setup(
    *,
    tool: Annotated[ToolName, typer.Argument(metavar="TOOL")],
    remove: Annotated[bool, typer.Option("--remove", help="Remove what an earlier setup added.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> Report:
    """Add the MCP server and the recall hook to a coding tool.

    They are added to its settings. The change is shown first; nothing is written before you confirm it.
    """
    require_setup_here()
    home = settings_of().home
    setting = Setting(tool.value, TOOLS[tool], home, None if remove else find_program(home))
    changes, notes = setting.changes(), setting.notes()
    if not json:
        _show(changes)
        say_notes(notes)
    status = "not_written" if changes else "unchanged"
    if changes and (yes or (not json and _agrees("write these changes?"))):
        setting.write(changes)
        status = "removed" if remove else "written"
    elif not changes and remove:
        setting.forget()
    files = [{"path": printable(str(each.file.named)), "change": each.lines} for each in changes]
    refused = "nothing was written; answer yes at a terminal, or use --yes"
    return Report(
        {"tool": tool.value, "status": status, "files": files, "notes": notes},
        _done_lines(setting, status),
        problems=[refused] if status == "not_written" else [],
        code=EXIT_FAILED if status == "not_written" else 0,
    )


def require_setup_here() -> None:
    """Check that this is not Windows, where the owner of a settings file is unknown (F2 of `files`).

    Raises:
        ConfigInvalid: this is Windows.
    """
    if IS_WINDOWS:
        raise ConfigInvalid(
            "not supported on Windows; add or remove the server and the hook by hand (docs/setup.md)"
        )


def find_program(home: Path) -> Program:
    """Find the command that starts this program from any directory.

    Raises:
        ConfigInvalid: no command works without the variables of this shell.
    """
    beside = Path(sys.executable).absolute().with_name(NAME)
    called = Path(sys.argv[0])
    candidates = [[str(each)] for each in (called, beside) if each.name == NAME and each.is_absolute()]
    candidates += [[sys.executable, "-m", NAME]]
    usual = {name: value for name in ("HOME", "PATH") if (value := os.environ.get(name))}
    for words in candidates:
        try:
            words[0].encode()
            done = subprocess.run(  # noqa: S603  this program itself
                [*words, "--version"],
                env=usual,
                cwd="/",
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=START_SECONDS,
                check=False,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.startswith(f"{NAME} ".encode()):
            return Program(tuple(words), str(home) if os.environ.get(HOME_VARIABLE) else None)
    raise ConfigInvalid(
        f"{NAME} cannot be started from another directory, as a coding tool does; install it, such as with: "
        f"pip install '{NAME}[mcp]'"
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """The setup of a tool, or its removal.

    Attributes:
        name: of the tool, as typed by the user.
        tool: its description.
        home: `$MUNIMENT_HOME`.
        program: the command to add; None: remove Muniment's entries.
    """

    name: str
    tool: CodingTool
    home: Path
    program: Program | None

    def changes(self) -> list[SettingsChange]:
        """Return the required changes; empty if there are none.

        Raises:
            ConfigInvalid: a file does not belong to the user alone, or cannot be read or edited.
        """
        return [each for part in self._parts() if (each := self._change(part)) is not None]

    def write(self, changes: list[SettingsChange]) -> None:
        """Write the changes.

        Raises:
            ConfigInvalid: a change cannot be written, or is outdated (S3). Earlier writes stay.
        """
        made: list[MadeDirectory] = []
        try:
            for change in changes:
                self._write_as_shown(change, made)
        except BaseException:
            remove_directories(made)
            raise
        if self.program is None:
            self.forget()

    def notes(self) -> list[str]:
        """Return remarks for the user."""
        read = [(part, self._document(part)) for part in self._parts()]
        notes = [note for part, document in read for note in part.notes_of_own(document)]
        if self.program is None:
            return notes
        notes += [note for part, document in read for note in part.notes(document)]
        directory = self._parts()[-1].file.parent
        if not directory.is_dir():
            notes.append(f"{directory} not found: {self.tool.title} was never started here")
        first = self.program.words[0]
        if _TEMPORARY.search(first):
            notes.append(
                f"{first} is in a temporary environment that may be deleted; better: uv tool install "
                f"'{NAME}[mcp]', then run this again"
            )
        if importlib.util.find_spec("mcp") is None:
            notes.append(f"the server needs the extra `mcp`: pip install '{NAME}[mcp]'")
        return notes

    def forget(self) -> None:
        """Delete the saved files, and the directories that setup created and that are now unused (S5)."""
        kept = [self._kept(part) for part in self._parts()]
        unused = {directory for each in kept for directory in each.unused_directories()}
        for each in kept:
            each.drop()
        remove_directories(unused)

    def files(self) -> list[Path]:
        """Return the paths of the tool's settings files, existing or not."""
        return [part.file for part in self._parts()]

    def is_there(self) -> list[Path]:
        """Return the settings files with entries of Muniment; raise as `changes`."""
        return [part.file for part in self._parts() if part.is_ours_in(self._document(part))]

    def _parts(self) -> tuple[Part, ...]:
        return self.tool.parts(os.environ, Path(os.environ.get("HOME") or Path.home()))

    def _kept(self, part: Part) -> KeptFile:
        return KeptFile(self.home / "setup", self.name, part.file)

    def _document(self, part: Part) -> dict[str, Any]:
        file = read_settings_file(part.file)
        return self._parsed(part, file, _text_of(file)[1])

    def _parsed(self, part: Part, file: SettingsFile, text: str) -> dict[str, Any]:
        try:
            return part.form.parse(text)
        except ConfigInvalid as error:
            raise self._broken(part, file, error) from None

    def _broken(self, part: Part, file: SettingsFile, error: ConfigInvalid) -> ConfigInvalid:
        by_hand = "" if self.program is None else f"; or add this yourself:\n{part.pasted(self.program)}"
        return ConfigInvalid(f"{file.shown} {error}; nothing was written; fix it and run this again{by_hand}")

    def _change(self, part: Part) -> SettingsChange | None:
        """Return the change of a file; None if it does not change."""
        file = read_settings_file(part.file)
        bom, text = _text_of(file)
        document = self._parsed(part, file, text)
        is_whole, original = self._kept(part).before(file.content)
        known = _text_of(SettingsFile(file.named, file.path, original, None))[1]
        before, existed = self._before(part, known), self._kept(part).existed
        elsewhere = set[str]() if self.program is None else self._elsewhere(part)
        try:
            bare, taken = _edited(part, text, part.remove(document, before))
            if is_whole:
                plain = original
            else:
                gone = existed is False and part.is_empty(bare)
                plain = None if gone else (bom + bare).encode()
            if self.program is None:
                taken = (_piece(part, text, ""),) if taken and plain is None else taken
                return SettingsChange(part, file, plain, taken, plain) if taken else None
            after, put = _edited(part, text, part.install(document, self.program, elsewhere))
        except ConfigInvalid as error:
            raise self._broken(part, file, error) from None
        if not put:
            return None
        # At the first setup, an existing entry belongs to the user; a setup that was killed wrote nothing.
        is_first = existed is None or file.content == original
        before_ours = plain if taken and not is_first else file.content
        return SettingsChange(part, file, (bom + after).encode(), put, before_ours)

    def _before(self, part: Part, text: str) -> Mapping[str, Any]:
        try:
            return part.form.parse(text)
        except ConfigInvalid:
            return {}

    def _elsewhere(self, part: Part) -> set[str]:
        """Return the events whose hook is in another file of the tool."""
        others = [each for each in self._parts() if each.file != part.file]
        return {event for each in others for event in each.events_in(self._document(each))}

    def _write_as_shown(self, shown: SettingsChange, made: list[MadeDirectory]) -> None:
        change: SettingsChange | None = shown
        for _ in range(_TRIES):
            if change is None:
                return  # Another process has written it.
            if change.words != shown.words:
                break
            try:
                self._write(change, made)
            except ChangedMeanwhile:
                change = self._change(shown.part)
            else:
                return
        raise ConfigInvalid(
            f"{shown.file.shown} was changed by another program; run this again and check the new preview"
        )

    def _write(self, change: SettingsChange, made: list[MadeDirectory]) -> None:
        kept = self._kept(change.part)
        if change.after is None:
            kept.begin_removal()
        elif self.program is not None:
            made += (each for each in self._known_directories() if each not in made)
            make_directories(change.file, made)
            kept.keep(change.file.path, change.before, change.after, made)
        write_settings_file(change.file, change.after)

    def _known_directories(self) -> Iterator[MadeDirectory]:
        """Return the directories that an earlier setup made for files that are still there."""
        for part in self._parts():
            if part.file.exists():
                yield from self._kept(part).directories()


def _text_of(file: SettingsFile) -> tuple[str, str]:
    """Return the byte order mark of a file, if it has one, and its text.

    Raises:
        ConfigInvalid: it is not UTF-8.
    """
    try:
        text = (file.content or b"").decode()
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{file.shown} is not UTF-8; nothing was written") from None
    return (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)


def _edited(part: Part, text: str, edits: Iterable[Edit]) -> tuple[str, tuple[Piece, ...]]:
    """Return a text after edits, and the pieces that changed.

    Raises:
        ConfigInvalid: an edit cannot be applied.
    """
    pieces = []
    for edit in edits:
        after = edit_text(part.form, text, edit)
        pieces.append(_piece(part, text, after))
        text = after
    return text, tuple(pieces)


def _piece(part: Part, text: str, after: str) -> Piece:
    """Return the piece that an edit changed. Private values are masked first, so no part is shown."""
    known = [part.secrets_in(part.form.parse(each)) for each in (text, after)]
    secrets = known[0] | known[1]
    _, *shown = _difference(*(part.form.masked(each, secrets) for each in (text, after)))
    line, gone, come = _difference(text, after)
    return Piece(line, gone, come, (shown[0], shown[1]) if any(shown) else ('"…"', '"…"'))


def _difference(text: str, after: str) -> tuple[int, str, str]:
    """Return where two texts differ; whole lines if only whole lines differ."""
    begin = _alike(text, after)
    rest = _alike(text[begin:][::-1], after[begin:][::-1])
    gone, come = (each[begin : len(each) - rest] for each in (text, after))
    while (
        begin
        and not (gone and come)
        and (gone + come)[:1] not in {",", "\n"}
        and (gone + come)[-1:] == text[begin - 1]
    ):
        begin -= 1  # The same piece, starting one character earlier.
        gone, come = (text[begin] + each[:-1] if each else "" for each in (gone, come))
    while gone and come and begin and text[begin - 1] not in '"\n':
        begin -= 1  # Show a replaced value completely.
        gone, come = text[begin] + gone, text[begin] + come
    while gone and come and rest and text[len(text) - rest] not in '"\n':
        gone, come = gone + text[len(text) - rest], come + text[len(text) - rest]
        rest -= 1
    return text.count("\n", 0, begin) + 1, gone.lstrip(",\r\n"), come.lstrip(",\r\n")


def _alike(one: str, other: str) -> int:
    """Return the length of the common prefix. Cost: some comparisons of slices."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _masked(found: re.Match[str]) -> str:
    return f'{found[1]}"…"'


def _show(changes: list[SettingsChange]) -> None:
    """Print the changes, before the user is asked."""
    for change in changes:
        what = "new file" if change.file.content is None else "file"
        say(f"{'file to remove' if change.after is None else what} {change.file.shown}")
        for line in change.lines:
            say(coloured(line, {"+": "green", "-": "red"}.get(line[0], "dim")))


def _agrees(question: str) -> bool:
    """Return whether a user at a terminal confirms (S1, U1)."""
    return is_asked_on_terminal() and says_yes(f"{question} [y/N] ")


def _done_lines(setting: Setting, status: str) -> Iterator[str]:
    title = setting.tool.title
    if status == "unchanged" and setting.program is None:
        yield f"the settings of {title} do not contain Muniment"
    elif status == "unchanged":
        yield f"{title} is already set up"
    elif status == "removed":
        yield f"removed from {title}"
    elif status == "written":
        yield f"{title} is set up; the previous files are saved in {setting.home / 'setup'}"
        for step in setting.tool.then:
            yield f"  {step}"
        yield f"  to undo it: {NAME} setup {setting.name} --remove"


# -- uninstall --------------------------------------------------------------------------------------

_OURS: Final = ("user", "projects", "projects.json", "state", "policies", "setup", "config.toml")
"""The files and directories that Muniment creates in its home."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The parts of Muniment on this machine, for this user.

    Attributes:
        settings: the home and the bound roots.
        tools: tools with entries of Muniment, with the files.
        runs: a daemon runs.
        entries: number of markdown files of the memory in the home.
        stays: files that are not removed with the memory, or are outside of the home, with the reason.
        notes: problems, such as files that were set up with other variables.
    """

    settings: Settings
    tools: tuple[tuple[Setting, tuple[Path, ...]], ...]
    runs: bool
    entries: int
    stays: tuple[str, ...]
    notes: tuple[str, ...]


@command("not uninstalled")
def uninstall(
    *,
    yes: Yes = False,
    erase_memory: Annotated[
        bool,
        typer.Option("--erase-memory", help="Also erase the memory permanently, after a second question."),
    ] = False,
    json: Json = False,
) -> Report:
    """Remove Muniment from the coding tools; the memory stays.

    The command first shows the existing parts, the removed ones and those that stay.
    """
    require_setup_here()
    done: list[str] = []
    erased = False
    found = look()
    home = found.settings.home
    if not json:
        _tell(found, erase_memory=erase_memory)
    if erase_memory:
        _check_erasable(found)
    agreed = yes or not found.tools or (not json and _agrees("remove it from these tools?"))
    for setting, _ in found.tools if agreed else ():
        setting.write(setting.changes())
        done.append(setting.name)
    if agreed and erase_memory:
        agreed = erased = yes or (not json and _agrees(f"erase all memory in {on_one_line(str(home))}?"))
        if erased:
            _erase(home)
    return Report(
        {
            "taken_out_of": done,
            "in_tools": [each.name for each, _ in found.tools if each.name not in done],
            "daemon_runs": found.runs,
            "home": printable(str(home)) if home.exists() else None,
            "entries": 0 if erased else found.entries,
            "erased": erased,
        },
        _left_lines(found, done, erased=erased),
        code=0 if agreed else EXIT_FAILED,
    )


def look() -> Installed:
    """Find the parts of Muniment on this machine.

    Raises:
        ConfigInvalid: the home cannot be used.
    """
    settings = settings_of()
    tools: list[tuple[Setting, tuple[Path, ...]]] = []
    notes: list[str] = []
    usual: set[Path] = set()
    for name, tool in TOOLS.items():
        setting = Setting(name, tool, settings.home, None)
        usual.update(setting.files())
        try:
            files = tuple(setting.is_there())
            notes += setting.notes()
        except ConfigInvalid as error:
            notes.append(str(error))
            continue
        tools += [(setting, files)] if files else []
    notes += [
        f"{each.named} was set up with other variables; set these, then: {NAME} setup {each.tool} --remove"
        for each in kept_files(settings.home / "setup")
        if each.named not in usual and each.named.exists()
    ]
    memory = (settings.home / "user", settings.home / "projects")
    entries = sum(1 for each in memory for path in each.rglob("*.md") if path.name != "MEMORY.md")
    stays = [f"{path} (bound to {scope})" for scope, path in settings.roots.items()]
    stays += [f"{path} (not created by {NAME}, or a link)" for path in _foreign(settings.home)]
    return Installed(
        settings, tuple(tools), _daemon_runs(settings.state), entries, tuple(stays), tuple(notes)
    )


def _foreign(home: Path) -> list[Path]:
    """Return the files in a home that Muniment did not create, and links."""
    here = list(home.iterdir()) if home.is_dir() else []
    projects = home / "projects"
    inside = list(projects.iterdir()) if projects in here and not projects.is_symlink() else []
    kept = [each for each in here if each.name not in _OURS or each.is_symlink()]
    return sorted([*kept, *(each for each in inside if not _is_project(each))])


def _is_project(path: Path) -> bool:
    from muniment.workspaces.projects import PROJECT_ID

    return PROJECT_ID.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def _daemon_runs(state: Path) -> bool:
    """Return whether a daemon holds the lock of a state directory."""
    from muniment.store.state import try_lock

    with ExitStack() as held:
        try:
            fd = held.enter_context(opened(state / "daemon.lock"))
        except OSError:
            return False
        return not try_lock(fd, shared=True)


def _check_erasable(found: Installed) -> None:
    """Check that the home may be erased (U2, U3).

    Raises:
        ConfigInvalid: a daemon runs, or the directory is not a home of Muniment.
    """
    home = found.settings.home
    if found.runs:
        raise ConfigInvalid(f"a daemon runs for {home}; stop it first, then run this again; nothing was done")
    is_bare = home.is_dir() and not _foreign(home)
    if not is_bare and not (found.settings.state / "ledger.db").is_file():
        raise ConfigInvalid(f"{home} contains no ledger of {NAME}; nothing was erased")
    if Path.home().resolve().is_relative_to(home.resolve()):
        raise ConfigInvalid(f"{home} is or contains your home directory; erase the files by hand")


def _erase(home: Path) -> None:
    """Erase what Muniment creates in its home; the state last, which identifies the home.

    Raises:
        ConfigInvalid: a file cannot be removed; run the command again to erase the rest.
    """
    foreign = set(_foreign(home))
    targets = [each for each in (home / name for name in _OURS) if each not in foreign]
    projects = home / "projects"
    has_projects = projects in targets and projects.is_dir()
    inside = [each for each in projects.iterdir() if each not in foreign] if has_projects else []
    try:
        for path in (*inside, *sorted(targets, key=lambda each: each.name == "state")):
            if path.is_dir():
                if path != projects:
                    shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for directory in (projects, home):
            if directory.is_dir() and not directory.is_symlink() and not any(directory.iterdir()):
                directory.rmdir()
    except OSError as error:
        raise ConfigInvalid(f"cannot remove {error.filename}: {error.strerror}; run this again") from None


def _tell(found: Installed, *, erase_memory: bool) -> None:
    """Print the existing parts, and the planned change of each (U1)."""
    for setting, files in found.tools:
        say(on_one_line(f"to remove: the entries in {setting.tool.title} ({', '.join(map(str, files))})"))
    if not found.tools:
        say("no coding tool has entries of Muniment")
    if found.runs:
        say("stays: the running daemon; stop it separately")
    if found.settings.home.exists():
        what = "to erase permanently, after a second question" if erase_memory else "stays"
        say(
            on_one_line(
                f"{what}: {found.settings.home}, with {found.entries} entries, their history and settings"
            )
        )
    for each in found.stays:
        say(on_one_line(f"stays: {each}"))
    for note in found.notes:
        say(on_one_line(f"note: {note}"))


def _left_lines(found: Installed, done: list[str], *, erased: bool) -> Iterator[str]:
    if done:
        yield f"removed from {', '.join(done)}"
    elif found.tools:
        yield "nothing was changed; answer yes at a terminal, or use --yes"
    if erased:
        yield on_one_line(f"erased: the memory in {found.settings.home}")
    elif found.settings.home.exists():
        yield f"to also erase the memory: {NAME} uninstall --erase-memory"
    yield f"to remove the program: pip uninstall {NAME}, or uv tool uninstall {NAME}, as you installed it"
