"""Bind a scope to a directory that the caller trusts: check it, open it, and keep it open.

On success of `bind`:

- B1 the descriptor is a directory that belongs to this process's effective user (for root: to root), and no
  other user may write to it. This is read from the descriptor.
- B2 the directory is not a path of `apart_from`, and is neither inside nor around one, by device and inode.
- B3 a link in the given path was resolved once; changing it later does not move the root.

Not guaranteed: that no other process renames the directory (its parents decide that; `BoundRoot.verify`
detects it); B2 for a bind mount whose parents hide where the directory is; any of this after the call.

Errors here are for the person who configured the root. They contain host paths and state what to do.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Final, NoReturn, Self

from muniment.kernel.change import _SEAL, Sealed
from muniment.kernel.names import Scope, Via
from muniment.kernel.refusal import ManagedMemoryUnavailable, PathEscape, printable
from muniment.kernel.root import Resolver, Root, choose_resolver
from muniment.kernel.syscalls import EXAMINE, LIST, os

_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

_Identity = tuple[int, int]
"""Device and inode."""

_Place = list[_Identity | None]
"""Identities of a path and of its parents; None for a path that does not exist."""


class BoundRoot(Sealed, seal=_SEAL):
    """A root that this process opened, and its path. Close it, or use it in a `with` statement.

    Attributes:
        root: the handle; after `close` its descriptor is -1 and every open fails.
        trusted_path: the path of the directory, without links.
        device: device of the directory.
        inode: inode of the directory.
    """

    __slots__ = ("root", "trusted_path", "device", "inode")  # noqa: RUF023  in the order of `bind`
    root: Root
    trusted_path: Path
    device: int
    inode: int

    @property
    def scope(self) -> Scope:
        """Return the scope that is bound to this root."""
        return self.root.scope

    def verify(self) -> None:
        """Raise unless the bound path still resolves to the directory that was bound.

        True for one moment during the call. Cost: one `stat`.

        Raises:
            PathEscape: `root_replaced`; the path resolves to another directory, or to nothing.
        """
        try:
            found = self.trusted_path.stat()
        except OSError as error:
            raise PathEscape(Via.ROOT_REPLACED, self.scope) from error
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise PathEscape(Via.ROOT_REPLACED, self.scope)

    def close(self) -> None:
        """Close the handle; does nothing if it is closed already."""
        fd = self.root.fd
        object.__setattr__(self, "root", Root(self.scope, -1, self.root.resolver))
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def bind(
    scope: Scope,
    trusted_path: str | os.PathLike[str],
    *,
    apart_from: Sequence[str | os.PathLike[str]] = (),
    resolver: Resolver | None = None,
) -> BoundRoot:
    """Open the directory of a scope.

    Args:
        scope: name of the scope.
        trusted_path: from a flag, the configuration or a default; never from a model, a request or a
            workspace. May be a link, or contain links.
        apart_from: paths, existing or not, that must not be equal to, inside or around the root: state,
            policies, configuration.
        resolver: opens paths under the root; None: the best one that the system supports.

    Raises:
        ManagedMemoryUnavailable: the directory is missing, is not a directory, belongs to another user, is
            writable by others, or overlaps `apart_from`; the reason states what to do.
        PlatformUnsupported: the machine is neither x86-64 nor aarch64.
    """
    chosen = choose_resolver() if resolver is None else resolver
    given = os.fspath(trusted_path)
    real = _resolved(scope, given)
    try:
        fd = os.open(real, EXAMINE | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        _refuse_path(scope, given, error)
    try:
        found = os.fstat(fd)
        _require_ours(scope, given, real, found)
        bound = BoundRoot(_SEAL, Root(scope, fd, chosen), real, found.st_dev, found.st_ino)
        _require_usable(bound)
        place = _place(scope, real)
        for other in apart_from:
            _require_apart(
                scope, place, _place(scope, Path(os.path.realpath(other))), printable(os.fspath(other))
            )
    except BaseException:
        os.close(fd)
        raise
    return bound


def bind_all(
    trusted_paths: Mapping[Scope, str | os.PathLike[str]],
    *,
    apart_from: Sequence[str | os.PathLike[str]] = (),
) -> dict[Scope, BoundRoot]:
    """Open the directories of several scopes, which must not overlap each other.

    Args:
        trusted_paths: as for `bind`, by scope.
        apart_from: as for `bind`.

    Raises:
        ManagedMemoryUnavailable: as `bind` or `require_apart`. No directory stays open.
        PlatformUnsupported: as `bind`.
    """
    with ExitStack() as opened:
        roots = {
            scope: opened.enter_context(bind(scope, path, apart_from=apart_from))
            for scope, path in trusted_paths.items()
        }
        require_apart(tuple(roots.values()))
        opened.pop_all()
    return roots


def require_apart(roots: Sequence[BoundRoot]) -> None:
    """Raise if a root is equal to, inside or around another one, by device and inode.

    Raises:
        ManagedMemoryUnavailable: the message contains both scopes.
    """
    places = [(bound, _place(bound.scope, bound.trusted_path)) for bound in roots]
    for (first, first_place), (second, second_place) in combinations(places, 2):
        _require_apart(first.scope, first_place, second_place, f"the root of scope {second.scope!r}")


def _resolved(scope: Scope, given: str) -> Path:
    # The empty path would be the current directory.
    if not given:
        raise ManagedMemoryUnavailable(scope, "no directory is configured; give the path of one")
    try:
        return Path(os.path.realpath(given, strict=True))
    except OSError as error:
        _refuse_path(scope, given, error)
    except ValueError as error:
        raise ManagedMemoryUnavailable(scope, f"{printable(given)!r} is not a valid path") from error


def _refuse_path(scope: Scope, given: str, error: OSError) -> NoReturn:
    shown = printable(given)
    if isinstance(error, FileNotFoundError) and Path(given).is_symlink():
        reason = f"{shown} is a broken link; create its target or bind another directory"
    elif isinstance(error, FileNotFoundError):
        reason = f"{shown} not found; create it (mkdir -m 700) or bind another directory"
    elif isinstance(error, NotADirectoryError):
        reason = f"{shown} is not a directory; bind a directory"
    else:
        reason = f"{shown} cannot be opened ({error.strerror}); correct its permissions or bind another"
    raise ManagedMemoryUnavailable(scope, reason) from error


def _require_ours(scope: Scope, given: str, real: Path, found: os.stat_result) -> None:
    shown = printable(str(real))
    if Path(given).is_symlink():
        shown = f"{shown} (the target of the link {printable(given)})"
    us = os.geteuid()
    if found.st_uid != us:
        raise ManagedMemoryUnavailable(
            scope, f"{shown} belongs to user {found.st_uid}, not to user {us}; bind another directory"
        )
    if found.st_mode & _OTHERS_MAY_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        # Others are meant to write to it, like /tmp, so do not suggest chmod.
        is_shared = mode & stat.S_ISVTX
        remedy = "bind a private directory" if is_shared else f"run: chmod go-w {printable(str(real))}"
        raise ManagedMemoryUnavailable(scope, f"{shown} is writable by others (mode {mode:04o}); {remedy}")


def _require_usable(bound: BoundRoot) -> None:
    """Check that the opened directory is the one at the resolved path and that it can be read.

    A parent may have been replaced between the two steps. A root that cannot be read would seem empty.

    Raises:
        ManagedMemoryUnavailable: one of both is not so.
    """
    root, shown = bound.root, printable(str(bound.trusted_path))
    try:
        bound.verify()
        os.close(root.resolver.open(root.fd, b".", LIST))
    except PathEscape as error:
        raise ManagedMemoryUnavailable(
            root.scope, f"{shown} changed while it was bound; try again"
        ) from error
    except OSError as error:
        reason = f"{shown} cannot be listed ({error.strerror}); run: chmod u+rwx {shown}"
        raise ManagedMemoryUnavailable(root.scope, reason) from error


def _place(scope: Scope, real: Path) -> _Place:
    """Return the identities of `real`, a path without links, and of its parents."""
    return [_identity(scope, each) for each in (real, *real.parents)]


def _identity(scope: Scope, path: Path) -> _Identity | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = f"cannot check the path {printable(str(path))} ({error.strerror}); correct its permissions"
        raise ManagedMemoryUnavailable(scope, reason) from error
    return found.st_dev, found.st_ino


def _require_apart(scope: Scope, place: _Place, other: _Place, name: str) -> None:
    if place[0] == other[0]:
        relation = "is the same directory as"
    elif other[0] in place:
        relation = "is inside"
    elif place[0] in other:
        relation = "contains"
    else:
        return
    raise ManagedMemoryUnavailable(scope, f"its root {relation} {name}; bind a directory outside it")
