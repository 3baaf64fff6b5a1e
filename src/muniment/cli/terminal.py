"""Use the terminal: print output and progress, ask questions, read input files, and handle Ctrl-C."""

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
    from muniment.cli.options import MemoryFlags

# -- output ------------------------------------------------------------------------------------------

LOG_VARIABLE: Final = "MUNIMENT_LOG"

_COLOURS: Final = {"red": "31;1", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}
"""Escape codes for colours (Select Graphic Rendition; ECMA-48, 8.3.117)."""

_LINE_BREAK: Final = re.compile("[\r\n\u2028\u2029]")
"""Characters that start a new line.

`escape_invisible` does not escape them, because a text may have several lines.
"""

EXIT_FAILED: Final = 1
"""Exit code of a command that was rejected or failed; its output contains an error code."""

EXIT_CANCELLED: Final = 130
"""Exit code that shells report for a program that Ctrl-C ended."""


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
    """Print one JSON document on standard output.

    It contains only ASCII characters, which every terminal can print.
    """
    print_line(json.dumps(document, indent=indent))


def print_line(text: str) -> None:
    """Print a text and a line break on standard output."""
    with guard_output():
        print(text)


def print_lines(lines: Iterable[str]) -> None:
    """Print texts on standard output, each with a line break."""
    with guard_output():
        sys.stdout.writelines(f"{line}\n" for line in lines)


@contextmanager
def guard_output() -> Iterator[None]:
    """Handle failures of standard output in the block.

    A failure does not change the exit code, because the work of the command is already done.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        _discard_output()
        print(
            f"part of the output is missing: standard output cannot be written: {error.strerror}",
            file=sys.stderr,
        )


_color_choice = "auto"


def choose_color(choice: str) -> None:
    """Set whether this process prints colours: `auto`, `always` or `never`."""
    global _color_choice  # noqa: PLW0603  one program has one standard output
    _color_choice = choice


def has_color() -> bool:
    """Return whether standard output gets colours: by `--color`, otherwise if it is a terminal.

    Source: https://no-color.org for the variable `NO_COLOR`.
    """
    if _color_choice != "auto":
        return _color_choice == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def color_text(text: str, colour: str) -> str:
    """Return `text` as one line without control characters.

    Args:
        text: any text.
        colour: a key of `_COLOURS`; used only if `has_color`.
    """
    line = _LINE_BREAK.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", escape_invisible(text))
    if not has_color():
        return line
    return f"\x1b[{_COLOURS[colour]}m{line}\x1b[0m"


def print_notes(notes: Iterable[str]) -> None:
    """Print each note as a line on standard error."""
    for note in notes:
        print(f"note: {clean_foreign_line(note)}", file=sys.stderr)


def _discard_output() -> None:
    """Discard the buffered output, because the interpreter would fail at exit when it writes the buffer."""
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
    """Print the failure of a command, and return its exit code.

    Args:
        error: the error to print.
        as_json: print a JSON document instead of a line.
        prefix: the beginning of the line, such as "not saved"; empty: print the error alone.
        default_keys: keys that the document has in addition to `status` and `error`, so that all documents of
            the command have the same keys.
        indent: the indentation of the document; None: print it on one line.
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
def show_progress() -> Iterator[None]:
    """Show what the block does on standard error, if it takes more than a second; see `cli.progress`.

    Cost: none if standard error is not a terminal.
    """
    terminal = None if os.environ.get(LOG_VARIABLE) else _find_terminal()
    if terminal is None:
        yield
        return
    from muniment.cli.progress import show_progress_on

    with show_progress_on(terminal):
        yield


def _find_terminal() -> int | None:
    """Return the descriptor of standard error if it is a terminal that can remove a line; otherwise None."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError):
        return None
    return descriptor if os.environ.get("TERM") != "dumb" and os.isatty(descriptor) else None


# -- tables ------------------------------------------------------------------------------------------


def draw_tables(
    tables: Iterable[tuple[Sequence[str], Iterable[tuple[Sequence[str], str | None]]]], above: str = ""
) -> None:
    """Print tables on a terminal.

    Args:
        tables: for each table, the titles of its columns, and its rows, each with the name of a style or
            None.
        above: a line to print above the tables; empty: none.

    Cost: about 100 ms to load `rich`.
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
    """Return whether a user can answer questions: standard input and output are both terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def can_ask(flags: MemoryFlags, *, yes: bool) -> bool:
    """Return whether a command asks before it writes: on a terminal, without `--json` and `--yes`."""
    return not yes and not flags["json"] and is_interactive()


def confirm(question: str) -> bool:
    """Ask a question until the answer is yes or no; return whether it is yes.

    An empty answer, and the end of the input, mean no.
    """
    question += " [y/N] "
    while (answer := (read_answer(question) or "").casefold()) not in {"", "n", "no"}:
        if answer in {"y", "yes"}:
            return True
        print("answer y or n")
    return False


def read_answer(question: str) -> str | None:
    """Ask a question; return the answer without white space around it, or None at the end of the input.

    An answer that is not text becomes the character U+FFFD.
    """
    print(question, end="", flush=True)
    try:
        line = sys.stdin.readline()  # `input` would ignore a line from its first NUL on.
    except UnicodeDecodeError:
        return "\ufffd"
    if not line:
        print()
        return None
    return line.strip()


def confirm_change(question: str) -> bool:
    """Ask a user at a terminal for confirmation, and return the answer; without a terminal, return False."""
    return is_interactive() and confirm(question)


def confirm_preview(lines: Iterable[str], question: str, refusal: str) -> bool:
    """Print what a command would change, ask for confirmation, and return the answer.

    Args:
        lines: the preview.
        question: the question.
        refusal: the line to print otherwise.
    """
    print_lines(lines)
    is_confirmed = confirm(question)
    if not is_confirmed:
        print(refusal, file=sys.stderr)
    return is_confirmed


# -- input file --------------------------------------------------------------------------------------


def read_input_file(path: Path, limit: int) -> bytes:
    """Return the content of a file that the user named on the command line; `-` names standard input.

    Args:
        path: path of the file, or `-`.
        limit: maximum number of bytes.

    Raises:
        ConfigInvalid: the file cannot be read, or has more than `limit` bytes.
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
    """Handle signals with `handler` during the block.

    With the handler `SIG_DFL`, a signal ends the process, even while it waits.
    """
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def cancel_on_interrupt() -> Iterator[Cancel]:
    """Yield a cancellation token; during the block, Ctrl-C cancels it instead of ending the program."""
    from muniment.cancelling import Cancel

    with Cancel() as cancel, handle_signals(lambda *_: cancel.set(), signal.SIGINT):
        yield cancel
