"""Find the repository of a directory by reading its files; git is never run.

K1 A directory is believed only about itself. If its `.git` is a file that points to another directory, that
   directory must point back to this checkout: a linked worktree by `gitdir`, a submodule by `core.worktree`.
   The only exception is a directory `.bare` next to the file. A `.git` that is a link is never accepted. If
   the `.git` of a directory is not accepted, the directory is treated as if it had no repository. Therefore a
   repository from an archive cannot impersonate another repository of this user.
K2 At most `_MAX_BYTES` of a regular file are read, without blocking. A FIFO, a device or a larger file counts
   as missing.
K3 A remote is stored without scheme, user, password, query and fragment, so `read_remote` never returns a
   credential. Anyone can write any remote into a repository; a remote proves nothing.

Source: gitrepository-layout(5), git-config(1) "Syntax", git-clone(1) "GIT URLS".

Separate from `projects`, which decides to which project a repository belongs: this module only reads it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from muniment.errors import ConfigInvalid
from muniment.files import is_private, open_descriptor, read_up_to
from muniment.portable import IS_WINDOWS

GIT: Final = ".git"
BARE: Final = ".bare"
"""Name of a bare clone next to its worktrees, by convention.

The `.git` file in the same folder points to it; the clone does not point back to its worktrees.
"""

_MAX_BYTES: Final = 262_144
"""Maximum number of bytes of a git configuration: the default has about 300, a hundred branches 10 000."""

_MAX_POINTER_BYTES: Final = 8192
"""Maximum number of bytes of a file that contains one path; a path has at most 4096."""

_MAX_REMOTE_CHARS: Final = 512

_PORTS: Final = MappingProxyType({"ssh": 22, "git+ssh": 22, "https": 443, "http": 80, "git": 9418})
_HOST: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\]", re.ASCII)
_SCP: Final = re.compile(r"(?:[^/:]*@)?(?P<host>[^/:@]+|\[[0-9A-Fa-f:.]+\]):(?P<path>[^:].*)")
_SECTION: Final = re.compile(r'\[\s*(?P<name>[A-Za-z0-9-]+)(?:\s+"(?P<sub>(?:[^"\\]|\\.)*)")?\s*\]')


@dataclass(frozen=True, slots=True)
class Checkout:
    """A working directory, with or without a repository.

    Attributes:
        path: the real path of the nearest directory with `.git`; without one, the requested directory.
        common: git's common directory, which all worktrees of a clone share; None: no repository, or its
            `.git` is not accepted.
        memory_path: the path that identifies the memory: the main worktree, or else the common directory;
            without a repository, `path`.
        is_rejected: whether the directory has a `.git` that is not accepted, because the repository that it
            points to does not point back.
    """

    path: Path
    common: Path | None
    memory_path: Path
    is_rejected: bool = False

    @property
    def is_repository(self) -> bool:
        """Return whether the directory belongs to a repository, accepted or not."""
        return self.common is not None or self.is_rejected


def find_checkout(directory: Path) -> Checkout:
    """Return the checkout around `directory`: its nearest ancestor with `.git`, or else the directory itself.

    Raises:
        ConfigInvalid: the directory does not exist.

    Cost: an `lstat` for each directory on the way up; in a linked worktree or submodule, three small reads.
    """
    try:
        start = directory.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise ConfigInvalid(f"workspace {directory} not found") from None
    if not start.is_dir():
        raise ConfigInvalid(f"the workspace {directory} is not a directory")
    path = next((each for each in (start, *start.parents) if os.path.lexists(each / GIT)), None)
    if path is None:
        return Checkout(start, start if _is_bare_repository(start) else None, start)
    return read_checkout(path)


def read_checkout(path: Path) -> Checkout:
    """Return the checkout of a directory that contains `.git`.

    Args:
        path: the real path of the directory.
    """
    git = path / GIT
    try:
        kind = git.lstat().st_mode
    except OSError:
        return Checkout(path, None, path)
    if stat.S_ISDIR(kind):
        return Checkout(path, git, path)
    common = _resolve_git_file(path, git) if stat.S_ISREG(kind) else None
    if common is None:
        return Checkout(path, None, path, is_rejected=True)
    return Checkout(path, common, common.parent if common.name == GIT else common)


def find_common_directory(memory_path: Path) -> Path | None:
    """Return git's current common directory for the `memory_path` of a checkout; None: not found."""
    if os.path.lexists(memory_path / GIT):
        return read_checkout(memory_path).common
    return memory_path if _is_git_directory(memory_path) else None


def read_remote(common: Path) -> str | None:
    """Return the normalised remote of a repository: `origin`, or else its only remote; None: unknown.

    Args:
        common: git's common directory of the repository.
    """
    urls: dict[str, str] = {}
    for section, name, key, value in _read_settings(common / "config"):
        if section == "remote" and key == "url":
            urls.setdefault(name, value)
    url = urls.get("origin") or (next(iter(urls.values())) if len(urls) == 1 else None)
    return None if url is None else normalize_remote(url, common.parent if common.name == GIT else common)


