"""`muniment serve`: the daemon as a program."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muniment import events
from muniment.cli.interrupt import end_on_interrupt
from muniment.cli.model import ModelFlags, forget_key
from muniment.cli.report import EXIT_FAILED, on_one_line, print_document, print_failure, say
from muniment.confine.pool import shared_zygote
from muniment.daemon import service
from muniment.daemon.guard import TOKEN_NAME
from muniment.daemon.service import Daemon, Options
from muniment.errors import ConfigInvalid, MunimentError, printable
from muniment.opening import open_model
from muniment.settings import Settings, parse_roots, read_settings

SOCKET_NAME: Final = "daemon.sock"
MAX_SOCKET_BYTES: Final = 107
"""Bytes that the name of a Unix socket may have; unix(7)."""

LAST_SECONDS: Final = 15.0
"""Seconds beyond the grace after which a daemon that was told to stop ends, whatever holds it up."""

_PRIVATE_UMASK: Final = 0o077
_NAME: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?", re.ASCII)
"""What a Host header says; RFC 9110, 7.2."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line."""

    workspaces: list[Path]
    host: str
    port: int
    socket: Path | None
    allow_hosts: list[str]
    policy: str | None
    roots: list[str]
    symlinks: str | None
    model: ModelFlags
    grace: float
    json: bool


def serve(asked: Asked) -> int:
    """Serve until SIGTERM or SIGINT, the second of which leaves no grace; the exit code.

    Before it serves, either ends it at once, also where it waits for another process.
    """
    os.umask(_PRIVATE_UMASK)
    service.configure_logs()
    try:
        settings = read_settings(
            os.environ,
            policy=asked.policy,
            roots=parse_roots(asked.roots),
            symlinks=asked.symlinks,
            **asked.model,
        )
        options = Options(
            settings,
            tuple(asked.workspaces),
            host=asked.host,
            port=asked.port,
            socket=_socket(asked, settings),
            allow_hosts=tuple(map(_name, asked.allow_hosts)),
            grace=asked.grace,
        )
        with end_on_interrupt(), open_model(settings, os.environ) as model:
            forget_key()
            shared_zygote().start()
            daemon = Daemon(options, model)
            asyncio.run(_run(daemon, options, as_json=asked.json))
    except MunimentError as error:
        return print_failure(error, as_json=asked.json, what="not served", indent=None)
    return 0


def _name(sent: str) -> str:
    """What a Host header may say.

    Raises:
        ConfigInvalid: none can.
    """
    if _NAME.fullmatch(sent) is None:
        text = "is no name of a machine, such as memory.example.org, without http:// and without a path"
        raise ConfigInvalid(f"--allow-host {printable(sent)}: this {text}")
    return sent


def _socket(asked: Asked, settings: Settings) -> Path | None:
    """Where to listen with a Unix socket: by default in the home, if a socket can be named so."""
    default = settings.home / SOCKET_NAME
    if asked.socket is None and len(os.fsencode(default)) > MAX_SOCKET_BYTES:
        print("note: the path of the home is too long for a socket; give --socket PATH", file=sys.stderr)
        return None
    return asked.socket or default


def _leave() -> None:
    """End a daemon that something holds up, such as a ledger that another process keeps locked.

    Nothing is lost by it: what was accepted is in the ledger, and the next start takes back what was begun.
    """
    events.emit("daemon_forced", pid=os.getpid())
    os._exit(EXIT_FAILED)


async def _run(daemon: Daemon, options: Options, *, as_json: bool) -> None:
    loop = asyncio.get_running_loop()
    async with daemon:
        stopping: list[asyncio.Task[None]] = []

        def stop() -> None:
            if not stopping:
                last = threading.Timer(options.grace + LAST_SECONDS, _leave)
                last.daemon = True
                last.start()
            stopping.append(asyncio.create_task(daemon.stop(at_once=bool(stopping))))

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        token_file = options.settings.state / TOKEN_NAME
        gc.freeze()
        gc.enable()
        if as_json:
            document = {
                "status": "serving",
                "url": daemon.url,
                "socket": None if options.socket is None else str(options.socket),
                "token_file": str(token_file),
                "workspaces": {key: str(each.path) for key, each in daemon.core.workspaces.items()},
            }
            # On one line, for whoever reads from a pipe that stays open.
            print_document(document, indent=None)
        else:
            say(f"serving {daemon.url}")
            if options.socket is not None:
                say(f"  socket {on_one_line(str(options.socket))}")
            say(f"  the owner's token: {token_file}; one for a client: muniment token add NAME")
            for each in daemon.core.workspaces.values():
                say(f"  workspace {on_one_line(str(each.path))}")
        for each in daemon.core.workspaces.values():
            if (error := await asyncio.to_thread(each.problem)) is not None:
                text = on_one_line(f"{each.path} takes no tasks yet: {error}")
                print(f"note: {text} [{error.code}]", file=sys.stderr)
        await daemon.stopped()
