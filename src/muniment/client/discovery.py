"""Find the daemon of a home, and the token for it.

F1 The token and the daemon's address are read only from files that only this user owns and may read; other
   files are rejected. Windows has no such owner and mode: there, the files must be in the folder of this
   user.
F2 If the daemon has a Unix socket, the socket is used instead of the network address. Only a user who may
   write its directory can listen there, but any user of this machine may listen on a free port.
F3 A token is sent only to the daemon that it belongs to. If the caller gives an address or a socket, only a
   token from the caller is sent. `ServerProof` verifies that the server is the daemon, and not another
   program that listens on the same port after the daemon has ended.
F4 `http://localhost` is replaced by `http://127.0.0.1`: at other addresses of that name, any user may listen.
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
"""Maximum bytes of `daemon.json` and of the token file; both have about 200 bytes."""

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
        url: scheme, host and port of the daemon.
        socket: path of the Unix socket to connect to; None: connect to the host and port of `url`.
        token: the token that is sent with each request; None: no token.
    """

    url: str
    socket: str | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class HomeLocator:
    """Finds the daemon of a home.

    It searches again after each lost connection, because the daemon may have moved.

    Attributes:
        directory: the home, `$MUNIMENT_HOME`.
        token: a token to use instead of the owner's; None: use the owner's token from the home.
    """

    directory: Path
    token: str | None = field(default=None, repr=False)

    @property
    def missing_message(self) -> str:
        """Return the message for the case that no daemon runs for this home."""
        return f"no daemon runs for {self.directory}; start one with: muniment serve"

    def find(self) -> DaemonAddress | None:
        """Return the address that the daemon of the home has announced, or None if no daemon was started.

        Raises:
            ManagedMemoryUnavailable: the file with the address or the token is invalid, or other users may
                access it.
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
            raise ManagedMemoryUnavailable(
                str(path), "does not contain the daemon's address; restart the daemon"
            ) from None
        token = self.token or (_read_private_file(state / "token") or "").strip()
        if _HEADER_VALUE.fullmatch(token) is None:
            raise ManagedMemoryUnavailable(
                str(state / "token"), "does not contain a token; restart the daemon"
            )
        return DaemonAddress(address, None, token)


@dataclass(frozen=True, slots=True)
class FixedLocator:
    """Returns always the one address that the caller gave."""

    address: DaemonAddress
    missing_message: ClassVar[str] = "no daemon runs at the given address; start it, or use another address"

    def find(self) -> DaemonAddress | None:
        """Return the address from the caller."""
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
    """Return a locator, which finds the daemon that a client should use.

    Args:
        environment: environment variables, such as `os.environ`, to read `MUNIMENT_HOME` and `HOME`.
        url: `http://HOST:PORT` or `https://HOST:PORT` of the daemon.
        socket: path of the daemon's Unix socket.
        token: the token to send; None: the owner's token from the home, or no token with `url` or `socket`.
        home: the home of the daemon; None: `MUNIMENT_HOME`, or `~/.muniment` if that is not set.

    Raises:
        ConfigInvalid: more than one of `url`, `socket` and `home` was given, or an argument is invalid.
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
    """Return the name of a workspace in requests: its key, or the real path of its top directory.

    The top directory is the nearest one with a `.git`, as for `muniment.open`. With this path, the daemon
    finds the project, even for a git worktree or a repository that was moved.

    Args:
        workspace: the key of the workspace, or a directory in it, which may be on another machine; None: the
            current directory.

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
    """Return `url` without a slash at its end.

    Raises:
        ConfigInvalid: `url` does not consist of scheme, host and port alone.
    """
    found = _URL.fullmatch(url) if isinstance(url, str) else None
    if found is None or not 0 < int(found["port"] or 1) <= _MAX_PORT or not _is_host(found["host"]):
        raise ConfigInvalid("invalid url: use http://HOST:PORT, without a path or a user name")
    if found["bare"].lower().startswith("http:") and found["host"].lower() == "localhost":
        return "http://127.0.0.1" + (found[3] or "")
    return found["bare"]


def check_socket(path: Any) -> str:
    """Return `path` if it can be the path of a Unix socket.

    Raises:
        ConfigInvalid: it is not a string, is empty, or contains a null character.
    """
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigInvalid("invalid socket: use the path of a Unix socket")
    return path


def check_header_value(label: str, text: str) -> str:
    """Return `text` if it can be the value of an HTTP header.

    Args:
        label: a name of the value for the error message.
        text: the value.

    Raises:
        ConfigInvalid: the value is invalid; the message does not contain the value, which may be a secret.
    """
    if _HEADER_VALUE.fullmatch(text) is None:
        raise ConfigInvalid(f"invalid {label}: use up to 512 printable ASCII characters without spaces")
    return text


def _read_private_file(path: Path) -> str | None:
    """Return the content of a file that only this user may access, or None if it does not exist.

    Raises:
        ManagedMemoryUnavailable: other users may access the file (rule F1 in the module docstring), or it
            cannot be read.
    """
    try:
        with open_descriptor(path) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or not is_private(path, status):
                raise ManagedMemoryUnavailable(
                    str(path),
                    "is not a private file of this user (mode 0600); delete it and restart the daemon",
                )
            return read_up_to(fd, MAX_FILE_BYTES).decode("latin-1")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManagedMemoryUnavailable(str(path), f"cannot be read: {error.strerror}") from None


def _is_host(text: str) -> bool:
    """Return whether a text is a host name or a valid IP address; its characters were already checked."""
    is_name = not text.startswith("[") and not text.replace(".", "").isdecimal()
    try:
        return is_name or bool(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        return False
