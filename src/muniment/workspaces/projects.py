"""List the projects that have a memory, and find the project of a checkout.

`projects.json` in the home stores, for each project, the last paths of its repositories. In addition each
repository has a mark: a line in the file `muniment` in git's common directory, with the id of the project and
a secret. Only this user may read the mark, and git never commits or clones it.

P1 A checkout is bound to a project only by its path, or by a mark with the project's secret. Nothing else in
   a repository binds it: not a remote, not a mark of another home, and not a folder with the project's name.
P2 If a repository has a mark but its path is not recorded, it was either moved or copied. Consider the
   project's recorded paths: the repository was moved if one of them now has no repository, has a repository
   of another project or remote, or is a link to this repository. Otherwise it is a copy. Without a mark, a
   directory was moved only if a recorded path is now a link to it; a repository must also have the project's
   remote.
P3 For a copy, and for another clone of a known remote, the user must choose the memory, and is asked once.
   Until then the checkout reads nothing of the other memory. The first write creates a separate memory, and
   the question is settled.
P4 A repository at a recorded path is a different one, with a new memory, in two cases: the path is recorded
   with a mark and the mark is missing, or it is recorded without a mark and the remotes differ. A repository
   with the recorded remote is never a different one.
P5 A lookup changes nothing. `bind_checkout` holds a lock, and writes the mark before the record that refers
   to it.

A memory that is older than `projects.json` is found by the path in its id. An inode does not identify a
directory, because inodes are reused. See ADR 0039.

Attacks on these rules are in tests/attacks/test_foreign_repositories.py.
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
"""Name of the memory directory of a project, inside the directory that is named after its id."""

MAX_BYTES: Final = 16 << 20
"""Maximum number of bytes of `projects.json`; one project needs about 250."""

MAX_NAME_CHARS: Final = 80

_VERSION: Final = 1
_KEY_CHARS: Final = 32
"""Number of hexadecimal digits in a project id: 128 bits, so that no two projects share an id."""

_SLUG_CHARS: Final = 40
"""Maximum number of characters of a project's name in its id. The digits after it make the id unique."""

PROJECT_ID: Final = re.compile(r"[a-z0-9-]{1,40}-[0-9a-f]{32}", re.ASCII)
_MARK: Final = re.compile(
    r"muniment 1 (?P<id>[a-z0-9-]{1,40}-[0-9a-f]{32}) (?P<secret>[0-9a-f]{32})\n", re.ASCII
)
_MAX_MARKS: Final = 32
"""Maximum number of marks in a repository, one per home. If there are more, the oldest mark is removed."""

_MAX_MARK_BYTES: Final = 4096
"""Maximum number of bytes of all marks of a repository; one mark has at most 118."""

_SECRET_BYTES: Final = 16


