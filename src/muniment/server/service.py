"""The daemon: its core with an HTTP server, on one event loop that the caller may own.

    async with Daemon(Options(settings, (Path("."),)), model) as daemon:
        print(daemon.url)
        await daemon.wait_stopped()

V1 It listens on loopback only, unless another host and the names for its Host header are configured.
V2 `daemon.json` exists exactly while the daemon accepts tasks.
V3 `stop` lets the running task end or queues it again, disconnects every follower, and removes the files of
   the daemon: `daemon.json` and its Unix socket.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import ipaddress
import json
import logging
import os
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from muniment import events
from muniment.agent.model import Model
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable
from muniment.files import open_descriptor
from muniment.policy.ownership import create_private_directory
from muniment.server import routes
from muniment.server.contract import HttpProblem
from muniment.server.core import DaemonCore, ServingCore
from muniment.server.guard import (
    LOOPBACK,
    MAX_HEADER_BYTES,
    PRINCIPAL,
    SESSION,
    Guard,
    Protocol,
    normalize_origin,
)
from muniment.server.http import JSON, MCP, Call, Operation, build_openapi, rpc_problem
from muniment.settings import Settings
from muniment.store.database import convert_errors, ensure_private_file
from muniment.store.state import try_lock, write_file

# -- presence ----------------------------------------------------------------------------------------
#
# Makes the daemon of a state directory discoverable: one lock, one document with its address, its sockets.
#
# - N1 Only one daemon runs per state directory: a second one finds the lock taken and exits.
# - N2 `state/daemon.json` (0600) contains the address while the daemon listens; it is written atomically.
# - N3 A Unix socket has mode 0600 from the moment it has a name. A socket file without a listener is
#   replaced; other files are not.
# - N4 Connections are accepted a few at a time, so that surplus connections are closed before others arrive.
#   If the system has no free descriptor, the daemon waits one second before it accepts again.

LOCK_NAME: Final = "daemon.lock"
ADDRESS_NAME: Final = "daemon.json"

BACKLOG: Final = 256
"""Maximum connections that wait to be accepted."""

ACCEPTED_AT_ONCE: Final = 16
"""Maximum connections accepted in one turn of the event loop; asyncio would accept all waiting connections.
"""

_PRIVATE: Final = 0o600


class Listener(socket.socket):
    """A listening socket that accepts at most `ACCEPTED_AT_ONCE` connections in a row.

    asyncio calls `accept` until no connection waits. If no descriptor is free, asyncio still continues: it
    logs each failure and schedules a retry for each connection. This class ends both series early.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._remaining = ACCEPTED_AT_ONCE

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept the next connection.

        Raises:
            BlockingIOError: no connection waits, or `ACCEPTED_AT_ONCE` were accepted in a row.
            OSError: the system has no resources for a connection.
        """
        if self._remaining == 0:
            self._remaining = ACCEPTED_AT_ONCE
            raise BlockingIOError
        self._remaining -= 1
        try:
            return super().accept()
        except BlockingIOError:
            self._remaining = ACCEPTED_AT_ONCE
            raise
        except OSError:
            self._remaining = 0
            raise


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock a state directory for the duration of the block, so that only one daemon uses it.

    Raises:
        ManagedMemoryUnavailable: another daemon uses the directory, or the directory is not available.
    """
    path = directory / LOCK_NAME
    with ExitStack() as stack:
        with convert_errors(path):
            ensure_private_file(path)
            fd = stack.enter_context(open_descriptor(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))
            if not try_lock(fd):
                raise ManagedMemoryUnavailable(str(directory), _describe_other(directory))
        yield


def announce(directory: Path, document: Mapping[str, Any]) -> None:
    """Write the address of the daemon to `daemon.json`.

    Args:
        directory: the state directory.
        document: the content of the file.

    Raises:
        ManagedMemoryUnavailable: the file cannot be written.
    """
    path = directory / ADDRESS_NAME
    with convert_errors(path):
        write_file(path, f"{json.dumps(dict(document))}\n".encode(), replace=True)


