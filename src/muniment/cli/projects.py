"""`muniment projects` and `init`: which memory belongs to which repository, asked, told and changed."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from muniment.cli.terminal import (
    configure_logging,
    is_asked_on_terminal,
    on_one_line,
    print_document,
    print_failure,
    say,
    say_notes,
)
from muniment.errors import ConfigInvalid, MunimentError
from muniment.kernel.binding import bind
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, RelPath
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.kernel.root import Root
from muniment.opening import PROJECT
from muniment.ownership import create_private_directory
from muniment.projects import (
    Binding,
    BindingKind,
    Project,
    bind_checkout,
    check_inside,
    find_project,
    keep_inside,
    link,
    memory_in,
    named,
    read_projects,
    recorded_and_not,
    rename,
    require_beneath,
    unlink,
)
from muniment.settings import parse_roots, read_settings

# -- asking ------------------------------------------------------------------------------------------


def ask_which_memory(workspace: Path | None, roots: list[str], *, as_json: bool) -> None:
    """Ask which memory is meant, where somebody is there to answer and it has to be asked; once.

    Raises:
        ConfigInvalid, ManagedMemoryUnavailable: as `bind_checkout`.
    """
    if as_json or not is_asked_on_terminal():
        return
    settings = read_settings(os.environ, roots=parse_roots(roots))
    if "project" not in settings.roots:
        _ask(settings.home, workspace)


def _ask(home: Path, workspace: Path | None) -> None:
    """Ask whether a copy or another clone is to use the memory that is known."""
    found = find_project(home, workspace or Path())
    if not found.is_asked or found.other is None:
        return
    project_id, project = found.other
    is_clone = found.kind is BindingKind.CLONE
    what = f"another clone of {project.remote}" if is_clone else "a copy of a repository"
    places = ", ".join(project.places) or "no repository any more"
    say(on_one_line(f"{found.checkout.place} is {what} whose memory you have:"))
    say("  " + on_one_line(f"{project.name}, {_counted(_entries(project_id, project, home))}, of {places}"))
    answer = _answer("Use the same memory here, or begin one of its own? [same/own] ")
    if answer is None:
        return
    if answer == "same":
        link(home, found.checkout.path, project_id)
    else:
        bind_checkout(home, found.checkout.path)
    say("  kept in mind; to change it: muniment projects link, or unlink")


def _answer(question: str) -> str | None:
    """`same`, `own`, or None at the end of input."""
    while True:
        print(question, end="", file=sys.stderr, flush=True)
        try:
            answer = input().strip().casefold()
        except EOFError:
            return None
        for word in ("same", "own"):
            if answer and word.startswith(answer):
                return word


# -- commands ----------------------------------------------------------------------------------------


def list_projects(*, as_json: bool) -> int:
    """Print the projects; the exit code."""

    def body(home: Path) -> int:
        found = recorded_and_not(home)
        if as_json:
            print_document({"projects": [_document(home, *each) for each in found.items()]})
            return 0
        for project_id, project in found.items():
            count = _counted(_entries(project_id, project, home))
            say(on_one_line(f"{project.name}: {count} ({project_id})"))
            for place in project.places:
                gone = "" if Path(place).is_dir() else ", which is gone"
                say("  " + on_one_line(f"at {place}{gone}"))
            if not project.places:
                say("  of no repository that is known; to use it in one: muniment projects link")
            if project.remote:
                say("  " + on_one_line(f"from {project.remote}"))
            if project.inside:
                say("  " + on_one_line(f"kept in {project.inside} of each checkout"))
        if not found:
            say("no projects yet; one begins with the first fact that is remembered in a repository")
        return 0

    return _with_home(body, "not listed", as_json=as_json)


def link_checkout(name: str, directory: Path, *, as_json: bool) -> int:
    """Bind a checkout to a project; the exit code."""

    def body(home: Path) -> int:
        project_id = named(read_projects(home), home, name)
        before = link(home, directory, project_id)
        project = read_projects(home)[project_id]
        if as_json:
            print_document({"status": "linked", **_document(home, project_id, project)})
            return 0
        say(on_one_line(f"linked: {before.checkout.place} uses the memory of {project.name} ({project_id})"))
        if before.is_bound and before.id != project_id:
            _say_left(home, before, find_project(home, directory))
        _say_daemon(home)
        return 0

    return _with_home(body, "not linked", as_json=as_json)


def unlink_checkout(directory: Path, *, as_json: bool) -> int:
    """Give a checkout a project of its own; the exit code."""

    def body(home: Path) -> int:
        before, project_id = unlink(home, directory)
        if as_json:
            own = read_projects(home)[project_id]
            print_document({"status": "unlinked", **_document(home, project_id, own)})
            return 0
        say(on_one_line(f"unlinked: {before.checkout.place} has a memory of its own now ({project_id})"))
        if before.is_bound:
            _say_left(home, before, find_project(home, directory))
            say(f"  to take it up again: muniment projects link {before.id}")
        _say_daemon(home)
        return 0

    return _with_home(body, "not unlinked", as_json=as_json)


def rename_project(name: str, new_name: str, *, as_json: bool) -> int:
    """Call a project by another name; the exit code."""

    def body(home: Path) -> int:
        project_id = named(read_projects(home), home, name)
        rename(home, project_id, new_name)
        if as_json:
            project = read_projects(home)[project_id]
            print_document({"status": "renamed", **_document(home, project_id, project)})
        else:
            say(on_one_line(f"renamed: {project_id} is called {new_name.strip()}"))
        return 0

    return _with_home(body, "not renamed", as_json=as_json)


def init_checkout(directory: Path, folder: str | None, *, leave: bool, as_json: bool) -> int:
    """Keep the memory of a project inside its repository, or at home again; the exit code."""

    def body(home: Path) -> int:
        if not as_json and is_asked_on_terminal():
            _ask(home, directory)
        before = bind_checkout(home, directory)
        inside = None if folder is None else check_inside(folder)
        if before.inside != inside:
            _require_nothing_left(home, before, inside, leave=leave)
        if inside is not None:
            _make(before, inside)
        found = keep_inside(home, directory, inside)
        memory = found.memory(home)
        if as_json:
            document = _document(home, found.id, found.project)
            print_document({"status": "kept", "memory": str(memory), **document})
            return 0
        say(on_one_line(f"the memory of {before.checkout.place} is kept in {memory}"))
        if inside is not None:
            count = _count_in(memory)
            if count:
                say(f"  {_counted(count)} there already: words of whoever wrote them, not trusted like yours")
            say("  commit it with git, but for what is made from it; in .gitignore:")
            for pattern in ("MEMORY.md", "index/", "**/.muniment-*"):
                say("  " + on_one_line(f"/{inside}/{pattern}"))
        _say_daemon(home)
        return 0

    return _with_home(body, "nothing was changed", as_json=as_json)


# -- how ---------------------------------------------------------------------------------------------


def _with_home(body: Callable[[Path], int], what: str, *, as_json: bool) -> int:
    configure_logging()
    try:
        return body(read_settings(os.environ).home)
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what=what)


def _require_nothing_left(home: Path, before: Binding, inside: str | None, *, leave: bool) -> None:
    """Refuse to leave entries behind where nobody finds them, unless somebody says so.

    Raises:
        ConfigInvalid: there are some; how to take them along.
    """
    memory = before.memory(home)
    count = _count_in(memory)
    if not count or leave:
        return
    new = memory_in(home, before.id) if inside is None else before.checkout.path / inside
    raise ConfigInvalid(
        f"{_counted(count)} in {memory} would be found no more; to take them along: {_copying(memory, new)}; "
        "then, or to leave them there, say --leave"
    )


def _make(before: Binding, inside: str) -> None:
    """Make the folder in a checkout, and see that it can be a root.

    Raises:
        ConfigInvalid, ManagedMemoryUnavailable: it cannot.
    """
    memory = before.checkout.path / inside
    chosen = before.keeping(inside)
    require_beneath(chosen, Path(os.path.realpath(memory)))
    create_private_directory(memory)
    with closing(bind(PROJECT, memory)) as bound:
        require_beneath(chosen, bound.trusted_path)


def _say_left(home: Path, before: Binding, now: Binding) -> None:
    memory = before.memory(home)
    count = _count_in(memory)
    if count:
        say("  " + on_one_line(f"{_counted(count)} of before: in {memory}"))
        say(f"  to have them here too: {_copying(memory, now.memory(home))} && muniment index rebuild")


def _copying(old: Path, new: Path) -> str:
    first, second = (shlex.quote(str(each)) for each in (old, new))
    return f"mkdir -m 700 -p {second} && cp -rn {first}/. {second}/"


def _say_daemon(home: Path) -> None:
    if (home / "state" / "daemon.json").exists():
        say_notes(["the daemon goes by this after its next start"])


def _document(home: Path, project_id: str, project: Project | None) -> dict[str, Any]:
    known = project or Project("")
    return {
        "id": project_id,
        "name": known.name,
        "places": list(known.places),
        "remote": known.remote,
        "inside": known.inside,
        "entries": _entries(project_id, known, home),
    }


def _entries(project_id: str, project: Project, home: Path) -> int | None:
    """The entries of a project; of one inside its repositories, those of the first that is there."""
    if project.inside is None:
        return _count_in(memory_in(home, project_id))
    places = [Path(place) / project.inside for place in project.places]
    return next((count for place in places if (count := _count_in(place)) is not None), 0)


def _count_in(memory: Path) -> int | None:
    """The entries in a directory of memory, 0 where there is none; None: it cannot be used."""
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


def _counted(count: int | None) -> str:
    if count is None:
        return "a memory that cannot be used"
    return f"{count} {'entry' if count == 1 else 'entries'}"
