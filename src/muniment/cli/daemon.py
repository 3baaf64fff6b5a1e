"""Implement `muniment serve`, `ui`, `token` and `acp`.

`serve` runs the daemon as a program. `acp` serves one host program that started it as a child process.
"""

from __future__ import annotations

import gc
import html
import logging
import os
import re
import select
import signal
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muniment import events
from muniment.cli.command import (
    Report,
    command,
    load_settings,
    open_model_and_drop_key,
    parse_trust,
    require_fence,
)
from muniment.cli.options import Json, Lease, Ledger, NodeName, RunFlags, Slots, Workspace
from muniment.cli.table import TABLE
from muniment.cli.terminal import (
    EXIT_FAILED,
    guard_output,
    handle_signals,
    print_document,
    print_failure,
    print_line,
    print_notes,
)
from muniment.content.gates import clean_foreign_line
from muniment.errors import Cancelled, ConfigInvalid, DeadlineExceeded, MunimentError, printable

if TYPE_CHECKING:
    import asyncio

    from muniment.agent.model import Model
    from muniment.cancelling import Cancel
    from muniment.fleet.node import FleetNode
    from muniment.server.acp import HostSession
    from muniment.server.core import ServingCore
    from muniment.server.service import Daemon, Options
    from muniment.server.tokens import Tokens
    from muniment.server.work import Workspace as Served
    from muniment.settings import Settings

# -- serve -------------------------------------------------------------------------------------------
#
# `muniment serve`: the daemon as a program.

LEDGER_VARIABLE: Final = "MUNIMENT_LEDGER"
"""The environment variable with the URL of a fleet's database, see `fleet.address`."""

SOCKET_NAME: Final = "daemon.sock"
MAX_SOCKET_BYTES: Final = 107
"""Maximum bytes of the path of a Unix socket, see unix(7)."""

FORCE_EXIT_SECONDS: Final = 15.0
"""Seconds after the grace period, after which a daemon that does not stop is forced to exit."""

_PRIVATE_UMASK: Final = 0o077
_HOST_NAME: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?", re.ASCII)
"""The form of a name that is allowed in a Host header; RFC 9110, 7.2."""

_HostNames = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A host name in requests of other machines. May be repeated."),
]
_Origins = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN", help="Origin of web pages that may call the daemon with a token. May be repeated."
    ),
]


@command("not served", indent=None, precheck=require_fence)
def serve(  # noqa: PLR0913  every argument is an option of the command
    *,
    workspace: Annotated[
        list[Path] | None,
        typer.Option(
            help="A directory of a workspace to serve. May be repeated.", show_default="the current directory"
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any free port.")] = 0,
    socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The Unix socket; processes of this user need no token on it.",
            show_default="daemon.sock in the home",
        ),
    ] = None,
    allow_host: _HostNames = None,
    allow_origin: _Origins = None,
    flags: RunFlags,
    grace: Annotated[
        float, typer.Option(min=0, max=300, help="Seconds to wait for running tasks when the daemon stops.")
    ] = 10.0,
    ledger: Ledger = "",
    node: NodeName = "",
    slots: Slots = 8,
    lease: Lease = 15.0,
    json: Json = False,
) -> None:
    """Serve workspaces over HTTP until SIGTERM or Ctrl-C.

    The log is written to standard error.
    """
    # Off until it serves: loaded modules stay in memory, and a collection takes a tenth of the start time.
    gc.disable()
    from muniment.server.service import Options

    configure_process(logging.INFO)
    settings = load_settings(flags)
    is_node = bool(ledger or os.environ.get(LEDGER_VARIABLE))
    options = Options(
        settings,
        tuple(workspace or ([] if is_node else [Path()])),
        host=host,
        port=port,
        socket=choose_socket(socket, settings),
        allow_hosts=tuple(map(_check_host_name, allow_host or ())),
        allow_origins=tuple(allow_origin or ()),
        grace=grace,
    )

    def node_core(model: Model) -> FleetNode:
        for flag, value in (("--workspace", workspace), ("--root", flags["root"])):
            if value:
                raise ConfigInvalid(f"{flag} is only for a memory of this machine; remove it for a fleet")
        core: FleetNode = TABLE["serve"].load_core()(settings, model, ledger, node, slots, lease)
        return core

    run_daemon(options, partial(_report_served, options, as_json=json), node_core if is_node else None)


