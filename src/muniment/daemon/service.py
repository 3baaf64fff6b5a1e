"""The daemon: its core behind HTTP, on one event loop that may be somebody else's.

    async with Daemon(Options(settings, (Path("."),)), model) as daemon:
        print(daemon.url)
        await daemon.stopped()

V1 It listens on loopback only, unless told otherwise with names for its Host header.
V2 It is found by `daemon.json` exactly while it accepts tasks.
V3 `stop` lets the running task end or puts it back, ends every follower, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import uvicorn

from muniment import events
from muniment.agent.model import Model
from muniment.confine.binding import create_private_directory
from muniment.daemon import presence
from muniment.daemon.application import application
from muniment.daemon.core import Core
from muniment.daemon.protocol import LOOPBACK, MAX_HEADER_BYTES, Protocol
from muniment.errors import ConfigInvalid
from muniment.settings import Settings

GRACE_SECONDS: Final = 10.0
"""Seconds that a running task is given to end once the daemon is to stop."""

KEEP_ALIVE_SECONDS: Final = 75
"""Seconds that a connection may be idle."""

_LINGER_SECONDS: Final = 2
"""Seconds that answers may take to be sent once the daemon has stopped."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a daemon is to run.

    Attributes:
        settings: home, policy, roots and model.
        workspaces: a directory in each; the first is the one of `/workspace/…`.
        host: the address to listen on.
        port: its port; 0: any that is free.
        socket: where to listen with a Unix socket as well.
        allow_hosts: what a Host header may say besides the address.
        in_process: run the tools in this process; the policy must say `require = "none"`.
        grace: seconds that a running task is given to end.
    """

    settings: Settings
    workspaces: tuple[Path, ...]
    host: str = "127.0.0.1"
    port: int = 0
    socket: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    in_process: bool = False
    grace: float = GRACE_SECONDS


class _Server(uvicorn.Server):
    """uvicorn's server without its signals: whose loop it runs on decides about those."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Daemon:
    """A daemon that runs as long as the context does.

    Args:
        options: how.
        model: what files the facts; it stays the caller's.

    Attributes:
        url: where it listens.
        core: what it does there.
    """

    def __init__(self, options: Options, model: Model) -> None:
        if not options.allow_hosts and not _is_loopback(options.host):
            raise ConfigInvalid(
                f"{options.host} can be reached from other machines; say by which name: --allow-host NAME"
            )
        self._options = options
        self._opened = AsyncExitStack()
        self._stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self.core = Core(options.settings, model, in_process=options.in_process)
        self.url = ""

    async def __aenter__(self) -> Self:
        """Start.

        Raises:
            ConfigInvalid: an address or a workspace cannot be used.
            ManagedMemoryUnavailable: the state cannot be used, or another daemon serves it.
            StateTooNew: a newer version of Muniment wrote it.
        """
        options, state = self._options, self._options.settings.state
        async with AsyncExitStack() as opened:
            create_private_directory(state)
            opened.enter_context(presence.alone(state))
            listeners = [presence.listen_tcp(options.host, options.port)]
            opened.callback(listeners[0].close)
            if options.socket is not None:
                listeners.append(presence.listen_unix(options.socket))
                opened.callback(listeners[1].close)
                opened.callback(presence.remove_unix, options.socket, options.socket.lstat())
            await self.core.open(options.workspaces)
            opened.push_async_callback(self.core.close)
            self.url, hosts = _names(listeners[0], options)
            self._server = _Server(_config(self.core, hosts))
            serving = asyncio.create_task(self._server.serve(sockets=listeners))
            opened.push_async_callback(self._end, serving)
            self._address = {
                "url": self.url,
                "socket": None if options.socket is None else str(options.socket.absolute()),
                "pid": os.getpid(),
                "epoch": self.core.stream.epoch,
            }
            opened.callback(self._withdraw)
            presence.announce(state, self._address)
            self._opened = opened.pop_all()
        # Whoever waits for the start goes first: the first event of a process loads what logs it.
        asyncio.get_running_loop().call_soon(self._log_start)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def stopped(self) -> None:
        """Wait until `stop` was called and has ended."""
        await self._stopped.wait()

    async def stop(self, *, at_once: bool = False) -> None:
        """Stop (V3); repeated calls wait for the same end.

        Args:
            at_once: what runs is put back without any grace, also where it was given some before.

        Cost: less than a second where nothing runs, else at most the grace and five seconds more.
        """
        if at_once:
            await self.core.stop(0)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    def _withdraw(self) -> None:
        presence.withdraw(self._options.settings.state, self._address)

    def _log_start(self) -> None:
        events.emit("daemon_started", workspaces=list(self.core.workspaces), pid=os.getpid())

    async def _stop(self) -> None:
        events.emit("daemon_stopping", pid=os.getpid())
        try:
            self._withdraw()
            at_rest = await self.core.stop(self._options.grace)
            self.core.stream.close()
            await self._opened.aclose()
            events.emit("daemon_stopped", at_rest=at_rest, pid=os.getpid())
        finally:
            self._stopped.set()

    async def _end(self, serving: asyncio.Task[None]) -> None:
        self._server.should_exit = True
        await serving


def _config(core: Core, hosts: frozenset[str]) -> uvicorn.Config:
    return uvicorn.Config(
        application(core, hosts),
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


def _names(listener: socket.socket, options: Options) -> tuple[str, frozenset[str]]:
    """The URL of a listener for programs of this machine, and what a Host header may say."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    shown = f"[{host}]" if ":" in host else host
    allowed = {name.lower() for name in options.allow_hosts}  # Without the port behind a proxy.
    with_port = {f"{name}:{port}" for name in {shown, *LOOPBACK, *allowed}}
    return f"http://{shown}:{port}", frozenset(with_port | allowed)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
