"""Text that is made to be slow: through the doors by which text comes in, counted and not timed."""

import runpy
import sys
import unicodedata
from contextlib import suppress
from types import SimpleNamespace

import pytest

import muniment
from kit.operations.places import some
from kit.where import REPOSITORY
from muniment.agent.quotation import ShownTexts
from muniment.errors import InvalidContent
from muniment.policy.load import load_policy
from muniment.sandbox.tools.workbench import Workbench

__all__ = ["some"]
MARKS = "\u0301\u0316" * 200
"""Two marks in turn, which are sorted at the square of their number wherever they are normalised."""


@pytest.fixture
def memory(tmp_path):
    (tmp_path / "workspace").mkdir()
    with muniment.open(tmp_path / "workspace", home=tmp_path / "home") as memory:
        memory.remember("The staging server is called tapir", scope="user")
        yield memory


def spied(monkeypatch, look):
    """Look at what comes to be normalised, and at what that gives."""
    real = unicodedata.normalize

    def normalize(form, text):
        out = real(form, text)
        look(text, out)
        return out

    monkeypatch.setattr(unicodedata, "normalize", normalize)


@pytest.mark.threat("T-RUN-12", control="streamed_marks")
def test_no_run_of_marks_is_normalised_whatever_door_it_comes_by(memory, monkeypatch):
    longest = [0]

    def look(text, _):
        run = 0
        for char in text:
            run = run + 1 if unicodedata.combining(char) else 0
            longest[0] = max(longest[0], run)

    spied(monkeypatch, look)
    file = memory.place.roots["user"].trusted_path / "zalgo.md"
    file.write_text(f"---\nname: ze{MARKS}\ndescription: de{MARKS}\n---\ntapir xe{MARKS}\n")
    for query in (f"what is the staging se{MARKS}rver?", f"tapir {MARKS}"):
        assert memory.recall(query).error is None
    memory.forget(f"all about zebras ze{MARKS}", dry_run=True)
    assert "tapir" in memory.recall(f"which staging server? {MARKS}").text
    memory.dream()
    ShownTexts.of([f'{{"name": "write_file"}} e{MARKS}']).holds(f"e{MARKS}")
    assert 0 < longest[0] <= 60  # Decomposed: 30 marks of UAX 15, of which some are two.


def test_no_such_run_is_remembered_or_written_and_a_file_that_holds_one_is_held(memory):
    with pytest.raises(InvalidContent, match="more than 30 combining marks"):
        memory.remember(f"The staging server is called xe{MARKS}")
    bench = Workbench(load_policy("strict"), ("user",), {}, must_read=False)
    outcome = bench.call("write_file", {"path": "user/a.md", "content": f"xe{MARKS}\n"})
    assert (outcome.code, outcome.rule) == ("content_rejected", "marks")
    root = memory.place.roots["user"].trusted_path
    (root / "zalgo.md").write_text(f"# tapir xe{MARKS}\n")
    assert "zalgo" not in memory.recall("tapir").text
    memory.remember("The production server is called okapi", scope="user")
    (line,) = (each for each in (root / "MEMORY.md").read_text().splitlines() if "zalgo" in each)
    assert "held" in line


@pytest.fixture(scope="module")
def slow():
    """The benchmark, which has the texts and the functions."""
    return SimpleNamespace(**runpy.run_path(REPOSITORY / "benchmarks" / "hostile_text.py"))


def steps(function, text):
    """Lines of Python that a call executes, of ours and of the standard library."""
    counted = [0]

    def trace(_frame, event, _argument):
        counted[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(muniment.MunimentError, ValueError, RecursionError):
            function(text)
    finally:
        sys.settrace(before)
    return counted[0]


def test_eight_times_the_text_takes_about_eight_times_the_steps(slow, some):
    """A text a function, each text with some function; all of them with all where there is time."""
    small, large = slow.texts(1024), slow.texts(8192)
    assert len(small) >= 40
    bad = []
    for number, (name, function) in enumerate(slow.FUNCTIONS.items()):
        with suppress(muniment.MunimentError, ValueError):
            function(slow.PROSE)  # what is read and compiled once
        names = [*small][number % len(small) :] + [*small][: number % len(small)]
        for unit in some(names, 40):
            few, many = steps(function, small[unit]), steps(function, large[unit])
            if many > 10 * few + 500:
                bad.append((name, unit, few, many))
    assert bad == []


@pytest.mark.threat("T-RUN-13", control="long_characters")
def test_no_text_becomes_many_times_as_long_where_it_is_normalised(slow, monkeypatch):
    sizes = []
    spied(monkeypatch, lambda *texts: sizes.append([len(each.encode("utf-8", "replace")) for each in texts]))
    for unit in ("a sentence", "ligatures", "hangul", "wide"):
        for function in slow.FUNCTIONS.values():
            with suppress(muniment.MunimentError, ValueError, RecursionError):
                function(slow.texts(1024)[unit])
    assert 1 < max(after / max(before, 1) for before, after in sizes) <= 6
