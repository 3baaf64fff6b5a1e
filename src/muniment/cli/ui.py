"""`muniment ui`: the page of the daemon that runs, or of one that is started, and how to sign in there.

The code stands in no argument and in no query, where other users of this machine could read it: it is told on
the terminal, and a browser is sent to a file of this user's alone that goes on to the page.
"""

from __future__ import annotations

import html
import os
import sys
import threading
import webbrowser
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muniment.cli.terminal import ModelFlags, configure_logging, print_document, print_failure, say
from muniment.client import Client
from muniment.client.errors import Unreachable
from muniment.client.finding import place
from muniment.errors import ConfigInvalid, MunimentError
from muniment.projects import find_project
from muniment.settings import read_settings
from muniment.store.state import put

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


@dataclass(frozen=True, slots=True)
class UiArguments:
    """The command line."""

    workspace: Path | None
    opens: bool
    json: bool


def show_page(asked: UiArguments) -> int:
    """Tell how to sign in to the page; serve until Ctrl-C where no daemon runs. The exit code."""
    configure_logging()
    try:
        if place(os.environ).find() is not None:
            try:
                with Client(workspace=asked.workspace, timeout=ASK_SECONDS) as client:
                    client.tasks("running")  # Or the daemon says that it does not serve this workspace.
                    opened = client.open_ui()
            except Unreachable:  # What is left of one that was killed; where it lives, the next says so.
                pass
            else:
                address = _tell(asked, opened.url, opened.code, opened.seconds)
                if asked.opens:
                    _send_browser(address)
                return 0
    except MunimentError as error:
        return print_failure(error, as_json=asked.json, what="there is no page", indent=None)
    return _serve(asked)


def _serve(asked: UiArguments) -> int:
    from muniment.daemon.page.door import CODE_SECONDS, MADE_WITH

    if None in map(find_spec, MADE_WITH):
        missing = ConfigInvalid("this needs an extra: pip install 'muniment[ui]'")
        return print_failure(missing, as_json=asked.json, what="there is no page", indent=None)
    from muniment.cli.daemon import ServeArguments, serve
    from muniment.daemon.contract import HttpProblem

    def greet(daemon: Daemon) -> None:
        try:
            opened = daemon.core.open_ui()
        except HttpProblem as problem:
            raise ConfigInvalid(problem.sentence) from None
        address = _tell(asked, *opened, round(CODE_SECONDS))
        if not asked.json:
            say("  a daemon was started for it; Ctrl-C ends both")
        if asked.opens:  # Beside the loop that serves the page, since some browsers are waited for.
            threading.Thread(target=_send_browser, args=(address,), daemon=True).start()

    flags = ModelFlags(model=None, base_url=None, api_key_file=None, protocol=None, on_model_failure=None)
    where = asked.workspace or Path()
    return serve(ServeArguments([where], model=flags, json=asked.json), greet)


def _tell(asked: UiArguments, url: str, code: str, seconds: int) -> str:
    """Say where the page is; the address."""
    key = find_project(read_settings(os.environ).home, asked.workspace or Path()).key
    address = f"{url}/w/{key}/memory#{code}"
    if asked.json:
        print_document({"url": url, "code": code, "seconds": seconds, "address": address}, indent=None)
    else:
        say(address)
        say(f"  open it within {seconds} s: it signs in once; for another one: muniment ui")
    return address


def _send_browser(address: str) -> None:
    """Open an address in a browser, in whose arguments nobody can read it."""
    file = read_settings(os.environ).state / FILE_NAME
    try:
        put(file, _SENDS.format(html.escape(address)).encode(), over=True)
    except OSError as error:
        why = f"{file} cannot be written: {error.strerror}"
    else:
        if webbrowser.open(file.as_uri()):
            return
        why = "none was found, or it failed"
    print(f"note: no browser was opened ({why}); open the address yourself", file=sys.stderr)
