"""The screens of commands on a real pseudo terminal, each in a fork of this process.

A fork starts 20 times as fast as a program. Commands that use a worker need `kit.cli.device`: a fork
would share the worker of this process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import sys
import termios
import time
import traceback
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from muniment.cli import entry

SECONDS = 60


class Screen(NamedTuple):
    """The result of a command on a terminal.

    Attributes:
        code: the exit code; negative: the signal that ended the command.
        text: everything that the terminal received, and the echo of the answers.
    """

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def run_on_terminal(
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    columns: int = 80,
    answers: Mapping[str, bytes] | None = None,
) -> Screen:
    """Run a command whose streams are a terminal.

    Args:
        arguments: the words after `muniment`.
        env: the environment of the command.
        columns: the width of the terminal.
        answers: for a text that the command prints, the bytes that a person types then.
    """
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = os.fork()
    if child == 0:
        os.close(master)
        _run_child(slave, arguments, env)
    os.close(slave)
    try:
        text = "".join(_read(master, dict(answers or {})))
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(master)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Screen(code, text.replace("\r\n", "\n"))


def _run_child(slave: int, arguments: Sequence[str], env: Mapping[str, str]) -> None:
    """Run the command in the new process, and end it."""
    code = 70
    try:
        os.login_tty(slave)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(fd, mode, encoding="utf-8") for fd, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        sys.argv = ["muniment", *arguments]
        entry.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:  # noqa: BLE001  a fork must never continue the tests
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


def _read(master: int, answers: dict[str, bytes]) -> Iterator[str]:
    """Yield what the terminal receives until the command ends; type the answers."""
    deadline, data, position = time.monotonic() + SECONDS, b"", 0
    while True:
        if not select.select([master], [], [], max(0, deadline - time.monotonic()))[0]:
            raise AssertionError(f"the command waits: {data!r}")
        try:
            read = os.read(master, 65_536)
        except OSError:  # The command has closed the terminal.
            read = b""
        data += read
        if not read:
            yield data.decode()
            return
        for prompt, answer in list(answers.items()):
            found = data.find(prompt.encode(), position)
            if found >= 0:
                position = found + len(prompt.encode())
                os.write(master, answer)
                del answers[prompt]


def count_cells(line: str) -> int:
    """Return the number of cells of a line, by the properties of its characters in Unicode."""
    return sum(
        0
        if unicodedata.combining(each) or unicodedata.category(each) in {"Mn", "Me", "Cf"}
        else 2
        if unicodedata.east_asian_width(each) in {"W", "F"}
        else 1
        for each in line
    )
