"""Find the memory that a coding tool keeps itself, so that the user can import it and switch it off.

O1 Nothing is written. In the directory of the tool, only the memory is read: no transcript and no log.
O2 Links below the directory of the tool are not followed.
O3 The files are untrusted. Their number and size are limited by the constants below before they are parsed,
   and `transfer.sources` parses them as for an import. A file that cannot be parsed is not counted.

docs/setup.md lists the documentation of the tools from which the locations and settings come. Separate from
`tools.py`, which describes the entries that Muniment adds to the settings of a tool.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from muniment.errors import ConfigInvalid
from muniment.files import LIST_FLAGS, open_descriptor, read_up_to
from muniment.integrations.coding_tools.tools import NAME
from muniment.transfer.source_text import ADDED_MEMORIES
from muniment.transfer.sources import MAX_LEVELS, read_source

MAX_PROJECTS: Final = 500
"""Maximum number of projects of a tool whose memory is counted."""

MAX_FILES: Final = 2_000
"""Maximum number of files in one folder of notes that is counted."""

MAX_BYTES: Final = 33_554_432
"""Maximum number of bytes of the files in one folder of notes that is counted."""

_MAX_NAMES: Final = 20_000
"""Maximum number of folders that are compared to find the directory of a project."""

_ROOT_FILE: Final = ".project_root"
"""Name of the file with the path of a project, which Gemini CLI writes."""

_OTHER_CHARACTER: Final = re.compile(r"[^a-zA-Z0-9]")

_MAX_PATH_BYTES: Final = 4_096
"""Maximum number of bytes of a file that contains the path of a project."""


@dataclass(frozen=True, slots=True)
class NoteSource:
    """Notes of a coding tool, in a form that `muniment import` accepts.

    Attributes:
        path: the folder or the file that contains the notes.
        format: the format for `--from`.
        is_project: whether the notes belong to a project, and not to all projects of the user.
        workspace: the directory of that project; None: unknown.
        files: the number of files.
        notes: the number of items that an import finds; None: too many files to count.
    """

    path: Path
    format: str
    is_project: bool
    workspace: Path | None
    files: int
    notes: int | None

    @property
    def can_import(self) -> bool:
        """Return whether an import can store the notes in the right place without more information."""
        return self.workspace is not None or not self.is_project

    @property
    def command(self) -> str:
        """Return the command line that imports the notes."""
        workspace = ("--workspace", str(self.workspace)) if self.workspace else ()
        return shlex.join((NAME, "import", str(self.path), "--from", self.format, *workspace))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of these notes."""
        return {
            "path": str(self.path),
            "format": self.format,
            "workspace": str(self.workspace) if self.workspace else None,
            "files": self.files,
            "notes": self.notes,
            "command": self.command,
        }


