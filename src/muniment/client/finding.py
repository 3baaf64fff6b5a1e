"""Where the daemon is, and with what token to go there.

F1 The token, and what tells where to send it, are read from files of this user's alone; others are refused.
   Windows does not tell so by owner and mode: there they are files in this user's folder.
F2 A socket is preferred to an address: nobody listens there who may not write its directory, whereas any
   user of this machine may take a port that is free.
F3 A token goes where it was given for: with an address or a socket of the caller's, only the caller's token.
   That who answers there is the daemon, not who took its port once it had ended, is for `greeting` to find.
F4 `http://localhost` is `127.0.0.1`: at the other addresses of that name anybody may listen.
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
from muniment.files import is_ours_alone, opened, read_up_to

MAX_FILE_BYTES: Final = 4096
"""Bytes of `daemon.json` and of the token's file; they have some 200."""

ON_A_SOCKET: Final = "http://localhost"
"""The address of requests that go over a Unix socket; the name in it is heeded by nobody."""

_URL: Final = re.compile(
    r"(?P<bare>https?://(?P<host>[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])(:(?P<port>[0-9]{1,5}))?)/?",
    re.ASCII,
)
_KEY: Final = re.compile(r"[a-z0-9-]{1,40}-[0-9a-f]{32}", re.ASCII)
"""The key of a workspace, see `workspaces.projects.Binding.key`."""

_MAX_PORT: Final = 65_535
_WORD: Final = re.compile(r"[!-~]{1,512}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Where:
    """Where to send requests.

    Attributes:
        url: scheme, host and port.
        socket: path of the Unix socket to connect to instead; None: connect to the host.
        token: sent with each; None: nothing is.
    """

    url: str
    socket: str | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Home:
    """A home whose daemon is looked up anew after each connection that is lost.

    Attributes:
        directory: `$MUNIMENT_HOME`.
        token: to be used instead of the owner's.
    """

    directory: Path
    token: str | None = field(default=None, repr=False)

    @property
    def nobody(self) -> str:
        """What it means that there is none."""
        return f"none runs for {self.directory}; start one with: muniment serve"

    def find(self) -> Where | None:
        """Where its daemon said that it is; None: it said nothing, so none has been started.

        Raises:
            ManagedMemoryUnavailable: a file is not ours alone (F1), or does not hold what it should.
        """
        state = self.directory / "state"
        path = state / "daemon.json"
        text = _read(path)
        if text is None:
            return None
        try:
            said = json.loads(text)
            url, socket = said.get("url"), said.get("socket")
            if socket is not None:
                return Where(ON_A_SOCKET, check_socket(socket), self.token)
            address = check_url(url)
        except (ValueError, AttributeError, ConfigInvalid):
            raise ManagedMemoryUnavailable(str(path), "does not say where the daemon is") from None
        token = self.token or (_read(state / "token") or "").strip()
        if _WORD.fullmatch(token) is None:
            raise ManagedMemoryUnavailable(str(state / "token"), "holds no token")
        return Where(address, None, token)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A place that the caller named."""

    where: Where
    nobody: ClassVar[str] = "nobody is there"

    def find(self) -> Where | None:
        """That place."""
        return self.where


Place = Home | Fixed


def place(
    environment: Mapping[str, str],
    *,
    url: str | None = None,
    socket: str | os.PathLike[str] | None = None,
    token: str | None = None,
    home: str | os.PathLike[str] | None = None,
) -> Place:
    """What a client is to talk to.

    Args:
        environment: such as `os.environ`, for `MUNIMENT_HOME`.
        url: `http://HOST:PORT`, or https.
        socket: path of a Unix socket.
        token: None: the owner's, from the home; with `url` or `socket`: none.
        home: None: `MUNIMENT_HOME`, else `~/.muniment`.

    Raises:
        ConfigInvalid: more than one place was named, or one that cannot be.
    """
    if sum(each is not None for each in (url, socket, home)) > 1:
        raise ConfigInvalid("name one of url, socket and home")
    if token is not None:
        check_word("token", token)
    if url is not None:
        return Fixed(Where(check_url(url), None, token))
    if socket is not None:
        return Fixed(Where(ON_A_SOCKET, check_socket(os.fspath(socket)), token))
    named = home if home is not None else environment.get("MUNIMENT_HOME")
    base = Path(named) if named else Path(environment.get("HOME") or "~", ".muniment")
    try:
        return Home(base.expanduser().absolute(), token)
    except RuntimeError:
        raise ConfigInvalid("there is no home directory; set MUNIMENT_HOME") from None


def name_workspace(workspace: str | os.PathLike[str] | None) -> str:
    """What a daemon is asked for: the key of a workspace, or the real path of the one around a directory.

    That is the nearest directory with a `.git`, as for `muniment.open`. By it the daemon knows to which of
    its projects a worktree, or a repository that was moved, belongs.

    Args:
        workspace: its key, or a directory in it, which need not be on this machine; None: the current one.

    Raises:
        ConfigInvalid: there is no current directory, or this cannot be the name of one.
    """
    text = os.fspath("." if workspace is None else workspace)
    if isinstance(workspace, str) and _KEY.fullmatch(text):
        return text
    try:
        start = Path(os.path.realpath(text))
        return str(next((each for each in (start, *start.parents) if os.path.lexists(each / ".git")), start))
    except (OSError, ValueError) as error:
        raise ConfigInvalid(f"the workspace {printable(text)} cannot be found: {error}") from None


def check_url(url: Any) -> str:
    """`url` without its last slash.

    Raises:
        ConfigInvalid: it is no scheme, host and port.
    """
    found = _URL.fullmatch(url) if isinstance(url, str) else None
    if found is None or not 0 < int(found["port"] or 1) <= _MAX_PORT or not _is_host(found["host"]):
        raise ConfigInvalid("the daemon's url must be http://HOST:PORT, without a path or a name in it")
    if found["bare"].lower().startswith("http:") and found["host"].lower() == "localhost":
        return "http://127.0.0.1" + (found[3] or "")
    return found["bare"]


def check_socket(path: Any) -> str:
    """`path`.

    Raises:
        ConfigInvalid: it cannot be that of a socket.
    """
    if not isinstance(path, str) or not path or "\0" in path:
        raise ConfigInvalid("the daemon's socket must be the path of one")
    return path


def check_word(what: str, text: str) -> str:
    """`text`, which can stand in a header.

    Raises:
        ConfigInvalid: it cannot; it is not repeated in the message.
    """
    if _WORD.fullmatch(text) is None:
        raise ConfigInvalid(f"the {what} must be up to 512 printable ASCII characters without spaces")
    return text


def _read(path: Path) -> str | None:
    """A file of this user's alone (F1); None: there is none."""
    try:
        with opened(path) as fd:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or not is_ours_alone(path, status):
                raise ManagedMemoryUnavailable(str(path), "is no file of yours alone (0600)")
            return read_up_to(fd, MAX_FILE_BYTES).decode("latin-1")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManagedMemoryUnavailable(str(path), f"cannot be read: {error.strerror}") from None


def _is_host(text: str) -> bool:
    """Whether a text of the right characters is a name, or else an address that there can be."""
    is_name = not text.startswith("[") and not text.replace(".", "").isdecimal()
    try:
        return is_name or bool(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        return False
