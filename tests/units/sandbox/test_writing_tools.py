"""`write_file` and `edit`: proposals over the memory, and every reason not to take one."""

import errno
import hashlib
from functools import partial

import pytest

from kit.content.secret_values import filled
from kit.memories import CANARY, photograph, put, strict
from kit.sandbox.benches import failing_bench, make_bench
from muniment.kernel.decide import Content, Quota
from muniment.kernel.names import MAX_FILE_BYTES


@pytest.fixture
def bench(tmp_path):
    return make_bench(tmp_path)


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def write(bench, path, content="x"):
    return bench("write_file", path=f"user/{path}", content=content)


def edit(bench, old, new, path="a.md", **more):
    return bench("edit", path=f"user/{path}", old_string=old, new_string=new, **more)


@pytest.mark.threat("T-RUN-08", control="overlay_only")
def test_nothing_is_written_by_any_call(bench):
    put(bench.user, "a.md", "one\n")
    before = photograph(bench.user.parent)
    assert write(bench, "new/b.md", "b\n").text == "created user/new/b.md (2 bytes)"
    assert write(bench, "a.md", "two\n").text == "replaced user/a.md (4 bytes)"
    assert edit(bench, "two", "three").verdict == "allow"
    assert photograph(bench.user.parent) == before


def test_reads_see_pending_writes_first_which_stand_in_the_way_as_if_they_were_there(bench):
    put(bench.user, "a.md", "old needle\n")
    write(bench, "a.md", "new needle\n")
    write(bench, "topic/b.md", "needle too\n")
    assert bench("read_file", path="user/a.md").text == "1\tnew needle"
    assert bench("ls", path="user").text == "a.md (11 bytes)\ntopic/\n[2 in all]"
    assert bench("ls", path="user/topic").text == "b.md (11 bytes)\n[1 in all]"
    assert bench("grep", pattern="needle").text == "user/a.md:1: new needle\nuser/topic/b.md:1: needle too"
    assert bench("grep", pattern="needle", path="user/topic/b.md").text == "user/topic/b.md:1: needle too"
    write(bench, "t.md/x.md")
    for path in ("t.md", "a.md/x.md"):
        assert write(bench, path).code == "not_a_file"
    assert list(bench.pending()) == ["user/a.md", "user/t.md/x.md", "user/topic/b.md"]


@pytest.mark.threat("T-LEAK-01", control="secret_rules")
def test_a_secret_is_refused_wherever_it_would_be_written_or_left_out_where_a_policy_says_so(bench, tmp_path):
    key = filled("ghp_{a62:36}", 1)
    put(bench.user, "a.md", "one\n")
    refused = [write(bench, "b.md", f"a\n{key}\n"), write(bench, f"{key}.md", "a\n")]
    refused += [edit(bench, "one", text) for text in (key, f"{key[:9]}\n{key[9:]}")]
    assert {(outcome.code, outcome.rule) for outcome in refused} == {("content_rejected", "secrets")}
    assert not any(key in outcome.text for outcome in refused)
    assert bench.pending() == {}
    bench = make_bench(tmp_path / "redacting", strict(content=Content(secrets="redact")))
    put(bench.user, "a.md", f"old {key}\n")
    left_out = "; a possible secret was removed"
    assert write(bench, "b.md", f"a {key}\n").text == f"created user/b.md (26 bytes){left_out}"
    assert edit(bench, "old", "new").text == f"changed user/a.md{left_out}"
    contents = [b"new (redacted github-token)\n", b"a (redacted github-token)\n"]
    assert [item.after for item in bench.pending().values()] == contents
    assert write(bench, "c.md", f"{key[:9]}\n{key[9:]}\n").rule == "secrets"
    assert write(bench, "c.md", "c\n").text == "created user/c.md (2 bytes)"


def test_the_first_write_or_edit_of_a_file_sets_what_is_claimed_of_it(bench):
    put(bench.user, "a.md", "zero\n")
    put(bench.user, "b.md", "one\n")
    for content in ("one\n", "two\n"):
        write(bench, "a.md", content)
    edit(bench, "two", "three")
    edit(bench, "one", "two", "b.md")
    write(bench, "new.md", "one\n")
    assert edit(bench, "one", "two", "new.md").verdict == "allow"
    assert bench.claims() == {"user/a.md": sha("zero\n"), "user/b.md": sha("one\n"), "user/new.md": None}
    assert {path: item.base for path, item in bench.pending().items()} == bench.claims()
    assert [item.after for item in bench.pending().values()] == [b"three\n", b"two\n", b"two\n"]


def test_an_edit_keeps_crlf_shows_the_changed_lines_and_can_replace_all(bench):
    put(bench.user, "a.md", "one\r\ntwo\r\nthree\r\n")
    assert edit(bench, "two", "2\r\n2½").text == "changed user/a.md\n2\t2\n3\t2½"
    assert bench.pending()["user/a.md"].after == "one\r\n2\r\n2½\r\nthree\r\n".encode()
    put(bench.user, "b.md", "a b a\n" * 10)
    assert edit(bench, "a", "c", "b.md", replace_all=True).verdict == "allow"
    assert bench.pending()["user/b.md"].after == b"c b c\n" * 10
    assert len(edit(bench, "c b c\nc b c", "z\n" * 300, "b.md", replace_all=True).text.split("\n")) < 60


UNEDITED = [
    *(("absent", "x", "no_match"), ("a", "x", "not_unique"), ("aa", "x", "not_unique")),
    *(("one", "one", "bad_arguments"), ("", "x", "bad_arguments")),
    *(("one", "\u202ex", "content_rejected"), ("one", "\x1b[31m", "content_rejected")),
    *(("one", "\0", "not_text"), ("one", "\ud800", "not_text"), ("one", "x" * 140_000, "quota")),
    *(("one", "x" * MAX_FILE_BYTES, "too_large"), ("one", "x" * (MAX_FILE_BYTES + 1), "too_large")),
]