class BindingKind(StrEnum):
    """The relation of a checkout to the known projects.

    Attributes:
        KNOWN: the path is recorded, or belongs to a memory that is older than `projects.json`.
        MOVED: a repository of a project that was moved to this path.
        COPY: a copy of a repository of a project; the user must choose a memory.
        CLONE: another clone of a project's remote; the user must choose a memory.
        REPLACED: a different repository at the recorded path of a project.
        NEW: no relation to a known project.
    """

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
        name: the name that users see.
        remote: the normalised remote of its repository; None: unknown.
        secret: the secret in the marks of its repositories, which prove that they belong to the project.
        places: the paths of its repositories; the value is whether the repository there has a mark.
        inside: the folder of a checkout that contains the memory; None: the memory is in the home.
        by_path: whether it is older than `projects.json`, and is also found by the path in its id.
        before: the earlier paths of its repositories; the value is the path that each was moved to.
    """

    name: str
    remote: str | None = None
    secret: str = field(default_factory=lambda: secrets.token_hex(_SECRET_BYTES), repr=False)
    places: Mapping[str, bool] = field(default_factory=dict)
    inside: str | None = None
    by_path: bool = False
    before: Mapping[str, str] = field(default_factory=dict)


Projects = Mapping[str, Project]
"""All projects by id."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A checkout with the project it belongs to.

    Attributes:
        checkout: the checkout.
        id: the id of the project; if the checkout has no project yet, the id that a new one would get.
        project: the record in `projects.json`; None: not recorded.
        kind: the relation of the checkout to the known projects.
        other_project: id and record of the project that this is a copy or clone of, or that had this path
            before.
        left_paths: the recorded paths that the checkout was moved from.
    """

    checkout: Checkout
    id: str
    project: Project | None
    kind: BindingKind
    other_project: tuple[str, Project] | None = None
    left_paths: tuple[str, ...] = ()

    @property
    def is_bound(self) -> bool:
        """Return whether the checkout belongs to a known project."""
        return self.kind in {BindingKind.KNOWN, BindingKind.MOVED}

    @property
    def needs_decision(self) -> bool:
        """Return whether the user must choose a memory, because the checkout is a copy or another clone."""
        return self.kind in {BindingKind.COPY, BindingKind.CLONE}

    @property
    def inside(self) -> str | None:
        """Return the folder of the checkout that contains the memory; None: the memory is in the home."""
        return None if self.project is None else self.project.inside

    @property
    def key(self) -> str:
        """Return the key under which the daemon serves the memory of this checkout.

        The key is the project id if the memory is in the home. Otherwise each checkout has its own memory,
        and the key also depends on the path of the checkout. Such a key never equals a project id.
        """
        return (
            self.id
            if self.inside is None
            else _compute_key(self.checkout.path, b"inside\0%s\0" % self.id.encode())
        )

    @property
    def previous_paths(self) -> tuple[str, ...]:
        """Return the paths that the checkout was moved from; empty for a linked worktree."""
        path = str(self.checkout.memory_path)
        if self.project is None or path != str(self.checkout.path):
            return ()
        return (
            *self.left_paths,
            *(old for old, now in self.project.before.items() if now in {path, *self.left_paths}),
        )

    def with_folder(self, inside: str | None) -> Binding:
        """Return a copy of the binding with the memory in another place.

        Args:
            inside: the folder of the checkout that contains the memory; None: the memory is in the home.
        """
        project = self.project or Project(_derive_name_from_id(self.id))
        return replace(self, project=replace(project, inside=inside))

    def build_memory_path(self, home: Path) -> Path:
        """Return the directory of the project's memory, which may be missing.

        Args:
            home: the directory of the home.
        """
        return build_memory_path(home, self.id) if self.inside is None else self.checkout.path / self.inside


def build_memory_path(home: Path, project_id: str) -> Path:
    """Return the directory of a project's memory in the home, whether it exists or not."""
    return home / "projects" / project_id / MEMORY_DIRECTORY


def compute_project_id(path: Path, number: int = 0) -> str:
    """Return the project id for a path: a readable slug and 128 bits of a digest of the path.

    Args:
        path: the path of the repository.
        number: 0 for the first id of this path; 1, 2 and so on for further ids of the same path.
    """
    return _compute_key(path, after=b"\0%d" % number if number else b"")


def _compute_key(path: Path, before: bytes = b"", after: bytes = b"") -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", path.name.casefold()).strip("-")[:_SLUG_CHARS] or "workspace"
    return f"{slug}-{digest(before + os.fsencode(path) + after)[:_KEY_CHARS]}"


# -- finding -----------------------------------------------------------------------------------------


def find_project(home: Path, directory: Path) -> Binding:
    """Return the project of the checkout around a directory, without changing anything.

    The project is found by the path of the checkout, or by the mark in its repository (rules P1 to P4 in the
    module docstring).

    Raises:
        ConfigInvalid: the directory does not exist, or `projects.json` cannot be used.

    Cost: as `find_checkout`, and two small reads: the mark and `projects.json` (2 ms for 1 000 projects). For
    an unknown checkout, its git configuration is read too; for a moved one, the marks at the recorded paths.
    """
    return find_project_of_checkout(read_projects(home), home, find_checkout(directory))


def find_project_of_checkout(projects: Projects, home: Path, checkout: Checkout) -> Binding:
    """Return the project of a checkout, as `find_project` does for a directory."""
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
    clones.sort(key=lambda each: not projects[each].places)  # A project that has repositories comes first.
    kind = BindingKind.CLONE if clones else BindingKind.NEW
    return build_binding(kind, find_free_id(), *clones[:1])