def normalize_remote(url: str, base: Path) -> str | None:
    """Return one form for all spellings of a remote, such as `github.com/acme/shop`; None: invalid.

    The result never contains a user, a password, a query or a fragment.

    Args:
        url: the remote as in a git configuration: a URL, `user@host:path`, or a path.
        base: the directory that a relative path starts from.
    """
    if not url or not url.isprintable() or len(url) > _MAX_REMOTE_CHARS:
        return None
    if "://" in url:
        found = _split_url(url)
    elif (scp := _SCP.fullmatch(url)) is not None:
        found = scp["host"].lower(), scp["path"]
    elif ":" in url.partition("/")[0]:
        return None
    else:
        found = "", os.path.normpath(base / url)
    if found is None:
        return None
    host, path = found
    path = path.strip("/").removesuffix(GIT).rstrip("/")
    # An @ in a path may follow a password that contains a slash.
    if not path or "@" in path or (host and _HOST.fullmatch(host.rpartition(":")[0] or host) is None):
        return None
    return f"{host}/{path}"


def read_small_file(path: Path, limit: int = _MAX_POINTER_BYTES, *, private: bool = False) -> str | None:
    """Return the text of a small regular file; None if it is missing, too large, special or not readable.

    Args:
        path: the file; a link is not followed.
        limit: the maximum number of bytes.
        private: whether to return None if another user may access the file.
    """
    try:
        with open_descriptor(path) as fd:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or (
                private and not IS_WINDOWS and not is_private(path, found)
            ):
                return None
            data = read_up_to(fd, limit + 1)
    except (OSError, ValueError):
        return None
    return None if len(data) > limit or b"\0" in data else data.decode("utf-8", "surrogateescape")


def _resolve_git_file(path: Path, git: Path) -> Path | None:
    """Return the common directory that a `.git` file points to; None if that does not point back.

    Args:
        path: the directory of the checkout.
        git: the path of its `.git` file.
    """
    label, _, target = (read_small_file(git) or "").partition(":")
    if label != "gitdir" or not target.strip():
        return None
    directory = _resolve_path(path, target.strip())
    if directory is None:
        return None
    shared = read_small_file(directory / "commondir")
    if shared is not None:
        common = _resolve_path(directory, shared.strip())
        is_one_of_its = common is not None and directory.parent == common / "worktrees"
        back = (read_small_file(directory / "gitdir") or "").strip()
        return common if is_one_of_its and _resolves_to(back, directory, git) else None
    if directory == path / BARE:
        return directory if _is_git_directory(directory) else None
    return directory if _resolves_to(_read_core_worktree(directory), directory, path) else None


def _is_git_directory(directory: Path) -> bool:
    return read_small_file(directory / "HEAD") is not None


def _is_bare_repository(directory: Path) -> bool:
    """Return whether a directory is a bare repository: it has `objects`, `refs` and `HEAD`."""
    has_parts = all((directory / name).is_dir() for name in ("objects", "refs"))
    return has_parts and _is_git_directory(directory)


def _read_core_worktree(directory: Path) -> str:
    """Return the value of `core.worktree` in the configuration of a git directory; empty if it is not set."""
    for name in ("config", "config.worktree"):
        for section, sub, key, value in _read_settings(directory / name):
            if (section, sub, key) == ("core", "", "worktree"):
                return value
    return ""


def _resolves_to(text: str, base: Path, wanted: Path) -> bool:
    """Return whether a path leads exactly to the real path `wanted`.

    Args:
        text: the path, absolute or relative to `base`; empty: the result is False.
        base: the directory that a relative path starts from.
        wanted: the real path.
    """
    return bool(text) and (found := _resolve_path(base, text)) is not None and found == wanted


def _resolve_path(base: Path, text: str) -> Path | None:
    """Return the real path of `text`, absolute or relative to `base`; None: it does not exist."""
    try:
        return Path(os.path.realpath(base / text, strict=True))
    except (OSError, ValueError):
        return None


def _read_settings(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield the section, subsection, key and value of each valid line in a git configuration."""
    section, sub = "", ""
    lines = (read_small_file(path, _MAX_BYTES) or "").replace("\\\n", "").splitlines()
    for line in map(str.strip, lines):
        head = _SECTION.match(line)
        if head is not None:
            section, sub = head["name"].lower(), re.sub(r"\\(.)", r"\1", head["sub"] or "")
            line = line[head.end() :].strip()  # noqa: PLW2901  a key may follow the section
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            yield section, sub, key.strip().lower(), _unquote(value.strip())


def _unquote(value: str) -> str:
    """Return a configuration value without its quotes and its trailing comment."""
    found, is_quoted, characters = [], False, iter(value)
    for each in characters:
        if each == '"':
            is_quoted = not is_quoted
        elif each == "\\":
            found.append(next(characters, ""))
        elif each in "#;" and not is_quoted:
            break
        else:
            found.append(each)
    return "".join(found).rstrip()


def _split_url(url: str) -> tuple[str, str] | None:
    """Return the host and the path of a URL, or None if the URL is invalid.

    The host includes the port if it is not the default of the scheme.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return None
    if parts.scheme == "file":
        return "", parts.path
    if ":" in host:
        host = f"[{host}]"
    return (f"{host}:{port}" if port not in {None, _PORTS.get(parts.scheme)} else host), parts.path
