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

from muniment.cli.command import Report, command, settings_of
from muniment.cli.options import Json
from muniment.cli.terminal import cancel_on_interrupt, is_asked_on_terminal
from muniment.cli.which_memory import ask_about, count_in, counted, entries_of
from muniment.content.gates import on_one_line
from muniment.errors import ConfigInvalid

if TYPE_CHECKING:
    from muniment.settings import Settings
    from muniment.transfer.import_report import ImportResult
    from muniment.workspaces.projects import Binding, Project

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="A directory in the repository.", show_default="this one")
]
ProjectName = Annotated[
    str, typer.Argument(metavar="ID|NAME", help="A project, as `projects list` shows it.")
]

# -- asking ------------------------------------------------------------------------------------------


# -- commands ----------------------------------------------------------------------------------------


@command("not listed")
def projects_list() -> Report:
    """List the projects: number of entries, paths, and clone URL."""
    from muniment.workspaces.projects import recorded_and_not

    home = settings_of().home
    found = recorded_and_not(home)
    documents = [_document(home, *each) for each in found.items()]
    lines = [line for each in documents for line in _lines(each)]
    if not found:
        lines = ["no projects yet; the first fact remembered in a repository creates one"]
    return Report({"projects": documents}, lines)


def _lines(project: dict[str, Any]) -> Iterator[str]:
    yield on_one_line(f"{project['name']}: {counted(project['entries'])} ({project['id']})")
    for place in project["places"]:
        gone = "" if Path(place).is_dir() else ", not found"
        yield "  " + on_one_line(f"at {place}{gone}")
    if not project["places"]:
        yield "  not used by a known repository; to use it in one: muniment projects link"
    if project["remote"]:
        yield "  " + on_one_line(f"from {project['remote']}")
    if project["inside"]:
        yield "  " + on_one_line(f"stored in {project['inside']} of each checkout")


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
    from muniment.workspaces.projects import find_project, link, named, read_projects

    settings = settings_of()
    home = settings.home
    project_id = named(read_projects(home), home, project)
    before = find_project(home, directory)
    is_another = before.is_bound and before.id != project_id
    joined = None if leave or not is_another else _join(settings, before, project_id)
    if joined is not None and joined.error is not None:
        raise joined.error
    link(home, directory, project_id)
    known = read_projects(home)[project_id]
    document = {"status": "linked", **_document(home, project_id, known)}
    lines = [on_one_line(f"linked: {before.checkout.place} uses the memory of {known.name} ({project_id})")]
    if joined is not None:
        document["joined"] = joined.as_json()
        lines += _joined(joined, home, before)
    elif is_another:
        lines += _left(home, before, find_project(home, directory))
    notes = () if joined is None else joined.notes
    return Report(document, lines, [*notes, *_of_daemon(home)])


def _join(settings: Settings, before: Binding, project_id: str) -> ImportResult | None:
    """Copy the entries of the previous memory into the memory of a project.

    Returns:
        The result for each entry; None if nothing is copied: a memory is inside the repository, where git
        versions it, or has no entries, or the settings bind another one.

    Raises:
        MunimentError: a memory cannot be used; nothing is changed.
    """
    from muniment.kernel.binding import bind
    from muniment.opening import PROJECT, find_place
    from muniment.policy.ownership import create_private_directory
    from muniment.transfer.joining import join_entries
    from muniment.workspaces.projects import read_projects

    memory = before.memory(settings.home)
    to = replace(before, id=project_id, project=read_projects(settings.home).get(project_id))
    is_at_home = before.inside is None and to.inside is None
    if PROJECT in settings.roots or not is_at_home or not count_in(memory):
        return None
    create_private_directory(to.memory(settings.home))
    chosen = replace(settings, roots={**settings.roots, PROJECT: to.memory(settings.home)})
    with closing(find_place(chosen, before.checkout.path)) as place, closing(bind(PROJECT, memory)) as other:
        if PROJECT not in place.roots:
            return None
        with cancel_on_interrupt() as cancel:
            return join_entries(place, other, cancel=cancel)


def _joined(joined: ImportResult, home: Path, before: Binding) -> Iterator[str]:
    counts = joined.counts
    yield (
        f"  entries of this repository: {counts['imported']} copied, {counts['known']} already known, "
        f"{counts['held']} pending review, {counts['refused']} not copied"
    )
    for each in joined.held:
        yield "  " + on_one_line(f"pending review {each.review}: {each.name}")
    for each in joined.refused:
        yield "  " + on_one_line(f"not copied: {each.name} ({each.reason})")
    yield "  " + on_one_line(f"all of them also remain in {before.memory(home)}")
    where = shlex.quote(str(before.checkout.path))
    undo = [f"muniment undo {task} --workspace {where}" for task in joined.tasks]
    back = " && ".join([*undo, f"muniment projects link {before.id} {where} --leave"])
    yield "  " + on_one_line(f"to undo it: {back}")


