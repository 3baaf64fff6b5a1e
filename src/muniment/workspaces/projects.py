"""List the projects that have a memory, and find the project of a checkout.

`projects.json` in the home stores the last path of the repository of each project. In addition a repository
has a mark, `muniment` in its common directory, with the project's id and a secret; only this user may read
it, and it is never committed or cloned.

P1 A checkout is bound to a project only by its path, or by a mark with the project's secret. Nothing else in
   a repository binds it: not a remote, a mark of another home or a folder of that name.
P2 A mark at a path that is not recorded: the repository was moved if a recorded path now has no repository,
   one of another project or remote, or a link to this repository. Otherwise it is a copy. A directory without
   git, or a repository with a remote that could not be marked, was moved if the recorded path of one, with
   the same remote, is a link to it.
P3 A copy, and another clone of a known remote, is a question to the user, asked once. Without an answer it
   reads nothing of the other memory; the first write creates a separate memory, which answers the question.
P4 A repository at a recorded path is another one, with a new memory, if the path is recorded with a mark and
   the mark is missing, or if it is recorded without one and the remotes differ. A repository with the same
   remote is never another one.
P5 A lookup changes nothing; `bind_checkout` writes, under a lock, the mark before the record that refers to
   it.

Memory that is older than `projects.json` is found by the path in its id. An inode does not identify a
directory: inodes are reused. ADR 0039.

Attacked in tests/attacks/test_foreign_repositories.py.
"""

from __future__ import annotations

import functools
import hmac
import itertools
import json
import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from muniment.errors import ConfigInvalid, printable
from muniment.kernel.change import digest
from muniment.policy.ownership import check_owner_and_mode, create_private_directory
from muniment.store.database import convert_errors
from muniment.store.state import lock_directory, write_file
from muniment.workspaces.checkouts import (
    GIT,
    Checkout,
    find_checkout,
    find_common_directory,
    read_remote,
    read_small_file,
)

FILE_NAME: Final = "projects.json"
MARK_FILE_NAME: Final = "muniment"
MEMORY_DIRECTORY: Final = "memory"
"""The memory directory of a project, inside the directory with its id."""

MAX_BYTES: Final = 16 << 20
"""Bytes of `projects.json`; a project takes about 250."""

MAX_NAME_CHARS: Final = 80

_VERSION: Final = 1
_KEY_CHARS: Final = 32
"""Hexadecimal digits of an id: 128 bits, so that no two projects share one."""

_SLUG_CHARS: Final = 40
"""Characters of a project's name in its id, for users; the digits make the id unique."""

PROJECT_ID: Final = re.compile(r"[a-z0-9-]{1,40}-[0-9a-f]{32}", re.ASCII)
_MARK: Final = re.compile(
    r"muniment 1 (?P<id>[a-z0-9-]{1,40}-[0-9a-f]{32}) (?P<secret>[0-9a-f]{32})\n", re.ASCII
)
_MAX_MARKS: Final = 32
"""Homes with a mark in a repository; if there are more, the oldest mark is removed."""

_MAX_MARK_BYTES: Final = 4096
"""Bytes of the marks of a repository, at most 118 each."""

_SECRET_BYTES: Final = 16


class BindingKind(StrEnum):
    """The relation of a checkout to the known projects."""

    KNOWN = "known"
    MOVED = "moved"
    COPY = "copy"
    CLONE = "clone"
    REPLACED = "replaced"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class Project:
    """A project in `projects.json`.

    Attributes:
        name: for users.
        remote: where its repository was cloned from, normalized; None: unknown.
        secret: the secret in its marks.
        places: the paths of its repositories, and whether each has a mark.
        inside: the folder of a checkout with its memory; None: the memory is in the home.
        by_path: it is older than `projects.json`, and is also found by the path in its id.
        before: the earlier paths of its repositories, with the paths that they were moved to.
    """

    name: str
    remote: str | None = None
    secret: str = field(default_factory=lambda: secrets.token_hex(_SECRET_BYTES), repr=False)
    places: Mapping[str, bool] = field(default_factory=dict)
    inside: str | None = None
    by_path: bool = False
    before: Mapping[str, str] = field(default_factory=dict)


