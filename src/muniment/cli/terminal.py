"""Read from and write to a terminal: output, progress, questions, input files and Ctrl-C."""

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

from muniment.content.gates import clean_foreign_line, escape_invisible
from muniment.errors import Cancelled, ConfigInvalid, MunimentError, printable

if TYPE_CHECKING:
    from muniment.cancelling import Cancel

# -- output ------------------------------------------------------------------------------------------

LOG_VARIABLE: Final = "MUNIMENT_LOG"

_COLOURS: Final = {"red": "31;1", "green": "32", "yellow": "33", "dim": "2"}
"""Select Graphic Rendition; ECMA-48, 8.3.117."""

_LINE_BREAK: Final = re.compile("[\r\n\u2028\u2029]")
"""Characters that start another line; `escape_invisible` does not escape them, since texts have lines."""

EXIT_FAILED: Final = 1
"""The command was rejected or failed, with a stable code."""

EXIT_CANCELLED: Final = 130
"""The code that a shell reports for a program that Ctrl-C ended."""


def configure_logging() -> None:
    """Send log events to standard error if `MUNIMENT_LOG` contains a level; otherwise drop them."""
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
    """Print one JSON document on standard output, in ASCII: safe in every terminal and encoding."""
    print_line(json.dumps(document, indent=indent))


def print_line(text: str) -> None:
    """Print a line on standard output."""
    with guard_output():
        print(text)


@contextmanager
def guard_output() -> Iterator[None]:
    """Handle failures of standard output in the block. They change no exit code: the work is already done."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        _discard_output()
        print(f"standard output cannot be written: {error.strerror}", file=sys.stderr)


def color_text(text: str, colour: str) -> str:
    """Return `text` as one line without control characters; in a colour if output is a terminal."""
    line = _LINE_BREAK.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", escape_invisible(text))
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return line
    return f"\x1b[{_COLOURS[colour]}m{line}\x1b[0m"


def print_notes(notes: Iterable[str]) -> None:
    """Print each note as a line on standard error."""
    for note in notes:
        print(f"note: {clean_foreign_line(note)}", file=sys.stderr)


def _discard_output() -> None:
    """Discard the buffered output; otherwise the interpreter would fail on it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def print_failure(
    error: MunimentError,
    *,
    as_json: bool,
    prefix: str,
    default_keys: Mapping[str, Any] = MappingProxyType({}),
    indent: int | None = 2,
) -> int:
    """Print the failure of a command; return its exit code.

    Args:
        error: the cause.
        as_json: print a document instead of a line.
        prefix: prefix of the line, such as "not saved"; empty: print the error alone.
        default_keys: the other keys of the document, so that every document has the same keys.
        indent: of the document; None: one line.
    """
    is_cancelled = isinstance(error, Cancelled)
    if as_json:
        status = "cancelled" if is_cancelled else "failed"
        failure = {"status": status, "error": {"code": error.code, "message": str(error)}}
        print_document({**default_keys, **failure}, indent=indent)
    else:
        prefix = "cancelled: " if is_cancelled else f"{prefix}: " if prefix else ""
        print(f"{prefix}{escape_invisible(str(error))} [{error.code}]", file=sys.stderr)
    return EXIT_CANCELLED if is_cancelled else EXIT_FAILED


# -- progress ---------------------------------------------------------------------------------------


@contextmanager
def show_progress(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show the progress of some work on standard error while the block runs; removed afterwards.

    Args:
        label: the work, such as `importing`.
        total: its number of steps; None: unknown.

    Yields:
        A function that advances the bar by a number of steps.

    Cost: none if standard error is not a terminal; otherwise `rich` is loaded, about 100 ms.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    counted = () if total is None else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *counted, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)


# -- tables ------------------------------------------------------------------------------------------


def draw_tables(
    tables: Iterable[tuple[Sequence[str], Iterable[tuple[Sequence[str], str | None]]]], above: str = ""
) -> None:
    """Draw tables on a terminal.

    Args:
        tables: for each table its column titles, and its rows with their styles.
        above: a line above the tables.

    Cost: `rich` is loaded, about 100 ms.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, emoji=False)
    with guard_output():
        if above:
            console.print(above)
        for heads, rows in tables:
            table = Table(*heads)
            for row, style in rows:
                table.add_row(*row, style=style)
            console.print(table)


# -- questions ---------------------------------------------------------------------------------------


def is_interactive() -> bool:
    """Return whether standard input and output are terminals, so that a user can answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def confirm(question: str) -> bool:
    """Ask a yes-or-no question; return whether the answer is yes."""
    print(question, end="", flush=True)  # `input` would write it to standard error.
    try:
        return input().strip().casefold() in {"y", "yes"}
    except EOFError:
        return False


# -- input file --------------------------------------------------------------------------------------


def read_input_file(path: Path, limit: int) -> bytes:
    """Return the content of a file given on the command line, or of standard input for `-`.

    Raises:
        ConfigInvalid: it cannot be read, or contains more than `limit` bytes.
    """
    name = printable(str(path))
    try:
        if str(path) == "-":
            content = sys.stdin.buffer.read(limit + 1)
        else:
            with path.open("rb") as file:
                content = file.read(limit + 1)
    except OSError as error:
        raise ConfigInvalid(f"{name} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise ConfigInvalid(f"{name} is too long: at most {limit} bytes are allowed")
    return content


# -- interrupt ---------------------------------------------------------------------------------------
#
# Ctrl-C cancels a command that writes; a write that has started is completed.


@contextmanager
def handle_signals(
    handler: Callable[..., object] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    """Handle signals with `handler` during the block; `SIG_DFL`: they end the process, even during a wait."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def cancel_on_interrupt() -> Iterator[Cancel]:
    """Yield a token that Ctrl-C cancels, for the block."""
    from muniment.cancelling import Cancel

    with Cancel() as cancel, handle_signals(lambda *_: cancel.set(), signal.SIGINT):
        yield cancel
