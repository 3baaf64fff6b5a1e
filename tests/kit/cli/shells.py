"""Real shells on a pseudo-terminal, in which a test presses keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import termios
import time
from pathlib import Path
from typing import Self

TAB, PRINT_LINE, CTRL_C = "\t", "\x0e", "\x03"
"""`PRINT_LINE` is Ctrl-N, which the settings below bind: it prints the command line and empties it."""

SECONDS = 60
_ESCAPES = re.compile(
    r"\x1b\[[0-9;?>=]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>78]"
)

_SETTINGS = {
    "bash": """
PS1='ready> '
bind 'set enable-bracketed-paste off'
bind 'set show-all-if-ambiguous on'
bind -x '"\\C-n": printf "<%s>\\n" "$READLINE_LINE"; READLINE_LINE=; READLINE_POINT=0'
eval "$(muniment completion bash)"
""",
    "zsh": """
PS1='ready> '
unsetopt zle_bracketed_paste prompt_cr prompt_sp
autoload -U compinit
compinit -u -D
eval "$(muniment completion zsh)"
print_line() { print -r -- "<$BUFFER>"; BUFFER= }
zle -N print_line
bindkey '^N' print_line
""",
    "fish": """
function fish_prompt; echo 'ready> '; end
function fish_greeting; end
muniment completion fish | source
bind \\cn 'printf "<%s>\\n" (commandline); commandline ""'
""",
}


class Shell:
    """A shell that completes the words of `muniment`. Use it in a `with` statement.

    Args:
        name: bash, zsh or fish.
        directory: a directory for its settings.
        environment: its environment variables.
    """

    def __init__(self, name: str, directory: Path, environment: dict[str, str]) -> None:
        self.name = name
        directory.mkdir()
        settings = directory / {"bash": "bashrc", "zsh": ".zshrc", "fish": "config.fish"}[name]
        settings.write_text(_SETTINGS[name])
        command = {
            "bash": ["bash", "--noprofile", "--rcfile", str(settings), "-i"],
            "zsh": ["zsh", "-d", "-i"],
            "fish": ["fish", "--no-config", "-i", "-C", f"source {shlex.quote(str(settings))}"],
        }[name]
        variables = {"TERM": "xterm", "ZDOTDIR": str(directory)}
        self._id, self._fd = pty.fork()
        if self._id == 0:  # pragma: no cover
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
            os.execvpe(command[0], command, {**environment, **variables})
        self.output = ""

    def __enter__(self) -> Self:
        """Wait until the shell is ready."""
        self.wait_for("ready> ")
        return self

    def __exit__(self, *_exc: object) -> None:
        """End the shell."""
        os.close(self._fd)
        os.waitpid(self._id, 0)

    def press(self, keys: str) -> None:
        """Type characters."""
        self.output = ""
        os.write(self._fd, keys.encode())

    def wait_for(self, text: str) -> str:
        """Return the output since the last press, as soon as it contains a text."""
        deadline = time.monotonic() + SECONDS
        while text not in (shown := _ESCAPES.sub("", self.output)):
            is_ready, _, _ = select.select([self._fd], [], [], deadline - time.monotonic())
            assert is_ready, f"{text!r} is missing in {shown!r}"
            self.output += os.read(self._fd, 1 << 16).decode("utf-8", "replace")
        return shown

    def complete(self, line: str) -> str:
        """Return the command line after it was typed and completed."""
        self.press(line + TAB + PRINT_LINE)
        return self.wait_for(">\r\n").rpartition("<")[2].partition(">\r\n")[0]
