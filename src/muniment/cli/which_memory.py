"""Ask which of the known memories a repository uses, and count the entries of a project.

This module is separate from `projects`, because the modules that all commands share also ask this question,
and `projects` imports those modules.
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
    """Ask the user which memory this repository uses, if that is not decided yet; the answer is stored.

    Args:
        settings: the settings; if they bind the scope `project`, nothing is asked.
        workspace: a directory of the repository; None: the current directory.
        as_json: whether the command has `--json`; then nothing is asked.

    Raises:
        ConfigInvalid, ManagedMemoryUnavailable: as `bind_checkout`.
    """
    if not as_json and is_interactive() and "project" not in settings.roots:
        ask_for_binding(settings.home, workspace)


def ask_for_binding(home: Path, workspace: Path | None) -> None:
    """Ask whether a repository uses an existing memory or a separate one, if it is a copy or another clone.

    The answer is stored. If the repository already has a memory, or is new, nothing is asked.

    Args:
        home: the home.
        workspace: a directory of the repository; None: the current directory.
    """
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
    print_line("  saved; to change it: muniment projects link, or muniment projects unlink")


def _read_choice(question: str) -> str | None:
    """Ask until the user answers `same` or `own`, and return the answer; None: the input has ended."""
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
    """Return a text such as "3 entries"; None: "a memory that cannot be used"."""
    if count is None:
        return "a memory that cannot be used"
    return f"{count} {'entry' if count == 1 else 'entries'}"


def count_project_entries(project_id: str, project: Project, home: Path) -> int | None:
    """Count the entries of a project.

    If the memory is stored inside the repositories of the project, count those of the first repository that
    exists.

    Args:
        project_id: the id of the project.
        project: the record of the project.
        home: the home.

    Returns:
        The number of entries; None: the memory cannot be used.
    """
    from muniment.workspaces.projects import build_memory_path

    if project.inside is None:
        return count_entries(build_memory_path(home, project_id))
    memories = [Path(place) / project.inside for place in project.places]
    return next((count for place in memories if (count := count_entries(place)) is not None), 0)


def count_entries(memory: Path) -> int | None:
    """Return the number of entries in a memory directory.

    It is 0 if the directory does not exist, and None if it cannot be used.
    """
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