Projects = Mapping[str, Project]
"""All projects, by id."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The project of a checkout.

    Attributes:
        id: of its project; of a new project, if it has none yet.
        project: the record; None: not recorded.
        kind: how it was found.
        other_project: the project of the question (P3), or the earlier project at this path (P4).
        left_paths: the recorded paths that it was moved from (P2).
    """

    checkout: Checkout
    id: str
    project: Project | None
    kind: BindingKind
    other_project: tuple[str, Project] | None = None
    left_paths: tuple[str, ...] = ()

    @property
    def is_bound(self) -> bool:
        """Return whether it has a project, recorded or not."""
        return self.kind in {BindingKind.KNOWN, BindingKind.MOVED}

    @property
    def needs_decision(self) -> bool:
        """Return whether the user must choose a memory (P3)."""
        return self.kind in {BindingKind.COPY, BindingKind.CLONE}

    @property
    def inside(self) -> str | None:
        """Return the folder of the checkout with the memory; None: the memory is in the home."""
        return None if self.project is None else self.project.inside

    @property
    def key(self) -> str:
        """Return the key for the daemon: the id, or a checkout's own key if each has a separate memory.

        Such a key is never an id: a project's id is derived from its first path.
        """
        return (
            self.id
            if self.inside is None
            else _compute_key(self.checkout.path, b"inside\0%s\0" % self.id.encode())
        )

    @property
    def previous_paths(self) -> tuple[str, ...]:
        """Return the earlier paths of the checkout, if it was moved."""
        path = str(self.checkout.memory_path)
        if self.project is None or path != str(self.checkout.path):
            return ()
        return (
            *self.left_paths,
            *(old for old, now in self.project.before.items() if now in {path, *self.left_paths}),
        )

    def with_folder(self, inside: str | None) -> Binding:
        """Return a copy with its memory in that folder of the checkout."""
        project = self.project or Project(_derive_name_from_id(self.id))
        return replace(self, project=replace(project, inside=inside))

    def build_memory_path(self, home: Path) -> Path:
        """Return the directory of its memory, which may be missing."""
        return build_memory_path(home, self.id) if self.inside is None else self.checkout.path / self.inside


def build_memory_path(home: Path, project_id: str) -> Path:
    """Return the directory of a project's memory in the home."""
    return home / "projects" / project_id / MEMORY_DIRECTORY


def compute_project_id(path: Path, number: int = 0) -> str:
    """Return the id for a path: a readable slug and 128 bits of the path, and of a number above 0."""
    return _compute_key(path, after=b"\0%d" % number if number else b"")


def _compute_key(path: Path, before: bytes = b"", after: bytes = b"") -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", path.name.casefold()).strip("-")[:_SLUG_CHARS] or "workspace"
    return f"{slug}-{digest(before + os.fsencode(path) + after)[:_KEY_CHARS]}"


# -- finding -----------------------------------------------------------------------------------------


def find_project(home: Path, directory: Path) -> Binding:
    """Return the project of the checkout around a directory (P1 to P4); changes nothing.

    Raises:
        ConfigInvalid: the directory does not exist, or `projects.json` cannot be used.

    Cost: as `find_checkout`, and two small reads, the mark and `projects.json` (2 ms for 1 000 projects). An
    unknown checkout needs one more, its git configuration; a moved one needs reads of the marks at the
    recorded paths.
    """
    return find_project_of_checkout(read_projects(home), home, find_checkout(directory))


