"""`read_file`, `ls` and `grep`: their answers, hidden paths and errors."""

import errno
import os
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.catching import catch_error
from kit.memories import CANARY, make_roots, make_strict_policy, write_file
from kit.sandbox.benches import make_bench, make_failing_bench
from muniment.errors import BadArguments
from muniment.sandbox.tools.workbench import MAX_LINE_CHARS, MAX_TEXT_CHARS, Pattern


@pytest.fixture
def bench(tmp_path):
    return make_bench(tmp_path)


def test_answer_is_bounded_and_describes_how_to_continue(bench):
    write_file(bench.user, "a.md", "".join(f"line {number}\n" for number in range(1, 11)))
    first = bench("read_file", path="user/a.md", offset=2, limit=3).text
    assert first == "3\tline 3\n4\tline 4\n5\tline 5\n[truncated: 10 lines in all; continue with offset=5]"
    assert bench("read_file", path="user/a.md", offset=5).text.endswith("10\tline 10")
    assert bench("read_file", path="user/a.md", offset=10).text == "[empty]"
    write_file(bench.user, "long.md", "x" * 500_000 + "\nshort\n")
    write_file(bench.user, "many.md", "y\n" * 400_000)
    for path, arguments in (("long", {}), ("many", {"limit": 2000})):
        text = bench("read_file", path=f"user/{path}.md", **arguments).text
        assert len(text) < MAX_TEXT_CHARS + 200
        assert "[truncated: " in text
    write_file(bench.user, "wide.md", ("z" * 300 + "\n") * 500)
    text = bench("grep", pattern="z", max_matches=500).text
    assert len(text) < MAX_TEXT_CHARS + 100
    assert text.endswith("\n[cut; narrow the pattern or the path]")


UNREADABLE = {
    "not_found": ["user/absent.md"],
    "refused": ["user/topic", "team/a.md", "user/.hidden.md"],
    "not_a_file": ["user", "user/topic.md"],
    "bad_name": ["user/", "", "user/a//b.md", "user/%2e%2e/a.md", "~/a.md", "user/" + "a" * 2000],
    "not_text": ["user/bytes.md", "user/zero.md"],
    "too_large": ["user/huge.md"],
    "path_escape": [
        *("user/link.md", "user/hard.md", "user/fifo.md", "user/linked/secret.md"),
        *("user/../outside/secret.md", "/etc/passwd", "user/a\0.md"),
    ],
}


@pytest.mark.threat("T-LEAK-04", control="logical_paths")
@pytest.mark.threat("T-PATH-03", control="layer_one")
@pytest.mark.threat("T-PATH-02", control="grammar_decodes")
def test_every_unreadable_path_has_its_code(bench):
    user, outside = bench.user, bench.user.parent / "outside"
    contents = {"topic.md/x.md": "x", "bytes.md": b"\xff\xfe", "zero.md": b"a\0b", ".hidden.md": CANARY}
    for rel, content in contents.items():
        write_file(user, rel, content)
    os.truncate(write_file(user, "huge.md"), 2_000_000)
    (user / "link.md").symlink_to(outside / "secret.md")
    (user / "linked").symlink_to(outside)
    (user / "hard.md").hardlink_to(outside / "secret.md")
    os.mkfifo(user / "fifo.md")
    for code, path in ((code, path) for code, paths in UNREADABLE.items() for path in paths):
        outcome = bench("read_file", path=path)
        assert outcome.code == code, path
        assert outcome.verdict == ("deny" if code in {"path_escape", "bad_name", "refused"} else "error")
        assert [fragment for fragment in ("\n", CANARY, str(user.parent)) if fragment in outcome.text] == []
    assert bench.list_claims() == {}


