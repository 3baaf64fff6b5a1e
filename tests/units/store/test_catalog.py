"""The catalog's rows: what is an entry, what is odd, what is counted, and what never gets into a row."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import muniment
from kit.store.catalogued import KEY, as_nobody, catalogued
from kit.where import TESTS
from muniment.errors import ManagedMemoryUnavailable
from muniment.names import MAX_DEPTH, MAX_FILE_BYTES, Trust
from muniment.store import catalog
from muniment.store.catalog import CatalogEntry, Odd, refresh
from muniment.store.rows import Assessed

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


DIES = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from kit.store.catalogued import KEY
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
    path = [str(Path(muniment.__file__).parents[1]), str(TESTS)]
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
