"""`read_file`, `ls` and `grep`: what they answer with, what they hide, and how they refuse."""

from __future__ import annotations

import errno
import os

import pytest

from kit.memories import CANARY, make_roots, put, strict
from kit.tools.benches import failing_bench, make_bench
from muniment.tools.workbench import MAX_TEXT_CHARS


@pytest.fixture
def bench(tmp_path):
    return make_bench(tmp_path)


def test_read_file_says_what_it_left_out_and_how_to_go_on(bench):
    put(bench.user, "a.md", "".join(f"line {number}\n" for number in range(1, 11)))
    first = bench("read_file", path="user/a.md", offset=2, limit=3).text
    assert first == "3\tline 3\n4\tline 4\n5\tline 5\n[truncated: 10 lines in all; read on with offset=5]"
    assert bench("read_file", path="user/a.md", offset=5).text.endswith("10\tline 10")
    assert bench("read_file", path="user/a.md", offset=10).text == "[empty]"


def test_one_answer_is_bounded_whatever_the_file_holds(bench):
    put(bench.user, "long.md", "x" * 500_000 + "\nshort\n")
    put(bench.user, "many.md", "y\n" * 400_000)
    for path, arguments in (("long", {}), ("many", {"limit": 2000})):
        text = bench("read_file", path=f"user/{path}.md", **arguments).text
        assert len(text) < MAX_TEXT_CHARS + 200
        assert "[truncated: " in text


@pytest.mark.threat("T-LEAK-04", control="logical_paths")
@pytest.mark.threat("T-PATH-03", control="layer_one")
@pytest.mark.threat("T-PATH-02", control="grammar_decodes")
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("user/absent.md", "not_found"),
        ("user/topic", "refused"),
        ("user", "not_a_file"),
        ("user/", "bad_name"),
        ("", "bad_name"),
        ("user/topic.md", "not_a_file"),
        ("user/bytes.md", "not_text"),
        ("user/zero.md", "not_text"),
        ("user/huge.md", "too_large"),
        ("user/link.md", "path_escape"),
        ("user/hard.md", "path_escape"),
        ("user/fifo.md", "path_escape"),
        ("user/linked/secret.md", "path_escape"),
        ("user/../outside/secret.md", "path_escape"),
        ("/etc/passwd", "path_escape"),
        ("user/a\0.md", "path_escape"),
        ("team/a.md", "refused"),
        ("user/.hidden.md", "refused"),
        ("user/a//b.md", "bad_name"),
        ("user/%2e%2e/a.md", "bad_name"),
        ("~/a.md", "bad_name"),
        ("user/" + "a" * 2000, "bad_name"),
    ],
)
def test_every_way_not_to_read_a_file_has_its_code(bench, path, code):
    user, outside = bench.user, bench.user.parent / "outside"
    put(user, "topic.md/x.md")
    put(user, "bytes.md", b"\xff\xfe")
    put(user, "zero.md", b"a\0b")
    put(user, ".hidden.md", CANARY)
    with put(user, "huge.md").open("r+b") as file:
        file.truncate(2_000_000)
    (user / "link.md").symlink_to(outside / "secret.md")
    (user / "linked").symlink_to(outside)
    (user / "hard.md").hardlink_to(outside / "secret.md")
    os.mkfifo(user / "fifo.md")
    outcome = bench("read_file", path=path)
    assert outcome.code == code
    assert outcome.verdict == ("deny" if code in {"path_escape", "bad_name", "refused"} else "error")
    assert "\n" not in outcome.text
    assert CANARY not in outcome.text
    assert str(user.parent) not in outcome.text
    assert bench.claims() == {}


def test_what_the_system_does_not_let_us_read_is_unreadable(tmp_path):
    put(make_roots(tmp_path)["user"], "a.md")
    bench = failing_bench(tmp_path, {b"a.md": errno.EACCES})
    assert bench("read_file", path="user/a.md").code == "unreadable"
    assert bench("grep", pattern="text").text == "no matches"
    assert bench("ls", path="user").text == "a.md\n[1 in all]"
    assert bench("grep", pattern="text", path="user/a.md").code == "unreadable"


def test_a_file_that_could_not_be_shown_may_not_be_replaced(tmp_path):
    bench = make_bench(tmp_path, must_read=True)
    put(bench.user, "bytes.md", b"\xff")
    assert bench("read_file", path="user/bytes.md").code == "not_text"
    assert bench("write_file", path="user/bytes.md", content="mine\n").code == "not_read"


def test_ls_without_a_path_lists_the_scopes(bench):
    assert bench("ls", path="").text == "user/\nproject/"


@pytest.mark.threat("T-PATH-13", control="listing_judged")
@pytest.mark.threat("T-PATH-13", control="kinds_of_names")
@pytest.mark.threat("T-PATH-10", control="grammar_names")
def test_ls_hides_links_odd_names_and_what_is_denied(bench):
    user = bench.user
    put(user, "shown.md")
    put(user, ".git/config.md")
    put(user, "picture.png")
    put(user, "bad|name.md")
    put(user, "only-hidden/.x.md")
    put(user, "empty/deep/x.txt")
    put(user, os.fsdecode(b"not-utf8-\xff.md"))
    (user / "link.md").symlink_to(user / "shown.md")
    (user / "linked").symlink_to(user.parent / "outside")
    os.mkfifo(user / "fifo.md")
    assert bench("ls", path="user").text == "shown.md (5 bytes)\n[1 in all]"


