"""Who may write what is obeyed: policies lie outside the roots, and nobody else has written them.

`require_outside` holds the files of a policy to the other side of B2 of `kernel.binding`: none lies in a root
(E126). `require_ours` holds what a program obeys to B1 there: nobody else has written it, or may put another
in its place.
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
"""Links on the way to one file; Linux follows no more."""

_Identity = tuple[int, int]
"""Device and inode."""


def bind_outside(
    trusted_paths: Mapping[Scope, str | os.PathLike[str]],
    policy_files: Iterable[Path],
    policy_links: frozenset[_Identity],
    *,
    apart_from: Sequence[str | os.PathLike[str]] = (),
) -> dict[Scope, BoundRoot]:
    """As `bind_all`, where no file of the policy lies in a root.

    Args:
        trusted_paths: as `bind_all`.
        policy_files: what the policy was read from, none of which may lie in a root.
        policy_links: those files of it that have further names, none of which may either.
        apart_from: as `bind_all`.

    Raises:
        ManagedMemoryUnavailable: as `bind_all`.
        PolicyInvalid: as `require_outside`. Nothing stays open.
    """
    with ExitStack() as opened:
        roots = bind_all(trusted_paths, apart_from=apart_from)
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
    """Raise unless no file of a policy is reached through a root, by any directory or link on its way.

    Args:
        roots: where a run may write.
        trusted_paths: what a policy was read from, as it was named.
        linked: those files of it that have further names.

    Raises:
        PolicyInvalid: a run could change what bounds the next one; E126.

    Cost: some calls for each path; where a file has further names, one for each entry of the roots.
    """
    scopes = {(bound.device, bound.inode): bound.scope for bound in roots}
    for bound in roots if linked else ():
        for directory, _, names in os.walk(bound.trusted_path):
            for name in names:
                status = os.lstat(os.path.join(directory, name))  # noqa: PTH118  thousands, perhaps
                if (status.st_dev, status.st_ino) in linked:
                    shown = printable(os.path.join(directory, name))  # noqa: PTH118
                    problem = "is a file of the policy by another name; copy the policy instead of linking it"
                    raise PolicyInvalid("E126", shown, problem)
    for path in trusted_paths:
        try:
            found = [directory.stat() for directory in _directories_on_the_way(path)]
        except OSError as error:
            problem = f"cannot tell whether it lies in a root ({error.strerror}); correct its permissions"
            raise PolicyInvalid("E126", printable(str(path)), problem) from error
        holding = [scopes[each] for status in found if (each := (status.st_dev, status.st_ino)) in scopes]
        if holding:
            problem = f"lies in the root of scope {holding[0]!r}, which runs may write; move it out of there"
            raise PolicyInvalid("E126", printable(str(path)), problem)


def require_ours(trusted_path: Path, *, inside: bool = False) -> None:
    """Raise where somebody else may write what stands at a path, or put something else there.

    What is missing is nobody's. Of the directories on the way, links included, others may write those where
    only its owner moves a name, like /tmp, and on Linux our own group may write any: it is often
    this user's alone.

    Args:
        trusted_path: what is obeyed.
        inside: so is each file in it.

    Raises:
        ConfigInvalid: which path it is, and the command that mends it.

    Where a system tells no owner, it lies in this user's folder instead (`portable.is_in_own_folder`).

    Cost: a `stat` for each directory on the way.
    """
    try:
        require_way_ours(trusted_path)
        if IS_WINDOWS:
            return
        check_ours(trusted_path, trusted_path.stat())
        for each in sorted(trusted_path.iterdir()) if inside else ():
            require_ours(each)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ConfigInvalid(f"{printable(str(trusted_path))} cannot be read: {error.strerror}") from None


def require_way_ours(trusted_path: Path) -> None:
    """Raise where somebody else may put something else at a path: what `require_ours` asks of directories.

    Raises:
        ConfigInvalid: as `require_ours`.
        OSError: one of them is missing or cannot be looked at.
    """
    if IS_WINDOWS:
        _require_in_own_folder(trusted_path)
        return
    for directory in _directories_on_the_way(trusted_path):
        found = directory.stat()
        is_moved_by_owners = bool(found.st_mode & stat.S_ISVTX)
        # On macOS the group of one user is that of all.
        own_groups = {os.getegid(), 0} if IS_LINUX else {0}
        others = stat.S_IWOTH if found.st_gid in own_groups else _OTHERS_MAY_WRITE
        # The overflow user is whom a user namespace does not know; outside of one nobody is he.
        if found.st_uid not in {os.geteuid(), 0} and found.st_uid != _overflow_user():
            raise _not_ours(directory, found)
        if found.st_mode & others and not is_moved_by_owners:
            raise _writable(directory, found)


def check_ours(path: Path, found: os.stat_result) -> None:
    """Raise unless what was found at a path is ours or root's, and nobody else may write it.

    Raises:
        ConfigInvalid: as `require_ours`.
    """
    if IS_WINDOWS:
        _require_in_own_folder(path)
        return
    if found.st_uid not in {os.geteuid(), 0}:
        raise _not_ours(path, found)
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise _writable(path, found)


def _require_in_own_folder(path: Path) -> None:
    if path.exists() and not is_in_own_folder(path):
        raise ConfigInvalid(
            f"{printable(str(path))} lies outside your own folder, where others may write; on {SYSTEM} what "
            f"is obeyed has to lie in it: move it below {printable(str(Path.home()))}"
        )


def _not_ours(path: Path, found: os.stat_result) -> ConfigInvalid:
    shown = printable(str(path))
    return ConfigInvalid(
        f"{shown} belongs to user {found.st_uid}, who could have written what is obeyed; look at it and "
        f"run as root: chown {os.geteuid()} {shlex.quote(shown)}; or keep it elsewhere"
    )


def _writable(path: Path, found: os.stat_result) -> ConfigInvalid:
    shown = printable(str(path))
    return ConfigInvalid(
        f"{shown} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}), who could have written "
        f"what would be obeyed; look at it, then run: chmod go-w {shlex.quote(shown)}"
    )


def _overflow_user() -> int:
    try:
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _OVERFLOW_USER


def _directories_on_the_way(path: Path) -> Iterator[Path]:
    """Every directory in which a name is looked up to open `path`; those by which links lead, too."""
    top, *parts = path.absolute().parts
    here, *waiting = [Path(top), *parts]
    links = 0
    while waiting:
        yield here
        step = here.parent if waiting[0] == ".." else here / waiting[0]
        waiting = waiting[1:]
        if links < _MAX_LINKS and step.is_symlink():
            links += 1
            target = step.readlink()
            here = Path(target.anchor) if target.is_absolute() else here
            waiting = [*(part for part in target.parts if part != target.anchor), *waiting]
        else:
            here = step


def create_private_directory(path: str | os.PathLike[str]) -> None:
    """Make a default directory below our own home, with every missing parent, each 0700.

    What exists is left as it is; `bind` judges it.

    Raises:
        ManagedMemoryUnavailable: the system refuses, or something else stands there.
    """
    wanted = Path(path)
    try:
        for directory in (*reversed(wanted.parents), wanted):
            # What exists may be a link; another process of ours may also be faster than this one.
            with suppress(FileExistsError):
                directory.mkdir(_PRIVATE)
    except OSError as error:
        raise ManagedMemoryUnavailable(
            printable(str(wanted)), f"cannot be created ({error.strerror}); create it yourself with mode 0700"
        ) from error
    if not wanted.is_dir():
        raise ManagedMemoryUnavailable(printable(str(wanted)), "is not a directory; move it away")