def find_project_of_checkout(projects: Projects, home: Path, checkout: Checkout) -> Binding:
    """Return the project as `find_project` does, for a known checkout."""
    memory_path = str(checkout.memory_path)
    recorded_id = next((each for each, project in projects.items() if memory_path in project.places), None)
    marked = None if checkout.common is None else _find_marked_project(projects, checkout.common)
    find_free_id = functools.partial(_find_free_id, projects, home, checkout)

    def build_binding(kind: BindingKind, project_id: str, other: str | None = None) -> Binding:
        about = None if other is None else (other, projects[other])
        return Binding(checkout, project_id, projects.get(project_id), kind, about)

    if marked is not None:
        project = projects[marked]
        if memory_path in project.places:
            return build_binding(BindingKind.KNOWN, marked)
        if left := _find_left_paths(projects, marked, checkout):
            return replace(build_binding(BindingKind.MOVED, marked), left_paths=left)
        if recorded_id is None or projects[recorded_id].places[memory_path]:
            return build_binding(BindingKind.COPY, find_free_id(), marked)
    if recorded_id is None:
        old = [find_unrecorded(projects, home, path) for path in (checkout.memory_path, checkout.path)]
        recorded_id = next(filter(None, old), None)
    remote = None if checkout.common is None else read_remote(checkout.common)
    if recorded_id is None and (moved := _find_moved_directory(projects, checkout, remote)) is not None:
        return replace(build_binding(BindingKind.MOVED, moved[0]), left_paths=(moved[1],))
    if recorded_id is not None:
        if marked is None and _is_other_repository(projects, recorded_id, checkout, remote):
            return build_binding(BindingKind.REPLACED, find_free_id(), recorded_id)
        return build_binding(BindingKind.KNOWN, recorded_id)
    clones = [each for each, project in projects.items() if remote is not None and project.remote == remote]
    clones.sort(key=lambda each: not projects[each].places)  # A project that is in use comes first.
    kind = BindingKind.CLONE if clones else BindingKind.NEW
    return build_binding(kind, find_free_id(), *clones[:1])


def _is_other_repository(
    projects: Projects, recorded_id: str, checkout: Checkout, remote: str | None
) -> bool:
    """Return whether a repository without a mark, at the path of a project's, is another one (P4)."""
    project = projects.get(recorded_id)
    if project is None or checkout.common is None or (remote is not None and remote == project.remote):
        return False
    if project.places.get(str(checkout.memory_path)):
        # After `chmod -R` a mark that others may read still shows that the repository is the same.
        return _find_marked_project(projects, checkout.common, private=False) != recorded_id
    return None not in {remote, project.remote}


def find_unrecorded(projects: Projects, home: Path, path: Path) -> str | None:
    """Return the id of a memory older than `projects.json` with the id of a path, or None."""
    key = compute_project_id(path)
    is_old = projects[key].by_path if key in projects else build_memory_path(home, key).is_dir()
    return key if is_old else None


def _find_marked_project(projects: Projects, common: Path, *, private: bool = True) -> str | None:
    """Return the project whose mark a repository has (P1)."""
    marks = _read_marks(common, private=private)
    return next((mark["id"] for mark in marks if _is_own_mark(projects, mark)), None)


def _is_own_mark(projects: Projects, mark: re.Match[str]) -> bool:
    """Return whether a mark is of this home: it has the secret of the project with its id."""
    project = projects.get(mark["id"])
    return project is not None and hmac.compare_digest(mark["secret"], project.secret)


def _read_marks(common: Path, *, private: bool) -> list[re.Match[str]]:
    """Return the marks in a repository, one per home; empty if the file contains anything else."""
    lines = (read_small_file(common / MARK_FILE_NAME, _MAX_MARK_BYTES, private=private) or "").splitlines(
        keepends=True
    )
    marks = [mark for line in lines if (mark := _MARK.fullmatch(line)) is not None]
    return marks if len(marks) == len(lines) else []


def _find_left_paths(projects: Projects, project_id: str, checkout: Checkout) -> tuple[str, ...]:
    """Return the recorded and marked paths of a project that a checkout was moved from (P2).

    A repository there without a mark may be the original that lost it: then the copy would become the owner.
    A repository with another remote is not the original.
    """
    remote = projects[project_id].remote if project_id in projects else None

    def is_left(place: str) -> bool:
        if _resolves_by_link(place, checkout):
            return True
        common = find_common_directory(Path(place))
        if common is None:
            return not os.path.lexists(Path(place, GIT))
        marked = _find_marked_project(projects, common)
        return remote not in {None, read_remote(common)} if marked is None else marked != project_id

    recorded_paths = projects[project_id].places if project_id in projects else {}
    return tuple(place for place, bears_mark in recorded_paths.items() if bears_mark and is_left(place))


