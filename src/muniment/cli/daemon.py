"""`muniment serve`, `token` and `acp`: the daemon as a program, and as the child of a host."""

from __future__ import annotations

import gc
import logging
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import muniment.fence  # noqa: F401  asks for the system
from muniment import events
from muniment.cancelling import Cancel
from muniment.cli.terminal import (
    EXIT_FAILED,
    ModelFlags,
    configure_logging,
    end_on_interrupt,
    forget_key,
    on_one_line,
    output,
    print_document,
    print_failure,
    say,
    say_notes,
)
from muniment.daemon.acp import HostSession, Lines
from muniment.daemon.tokens import TOKEN_NAME, Tokens
from muniment.daemon.work import Metrics, Work, workspace_at
from muniment.errors import Cancelled, ConfigInvalid, DeadlineExceeded, MunimentError, printable
from muniment.fence.pool import shared_zygote
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Trust
from muniment.opening import open_model, open_state
from muniment.settings import Settings, parse_roots, read_settings
from muniment.store.state import State

if TYPE_CHECKING:
    import asyncio

    from muniment.agent.model import Model
    from muniment.daemon.service import Daemon, Options
    from muniment.fleet.node import FleetNode

# -- serve -------------------------------------------------------------------------------------------
#
# `muniment serve`: the daemon as a program.

LEDGER_VARIABLE: Final = "MUNIMENT_LEDGER"
"""Where the URL of a fleet's database may stand, see `fleet.address`."""

SOCKET_NAME: Final = "daemon.sock"
MAX_SOCKET_BYTES: Final = 107
"""Bytes that the name of a Unix socket may have; unix(7)."""

LAST_SECONDS: Final = 15.0
"""Seconds beyond the grace after which a daemon that was told to stop ends, whatever holds it up."""

_PRIVATE_UMASK: Final = 0o077
_NAME: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?", re.ASCII)
"""What a Host header says; RFC 9110, 7.2."""


@dataclass(frozen=True, slots=True)
class ServeArguments:
    """The command line."""

    workspaces: list[Path]
    model: ModelFlags
    host: str = "127.0.0.1"
    port: int = 0
    socket: Path | None = None
    allow_hosts: Sequence[str] = ()
    allow_origins: Sequence[str] = ()
    policy: str | None = None
    roots: Sequence[str] = ()
    symlinks: str | None = None
    grace: float = 10.0
    ledger: str = ""
    node: str = ""
    slots: int = 8
    lease: float = 15.0
    json: bool = False


def serve(asked: ServeArguments, greet: Callable[[Daemon], None] | None = None) -> int:
    """Serve until SIGTERM or SIGINT, the second of which leaves no grace; the exit code.

    Before it serves, either ends it at once, also where it waits for another process.

    Args:
        asked: the command line.
        greet: says that it serves, and has the log tell of problems alone; None: in its own words.
    """
    import asyncio

    from muniment.daemon.service import Daemon, Options, configure_logs

    os.umask(_PRIVATE_UMASK)
    configure_logs(logging.INFO if greet is None else logging.WARNING)
    try:
        settings = read_settings(
            os.environ,
            policy=asked.policy,
            roots=parse_roots(asked.roots),
            symlinks=asked.symlinks,
            **asked.model,
        )
        is_node = bool(asked.ledger or os.environ.get(LEDGER_VARIABLE))
        options = Options(
            settings,
            tuple(asked.workspaces or ([] if is_node else [Path()])),
            host=asked.host,
            port=asked.port,
            socket=_socket(asked, settings),
            allow_hosts=tuple(map(_name, asked.allow_hosts)),
            allow_origins=tuple(asked.allow_origins),
            grace=asked.grace,
        )
        with end_on_interrupt(), open_model(settings, os.environ) as model:
            forget_key()
            shared_zygote().start()
            core = _node(asked, settings, model) if is_node else None
            daemon = Daemon(options, model, core)
            say_served = greet or partial(_say_served, options, as_json=asked.json)
            asyncio.run(_run(daemon, options, say_served))
    except MunimentError as error:
        return print_failure(error, as_json=asked.json, what="not served", indent=None)
    return 0