def configure_process(level: int) -> None:
    """Set the umask and the log of a daemon; call this before the daemon opens or creates a file.

    Args:
        level: the lowest level of log events that are written.
    """
    from muniment.server.service import configure_logs

    os.umask(_PRIVATE_UMASK)
    configure_logs(level)


def run_daemon(
    options: Options, report: Callable[[Daemon], None], core: Callable[[Model], ServingCore] | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; a second signal ends the grace period.

    If a signal comes before the daemon serves, the process ends immediately, even while it waits for another
    process.

    Args:
        options: the options of the daemon.
        report: called when the daemon serves, to report this.
        core: creates the object that the daemon serves; None: serve the memory of this machine.

    Raises:
        MunimentError: the daemon cannot be started, or must stop.
    """
    import asyncio

    from muniment.sandbox.fence.pool import get_shared_zygote
    from muniment.server.service import Daemon

    with handle_signals(signal.SIG_DFL, signal.SIGINT), open_model_and_drop_key(options.settings) as model:
        get_shared_zygote().start()
        asyncio.run(_run(Daemon(options, model, core and core(model)), options, report))


def _check_host_name(name: str) -> str:
    """Return `name` if it can be the name in a Host header.

    Raises:
        ConfigInvalid: the name is invalid.
    """
    if _HOST_NAME.fullmatch(name) is None:
        text = "use a host name such as memory.example.org, without http:// and without a path"
        raise ConfigInvalid(f"invalid --allow-host {printable(name)!r}: {text}")
    return name


def choose_socket(requested: Path | None, settings: Settings) -> Path | None:
    """Return the path of the daemon's Unix socket; None: the daemon gets none, and a note is printed.

    Args:
        requested: the path from the user; None: use a path in the home, if it is not too long for a socket.
        settings: the settings, with the home.
    """
    default = settings.home / SOCKET_NAME
    if requested is None and len(os.fsencode(default)) > MAX_SOCKET_BYTES:
        print_notes(["the daemon has no Unix socket: its path in the home is too long; use --socket PATH"])
        return None
    return requested or default


def _force_exit() -> None:
    """End the process of a daemon that cannot stop, for example because the ledger stays locked.

    Nothing is lost: accepted tasks are in the ledger, and the next start rolls back unfinished changes.
    """
    events.emit("daemon_forced", pid=os.getpid())
    os._exit(EXIT_FAILED)


def _report_served(options: Options, daemon: Daemon, *, as_json: bool) -> None:
    from muniment.server.tokens import TOKEN_NAME

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
        # On one line, so that a program can read it from a pipe that stays open.
        print_document(document, indent=None)
        return
    print_line(f"serving {daemon.url}")
    if options.socket is not None:
        print_line(f"  socket {clean_foreign_line(str(options.socket))}")
    if not workspaces:
        print_line(
            f"  node of a fleet; its token: {token_file}; token for a home: muniment fleet home add HOME"
        )
        return
    print_line(f"  the owner's token: {token_file}; token for a client: muniment token add NAME")
    for each in workspaces.values():
        print_line(f"  workspace {clean_foreign_line(str(each.path))}")
    print_line("  to open the memory page: muniment ui")


async def _run(daemon: Daemon, options: Options, report: Callable[[Daemon], None]) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    async with daemon:
        stopping: list[asyncio.Task[None]] = []

        def stop() -> None:
            if not stopping:
                last = threading.Timer(options.grace + FORCE_EXIT_SECONDS, _force_exit)
                last.daemon = True
                last.start()
            stopping.append(asyncio.create_task(daemon.stop(at_once=bool(stopping))))

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        gc.freeze()
        gc.enable()
        report(daemon)
        for each in daemon.core.workspaces.values():
            _print_workspace_problem(each, await asyncio.to_thread(each.problem))
        await daemon.wait_stopped()


# -- ui ----------------------------------------------------------------------------------------------
#
# `muniment ui`: print the address of the web page with a code to sign in, and optionally open a browser. The
# page is served by the running daemon, or by one that this command starts. The code is neither an argument of
# a process nor part of a query, which other users of this machine could read. It is printed on the terminal,
# and the browser opens a private file of this user that redirects to the page.

RESPONSE_SECONDS: Final = 3.0
"""Seconds to wait for the response of a running daemon."""

REDIRECT_NAME: Final = "ui.html"
"""Name of a file in the state directory.

It redirects the browser to the page, with a code that works once.
"""

_REDIRECT: Final = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={0}">
<title>Muniment</title>
<p><a href="{0}">Open the page of Muniment</a></p>
"""


@command("page not available", indent=None)
def ui(
    *,
    workspace: Workspace = None,
    opens: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser of this desktop.")
    ] = False,
    json: Json = False,
) -> int:
    """Show the memory in the browser: search, review, edit, undo.

    The running daemon serves the page. If none runs, this command starts a daemon, which runs until Ctrl-C.
    """
    from muniment.client import Client
    from muniment.client.discovery import create_locator
    from muniment.client.errors import Unreachable

    if create_locator(os.environ).find() is not None:
        try:
            with Client(workspace=workspace, timeout=RESPONSE_SECONDS) as client:
                client.tasks("running")  # Raises if the daemon does not serve this workspace.
                opened = client.open_ui()
        # The address is that of a killed daemon. If the daemon still runs, the start of another one fails
        # below.
        except Unreachable:
            pass
        else:
            address = _report_page(workspace or Path(), opened.url, opened.code, opened.seconds, json=json)
            if opens:
                _open_browser(address)
            return 0
    from muniment.server.page.access import PAGE_PACKAGES

    if None in map(find_spec, PAGE_PACKAGES):
        raise ConfigInvalid("the page needs the extra `ui`: pip install 'muniment[ui]'")
    require_fence()
    return _serve_page(workspace or Path(), opens=opens, json=json)


