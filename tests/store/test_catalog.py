"""The catalog's rows: what is an entry, what is odd, what is counted, and what never gets into a row."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import muniment
from muniment.errors import ManagedMemoryUnavailable
from muniment.names import MAX_DEPTH, MAX_FILE_BYTES, Trust
from muniment.store import catalog
from muniment.store.catalog import CatalogEntry, Odd, ScopeUsage, refresh
from muniment.store.rows import Assessed, row_of
from store.catalogued import KEY, as_nobody, catalogued, much_later

CANARY = "zqcanaryzq"


@pytest.fixture
def root(tmp_path):
    with catalogued(tmp_path) as kept:
        yield kept


def key(rel):
    return hashlib.sha256(rel.encode()).hexdigest()


def test_an_entry_is_told_with_all_that_its_file_says(root):
    text = b"---\nname: B\ndescription: D\ntype: project\nkeywords: [k, 'l m']\nother\n---\nbody"
    root.put("topic/b.md", text)
    root.answers["topic/b.md"] = Assessed(Trust.AGENT, expires="2030-01-01T00:00:00Z")
    view = root.refresh()
    assert view.entry("topic/b.md") == CatalogEntry(
        rel="topic/b.md",
        size=len(text),
        digest=hashlib.sha256(text).hexdigest(),
        name="B",
        description="D",
        type="project",
        keywords=("k", "l m"),
        trust=Trust.AGENT,
        expires="2030-01-01T00:00:00Z",
        readable=True,
        held=None,
        note="line 6 is not understood",
    )
    assert view.entries() == (view.entry("topic/b.md"),)
    assert view.entry("b.md") is None
    assert (view.scope, view.key, view.complete) == ("user", KEY, True)


def test_entries_are_sorted_by_path_and_names_told_by_directory(root):
    for rel in ("b.md", "a/x.md", "a/note.txt", "a-b/y.md", "a/deeper/z.md"):
        root.put(rel)
    view = root.refresh()
    assert [entry.rel for entry in view.entries()] == ["a-b/y.md", "a/deeper/z.md", "a/x.md", "b.md"]
    assert view.directories() == ("", "a", "a-b", "a/deeper")
    assert view.names("") == {"a", "a-b", "b.md"}
    assert view.names("a") == {"deeper", "note.txt", "x.md"}
    assert view.names("a/x.md") is view.names("gone") is None
    assert root.differences(view) == {}


def test_the_index_and_dot_names_are_no_entries_but_stand_in_the_way(root):
    for rel in (
        "MEMORY.md",
        "index/a.md",
        ".git/x.md",
        ".h.md",
        "sub/MEMORY.md",
        "sub/index/b.md",
        "sub/.x/c.md",
    ):
        root.put(rel)
    view = root.refresh()
    assert [entry.rel for entry in view.entries()] == ["sub/MEMORY.md", "sub/index/b.md"]
    assert view.names("") == {".git", ".h.md", "MEMORY.md", "index", "sub"}
    assert view.directories() == ("", "sub", "sub/index")
    assert view.odd() == ()
    assert view.complete


def test_what_is_no_entry_is_odd_with_a_reason(root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text(CANARY)
    root.put("ok.md")
    (root.top / "link.md").symlink_to(outside / "secret.md")
    (root.top / "linked").symlink_to(outside)
    os.link(outside / "secret.md", root.top / "hard.md")
    os.mkfifo(root.top / "pipe.md")
    root.put("new\nline.md")
    root.put("a\u202eb/x.md")
    Path(os.fsdecode(os.fsencode(root.top) + b"/Z\xfcrich.md")).write_text("x")
    root.put("NUL.md")
    root.put("/".join("d" * (MAX_DEPTH - 1)) + "/x.md")
    root.put("/".join(["l" * 250] * 4) + "/longer-still-than-that.md")
    view = root.refresh()
    assert [entry.rel for entry in view.entries()] == ["ok.md"]
    assert root.differences(view) == {}
    odd = {item.path[:20]: item.reason for item in view.odd()}
    assert odd["link.md"] == odd["linked"] == odd["pipe.md"] == "a link or special file"
    assert odd["hard.md"] == "leads outside the memory (hardlink)"
    assert set(odd) >= {"new\\u{a}line.md", "a\\u{202e}b", "Z\\u{dcfc}rich.md", "NUL.md"}
    assert odd["d/d/d/d/d/d/d/d/x.md"] == f"deeper than {MAX_DEPTH} levels"
    assert odd["l" * 20] == "a path longer than 1024 bytes"
    assert all(path.isprintable() for path in odd)
    assert "Z\udcfcrich.md" in view.names("")
    assert view.complete
    assert CANARY not in root.everything_stored()


def test_a_file_above_the_limit_is_listed_as_unreadable(root):
    root.put("large.md", b"# Large\n" + b"x" * MAX_FILE_BYTES)
    root.put("just.md", b"x" * MAX_FILE_BYTES)
    view = root.refresh()
    large = view.entry("large.md")
    assert (large.readable, large.digest, large.size) == (False, None, MAX_FILE_BYTES + 8)
    assert (large.name, large.description, large.trust) == ("large", "", Trust.EXTERNAL)
    assert large.note == f"the file is larger than {MAX_FILE_BYTES} bytes"
    assert view.entry("just.md").readable
    assert root.asked == ["just.md"]
    assert root.differences(view) == {}
    assert root.found("large") == []
    assert root.found("just") == ["just.md"]
    assert root.lines()[key("large.md")] == "- [large.md](large.md) — unreadable\n"


def test_a_file_without_permission_is_listed_as_unreadable_until_it_has_it(root):
    root.put("a/locked.md", "# Locked\n")
    root.put("a/open.md", "# Open\n")
    (root.top / "a/locked.md").chmod(0)
    with as_nobody(root.top):
        view = root.refresh()
    locked = view.entry("a/locked.md")
    assert (locked.readable, locked.size, locked.note) == (False, 9, "the file cannot be read")
    assert view.complete
    assert root.asked == ["a/open.md"]
    root.relisted()
    (root.top / "a/locked.md").chmod(0o600)
    with as_nobody(root.top):
        assert root.refresh(sweep=True).entry("a/locked.md").name == "Locked"
    assert root.relisted() == {key("a/locked.md")}


def test_a_file_in_a_directory_that_may_be_listed_but_not_entered_is_unreadable(root):
    root.put("a/x.md", "# X\n")
    (root.top / "a").chmod(0o400)
    with as_nobody(root.top):
        view = root.refresh()
    assert [(entry.rel, entry.size, entry.readable) for entry in view.entries()] == [("a/x.md", 0, False)]
    (root.top / "a").chmod(0o700)
    with as_nobody(root.top):
        assert root.refresh().entry("a/x.md").readable


def test_nothing_of_a_held_entry_is_in_any_row(root):
    text = f"---\nname: N{CANARY}\ndescription: D{CANARY}\nkeywords: [K{CANARY}]\nx{CANARY}\n---\nB{CANARY}"
    root.put("topic/held.md", text)
    root.answers["topic/held.md"] = Assessed(Trust.WORKSPACE, held="instructions")
    held = root.refresh().entry("topic/held.md")
    assert CANARY not in root.everything_stored()
    assert (held.held, held.readable, held.trust) == ("instructions", True, Trust.WORKSPACE)
    assert (held.name, held.description, held.keywords, held.note) == ("held", "", (), "")
    assert held.digest == hashlib.sha256(text.encode()).hexdigest()
    assert root.catalog.rows("SELECT * FROM text") == []
    assert root.lines() == {key("topic/held.md"): "- [topic/held.md](topic/held.md) — held\n"}


def test_what_becomes_held_leaves_its_rows_and_what_is_released_comes_back(root):
    root.put("a.md", f"# {CANARY}\n")
    root.refresh()
    assert root.found(CANARY) == ["a.md"]
    root.answers["a.md"], root.basis = Assessed(Trust.OWNER, held="secret"), "second"
    root.refresh()
    assert root.found(CANARY) == []
    assert root.catalog.rows("SELECT name, line FROM entry WHERE line || name LIKE ?", (f"%{CANARY}%",)) == []
    root.answers.clear()
    root.basis = "third"
    root.refresh()
    assert root.found(CANARY) == ["a.md"]


def test_entries_are_found_by_what_they_say_and_where_they_are(root):
    root.put("deploy/kube-notes.md", "---\nname: Rollout\nkeywords: [helm]\n---\nWe drain nodes first.\n")
    root.put("东京/计划.md", "# 旅行\n下周去东京塔。\n")
    root.refresh()
    for words in ("rollouts", "helm", "drained", "deploy", "kube", "NODE"):
        assert root.found(words) == ["deploy/kube-notes.md"], words
    assert root.found("京塔") == root.found("旅行") == root.found("计划") == ["东京/计划.md"]
    root.put("deploy/kube-notes.md", "# Else\nwholly\n")
    root.refresh()
    assert root.found("helm OR drain") == []
    assert root.found("wholly") == ["deploy/kube-notes.md"]
    (root.top / "deploy/kube-notes.md").unlink()
    root.refresh()
    assert root.found("wholly") == []


def test_every_line_that_comes_changes_or_goes_is_relisted_and_no_other(root):
    for rel in ("a.md", "topic/b.md", "topic/c.md"):
        root.put(rel, f"---\nname: {rel}\ndescription: as it was\n---\nbody")
    root.refresh()
    assert root.relisted() == {key("a.md"), key("topic/b.md"), key("topic/c.md")}
    root.put("a.md", "---\nname: a.md\ndescription: as it was\n---\nanother body")
    root.put("topic/b.md", "---\nname: another\ndescription: as it was\n---\nbody")
    root.refresh()
    assert root.relisted() == {key("topic/b.md")}
    (root.top / "topic/b.md").unlink()
    root.refresh()
    assert root.relisted() == {key("topic/b.md")}
    (root.top / "topic/c.md").unlink()
    (root.top / "topic").rmdir()
    root.refresh()
    assert root.relisted() == {key("topic/c.md")}
    assert {(topic, rel) for topic, rel in root.catalog.rows("SELECT topic, rel FROM entry")} == {
        ("", "a.md")
    }


def test_a_trust_that_changes_with_the_basis_changes_the_line(root):
    root.clock = much_later
    root.put("a.md", "---\nname: A\ndescription: D\n---\n")
    root.put("b.md", "---\nname: B\ndescription: D\n---\n")
    root.refresh()
    root.relisted()
    root.answers["b.md"] = Assessed(Trust.EXTERNAL)
    assert root.refresh().entry("b.md").trust is Trust.OWNER
    root.basis = "second"
    assert root.refresh().entry("b.md").trust is Trust.EXTERNAL
    assert sorted(root.asked) == ["a.md", "b.md"]
    assert root.relisted() == {key("b.md")}
    assert root.found("B") == ["b.md"]


def test_quotas_count_what_they_are_asked_about(root):
    for rel, size in (("a.md", 10), ("topic/b.md", 20), ("topic/c.md", 40)):
        root.put(rel, "x" * size)
    view = root.refresh()
    assert view.usage() == ScopeUsage(3, 70)
    assert view.usage(lambda rel: rel.startswith("topic/")) == ScopeUsage(2, 60)
    assert view.usage(lambda _: False) == ScopeUsage(0, 0)


def test_an_empty_root_has_an_empty_complete_view(root):
    view = root.refresh()
    assert view.complete
    assert (view.entries(), view.odd(), view.names(""), view.usage()) == (
        (),
        (),
        frozenset(),
        ScopeUsage(0, 0),
    )


@pytest.mark.parametrize(("limit", "complete"), [(5, True), (4, False), (0, False)])
def test_names_beyond_the_limit_make_the_view_incomplete_until_they_are_gone(
    root, monkeypatch, limit, complete
):
    monkeypatch.setattr(catalog, "MAX_NAMES", limit)
    for rel in ("a/1.md", "a/2.md", "b.md", "c.md"):
        root.put(rel)
    view = root.refresh()
    assert view.complete is complete
    assert (view.odd() == ()) is complete
    monkeypatch.undo()
    view = root.refresh()
    assert root.differences(view) == {}


def test_a_directory_that_grows_beyond_the_limit_is_passed_over_whole(root, monkeypatch):
    monkeypatch.setattr(catalog, "MAX_NAMES", 3)
    for rel in ("a.md", "topic/1.md"):
        root.put(rel)
    assert root.refresh().complete
    root.put("topic/2.md")
    view = root.refresh()
    assert [entry.rel for entry in view.entries()] == ["a.md"]
    assert view.odd() == (Odd("topic", "the memory holds more than 3 names"),)
    assert not view.complete
    (root.top / "topic/1.md").unlink()
    assert root.rels() == ["a.md", "topic/2.md"]


def test_a_directory_of_too_many_names_cannot_be_listed(root, monkeypatch):
    monkeypatch.setattr("muniment.confine.root.MAX_ENTRIES", 2)
    for name in "123":
        root.put(f"topic/{name}.md")
    view = root.refresh()
    assert view.odd() == (Odd("topic", "this directory could not be listed"),)
    assert (view.complete, view.entries(), view.names("topic")) == (False, (), None)


def test_rows_are_handed_over_in_pieces_and_are_the_same(root, monkeypatch):
    monkeypatch.setattr(catalog, "PENDING_CHARS", 0)
    for number in range(20):
        root.put(f"t{number % 3}/{number}.md", f"# Entry {number}\nword{number}\n")
    assert root.differences(root.refresh()) == {}
    for number in range(0, 20, 2):
        root.put(f"t{number % 3}/{number}.md", f"# Again {number}\n")
    (root.top / "t1/1.md").unlink()
    assert root.differences(root.refresh()) == {}
    assert root.found("word3") == ["t0/3.md"]
    assert root.found("word2") == []


def test_no_more_text_waits_than_the_limit(root, monkeypatch):
    handed_over = []

    def assess(_rel, _digest, _data):
        handed_over.extend(root.catalog.rows("SELECT count(*) FROM entry"))
        return Assessed(Trust.OWNER)

    for number in range(4):
        root.put(f"{number}.md", "x" * 600)
    monkeypatch.setattr(catalog, "PENDING_CHARS", 3_000)
    refresh(root.catalog, KEY, root.bound, assess, basis="")
    assert handed_over == [(0,), (0,), (2,), (2,)]


def test_two_roots_in_one_catalog_do_not_touch_each_other(root, tmp_path):
    (tmp_path / "second").mkdir()
    with catalogued(tmp_path / "second") as other:
        root.put("topic/a.md", "# First\n")
        other.put("topic/a.md", "# Second\n")
        one = root.refresh()
        two = refresh(root.catalog, "other", other.bound, other.assess, basis="")
        assert (one.entry("topic/a.md").name, two.entry("topic/a.md").name) == ("First", "Second")
        (other.top / "topic/a.md").unlink()
        (other.top / "topic").rmdir()
        two = refresh(root.catalog, "other", other.bound, other.assess, basis="", sweep=True)
        assert two.entries() == ()
        assert root.differences(root.refresh(sweep=True)) == {}


def test_times_of_any_year_can_be_recorded(root):
    for name, seconds in (("future.md", 2**33), ("past.md", -(2**31))):
        os.utime(root.put(name), (seconds, seconds))
    os.utime(root.put("t/a.md").parent, (2**33, 2**33))
    view = root.refresh()
    assert root.differences(view) == {}
    view = root.refresh(sweep=True)
    assert root.differences(view) == {}


@pytest.mark.parametrize(("seconds", "racy"), [(-0.04, True), (-0.06, False), (0, True), (3_600, True)])
def test_what_changed_just_before_the_look_or_after_it_proves_nothing(seconds, racy):
    now = 1_700_000_000 * 10**9 + 500
    changed = now + int(seconds * 10**9)
    for times in ((changed, now - 10**15), (now - 10**15, changed)):
        status = os.stat_result(range(10), {"st_mtime_ns": times[0], "st_ctime_ns": times[1]})
        assert catalog.is_racy(status, now) is racy


@pytest.mark.parametrize(("seconds", "racy"), [(-2, True), (-3, False)])
def test_times_of_whole_seconds_prove_less(seconds, racy):
    now = 1_700_000_000 * 10**9 + 500
    changed = now - 500 + seconds * 10**9
    status = os.stat_result(range(10), {"st_mtime_ns": changed, "st_ctime_ns": 0})
    assert catalog.is_racy(status, now) is racy


def test_inodes_above_what_a_database_takes_are_recorded():
    status = os.stat_result((0, 2**64 - 1, *range(8)), {"st_mtime_ns": 2**63 + 5, "st_ctime_ns": -1})
    assert all(0 <= number < 2**63 for number in catalog.stamp(status))


@given(
    st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_any_bytes_make_a_row_that_a_database_takes(data):
    row, words = row_of("a/b.md", data, lambda *_: Assessed(Trust.OWNER))
    assert all(isinstance(part, str) and part.encode() is not None for part in words)
    assert all(part is None or isinstance(part, int) or part.encode() is not None for part in row)


# -- when it fails


def test_what_assess_raises_leaves_the_rows_as_they_were(root):
    root.put("a.md", "# A\n")
    before = root.refresh().entries()
    root.put("a.md", "# Other\n")
    root.put("b/c.md", "# New\n")

    def fail(rel, _digest, _data):
        if rel == "b/c.md":
            raise ManagedMemoryUnavailable("ledger.db", "is busy")
        return Assessed(Trust.OWNER)

    with pytest.raises(ManagedMemoryUnavailable, match="is busy"):
        refresh(root.catalog, KEY, root.bound, fail, basis=root.basis)
    rows = root.catalog.rows("SELECT rel, name FROM entry")
    assert rows == [(entry.rel, entry.name) for entry in before] == [("a.md", "A")]
    assert root.differences(root.refresh()) == {}


def test_a_closed_catalog_is_unavailable(root):
    view = root.refresh()
    root.catalog.close()
    for use in (root.refresh, view.entries, lambda: view.look_again([""])):
        with pytest.raises(ManagedMemoryUnavailable):
            use()


DIES = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from store.catalogued import KEY
from muniment.confine.binding import bind
from muniment.names import Trust
from muniment.store import catalog
from muniment.store.catalog import refresh
from muniment.store.rows import Assessed
from muniment.store.state import open_catalog
catalog.PENDING_CHARS = 0
def assess(rel, digest, data):
    if rel == "b/c.md":
        os.kill(os.getpid(), signal.SIGKILL)
    return Assessed(Trust.OWNER)
refresh(open_catalog(Path({catalog!r})), KEY, bind("user", {top!r}), assess, basis="first")
"""


def test_a_process_that_is_killed_in_the_middle_leaves_the_rows_as_they_were(root):
    root.put("a.md", "# A\n")
    root.refresh()
    root.put("a.md", "# Other\n")
    root.put("b/c.md", "# New\n")
    path = [str(Path(muniment.__file__).parents[1]), str(Path(__file__).parents[1])]
    source = DIES.format(path=path, catalog=str(root.catalog.path), top=str(root.top))
    done = subprocess.run([sys.executable, "-c", source], check=False, capture_output=True, timeout=50)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert root.catalog.rows("SELECT rel, name FROM entry") == [("a.md", "A")]
    assert root.differences(root.refresh()) == {}


def test_a_root_that_was_removed_has_no_entries_and_no_complete_view(root):
    root.put("a.md")
    root.refresh()
    (root.top / "a.md").unlink()
    root.top.rmdir()
    view = root.refresh()
    assert (view.complete, view.entries(), view.directories()) == (False, (), ())
    assert view.odd() == (Odd(".", "this directory could not be listed"),)
