"""The catalog's rows: what is an entry, what is odd, what is counted, and what never gets into a row."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kit.store.catalogued import KEY, as_nobody, catalogued
from kit.store.ground import sha
from muniment.errors import ManagedMemoryUnavailable
from muniment.names import MAX_DEPTH, MAX_FILE_BYTES, Trust
from muniment.store import catalog
from muniment.store.catalog import CatalogEntry, Odd, refresh
from muniment.store.rows import Assessed

CANARY = "zqcanaryzq"
LONG = "this directory could not be listed"


@pytest.fixture
def root(tmp_path):
    with catalogued(tmp_path) as kept:
        yield kept


def key(rel):
    return sha(rel.encode())


def test_an_entry_is_told_with_all_that_its_file_says(root):
    text = b"---\nname: B\ndescription: D\ntype: project\nkeywords: [k, 'l m']\nother\n---\nbody"
    root.put("topic/b.md", text)
    root.answers["topic/b.md"] = Assessed(Trust.AGENT, expires="2030-01-01T00:00:00Z")
    view = root.refresh()
    of_file = {"rel": "topic/b.md", "size": len(text), "digest": sha(text), "readable": True, "held": None}
    said = {"name": "B", "description": "D", "type": "project", "keywords": ("k", "l m")}
    told = {"trust": Trust.AGENT, "expires": "2030-01-01T00:00:00Z", "note": "line 6 is not understood"}
    assert view.entry("topic/b.md") == CatalogEntry(**of_file, **said, **told)
    assert view.entries() == (view.entry("topic/b.md"),)
    assert view.entry("b.md") is None
    assert (view.scope, view.key, view.complete) == ("user", KEY, True)


def test_what_is_no_entry_is_odd_with_a_reason(root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text(CANARY)
    (root.top / "link.md").symlink_to(outside / "secret.md")
    (root.top / "linked").symlink_to(outside)
    os.link(outside / "secret.md", root.top / "hard.md")
    os.mkfifo(root.top / "pipe.md")
    Path(os.fsdecode(os.fsencode(root.top) + b"/Z\xfcrich.md")).write_text("x")
    deep, far = "/".join("d" * (MAX_DEPTH - 1)), "/".join(["l" * 250] * 4)
    far, deep = f"{far}/longer-than-that.md", f"{deep}/x.md"
    for rel in ("ok.md", "new\nline.md", "a\u202eb/x.md", "NUL.md", deep, far):
        root.put(rel)
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


def test_a_file_that_is_too_large_or_that_cannot_be_opened_is_listed_as_unreadable(root):
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
    assert (root.found("large"), root.found("just")) == ([], ["just.md"])
    assert root.lines()[key("large.md")] == "- [large.md](large.md) — unreadable\n"
    root.put("a/x.md", "# X\n")
    (root.top / "a").chmod(0o400)  # It may be listed, but not entered.
    with as_nobody(root.top):
        entry = root.refresh().entry("a/x.md")
    assert (entry.size, entry.readable) == (0, False)
    (root.top / "a").chmod(0o700)
    with as_nobody(root.top):
        assert root.refresh().entry("a/x.md").readable


def test_nothing_of_a_held_entry_is_in_any_row_until_it_is_released(root):
    text = f"---\nname: N{CANARY}\ndescription: D{CANARY}\nkeywords: [K{CANARY}]\nx{CANARY}\n---\nB{CANARY}"
    root.put("t/held.md", text)
    root.answers["t/held.md"] = Assessed(Trust.WORKSPACE, held="instructions")
    held = root.refresh().entry("t/held.md")
    assert CANARY not in root.everything_stored()
    assert (held.held, held.readable, held.trust) == ("instructions", True, Trust.WORKSPACE)
    assert (held.name, held.description, held.keywords, held.note) == ("held", "", (), "")
    assert held.digest == sha(text.encode())
    assert root.catalog.rows("SELECT * FROM text") == []
    assert root.lines() == {key("t/held.md"): "- [t/held.md](t/held.md) — held\n"}
    held, rows = root.answers, "SELECT name, line FROM entry WHERE line || name LIKE ?"
    for root.basis, root.answers in zip("234", ({}, held, {}), strict=True):
        root.refresh()
        assert root.found(f"B{CANARY}") == ([] if root.answers else ["t/held.md"])
        assert bool(root.catalog.rows(rows, (f"%{CANARY}%",))) == (not root.answers)


def test_names_beyond_the_limit_make_the_view_incomplete_until_they_are_gone(root, monkeypatch):
    def limited(limit):
        monkeypatch.setattr(catalog, "MAX_NAMES", limit)
        return root.refresh(sweep=True)

    for rel in ("a/1.md", "a/2.md", "b.md", "c.md"):
        root.put(rel)
    for limit, complete in ((4, False), (0, False), (5, True)):
        view = limited(limit)
        assert (view.complete, view.odd() == ()) == (complete, complete)
    assert root.differences(view) == {}
    root.put("a/3.md")
    view = root.refresh()
    assert [entry.rel for entry in view.entries()] == [
        "b.md",
        "c.md",
    ]  # What has grown beyond it is passed over whole.
    assert view.odd() == (Odd("a", "the memory holds more than 5 names"),)
    (root.top / "a/1.md").unlink()
    assert root.rels() == ["a/2.md", "a/3.md", "b.md", "c.md"]
    monkeypatch.setattr("muniment.confine.root.MAX_ENTRIES", 1)
    (root.top / "b.md").unlink()
    (root.top / "c.md").unlink()
    view = root.refresh()
    assert view.odd() == (Odd("a", LONG),)
    assert (view.complete, view.entries(), view.names("a")) == (False, (), None)


def test_rows_are_handed_over_in_pieces_and_a_failure_leaves_them_as_they_were(root, monkeypatch):
    monkeypatch.setattr(catalog, "PENDING_CHARS", 0)
    for again, numbers in (("", range(20)), ("again", range(0, 20, 2))):
        for number in numbers:
            root.put(f"t{number % 3}/{number}.md", f"# Entry {number} {again}\nword{number}{again}\n")
        assert root.differences(root.refresh()) == {}
    (root.top / "t1/1.md").unlink()
    assert root.differences(root.refresh()) == {}
    assert (root.found("word3"), root.found("word2")) == (["t0/3.md"], [])
    before = root.lines()
    root.put("t0/0.md", "# Other\n")
    root.put("t9/new.md", "# New\n")

    def fail(rel, _digest, _data):
        if rel == "t9/new.md":
            raise ManagedMemoryUnavailable("ledger.db", "is busy")
        return Assessed(Trust.OWNER)

    with pytest.raises(ManagedMemoryUnavailable, match="is busy"):
        refresh(root.catalog, KEY, root.bound, fail, basis=root.basis)
    assert root.lines() == before
    assert root.differences(root.refresh()) == {}


def test_two_roots_in_one_catalog_are_two_and_one_that_was_removed_has_no_entries(root, tmp_path):
    (tmp_path / "second").mkdir()
    with catalogued(tmp_path / "second") as other:
        root.put("topic/a.md", "# First\n")
        other.put("topic/a.md", "# Second\n")
        one = root.refresh()
        two = refresh(root.catalog, "other", other.bound, other.assess, basis="")
        assert (one.entry("topic/a.md").name, two.entry("topic/a.md").name) == ("First", "Second")
        shutil.rmtree(other.top)
        two = refresh(root.catalog, "other", other.bound, other.assess, basis="", sweep=True)
        assert (two.complete, two.entries(), two.directories(), two.odd()) == (
            False,
            (),
            (),
            (Odd(".", LONG),),
        )
        assert root.differences(root.refresh(sweep=True)) == {}