def test_unreadable_file_does_not_affect_the_others(tmp_path):
    user = make_roots(tmp_path)["user"]
    write_file(user, "a.md", "needle\n")
    write_file(user, "mounted/b.md", "needle\n")
    for number in (errno.EXDEV, errno.ELOOP, errno.EACCES, errno.ENOENT):
        bench = make_failing_bench(tmp_path, {b"mounted": number, b"mounted/b.md": number})
        assert bench("ls", path="user").text == "a.md (7 bytes)\n[1 in all]"
        assert bench("grep", pattern="needle").text == "user/a.md:1: needle"
    (user / "mounted/b.md").unlink()
    bench = make_failing_bench(tmp_path, {b"a.md": errno.EACCES})
    assert bench("read_file", path="user/a.md").code == "unreadable"
    assert bench("grep", pattern="needle").text == "no matches"
    assert bench("ls", path="user").text == "a.md\n[1 in all]"
    assert bench("grep", pattern="needle", path="user/a.md").code == "unreadable"
    bench = make_failing_bench(tmp_path, {b".": errno.ENOENT})
    assert bench("ls", path="user").text == "[0 in all]", "like a removed root"
    assert bench("ls", path="user/topic").code == "not_found"


@pytest.mark.threat("T-PATH-06", control="one_name")
@pytest.mark.threat("T-PATH-13", control="listing_judged")
@pytest.mark.threat("T-PATH-13", control="kinds_of_names")
@pytest.mark.threat("T-PATH-10", control="grammar_names")
def test_ls_and_grep_hide_links_odd_names_and_denied_files(bench):
    user, secret = bench.user, bench.user.parent / "outside" / "secret.md"
    assert bench("ls", path="").text == "user/\nproject/"
    odd = [".git/config.md", ".hidden.md", "picture.png", "bad|name.md", "only-hidden/.x.md"]
    for rel in (*odd, "empty/deep/x.txt", os.fsdecode(b"not-utf8-\xff.md")):
        write_file(user, rel, "needle")
    write_file(user, "shown.md")
    (user / "link.md").symlink_to(secret)
    (user / "linked").symlink_to(secret.parent)
    (user / "hard.md").hardlink_to(secret)
    os.mkfifo(user / "fifo.md")
    assert bench("ls", path="user").text == "hard.md\nshown.md (5 bytes)\n[2 in all]"
    write_file(user, "binary.md", b"needle\0")
    write_file(user, "latin.md", b"needle \xe9")
    assert bench("grep", pattern=f"needle|{CANARY}").text == "no matches"
    for name, code in (("binary", "not_text"), (".hidden", "refused"), ("link", "path_escape")):
        assert bench("grep", pattern="needle", path=f"user/{name}.md").code == code


def test_every_unlistable_path_has_its_code(bench):
    write_file(bench.user, "a.md")
    write_file(bench.user, ".git/config.md")
    (bench.user / "linked").symlink_to(bench.user.parent / "outside")
    for path, code in (
        *(("user/absent", "not_found"), ("user/a.md", "not_a_file"), ("user/.git", "refused")),
        *(("//", "bad_name"), ("user/linked", "path_escape"), ("user/..", "path_escape")),
        ("team", "refused"),
    ):
        assert bench("ls", path=path).code == code
        found = bench("grep", path=path, pattern="x")
        assert found.code == code or (path, found.text) == ("user/a.md", "user/a.md:1: text")


def test_grep_answers_with_path_line_and_text(bench):
    write_file(bench.user, "a.md", "alpha\nbeta\nalphabet\n")
    write_file(bench.roots["project"], "t/b.md", "beta\r\n")
    assert bench("grep", pattern="^alpha").text == "user/a.md:1: alpha\nuser/a.md:3: alphabet"
    assert bench("grep", pattern="BETA", ignore_case=True).text == "user/a.md:2: beta\nproject/t/b.md:1: beta"
    for path in ("project", "project/t/b.md"):
        assert bench("grep", pattern="beta", path=path).text == "project/t/b.md:1: beta"
    assert bench("grep", pattern="gamma").text == "no matches"


@pytest.mark.threat("T-RUN-01", control="counted_bytes")
def test_run_has_a_budget_for_scanned_and_returned_bytes(tmp_path):
    bench = make_bench(
        tmp_path, make_strict_policy(limits={"scan_bytes": 200, "read_bytes": 60}), must_read=True
    )
    write_file(bench.user, "a.md", "z" * 90)
    for code in (None, None, "budget"):  # One read serves them all, and each counts.
        assert bench("grep", pattern="nothing").code == code
    assert bench("read_file", path="user/a.md").code == "budget"


