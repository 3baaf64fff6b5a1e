"""Implement `muniment completion`, and complete a word when the script of a shell requests it.

The scripts are those of Typer, except for fish. They run this program at each press of the Tab key, with the
words in environment variables; the shell then evaluates the output, or parts of it. Guarantees:

- C1 A value consists of letters, digits and `_ . / @ -`, so that no shell expands or splits it. Other values
  are omitted.
- C2 The help of a value is one line without a character that a shell expands.
- C3 Nothing is printed on standard error, not even after an error.

Typer's own formats do not guarantee this. Its format for zsh does not escape a backslash: if `$(…)` follows a
backslash in a help, zsh runs this command. Its formats for zsh and fish import rich (90 ms), which wraps long
lines, so that the rest of a help becomes a value. Its script for fish runs the program twice.

Attacked in tests/surface/cli/test_completion.py.
"""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stderr, suppress
from io import StringIO
from typing import Annotated, Any, Final, NoReturn

import typer
from typer._completion_classes import BashComplete, FishComplete, ZshComplete
from typer._completion_shared import get_completion_script

from muniment.cli.command import Report, command
from muniment.cli.options import ShellName
from muniment.cli.table import COMPLETE_VARIABLE, PROGRAM_NAME
from muniment.content.gates import clean_foreign_line

_FISH_SCRIPT: Final = (
    f"complete --command {PROGRAM_NAME} --no-files --arguments "
    f'"(env {COMPLETE_VARIABLE}=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args '
    f"_TYPER_COMPLETE_ARGS=(commandline -cp | string collect) {PROGRAM_NAME}; "
    'or __fish_complete_path (commandline -ct))"'
)
"""Offers the names of files if the program has no completion."""

_VALUE: Final = re.compile(r"[\w./@-]+")
_MAX_HELP_CHARS: Final = 72
_SUBSTITUTES: Final = str.maketrans(
    {"'": "\u2019", '"': "\u201d", "`": "\u2019", "$": "\uff04", "\\": "\uff3c"}
)
"""Similar characters without a meaning for a shell."""


@command("", has_json=False)
def completion(*, shell: Annotated[ShellName, typer.Argument(metavar="SHELL")]) -> Report:
    """Print the completion script for a shell.

    It completes commands, options, scopes, and the handles of entries and tasks.

    For bash: eval "$(muniment completion bash)" in ~/.bashrc. For zsh the same in ~/.zshrc, after compinit.
    For fish: muniment completion fish > ~/.config/fish/completions/muniment.fish
    """
    is_fish = shell is ShellName.FISH
    typer_script = get_completion_script(prog_name=PROGRAM_NAME, complete_var=COMPLETE_VARIABLE, shell=shell)
    return Report({}, [_FISH_SCRIPT if is_fish else typer_script])


class _SafeCompleter:
    """The part of a completer that omits unsafe values, and replaces unsafe characters in their help."""

    def get_completions(self, args: list[str], incomplete: str) -> list[Any]:
        """Return the completions of a word.

        A value that is not plain is a request to complete the names of files, which the shells do by
        themselves.
        """
        found: list[Any] = super().get_completions(args, incomplete)  # type: ignore[misc]
        safe_items = [each for each in found if each.type == "plain" and _is_safe(each.value)]
        for each in safe_items:
            each.help = _clean_help(each.help)
        return safe_items


class _BashCompleter(_SafeCompleter, BashComplete):
    """Completes a word for bash, which shows no help."""


class _ZshCompleter(_SafeCompleter, ZshComplete):
    """Completes a word for zsh, which evaluates values and help in double quotes."""

    def format_completion(self, item: Any) -> str:
        """Return a value with its help, for `_arguments`."""
        help_text = item.help.replace(":", r"\\:")
        return f'"{item.value}":"{help_text}"' if help_text else f'"{item.value}"'


class _FishCompleter(_SafeCompleter, FishComplete):
    """Completes a word for fish."""

    def format_completion(self, item: Any) -> str:
        """Return a value with its help, as a line."""
        return f"{item.value}\t{item.help}" if item.help else str(item.value)


_COMPLETERS: Final[dict[str, Any]] = {
    "complete_bash": _BashCompleter,
    "complete_zsh": _ZshCompleter,
    "complete_fish": _FishCompleter,
}
"""The class that completes words for each shell, by the value of the variable that its script sets."""


def complete_word(instruction: str) -> NoReturn:
    """Print the completions of the word that the environment variables of a shell describe, and exit.

    The exit code is 0 if there are completions, 1 if there are none, 2 if the instruction is unknown.

    Args:
        instruction: the value of `COMPLETE_VARIABLE`.
    """
    from muniment.cli.app import app

    if instruction not in _COMPLETERS:
        sys.exit(2)
    with redirect_stderr(StringIO()), suppress(Exception):  # An error would be printed into the command line.
        completer = _COMPLETERS[instruction](typer.main.get_command(app), {}, PROGRAM_NAME, COMPLETE_VARIABLE)
        if completions := completer.complete():
            print(completions)
            sys.exit(0)
    sys.exit(1)


def _is_safe(value: str) -> bool:
    return _VALUE.fullmatch(value) is not None


def _clean_help(text: str | None) -> str:
    return clean_foreign_line(text or "")[:_MAX_HELP_CHARS].translate(_SUBSTITUTES)