def _node(asked: ServeArguments, settings: Settings, model: Model) -> FleetNode:
    """What a node of a fleet serves.

    Raises:
        ConfigInvalid: it cannot be, with the reason.
    """
    for flag, value in (("--workspace", asked.workspaces), ("--root", asked.roots)):
        if value:
            raise ConfigInvalid(f"{flag} is for a memory of this machine; homes of a fleet have none")
    from muniment.cli.fleet import node_of

    return node_of(settings, model, asked.ledger, asked.node, asked.slots, asked.lease)


def _name(sent: str) -> str:
    """What a Host header may say.

    Raises:
        ConfigInvalid: none can.
    """
    if _NAME.fullmatch(sent) is None:
        text = "is no name of a machine, such as memory.example.org, without http:// and without a path"
        raise ConfigInvalid(f"--allow-host {printable(sent)}: this {text}")
    return sent


def _socket(asked: ServeArguments, settings: Settings) -> Path | None:
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


def _say_served(options: Options, daemon: Daemon, *, as_json: bool) -> None:
    token_file = options.settings.state / TOKEN_NAME
    workspaces = daemon.core.workspaces
    if as_json:
        document = {
            "status": "serving",
            "url": daemon.url,
            "socket": None if options.socket is None else str(options.socket),
            "token_file": str(token_file),
            "workspaces": {key: str(each.path) for key, each in workspaces.items()},
        }
        # On one line, for whoever reads from a pipe that stays open.
        print_document(document, indent=None)
        return
    say(f"serving {daemon.url}")
    if options.socket is not None:
        say(f"  socket {on_one_line(str(options.socket))}")
    if not workspaces:
        say(f"  a node of a fleet; its own token: {token_file}; one for a home: muniment fleet home add HOME")
        return
    say(f"  the owner's token: {token_file}; one for a client: muniment token add NAME")
    for each in workspaces.values():
        say(f"  workspace {on_one_line(str(each.path))}")
    say("  to see the memory on a page: muniment ui")


async def _run(daemon: Daemon, options: Options, greet: Callable[[Daemon], None]) -> None:
    import asyncio

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
        gc.freeze()
        gc.enable()
        greet(daemon)
        for each in daemon.core.workspaces.values():
            if (error := await asyncio.to_thread(each.problem)) is not None:
                text = on_one_line(f"{each.path} takes no tasks yet: {error}")
                print(f"note: {text} [{error.code}]", file=sys.stderr)
            say_notes(each.notes)
        await daemon.stopped()


# -- token -------------------------------------------------------------------------------------------
#
# `muniment token`: the tokens with which clients call the daemon.


def add_token(name: str, clients: list[str], trust: str, *, as_json: bool) -> int:
    """Make a token and print it, this once; the exit code."""

    def body(tokens: Tokens) -> None:
        if trust not in list(Trust):
            raise ConfigInvalid(f"there is no trust {trust!r}; there are {', '.join(Trust)}")
        token = tokens.add(name, clients, Trust(trust))
        if as_json:
            print_document({"name": name, "clients": clients, "trust": trust, "token": token})
        else:
            say(token)

    return _with_tokens(body, "no token was made", as_json=as_json)


def list_tokens(*, as_json: bool) -> int:
    """Print whose tokens there are; the exit code."""

    def body(tokens: Tokens) -> None:
        found = tokens.all()
        if as_json:
            print_document(
                {
                    "tokens": [
                        {"name": each.name, "clients": sorted(each.clients or ()), "trust": each.trust}
                        for each in found
                    ]
                }
            )
            return
        for each in found:
            clients = ", ".join(sorted(each.clients or ())) or "none"
            say(on_one_line(f"{each.name}: trust {each.trust}, client ids {clients}"))
        if not found:
            say("no tokens but the owner's; to make one: muniment token add NAME")

    return _with_tokens(body, "not listed", as_json=as_json)


def revoke_token(name: str, *, as_json: bool) -> int:
    """Make a token invalid; the exit code."""

    def body(tokens: Tokens) -> None:
        tokens.revoke(name)
        if as_json:
            print_document({"name": name, "status": "revoked"})
        else:
            say(on_one_line(f"revoked: {name}"))

    return _with_tokens(body, "not revoked", as_json=as_json)


