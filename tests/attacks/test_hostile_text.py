"""Text that is made to be slow, through every interface; steps are counted, not timed."""

import runpy
import sys
import unicodedata
from contextlib import suppress
from types import SimpleNamespace

import pytest

import muniment
from kit.locations import REPOSITORY
from kit.operations.contexts import sample_rows
from muniment.agent.quotation import DisplayedTexts
from muniment.errors import InvalidContent
from muniment.policy.load import load_policy
from muniment.sandbox.tools.workbench import Workbench

__all__ = ["sample_rows"]
MARKS = "\u0301\u0316" * 200
"""Two alternating marks; a normalization sorts them in quadratic time."""


@pytest.fixture
def memory(tmp_path):
    (tmp_path / "workspace").mkdir()
    with muniment.open(tmp_path / "workspace", home=tmp_path / "home") as memory:
        memory.remember("The staging server is called tapir", scope="user")
        yield memory


def spy_on_normalize(monkeypatch, observe):
    """Call `look` with the input and the output of every normalization."""
    real = unicodedata.normalize

    def normalize(form, text):
        out = real(form, text)
        observe(text, out)
        return out

    monkeypatch.setattr(unicodedata, "normalize", normalize)


@pytest.mark.threat("T-RUN-12", control="streamed_marks")
def test_no_interface_normalizes_long_runs_of_marks(memory, monkeypatch):
    longest = [0]

    def observe(text, _):
        run = 0
        for char in text:
            run = run + 1 if unicodedata.combining(char) else 0
            longest[0] = max(longest[0], run)

    spy_on_normalize(monkeypatch, observe)
    file = memory.context.roots["user"].trusted_path / "zalgo.md"
    file.write_text(f"---\nname: ze{MARKS}\ndescription: de{MARKS}\n---\ntapir xe{MARKS}\n")
    for query in (f"what is the staging se{MARKS}rver?", f"tapir {MARKS}"):
        assert memory.recall(query).error is None
    memory.forget(f"all about zebras ze{MARKS}", dry_run=True)
    assert "tapir" in memory.recall(f"which staging server? {MARKS}").text
    memory.dream()
    DisplayedTexts.from_texts([f'{{"name": "write_file"}} e{MARKS}']).contains(f"e{MARKS}")
    assert 0 < longest[0] <= 60  # Decomposed: 30 marks of UAX 15; some become two.


def test_text_with_long_runs_of_marks_is_rejected(memory):
    with pytest.raises(InvalidContent, match="more than 30 combining marks"):
        memory.remember(f"The staging server is called xe{MARKS}")
    bench = Workbench(load_policy("strict"), ("user",), {}, must_read=False)
    outcome = bench.call("write_file", {"path": "user/a.md", "content": f"xe{MARKS}\n"})
    assert (outcome.code, outcome.rule) == ("content_rejected", "marks")
    root = memory.context.roots["user"].trusted_path
    (root / "zalgo.md").write_text(f"# tapir xe{MARKS}\n")
    assert "zalgo" not in memory.recall("tapir").text
    memory.remember("The production server is called okapi", scope="user")
    (line,) = (each for each in (root / "MEMORY.md").read_text().splitlines() if "zalgo" in each)
    assert "held" in line


@pytest.fixture(scope="module")
def benchmark():
    """The texts and functions of the benchmark."""
    return SimpleNamespace(**runpy.run_path(REPOSITORY / "benchmarks" / "hostile_text.py"))


def count_steps(function, text):
    """Count the lines of Python that a call executes, including the standard library."""
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


def test_steps_grow_linearly_with_the_text(benchmark, sample_rows):
    """Call each function with one text; with --slow, with every text."""
    small, large = benchmark.texts(1024), benchmark.texts(8192)
    assert len(small) >= 40
    bad = []
    for number, (name, function) in enumerate(benchmark.FUNCTIONS.items()):
        with suppress(muniment.MunimentError, ValueError):
            function(benchmark.PROSE)  # fill caches
        names = [*small][number % len(small) :] + [*small][: number % len(small)]
        for unit in sample_rows(names, 40):
            few, many = count_steps(function, small[unit]), count_steps(function, large[unit])
            if many > 10 * few + 500:
                bad.append((name, unit, few, many))
    assert bad == []


@pytest.mark.threat("T-RUN-13", control="long_characters")
def test_normalized_text_is_not_many_times_as_long(benchmark, monkeypatch):
    sizes = []
    spy_on_normalize(
        monkeypatch, lambda *texts: sizes.append([len(each.encode("utf-8", "replace")) for each in texts])
    )
    for unit in ("a sentence", "ligatures", "hangul", "wide"):
        for function in benchmark.FUNCTIONS.values():
            with suppress(muniment.MunimentError, ValueError, RecursionError):
                function(benchmark.texts(1024)[unit])
    assert 1 < max(after / max(before, 1) for before, after in sizes) <= 6
