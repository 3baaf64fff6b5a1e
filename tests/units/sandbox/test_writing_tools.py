"""`write_file` and `edit`: proposals over the memory, and every reason to reject one."""

import errno
import hashlib
from functools import partial

import pytest

from kit.content.secret_values import fill_example
from kit.memories import CANARY, make_strict_policy, take_snapshot, write_file
from kit.sandbox.benches import make_bench, make_failing_bench
from muniment.kernel.decide import Content, Quota
from muniment.kernel.names import MAX_FILE_BYTES


@pytest.fixture
def bench(tmp_path):
    return make_bench(tmp_path)


def compute_sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def call_write(bench, path, content="x"):
    return bench("write_file", path=f"user/{path}", content=content)


def call_edit(bench, old, new, path="a.md", **more):
    return bench("edit", path=f"user/{path}", old_string=old, new_string=new, **more)


@pytest.mark.threat("T-RUN-08", control="overlay_only")
def test_no_call_writes_to_disk(bench):
    write_file(bench.user, "a.md", "one\n")
    before = take_snapshot(bench.user.parent)
    assert call_write(bench, "new/b.md", "b\n").text == "created user/new/b.md (2 bytes)"
    assert call_write(bench, "a.md", "two\n").text == "replaced user/a.md (4 bytes)"
    assert call_edit(bench, "two", "three").verdict == "allow"
    assert take_snapshot(bench.user.parent) == before


def test_reads_see_pending_writes_and_their_names_are_taken(bench):
    write_file(bench.user, "a.md", "old needle\n")
    call_write(bench, "a.md", "new needle\n")
    call_write(bench, "topic/b.md", "needle too\n")
    assert bench("read_file", path="user/a.md").text == "1\tnew needle"
    assert bench("ls", path="user").text == "a.md (11 bytes)\ntopic/\n[2 in all]"
    assert bench("ls", path="user/topic").text == "b.md (11 bytes)\n[1 in all]"
    assert bench("grep", pattern="needle").text == "user/a.md:1: new needle\nuser/topic/b.md:1: needle too"
    assert bench("grep", pattern="needle", path="user/topic/b.md").text == "user/topic/b.md:1: needle too"
    call_write(bench, "t.md/x.md")
    for path in ("t.md", "a.md/x.md"):
        assert call_write(bench, path).code == "not_a_file"
    assert list(bench.list_pending()) == ["user/a.md", "user/t.md/x.md", "user/topic/b.md"]


@pytest.mark.threat("T-LEAK-01", control="secret_rules")
def test_secret_is_rejected_or_redacted_by_the_policy(bench, tmp_path):
    key = fill_example("ghp_{a62:36}", 1)
    write_file(bench.user, "a.md", "one\n")
    refused = [call_write(bench, "b.md", f"a\n{key}\n"), call_write(bench, f"{key}.md", "a\n")]
    refused += [call_edit(bench, "one", text) for text in (key, f"{key[:9]}\n{key[9:]}")]
    assert {(outcome.code, outcome.rule) for outcome in refused} == {("content_rejected", "secrets")}
    assert not any(key in outcome.text for outcome in refused)
    assert bench.list_pending() == {}
    bench = make_bench(tmp_path / "redacting", make_strict_policy(content=Content(secrets="redact")))
    write_file(bench.user, "a.md", f"old {key}\n")
    notice = "; a possible secret was removed"
    assert call_write(bench, "b.md", f"a {key}\n").text == f"created user/b.md (26 bytes){notice}"
    assert call_edit(bench, "old", "new").text == f"changed user/a.md{notice}"
    contents = [b"new (redacted github-token)\n", b"a (redacted github-token)\n"]
    assert [item.after for item in bench.list_pending().values()] == contents
    assert call_write(bench, "c.md", f"{key[:9]}\n{key[9:]}\n").rule == "secrets"
    assert call_write(bench, "c.md", "c\n").text == "created user/c.md (2 bytes)"


def test_first_write_or_edit_of_a_file_sets_its_claim(bench):
    write_file(bench.user, "a.md", "zero\n")
    write_file(bench.user, "b.md", "one\n")
    for content in ("one\n", "two\n"):
        call_write(bench, "a.md", content)
    call_edit(bench, "two", "three")
    call_edit(bench, "one", "two", "b.md")
    call_write(bench, "new.md", "one\n")
    assert call_edit(bench, "one", "two", "new.md").verdict == "allow"
    assert bench.list_claims() == {
        "user/a.md": compute_sha("zero\n"),
        "user/b.md": compute_sha("one\n"),
        "user/new.md": None,
    }
    assert {path: item.base for path, item in bench.list_pending().items()} == bench.list_claims()
    assert [item.after for item in bench.list_pending().values()] == [b"three\n", b"two\n", b"two\n"]


def test_edit_keeps_crlf_shows_changes_and_can_replace_all(bench):
    write_file(bench.user, "a.md", "one\r\ntwo\r\nthree\r\n")
    assert call_edit(bench, "two", "2\r\n2½").text == "changed user/a.md\n2\t2\n3\t2½"
    assert bench.list_pending()["user/a.md"].after == "one\r\n2\r\n2½\r\nthree\r\n".encode()
    write_file(bench.user, "b.md", "a b a\n" * 10)
    assert call_edit(bench, "a", "c", "b.md", replace_all=True).verdict == "allow"
    assert bench.list_pending()["user/b.md"].after == b"c b c\n" * 10
    assert len(call_edit(bench, "c b c\nc b c", "z\n" * 300, "b.md", replace_all=True).text.split("\n")) < 60