def _is_other_repository(
    projects: Projects, recorded_id: str, checkout: Checkout, remote: str | None
) -> bool:
    """Return whether a different repository is now at the recorded path of a project.

    Args:
        projects: all projects.
        recorded_id: the id of the project at that path.
        checkout: a checkout at that path, without a mark of this home (a line with a project's secret).
        remote: the remote of the checkout; None: unknown.
    """
    project = projects.get(recorded_id)
    if project is None or checkout.common is None or (remote is not None and remote == project.remote):
        return False
    if project.places.get(str(checkout.memory_path)):
        # After `chmod -R` a mark that others may read still shows that the repository is the same.
        return _find_marked_project(projects, checkout.common, private=False) != recorded_id
    return None not in {remote, project.remote}


def find_unrecorded(projects: Projects, home: Path, path: Path) -> str | None:
    """Return the id of a project whose memory at a path is older than `projects.json`, or None."""
    key = compute_project_id(path)
    is_old = projects[key].by_path if key in projects else build_memory_path(home, key).is_dir()
    return key if is_old else None


def _find_marked_project(projects: Projects, common: Path, *, private: bool = True) -> str | None:
    """Return the id of the project whose mark a repository has, or None.

    A mark is a line in the file `muniment` of the repository, with the id and the secret of a project.

    Args:
        projects: all projects.
        common: git's common directory of the repository.
        private: whether to ignore a mark that other users may read.
    """
    marks = _read_marks(common, private=private)
    return next((mark["id"] for mark in marks if _is_own_mark(projects, mark)), None)


def _is_own_mark(projects: Projects, mark: re.Match[str]) -> bool:
    """Return whether a mark was written by this home: it contains the secret of the project with its id."""
    project = projects.get(mark["id"])
    return project is not None and hmac.compare_digest(mark["secret"], project.secret)


def _read_marks(common: Path, *, private: bool) -> list[re.Match[str]]:
    """Return the marks of projects in a repository; empty if the file contains anything else.

    Args:
        common: git's common directory of the repository.
        private: whether to ignore the file if other users may read it.
    """
    lines = (read_small_file(common / MARK_FILE_NAME, _MAX_MARK_BYTES, private=private) or "").splitlines(
        keepends=True
    )
    marks = [mark for line in lines if (mark := _MARK.fullmatch(line)) is not None]
    return marks if len(marks) == len(lines) else []


def _find_left_paths(projects: Projects, project_id: str, checkout: Checkout) -> tuple[str, ...]:
    """Return the recorded paths of a project from which a checkout with the project's mark was moved.

    Only paths that are recorded with a mark count. A repository at such a path without a mark may be the
    original that lost its mark: if the path counted, a copy would get the memory. A repository with another
    remote is not the original.
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
    """Return whether a recorded path is now a link that leads to a checkout."""
    now = str(checkout.memory_path)
    return path != now and os.path.realpath(path) == now


def _find_links_to(projects: Projects, checkout: Checkout) -> Iterator[tuple[str, str]]:
    """Yield the id and the recorded path of each project whose path is now a link to a checkout.

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
    """Find the project whose recorded path is now a link to a checkout without a mark.

    Returns:
        The id of the project and the recorded path; None if the checkout was not moved.
    """
    if checkout.is_repository and remote is None:
        return None
    for project_id, link in _find_links_to(projects, checkout):
        project = projects[project_id]
        if not project.places[link] and (not checkout.is_repository or project.remote == remote):
            return project_id, link
    return None


def _find_free_id(projects: Projects, home: Path, checkout: Checkout) -> str:
    """Return the id for a new project: the id of its path, with the first number that makes it free."""
    keys = (compute_project_id(checkout.memory_path, number) for number in itertools.count())
    return next(key for key in keys if key not in projects and not build_memory_path(home, key).exists())


# -- the file ----------------------------------------------------------------------------------------