@command("not unlinked")
def projects_unlink(*, directory: Directory = Path()) -> Report:
    """Give this repository a separate memory.

    The previous memory stays where it is.
    """
    from muniment.workspaces.projects import find_project, read_projects, unlink

    home = settings_of().home
    before, project_id = unlink(home, directory)
    lines = [on_one_line(f"unlinked: {before.checkout.place} now has a separate memory ({project_id})")]
    if before.is_bound:
        lines += _left(home, before, find_project(home, directory))
        lines += [f"  to use the previous one again: muniment projects link {before.id}"]
    document = {"status": "unlinked", **_document(home, project_id, read_projects(home)[project_id])}
    return Report(document, lines, _of_daemon(home))


@command("not renamed")
def projects_rename(
    *,
    project: ProjectName,
    name: Annotated[str, typer.Argument(metavar="NEW-NAME", help="The new name.")],
) -> Report:
    """Rename a project; its id and its directory stay."""
    from muniment.workspaces.projects import named, read_projects, rename

    home = settings_of().home
    project_id = named(read_projects(home), home, project)
    rename(home, project_id, name)
    document = {"status": "renamed", **_document(home, project_id, read_projects(home)[project_id])}
    return Report(document, [on_one_line(f"renamed: {project_id} is now called {name.strip()}")])


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

    git then versions it.
    """
    from muniment.workspaces.projects import bind_checkout, check_inside, keep_inside

    at = settings_of().home
    if not json and is_asked_on_terminal():
        ask_about(at, directory)
    before = bind_checkout(at, directory)
    inside = None if home else check_inside(folder)
    if before.inside != inside:
        _require_nothing_left(at, before, inside, leave=leave)
    if inside is not None:
        _make(before, inside)
    found = keep_inside(at, directory, inside)
    memory = found.memory(at)
    document = _document(at, found.id, found.project)
    lines = [on_one_line(f"the memory of {before.checkout.place} is stored in {memory}")]
    if inside is not None:
        if count := count_in(memory):
            told = "already there; others may have written them, so they are not trusted like yours"
            lines.append(f"  {counted(count)} {told}")
        lines.append("  commit it with git, except generated files; add to .gitignore:")
        kinds = ("MEMORY.md", "index/", "**/.muniment-*")
        lines += ["  " + on_one_line(f"/{inside}/{pattern}") for pattern in kinds]
    return Report({"status": "kept", "memory": str(memory), **document}, lines, _of_daemon(at))


# -- how ---------------------------------------------------------------------------------------------


def _require_nothing_left(home: Path, before: Binding, inside: str | None, *, leave: bool) -> None:
    """Check that no entries are left where they would not be found, unless the user allows it.

    Raises:
        ConfigInvalid: there are such entries; the message contains the command that copies them.
    """
    from muniment.workspaces.projects import memory_in

    memory = before.memory(home)
    count = count_in(memory)
    if not count or leave:
        return
    new = memory_in(home, before.id) if inside is None else before.checkout.path / inside
    raise ConfigInvalid(
        f"{counted(count)} in {memory} would no longer be found; to copy them: {_copying(memory, new)}; "
        "then, or to leave them there, use --leave"
    )


def _make(before: Binding, inside: str) -> None:
    """Create the folder in a checkout, and check that it can be a root.

    Raises:
        ConfigInvalid, ManagedMemoryUnavailable: it cannot be created or used.
    """
    from muniment.kernel.binding import bind
    from muniment.opening import PROJECT
    from muniment.policy.ownership import create_private_directory
    from muniment.workspaces.projects import require_beneath

    memory = before.checkout.path / inside
    chosen = before.keeping(inside)
    require_beneath(chosen, Path(os.path.realpath(memory)))
    create_private_directory(memory)
    with closing(bind(PROJECT, memory)) as bound:
        require_beneath(chosen, bound.trusted_path)


def _left(home: Path, before: Binding, now: Binding) -> Iterator[str]:
    memory = before.memory(home)
    count = count_in(memory)
    if count:
        yield "  " + on_one_line(f"previous memory: {counted(count)} in {memory}")
        yield f"  to copy them here: {_copying(memory, now.memory(home))} && muniment index rebuild"


def _copying(old: Path, new: Path) -> str:
    first, second = (shlex.quote(str(each)) for each in (old, new))
    return f"mkdir -m 700 -p {second} && cp -rn {first}/. {second}/"


def _of_daemon(home: Path) -> list[str]:
    """Return a note about the running daemon, if there is one."""
    runs = (home / "state" / "daemon.json").exists()
    return ["the daemon uses this after its next start"] if runs else []


def _document(home: Path, project_id: str, project: Project | None) -> dict[str, Any]:
    from muniment.workspaces.projects import Project

    known = project or Project("")
    return {
        "id": project_id,
        "name": known.name,
        "places": list(known.places),
        "remote": known.remote,
        "inside": known.inside,
        "entries": entries_of(project_id, known, home),
    }