@pytest.mark.threat("T-LEAK-06", control="policy_before_disk")
def test_hidden_file_reads_like_a_missing_file(bench):
    for path in ("user/.git/config.md", "user/.env.md"):
        before = [bench("read_file", path=path), bench("grep", pattern="x", path=path)]
        write_file(bench.roots["user"], path.removeprefix("user/"), CANARY)
        assert [bench("read_file", path=path), bench("grep", pattern="x", path=path)] == before


# -- one read for consecutive greps -------------------------------------------------------------------


def test_consecutive_greps_share_one_read_until_another_call(tmp_path):
    bench = make_bench(tmp_path, must_read=True)
    write_file(bench.user, "b.md", "beta\n")
    write_file(bench.user, "a.md", "alpha\n")
    assert "stopped at 1" in bench("grep", pattern="a", max_matches=1).text
    assert bench("grep", pattern="beta").text == "user/b.md:1: beta", (
        "a grep that stops early leaves no partial read"
    )
    write_file(bench.user, "a.md", "changed\n")
    assert bench("grep", pattern="alpha").text == "user/a.md:1: alpha"
    assert bench("grep", pattern="changed", path="user/a.md").text == "user/a.md:1: changed"
    others = [("ls", {}), ("read_file", {"path": "user/b.md"}), ("read_file", {"path": "user/none.md"})]
    others.append(("write_file", {"path": "user/c.md", "content": "gamma\n"}))
    for number, (tool, arguments) in enumerate(others):
        bench("grep", pattern="none")
        write_file(bench.user, "a.md", f"changed {number}\n")
        bench(tool, **arguments)
        assert bench("grep", pattern="changed").text == f"user/a.md:1: changed {number}", tool


# -- RE2 over whole files gives the result of a search line by line ---------------------------------------


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "^", "$", "a*", "b+", "a?", "(a|b)", "é", "^$", " "])
PATTERNS = st.lists(ATOMS, min_size=1, max_size=5).map("".join)
LINES = st.lists(st.text(alphabet="ab é", max_size=6), max_size=6)


def find_lines(pattern, data, *, ignore_case=False):
    return list(Pattern(pattern, ignore_case=ignore_case).matching_lines(data))


@given(pattern=PATTERNS, lines=LINES, ends=st.booleans())
def test_pattern_finds_the_lines_of_a_search_line_by_line(pattern, lines, ends):
    text = "\n".join(lines) + ("\n" if ends and lines else "")
    split = text.removesuffix("\n").split("\n") if text else []
    by_line = [(number, line) for number, line in enumerate(split, 1) if re.search(pattern, line)]
    assert find_lines(pattern, text.encode()) == by_line


def test_pattern_never_matches_across_lines():
    for pattern in ("one.two", r"one\ntwo", r"one\stwo", "(?s)one.*two"):
        assert find_lines(pattern, b"one\ntwo\n") == []
    for pattern in ("^$", "$", "x*$"):
        assert (2, "") not in find_lines(pattern, b"a\n")
    assert find_lines("^$", b"a\n\n") == [(2, "")]


def test_case_is_ignored_in_every_script_and_long_lines_are_cut():
    assert find_lines("ÉCOLE", "l'école".encode(), ignore_case=True) == [(1, "l'école")]
    assert find_lines("ÉCOLE", "l'école".encode()) == []
    assert find_lines("x", ("é" * 1000 + "x").encode()) == [(1, "é" * MAX_LINE_CHARS + "…")]


def test_invalid_pattern_gets_a_one_line_error():
    bad = ["(", "[", "*", "a{1001}", r"\1(a)", "(?=a)", "(?<!a)b", "(((a{100}){100}){100})", "\ud800"]
    for pattern in (*bad, r"\p{No}{900}{9}"):
        caught = catch_error(BadArguments, Pattern, pattern, ignore_case=False)
        assert "\n" not in str(caught)
        assert len(str(caught)) < 200


@pytest.mark.threat("T-PATH-13", control="linear_search")
@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*$b", "(a+)+$", "a*a*a*a*a*a*b", "(.*)(.*)(.*)(.*)x"])
def test_pathological_pattern_is_fast(pattern):
    began = time.monotonic()
    find_lines(pattern, b"a" * 200_000)
    assert time.monotonic() - began < 5
