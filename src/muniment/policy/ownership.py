"""Checks that protect trusted files: policies are outside the roots, and only trusted users can write them.

`require_outside` checks that no file of a policy is in a root (E126; rule B2 of `kernel.binding`).
`require_trusted` checks that no other user has written a file that a program trusts, or may replace it (rule
B1 of `kernel.binding`).
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, PolicyInvalid, printable
from muniment.kernel.binding import BoundRoot, bind_all
from muniment.kernel.names import Scope
from muniment.portable import IS_LINUX, IS_WINDOWS, SYSTEM, is_in_own_folder

_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE: Final = 0o700

_OVERFLOW_USER: Final = 65_534

_MAX_LINKS: Final = 40
"""Maximum number of links on the way to one file; Linux follows no more."""

_Identity = tuple[int, int]
"""Device and inode of a file."""


def bind_outside(
    trusted_paths: Mapping[Scope, str | os.PathLike[str]],
    policy_files: Iterable[Path],
    policy_links: frozenset[_Identity],
    *,
    disjoint_from: Sequence[str | os.PathLike[str]] = (),
) -> dict[Scope, BoundRoot]:
    """Bind roots as `bind_all` does; raise if a file of the policy is in a root.

    Args:
        trusted_paths: as for `bind_all`.
        policy_files: the files of the policy, which must not be in a root.
        policy_links: device and inode of the policy files with several hard links; no root may contain them
            under another name.
        disjoint_from: as for `bind_all`.

    Raises:
        ManagedMemoryUnavailable: as `bind_all`.
        PolicyInvalid: as `require_outside`. No root stays open.
    """
    with ExitStack() as opened:
        roots = bind_all(trusted_paths, disjoint_from=disjoint_from)
        for root in roots.values():
            opened.enter_context(root)
        require_outside(tuple(roots.values()), policy_files, policy_links)
        opened.pop_all()
    return roots


def require_outside(
    roots: Collection[BoundRoot],
    trusted_paths: Iterable[Path],
    linked: frozenset[_Identity] = frozenset(),
) -> None:
    """Raise if a policy file is in a root, or if its path leads through a root.

    Args:
        roots: the roots to which a run may write.
        trusted_paths: the files of a policy, by their given paths.
        linked: device and inode of the policy files with several hard links.

    Raises:
        PolicyInvalid: a run could change the policy of the next run (E126).

    Cost: some system calls for each path; if a file has several hard links, one for each entry of the roots.
    """
    scopes = {(bound.device, bound.inode): bound.scope for bound in roots}
    for bound in roots if linked else ():
        for directory, _, names in os.walk(bound.trusted_path):
            for name in names:
                status = os.lstat(os.path.join(directory, name))  # noqa: PTH118  thousands, perhaps
                if (status.st_dev, status.st_ino) in linked:
                    displayed_path = printable(os.path.join(directory, name))  # noqa: PTH118
                    problem = "is a file of the policy by another name; copy the policy instead of linking it"
                    raise PolicyInvalid("E126", displayed_path, problem)
    for path in trusted_paths:
        try:
            found = [directory.stat() for directory in _iterate_directories(path)]
        except OSError as error:
            problem = f"cannot check whether it is in a root ({error.strerror}); correct its permissions"
            raise PolicyInvalid("E126", printable(str(path)), problem) from error
        scopes_found = [
            scopes[each] for status in found if (each := (status.st_dev, status.st_ino)) in scopes
        ]
        if scopes_found:
            problem = (
                f"is in the root of scope {scopes_found[0]!r}, which runs may write; move it out of the root"
            )
            raise PolicyInvalid("E126", printable(str(path)), problem)


def require_trusted(trusted_path: Path, *, inside: bool = False) -> None:
    """Raise if another user may write or replace the file at a path.

    A missing file is accepted. A directory on the path, also on the way through links, may be writable by
    others if it is sticky, like /tmp. On Linux the current group may write any directory: it often has only
    this user.

    Args:
        trusted_path: the file or folder to check.
        inside: also check each file in the folder.

    Raises:
        ConfigInvalid: the message contains the path, and the command that corrects it.

    If a system reports no owner, the path must be in this user's folder (`portable.is_in_own_folder`).

    Cost: a `stat` for each directory on the path.
    """
    try:
        require_trusted_directories(trusted_path)
        if IS_WINDOWS:
            return
        check_owner_and_mode(trusted_path, trusted_path.stat())
        for each in sorted(trusted_path.iterdir()) if inside else ():
            require_trusted(each)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ConfigInvalid(f"{printable(str(trusted_path))} cannot be read: {error.strerror}") from None


def require_trusted_directories(trusted_path: Path) -> None:
    """Raise if another user may replace the file at a path, because of a directory on the path.

    This is the part of `require_trusted` that checks directories.

    Raises:
        ConfigInvalid: as `require_trusted`.
        OSError: a directory is missing or its status cannot be read.
    """
    if IS_WINDOWS:
        _require_in_own_folder(trusted_path)
        return
    for directory in _iterate_directories(trusted_path):
        found = directory.stat()
        is_moved_by_owners = bool(found.st_mode & stat.S_ISVTX)
        # On macOS the group of one user is that of all.
        own_groups = {os.getegid(), 0} if IS_LINUX else {0}
        others = stat.S_IWOTH if found.st_gid in own_groups else _OTHERS_MAY_WRITE
        # The overflow user represents users that are unknown in a user namespace; outside of one no user has
        # it.
        if found.st_uid not in {os.geteuid(), 0} and found.st_uid != _read_overflow_user():
            raise _build_owner_error(directory, found)
        if found.st_mode & others and not is_moved_by_owners:
            raise _build_mode_error(directory, found)


def check_owner_and_mode(path: Path, found: os.stat_result) -> None:
    """Raise unless the file at a path belongs to this user or root, and no other user may write it.

    Args:
        path: the path of the file.
        found: the status of the file.

    Raises:
        ConfigInvalid: as `require_trusted`.
    """
    if IS_WINDOWS:
        _require_in_own_folder(path)
        return
    if found.st_uid not in {os.geteuid(), 0}:
        raise _build_owner_error(path, found)
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise _build_mode_error(path, found)


def _require_in_own_folder(path: Path) -> None:
    if path.exists() and not is_in_own_folder(path):
        raise ConfigInvalid(
            f"{printable(str(path))} is outside your folder, where others may write; on {SYSTEM} it must be "
            f"inside: move it below {printable(str(Path.home()))}"
        )


def _build_owner_error(path: Path, found: os.stat_result) -> ConfigInvalid:
    displayed_path = printable(str(path))
    return ConfigInvalid(
        f"{displayed_path} belongs to user {found.st_uid}, who could have changed it; review it and "
        f"run as root: chown {os.geteuid()} {shlex.quote(displayed_path)}; or move it"
    )


def _build_mode_error(path: Path, found: os.stat_result) -> ConfigInvalid:
    displayed_path = printable(str(path))
    return ConfigInvalid(
        f"{displayed_path} is writable by others (mode {stat.S_IMODE(found.st_mode):04o}), who could have "
        f"changed it; review it, then run: chmod go-w {shlex.quote(displayed_path)}"
    )


def _read_overflow_user() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _OVERFLOW_USER


def _iterate_directories(path: Path) -> Iterator[Path]:
    """Yield every directory that is searched to open `path`, including those on the paths of links."""
    top, *parts = path.absolute().parts
    directory, *remaining = [Path(top), *parts]
    links = 0
    while remaining:
        yield directory
        step = directory.parent if remaining[0] == ".." else directory / remaining[0]
        remaining = remaining[1:]
        if links < _MAX_LINKS and step.is_symlink():
            links += 1
            target = step.readlink()
            directory = Path(target.anchor) if target.is_absolute() else directory
            remaining = [*(part for part in target.parts if part != target.anchor), *remaining]
        else:
            directory = step


def create_private_directory(path: str | os.PathLike[str]) -> None:
    """Create a directory in the user's home, and every missing parent, each with mode 0700.

    Existing directories are not changed; `kernel.binding.bind` checks them.

    Raises:
        ManagedMemoryUnavailable: the system denies it, or the path is not a directory.
    """
    wanted = Path(path)
    try:
        for directory in (*reversed(wanted.parents), wanted):
            # An existing one may be a link; another process of this user may also create it first.
            with suppress(FileExistsError):
                directory.mkdir(_PRIVATE)
    except OSError as error:
        raise ManagedMemoryUnavailable(
            printable(str(wanted)), f"cannot be created ({error.strerror}); create it yourself with mode 0700"
        ) from error
    if not wanted.is_dir():
        raise ManagedMemoryUnavailable(printable(str(wanted)), "is not a directory; move it away")