def _serve_page(workspace: Path, *, opens: bool, json: bool) -> int:
    """Start a daemon, print the address of its web page, and serve until a signal; return the exit code."""
    from muniment.server.contract import HttpProblem
    from muniment.server.page.access import CODE_SECONDS
    from muniment.server.service import Options

    def report(daemon: Daemon) -> None:
        try:
            url, code = daemon.core.open_ui()
        except HttpProblem as problem:
            raise ConfigInvalid(problem.sentence) from None
        address = _report_page(workspace, url, code, round(CODE_SECONDS), json=json)
        if not json:
            print_line("  started a daemon for the page; Ctrl-C stops both")
        # In a thread, because some browsers block their caller, and the event loop must serve the page.
        if opens:
            threading.Thread(target=_open_browser, args=(address,), daemon=True).start()

    configure_process(logging.WARNING)
    try:
        if os.environ.get(LEDGER_VARIABLE):
            raise ConfigInvalid(
                "the page does not exist for a fleet; to show a memory of this machine, unset MUNIMENT_LEDGER"
            )
        settings = load_settings()
        run_daemon(Options(settings, (workspace,), socket=choose_socket(None, settings)), report)
    except MunimentError as error:
        return print_failure(error, as_json=json, prefix="not served", indent=None)
    return 0


