"""Where a root comes from: a directory that the caller names and trusts, checked and held open.

On success of `bind`:

- B1 the descriptor is a directory that belongs to this process's effective user (for root: to root) and that
  nobody else may write. Asked of the descriptor.
- B2 it is not, and does not lie inside or around, any path of `apart_from`, by device and inode.
- B3 a link in the given path was resolved once; changing it later does not move the root.

Does not hold: that others cannot rename the directory (that is up to its parents; `BoundRoot.verify`
notices), nor B2 for a bind mount whose own parents hide where the directory lies, nor any of this after the
call.

Errors here are for the person who configured the root, name host paths, and say what to do.
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
"""Identities of a path and of those above it; None for what does not exist."""


class BoundRoot(Sealed, seal=_SEAL):
    """A root that this process opened, and the path by which it did. Close it, or use it by `with`.

    Attributes:
        root: the handle; after `close` its descriptor is -1 and every open fails.
        trusted_path: the path without links under which the directory was found.
        device: of the directory.
        inode: of the directory.
    """

    __slots__ = ("root", "trusted_path", "device", "inode")  # noqa: RUF023  in the order of `bind`
    root: Root
    trusted_path: Path
    device: int
    inode: int

    @property
    def scope(self) -> Scope:
        """The scope that this root holds."""
        return self.root.scope

    def verify(self) -> None:
        """Raise unless the bound path still leads to the directory that was bound.

        Holds at one moment during the call. Cost: one `stat`.

        Raises:
            PathEscape: `root_replaced`; the path leads elsewhere or nowhere.
        """
        try:
            found = self.trusted_path.stat()
        except OSError as error:
            raise PathEscape(Via.ROOT_REPLACED, self.scope) from error
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise PathEscape(Via.ROOT_REPLACED, self.scope)

    def close(self) -> None:
        """Close the handle; harmless when repeated."""
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
        scope: its name.
        trusted_path: from a flag, the configuration or a default; never from a model, a request or a
            workspace. May be a link, or lead through some.
        apart_from: paths, existing or not, that must be neither equal to, inside nor around the root: state,
            policies, configuration.
        resolver: how paths beneath the root are opened; chosen by asking the kernel unless given.

    Raises:
        ManagedMemoryUnavailable: the directory is missing, is none, is not ours, is writable by others, or
            is not apart; the reason says what to do.
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
    """Open the directories of several scopes, which must also lie apart from each other.

    Args:
        trusted_paths: as `bind`, by scope.
        apart_from: as `bind`.

    Raises:
        ManagedMemoryUnavailable: as `bind`, or as `require_apart`. Nothing stays open.
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
    """Raise unless no root is another one, or lies inside or around it, by device and inode.

    Raises:
        ManagedMemoryUnavailable: names both scopes.
    """
    places = [(bound, _place(bound.scope, bound.trusted_path)) for bound in roots]
    for (first, first_place), (second, second_place) in combinations(places, 2):
        _require_apart(first.scope, first_place, second_place, f"the root of scope {second.scope!r}")


def _resolved(scope: Scope, given: str) -> Path:
    # The empty path would be the current directory, wherever that is.
    if not given:
        raise ManagedMemoryUnavailable(scope, "no directory is given for it")
    try:
        return Path(os.path.realpath(given, strict=True))
    except OSError as error:
        _refuse_path(scope, given, error)
    except ValueError as error:
        raise ManagedMemoryUnavailable(scope, f"{printable(given)!r} is not a path") from error


def _refuse_path(scope: Scope, given: str, error: OSError) -> NoReturn:
    shown = printable(given)
    if isinstance(error, FileNotFoundError) and Path(given).is_symlink():
        reason = f"{shown} is a link that leads nowhere; create its target or bind another directory"
    elif isinstance(error, FileNotFoundError):
        reason = f"{shown} does not exist; create it (mkdir -m 700) or bind another directory"
    elif isinstance(error, NotADirectoryError):
        reason = f"{shown} is not a directory; bind another one"
    else:
        reason = f"{shown} cannot be opened ({error.strerror}); correct its permissions or bind another one"
    raise ManagedMemoryUnavailable(scope, reason) from error


def _require_ours(scope: Scope, given: str, real: Path, found: os.stat_result) -> None:
    shown = printable(str(real))
    if Path(given).is_symlink():
        shown = f"{shown} (where the link {printable(given)} leads)"
    us = os.geteuid()
    if found.st_uid != us:
        raise ManagedMemoryUnavailable(
            scope, f"{shown} belongs to user {found.st_uid}, not to us ({us}); bind a directory of your own"
        )
    if found.st_mode & _OTHERS_MAY_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        is_shared = mode & stat.S_ISVTX  # Like /tmp: made for others to write, so not to be changed.
        remedy = "bind a directory of your own" if is_shared else f"run: chmod go-w {printable(str(real))}"
        raise ManagedMemoryUnavailable(scope, f"{shown} can be written by others (mode {mode:04o}); {remedy}")


def _require_usable(bound: BoundRoot) -> None:
    """What was opened must be what the resolved path names: a parent may have been swapped in between.

    And a root that cannot be read would look like an empty memory.
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
    """Where `real`, a path without links, stands."""
    return [_identity(scope, each) for each in (real, *real.parents)]


def _identity(scope: Scope, path: Path) -> _Identity | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = f"cannot tell where {printable(str(path))} lies ({error.strerror}); correct its permissions"
        raise ManagedMemoryUnavailable(scope, reason) from error
    return found.st_dev, found.st_ino


def _require_apart(scope: Scope, place: _Place, other: _Place, name: str) -> None:
    if place[0] == other[0]:
        relation = "is the same directory as"
    elif other[0] in place:
        relation = "lies inside"
    elif place[0] in other:
        relation = "lies around"
    else:
        return
    raise ManagedMemoryUnavailable(scope, f"its root {relation} {name}; bind a directory apart from it")
