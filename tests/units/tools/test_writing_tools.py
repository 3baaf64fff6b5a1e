"""`write_file` and `edit`: proposals over the memory, and every reason not to take one."""

from __future__ import annotations

import errno
import hashlib

import pytest

from kit.content.secret_values import filled
from kit.memories import CANARY, SCOPES, make_roots, photograph, put, strict
from kit.tools.benches import Bench, failing_bench, make_bench
from muniment.names import MAX_FILE_BYTES
from muniment.policy.decide import Content, Quota
from muniment.tools.workbench import Workbench


@pytest.fixture
def bench(tmp_path):
    return make_bench(tmp_path)


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.threat("T-RUN-08", control="overlay_only")
def test_nothing_is_written_by_any_call(bench):
    put(bench.user, "a.md", "one\n")
    before = photograph(bench.user.parent)
    assert bench("write_file", path="user/new/b.md", content="b\n").text == "created user/new/b.md (2 bytes)"
    assert bench("write_file", path="user/a.md", content="two\n").text == "replaced user/a.md (4 bytes)"
    assert bench("edit", path="user/a.md", old_string="two", new_string="three").verdict == "allow"
    assert photograph(bench.user.parent) == before


def test_reads_see_pending_writes_first(bench):
    put(bench.user, "a.md", "old needle\n")
    bench("write_file", path="user/a.md", content="new needle\n")
    bench("write_file", path="user/topic/b.md", content="needle too\n")
    assert bench("read_file", path="user/a.md").text == "1\tnew needle"
    assert bench("ls", path="user").text == "a.md (11 bytes)\ntopic/\n[2 in all]"
    assert bench("ls", path="user/topic").text == "b.md (11 bytes)\n[1 in all]"
    assert bench("grep", pattern="needle").text == "user/a.md:1: new needle\nuser/topic/b.md:1: needle too"
    assert bench("grep", pattern="needle", path="user/topic/b.md").text == "user/topic/b.md:1: needle too"


@pytest.mark.threat("T-LEAK-01", control="secret_rules")
def test_a_secret_is_refused_wherever_it_would_be_written(bench):
    key = filled("ghp_{a62:36}", 1)
    put(bench.user, "a.md", "one\n")
    refused = [
        bench("write_file", path="user/b.md", content=f"a\n{key}\n"),
        bench("write_file", path=f"user/{key}.md", content="a\n"),
        bench("edit", path="user/a.md", old_string="one", new_string=key),
        bench("edit", path="user/a.md", old_string="one", new_string=f"{key[:9]}\n{key[9:]}"),
    ]
    assert {(outcome.code, outcome.rule) for outcome in refused} == {("content_rejected", "secrets")}
    assert not any(key in outcome.text for outcome in refused)
    assert bench.pending() == {}


@pytest.mark.threat("T-LEAK-01", control="secret_rules")
def test_a_policy_may_have_a_secret_taken_out_instead(tmp_path):
    bench = make_bench(tmp_path, strict(content=Content(secrets="redact")))
    key = filled("ghp_{a62:36}", 1)
    put(bench.user, "a.md", f"old {key}\n")
    created = bench("write_file", path="user/b.md", content=f"a {key}\n")
    assert created.text == ("created user/b.md (26 bytes); what looked like a secret was left out")
    changed = bench("edit", path="user/a.md", old_string="old", new_string="new")
    assert changed.text == "changed user/a.md; what looked like a secret was left out"
    assert [item.content for item in bench.pending().values()] == [
        b"new (redacted github-token)\n",
        b"a (redacted github-token)\n",
    ]
    assert bench("write_file", path="user/c.md", content=f"{key[:9]}\n{key[9:]}\n").rule == "secrets"
    assert bench("write_file", path="user/c.md", content="c\n").text == "created user/c.md (2 bytes)"