def _resolves_by_link(path: str, checkout: Checkout) -> bool:
    """Return whether a recorded path now resolves to a checkout through a link."""
    now = str(checkout.memory_path)
    return path != now and os.path.realpath(path) == now


def _find_links_to(projects: Projects, checkout: Checkout) -> Iterator[tuple[str, str]]:
    """Yield the id and the recorded path of each project whose path resolves to a checkout by a link.

    Cost: a `stat` for each recorded path.
    """
    for project_id, project in projects.items():
        for place in project.places:
            with suppress(OSError):  # The path no longer exists.
                if Path(place).samefile(checkout.memory_path) and _resolves_by_link(place, checkout):
                    yield project_id, place


def _find_moved_directory(
    projects: Projects, checkout: Checkout, remote: str | None
) -> tuple[str, str] | None:
    """Return the project and the recorded path of a moved directory without a mark, or None (P2)."""
    if checkout.is_repository and remote is None:
        return None
    for project_id, link in _find_links_to(projects, checkout):
        project = projects[project_id]
        if not project.places[link] and (not checkout.is_repository or project.remote == remote):
            return project_id, link
    return None


def _find_free_id(projects: Projects, home: Path, checkout: Checkout) -> str:
    """Return the id of a new project: the id of its path, or the next free one."""
    keys = (compute_project_id(checkout.memory_path, number) for number in itertools.count())
    return next(key for key in keys if key not in projects and not build_memory_path(home, key).exists())


# -- the file ----------------------------------------------------------------------------------------


def list_all_projects(home: Path) -> Projects:
    """Return all projects, including ones with a memory but no record.

    Raises:
        ConfigInvalid: as `read_projects`.
    """
    found = dict(read_projects(home))
    directory = home / "projects"
    for name in sorted(os.listdir(directory)) if directory.is_dir() else ():  # noqa: PTH208  names
        if PROJECT_ID.fullmatch(name) and name not in found and build_memory_path(home, name).is_dir():
            found[name] = Project(_derive_name_from_id(name))
    return found


