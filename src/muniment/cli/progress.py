"""Show what a command does, in one line of the terminal on standard error, if it takes more than a second.

Separate from `terminal`, because most commands end sooner and need none of it.

P1 Nothing is shown if standard error is not a terminal, or if log events are sent there.
P2 Work is shown after `SHOW_AFTER_SECONDS`. If it is part of other work, the inner one is shown first.
P3 The line is removed before the work ends, also after an error or Ctrl-C, and before anything else is
   printed. It is shorter than the terminal is wide, and contains no control characters.
P4 The work never waits for a terminal that accepts no output, for example after Ctrl-S: it may hold a lock.
P5 A daemon thread draws the line. It receives no signals, and no other thread waits for it for long.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from muniment.content.gates import clean_foreign_line
from muniment.events import Progress, watch_progress

SHOW_AFTER_SECONDS: Final = 1.0
REDRAW_SECONDS: Final = 0.2

_LOCK_SECONDS: Final = 1.0
"""Maximum seconds that the work waits for the thread that draws."""

_DEFAULT_COLUMNS: Final = 80
_MARGIN: Final = 4
"""Columns that stay free, so that the `^C` that a terminal prints does not begin a new line."""

_CLEAR_LINE: Final = "\r\x1b[K"
_SECONDS_PER_MINUTE: Final = 60
_MAX_SHOWN_SECONDS: Final = 100
"""Seconds from which a duration is shown in minutes."""


@contextmanager
def show_progress_on(terminal: int) -> Iterator[None]:
    """Show the work of this thread on a terminal during the block.

    Args:
        terminal: descriptor of the terminal.

    Cost: a thread, if any work is tracked.
    """
    display = ProgressDisplay(terminal)
    try:
        with watch_progress(display):
            yield
    finally:
        display.close()


class ProgressDisplay:
    """One line of a terminal that shows the current work of a thread; rules P2 to P5 above.

    Args:
        terminal: descriptor of the terminal.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._works: list[Progress] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._line = ""

    def begin(self, progress: Progress) -> None:
        """Show `progress` from now on, if it takes long enough."""
        self._works.append(progress)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()

    def end(self, progress: Progress) -> None:
        """Stop showing `progress`. If no other work is shown, remove the line."""
        with suppress(ValueError):
            self._works.remove(progress)
        if self._lock.acquire(timeout=_LOCK_SECONDS):
            try:
                if self._line and not any(each.is_shown for each in self._works):
                    self._write("")
            finally:
                self._lock.release()

    def close(self) -> None:
        """Remove the line, and end the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(_LOCK_SECONDS)
        if self._line:
            self._write("")

    def draw(self) -> None:
        """Draw the line again, with the current state of the work."""
        now = time.monotonic()
        with self._lock:
            if self._closed.is_set():
                return
            long_works = [each for each in self._works if now - each.started_at >= SHOW_AFTER_SECONDS]
            for each in long_works:
                each.is_shown = True
            if long_works:
                self._write(format_line(long_works, now, self._read_columns() - _MARGIN))

    def _run(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            # A signal for this thread would not end a system call of the thread that works.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        seconds = SHOW_AFTER_SECONDS
        while not self._closed.wait(seconds):
            self.draw()
            seconds = REDRAW_SECONDS

    def _read_columns(self) -> int:
        try:
            return os.get_terminal_size(self._terminal).columns or _DEFAULT_COLUMNS
        except OSError:
            return _DEFAULT_COLUMNS

    def _write(self, line: str) -> None:
        """Replace the line, unless the terminal accepts no output now."""
        if line == self._line:
            return
        with suppress(OSError, ValueError):
            _, writable, _ = select.select([], [self._terminal], [], 0)
            if writable:
                os.write(self._terminal, f"{_CLEAR_LINE}{line}".encode())
                self._line = line


def format_line(works: list[Progress], now: float, columns: int) -> str:
    """Return one line of at most `columns` characters that describes the inner work.

    If there is room, it also describes the nearest outer work whose size is known.

    Args:
        works: work in progress; each one is a part of the previous one.
        now: the time, on `time.monotonic()`.
        columns: maximum number of characters.
    """
    *outer, inner = works
    line = clean_foreign_line(_describe(inner, now))
    counted = [clean_foreign_line(_describe(each, now)) for each in outer if each.total is not None]
    whole = f"{line} ({counted[-1]})" if counted else line
    return (whole if len(whole) <= columns else line)[: max(columns, 0)]


def _describe(progress: Progress, now: float) -> str:
    parts = [progress.detail, _format_count(progress), _format_time(progress, now)]
    return f"{progress.doing}: {', '.join(filter(None, parts))}"


def _format_count(progress: Progress) -> str:
    if progress.total is None and not progress.done:
        return ""
    total = "" if progress.total is None else f" of {_group_digits(progress.total)}"
    return f"{_group_digits(progress.done)}{total} {progress.unit}".rstrip()


def _format_time(progress: Progress, now: float) -> str:
    """Return the time that is probably left; without a total, return the time since the start."""
    done, total, seconds = progress.done, progress.total, now - progress.started_at
    if total is not None and 0 < done < total:
        return f"about {_format_seconds(seconds * (total - done) / done)} left"
    return _format_seconds(seconds)


def _format_seconds(seconds: float) -> str:
    if seconds < _MAX_SHOWN_SECONDS:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / _SECONDS_PER_MINUTE)} min"


def _group_digits(number: int) -> str:
    """Return a number with a space between each three digits."""
    return f"{number:_}".replace("_", " ")
