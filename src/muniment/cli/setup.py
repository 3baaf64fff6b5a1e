"""`muniment setup` and `uninstall`: into the settings of coding tools, shown first, and out again.

S1 Nothing is written without a `yes`, of a person at a terminal or by `--yes`.
S2 What is shown is what is written, and nothing else of the file: other lines may hold keys.
S3 A file that changed between look and answer is looked at anew, and written only if that comes to the same.
S4 `--remove` gives back the very bytes where nothing else changed since; else it takes out ours, and leaves
   the rest as others made it.
S5 `--remove` also removes the directories that setup made, if nothing else lies in them.

U1 What there is is shown first; nothing is done without a `yes`.
U2 The memory goes only if that is asked for by itself: by `--erase-memory`, and at a terminal by a second
   answer. Then only what Muniment makes in its home goes; other files there, and memory in directories that
   were bound from elsewhere, stay, and are named.
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
"""Seconds that the program may take to say its version; it takes half a second."""

_TRIES: Final = 3
"""Looks at a file that its own program keeps writing."""

_BOM: Final = "\ufeff"

_SECRET: Final = re.compile(
    r'(?i)("?[\w.-]*(?:key|token|secret|passw|auth)[\w.-]*"?\s*[:=]\s*)("(?:\\.|[^"\\])*"|\S+)'
)
"""A member whose name says that its value is nobody's business."""

_TEMPORARY: Final = re.compile(r"/uv/(?:archive|environments|builds)-v\d+/|/\.cache/pipx/|/pipx/\.cache/")
"""In the path of an environment that `uvx` or `pipx run` made, and may clear away."""


class Piece(NamedTuple):
    """A piece of a change: the line at which it is, what goes and comes there, and what is shown of both."""

    line: int
    gone: str
    come: str
    shown: tuple[str, str]


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """What is to become of a settings file.

    Attributes:
        part: what it has of ours.
        file: as it was read.
        after: what it is to hold; None: it goes.
        pieces: what is shown of that.
        before: what `--remove` would give back.
    """

    part: Part
    file: SettingsFile
    after: bytes | None
    pieces: tuple[Piece, ...]
    before: bytes | None

    @property
    def words(self) -> list[tuple[str, str]]:
        """What goes and comes, wherever in the file."""
        return [(piece.gone, piece.come) for piece in self.pieces]

    @property
    def lines(self) -> list[str]:
        """The change as a person reads it, without a line that is not ours (S2)."""
        lines = []
        for piece in self.pieces:
            lines.append(f"@@ line {piece.line} @@")
            for sign, text in zip("-+", piece.shown, strict=True):
                lines += [f"{sign}{_SECRET.sub(_masked, line)}" for line in text.splitlines() if line.strip()]
        return lines


Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking; needed where there is no terminal.")]


def _not_done(given: Mapping[str, Any]) -> str:
    return f"{'not taken out of' if given['remove'] else 'not set up:'} {TOOLS[given['tool']].title}"


