"""Finds the daemon and the token for it.

F1 The token and the daemon's address are read only from files that belong to this user alone; other files are
   rejected. Windows has no such owner and mode: there they are files in this user's folder.
F2 A socket is preferred to an address: only a user who may write its directory can listen there, but any
   user of this machine may use a free port.
F3 A token is sent only to its daemon: with an address or a socket from the caller, only the caller's token.
   `ServerProof` verifies that the server is the daemon, and not a program that took its port after it ended.
F4 `http://localhost` is `127.0.0.1`: at the other addresses of that name any user may listen.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, printable
from muniment.files import is_private, open_descriptor, read_up_to

MAX_FILE_BYTES: Final = 4096
"""Maximum bytes of `daemon.json` and of the token's file; they have about 200."""

SOCKET_URL: Final = "http://localhost"
"""The URL of requests over a Unix socket; its host name is ignored."""

_URL: Final = re.compile(
    r"(?P<bare>https?://(?P<host>[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])(:(?P<port>[0-9]{1,5}))?)/?",
    re.ASCII,
)
_KEY: Final = re.compile(r"[a-z0-9-]{1,40}-[0-9a-f]{32}", re.ASCII)
"""The key of a workspace, see `workspaces.projects.Binding.key`."""

_MAX_PORT: Final = 65_535
_HEADER_VALUE: Final = re.compile(r"[!-~]{1,512}", re.ASCII)


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """The address of a daemon.

    Attributes:
        url: scheme, host and port.
        socket: path of the Unix socket to connect to instead; None: connect to the host.
        token: sent with each request; None: no token.
    """

    url: str
    socket: str | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class HomeLocator:
    """A home whose daemon is found again after each lost connection.

    Attributes:
        directory: `$MUNIMENT_HOME`.
        token: used instead of the owner's.
    """

    directory: Path
    token: str | None = field(default=None, repr=False)

    @property
    def missing_message(self) -> str:
        """Return the message for a missing daemon."""
        return f"no daemon runs for {self.directory}; start one with: muniment serve"

    def find(self) -> DaemonAddress | None:
        """Return the announced address of its daemon, or None if none was started.

        Raises:
            ManagedMemoryUnavailable: a file does not belong to this user alone (F1), or is invalid.
        """
        state = self.directory / "state"
        path = state / "daemon.json"
        text = _read_private_file(path)
        if text is None:
            return None
        try:
            document = json.loads(text)
            url, socket = document.get("url"), document.get("socket")
            if socket is not None:
                return DaemonAddress(SOCKET_URL, check_socket(socket), self.token)
            address = check_url(url)
        except (ValueError, AttributeError, ConfigInvalid):
            raise ManagedMemoryUnavailable(str(path), "does not contain the daemon's address") from None
        token = self.token or (_read_private_file(state / "token") or "").strip()
        if _HEADER_VALUE.fullmatch(token) is None:
            raise ManagedMemoryUnavailable(str(state / "token"), "does not contain a token")
        return DaemonAddress(address, None, token)


@dataclass(frozen=True, slots=True)
class FixedLocator:
    """An address from the caller."""

    address: DaemonAddress
    missing_message: ClassVar[str] = "no daemon runs there"

    def find(self) -> DaemonAddress | None:
        """Return that address."""
        return self.address


Locator = HomeLocator | FixedLocator


def create_locator(
    environment: Mapping[str, str],
    *,
    url: str | None = None,
    socket: str | os.PathLike[str] | None = None,
    token: str | None = None,
    home: str | os.PathLike[str] | None = None,
) -> Locator:
    """Return the daemon that a client should use.

    Args:
        environment: such as `os.environ`, for `MUNIMENT_HOME`.
        url: `http://HOST:PORT`, or https.
        socket: path of a Unix socket.
        token: None: the owner's, from the home; with `url` or `socket`: none.
        home: None: `MUNIMENT_HOME`, or `~/.muniment` if that is not set.

    Raises:
        ConfigInvalid: more than one daemon was specified, or an argument is invalid.
    """
    if sum(each is not None for each in (url, socket, home)) > 1:
        raise ConfigInvalid("conflicting arguments; use only one of url, socket and home")
    if token is not None:
        check_header_value("token", token)
    if url is not None:
        return FixedLocator(DaemonAddress(check_url(url), None, token))
    if socket is not None:
        return FixedLocator(DaemonAddress(SOCKET_URL, check_socket(os.fspath(socket)), token))
    home_directory = home if home is not None else environment.get("MUNIMENT_HOME")
    base = Path(home_directory) if home_directory else Path(environment.get("HOME") or "~", ".muniment")
    try:
        return HomeLocator(base.expanduser().absolute(), token)
    except RuntimeError:
        raise ConfigInvalid("home directory not found; set MUNIMENT_HOME") from None


def resolve_workspace(workspace: str | os.PathLike[str] | None) -> str:
    """Return the workspace to request: its key, or the real path of the workspace around a directory.

    That is the nearest directory with a `.git`, as for `muniment.open`. From it the daemon finds the project
    of a worktree, or of a repository that was moved.

    Args:
        workspace: its key, or a directory in it, which need not be on this machine; None: the current one.

    Raises:
        ConfigInvalid: the current directory does not exist, or the argument is invalid.
    """
    text = os.fspath("." if workspace is None else workspace)
    if isinstance(workspace, str) and _KEY.fullmatch(text):
        return text
    try:
        start = Path(os.path.realpath(text))
        return str(next((each for each in (start, *start.parents) if os.path.lexists(each / ".git")), start))
    except (OSError, ValueError) as error:
        raise ConfigInvalid(f"workspace {printable(text)} not found: {error}") from None


def check_url(url: Any) -> str:
    """Return `url` without its last slash.

    Raises:
        ConfigInvalid: it is not scheme, host and port.
    """
    found = _URL.fullmatch(url) if isinstance(url, str) else None
    if found is None or not 0 < int(found["port"] or 1) <= _MAX_PORT or not _is_host(found["host"]):
        raise ConfigInvalid("invalid url: use http://HOST:PORT, without a path or a user name")
    if found["bare"].lower().startswith("http:") and found["host"].lower() == "localhost":
        return "http://127.0.0.1" + (found[3] or "")
    return found["bare"]


def check_socket(path: Any) -> str:
    """Return `path` if it can be the path of a socket.

    Raises:
        ConfigInvalid: it cannot.
    """
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigInvalid("invalid socket: use the path of a Unix socket")
    return path


def check_header_value(label: str, text: str) -> str:
    """Return `text` if it can be in a header.

    Raises:
        ConfigInvalid: it cannot; the message does not contain it.
    """
    if _HEADER_VALUE.fullmatch(text) is None:
        raise ConfigInvalid(f"invalid {label}: use up to 512 printable ASCII characters without spaces")
    return text


def _read_private_file(path: Path) -> str | None:
    """Return the content of a file that belongs to this user alone (F1), or None if it is missing."""
    try:
        with open_descriptor(path) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or not is_private(path, status):
                raise ManagedMemoryUnavailable(str(path), "is not a private file of this user (mode 0600)")
            return read_up_to(fd, MAX_FILE_BYTES).decode("latin-1")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManagedMemoryUnavailable(str(path), f"cannot be read: {error.strerror}") from None


def _is_host(text: str) -> bool:
    """Return whether a text with valid characters is a host name or a valid address."""
    is_name = not text.startswith("[") and not text.replace(".", "").isdecimal()
    try:
        return is_name or bool(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        return False