def test_every_way_not_to_edit_has_its_code_and_bytes_count_not_characters(bench):
    put(bench.user, "a.md", "one aaa\n")
    for old, new, code in UNEDITED:
        outcome = edit(bench, old, new)
        assert outcome.code == code, (old, new[:9])
        assert "\n" not in outcome.text
    put(bench.user, "b.md", "a" * 100_000)
    assert edit(bench, "a", "b" * 1_000_000, "b.md", replace_all=True).code == "too_large", "it would blow up"
    assert write(bench, "a.md", "é" * 600_000).code == "too_large"
    assert write(bench, "a.md", "é" * 70_000).code == "quota"
    assert bench.pending() == {}


UNWRITTEN = {
    "path_escape": ["user/link.md", "user/hard.md", "user/linked/new.md", "user/../x.md", "/etc/passwd"],
    "not_a_file": ["user", "user/topic.md", "user/a.md/b.md"],
    "exists_as": ["user/A.md", "user/Topic.md", "user/TOPIC.MD/x.md"],
    "refused": [
        *("user/x.txt", "user/x.MD", "user/.md", "user/a/b/c.md", "user/MEMORY.md", "user/memory.md"),
        *("user/pinned/a.md", "user/index/a.md", "user/CLAUDE.md", "team/a.md"),
    ],
    "bad_name": ["user/aux.md", "user/a\u200b.md"],
}


def test_every_way_not_to_write_has_its_code(bench):
    user, outside = bench.user, bench.user.parent / "outside"
    for rel in ("a.md", "topic.md/x.md", "pinned/a.md"):
        put(user, rel)
    (user / "link.md").symlink_to(outside / "secret.md")
    (user / "hard.md").hardlink_to(outside / "secret.md")
    (user / "linked").symlink_to(outside)
    for code, path in ((code, path) for code, paths in UNWRITTEN.items() for path in paths):
        outcome = bench("write_file", path=path, content="x\n")
        assert outcome.code == code, (path, outcome.text)
        assert [told for told in ("\n", CANARY) if told in outcome.text] == []
    absent = write(bench, "MEMORY.md")
    put(user, "MEMORY.md")
    assert write(bench, "MEMORY.md") == absent, "it reads alike whether it exists or not"
    (user / "AGENTS.md").symlink_to(outside / "secret.md")
    assert write(bench, "AGENTS.md").code == "refused"
    assert bench.pending() == {}


@pytest.mark.threat("T-PATH-09", control="folding")
def test_pending_names_alias_each_other_too_and_an_odd_one_is_not_repeated_to_the_model(bench):
    write(bench, "Topic/a.md")
    for path, code in (("topic/b.md", "exists_as"), ("Topic/A.md", "exists_as"), ("Topic/b.md", None)):
        assert write(bench, path).code == code
    for name in ("A\u0301|.md", "B\u200b.md", "ＦＯＯ.md"):  # noqa: RUF001
        put(bench.user, name)
    assert write(bench, "á-.md").verdict == "allow"
    outcome = write(bench, "foo.md")
    assert outcome.code == "exists_as"
    assert "an existing name" in outcome.text


def test_a_run_replaces_only_what_it_has_read_edited_or_created(tmp_path):
    bench = make_bench(tmp_path, must_read=True)
    for rel, content in (("a.md", "a"), ("b.md", "one"), ("bytes.md", b"\xff")):
        put(bench.user, rel, content)
    for rel, unlock, code in (
        ("a.md", partial(bench, "read_file", path="user/a.md"), None),
        ("b.md", partial(edit, bench, "one", "two", "b.md"), None),
        ("bytes.md", partial(bench, "read_file", path="user/bytes.md"), "not_read"),  # It could not be shown.
    ):
        assert write(bench, rel).code == "not_read"
        unlock()
        assert write(bench, rel).code == write(bench, rel, "y").code == code
    assert write(bench, "c.md").verdict == write(bench, "c.md", "y").verdict == "allow"
    assert write(make_bench(tmp_path, roots=bench.roots), "a.md").verdict == "allow", "it need not read"
    assert write(failing_bench(tmp_path, {b"a.md": errno.EACCES}), "a.md").code == "unreadable"


def test_a_run_may_write_so_many_files_and_bytes_and_a_quota_of_the_path_counts(tmp_path):
    quota = Quota(id="small", paths=("/user/small/**",), max_file_bytes=3)
    limits = {"files_written": 2, "write_bytes": 10}
    bench = make_bench(tmp_path, strict(limits=limits, quotas=(*strict().quotas, quota)))
    for path, content, code in (
        *(("small/a.md", "1234", "quota"), ("a.md", "12345", None), ("a.md", "1234567890", None)),
        *(("b.md", "1", "budget"), ("a.md", "1", None), ("b.md", "1", None), ("c.md", "1", "budget")),
    ):
        assert write(bench, path, content).code == code


def test_an_edit_whose_lines_may_not_be_shown_shows_none_or_is_not_made(tmp_path):
    bench = make_bench(tmp_path, strict(deny=[(["read"], ["/user/**/*.md"])]))
    put(bench.user, "a.md", "one secret line\n")
    done = edit(bench, "one", "two")
    assert (done.verdict, done.text) == ("allow", "changed user/a.md")
    bench = make_bench(tmp_path, strict(limits={"read_bytes": 20}), roots=bench.roots)
    assert edit(bench, "one", "two" * 20).code == "budget"
    assert bench.pending() == {}
