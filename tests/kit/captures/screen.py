"""Run a program as a person sees it: on a terminal of a given width, with answers to its questions.

The terminal is emulated by `pyte`, so a progress bar that the program removed is not part of the result.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import termios
import time
from dataclasses import dataclass

import pyte

SECONDS = 60
"""A program that takes longer counts as stuck."""

ROWS = 24
"""The height of the terminal that the program sees; the emulated screen keeps the lines above it."""

MAX_LINES = 1_000

_QUESTION = re.compile(r"(?:[\])?:>]) $")
"""The end of a line that waits for an answer."""

_STYLES = ("bold", "italics", "underscore", "reverse")
_COLOURS = {"brown": "yellow", "brightbrown": "bright yellow"}
"""The names of `pyte` that differ from the usual ones."""

_DIM = re.compile(rb"\x1b\[(?:[013-9];)*2[;m]")
"""The escape code of dim text, which `pyte` ignores."""

_END_OF_INPUT = b"\x04"


@dataclass(frozen=True)
class Screen:
    """The output of a finished program.

    Attributes:
        lines: what the screen shows, without spaces at the ends of lines.
        code: the exit code.
        styles: the colours and styles of the text, such as `green` and `bold`.
    """

    lines: tuple[str, ...]
    code: int
    styles: frozenset[str] = frozenset()


def run_on_terminal(command, *, columns, cwd, env, answers=()):
    """Run a program on a terminal; return its screen.

    Args:
        command: the program and its arguments.
        columns: the width of the terminal.
        cwd, env: its directory and environment.
        answers: the lines to type, one for each question. Further questions get the end of input (Ctrl-D).
    """
    terminal = pyte.Screen(columns, MAX_LINES)
    stream, waiting = pyte.ByteStream(terminal), list(answers)
    master, slave = os.openpty()
    try:
        termios.tcsetwinsize(slave, (ROWS, columns))
        with subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=env, start_new_session=True
        ) as process:
            os.close(slave)
            try:
                is_dim = _feed(stream, terminal, master, waiting)
                code = process.wait(SECONDS)
            finally:
                process.kill()
    finally:
        os.close(master)
    styles = _find_styles(terminal) | ({"dim"} if is_dim else set())
    return Screen(_read_lines(terminal), code, styles)


def _feed(stream, terminal, master, answers):
    """Show the output of a program until its end, and answer its questions; return whether any was dim."""
    end, output = time.monotonic() + SECONDS, b""
    while True:
        readable, _, _ = select.select([master], [], [], max(0.0, end - time.monotonic()))
        if not readable:
            raise TimeoutError(f"no end after {SECONDS} s: {_read_lines(terminal)[-3:]}")
        try:
            data = os.read(master, 65_536)
        except OSError:  # Linux reports the end of all writers as EIO.
            data = b""
        if not data:
            return _DIM.search(output) is not None
        output += data
        stream.feed(data)
        if _QUESTION.search(_read_line(terminal, terminal.cursor.y)[: terminal.cursor.x]):
            os.write(master, answers.pop(0).encode() + b"\n" if answers else _END_OF_INPUT)


def _read_line(terminal, row):
    return "".join(terminal.buffer[row][column].data for column in range(terminal.columns))


def _read_lines(terminal):
    lines = [_read_line(terminal, row).rstrip() for row in range(terminal.cursor.y + 1)]
    while lines and not lines[-1]:
        lines.pop()
    return tuple(lines)


def _find_styles(terminal):
    found = set()
    for row in terminal.buffer.values():
        for each in row.values():
            if each.data.strip():
                found |= {_COLOURS.get(each.fg, each.fg)} - {"default"}
                found |= {style for style in _STYLES if getattr(each, style)}
    return frozenset(found)


def run_in_pipe(command, *, cwd, env):
    """Run a program with a pipe as both outputs, and no input; return its output."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    return Screen(tuple(line.rstrip() for line in done.stdout.splitlines()), done.returncode)
