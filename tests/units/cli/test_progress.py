"""The line that shows the progress of a command: its content, when it is drawn, and when it is removed."""

import itertools
import os
import termios
import threading
import time

import pytest

from kit.cli.device import TerminalDevice, list_visible_lines
from muniment.cli.progress import ProgressDisplay, format_line, show_progress_on
from muniment.events import Progress, track_progress, watch_progress

NOW = 1_000.0


def make_progress(doing="importing", unit="files", *, seconds=10.0, **more):
    return Progress(doing, unit, started_at=NOW - seconds, **more)


def make_old_progress(doing="importing", **more):
    """Return work that has already taken a minute."""
    return Progress(doing, started_at=time.monotonic() - 60, **more)


@pytest.fixture
def terminal():
    with TerminalDevice() as opened:
        yield opened


@pytest.fixture
def display(terminal, monkeypatch):
    """Return a display that draws only if the test calls `draw`."""
    monkeypatch.setattr(ProgressDisplay, "_run", lambda _: None)
    return ProgressDisplay(terminal.device)


def read_screen(terminal):
    """Return what the terminal shows now."""
    os.write(terminal.device, b"\0")
    terminal.read_until("\0")
    terminal.output = terminal.output.replace("\0", "")
    return list_visible_lines(terminal.output)


# -- the line ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (make_progress(total=3_000, done=120, seconds=0.5), "importing: 120 of 3 000 files, about 12 s left"),
        (
            make_progress(total=3_000, done=1_500, seconds=600),
            "importing: 1 500 of 3 000 files, about 10 min left",
        ),
        (make_progress(total=3_000), "importing: 0 of 3 000 files, 10 s"),
        (make_progress(total=30, done=30), "importing: 30 of 30 files, 10 s"),
        (make_progress(total=30, done=31), "importing: 31 of 30 files, 10 s"),
        (make_progress(total=0), "importing: 0 of 0 files, 10 s"),
        (make_progress(done=1_234_567, seconds=1.2), "importing: 1 234 567 files, 1 s"),
        (make_progress("reading files", "", done=12, total=24), "reading files: 12 of 24, about 10 s left"),
        (make_progress("saving", "", seconds=240), "saving: 4 min"),
        (
            make_progress("asking the model", "tokens", done=1_840, detail="turn 2 of 6"),
            "asking the model: turn 2 of 6, 1 840 tokens, 10 s",
        ),
    ],
)
def test_line_describes_work_and_estimate(progress, line):
    assert format_line([progress], NOW, 80) == line


def test_line_describes_inner_work_and_counted_outer_work():
    outer, inner = make_progress(total=30, done=15), make_progress("saving", "")
    whole = "saving: 10 s (importing: 15 of 30 files, about 10 s left)"
    assert format_line([outer, inner], NOW, len(whole)) == whole
    assert format_line([outer, inner], NOW, len(whole) - 1) == "saving: 10 s"
    assert format_line([make_progress("remembering", ""), inner], NOW, 80) == "saving: 10 s"
    assert format_line([outer, inner], NOW, 6) == "saving"
    assert format_line([outer, inner], NOW, -3) == ""


def test_line_contains_no_control_characters():
    hostile = "a\x1b[2J\r\nb\u202ec\x07"
    line = format_line([make_progress(hostile, hostile, total=3, detail=hostile)], NOW, 200)
    assert line.isprintable()
    assert "\u202e" not in line


# -- the display ---------------------------------------------------------------------------------------


def test_display_draws_only_work_of_more_than_a_second(display, terminal):
    young = Progress("reading files")
    display.begin(young)
    display.draw()
    assert (read_screen(terminal), young.is_shown) == ([""], False)
    old = make_old_progress()
    display.begin(old)
    display.draw()
    assert (read_screen(terminal), old.is_shown) == (["importing: 60 s"], True)


def test_display_removes_line_before_work_ends(display, terminal):
    outer, inner = make_old_progress(), make_old_progress("saving")
    for each in (outer, inner):
        display.begin(each)
    display.draw()
    assert read_screen(terminal) == ["saving: 60 s"]
    display.end(inner)
    display.draw()
    assert read_screen(terminal) == ["importing: 60 s"]
    display.end(outer)
    assert read_screen(terminal) == [""]
    display.draw()
    assert read_screen(terminal) == [""]


@pytest.mark.parametrize("columns", [1, 4, 5, 20, 80])
def test_line_never_fills_the_width_of_the_terminal(columns, monkeypatch):
    monkeypatch.setattr(ProgressDisplay, "_run", lambda _: None)
    with TerminalDevice(columns) as terminal:
        display = ProgressDisplay(terminal.device)
        display.begin(make_old_progress("reading the long list of all files", total=30, done=15))
        display.draw()
        (line,) = read_screen(terminal)
        assert len(line) <= max(0, columns - 4)
        display.close()
        assert read_screen(terminal) == [""]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_line_is_removed_after_error(terminal, monkeypatch, error):
    monkeypatch.setattr("muniment.cli.progress.SHOW_AFTER_SECONDS", 0.0)

    def work():
        with show_progress_on(terminal.device), track_progress("importing"):
            terminal.read_until("importing")
            raise error

    with pytest.raises(error):
        work()
    assert read_screen(terminal) == [""]
    assert not [each for each in threading.enumerate() if each.name == "progress"]


def test_work_does_not_wait_for_stopped_terminal(display, terminal):
    progress = make_old_progress()
    display.begin(progress)
    display.draw()
    termios.tcflow(terminal.device, termios.TCOOFF)  # as Ctrl-S
    for progress.done in range(5_000):  # more than a terminal stores
        display.draw()
    display.end(progress)
    display.close()
    termios.tcflow(terminal.device, termios.TCOON)
    assert terminal.read_until("importing: 60 s")


def test_display_survives_terminal_that_is_gone(display, terminal):
    display.begin(make_old_progress())
    os.close(terminal.device)
    terminal.device = -1
    display.draw()
    display.close()


def test_work_is_reported_only_to_watcher_of_its_thread(display):
    seen, begin = [], display.begin
    display.begin = lambda progress: (seen.append(progress.doing), begin(progress))

    def work():
        with track_progress("other"):
            pass

    with watch_progress(display), track_progress("own"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    work()
    assert seen == ["own"]


def test_thread_draws_while_work_is_blocked(terminal, monkeypatch):
    monkeypatch.setattr("muniment.cli.progress.SHOW_AFTER_SECONDS", 0.01)
    monkeypatch.setattr("muniment.cli.progress.REDRAW_SECONDS", 0.01)
    with show_progress_on(terminal.device), track_progress("reading files", total=1_000) as progress:
        for progress.done in itertools.count(1):  # Each read blocks until the thread has drawn.
            terminal.read_until(f"{progress.done} of 1 000")
            if progress.done == 3:
                break
    assert read_screen(terminal) == [""]