def withdraw(directory: Path, document: Mapping[str, Any]) -> None:
    """Remove `daemon.json`, unless another daemon has replaced it in the meantime.

    Args:
        directory: the state directory.
        document: the document that was announced; its `pid` and `epoch` identify the daemon.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):  # The file is missing or invalid.
        found = _read_announcement(directory)
        if all(found[name] == document[name] for name in ("pid", "epoch")):
            (directory / ADDRESS_NAME).unlink()


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Args:
        host: an IP address or a host name.
        port: the port; 0: any free port.

    Raises:
        ConfigInvalid: the socket cannot listen there; the message contains the reason.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = Listener(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError if the text cannot be a host name.
        reason = error.strerror if isinstance(error, OSError) else "invalid host name"
        raise ConfigInvalid(f"cannot listen on {host}: {reason}; use another --host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigInvalid(
            f"cannot listen on {host} port {port}: {error.strerror}; use another --host or --port"
        ) from None
    return listener


def listen_unix(path: Path) -> socket.socket:
    """Return a Unix socket that listens at a path. Replaces a socket file at the path that has no listener.

    Raises:
        ConfigInvalid: the socket cannot listen there; the message contains the reason.
    """
    listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.lstat().st_mode) and not _has_listener(path):
            path.unlink()
        os.fchmod(listener.fileno(), _PRIVATE)  # Linux gives the file the mode of the socket.
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigInvalid(
            f"cannot listen at {path}: {error.strerror or error}; use another --socket"
        ) from None
    return listener


def remove_unix(path: Path, listener: os.stat_result) -> None:
    """Remove the file of a Unix socket, unless another socket has been bound at its path since.

    Args:
        path: the path of the file.
        listener: status of the file, read after the socket was bound.
    """
    with suppress(OSError):
        if os.path.samestat(path.lstat(), listener):
            path.unlink()


def _has_listener(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # The backlog of the listener is full.
            return True
    return True


def _read_announcement(directory: Path) -> Any:
    return json.loads((directory / ADDRESS_NAME).read_text(encoding="ascii"))


def _describe_other(directory: Path) -> str:
    """Return the error message for a second daemon, with the address of the first daemon."""
    try:
        found = _read_announcement(directory)
        location = f"process {int(found['pid'])} at {found['url']}"
    except (OSError, ValueError, KeyError, TypeError):
        location = "starting or stopping"
    return f"in use by another daemon ({location}); use that one, or stop it first"


# -- logs --------------------------------------------------------------------------------------------
#
# The daemon's log: one JSON object per line on standard error, also for messages of uvicorn and Python.
#
# Log lines contain names, codes, counts and sizes; `events.emit` ensures that for this package. For other
# loggers, only the level and the name are logged, since their messages may quote a request.

_PACKAGE: Final = "muniment"


def configure_logs(level: int = logging.INFO) -> None:
    """Send the log of the whole process to standard error. Programs may call this; libraries must not.

    Args:
        level: the lowest level that is logged.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # These loggers warn of each invalid request, and anyone can send many. Others log each attempt to reach a
    # database that does not respond, which `node_problem` reports once.
    for name in ("uvicorn", "mcp", "psycopg.pool", "procrastinate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logger = logging.getLogger(_PACKAGE)
    logger.handlers[:] = []
    logger.propagate = True
    logger.setLevel(level)


class _JsonFormatter(logging.Formatter):
    """Formats a log record as a line of JSON. A record of this package already is such a line."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == _PACKAGE:
            return record.getMessage()
        return json.dumps(
            {
                "event": "foreign_log",
                "level": record.levelname.lower(),
                "logger": record.name,
                "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
                **({} if record.exc_info is None else {"problem": str(record.exc_info[0])}),
            },
            sort_keys=True,
        )


# -- application -------------------------------------------------------------------------------------
#
# The application: the guard, then the operations.


@Operation("GET", "/openapi.json", JSON)
async def describe_api(_: Call) -> Response:
    """Return this document, as OpenAPI 3.1."""
    return Response(_build_document(), media_type=JSON)


@functools.cache
def _build_document() -> bytes:
    return json.dumps(build_openapi(OPERATIONS)).encode()


OPERATIONS: Final = (*routes.OPERATIONS, describe_api)
"""All operations of the daemon, except those of MCP and of hooks."""


def create_application(core: ServingCore, hosts: frozenset[str], origins: frozenset[str]) -> ASGIApp:
    """Return the daemon's ASGI application.

    Args:
        core: the core that the application serves.
        hosts: allowed values of the Host header.
        origins: origins of other web pages that may call the daemon.
    """
    paths: dict[str, dict[str, Operation]] = {}
    for operation in (*OPERATIONS, *routes.MCP_OPERATIONS, *routes.HOOK_OPERATIONS):
        paths.setdefault(operation.path, {})[operation.method] = operation
    known = [Route(path, _Resource(methods, core)) for path, methods in paths.items()]
    served = _Dispatcher(Router(known, redirect_slashes=False, default=_raise_not_found), core)
    return Guard(served, core.find_principal, hosts, origins, core.page_access, core.open_paths)


class _Dispatcher:
    """Passes a guarded request on: to the page if it uses the page's host name, else to the operations."""

    def __init__(self, operations: ASGIApp, core: ServingCore) -> None:
        self._operations, self._core = operations, core
        self._page: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if SESSION not in scope["state"] or not isinstance(self._core, DaemonCore):
            await self._operations(scope, receive, send)
            return
        if self._page is None:
            page = await asyncio.to_thread(importlib.import_module, "muniment.server.page.pages")
            self._page = page.create_application(self._core)
        await self._page(scope, receive, send)


class _Resource:
    """A path of the API, with one operation for each of its methods."""

    def __init__(self, methods: Mapping[str, Operation], core: ServingCore) -> None:
        self._methods, self._core = methods, core

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        operation = self._methods.get(request.method)
        if operation is None:
            raise HttpProblem("method_not_allowed", headers={"Allow": ", ".join(self._methods)})
        call = Call(request, self._core.get_core(getattr(request.state, PRINCIPAL)))
        if operation.is_owner_only and not call.principal.is_owner:
            raise HttpProblem("owner_required")
        if operation.is_global and call.principal.home:
            raise HttpProblem("owner_required")
        try:
            if operation.is_workspace_operation:
                await call.find_workspace()
        except HttpProblem as problem:
            if operation.path != MCP or problem.code != "workspace_required":
                raise
            response: Response = rpc_problem(problem)
        else:
            response = await operation.endpoint(call)
        await response(scope, receive, send)


async def _raise_not_found(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise HttpProblem("not_found")


# -- service -----------------------------------------------------------------------------------------

GRACE_SECONDS: Final = 10.0
"""Seconds that a running task has to end when the daemon stops."""

KEEP_ALIVE_SECONDS: Final = 75
"""Seconds that a connection may be idle."""

_LINGER_SECONDS: Final = 2
"""Seconds to send the remaining responses after the daemon has stopped."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a daemon.

    Attributes:
        settings: home, policy, roots and model.
        workspaces: a directory in each workspace. If there is only one, it is also served as `/workspace/…`.
        host: the address to listen on.
        port: its port; 0: any free port.
        socket: path of an additional Unix socket.
        allow_hosts: allowed values of the Host header in addition to the address.
        allow_origins: origins of other web pages that may call the daemon, such as
            `https://memory.example.org`.
        in_process: run the tools in this process; the policy must contain `require = "none"`.
        grace: seconds that a running task has to end when the daemon stops.
    """

    settings: Settings
    workspaces: tuple[Path, ...]
    host: str = "127.0.0.1"
    port: int = 0
    socket: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    in_process: bool = False
    grace: float = GRACE_SECONDS


class _Server(uvicorn.Server):
    """uvicorn's server without signal handlers; the owner of the event loop installs them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Daemon:
    """A daemon that runs as long as the context does.

    Args:
        options: the options of the daemon.
        model: the model that files the facts; the caller closes it.
        core: the core to serve; None: a core for the memory of this machine.

    Raises:
        ConfigInvalid: a host name is missing, or an origin is invalid.

    Attributes:
        url: the URL of the daemon; empty until it listens.
        core: the core of the daemon.
    """

    def __init__(self, options: Options, model: Model, core: ServingCore | None = None) -> None:
        if not options.allow_hosts and not _is_loopback(options.host):
            raise ConfigInvalid(
                f"{options.host} is not a loopback address; set the allowed Host names: --allow-host NAME"
            )
        self._options, self._origins = options, frozenset(map(normalize_origin, options.allow_origins))
        self._opened = AsyncExitStack()
        self._stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self.core: ServingCore = core or DaemonCore(options.settings, model, in_process=options.in_process)
        self.url = ""

    async def __aenter__(self) -> Self:
        """Start the daemon.

        Raises:
            ConfigInvalid: an address or a workspace is invalid.
            ManagedMemoryUnavailable: the state is not available, or another daemon uses it.
            StateTooNew: a newer version of Muniment wrote the state.
        """
        options, state = self._options, self._options.settings.state
        async with AsyncExitStack() as opened:
            create_private_directory(state)
            opened.enter_context(lock_directory(state))
            listeners = [listen_tcp(options.host, options.port)]
            opened.callback(listeners[0].close)
            if options.socket is not None:
                listeners.append(listen_unix(options.socket))
                opened.callback(listeners[1].close)
                opened.callback(remove_unix, options.socket, options.socket.lstat())
            await self.core.open(options.workspaces)
            opened.push_async_callback(self.core.close)
            self.url, hosts = _build_names(listeners[0], options)
            self.core.page_access.listener = listeners[0]
            opened.callback(self.core.page_access.close)
            self._server = _Server(_build_config(self.core, hosts, self._origins))
            serving = asyncio.create_task(self._server.serve(sockets=listeners))
            opened.push_async_callback(self._stop_server, serving)
            self._address = {
                "url": self.url,
                "socket": None if options.socket is None else str(options.socket.absolute()),
                "pid": os.getpid(),
                "epoch": self.core.epoch,
            }
            opened.callback(self._withdraw)
            announce(state, self._address)
            self._opened = opened.pop_all()
        # The caller that waits for the start continues first: the first event of a process imports the
        # logging code.
        asyncio.get_running_loop().call_soon(self._log_start)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def wait_stopped(self) -> None:
        """Wait until the daemon has stopped."""
        await self._stopped.wait()

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop the daemon; repeated calls wait until it has stopped.

        The running tasks get a grace period to end; after that they are interrupted and queued again.

        Args:
            at_once: interrupt the running tasks without a grace period, even if an earlier call of `stop`
                gave one.

        Cost: less than a second if no task runs, otherwise at most the grace period and five seconds.
        """
        if at_once:
            await self.core.stop(0)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    def _withdraw(self) -> None:
        withdraw(self._options.settings.state, self._address)

    def _log_start(self) -> None:
        events.emit("daemon_started", workspaces=list(self.core.workspaces), pid=os.getpid())

    async def _stop(self) -> None:
        events.emit("daemon_stopping", pid=os.getpid())
        try:
            self._withdraw()
            at_rest = await self.core.stop(self._options.grace)
            try:
                if self.core.mcp is not None:
                    await self.core.mcp.stop()  # Before the server ends, because it waits for open requests.
            finally:
                if self.core.hooks is not None:
                    await asyncio.to_thread(self.core.hooks.close)
                self.core.disconnect_followers()
                await self._opened.aclose()
            events.emit("daemon_stopped", at_rest=at_rest, pid=os.getpid())
        finally:
            self._stopped.set()

    async def _stop_server(self, serving: asyncio.Task[None]) -> None:
        self._server.should_exit = True
        await serving


def _build_config(core: ServingCore, hosts: frozenset[str], origins: frozenset[str]) -> uvicorn.Config:
    return uvicorn.Config(
        create_application(core, hosts, origins),
        http=Protocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_LINGER_SECONDS,
    )


def _build_names(listener: socket.socket, options: Options) -> tuple[str, frozenset[str]]:
    """Return the URL of a listener for programs of this machine, and the allowed Host headers."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    displayed_host = f"[{host}]" if ":" in host else host
    # Also without the port, for use with a reverse proxy.
    allowed = {name.lower() for name in options.allow_hosts}
    with_port = {f"{name}:{port}" for name in {displayed_host, *LOOPBACK, *allowed}}
    return f"http://{displayed_host}:{port}", frozenset(with_port | allowed)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