@pytest.mark.threat("T-PATH-06", control="one_name")
def test_a_second_name_of_a_file_spoils_no_listing_and_tells_nothing_of_it(bench):
    put(bench.user, "a.md")
    (bench.user / "hard.md").hardlink_to(bench.user.parent / "outside" / "secret.md")
    assert bench("ls", path="user").text == "a.md (5 bytes)\nhard.md\n[2 in all]"
    assert bench("grep", pattern=CANARY).text == "no matches"


@pytest.mark.parametrize("number", [errno.EXDEV, errno.ELOOP, errno.EACCES, errno.ENOENT])
def test_a_directory_that_cannot_be_entered_does_not_spoil_the_rest(tmp_path, number):
    roots = make_roots(tmp_path)
    put(roots["user"], "a.md", "needle\n")
    put(roots["user"], "mounted/b.md", "needle\n")
    bench = failing_bench(tmp_path, {b"mounted": number, b"mounted/b.md": number})
    assert bench("ls", path="user").text == "a.md (7 bytes)\n[1 in all]"
    assert bench("grep", pattern="needle").text == "user/a.md:1: needle"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("user/absent", "not_found"),
        ("user/a.md", "not_a_file"),
        ("user/.git", "refused"),
        ("user/linked", "path_escape"),
        ("user/..", "path_escape"),
        ("//", "bad_name"),
        ("team", "refused"),
    ],
)
def test_every_way_not_to_list_has_its_code(bench, path, code):
    put(bench.user, "a.md")
    put(bench.user, ".git/config.md")
    (bench.user / "linked").symlink_to(bench.user.parent / "outside")
    for tool, arguments in (("ls", {}), ("grep", {"pattern": "x"})):
        outcome = bench(tool, path=path, **arguments)
        if (tool, path) == ("grep", "user/a.md"):
            assert outcome.text == "user/a.md:1: text"
        else:
            assert outcome.code == code, tool


def test_grep_answers_with_path_line_and_text(bench):
    put(bench.user, "a.md", "alpha\nbeta\nalphabet\n")
    put(bench.roots["project"], "t/b.md", "beta\r\n")
    assert bench("grep", pattern="^alpha").text == "user/a.md:1: alpha\nuser/a.md:3: alphabet"
    assert bench("grep", pattern="BETA", ignore_case=True).text == "user/a.md:2: beta\nproject/t/b.md:1: beta"
    assert bench("grep", pattern="beta", path="project").text == "project/t/b.md:1: beta"
    assert bench("grep", pattern="beta", path="project/t/b.md").text == "project/t/b.md:1: beta"
    assert bench("grep", pattern="gamma").text == "no matches"


@pytest.mark.threat("T-PATH-13", control="listing_judged")
def test_grep_passes_over_what_is_no_private_text(bench):
    put(bench.user, "binary.md", b"needle\0")
    put(bench.user, "latin.md", b"needle \xe9")
    put(bench.user, ".hidden.md", "needle")
    put(bench.user, "code.py", "needle")
    (bench.user / "link.md").symlink_to(bench.user.parent / "outside" / "secret.md")
    assert bench("grep", pattern=f"needle|{CANARY}").text == "no matches"
    assert bench("grep", pattern="needle", path="user/binary.md").code == "not_text"
    assert bench("grep", pattern="needle", path="user/.hidden.md").code == "refused"
    assert bench("grep", pattern="needle", path="user/link.md").code == "path_escape"


def test_the_text_of_all_matches_is_bounded(bench):
    put(bench.user, "a.md", ("y" * 300 + "\n") * 500)
    text = bench("grep", pattern="y", max_matches=500).text
    assert len(text) < MAX_TEXT_CHARS + 100
    assert text.endswith("\n[cut; narrow the pattern or the path]")


@pytest.mark.threat("T-RUN-01", control="counted_bytes")
def test_a_run_may_search_and_be_shown_only_so_much(tmp_path):
    bench = make_bench(tmp_path, strict(limits={"scan_bytes": 100, "read_bytes": 60}))
    put(bench.user, "a.md", "z" * 90)
    assert bench("grep", pattern="nothing").verdict == "allow"
    assert bench("grep", pattern="nothing").code == "budget"
    assert bench("read_file", path="user/a.md").code == "budget"


def test_what_may_be_listed_but_not_read_shows_in_ls_alone(tmp_path):
    policy = strict(deny=[(["read"], ["/user/private/"])])
    bench = make_bench(tmp_path, policy)
    put(bench.user, "private/a.md", "needle\n")
    assert bench("ls", path="user/private").text == "a.md (7 bytes)\n[1 in all]"
    assert bench("grep", pattern="needle").text == "no matches"
    assert bench("grep", pattern="needle", path="user/private/a.md").code == "refused"
    assert bench("read_file", path="user/private/a.md").code == "refused"


@pytest.mark.threat("T-LEAK-06", control="policy_before_disk")
@pytest.mark.parametrize("path", ["user/.git/config.md", "user/.env.md"])
def test_a_hidden_file_reads_like_one_that_is_not_there(bench, path):
    before = [bench("read_file", path=path), bench("grep", pattern="x", path=path)]
    put(bench.roots["user"], path.removeprefix("user/"), CANARY)
    assert [bench("read_file", path=path), bench("grep", pattern="x", path=path)] == before


def test_a_root_that_was_removed_lists_as_empty_and_a_directory_as_absent(tmp_path):
    make_roots(tmp_path)
    bench = failing_bench(tmp_path, {b".": errno.ENOENT})
    assert bench("ls", path="user").text == "[0 in all]"
    assert bench("ls", path="user/topic").code == "not_found"