def test_what_is_only_proposed_stands_in_the_way_as_if_it_were_there(bench):
    bench("write_file", path="user/t.md/x.md", content="x\n")
    assert bench("write_file", path="user/t.md", content="x\n").code == "not_a_file"
    bench("write_file", path="user/a.md", content="x\n")
    assert bench("write_file", path="user/a.md/x.md", content="x\n").code == "not_a_file"
    assert list(bench.pending()) == ["user/a.md", "user/t.md/x.md"]


def test_a_new_file_claims_that_there_was_none(bench):
    bench("write_file", path="user/a.md", content="x\n")
    assert bench.claims() == {"user/a.md": None}
    assert bench.pending()["user/a.md"].base is None


def test_a_write_over_a_pending_one_keeps_the_base_of_the_first(bench):
    put(bench.user, "a.md", "zero\n")
    for content in ("one\n", "two\n"):
        bench("write_file", path="user/a.md", content=content)
    bench("edit", path="user/a.md", old_string="two", new_string="three")
    (item,) = bench.pending().values()
    assert (item.base, item.content) == (sha("zero\n"), b"three\n")
    assert bench.claims() == {"user/a.md": sha("zero\n")}
    bench("write_file", path="user/new.md", content="one\n")
    bench("edit", path="user/new.md", old_string="one", new_string="two")


def test_a_pending_new_file_stays_new_when_it_is_edited(tmp_path):
    bench = make_bench(tmp_path)
    bench("write_file", path="user/new.md", content="one\n")
    assert bench("edit", path="user/new.md", old_string="one", new_string="two").verdict == "allow"
    assert bench.pending()["user/new.md"].base is None


def test_an_edit_claims_what_it_found(bench):
    put(bench.user, "a.md", "one\n")
    bench("edit", path="user/a.md", old_string="one", new_string="two")
    assert bench.claims() == {"user/a.md": sha("one\n")}


def test_an_edit_keeps_crlf_and_shows_the_changed_lines(bench):
    put(bench.user, "a.md", "one\r\ntwo\r\nthree\r\n")
    outcome = bench("edit", path="user/a.md", old_string="two", new_string="2\r\n2½")
    assert outcome.text == "changed user/a.md\n2\t2\n3\t2½"
    assert bench.pending()["user/a.md"].content == "one\r\n2\r\n2½\r\nthree\r\n".encode()


def test_an_edit_can_replace_all_and_shows_only_so_much(bench):
    put(bench.user, "a.md", "a b a\n" * 10)
    assert (
        bench("edit", path="user/a.md", old_string="a", new_string="c", replace_all=True).verdict == "allow"
    )
    assert bench.pending()["user/a.md"].content == b"c b c\n" * 10
    shown = bench(
        "edit", path="user/a.md", old_string="c b c\nc b c", new_string="z\n" * 300, replace_all=True
    )
    assert len(shown.text.split("\n")) < 60


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("absent", "x", "no_match"),
        ("a", "x", "not_unique"),
        ("aa", "x", "not_unique"),
        ("one", "one", "bad_arguments"),
        ("", "x", "bad_arguments"),
        ("one", "\u202ex", "content_rejected"),
        ("one", "\x1b[31m", "content_rejected"),
        ("one", "\0", "not_text"),
        ("one", "\ud800", "not_text"),
        ("one", "x" * 140_000, "quota"),
        ("one", "x" * MAX_FILE_BYTES, "too_large"),
        ("one", "x" * (MAX_FILE_BYTES + 1), "too_large"),
    ],
)
def test_every_way_not_to_edit_has_its_code(bench, old, new, code):
    put(bench.user, "a.md", "one aaa\n")
    outcome = bench("edit", path="user/a.md", old_string=old, new_string=new)
    assert outcome.code == code
    assert "\n" not in outcome.text
    assert bench.pending() == {}


def test_an_edit_that_would_blow_up_is_refused_before_it_is_made(bench):
    put(bench.user, "a.md", "a" * 100_000)
    outcome = bench("edit", path="user/a.md", old_string="a", new_string="b" * 1_000_000, replace_all=True)
    assert outcome.code == "too_large"


