"""What commands do at a terminal: how they speak and ask, a bar for long work, a named file, and Ctrl-C."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from muniment.content.gates import on_one_line, visible
from muniment.errors import Cancelled, ConfigInvalid, MunimentError, printable

if TYPE_CHECKING:
    from muniment.cancelling import Cancel

# -- report ------------------------------------------------------------------------------------------
#
# How commands speak: one JSON document, or a line or two that a person can act on.

LOG_VARIABLE: Final = "MUNIMENT_LOG"

_COLOURS: Final = {"red": "31;1", "green": "32", "yellow": "33", "dim": "2"}
"""Select Graphic Rendition; ECMA-48, 8.3.117."""

_BREAK: Final = re.compile("[\r\n\u2028\u2029]")
"""What would begin another line; `visible` leaves it, since texts have lines."""

EXIT_FAILED: Final = 1
"""Refused or failed, with a stable code."""

EXIT_CANCELLED: Final = 130
"""What a shell reports for a program that Ctrl-C ended."""


def configure_logging() -> None:
    """Send events to standard error if `MUNIMENT_LOG` names a level; else they go nowhere."""
    level = logging.getLevelNamesMapping().get(os.environ.get(LOG_VARIABLE, "").upper())
    logger = logging.getLogger("muniment")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    if level is not None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)


def print_document(document: dict[str, Any], *, indent: int | None = 2) -> None:
    """One JSON document on standard output; in ASCII, so that no terminal and no encoding can spoil it."""
    say(json.dumps(document, indent=indent))


def say(text: str) -> None:
    """A line on standard output."""
    with output():
        print(text)


@contextmanager
def output() -> Iterator[None]:
    """Around what writes to standard output. A failure there changes no exit code: what was done is done."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        print(f"standard output cannot be written: {error.strerror}", file=sys.stderr)


def coloured(text: str, colour: str) -> str:
    """`text` on one line, such that nothing in it steers a terminal; in a colour where output is one."""
    shown = _BREAK.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", visible(text))
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return shown
    return f"\x1b[{_COLOURS[colour]}m{shown}\x1b[0m"


def say_notes(notes: Iterable[str]) -> None:
    """What a person should know besides, a line each, on standard error."""
    for note in notes:
        print(f"note: {on_one_line(note)}", file=sys.stderr)


def _drop_output() -> None:
    """Send what is still buffered nowhere, or the interpreter would fail on it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def print_failure(
    error: MunimentError,
    *,
    as_json: bool,
    what: str,
    blank: Mapping[str, Any] = MappingProxyType({}),
    indent: int | None = 2,
) -> int:
    """Say that `what` failed and why; the exit code for it.

    Args:
        error: why.
        as_json: as a document instead of a line.
        what: what did not happen, for the line; empty: it is of the error alone.
        blank: the other keys of the document, so that it has them in every case.
        indent: of the document; None: it is one line.
    """
    is_cancelled = isinstance(error, Cancelled)
    if as_json:
        status = "cancelled" if is_cancelled else "failed"
        failure = {"status": status, "error": {"code": error.code, "message": str(error)}}
        print_document({**blank, **failure}, indent=indent)
    else:
        what = "cancelled: " if is_cancelled else f"{what}: " if what else ""
        print(f"{what}{visible(str(error))} [{error.code}]", file=sys.stderr)
    return EXIT_CANCELLED if is_cancelled else EXIT_FAILED


# -- progress ---------------------------------------------------------------------------------------


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show how far some work has come, on standard error while the block runs; gone afterwards.

    Args:
        what: is done, such as `importing`.
        total: how many steps it has; None: nobody knows.

    Yields:
        What is told how many more steps were done.

    Cost: elsewhere than on a terminal none; there `rich` is loaded, some 100 ms.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    counted = () if total is None else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *counted, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda steps: shown.advance(task, steps)


# -- tables ------------------------------------------------------------------------------------------


def draw(
    tables: Iterable[tuple[Sequence[str], Iterable[tuple[Sequence[str], str | None]]]], above: str = ""
) -> None:
    """Draw tables on a terminal.

    Args:
        tables: of each its heads, and its rows with their styles.
        above: a line above them.

    Cost: `rich` is loaded, some 100 ms.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, emoji=False)
    with output():
        if above:
            console.print(above)
        for heads, rows in tables:
            table = Table(*heads)
            for row, style in rows:
                table.add_row(*row, style=style)
            console.print(table)


# -- questions ---------------------------------------------------------------------------------------
#
# What a person is asked.


def is_asked_on_terminal() -> bool:
    """Whether somebody is there to look and to answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def says_yes(question: str) -> bool:
    """Whether the answer is yes."""
    print(question, end="", flush=True)  # `input` would write it to standard error.
    try:
        return input().strip().casefold() in {"y", "yes"}
    except EOFError:
        return False


# -- named file --------------------------------------------------------------------------------------
#
# A file that a person named on the command line, or standard input for `-`.


def read_named(path: Path, limit: int) -> bytes:
    """All of it.

    Raises:
        ConfigInvalid: it cannot be read, or holds more than `limit` bytes.
    """
    shown = printable(str(path))
    try:
        if str(path) == "-":
            content = sys.stdin.buffer.read(limit + 1)
        else:
            with path.open("rb") as file:
                content = file.read(limit + 1)
    except OSError as error:
        raise ConfigInvalid(f"{shown} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise ConfigInvalid(f"{shown} holds more than {limit} bytes")
    return content


# -- interrupt ---------------------------------------------------------------------------------------
#
# Ctrl-C: in commands that write it cancels, and what has begun to write runs to its end.


@contextmanager
def on_signals(act: Callable[..., object] | signal.Handlers, *numbers: signal.Signals) -> Iterator[None]:
    """Have signals call this for the time of the block; `SIG_DFL`: they end the process, even in a wait."""
    before = {number: signal.signal(number, act) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def cancel_on_interrupt() -> Iterator[Cancel]:
    """A token that Ctrl-C sets, for the time of the block."""
    from muniment.cancelling import Cancel

    with Cancel() as cancel, on_signals(lambda *_: cancel.set(), signal.SIGINT):
        yield cancel