def _report_page(workspace: Path, url: str, code: str, seconds: int, *, json: bool) -> str:
    """Print the address of the web page, and return it.

    Args:
        workspace: a directory of the workspace that the page shows.
        url: URL of the daemon.
        code: the code to sign in.
        seconds: seconds for which the code is valid.
        json: print a JSON document instead of lines.
    """
    from muniment.workspaces.projects import find_project

    key = find_project(load_settings().home, workspace).key
    address = f"{url}/w/{key}/memory#{code}"
    lines = [address, f"  open it within {seconds} s; it works once; for a new address: muniment ui"]
    document = {"url": url, "code": code, "seconds": seconds, "address": address}
    Report(document, lines, indent=None).emit(as_json=json)
    return address


def _open_browser(address: str) -> None:
    """Open an address in the browser.

    It is not passed as an argument, because other users could read it there.
    """
    from muniment.store.state import write_file

    file = load_settings().state / REDIRECT_NAME
    try:
        write_file(file, _REDIRECT.format(html.escape(address)).encode(), replace=True)
    except OSError as error:
        why = f"{file} cannot be written: {error.strerror}"
    else:
        if webbrowser.open(file.as_uri()):
            return
        why = "none was found, or it failed"
    print(f"note: no browser was opened ({why}); open the address yourself", file=sys.stderr)


# -- workspace problems ------------------------------------------------------------------------------


def _print_workspace_problem(workspace: Served, problem: MunimentError | None) -> None:
    """Print on standard error why a served workspace accepts no tasks, if it does not, and its notes.

    Args:
        workspace: the workspace.
        problem: the reason; None: the workspace accepts tasks.
    """
    if problem is not None:
        text = clean_foreign_line(f"{workspace.path} accepts no tasks yet: {problem}")
        print(f"note: {text} [{problem.code}]", file=sys.stderr)
    print_notes(workspace.notes)


# -- token -------------------------------------------------------------------------------------------
#
# `muniment token`: the tokens with which clients call the daemon.

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token, such as editor.")]


@command("no token was created")
def token_add(
    *,
    name: TokenName,
    client_id: Annotated[
        list[str] | None,
        typer.Option("--client-id", metavar="ID", help="A client id that may be sent with this token."),
    ] = None,
    trust: Annotated[
        str,
        typer.Option(
            metavar="owner|workspace|agent|external", help="Trust of the facts sent with this token."
        ),
    ] = "agent",
) -> Report:
    """Create a token and print it once."""
    clients = client_id or []
    with _open_tokens() as tokens:
        token = tokens.add(name, clients, parse_trust(trust))
    return Report({"name": name, "clients": clients, "trust": trust, "token": token}, [token])


@command("not listed")
def token_list() -> Report:
    """List the tokens with their client ids and their trust."""
    with _open_tokens() as tokens:
        found = [(each.name, sorted(each.clients or ()), each.trust) for each in tokens.list_principals()]
    lines = [
        clean_foreign_line(f"{name}: trust {trust}, client ids {', '.join(clients) or 'none'}")
        for name, clients, trust in found
    ]
    if not found:
        lines = ["no tokens except the owner's; to create one: muniment token add NAME"]
    documents = [{"name": name, "clients": clients, "trust": trust} for name, clients, trust in found]
    return Report({"tokens": documents}, lines)


@command("not revoked")
def token_revoke(*, name: TokenName) -> Report:
    """Revoke a token.

    The daemon rejects it from the next request on.
    """
    with _open_tokens() as tokens:
        tokens.revoke(name)
    return Report({"name": name, "status": "revoked"}, [clean_foreign_line(f"revoked: {name}")])


@contextmanager
def _open_tokens() -> Iterator[Tokens]:
    from muniment.server.tokens import Tokens
    from muniment.store.state import State

    with State(load_settings().state) as state:
        yield Tokens(state)


# -- acp ---------------------------------------------------------------------------------------------
#
# `muniment acp`: a child process that a host uses over standard input and output. Both are moved to other
# descriptors first. So text that a library prints goes to standard error, and never between two responses.

READ_BYTES: Final = 65_536
"""Maximum bytes of one read: the size of a pipe."""

