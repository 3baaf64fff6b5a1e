"""The program on a real terminal: a pseudo-terminal with a size, and answers that are typed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

from kit.cli.process import SECONDS, build_command

_PART = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+|\x1b")

# The terminal must control the program, so that Ctrl-C sends SIGINT.
_LAUNCHER = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A run of `muniment` on a new terminal.

    Args:
        base: the directory with the home and the workspace.
        arguments: the arguments of the command.
        columns: the width of the terminal.
        environment: variables, in addition to those of `build_command`.
    """

    def __init__(self, base, *arguments, columns=80, **environment):
        command, directory, variables = build_command(base, *arguments)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, *command],
            cwd=directory,
            env={**variables, "TERM": "xterm", **environment},
            **dict.fromkeys(("stdin", "stdout", "stderr"), slave),
            start_new_session=True,
        )
        os.close(slave)
        self.raw = ""

    @property
    def text(self):
        """Return the text on the terminal, without erased lines, such as those of a progress bar."""
        return "\n".join(self.lines)

    @property
    def lines(self):
        """Return the lines on the terminal."""
        lines, row = [""], 0
        for part in _PART.findall(self.raw):
            if part == "\n":
                row += 1
                lines += [""] * (row == len(lines))
            elif up := re.fullmatch(r"\x1b\[([0-9]*)A", part):
                row = max(0, row - int(up[1] or 1))
            elif part in {"\x1b[2K", "\x1b[K"}:  # The latter is only used at the start of a line.
                lines[row] = ""
            elif not part.startswith(("\x1b", "\r")):
                lines[row] += part
        while len(lines) > 1 and not lines[-1]:
            lines.pop()
        return lines

    def expect(self, text, count=1):
        """Read until the output contains a text, `count` times; return this object."""
        deadline = time.monotonic() + SECONDS
        while self.text.count(text) < count:
            assert self._read(deadline), self.text
        return self

    def type(self, keys):
        """Type some text or bytes; a line needs a line break."""
        os.write(self._master, keys if isinstance(keys, bytes) else keys.encode())
        return self

    def end(self):
        """Read until the program ends, and return its exit code."""
        deadline = time.monotonic() + SECONDS
        while self._read(deadline):
            pass
        os.close(self._master)
        return self.process.wait(SECONDS)

    def _read(self, deadline):
        ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
        assert ready, self.text
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # The program has closed the terminal.
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)