def _with_tokens(body: Callable[[Tokens], None], what: str, *, as_json: bool) -> int:
    configure_logging()
    try:
        with State(read_settings(os.environ).state) as state:
            body(Tokens(state))
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what=what)
    return 0


# -- acp ---------------------------------------------------------------------------------------------
#
# `muniment acp`: a child that a host talks to over its standard input and output.
#
# Both are taken aside before anything else happens: what a library prints goes to standard error, and
# cannot end up between two answers.

READ_BYTES: Final = 65_536
"""Bytes of one read, as many as a pipe holds."""

SEND_SECONDS: Final = 10.0
"""Seconds after which a host that does not read an answer counts as gone."""


@dataclass(frozen=True, slots=True)
class HostArguments:
    """The command line."""

    workspace: Path
    policy: str | None
    roots: list[str]
    symlinks: str | None
    model: ModelFlags


def serve_host(asked: HostArguments) -> int:
    """Answer until the input ends, SIGTERM or Ctrl-C; the exit code.

    What runs then is cancelled, unless it has begun to write. Before it answers, signals end it at once.
    """
    os.umask(_PRIVATE_UMASK)
    configure_logging()
    try:
        with end_on_interrupt(), _set_aside() as (incoming, outgoing), Cancel() as stop:
            settings = read_settings(
                os.environ,
                policy=asked.policy,
                roots=parse_roots(asked.roots),
                symlinks=asked.symlinks,
                **asked.model,
            )
            with _session(settings, asked.workspace, _Output(outgoing, stop), stop) as session:
                _converse(session, incoming, stop)
    except MunimentError as error:
        return print_failure(error, as_json=False, what="not started")
    return 0


@contextmanager
def _set_aside() -> Iterator[tuple[int, int]]:
    """Standard input and output for this module alone, as long as the block runs."""
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    try:
        yield incoming, outgoing
    finally:
        with output():  # What was printed and is still buffered goes where it belongs.
            pass
        os.dup2(outgoing, 1)
        os.close(incoming)
        os.close(outgoing)


@contextmanager
def _set_on_signals(stop: Cancel) -> Iterator[None]:
    """SIGTERM and Ctrl-C set a token, for the time of the block."""
    before = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Output:
    """Where answers go. Threads may share it; once the host is gone it takes them and does nothing."""

    def __init__(self, fd: int, stop: Cancel) -> None:
        self._fd, self._stop = fd, stop
        self._lock = threading.Lock()
        self._is_broken = False

    def __call__(self, line: bytes) -> None:
        with self._lock:
            if self._is_broken:
                return
            try:
                self._write(line)
            except (OSError, DeadlineExceeded) as error:
                self._is_broken = True
                self._stop.set()
                events.emit("host_gone", problem=type(error).__name__)

    def _write(self, line: bytes) -> None:
        patience = Patience(time.monotonic() + SEND_SECONDS)
        left = memoryview(line)
        while left:
            patience.wait(self._fd, select.POLLOUT)
            left = left[os.write(self._fd, left[: select.PIPE_BUF]) :]  # So much a pipe takes at once.


@contextmanager
def _session(settings: Settings, directory: Path, send: _Output, stop: Cancel) -> Iterator[HostSession]:
    with open_model(settings, os.environ) as model, ExitStack() as opened:
        state = opened.enter_context(open_state(settings))
        forget_key()
        workspace = opened.enter_context(closing(workspace_at(directory, settings, state, in_process=False)))
        if (error := workspace.problem()) is not None:
            text = on_one_line(f"{workspace.path} takes no tasks yet: {error}")
            print(f"note: {text} [{error.code}]", file=sys.stderr)
        say_notes(workspace.notes)
        with _set_on_signals(stop):
            session = HostSession(workspace, Work(workspace, model, Metrics()), send)
            try:
                yield session
            finally:
                if not session.close():
                    opened.pop_all()  # What a look still uses ends with the process.


def _converse(session: HostSession, incoming: int, stop: Cancel) -> None:
    lines = Lines()
    while True:
        try:
            Patience(session.deadline, stop).wait(incoming, select.POLLIN)
        except DeadlineExceeded:
            session.expire()
            continue
        except Cancelled:
            return
        data = os.read(incoming, READ_BYTES)
        if not data:
            return
        for line in lines.feed(data):
            session.receive(line)
