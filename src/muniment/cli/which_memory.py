"""Ask which of the known memories a repository uses, and count the entries of a project.

Separate from `projects`, which imports the modules that all commands share; those modules also ask this
question.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from muniment.cli.terminal import is_asked_on_terminal, say
from muniment.content.gates import on_one_line
from muniment.errors import MunimentError
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, RelPath
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath

if TYPE_CHECKING:
    from muniment.kernel.root import Root
    from muniment.settings import Settings
    from muniment.workspaces.projects import Project


def ask_which_memory(settings: Settings, workspace: Path | None, *, as_json: bool) -> None:
    """Ask once which memory to use, if that is open and a user is at the terminal.

    Raises:
        ConfigInvalid, ManagedMemoryUnavailable: as `bind_checkout`.
    """
    if not as_json and is_asked_on_terminal() and "project" not in settings.roots:
        ask_about(settings.home, workspace)


def ask_about(home: Path, workspace: Path | None) -> None:
    """Ask whether a copy or another clone of a known repository uses the existing memory."""
    from muniment.workspaces.projects import BindingKind, bind_checkout, find_project, link

    found = find_project(home, workspace or Path())
    if not found.is_asked or found.other is None:
        return
    project_id, project = found.other
    is_clone = found.kind is BindingKind.CLONE
    what = f"another clone of {project.remote}" if is_clone else "a copy of a repository"
    places = ", ".join(project.places) or "no existing repository"
    say(on_one_line(f"{found.checkout.place} is {what} that already has a memory:"))
    say(
        "  "
        + on_one_line(f"{project.name}, {counted(entries_of(project_id, project, home))}, used by {places}")
    )
    answer = _answer("Use the same memory here, or a separate one? [same/own] ")
    if answer is None:
        return
    if answer == "same":
        link(home, found.checkout.path, project_id)
    else:
        bind_checkout(home, found.checkout.path)
    say("  saved; to change it: muniment projects link, or unlink")


def _answer(question: str) -> str | None:
    """Return `same`, `own`, or None at the end of input."""
    while True:
        print(question, end="", file=sys.stderr, flush=True)
        try:
            answer = input().strip().casefold()
        except EOFError:
            return None
        for word in ("same", "own"):
            if answer and word.startswith(answer):
                return word


def counted(count: int | None) -> str:
    """Return the number of entries as text."""
    if count is None:
        return "a memory that cannot be used"
    return f"{count} {'entry' if count == 1 else 'entries'}"


def entries_of(project_id: str, project: Project, home: Path) -> int | None:
    """Count the entries of a project; inside its repositories: those of the first one that exists."""
    from muniment.workspaces.projects import memory_in

    if project.inside is None:
        return count_in(memory_in(home, project_id))
    places = [Path(place) / project.inside for place in project.places]
    return next((count for place in places if (count := count_in(place)) is not None), 0)


def count_in(memory: Path) -> int | None:
    """Count the entries in a directory of memory: 0 if it does not exist, None if it cannot be used."""
    from muniment.kernel.binding import bind
    from muniment.opening import PROJECT

    if not memory.is_dir():
        return 0
    try:
        with closing(bind(PROJECT, memory)) as bound:
            return _count(bound.root, RelPath(""))
    except MunimentError:
        return None


def _count(root: Root, rel: RelPath) -> int:
    found = 0
    for item in root.list_directory(CanonicalPath(root.scope, rel)):
        below = RelPath(f"{rel}/{item.name}" if rel else item.name)
        if item.name.startswith(".") or below in {INDEX_NAME, INDEX_DIRECTORY}:
            continue
        if item.kind == "directory":
            found += _count(root, below)
        elif item.kind == "file" and item.name.endswith(FILE_SUFFIX):
            found += 1
    return found