def read_projects(home: Path) -> Projects:
    """Return the content of `projects.json`; empty if the file is missing.

    Raises:
        ConfigInvalid: it cannot be read, another user may write it, or it is damaged.
    """
    path = home / FILE_NAME
    try:
        with path.open("rb") as file:
            check_owner_and_mode(path, os.fstat(file.fileno()))
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigInvalid(f"{printable(str(path))} cannot be read: {error.strerror}") from None
    try:
        document = json.loads(data[:MAX_BYTES])  # A longer file is cut and then counts as damaged.
        if document["version"] != _VERSION:
            raise ConfigInvalid(f"{printable(str(path))} was written by a newer version of Muniment")
        return {
            _require_match(PROJECT_ID, key): _parse_project(value)
            for key, value in document["projects"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigInvalid(
            f"{printable(str(path))} is damaged; restore it from a backup, or move it away: then projects "
            "are found by their first path, and `muniment projects link` binds others"
        ) from None


def _parse_project(value: Any) -> Project:
    """Return a project from JSON; raises an error that `read_projects` handles if it is invalid."""
    project = Project(**value)
    texts = (project.name, project.secret, *project.places, *project.before, *project.before.values())
    maybe = (project.remote, project.inside)
    is_one = all(isinstance(each, str) for each in texts) and all(
        each is None or isinstance(each, str) for each in maybe
    )
    if not is_one or any(not isinstance(each, bool) for each in (project.by_path, *project.places.values())):
        raise ValueError(value)
    if project.inside is not None and not _is_inside(project.inside):
        raise ValueError(project.inside)
    return project


def _require_match(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError(text)
    return text


@contextmanager
def lock_projects(home: Path) -> Iterator[dict[str, Project]]:
    """Lock the projects, yield them for changes, and write them at the end of the block (P5).

    Raises:
        ConfigInvalid: as `read_projects`.
        ManagedMemoryUnavailable: the home cannot be written; nothing is changed.
    """
    create_private_directory(home)
    path = home / FILE_NAME
    with lock_directory(home):
        before = read_projects(home)
        projects = dict(before)
        yield projects
        if projects == before:
            return
        document = {"version": _VERSION, "projects": {key: asdict(each) for key, each in projects.items()}}
        with convert_errors(path):
            write_file(path, json.dumps(document, indent=1).encode(), replace=True)


# -- binding -----------------------------------------------------------------------------------------


def bind_checkout(home: Path, directory: Path) -> Binding:
    """Record and return the project of the checkout around a directory.

    Raises:
        ConfigInvalid, ManagedMemoryUnavailable: as `find_project` and `record_binding`.
    """
    return record_binding(home, find_project(home, directory))


def record_binding(home: Path, found: Binding) -> Binding:
    """Record a binding and mark its repository (P5).

    Returns:
        The same binding, with the current project: the next lookup returns it as `KNOWN`.

    Raises:
        ConfigInvalid: as `read_projects`.
        ManagedMemoryUnavailable: as `lock_projects`.

    Cost: two small reads, its git configuration and the mark, if it is already recorded.
    """
    if _is_recorded(found):
        return found
    with lock_projects(home) as projects:
        found = find_project_of_checkout(projects, home, found.checkout)
        project = found.project or Project(_derive_name(found.checkout))
        project = _record_checkout(
            projects, found.id, _move_paths(project, found.left_paths, found.checkout), found.checkout
        )
    return replace(found, project=project)


def link_checkout(home: Path, directory: Path, project_id: str) -> Binding:
    """Bind the checkout around a directory to a project.

    Returns:
        The earlier binding.

    Raises:
        ConfigInvalid: as `find_project`; or the project does not exist.
        ManagedMemoryUnavailable: as `lock_projects`.
    """
    with lock_projects(home) as projects:
        found = find_project_of_checkout(projects, home, find_checkout(directory))
        project = _require_project(projects, home, project_id)
        links = [link for each, link in _find_links_to(projects, found.checkout) if each == project_id]
        left = dict.fromkeys([*_find_left_paths(projects, project_id, found.checkout), *links])
        _drop_links(projects, found.checkout)
        _record_checkout(projects, project_id, _move_paths(project, left, found.checkout), found.checkout)
    return found


def unlink_checkout(home: Path, directory: Path) -> tuple[Binding, str]:
    """Give the checkout around a directory a new project; return the earlier binding and the new id.

    Raises:
        ConfigInvalid, ManagedMemoryUnavailable: as `link_checkout`.
    """
    with lock_projects(home) as projects:
        found = find_project_of_checkout(projects, home, find_checkout(directory))
        project_id = found.id
        if found.is_bound:
            project = found.project or Project(_derive_name_from_id(found.id))
            projects[found.id] = replace(project, by_path=False)
            project_id = _find_free_id(projects, home, found.checkout)
        _drop_links(projects, found.checkout)
        _record_checkout(projects, project_id, Project(_derive_name(found.checkout)), found.checkout)
    return found, project_id


def rename_project(home: Path, project_id: str, name: str) -> None:
    """Rename a project; nothing else changes.

    Raises:
        ConfigInvalid: the name is invalid, or as `link_checkout`.
        ManagedMemoryUnavailable: as `lock_projects`.
    """
    if not name.strip() or not name.isprintable() or len(name) > MAX_NAME_CHARS:
        raise ConfigInvalid(f"invalid name: use 1 to {MAX_NAME_CHARS} printable characters")
    with lock_projects(home) as projects:
        projects[project_id] = replace(_require_project(projects, home, project_id), name=name.strip())


def set_memory_folder(home: Path, directory: Path, folder: str | None) -> Binding:
    """Store the memory of a project in a folder of its checkouts; None: in the home.

    Raises:
        ConfigInvalid: the folder is invalid, or as `link_checkout`.
        ManagedMemoryUnavailable: as `lock_projects`.
    """
    found = bind_checkout(home, directory)
    with lock_projects(home) as projects:
        inside = None if folder is None else check_inside(folder)
        projects[found.id] = replace(projects[found.id], inside=inside)
        return replace(found, kind=BindingKind.KNOWN, project=projects[found.id])


def check_inside(folder: str) -> str:
    """Return a relative folder of a checkout that can contain a memory.

    Raises:
        ConfigInvalid: it is invalid.
    """
    if not _is_inside(folder):
        raise ConfigInvalid(f"{printable(folder)!r} is not a folder under the checkout, such as .muniment")
    return str(Path(folder))


def _is_inside(folder: str) -> bool:
    path = Path(folder)
    is_relative = not path.is_absolute() and not {"..", ".git"} & {each.lower() for each in path.parts}
    return is_relative and bool(path.parts) and folder.isprintable()


def require_memory_in_checkout(found: Binding, memory: Path) -> None:
    """Raise unless `memory`, a path without links, is the chosen folder of the checkout.

    Raises:
        ConfigInvalid: it is another path, because a link is in its place.
    """
    wanted = found.checkout.path / (found.inside or "")
    if memory != wanted:
        raise ConfigInvalid(
            f"the memory of {_format_project(found)} is in {printable(str(wanted))}, but a link there points "
            f"to {printable(str(memory))}; find out who created the link, and remove it"
        )


def _require_project(projects: Projects, home: Path, project_id: str) -> Project:
    """Return a project, also one with a memory but no record; raise ConfigInvalid if it does not exist."""
    if project_id not in projects and not build_memory_path(home, project_id).is_dir():
        raise _build_unknown_project_error(project_id)
    return projects.get(project_id) or Project(_derive_name_from_id(project_id), by_path=True)


def _build_unknown_project_error(text: str) -> ConfigInvalid:
    return ConfigInvalid(f"project {printable(text)!r} not found; see: muniment projects list")


def _is_recorded(found: Binding) -> bool:
    """Return whether a checkout is completely recorded and marked."""
    checkout, project = found.checkout, found.project
    if (
        found.kind is not BindingKind.KNOWN
        or project is None
        or str(checkout.memory_path) not in project.places
    ):
        return False
    if checkout.common is None:
        return True
    remote = read_remote(checkout.common)
    if remote is not None and remote != project.remote:
        return False
    if not project.places[str(checkout.memory_path)]:
        return not os.access(checkout.common, os.W_OK)
    return _find_marked_project({found.id: project}, checkout.common) is not None


def _drop_links(projects: dict[str, Project], checkout: Checkout) -> None:
    """Remove the recorded paths that resolve to a checkout by a link: the user chose its memory."""
    for project_id, link in list(_find_links_to(projects, checkout)):
        project = projects[project_id]
        places = {each: marked for each, marked in project.places.items() if each != link}
        projects[project_id] = replace(project, places=places)


def _move_paths(project: Project, left: Collection[str], checkout: Checkout) -> Project:
    """Return a project whose repositories moved from some paths to the path of a checkout."""
    path = str(checkout.memory_path)
    places = {each: marked for each, marked in project.places.items() if each not in left}
    before = {old: path if now in left else now for old, now in project.before.items() if old != path}
    return replace(project, places=places, before=before | dict.fromkeys(left, path))


def _record_checkout(
    projects: dict[str, Project], project_id: str, project: Project, checkout: Checkout
) -> Project:
    """Record that a checkout belongs to one project only; its repository is marked first."""
    path, common = str(checkout.memory_path), checkout.common
    is_marked = common is not None and _write_mark(projects, common, project_id, project.secret)
    for other, known in projects.items():
        if path in known.places or path in known.before:
            left = {each: marked for each, marked in known.places.items() if each != path}
            before = {old: now for old, now in known.before.items() if old != path}
            projects[other] = replace(known, places=left, before=before)
    remote = (None if common is None else read_remote(common)) or project.remote
    by_path = project.by_path and project_id != compute_project_id(checkout.memory_path)
    places = {**project.places, path: is_marked}
    projects[project_id] = replace(project, remote=remote, places=places, by_path=by_path)
    return projects[project_id]


def _write_mark(projects: Projects, common: Path, project_id: str, secret: str) -> bool:
    """Mark a repository; return whether it has the mark now. A file without valid marks is left unchanged.

    Marks of other homes remain; two homes may use the same id, so the secret identifies the home.
    """
    path = common / MARK_FILE_NAME
    own_mark = f"muniment 1 {project_id} {secret}\n"
    existing = _read_marks(common, private=False)
    if os.path.lexists(path) and not existing:
        return False
    others = [mark[0] for mark in existing if not _is_own_mark(projects, mark) and mark[0] != own_mark]
    text = "".join([*others[1 - _MAX_MARKS :], own_mark])
    if read_small_file(path, _MAX_MARK_BYTES, private=True) != text:
        with suppress(OSError):
            write_file(path, text.encode(), replace=True)
    # On a file system without modes it is not a mark: marks are readable by this user only.
    return read_small_file(path, _MAX_MARK_BYTES, private=True) == text


def _derive_name(checkout: Checkout) -> str:
    """Return a name for a project at that path."""
    place = checkout.memory_path
    directory = place.parent if place.name.startswith(".") else place
    return printable(directory.name)[:MAX_NAME_CHARS] or "workspace"


def _derive_name_from_id(project_id: str) -> str:
    return project_id[: -_KEY_CHARS - 1]


# -- notes -------------------------------------------------------------------------------------------


def list_notes(home: Path, found: Binding, *, was_recorded: bool) -> Iterator[str]:
    """Yield notes for the user about how a project was found, with the next steps.

    Args:
        home: the home.
        found: from `find_project`, or from `bind_checkout` if it `was_recorded`.
        was_recorded: whether it was recorded, so that this note is displayed only once.
    """
    checkout = found.checkout
    if checkout.is_rejected:
        yield (
            f"{checkout.path}/.git points to a repository that does not know this directory, so its memory "
            "is not used here; for a worktree that was moved: git worktree repair"
        )
    match found.kind, found.other_project:
        case BindingKind.MOVED, _ if was_recorded:
            name = _format_project(found)
            yield f"the memory of {name} is still used: its repository was moved to {checkout.memory_path}"
        case ((BindingKind.COPY | BindingKind.CLONE | BindingKind.REPLACED), (other, project)):
            what = {
                BindingKind.COPY: f"this is a copy of the repository of {project.name}",
                BindingKind.CLONE: f"this is another clone of {project.remote}, like {project.name}",
                BindingKind.REPLACED: f"another repository was here, that of {project.name}",
            }[found.kind]
            has = "has a separate memory now" if was_recorded else "has no separate memory yet"
            yield f"{what}, and {has}; to share the memory of {project.name}: muniment projects link {other}"
        case _:
            pass
    if checkout.path != checkout.memory_path and found.is_bound:
        projects = read_projects(home)
        old = find_unrecorded(projects, home, checkout.path)
        if old is not None and old != found.id and old not in projects:
            yield (
                "this worktree had a separate memory and shares the memory of its clone now; the old one is "
                f"in {build_memory_path(home, old)}; to end this note: muniment projects rename {old} NAME"
            )


def list_advice(home: Path, found: Binding) -> Iterator[str]:
    """Yield how to join another memory that seems to belong to the same project, if there is one.

    That is a memory whose recorded path is now a link to this checkout. Data of a repository itself never
    causes this note, since agents receive it too.

    Args:
        home: the home.
        found: the project that is used here.
    """
    projects = read_projects(home)
    for project_id, _ in _find_links_to(projects, found.checkout):
        if project_id != found.id:
            alternative = f"; to keep both apart: muniment projects link {found.id}" if found.is_bound else ""
            yield (
                f"another memory seems to belong to this project: that of {projects[project_id].name}, whose "
                "directory is a link to this one now. If the user agrees, join both: muniment projects link "
                f"{project_id}{alternative}"
            )
            return


def _format_project(found: Binding) -> str:
    return found.id if found.project is None else found.project.name


def find_project_id(projects: Projects, home: Path, text: str) -> str:
    """Return the id of a project that the user identified by id or name.

    Raises:
        ConfigInvalid: the name is unknown, or not unique.
    """
    if text in projects or (PROJECT_ID.fullmatch(text) and build_memory_path(home, text).is_dir()):
        return text
    known = [project_id for project_id, project in projects.items() if project.name == text]
    match known:
        case [one]:
            return one
        case []:
            raise _build_unknown_project_error(text)
        case _:
            raise ConfigInvalid(
                f"{printable(text)} is the name of several projects; use one of these ids: {', '.join(known)}"
            )