UNEDITED = [
    *(("absent", "x", "no_match"), ("a", "x", "not_unique"), ("aa", "x", "not_unique")),
    *(("one", "one", "bad_arguments"), ("", "x", "bad_arguments")),
    *(("one", "\u202ex", "content_rejected"), ("one", "\x1b[31m", "content_rejected")),
    *(("one", "\0", "not_text"), ("one", "\ud800", "not_text"), ("one", "x" * 140_000, "quota")),
    *(("one", "x" * MAX_FILE_BYTES, "too_large"), ("one", "x" * (MAX_FILE_BYTES + 1), "too_large")),
]


def test_every_invalid_edit_has_its_code_and_bytes_are_counted(bench):
    write_file(bench.user, "a.md", "one aaa\n")
    for old, new, code in UNEDITED:
        outcome = call_edit(bench, old, new)
        assert outcome.code == code, (old, new[:9])
        assert "\n" not in outcome.text
    write_file(bench.user, "b.md", "a" * 100_000)
    assert call_edit(bench, "a", "b" * 1_000_000, "b.md", replace_all=True).code == "too_large", (
        "the result would be too large"
    )
    assert call_write(bench, "a.md", "é" * 600_000).code == "too_large"
    assert call_write(bench, "a.md", "é" * 70_000).code == "quota"
    assert bench.list_pending() == {}


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


def test_every_invalid_write_has_its_code(bench):
    user, outside = bench.user, bench.user.parent / "outside"
    for rel in ("a.md", "topic.md/x.md", "pinned/a.md"):
        write_file(user, rel)
    (user / "link.md").symlink_to(outside / "secret.md")
    (user / "hard.md").hardlink_to(outside / "secret.md")
    (user / "linked").symlink_to(outside)
    for code, path in ((code, path) for code, paths in UNWRITTEN.items() for path in paths):
        outcome = bench("write_file", path=path, content="x\n")
        assert outcome.code == code, (path, outcome.text)
        assert [fragment for fragment in ("\n", CANARY) if fragment in outcome.text] == []
    absent = call_write(bench, "MEMORY.md")
    write_file(user, "MEMORY.md")
    assert call_write(bench, "MEMORY.md") == absent, "the answer is equal whether it exists or not"
    (user / "AGENTS.md").symlink_to(outside / "secret.md")
    assert call_write(bench, "AGENTS.md").code == "refused"
    assert bench.list_pending() == {}


@pytest.mark.threat("T-PATH-09", control="folding")
def test_pending_names_collide_too_and_odd_ones_are_not_shown(bench):
    call_write(bench, "Topic/a.md")
    for path, code in (("topic/b.md", "exists_as"), ("Topic/A.md", "exists_as"), ("Topic/b.md", None)):
        assert call_write(bench, path).code == code
    for name in ("A\u0301|.md", "B\u200b.md", "ＦＯＯ.md"):  # noqa: RUF001
        write_file(bench.user, name)
    assert call_write(bench, "á-.md").verdict == "allow"
    outcome = call_write(bench, "foo.md")
    assert outcome.code == "exists_as"
    assert "an existing name" in outcome.text


def test_run_replaces_only_files_it_has_read_edited_or_created(tmp_path):
    bench = make_bench(tmp_path, must_read=True)
    for rel, content in (("a.md", "a"), ("b.md", "one"), ("bytes.md", b"\xff")):
        write_file(bench.user, rel, content)
    for rel, unlock, code in (
        ("a.md", partial(bench, "read_file", path="user/a.md"), None),
        ("b.md", partial(call_edit, bench, "one", "two", "b.md"), None),
        ("bytes.md", partial(bench, "read_file", path="user/bytes.md"), "not_read"),  # It cannot be shown.
    ):
        assert call_write(bench, rel).code == "not_read"
        unlock()
        assert call_write(bench, rel).code == call_write(bench, rel, "y").code == code
    assert call_write(bench, "c.md").verdict == call_write(bench, "c.md", "y").verdict == "allow"
    assert call_write(make_bench(tmp_path, roots=bench.roots), "a.md").verdict == "allow", (
        "reading is not required"
    )
    assert call_write(make_failing_bench(tmp_path, {b"a.md": errno.EACCES}), "a.md").code == "unreadable"


def test_run_is_limited_in_files_bytes_and_path_quotas(tmp_path):
    quota = Quota(id="small", paths=("/user/small/**",), max_file_bytes=3)
    limits = {"files_written": 2, "write_bytes": 10}
    bench = make_bench(
        tmp_path, make_strict_policy(limits=limits, quotas=(*make_strict_policy().quotas, quota))
    )
    for path, content, code in (
        *(("small/a.md", "1234", "quota"), ("a.md", "12345", None), ("a.md", "1234567890", None)),
        *(("b.md", "1", "budget"), ("a.md", "1", None), ("b.md", "1", None), ("c.md", "1", "budget")),
    ):
        assert call_write(bench, path, content).code == code


def test_edit_does_not_show_lines_that_may_not_be_read(tmp_path):
    bench = make_bench(tmp_path, make_strict_policy(deny=[(["read"], ["/user/**/*.md"])]))
    write_file(bench.user, "a.md", "one secret line\n")
    done = call_edit(bench, "one", "two")
    assert (done.verdict, done.text) == ("allow", "changed user/a.md")
    bench = make_bench(tmp_path, make_strict_policy(limits={"read_bytes": 20}), roots=bench.roots)
    assert call_edit(bench, "one", "two" * 20).code == "budget"
    assert bench.list_pending() == {}
