"""A program on a real terminal, and the lines that a user sees there."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import termios
from functools import partial

from kit.cli.process import SECONDS, launch

COLUMNS = 80
INTERRUPT = b"\x03"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class TerminalDevice:
    """A pseudoterminal; a context manager, which ends the program.

    Attributes:
        device: descriptor for the program.
        program: the program that `launch` started, or None.
        output: everything that was written to the terminal so far.
    """

    def __init__(self, columns=COLUMNS):
        self._user, self.device = pty.openpty()
        fcntl.ioctl(self.device, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.program, self.output = None, ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._user)
        if self.device >= 0:
            os.close(self.device)
        if self.program is not None:
            self.program.kill()
            self.program.wait()

    def launch(self, base, *arguments, stdout=None, **environment):
        """Start `muniment` on this terminal; with `stdout`, its standard output is something else.

        Afterwards only the program has the device.
        """
        streams = {"stdin": self.device, "stdout": stdout or self.device, "stderr": self.device}
        options = streams if stdout else streams | {"preexec_fn": partial(os.login_tty, 0)}
        variables = {"TERM": "xterm", **environment}
        self.program = launch(base, *arguments, popen_options=options, **variables)
        os.close(self.device)
        self.device = -1
        return self.program

    @property
    def lines(self):
        """Return the lines that the terminal shows, without the end of a last line that is empty."""
        return list_visible_lines(self.output.removesuffix("\r\n"))

    @property
    def text(self):
        """Return the text that the terminal shows."""
        return "\n".join(self.lines)

    def type(self, keys):
        """Type some text or bytes; a line needs a line break. Return this object."""
        os.write(self._user, keys if isinstance(keys, bytes) else keys.encode())
        return self

    def expect(self, text, count=1):
        """Read until the terminal shows a text, `count` times; return this object."""
        while self.text.count(text) < count:
            assert self._read(), self.text
        return self

    def end(self):
        """Read until the program ends, and return its exit code."""
        self.read_rest()
        return self.program.wait(SECONDS)

    def read_until(self, pattern):
        """Read until the output matches a pattern, and return the match; fail at the end of the program."""
        while (found := re.search(pattern, self.output)) is None:
            assert self._read(), f"{pattern!r} is not in {self.output!r}"
        return found

    def read_rest(self):
        """Read until the program has closed the terminal, and return the whole output."""
        while self._read():
            pass
        return self.output

    def _read(self):
        ready, _, _ = select.select([self._user], [], [], SECONDS)
        assert ready, f"no output for {SECONDS} s after {self.output!r}"
        try:
            data = os.read(self._user, 4096)
        except OSError:  # The last program has closed the device.
            return False
        self.output += self._decode(data)
        return True


def list_visible_lines(output):
    """Return the lines that a terminal shows after this output, which fits into its width."""
    lines, column = [""], 0
    for piece in re.findall(r"\x1b\[K|[\r\n]|[^\x1b\r\n]+|\x1b", _COLOUR.sub("", output)):
        match piece:
            case "\r":
                column = 0
            case "\n":
                lines.append(" " * column)
            case "\x1b[K":
                lines[-1] = lines[-1][:column]
            case _:
                assert piece.isprintable(), f"unknown control characters: {piece!r}"
                lines[-1] = lines[-1][:column] + piece + lines[-1][column + len(piece) :]
                column += len(piece)
    return [line.rstrip() for line in lines]