def test_bytes_count_not_characters(bench):
    assert bench("write_file", path="user/a.md", content="é" * 600_000).code == "too_large"
    assert bench("write_file", path="user/a.md", content="é" * 70_000).code == "quota"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("user/link.md", "path_escape"),
        ("user/hard.md", "path_escape"),
        ("user/linked/new.md", "path_escape"),
        ("user/../x.md", "path_escape"),
        ("/etc/passwd", "path_escape"),
        ("user", "not_a_file"),
        ("user/topic.md", "not_a_file"),
        ("user/a.md/b.md", "not_a_file"),
        ("user/A.md", "exists_as"),
        ("user/Topic.md", "exists_as"),
        ("user/TOPIC.MD/x.md", "exists_as"),
        ("user/x.txt", "refused"),
        ("user/x.MD", "refused"),
        ("user/.md", "refused"),
        ("user/a/b/c.md", "refused"),
        ("user/MEMORY.md", "refused"),
        ("user/memory.md", "refused"),
        ("user/pinned/a.md", "refused"),
        ("user/index/a.md", "refused"),
        ("user/CLAUDE.md", "refused"),
        ("team/a.md", "refused"),
        ("user/aux.md", "bad_name"),
        ("user/a\u200b.md", "bad_name"),
    ],
)
def test_every_way_not_to_write_has_its_code(bench, path, code):
    user, outside = bench.user, bench.user.parent / "outside"
    put(user, "a.md")
    put(user, "topic.md/x.md")
    put(user, "pinned/a.md")
    (user / "link.md").symlink_to(outside / "secret.md")
    (user / "hard.md").hardlink_to(outside / "secret.md")
    (user / "linked").symlink_to(outside)
    outcome = bench("write_file", path=path, content="x\n")
    assert outcome.code == code, outcome.text
    assert "\n" not in outcome.text
    assert CANARY not in outcome.text
    assert bench.pending() == {}


def test_only_a_name_in_lower_case_md_can_be_created_even_where_a_policy_grants_others(tmp_path):
    bench = make_bench(tmp_path, strict(allow=[(["create", "modify", "read", "list"], ["/user/**/*"])]))
    assert bench("write_file", path="user/x.txt", content="x").code == "bad_name"
    put(bench.user, "y.txt", "y\n")
    assert bench("write_file", path="user/y.txt", content="x").verdict == "allow"


def test_an_odd_name_that_would_be_aliased_is_not_repeated_to_the_model(bench):
    put(bench.user, "A\u0301|.md")
    put(bench.user, "B\u200b.md", "x")
    assert bench("write_file", path="user/á-.md", content="x").verdict == "allow"
    put(bench.user, "ＦＯＯ.md")  # noqa: RUF001
    outcome = bench("write_file", path="user/foo.md", content="x")
    assert outcome.code == "exists_as"
    assert "an existing name" in outcome.text


@pytest.mark.threat("T-PATH-09", control="folding")
def test_pending_names_alias_each_other_too(bench):
    bench("write_file", path="user/Topic/a.md", content="x")
    assert bench("write_file", path="user/topic/b.md", content="x").code == "exists_as"
    assert bench("write_file", path="user/Topic/A.md", content="x").code == "exists_as"
    assert bench("write_file", path="user/Topic/b.md", content="x").verdict == "allow"


def test_what_the_system_does_not_let_us_read_is_not_replaced(tmp_path):
    put(make_roots(tmp_path)["user"], "a.md")
    bench = failing_bench(tmp_path, {b"a.md": errno.EACCES})
    assert bench("write_file", path="user/a.md", content="x").code == "unreadable"


@pytest.mark.parametrize("must_read", [True, False])
def test_a_run_replaces_only_what_it_has_read(tmp_path, must_read):
    bench = make_bench(tmp_path, must_read=must_read)
    put(bench.user, "a.md")
    outcome = bench("write_file", path="user/a.md", content="x")
    assert outcome.code == ("not_read" if must_read else None)
    bench("read_file", path="user/a.md")
    assert bench("write_file", path="user/a.md", content="x").verdict == "allow"
    assert bench("write_file", path="user/a.md", content="y").verdict == "allow"