SEND_SECONDS: Final = 10.0
"""Seconds after which a host that does not read a response counts as disconnected."""


@command("not started", has_json=False, precheck=require_fence)
def acp(*, workspace: Workspace = None, flags: RunFlags) -> None:
    """Serve an Agent Client Protocol host on standard input.

    Responses are written to standard output. The command ends when standard input ends. Extension methods:
    qwen/control/workspace/memory/remember, remember/availability, forget and dream.
    """
    from muniment.cancelling import Cancel

    # At the end of the input, or at a signal, running tasks are cancelled, unless they have begun to write. A
    # signal before this command serves ends the process immediately.
    os.umask(_PRIVATE_UMASK)
    ending = handle_signals(signal.SIG_DFL, signal.SIGINT)
    with ending, _redirect_streams() as (incoming, outgoing), Cancel() as stop:
        settings = load_settings(flags)
        with _open_session(settings, workspace or Path(), _Output(outgoing, stop), stop) as session:
            _run_session(session, incoming, stop)


@contextmanager
def _redirect_streams() -> Iterator[tuple[int, int]]:
    """Reserve standard input and output for this module, for the block.

    Output that a library prints is written to standard error instead.

    Yields:
        The descriptors of the original standard input and standard output.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    try:
        yield incoming, outgoing
    finally:
        with guard_output():  # Flush buffered output to its original destination.
            pass
        os.dup2(outgoing, 1)
        os.close(incoming)
        os.close(outgoing)


class _Output:
    """Writes responses to the host; threads may share one object.

    After the host has disconnected, it ignores responses.
    """

    def __init__(self, fd: int, stop: Cancel) -> None:
        self._fd, self._stop = fd, stop
        self._lock = threading.Lock()
        self._is_disconnected = False

    def __call__(self, line: bytes) -> None:
        with self._lock:
            if self._is_disconnected:
                return
            try:
                self._write(line)
            except (OSError, DeadlineExceeded) as error:
                self._is_disconnected = True
                self._stop.set()
                events.emit("host_gone", problem=type(error).__name__)

    def _write(self, line: bytes) -> None:
        from muniment.kernel.cancel import Deadline

        deadline = Deadline(time.monotonic() + SEND_SECONDS)
        remaining = memoryview(line)
        while remaining:
            deadline.wait(self._fd, select.POLLOUT)
            # A pipe accepts this number of bytes in one write.
            remaining = remaining[os.write(self._fd, remaining[: select.PIPE_BUF]) :]


@contextmanager
def _open_session(settings: Settings, directory: Path, send: _Output, stop: Cancel) -> Iterator[HostSession]:
    from muniment.opening import open_state
    from muniment.server.acp import HostSession
    from muniment.server.work import Metrics, TaskExecutor, create_workspace

    with open_model_and_drop_key(settings) as model, ExitStack() as resources:
        state = resources.enter_context(open_state(settings))
        workspace = resources.enter_context(
            closing(create_workspace(directory, settings, state, in_process=False))
        )
        _print_workspace_problem(workspace, workspace.problem())
        with handle_signals(lambda *_: stop.set(), signal.SIGTERM, signal.SIGINT):
            session = HostSession(workspace, TaskExecutor(workspace, model, Metrics()), send)
            try:
                yield session
            finally:
                if not session.close():
                    # A lookup in a thread still uses the resources; it ends with the process.
                    resources.pop_all()


def _run_session(session: HostSession, input_fd: int, stop: Cancel) -> None:
    from muniment.kernel.cancel import Deadline
    from muniment.server.acp import LineSplitter

    lines = LineSplitter()
    while True:
        try:
            Deadline(session.deadline, stop).wait(input_fd, select.POLLIN)
        except DeadlineExceeded:
            session.expire()
            continue
        except Cancelled:
            return
        data = os.read(input_fd, READ_BYTES)
        if not data:
            return
        for line in lines.feed(data):
            session.receive(line)