@dataclass(frozen=True, slots=True)
class OwnMemory:
    """The memory that a coding tool keeps itself.

    Attributes:
        sources: the notes that were found.
        is_on: whether the tool saves further notes by itself.
        switch: the setting that switches this off, and its place.
        remark: a limitation of that setting; empty if it has none.
    """

    sources: tuple[NoteSource, ...]
    is_on: bool
    switch: str
    remark: str

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of this memory."""
        sources = [each.as_json() for each in self.sources]
        return {"is_on": self.is_on, "switch_off": self.switch, "sources": sources}


class _Location(NamedTuple):
    """The place of notes below the directory of a tool.

    Attributes:
        names: the names of the path; `*` is the name of any project.
        format: the format for `--from`.
        needs_heading: whether the file contains notes only if it has a heading such as
            `## Gemini Added Memories`.
    """

    names: tuple[str, ...]
    format: str
    needs_heading: bool = False


class _ToolMemory(NamedTuple):
    """The memory of a tool, as its documentation describes it.

    Attributes:
        settings: the name of the settings file; its directory also contains the memory.
        locations: the places of the notes.
        member: the path of the member of the settings that switches the memory on or off.
        default: the value of that member if it is missing.
        switch: how to switch the memory off; `{}` is replaced by the path of the settings file.
        variable: an environment variable that switches the memory off; empty if there is none.
        moved: the member of the settings that contains another folder of notes; empty if there is none.
        remark: a limitation of the switch; empty if it has none.
    """

    settings: str
    locations: tuple[_Location, ...]
    member: tuple[str, ...]
    default: bool
    switch: str
    variable: str = ""
    moved: str = ""
    remark: str = ""


_MEMORIES: Final[Mapping[str, _ToolMemory]] = MappingProxyType(
    {
        "claude-code": _ToolMemory(
            "settings.json",
            (_Location(("projects", "*", "memory"), "claude-code"),),
            ("autoMemoryEnabled",),
            default=True,
            switch='"autoMemoryEnabled": false in {}, or the variable CLAUDE_CODE_DISABLE_AUTO_MEMORY=1',
            variable="CLAUDE_CODE_DISABLE_AUTO_MEMORY",
            moved="autoMemoryDirectory",
        ),
        "codex": _ToolMemory(
            "config.toml",
            (_Location(("memories", "MEMORY.md"), "markdown"),),
            ("features", "memories"),
            default=False,
            switch="memories = false under [features] in {}",
        ),
        "qwen-code": _ToolMemory(
            "settings.json",
            (
                _Location(("projects", "*", "memory"), "claude-code"),
                _Location(("memories",), "claude-code"),
                _Location(("QWEN.md",), "markdown", needs_heading=True),
            ),
            ("memory", "enableManagedAutoMemory"),
            default=True,
            switch='"memory": {{"enableManagedAutoMemory": false, "enableManagedAutoDream": false}} in {}',
        ),
        "gemini-cli": _ToolMemory(
            "settings.json",
            (
                _Location(("tmp", "*", "memory"), "claude-code"),
                _Location(("GEMINI.md",), "markdown", needs_heading=True),
            ),
            ("experimental", "autoMemory"),
            default=False,
            switch='"experimental": {{"autoMemory": false}} in {}',
            remark="no setting prevents that it saves a fact if you ask it to remember one",
        ),
    }
)
"""The tools that keep a memory in files. Cursor has none since version 2.1."""


def find_own_memory(
    tool: str, documents: Mapping[Path, Mapping[str, Any]], environment: Mapping[str, str]
) -> OwnMemory | None:
    """Find the memory that a coding tool keeps itself; None: it keeps none, or it is off and empty.

    Args:
        tool: the name of the tool on the command line, such as `codex`.
        documents: the settings of the tool, by file.
        environment: the environment variables.
    """
    memory = _MEMORIES.get(tool)
    if memory is None:
        return None
    file, document = next((path, each) for path, each in documents.items() if path.name == memory.settings)
    sources = [
        source
        for location in memory.locations
        for path, project in _find_paths(file.parent, location)
        if (source := _read_notes(path, location, project)) is not None
    ]
    moved = document.get(memory.moved)
    if isinstance(moved, str):
        path = Path(environment.get("HOME", ""), moved.removeprefix("~/"))
        source = _read_notes(path, memory.locations[0], None)
        sources += [] if source is None else [source]
    is_on = _is_enabled(document, memory) and environment.get(memory.variable) not in {"1", "true"}
    if not sources and not is_on:
        return None
    return OwnMemory(tuple(sources), is_on, memory.switch.format(file), memory.remark)


def _is_enabled(document: Mapping[str, Any], memory: _ToolMemory) -> bool:
    value: object = document
    for name in memory.member:
        value = value.get(name, memory.default) if isinstance(value, Mapping) else memory.default
    return value if isinstance(value, bool) else memory.default


def _find_paths(directory: Path, location: _Location) -> Iterator[tuple[Path, Path | None]]:
    """Yield the existing paths of a location, each with the folder of its project, or None."""
    paths: list[tuple[Path, Path | None]] = [(directory, None)]
    for name in location.names:
        if name == "*":
            paths = [(child, child) for path, _ in paths for child in _list_folders(path, MAX_PROJECTS)]
        else:
            paths = [(path / name, project) for path, project in paths if _is_file_or_folder(path / name)]
    yield from paths


def _is_file_or_folder(path: Path) -> bool:
    """Return whether a file or folder exists at a path. False for a link, and if the path cannot be read."""
    try:
        return not stat.S_ISLNK(path.lstat().st_mode)
    except OSError:
        return False


def _read_notes(path: Path, location: _Location, project: Path | None) -> NoteSource | None:
    """Return the notes at a path; None if it contains no notes or cannot be read.

    Args:
        path: the folder or the file.
        location: the location that `path` belongs to.
        project: the folder of a project in the directory of the tool; None: the notes are not of a project.
    """
    workspace = None if project is None else _find_workspace(project)
    try:
        count = _count_files(path)
        if count > MAX_FILES:
            return NoteSource(path, location.format, project is not None, workspace, MAX_FILES, None)
        source = read_source(path, location.format) if count else None
    except (OSError, ValueError, ConfigInvalid):  # ValueError: a setting is not a valid path.
        return None
    if source is None or (location.needs_heading and not _has_heading(source.files.values())):
        return None
    notes = sum(1 for each in source.items if not each.problem and not each.skipped)
    return NoteSource(path, location.format, project is not None, workspace, len(source.files), notes)


def _has_heading(contents: Iterable[bytes]) -> bool:
    return any(ADDED_MEMORIES.search(each.decode("utf-8", "replace")) for each in contents)


def _count_files(path: Path) -> int:
    """Return the number of files to parse; more than `MAX_FILES` if the files are too many or too large.

    Raises:
        OSError: the path is a link, or cannot be read.
    """
    status = path.lstat()
    if stat.S_ISREG(status.st_mode):
        return 1 if status.st_size <= MAX_BYTES else MAX_FILES + 1
    with open_descriptor(path, LIST_FLAGS) as fd:
        sizes = list(islice(_list_sizes(fd, 0), MAX_FILES + 1))
    return len(sizes) if sum(sizes) <= MAX_BYTES else MAX_FILES + 1


def _list_sizes(folder: int, level: int) -> Iterator[int]:
    """Yield the size of each file and of each folder below an open folder; links have no size."""
    with os.scandir(folder) as found:
        for each in found:
            yield each.stat(follow_symlinks=False).st_size
            if each.is_dir(follow_symlinks=False) and level < MAX_LEVELS:
                with open_descriptor(each.name, LIST_FLAGS, dir_fd=folder) as child:
                    yield from _list_sizes(child, level + 1)


# -- the directory of a project -----------------------------------------------------------------------


def _find_workspace(project: Path) -> Path | None:
    """Return the directory of a project; None if it is unknown or does not exist any more.

    Args:
        project: the folder of the project in the directory of the tool. Gemini CLI writes the path into a
            file in it. The other tools derive the name of the folder from the path.
    """
    try:
        with open_descriptor(project / _ROOT_FILE) as fd:
            path = Path(read_up_to(fd, _MAX_PATH_BYTES).decode().strip())
        return path if path.is_absolute() and path.is_dir() else None
    except FileNotFoundError:
        return _decode_path(project.name)
    except (OSError, ValueError):
        return None


def _decode_path(encoded: str) -> Path | None:
    """Return the only directory whose path has an encoded form; None if there are several or none.

    Args:
        encoded: the path with `-` in place of each character that is not an ASCII letter or digit.

    Cost: compares at most `_MAX_NAMES` folders.
    """
    found: list[Path] = []
    pending, left = [(Path("/"), encoded)], _MAX_NAMES
    while pending and left > 0:
        directory, rest = pending.pop()
        folders = _list_folders(directory, left)
        left -= len(folders)
        for folder in folders:
            part = "-" + _OTHER_CHARACTER.sub("-", folder.name)
            if rest == part:
                found.append(folder)
            elif rest.startswith(f"{part}-"):
                pending.append((folder, rest[len(part) :]))
    return found[0] if len(found) == 1 and not pending else None


def _list_folders(directory: Path, limit: int) -> list[Path]:
    """Return the folders in a directory, without links; an empty list if it cannot be read.

    Args:
        directory: the directory; if it is a link, it is not read.
        limit: the maximum number of names to read.
    """
    try:
        with open_descriptor(directory, LIST_FLAGS) as fd, os.scandir(fd) as found:
            names = [each.name for each in islice(found, limit) if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [directory / name for name in sorted(names)]