def test_a_run_may_replace_what_it_edited_or_created(tmp_path):
    bench = make_bench(tmp_path, must_read=True)
    put(bench.user, "a.md", "one\n")
    bench("edit", path="user/a.md", old_string="one", new_string="two")
    assert bench("write_file", path="user/a.md", content="x").verdict == "allow"
    bench("write_file", path="user/b.md", content="x")
    assert bench("write_file", path="user/b.md", content="y").verdict == "allow"


def test_a_run_may_write_so_many_files_and_bytes(tmp_path):
    bench = make_bench(tmp_path, strict(limits={"files_written": 2, "write_bytes": 10}))
    assert bench("write_file", path="user/a.md", content="12345").verdict == "allow"
    assert bench("write_file", path="user/a.md", content="1234567890").verdict == "allow"
    assert bench("write_file", path="user/b.md", content="1").code == "budget"
    assert bench("write_file", path="user/a.md", content="1").verdict == "allow"
    assert bench("write_file", path="user/b.md", content="1").verdict == "allow"
    assert bench("write_file", path="user/c.md", content="1").code == "budget"


def test_a_quota_of_the_path_counts(tmp_path):
    quota = Quota(id="small", paths=("/user/small/**",), max_file_bytes=3)
    bench = make_bench(tmp_path, strict(quotas=(*strict().quotas, quota)))
    assert bench("write_file", path="user/small/a.md", content="1234").code == "quota"
    assert bench("write_file", path="user/other/a.md", content="1234").verdict == "allow"


def test_a_policy_that_only_lets_create_does_not_let_edit(tmp_path):
    bench = make_bench(tmp_path, strict(deny=[(["modify"], ["/user/"])]))
    put(bench.user, "a.md", "one\n")
    assert bench("edit", path="user/a.md", old_string="one", new_string="two").code == "refused"
    assert bench("write_file", path="user/a.md", content="x").code == "refused"
    assert bench("write_file", path="user/b.md", content="x").verdict == "allow"
    assert bench("write_file", path="user/b.md", content="y").verdict == "allow"


def test_a_run_without_roots_creates_and_sees_nothing(tmp_path):
    put(make_roots(tmp_path)["user"], "a.md", CANARY)
    bench = Bench(Workbench(strict(), SCOPES, {}, must_read=True), {})
    assert bench("read_file", path="user/a.md").code == "not_found"
    assert bench("ls", path="user").text == "[0 in all]"
    assert bench("ls", path="user/topic").text == "[0 in all]"
    assert bench("grep", pattern=".").text == "no matches"
    assert bench("write_file", path="user/a.md", content="mine\n").text.startswith("created")


def test_a_name_that_may_never_be_written_reads_alike_whether_it_exists_or_not(bench):
    absent = bench("write_file", path="user/MEMORY.md", content="x\n")
    put(bench.user, "MEMORY.md")
    assert bench("write_file", path="user/MEMORY.md", content="x\n") == absent
    (bench.user / "AGENTS.md").symlink_to(bench.user.parent / "outside" / "secret.md")
    assert bench("write_file", path="user/AGENTS.md", content="x\n").code == "refused"


def test_an_edit_shows_no_lines_to_a_run_that_may_not_read_them(tmp_path):
    bench = make_bench(tmp_path, strict(deny=[(["read"], ["/user/**/*.md"])]))
    put(bench.user, "a.md", "one secret line\n")
    done = bench("edit", path="user/a.md", old_string="one", new_string="two")
    assert (done.verdict, done.text) == ("allow", "changed user/a.md")


def test_an_edit_that_may_not_be_shown_is_not_made(tmp_path):
    bench = make_bench(tmp_path, strict(limits={"read_bytes": 20}))
    put(bench.user, "a.md", "one\n")
    assert bench("edit", path="user/a.md", old_string="one", new_string="two" * 20).code == "budget"
    assert bench.pending() == {}
