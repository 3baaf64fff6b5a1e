"""`muniment ui`: the page of the daemon that runs, or of one that is started, and how to sign in there.

The code stands in no argument and in no query, where other users of this machine could read it: it is told on
the terminal, and a browser is sent to a file of this user's alone that goes on to the page.
"""

from __future__ import annotations

import html
import logging
import os
import sys
import threading
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muniment.cli.command import CommandAnswer, command, require_fence, settings_of
from muniment.cli.options import Json, Workspace
from muniment.cli.terminal import print_failure, say
from muniment.errors import ConfigInvalid, MunimentError

if TYPE_CHECKING:
    from muniment.daemon.service import Daemon

ASK_SECONDS: Final = 3.0
"""Seconds in which a daemon that is there has answered."""

FILE_NAME: Final = "ui.html"
"""In the state directory: sends a browser to the page. Its code is no use after a minute, or once used."""

_SENDS: Final = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={0}">
<title>Muniment</title>
<p><a href="{0}">To the page of Muniment</a></p>
"""


@command("there is no page", indent=None)
def ui(
    *,
    workspace: Workspace = None,
    opens: Annotated[bool, typer.Option("--open", help="Open it in the browser of this desktop.")] = False,
    json: Json = False,
) -> int:
    """Show the memory on a page: search it, see where it comes from, review, edit, undo.

    It is a page of the daemon that runs; where none does, one is started, until Ctrl-C.
    """
    from muniment.client.errors import Unreachable
    from muniment.client.finding import place
    from muniment.client.sync import Client

    if place(os.environ).find() is not None:
        try:
            with Client(workspace=workspace, timeout=ASK_SECONDS) as client:
                client.tasks("running")  # Or the daemon says that it does not serve this workspace.
                opened = client.open_ui()
        except Unreachable:  # What is left of one that was killed; where it lives, the next says so.
            pass
        else:
            address = _tell(workspace or Path(), opened.url, opened.code, opened.seconds, json=json)
            if opens:
                _send_browser(address)
            return 0
    from muniment.daemon.page.door import MADE_WITH

    if None in map(find_spec, MADE_WITH):
        raise ConfigInvalid("this needs an extra: pip install 'muniment[ui]'")
    require_fence()
    return _serve(workspace or Path(), opens=opens, json=json)


def _serve(workspace: Path, *, opens: bool, json: bool) -> int:
    """Start a daemon and tell where its page is; the exit code."""
    from muniment.cli.daemon import begin_log, run_daemon, socket_of
    from muniment.daemon.contract import HttpProblem
    from muniment.daemon.page.door import CODE_SECONDS
    from muniment.daemon.service import Options

    def greet(daemon: Daemon) -> None:
        try:
            url, code = daemon.core.open_ui()
        except HttpProblem as problem:
            raise ConfigInvalid(problem.sentence) from None
        address = _tell(workspace, url, code, round(CODE_SECONDS), json=json)
        if not json:
            say("  a daemon was started for it; Ctrl-C ends both")
        if opens:  # Beside the loop that serves the page, since some browsers are waited for.
            threading.Thread(target=_send_browser, args=(address,), daemon=True).start()

    begin_log(logging.WARNING)
    try:
        settings = settings_of()
        run_daemon(Options(settings, (workspace,), socket=socket_of(None, settings)), greet)
    except MunimentError as error:
        return print_failure(error, as_json=json, what="not served", indent=None)
    return 0


def _tell(workspace: Path, url: str, code: str, seconds: int, *, json: bool) -> str:
    """Say where the page is; the address."""
    from muniment.projects import find_project

    key = find_project(settings_of().home, workspace).key
    address = f"{url}/w/{key}/memory#{code}"
    lines = [address, f"  open it within {seconds} s: it signs in once; for another one: muniment ui"]
    document = {"url": url, "code": code, "seconds": seconds, "address": address}
    CommandAnswer(document, lines, indent=None).tell(as_json=json)
    return address


def _send_browser(address: str) -> None:
    """Open an address in a browser, in whose arguments nobody can read it."""
    from muniment.store.state import put

    file = settings_of().state / FILE_NAME
    try:
        put(file, _SENDS.format(html.escape(address)).encode(), over=True)
    except OSError as error:
        why = f"{file} cannot be written: {error.strerror}"
    else:
        if webbrowser.open(file.as_uri()):
            return
        why = "none was found, or it failed"
    print(f"note: no browser was opened ({why}); open the address yourself", file=sys.stderr)
