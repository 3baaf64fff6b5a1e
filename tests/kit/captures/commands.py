"""The commands of the captures, and how they are run."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, replace

from kit.captures.screen import run_in_pipe, run_on_terminal
from kit.captures.world import WORK

USAGE = 2
"""Exit code of a wrong usage."""


@dataclass(frozen=True)
class Capture:
    """A command that a person types.

    Attributes:
        title: what it is for.
        line: the arguments as typed; `{name}` is the handle of an entry, `{review}` the id of a review.
        answers: the lines to type at its questions.
        substitute: the arguments for a version that does not have an option of `line`.
    """

    title: str
    line: str
    answers: tuple[str, ...] = ()
    substitute: str = ""


CAPTURES = (
    Capture("Remember a new fact", 'remember "The staging server is restarted every night at three"'),
    Capture(
        "Remember a change of a known fact",
        'remember "We deploy on Wednesdays at 10, no longer on Thursdays"',
    ),
    Capture("Recall", 'recall "when do we deploy?"'),
    Capture("List all entries", "ls"),
    Capture("List all entries with their paths", "ls --long", substitute="ls project"),
    Capture("Show an entry", "show {sprint}"),
    Capture("Explain the origin of an entry", "why {sprint}"),
    Capture("List the last changes", "history"),
    Capture("Undo the last change", "undo", ("n",)),
    Capture("List the changes that can be undone", "undo --list"),
    Capture("Forget: one entry matches", "forget dark mode", ("n",)),
    Capture("Forget: several entries match", "forget staging", ("2", "n")),
    Capture("Tidy the memory", "dream", ("n",)),
    Capture("List the pending reviews", "review list"),
    Capture("Show a pending review", "review show {review}"),
    Capture("Import a folder", "import ../notes"),
    Capture("Edit an entry in the editor", "edit {backups}"),
    Capture("Pin an entry", "pin {deploy}"),
    Capture("Rebuild the indexes", "index rebuild"),
    Capture("Test the confinement", "doctor"),
    Capture("Back up the home", "backup ../backup.tar"),
    Capture("Help", "--help"),
)

_DURATION = re.compile(r"\b\d+\.\d\d s\b")


@dataclass(frozen=True)
class Result:
    """The screens of one command of one edition.

    Attributes:
        line: the command as typed.
        by_columns: its screen for each width of the terminal.
        piped: its output in a pipe.
    """

    line: str
    by_columns: dict[int, object]
    piped: object


def capture(edition, each, widths):
    """Run a command of an edition on terminals of some widths and in a pipe, each from the same memory."""
    line, screens = each.line, {}
    for columns in widths:
        screens[columns] = _run(edition, line, columns, each.answers)
        if screens[columns].code == USAGE and each.substitute:
            line = each.substitute
            screens[columns] = _run(edition, line, columns, each.answers)
    return Result(f"muniment {_fill_in(edition, line)}", screens, _run(edition, line, None, ()))


def _fill_in(edition, line):
    return line.format_map(edition.names)


def _run(edition, line, columns, answers):
    edition.reset_memory()
    backup = WORK.parent / "backup.tar"
    backup.unlink(missing_ok=True)
    command, env = edition.build_command(*shlex.split(_fill_in(edition, line)))
    if columns is None:
        screen = run_in_pipe(command, cwd=WORK, env=env)
    else:
        screen = run_on_terminal(command, columns=columns, cwd=WORK, env=env, answers=answers)
    return replace(screen, lines=tuple(map(normalise, screen.lines)))


def normalise(line):
    """Return a line of output without the duration of a run and the release of this system's kernel."""
    return _DURATION.sub("0.05 s", line.replace(os.uname().release, "6.12.0"))