@command(_not_done)
def setup(
    *,
    tool: Annotated[ToolName, typer.Argument(metavar="TOOL")],
    remove: Annotated[bool, typer.Option("--remove", help="Take out what an earlier setup put in.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> Report:
    """Put the MCP server and the recall hook into the settings of a coding tool.

    The change is shown first, and nothing is written before you say yes.
    """
    require_setup_here()
    home = settings_of().home
    setting = Setting(tool.value, TOOLS[tool], home, None if remove else find_program(home))
    changes, notes = setting.changes(), setting.notes()
    if not json:
        _show(changes)
        say_notes(notes)
    status = "not_written" if changes else "unchanged"
    if changes and (yes or (not json and _agrees("write this?"))):
        setting.write(changes)
        status = "removed" if remove else "written"
    elif not changes and remove:
        setting.forget()
    files = [{"path": printable(str(each.file.named)), "change": each.lines} for each in changes]
    refused = "nothing was written; to write this: answer yes at a terminal, or give --yes"
    return Report(
        {"tool": tool.value, "status": status, "files": files, "notes": notes},
        _done_lines(setting, status),
        problems=[refused] if status == "not_written" else [],
        code=EXIT_FAILED if status == "not_written" else 0,
    )


def require_setup_here() -> None:
    """Raise on Windows, where nothing tells whose a settings file is (F2 of `setup_files`).

    Raises:
        ConfigInvalid: this is Windows.
    """
    if IS_WINDOWS:
        raise ConfigInvalid(
            "this does not run on Windows; put the server and the hook there by hand, or take them out "
            "(docs/setup.md)"
        )


def find_program(home: Path) -> Program:
    """How this program is started from anywhere.

    Raises:
        ConfigInvalid: no way is found that works without what is set in this shell.
    """
    beside = Path(sys.executable).absolute().with_name(NAME)
    called = Path(sys.argv[0])
    candidates = [[str(each)] for each in (called, beside) if each.name == NAME and each.is_absolute()]
    candidates += [[sys.executable, "-m", NAME]]
    usual = {name: value for name in ("HOME", "PATH") if (value := os.environ.get(name))}
    for words in candidates:
        try:
            words[0].encode()
            done = subprocess.run(  # noqa: S603  this very program
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
        f"{NAME} cannot be started from elsewhere, as a coding tool would; install it, such as with: "
        f"pip install '{NAME}[mcp]'"
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """A tool that is set up, or whose set-up is taken back.

    Attributes:
        name: of the tool, as it is typed.
        tool: which.
        home: `$MUNIMENT_HOME`.
        program: what is put in; None: ours is taken out.
    """

    name: str
    tool: CodingTool
    home: Path
    program: Program | None

    def changes(self) -> list[SettingsChange]:
        """What is to be done; empty: nothing.

        Raises:
            ConfigInvalid: a file is not the user's alone, cannot be read, or cannot be edited.
        """
        return [each for part in self._parts() if (each := self._change(part)) is not None]

    def write(self, changes: list[SettingsChange]) -> None:
        """Do it.

        Raises:
            ConfigInvalid: it cannot be done, or is something else by now (S3). What was written before stays.
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
        """What a person should know besides."""
        read = [(part, self._document(part)) for part in self._parts()]
        notes = [note for part, document in read for note in part.notes_of_own(document)]
        if self.program is None:
            return notes
        notes += [note for part, document in read for note in part.notes(document)]
        directory = self._parts()[-1].file.parent
        if not directory.is_dir():
            notes.append(f"there is no {directory}: {self.tool.title} was never started here")
        first = self.program.words[0]
        if _TEMPORARY.search(first):
            notes.append(
                f"{first} is a temporary environment and may be cleared away; better: uv tool install "
                f"'{NAME}[mcp]', and run this again with that"
            )
        if importlib.util.find_spec("mcp") is None:
            notes.append(f"the server needs more than is installed: pip install '{NAME}[mcp]'")
        return notes

    def forget(self) -> None:
        """Keep no file any longer, and remove the directories that setup made and nothing needs (S5)."""
        kept = [self._kept(part) for part in self._parts()]
        unused = {directory for each in kept for directory in each.unused_directories()}
        for each in kept:
            each.drop()
        remove_directories(unused)

    def files(self) -> list[Path]:
        """The settings files of the tool, there or not."""
        return [part.file for part in self._parts()]

    def is_there(self) -> list[Path]:
        """Those of them that have anything of ours; raises as `changes`."""
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
        by_hand = (
            "" if self.program is None else f"; or put this there yourself:\n{part.pasted(self.program)}"
        )
        return ConfigInvalid(
            f"{file.shown} {error}; nothing was written; mend it and run this again{by_hand}"
        )

    def _change(self, part: Part) -> SettingsChange | None:
        """What is to become of a file; None: nothing."""
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
        # At the first setup an entry that is there is a person's own, and one that was killed wrote nothing.
        is_first = existed is None or file.content == original
        before_ours = plain if taken and not is_first else file.content
        return SettingsChange(part, file, (bom + after).encode(), put, before_ours)

    def _before(self, part: Part, text: str) -> Mapping[str, Any]:
        try:
            return part.form.parse(text)
        except ConfigInvalid:
            return {}

    def _elsewhere(self, part: Part) -> set[str]:
        """Events whose hook stands in another file of the tool."""
        others = [each for each in self._parts() if each.file != part.file]
        return {event for each in others for event in each.events_in(self._document(each))}

    def _write_as_shown(self, shown: SettingsChange, made: list[MadeDirectory]) -> None:
        change: SettingsChange | None = shown
        for _ in range(_TRIES):
            if change is None:
                return  # Somebody else has done it.
            if change.words != shown.words:
                break
            try:
                self._write(change, made)
            except ChangedMeanwhile:
                change = self._change(shown.part)
            else:
                return
        raise ConfigInvalid(f"{shown.file.shown} was changed meanwhile; run this again and look at it again")

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
    """The mark of its byte order, if it has one, and its text.

    Raises:
        ConfigInvalid: it is no UTF-8.
    """
    try:
        text = (file.content or b"").decode()
    except UnicodeDecodeError:
        raise ConfigInvalid(f"{file.shown} is no UTF-8; nothing was written") from None
    return (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)


def _edited(part: Part, text: str, edits: Iterable[Edit]) -> tuple[str, tuple[Piece, ...]]:
    """A text after edits, and what each of them changed.

    Raises:
        ConfigInvalid: one of them cannot be made.
    """
    pieces = []
    for edit in edits:
        after = edit_text(part.form, text, edit)
        pieces.append(_piece(part, text, after))
        text = after
    return text, tuple(pieces)


def _piece(part: Part, text: str, after: str) -> Piece:
    """What an edit changed. What is nobody's business is masked before, lest a half of it be shown."""
    known = [part.secrets_in(part.form.parse(each)) for each in (text, after)]
    secrets = known[0] | known[1]
    _, *shown = _difference(*(part.form.masked(each, secrets) for each in (text, after)))
    line, gone, come = _difference(text, after)
    return Piece(line, gone, come, (shown[0], shown[1]) if any(shown) else ('"…"', '"…"'))


def _difference(text: str, after: str) -> tuple[int, str, str]:
    """Where two texts differ; if they do so by whole lines, from the beginning of one on."""
    begin = _alike(text, after)
    rest = _alike(text[begin:][::-1], after[begin:][::-1])
    gone, come = (each[begin : len(each) - rest] for each in (text, after))
    while (
        begin
        and not (gone and come)
        and (gone + come)[:1] not in {",", "\n"}
        and (gone + come)[-1:] == text[begin - 1]
    ):
        begin -= 1  # The same piece, told from one character before.
        gone, come = (text[begin] + each[:-1] if each else "" for each in (gone, come))
    while gone and come and begin and text[begin - 1] not in '"\n':
        begin -= 1  # A value that takes the place of another is shown whole.
        gone, come = text[begin] + gone, text[begin] + come
    while gone and come and rest and text[len(text) - rest] not in '"\n':
        gone, come = gone + text[len(text) - rest], come + text[len(text) - rest]
        rest -= 1
    return text.count("\n", 0, begin) + 1, gone.lstrip(",\r\n"), come.lstrip(",\r\n")


def _alike(one: str, other: str) -> int:
    """Characters with which both begin. Cost: some comparisons of slices, no step for each character."""
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
    """The changes, before anybody is asked."""
    for change in changes:
        what = "new file" if change.file.content is None else "file"
        say(f"{'file that goes' if change.after is None else what} {change.file.shown}")
        for line in change.lines:
            say(coloured(line, {"+": "green", "-": "red"}.get(line[0], "dim")))


def _agrees(question: str) -> bool:
    """Whether a person at a terminal says yes (S1, U1)."""
    return is_asked_on_terminal() and says_yes(f"{question} [y/N] ")


def _done_lines(setting: Setting, status: str) -> Iterator[str]:
    title = setting.tool.title
    if status == "unchanged" and setting.program is None:
        yield f"the settings of {title} hold nothing of Muniment"
    elif status == "unchanged":
        yield f"{title} is set up already"
    elif status == "removed":
        yield f"taken out of {title}"
    elif status == "written":
        yield f"{title} is set up; what its files held is kept in {setting.home / 'setup'}"
        for step in setting.tool.then:
            yield f"  {step}"
        yield f"  to take it back: {NAME} setup {setting.name} --remove"


# -- uninstall --------------------------------------------------------------------------------------

_OURS: Final = ("user", "projects", "projects.json", "state", "policies", "setup", "config.toml")
"""What Muniment makes in its home."""


@dataclass(frozen=True, slots=True)
class Installed:
    """What there is of Muniment on this machine, for this user.

    Attributes:
        settings: where home is, and what is bound.
        tools: what has entries of ours, with the files.
        runs: a daemon does.
        entries: markdown files of the memory in the home.
        stays: what of the home would not go with the memory, or lies elsewhere, and why.
        notes: what could not be looked at, or was set up otherwise.
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
        typer.Option("--erase-memory", help="Erase the memory too, for good; you are asked a second time."),
    ] = False,
    json: Json = False,
) -> Report:
    """Take Muniment out of the coding tools; the memory stays.

    What there is, what goes and what stays is shown first.
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
    agreed = yes or not found.tools or (not json and _agrees("take it out of these tools?"))
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
    """What there is.

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
        f"{each.named} was set up with other variables; set them, then: {NAME} setup {each.tool} --remove"
        for each in kept_files(settings.home / "setup")
        if each.named not in usual and each.named.exists()
    ]
    memory = (settings.home / "user", settings.home / "projects")
    entries = sum(1 for each in memory for path in each.rglob("*.md") if path.name != "MEMORY.md")
    stays = [f"{path} (bound to {scope})" for scope, path in settings.roots.items()]
    stays += [f"{path} (not made by {NAME}, or a link)" for path in _foreign(settings.home)]
    return Installed(
        settings, tuple(tools), _daemon_runs(settings.state), entries, tuple(stays), tuple(notes)
    )


def _foreign(home: Path) -> list[Path]:
    """What lies in a home and is not ours to erase."""
    here = list(home.iterdir()) if home.is_dir() else []
    projects = home / "projects"
    inside = list(projects.iterdir()) if projects in here and not projects.is_symlink() else []
    kept = [each for each in here if each.name not in _OURS or each.is_symlink()]
    return sorted([*kept, *(each for each in inside if not _is_project(each))])


def _is_project(path: Path) -> bool:
    from muniment.workspaces.projects import PROJECT_ID

    return PROJECT_ID.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def _daemon_runs(state: Path) -> bool:
    """Whether a daemon holds the lock of a state directory."""
    from muniment.store.state import try_lock

    with ExitStack() as held:
        try:
            fd = held.enter_context(opened(state / "daemon.lock"))
        except OSError:
            return False
        return not try_lock(fd, shared=True)


def _check_erasable(found: Installed) -> None:
    """Raise unless the home may be erased (U2, U3).

    Raises:
        ConfigInvalid: a daemon runs, or the home is not one of ours.
    """
    home = found.settings.home
    if found.runs:
        raise ConfigInvalid(f"a daemon runs for {home}; end it first, then run this again; nothing was done")
    is_bare = home.is_dir() and not _foreign(home)
    if not is_bare and not (found.settings.state / "ledger.db").is_file():
        raise ConfigInvalid(f"{home} holds no ledger of {NAME}; nothing was erased")
    if Path.home().resolve().is_relative_to(home.resolve()):
        raise ConfigInvalid(f"{home} is or holds your home directory; erase what you mean by hand")


def _erase(home: Path) -> None:
    """Erase what Muniment makes in its home; the state last, by which it is known as a home.

    Raises:
        ConfigInvalid: something cannot be removed; what is left can be erased by asking again.
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
        raise ConfigInvalid(f"{error.filename} cannot be removed: {error.strerror}; run this again") from None


def _tell(found: Installed, *, erase_memory: bool) -> None:
    """What there is, and what is about to become of it (U1)."""
    for setting, files in found.tools:
        say(on_one_line(f"goes: the entries in {setting.tool.title} ({', '.join(map(str, files))})"))
    if not found.tools:
        say("no coding tool has entries of Muniment")
    if found.runs:
        say("stays: the daemon that runs; end it where it was started")
    if found.settings.home.exists():
        what = "goes for good, if you say yes again" if erase_memory else "stays"
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
        yield f"taken out of {', '.join(done)}"
    elif found.tools:
        yield "nothing was changed; answer yes at a terminal, or give --yes"
    if erased:
        yield on_one_line(f"erased: the memory in {found.settings.home}")
    elif found.settings.home.exists():
        yield f"to erase the memory too: {NAME} uninstall --erase-memory"
    yield f"to remove the program: pip uninstall {NAME}, or uv tool uninstall {NAME}, as you installed it"
