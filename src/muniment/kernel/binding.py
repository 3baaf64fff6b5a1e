"""Bind a scope to a directory that the caller trusts: check it, open it, and keep it open.

Promises of `bind` if it succeeds:

- B1 The descriptor is a directory that belongs to the effective user of this process, and no other user may
  write to it. Owner and mode are read from the descriptor.
- B2 The directory is not equal to, inside or around any path in `disjoint_from`, by device and inode.
- B3 A link in the given path is resolved once. If the link is changed later, the root does not move.

Not guaranteed: Another process may rename the directory (`BoundRoot.verify` detects that). B2 may be false
for a bind mount whose parents hide its location. Nothing is promised for the time after the call.

The errors of this module are for the person who configured the root. They contain paths of the host and state
what to do.
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
"""Device and inode, which identify a directory."""

_Location = list[_Identity | None]
"""Identities of a path and of its parents; None for each of them that does not exist."""


class BoundRoot(Sealed, seal=_SEAL):
    """The directory of a scope that this process opened. Close it, or use it in a `with` statement.

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
        """Return the scope that this root belongs to."""
        return self.root.scope

    def verify(self) -> None:
        """Raise `PathEscape` unless the path of this root still leads to the directory that was bound.

        The path is checked at one moment during the call. Cost: one `stat`.

        Raises:
            PathEscape: the path leads to another directory or does not exist (`root_replaced`).
        """
        try:
            found = self.trusted_path.stat()
        except OSError as error:
            raise PathEscape(Via.ROOT_REPLACED, self.scope) from error
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise PathEscape(Via.ROOT_REPLACED, self.scope)

    def close(self) -> None:
        """Close this root; do nothing if it is already closed."""
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
    disjoint_from: Sequence[str | os.PathLike[str]] = (),
    resolver: Resolver | None = None,
) -> BoundRoot:
    """Check and open the directory of a scope.

    Args:
        scope: name of the scope.
        trusted_path: path of the directory; it may contain links. It must come from a flag, the configuration
            or a default, and never from a model, a request or a workspace.
        disjoint_from: paths of state, policies and configuration. The root must not be equal to, inside or
            around any of these paths. They need not exist.
        resolver: opens paths under the root; None: the best resolver that the system supports.

    Raises:
        ManagedMemoryUnavailable: the directory is missing, is not a directory, belongs to another user, is
            writable by others, or overlaps `disjoint_from`; the reason states what to do.
        PlatformUnsupported: the machine is neither x86-64 nor aarch64.
    """
    chosen = choose_resolver() if resolver is None else resolver
    configured_path = os.fspath(trusted_path)
    real_path = _resolve_path(scope, configured_path)
    try:
        fd = os.open(real_path, EXAMINE | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        _raise_path_error(scope, configured_path, error)
    try:
        found = os.fstat(fd)
        _require_private(scope, configured_path, real_path, found)
        bound = BoundRoot(_SEAL, Root(scope, fd, chosen), real_path, found.st_dev, found.st_ino)
        _require_usable(bound)
        location = _locate(scope, real_path)
        for other in disjoint_from:
            other_location = _locate(scope, Path(os.path.realpath(other)))
            _require_disjoint(scope, location, other_location, printable(os.fspath(other)))
    except BaseException:
        os.close(fd)
        raise
    return bound


def bind_all(
    trusted_paths: Mapping[Scope, str | os.PathLike[str]],
    *,
    disjoint_from: Sequence[str | os.PathLike[str]] = (),
) -> dict[Scope, BoundRoot]:
    """Check and open the directories of several scopes, which must not overlap each other.

    Args:
        trusted_paths: for each scope the path of its directory, as described in `bind`.
        disjoint_from: paths that no root may overlap, as described in `bind`.

    Raises:
        ManagedMemoryUnavailable: a directory cannot be bound, or two directories overlap. All directories are
            closed again.
        PlatformUnsupported: the machine is neither x86-64 nor aarch64.
    """
    with ExitStack() as opened:
        roots = {
            scope: opened.enter_context(bind(scope, path, disjoint_from=disjoint_from))
            for scope, path in trusted_paths.items()
        }
        require_disjoint(tuple(roots.values()))
        opened.pop_all()
    return roots


def require_disjoint(roots: Sequence[BoundRoot]) -> None:
    """Raise an error if one root is equal to, inside or around another root, by device and inode.

    Raises:
        ManagedMemoryUnavailable: two roots overlap; the message contains both scopes.
    """
    locations = [(bound, _locate(bound.scope, bound.trusted_path)) for bound in roots]
    for (first, first_location), (second, second_location) in combinations(locations, 2):
        _require_disjoint(first.scope, first_location, second_location, f"the root of scope {second.scope!r}")


def _resolve_path(scope: Scope, configured_path: str) -> Path:
    # The empty path would be the current directory.
    if not configured_path:
        raise ManagedMemoryUnavailable(scope, "no directory is configured; give the path of a directory")
    try:
        return Path(os.path.realpath(configured_path, strict=True))
    except OSError as error:
        _raise_path_error(scope, configured_path, error)
    except ValueError as error:
        reason = f"{printable(configured_path)!r} is not a valid path"
        raise ManagedMemoryUnavailable(scope, reason) from error


def _raise_path_error(scope: Scope, configured_path: str, error: OSError) -> NoReturn:
    path = printable(configured_path)
    if isinstance(error, FileNotFoundError) and Path(configured_path).is_symlink():
        reason = f"{path} is a broken link; create its target or bind another directory"
    elif isinstance(error, FileNotFoundError):
        reason = f"{path} not found; create it (mkdir -m 700) or bind another directory"
    elif isinstance(error, NotADirectoryError):
        reason = f"{path} is not a directory; bind a directory"
    else:
        reason = f"{path} cannot be opened ({error.strerror}); make it readable or bind another one"
    raise ManagedMemoryUnavailable(scope, reason) from error


def _require_private(scope: Scope, configured_path: str, real_path: Path, found: os.stat_result) -> None:
    path = printable(str(real_path))
    if Path(configured_path).is_symlink():
        path = f"{path} (the target of the link {printable(configured_path)})"
    user = os.geteuid()
    if found.st_uid != user:
        reason = f"{path} belongs to user {found.st_uid}, not to user {user}; bind another directory"
        raise ManagedMemoryUnavailable(scope, reason)
    if found.st_mode & _OTHERS_MAY_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        # Others are meant to write to it, like /tmp, so do not suggest chmod.
        is_shared = mode & stat.S_ISVTX
        remedy = "bind a private directory" if is_shared else f"run: chmod go-w {printable(str(real_path))}"
        raise ManagedMemoryUnavailable(scope, f"{path} is writable by others (mode {mode:04o}); {remedy}")


def _require_usable(bound: BoundRoot) -> None:
    """Check that the path of a root still leads to the opened directory, and that it can be listed.

    A parent may have been replaced after the path was resolved. A root that cannot be listed would seem
    empty.

    Raises:
        ManagedMemoryUnavailable: one of the two checks failed.
    """
    root, path = bound.root, printable(str(bound.trusted_path))
    try:
        bound.verify()
        os.close(root.resolver.open(root.fd, b".", LIST))
    except PathEscape as error:
        reason = f"{path} changed while it was bound; try again"
        raise ManagedMemoryUnavailable(root.scope, reason) from error
    except OSError as error:
        reason = f"{path} cannot be listed ({error.strerror}); run: chmod u+rwx {path}"
        raise ManagedMemoryUnavailable(root.scope, reason) from error


def _locate(scope: Scope, real_path: Path) -> _Location:
    """Return device and inode of `real_path`, a path without links, and of each of its parents."""
    return [_read_identity(scope, each) for each in (real_path, *real_path.parents)]


def _read_identity(scope: Scope, path: Path) -> _Identity | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = f"cannot check the path {printable(str(path))} ({error.strerror}); make it accessible"
        raise ManagedMemoryUnavailable(scope, reason) from error
    return found.st_dev, found.st_ino


def _require_disjoint(scope: Scope, location: _Location, other: _Location, name: str) -> None:
    if location[0] == other[0]:
        relation = "is the same directory as"
    elif other[0] in location:
        relation = "is inside"
    elif location[0] in other:
        relation = "contains"
    else:
        return
    raise ManagedMemoryUnavailable(scope, f"its root {relation} {name}; bind a directory outside it")
