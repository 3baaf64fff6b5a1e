"""Greps of everything that a run makes in one go search one reading of the files; nothing else does."""

from __future__ import annotations

import pytest

from kit.memories import strict
from kit.tools.benches import make_bench


@pytest.fixture
def laid_out(tmp_path):
    def make(**terms):
        bench = make_bench(tmp_path, **terms)
        (bench.user / "a.md").write_text("alpha\n")
        (bench.user / "b.md").write_text("beta\n")
        return bench

    return make


def test_greps_of_a_run_that_follow_each_other_search_what_the_first_one_read(laid_out):
    bench = laid_out(must_read=True)
    assert bench("grep", pattern="none").text == "no matches"
    (bench.user / "a.md").write_text("changed\n")
    assert bench("grep", pattern="alpha").text == "user/a.md:1: alpha"
    assert bench("grep", pattern="changed", path="user/a.md").text == "user/a.md:1: changed"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("ls", {}),
        ("read_file", {"path": "user/b.md"}),
        ("write_file", {"path": "user/c.md", "content": "gamma\n"}),
        ("read_file", {"path": "user/none.md"}),
    ],
)
def test_any_other_call_ends_the_reading(laid_out, tool, arguments):
    bench = laid_out(must_read=True)
    bench("grep", pattern="none")
    (bench.user / "a.md").write_text("changed\n")
    bench(tool, **arguments)
    assert bench("grep", pattern="changed").text == "user/a.md:1: changed"


def test_a_grep_that_stopped_early_leaves_no_half_reading(laid_out):
    bench = laid_out(must_read=True)
    assert "stopped at 1" in bench("grep", pattern="a", max_matches=1).text
    assert bench("grep", pattern="beta").text == "user/b.md:1: beta"


def test_each_grep_is_counted_against_what_a_run_may_scan(laid_out):
    bench = laid_out(must_read=True, policy=strict(limits={"scan_bytes": 25}))
    assert bench("grep", pattern="none").verdict == "allow"
    assert bench("grep", pattern="none").verdict == "allow"
    assert bench("grep", pattern="none").code == "budget"
