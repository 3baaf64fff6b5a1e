"""The captures of commands show what a person sees, and are the same in each run (`kit.captures`)."""

from __future__ import annotations

import os
import shlex
import sys

import pytest

from kit.captures import world
from kit.captures.commands import CAPTURES, Result, normalise
from kit.captures.document import build_pages, shorten
from kit.captures.screen import Screen, run_in_pipe, run_on_terminal
from kit.captures.views import SIZES, VIEWS
from kit.locations import REPOSITORY, TESTS
from kit.shell import read_page
from muniment.cli.table import TABLE


def show(code, tmp_path, *, columns=40, answers=()):
    """Run Python code on a terminal."""
    command = [sys.executable, "-c", code]
    return run_on_terminal(command, columns=columns, cwd=tmp_path, env={}, answers=answers)


def test_screen_omits_removed_progress(tmp_path):
    code = r"print('reading 1 of 2', end='\r'); print('\x1b[2Kdone')"
    found = show(code, tmp_path)
    assert (found.lines, found.code, found.styles) == (("done",), 0, frozenset())


def test_screen_lists_colours_and_styles(tmp_path):
    code = r"print('\x1b[1;33mold\x1b[0m \x1b[2mquiet\x1b[0m \x1b[38;2;1;2;3mnew\x1b[0m')"
    found = show(code, tmp_path)
    assert (found.lines, found.styles) == (("old quiet new",), {"bold", "yellow", "dim", "010203"})


def test_screen_has_width_of_terminal(tmp_path):
    code = "import os; print(os.get_terminal_size().columns); print('a' * 45); raise SystemExit(3)"
    found = show(code, tmp_path)
    assert (found.lines, found.code) == (("40", "a" * 40, "aaaaa"), 3)


def test_questions_get_answers_then_end_of_input(tmp_path):
    code = "print('some: text', flush=True)\nwhile True: print('got', input('which? [1-3] '))"
    found = show(code, tmp_path, columns=80, answers=("2", "n"))
    assert found.lines[:5] == ("some: text", "which? [1-3] 2", "got 2", "which? [1-3] n", "got n")
    assert (found.lines[-1], found.code) == ("EOFError", 1)


def test_pipe_has_no_terminal_and_both_outputs(tmp_path):
    code = "import sys; print(sys.stdin.isatty(), sys.stdout.isatty()); print('x ', file=sys.stderr)"
    found = run_in_pipe([sys.executable, "-u", "-c", code], cwd=tmp_path, env={})
    assert found == Screen(("False False", "x"), 0)


IDENTITIES = """
from kit.captures import start
start.fix_time_and_random_bytes()
import datetime, secrets, time, uuid
now = datetime.datetime.now(datetime.UTC)
plain = datetime.datetime.fromisoformat("2026-06-10T09:30:00+00:00")
print(now == plain, isinstance(now - datetime.timedelta(1), datetime.datetime), datetime.date.today())
print(time.time(), time.time_ns(), secrets.token_hex(8), uuid.uuid4(), secrets.choice("abcdefgh"))
"""


def test_time_and_random_bytes_are_fixed(tmp_path):
    env = {"CAPTURE_TIME": "1781083800", "PYTHONPATH": str(TESTS), "TZ": "UTC"}
    command = [sys.executable, "-c", IDENTITIES]
    first, second, other = (
        run_in_pipe(command, cwd=tmp_path, env={**env, "CAPTURE_SEED": seed}).lines
        for seed in ("ls", "ls", "why")
    )
    assert first[0] == "True True 2026-06-10"
    assert first[1].startswith("1781083800.0 1781083800000000000 ")
    assert first == second != other


def test_durations_and_kernel_release_are_replaced():
    line = f"Linux {os.uname().release}, 2 turns, 12.34 s, 14 days"
    assert normalise(line) == "Linux 6.12.0, 2 turns, 0.05 s, 14 days"


def test_existing_directory_is_not_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(world, "BASE", tmp_path)
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(SystemExit, match="exists: another capture"), world.create_world():
        pass
    assert (tmp_path / "mine").read_text() == "mine"


def build(*editions, piped=("saved",), codes=(1, 2)):
    """Build the pages of one command and one view."""
    screens = {80: Screen(("saved", "```"), 0, frozenset({"green"}))}
    results = [
        Result("muniment ls", screens | {120: Screen(("saved",), code)}, Screen(piped, 0))
        for _, code in zip(editions, codes, strict=False)
    ]
    captures = [("Save", results)]
    return build_pages(captures, editions, [("home", "Home")], sizes=["desktop"], now="today", count=2)


def test_pages_compare_two_editions():
    narrow, wide = build("After", "Before")
    for edition, code in ("After", 1), ("Before", 2):
        assert f"\n{edition}:\n\n````text\n$ muniment ls\nsaved\n```\n````\n" in narrow
        assert f"![Home, desktop, {edition.lower()}](captures/home-desktop-{edition.lower()}.webp)" in narrow
        assert f"\n{edition}, 120 columns, exit code {code}:\n\n```text\n$ muniment ls\nsaved\n```\n" in wide
        assert f"\n{edition}, in a pipe, the same.\n" in wide
    assert "after: green; before: green" in narrow


def test_same_output_of_two_editions_is_shown_once():
    narrow, wide = build("After", "Before", codes=(0, 0))
    assert narrow.count("$ muniment ls") == 1
    assert "\nAfter and before:\n" in narrow
    assert "\nAfter and before, 120 columns:\n" in wide


def test_pages_of_one_edition_have_no_title_of_it():
    narrow, wide = build("", piped=("saved", "twice"))
    assert "\n### Save\n\n````text\n" in narrow
    assert "| desktop |\n|---|\n| ![Home, desktop](captures/home-desktop.webp) |" in narrow
    assert "\nIn a pipe:\n\n```text\n$ muniment ls | cat\nsaved\ntwice\n```\n" in wide


def test_long_screen_loses_its_middle():
    lines = [str(number) for number in range(50)]
    assert shorten(lines, 50) == lines
    assert shorten(lines, 8) == ["0", "1", "2", "3", "4", "[… 43 more lines …]", "48", "49"]


def test_captured_commands_exist_and_are_on_page():
    commands = {shlex.split(each.line)[0] for each in CAPTURES} - {"--help"}
    assert commands <= TABLE.keys()
    assert len(CAPTURES) >= 18
    page = read_page("docs/captures.md")
    assert [row[4:] for row in page.splitlines() if row.startswith("### ")] == [
        *(each.title for each in CAPTURES),
        *(view.title for view in VIEWS),
    ]
    names = {path.name for path in (REPOSITORY / "docs" / "captures").iterdir()}
    assert all(f"(captures/{name})" in page for name in names)
    assert len(names) in {len(VIEWS) * len(SIZES) * editions for editions in (1, 2)}
