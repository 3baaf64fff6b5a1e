"""Implement `muniment projects` and `init`: show and change which memory belongs to which repository."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muniment.cli.command import Report, command, load_settings
from muniment.cli.options import Json
from muniment.cli.terminal import cancel_on_interrupt, is_interactive
from muniment.cli.which_memory import ask_for_binding, count_entries, count_project_entries, format_count
from muniment.content.gates import clean_foreign_line
from muniment.errors import ConfigInvalid

if TYPE_CHECKING:
    from muniment.settings import Settings
    from muniment.transfer.import_report import ImportResult
    from muniment.workspaces.projects import Binding, Project

Directory = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="A directory in the repository.", show_default="the current directory"
    ),
]
ProjectName = Annotated[
    str, typer.Argument(metavar="ID|NAME", help="A project, as `projects list` shows it.")
]

# -- asking ------------------------------------------------------------------------------------------


# -- commands ----------------------------------------------------------------------------------------


@command("not listed")
def projects_list() -> Report:
    """List the projects: number of entries, paths, and clone URL."""
    from muniment.workspaces.projects import list_all_projects

    home = load_settings().home
    found = list_all_projects(home)
    documents = [_create_document(home, *each) for each in found.items()]
    lines = [line for each in documents for line in _format_project(each)]
    if not found:
        lines = ["no projects yet; the first fact remembered in a repository creates one"]
    return Report({"projects": documents}, lines)


def _format_project(project: dict[str, Any]) -> Iterator[str]:
    yield clean_foreign_line(f"{project['name']}: {format_count(project['entries'])} ({project['id']})")
    for path in project["places"]:
        suffix = "" if Path(path).is_dir() else ", not found"
        yield "  " + clean_foreign_line(f"at {path}{suffix}")
    if not project["places"]:
        yield "  not used by a known repository; to use it in one: muniment projects link"
    if project["remote"]:
        yield "  " + clean_foreign_line(f"from {project['remote']}")
    if project["inside"]:
        yield "  " + clean_foreign_line(f"stored in {project['inside']} of each checkout")


@command("not linked")
def projects_link(
    *,
    project: ProjectName,
    directory: Directory = Path(),
    leave: Annotated[
        bool, typer.Option("--leave", help="Do not copy the current entries of this repository.")
    ] = False,
) -> Report:
    """Use the memory of another project in this repository.

    The current entries of this repository are copied into that memory.
    """
    from muniment.workspaces.projects import find_project, find_project_id, link_checkout, read_projects

    settings = load_settings()
    home = settings.home
    project_id = find_project_id(read_projects(home), home, project)
    before = find_project(home, directory)
    is_another = before.is_bound and before.id != project_id
    joined = None if leave or not is_another else _copy_entries(settings, before, project_id)
    if joined is not None and joined.error is not None:
        raise joined.error
    link_checkout(home, directory, project_id)
    known = read_projects(home)[project_id]
    document = {"status": "linked", **_create_document(home, project_id, known)}
    lines = [
        clean_foreign_line(
            f"linked: {before.checkout.memory_path} uses the memory of {known.name} ({project_id})"
        )
    ]
    if joined is not None:
        document["joined"] = joined.as_json()
        lines += _format_copied(joined, home, before)
    elif is_another:
        lines += _format_previous_memory(home, before, find_project(home, directory))
    notes = () if joined is None else joined.notes
    return Report(document, lines, [*notes, *_create_daemon_note(home)])


def _copy_entries(settings: Settings, before: Binding, project_id: str) -> ImportResult | None:
    """Copy the entries of a repository's previous memory into the memory of another project.

    Args:
        settings: the settings of the program.
        before: the previous memory of the repository.
        project_id: the project whose memory receives the entries.

    Returns:
        The result for each entry. None: nothing is copied, because the previous memory is empty, one of the
            two memories is inside a repository (git versions it), or the settings bind the scope `project`.

    Raises:
        MunimentError: a memory cannot be used; nothing is changed.
    """
    from muniment.kernel.binding import bind
    from muniment.opening import PROJECT, open_context
    from muniment.policy.ownership import create_private_directory
    from muniment.transfer.joining import join_entries
    from muniment.workspaces.projects import read_projects

    memory = before.build_memory_path(settings.home)
    target = replace(before, id=project_id, project=read_projects(settings.home).get(project_id))
    is_at_home = before.inside is None and target.inside is None
    if PROJECT in settings.roots or not is_at_home or not count_entries(memory):
        return None
    create_private_directory(target.build_memory_path(settings.home))
    target_settings = replace(
        settings, roots={**settings.roots, PROJECT: target.build_memory_path(settings.home)}
    )
    with (
        closing(open_context(target_settings, before.checkout.path)) as context,
        closing(bind(PROJECT, memory)) as other,
    ):
        if PROJECT not in context.roots:
            return None
        with cancel_on_interrupt() as cancel:
            return join_entries(context, other, cancel=cancel)


def _format_copied(joined: ImportResult, home: Path, before: Binding) -> Iterator[str]:
    counts = joined.counts
    yield (
        f"  entries of this repository: {counts['imported']} copied, {counts['known']} already known, "
        f"{counts['held']} pending review, {counts['refused']} not copied"
    )
    for each in joined.held:
        yield "  " + clean_foreign_line(f"pending review {each.review}: {each.name}")
    for each in joined.refused:
        yield "  " + clean_foreign_line(f"not copied: {each.name} ({each.reason})")
    yield "  " + clean_foreign_line(f"all of them also remain in {before.build_memory_path(home)}")
    where = shlex.quote(str(before.checkout.path))
    undo = [f"muniment undo {task} --workspace {where}" for task in joined.tasks]
    undo_command = " && ".join([*undo, f"muniment projects link {before.id} {where} --leave"])
    yield "  " + clean_foreign_line(f"to undo it: {undo_command}")


@command("not unlinked")
def projects_unlink(*, directory: Directory = Path()) -> Report:
    """Give this repository a separate memory.

    The entries of the previous memory stay there.
    """
    from muniment.workspaces.projects import find_project, read_projects, unlink_checkout

    home = load_settings().home
    before, project_id = unlink_checkout(home, directory)
    lines = [
        clean_foreign_line(
            f"unlinked: {before.checkout.memory_path} now has a separate memory ({project_id})"
        )
    ]
    if before.is_bound:
        lines += _format_previous_memory(home, before, find_project(home, directory))
        lines += [f"  to use the previous one again: muniment projects link {before.id}"]
    document = {"status": "unlinked", **_create_document(home, project_id, read_projects(home)[project_id])}
    return Report(document, lines, _create_daemon_note(home))


@command("not renamed")
def projects_rename(
    *,
    project: ProjectName,
    name: Annotated[str, typer.Argument(metavar="NEW-NAME", help="The new name.")],
) -> Report:
    """Rename a project; its id and its directory stay."""
    from muniment.workspaces.projects import find_project_id, read_projects, rename_project

    home = load_settings().home
    project_id = find_project_id(read_projects(home), home, project)
    rename_project(home, project_id, name)
    document = {"status": "renamed", **_create_document(home, project_id, read_projects(home)[project_id])}
    return Report(document, [clean_foreign_line(f"renamed: {project_id} is now called {name.strip()}")])


@command("nothing was changed")
def init(
    *,
    directory: Directory = Path(),
    folder: Annotated[
        str, typer.Option(metavar="FOLDER", help="The folder, relative to the repository.")
    ] = ".muniment",
    leave: Annotated[
        bool,
        typer.Option("--leave", help="Continue if the home has entries of the project; they stay there."),
    ] = False,
    home: Annotated[
        bool, typer.Option("--home", help="The opposite: store the memory in the home again.")
    ] = False,
    json: Json = False,
) -> Report:
    """Store the memory of this project inside its repository.

    git can then version the memory together with the repository.
    """
    from muniment.workspaces.projects import bind_checkout, check_inside, set_memory_folder

    home_directory = load_settings().home
    if not json and is_interactive():
        ask_for_binding(home_directory, directory)
    before = bind_checkout(home_directory, directory)
    inside = None if home else check_inside(folder)
    if before.inside != inside:
        _check_nothing_left(home_directory, before, inside, leave=leave)
    if inside is not None:
        _create_folder(before, inside)
    found = set_memory_folder(home_directory, directory, inside)
    memory = found.build_memory_path(home_directory)
    document = _create_document(home_directory, found.id, found.project)
    lines = [clean_foreign_line(f"the memory of {before.checkout.memory_path} is stored in {memory}")]
    if inside is not None:
        if count := count_entries(memory):
            remark = "already there; others may have written them, so they are not trusted like yours"
            lines.append(f"  {format_count(count)} {remark}")
        lines.append("  commit it with git, except generated files; add to .gitignore:")
        kinds = ("MEMORY.md", "index/", "**/.muniment-*")
        lines += ["  " + clean_foreign_line(f"/{inside}/{pattern}") for pattern in kinds]
    return Report(
        {"status": "kept", "memory": str(memory), **document}, lines, _create_daemon_note(home_directory)
    )


# -- how ---------------------------------------------------------------------------------------------


def _check_nothing_left(home: Path, before: Binding, inside: str | None, *, leave: bool) -> None:
    """Check that a change of the memory folder loses no entries, unless the user allows that.

    Args:
        home: the home.
        before: the memory before the change.
        inside: the new folder in the repository; None: the home.
        leave: whether the user allows that entries stay in the old folder.

    Raises:
        ConfigInvalid: entries would no longer be found; the message contains the command that copies them.
    """
    from muniment.workspaces.projects import build_memory_path

    memory = before.build_memory_path(home)
    count = count_entries(memory)
    if not count or leave:
        return
    new = build_memory_path(home, before.id) if inside is None else before.checkout.path / inside
    raise ConfigInvalid(
        f"{format_count(count)} in {memory} would no longer be found; "
        f"to copy them: {_format_copy_command(memory, new)}; then (or to leave them) use --leave"
    )


def _create_folder(before: Binding, inside: str) -> None:
    """Create the memory folder in a repository, and check that it can be used as a root.

    Args:
        before: the memory of the repository before the change.
        inside: the folder, relative to the repository.

    Raises:
        ConfigInvalid, ManagedMemoryUnavailable: the folder cannot be created or used.
    """
    from muniment.kernel.binding import bind
    from muniment.opening import PROJECT
    from muniment.policy.ownership import create_private_directory
    from muniment.workspaces.projects import require_memory_in_checkout

    memory = before.checkout.path / inside
    binding = before.with_folder(inside)
    require_memory_in_checkout(binding, Path(os.path.realpath(memory)))
    create_private_directory(memory)
    with closing(bind(PROJECT, memory)) as bound:
        require_memory_in_checkout(binding, bound.trusted_path)


def _format_previous_memory(home: Path, before: Binding, now: Binding) -> Iterator[str]:
    memory = before.build_memory_path(home)
    count = count_entries(memory)
    if count:
        yield "  " + clean_foreign_line(f"previous memory: {format_count(count)} in {memory}")
        command = _format_copy_command(memory, now.build_memory_path(home))
        yield f"  to copy them here: {command} && muniment index rebuild"


def _format_copy_command(old: Path, new: Path) -> str:
    first, second = (shlex.quote(str(each)) for each in (old, new))
    return f"mkdir -m 700 -p {second} && cp -rn {first}/. {second}/"


def _create_daemon_note(home: Path) -> list[str]:
    """Return a note that the daemon must be restarted, if one runs; otherwise an empty list."""
    runs = (home / "state" / "daemon.json").exists()
    return ["the running daemon uses this only after a restart"] if runs else []


def _create_document(home: Path, project_id: str, project: Project | None) -> dict[str, Any]:
    from muniment.workspaces.projects import Project

    known = project or Project("")
    return {
        "id": project_id,
        "name": known.name,
        "places": list(known.places),
        "remote": known.remote,
        "inside": known.inside,
        "entries": count_project_entries(project_id, known, home),
    }
