"""`muniment setup`: the server and the hook in the settings of a coding tool, shown first, and taken back.

S1 Nothing is written without a `yes`, of a person at a terminal or by `--yes`.
S2 What is shown is what is written, and nothing else of the file: other lines may hold keys.
S3 A file that changed between look and answer is looked at anew, and written only if that comes to the same.
S4 `--remove` gives back the very bytes where nothing else changed since; else it takes out ours, and leaves
   the rest as others made it.
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
from typing import Annotated, Any, Final, NamedTuple

import typer

from muniment.cli.command import CommandAnswer, command, settings_of
from muniment.cli.options import Json, ToolName
from muniment.cli.setup_edits import Broken, Edit, edit_text
from muniment.cli.setup_files import (
    ChangedMeanwhile,
    KeptFile,
    SettingsFile,
    read_settings_file,
    write_settings_file,
)
from muniment.cli.setup_tools import NAME, TOOLS, CodingTool, Part, Program
from muniment.cli.terminal import EXIT_FAILED, coloured, is_asked_on_terminal, say, say_notes, says_yes
from muniment.errors import ConfigInvalid, printable
from muniment.names import HOME_VARIABLE
from muniment.portable import IS_WINDOWS

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
) -> CommandAnswer:
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
    if changes and (yes or (not json and _is_agreed())):
        setting.write(changes)
        status = "removed" if remove else "written"
    elif not changes and remove:
        setting.forget()
    files = [{"path": printable(str(each.file.named)), "change": each.lines} for each in changes]
    refused = "nothing was written; to write this: answer yes at a terminal, or give --yes"
    return CommandAnswer(
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
        for change in changes:
            self._write_as_shown(change)

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
        """Keep no file any longer."""
        for part in self._parts():
            self._kept(part).drop()

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
        except Broken as error:
            raise self._broken(part, file, error) from None

    def _broken(self, part: Part, file: SettingsFile, error: Broken) -> ConfigInvalid:
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
        before = self._before(part, known)
        try:
            bare, taken = _edited(part, text, part.remove(document, before))
            if is_whole:
                plain = original
            else:
                gone = self._kept(part).existed is False and part.is_empty(bare)
                plain = None if gone else (bom + bare).encode()
            if self.program is None:
                taken = (_piece(part, text, ""),) if taken and plain is None else taken
                return SettingsChange(part, file, plain, taken, plain) if taken else None
            after, put = _edited(part, text, part.install(document, self.program, self._elsewhere(part)))
        except Broken as error:
            raise self._broken(part, file, error) from None
        if not put:
            return None
        # At the first setup an entry that is there is a person's own, and one that was killed wrote nothing.
        is_first = self._kept(part).existed is None or file.content == original
        before_ours = plain if taken and not is_first else file.content
        return SettingsChange(part, file, (bom + after).encode(), put, before_ours)

    def _before(self, part: Part, text: str) -> Mapping[str, Any]:
        try:
            return part.form.parse(text)
        except Broken:
            return {}

    def _elsewhere(self, part: Part) -> set[str]:
        """Events whose hook stands in another file of the tool."""
        others = [each for each in self._parts() if each.file != part.file]
        return {event for each in others for event in each.events_in(self._document(each))}

    def _write_as_shown(self, shown: SettingsChange) -> None:
        change: SettingsChange | None = shown
        for _ in range(_TRIES):
            if change is None:
                return  # Somebody else has done it.
            if change.words != shown.words:
                break
            try:
                self._write(change)
            except ChangedMeanwhile:
                change = self._change(shown.part)
            else:
                return
        raise ConfigInvalid(f"{shown.file.shown} was changed meanwhile; run this again and look at it again")

    def _write(self, change: SettingsChange) -> None:
        kept = self._kept(change.part)
        if self.program is not None and change.after is not None:
            kept.keep(change.before, change.after)
        write_settings_file(change.file, change.after)
        if self.program is None:
            kept.drop()


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
        Broken: one of them cannot be made.
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


def _is_agreed() -> bool:
    """Whether a person at a terminal says yes (S1)."""
    return is_asked_on_terminal() and says_yes("write this? [y/N] ")


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
