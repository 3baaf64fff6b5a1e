"""Ask which of the known memories a repository uses, and count the entries of a project.

Separate from `projects`, which imports the modules that all commands share; those modules also ask this
question.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from muniment.cli.terminal import is_interactive, print_line
from muniment.content.gates import clean_foreign_line
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
    if not as_json and is_interactive() and "project" not in settings.roots:
        ask_for_binding(settings.home, workspace)


def ask_for_binding(home: Path, workspace: Path | None) -> None:
    """Ask whether a copy or another clone of a known repository uses the existing memory."""
    from muniment.workspaces.projects import BindingKind, bind_checkout, find_project, link_checkout

    found = find_project(home, workspace or Path())
    if not found.needs_decision or found.other_project is None:
        return
    project_id, project = found.other_project
    is_clone = found.kind is BindingKind.CLONE
    description = f"another clone of {project.remote}" if is_clone else "a copy of a repository"
    paths = ", ".join(project.places) or "no existing repository"
    print_line(
        clean_foreign_line(f"{found.checkout.memory_path} is {description} that already has a memory:")
    )
    count = format_count(count_project_entries(project_id, project, home))
    print_line("  " + clean_foreign_line(f"{project.name}, {count}, used by {paths}"))
    choice = _read_choice("Use the same memory here, or a separate one? [same/own] ")
    if choice is None:
        return
    if choice == "same":
        link_checkout(home, found.checkout.path, project_id)
    else:
        bind_checkout(home, found.checkout.path)
    print_line("  saved; to change it: muniment projects link, or unlink")


def _read_choice(question: str) -> str | None:
    """Return `same`, `own`, or None at the end of input."""
    while True:
        print(question, end="", file=sys.stderr, flush=True)
        try:
            choice = input().strip().casefold()
        except EOFError:
            return None
        for word in ("same", "own"):
            if choice and word.startswith(choice):
                return word


def format_count(count: int | None) -> str:
    """Return the number of entries as text."""
    if count is None:
        return "a memory that cannot be used"
    return f"{count} {'entry' if count == 1 else 'entries'}"


def count_project_entries(project_id: str, project: Project, home: Path) -> int | None:
    """Count the entries of a project; inside its repositories: those of the first one that exists."""
    from muniment.workspaces.projects import build_memory_path

    if project.inside is None:
        return count_entries(build_memory_path(home, project_id))
    memories = [Path(place) / project.inside for place in project.places]
    return next((count for place in memories if (count := count_entries(place)) is not None), 0)


def count_entries(memory: Path) -> int | None:
    """Count the entries in a directory of memory: 0 if it does not exist, None if it cannot be used."""
    from muniment.kernel.binding import bind
    from muniment.opening import PROJECT

    if not memory.is_dir():
        return 0
    try:
        with closing(bind(PROJECT, memory)) as bound:
            return _count_files(bound.root, RelPath(""))
    except MunimentError:
        return None


def _count_files(root: Root, rel: RelPath) -> int:
    found = 0
    for item in root.list_directory(CanonicalPath(root.scope, rel)):
        below = RelPath(f"{rel}/{item.name}" if rel else item.name)
        if item.name.startswith(".") or below in {INDEX_NAME, INDEX_DIRECTORY}:
            continue
        if item.kind == "directory":
            found += _count_files(root, below)
        elif item.kind == "file" and item.name.endswith(FILE_SUFFIX):
            found += 1
    return found