def list_all_projects(home: Path) -> Projects:
    """Return all projects, including those that have a memory but no record in `projects.json`.

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
    """Return the projects in `projects.json`; empty if the file is missing.

    Raises:
        ConfigInvalid: the file cannot be read, is damaged, or another user may write it.
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
            raise ConfigInvalid(f"{printable(str(path))} was written by a newer Muniment; update Muniment")
        return {
            _require_match(PROJECT_ID, key): _parse_project(value)
            for key, value in document["projects"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigInvalid(
            f"{printable(str(path))} is damaged; restore it from a backup, or rename it. Without it, "
            "projects are found by their first path; bind others with: muniment projects link"
        ) from None


def _parse_project(value: Any) -> Project:
    """Return the project in a JSON value.

    Raises:
        ValueError, TypeError: the value is invalid; `read_projects` handles both.
    """
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
    """Lock the projects and yield them for changes; write the changes at the end of the block.

    Raises:
        ConfigInvalid: as `read_projects`.
        ManagedMemoryUnavailable: the home cannot be written; nothing is changed.
    """
    from muniment.store.state import lock_directory, write_file

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
    """Record the checkout around a directory in its project, and return the binding.

    Raises:
        ConfigInvalid, ManagedMemoryUnavailable: as `find_project` and `record_binding`.
    """
    return record_binding(home, find_project(home, directory))


def record_binding(home: Path, found: Binding) -> Binding:
    """Record a binding in `projects.json`, and write the project's mark to the repository of the checkout.

    Returns:
        The binding with the recorded project. Later lookups return it with the kind `KNOWN`.

    Raises:
        ConfigInvalid: as `read_projects`.
        ManagedMemoryUnavailable: as `lock_projects`.

    Cost: if the checkout is already recorded, two small reads: its git configuration and its mark.
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
        The binding that the checkout had before.

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
    """Bind the checkout around a directory to a new project.

    Returns:
        The binding that the checkout had before, and the id of the new project.

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
    """Change the name of a project that users see; its id stays the same.

    Raises:
        ConfigInvalid: the name is invalid, the project does not exist, or as `read_projects`.
        ManagedMemoryUnavailable: as `lock_projects`.
    """
    if not name.strip() or not name.isprintable() or len(name) > MAX_NAME_CHARS:
        raise ConfigInvalid(f"invalid project name: use 1 to {MAX_NAME_CHARS} printable characters")
    with lock_projects(home) as projects:
        projects[project_id] = replace(_require_project(projects, home, project_id), name=name.strip())


def set_memory_folder(home: Path, directory: Path, folder: str | None) -> Binding:
    """Choose the folder for the memory of the project around a directory, and return the new binding.

    Existing files are not moved.

    Args:
        home: the directory of the home.
        directory: a directory in a checkout of the project.
        folder: a folder of the checkout; None: the memory is stored in the home.

    Raises:
        ConfigInvalid: the folder is invalid, or as `bind_checkout`.
        ManagedMemoryUnavailable: as `lock_projects`.
    """
    found = bind_checkout(home, directory)
    with lock_projects(home) as projects:
        inside = None if folder is None else check_inside(folder)
        projects[found.id] = replace(projects[found.id], inside=inside)
        return replace(found, kind=BindingKind.KNOWN, project=projects[found.id])


def check_inside(folder: str) -> str:
    """Return a folder of a checkout in its normal form, if it can contain a memory.

    Args:
        folder: the path relative to the checkout.

    Raises:
        ConfigInvalid: the path is absolute, or contains `..`, `.git` or unprintable characters.
    """
    if not _is_inside(folder):
        raise ConfigInvalid(
            f"invalid folder {printable(folder)!r}: use a path below the checkout, such as .muniment"
        )
    return str(Path(folder))


def _is_inside(folder: str) -> bool:
    path = Path(folder)
    is_relative = not path.is_absolute() and not {"..", ".git"} & {each.lower() for each in path.parts}
    return is_relative and bool(path.parts) and folder.isprintable()


def require_memory_in_checkout(found: Binding, memory: Path) -> None:
    """Check that the memory of a checkout is in the chosen folder, and that no link leads elsewhere.

    Args:
        found: the binding of the checkout.
        memory: the real path of the memory.

    Raises:
        ConfigInvalid: a link leads to another path.
    """
    wanted = found.checkout.path / (found.inside or "")
    if memory != wanted:
        raise ConfigInvalid(
            f"the memory of {_format_project(found)} is in {printable(str(wanted))}, but a link there points "
            f"to {printable(str(memory))}; find out who created the link, and remove it"
        )


def _require_project(projects: Projects, home: Path, project_id: str) -> Project:
    """Return a project, even one that has a memory but no record.

    Raises:
        ConfigInvalid: the project does not exist.
    """
    if project_id not in projects and not build_memory_path(home, project_id).is_dir():
        raise _build_unknown_project_error(project_id)
    return projects.get(project_id) or Project(_derive_name_from_id(project_id), by_path=True)


def _build_unknown_project_error(text: str) -> ConfigInvalid:
    return ConfigInvalid(f"project {printable(text)!r} not found; see: muniment projects list")


def _is_recorded(found: Binding) -> bool:
    """Return whether the record and the mark of a checkout are complete, so that no write is needed."""
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
    """Remove the recorded paths that are now links to a checkout, because the user chose its memory."""
    for project_id, link in list(_find_links_to(projects, checkout)):
        project = projects[project_id]
        places = {each: marked for each, marked in project.places.items() if each != link}
        projects[project_id] = replace(project, places=places)


def _move_paths(project: Project, left: Collection[str], checkout: Checkout) -> Project:
    """Return a copy of a project whose repositories moved from the paths `left` to the path of a checkout."""
    path = str(checkout.memory_path)
    places = {each: marked for each, marked in project.places.items() if each not in left}
    before = {old: path if now in left else now for old, now in project.before.items() if old != path}
    return replace(project, places=places, before=before | dict.fromkeys(left, path))


def _record_checkout(
    projects: dict[str, Project], project_id: str, project: Project, checkout: Checkout
) -> Project:
    """Write a project's mark to the repository of a checkout, then record the checkout in that project.

    Returns:
        The changed project.
    """
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
    """Write the mark of a project to a repository, and return whether the repository has that mark now.

    Marks of other homes remain. Two homes may use the same project id; the secret distinguishes their marks.
    If the file contains anything other than marks, it is left unchanged.
    """
    from muniment.store.state import write_file

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
    # On a file system without modes this is not a mark: only this user may be able to read a mark.
    return read_small_file(path, _MAX_MARK_BYTES, private=True) == text


def _derive_name(checkout: Checkout) -> str:
    """Return the initial name of the project of a checkout: the name of its directory."""
    place = checkout.memory_path
    directory = place.parent if place.name.startswith(".") else place
    return printable(directory.name)[:MAX_NAME_CHARS] or "workspace"


def _derive_name_from_id(project_id: str) -> str:
    return project_id[: -_KEY_CHARS - 1]


# -- notes -------------------------------------------------------------------------------------------


def list_notes(home: Path, found: Binding, *, was_recorded: bool) -> Iterator[str]:
    """Yield notes for the user about how a project was found, with the next steps.

    Args:
        home: the directory of the home.
        found: the binding from `find_project`, or from `bind_checkout` if `was_recorded` is true.
        was_recorded: whether the binding was recorded just now. The note about a moved repository appears
            only then.
    """
    checkout = found.checkout
    if checkout.is_rejected:
        yield (
            f"{checkout.path}/.git points to a repository that does not point back, so its memory is "
            "not used here; if the worktree was moved, run: git worktree repair"
        )
    match found.kind, found.other_project:
        case BindingKind.MOVED, _ if was_recorded:
            name = _format_project(found)
            yield f"the memory of {name} is still used: its repository was moved to {checkout.memory_path}"
        case ((BindingKind.COPY | BindingKind.CLONE | BindingKind.REPLACED), (other, project)):
            what = {
                BindingKind.COPY: f"this is a copy of the repository of {project.name}",
                BindingKind.CLONE: f"this is another clone of {project.remote}, like {project.name}",
                BindingKind.REPLACED: f"another repository was here before, that of {project.name}",
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
                f"in {build_memory_path(home, old)}; to hide this note: muniment projects rename {old} NAME"
            )


def list_advice(home: Path, found: Binding) -> Iterator[str]:
    """Yield a note with the command that joins another memory of the same project, if there seems to be one.

    That is a memory whose recorded path is now a link to this checkout. Data in the repository itself never
    causes this note, because agents receive the note too.

    Args:
        home: the directory of the home.
        found: the binding of this checkout.
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
    """Return the id of the project that the user named by its id or name.

    Raises:
        ConfigInvalid: the project is unknown, or several projects have the name.
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
