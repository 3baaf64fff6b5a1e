"""The catalog's rows: what is an entry, what is odd, what is counted, and what never gets into a row."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing
from itertools import chain, repeat
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from kit.meanwhile import nth
from kit.raising import raised
from kit.store.catalogued import KEY, as_nobody, catalogued, much_later
from kit.store.ground import STRICT, patience, sha
from muniment.content.expiry import expiry_time
from muniment.errors import Cancelled, DeadlineExceeded, ManagedMemoryUnavailable, NotFound
from muniment.kernel.listing import OpenDirectory
from muniment.kernel.names import MAX_DEPTH, MAX_FILE_BYTES, Trust
from muniment.store import catalog as subject
from muniment.store import upkeep, visit
from muniment.store.catalog import Look, View
from muniment.store.index_pages import EXPIRES_AT
from muniment.store.rows import Assessed
from muniment.store.state import open_catalog
from muniment.store.upkeep import view_in_time, view_of
from muniment.store.visit import Odd
from muniment.testing.race import exchange

CANARY = "zqcanaryzq"

LONG = "this directory could not be listed"


@pytest.fixture
def root(tmp_path):
    with catalogued(tmp_path) as kept:
        yield kept


def key(rel):
    return sha(rel.encode())


def test_an_entry_is_told_with_all_that_its_file_says_and_that_is_known_of_it(root):
    root.put("topic/b.md", "---\nname: B\ndescription: D\ntype: user\nkeywords: [k, 'l m']\nother\n---\nbody")
    root.answers["topic/b.md"] = Assessed(Trust.AGENT, expires="2030-01-01T00:00:00Z")
    view = root.refresh()
    (entry,) = view.entries()
    assert (entry.name, entry.keywords, entry.note) == ("B", ("k", "l m"), "line 6 is not `key: value`")
    assert (entry.trust, entry.expires, entry.held) == (Trust.AGENT, "2030-01-01T00:00:00Z", None)
    assert root.differences(view) == {}
    assert (view.entry("topic/b.md"), view.entry("b.md")) == (entry, None)
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
    far, deep = "/".join(["l" * 250] * 4 + ["longer-than-that.md"]), "/".join("d" * (MAX_DEPTH - 1)) + "/x.md"
    for rel in ("ok.md", "new\nline.md", "a\u202eb/x.md", "NUL.md", deep, far):
        root.put(rel)
    view = root.refresh()
    assert [entry.rel for entry in view.entries()] == ["ok.md"]
    assert root.differences(view) == {}  # It has the reasons.
    assert {item.path for item in view.odd()} >= {"new\\u{a}line.md", "a\\u{202e}b", "Z\\u{dcfc}rich.md"}
    assert len(view.odd()) == 10
    assert all(item.path.isprintable() for item in view.odd())
    assert "Z\udcfcrich.md" in view.names("")
    assert view.complete
    assert CANARY not in root.everything_stored()


def test_a_file_that_is_too_large_or_that_cannot_be_opened_is_listed_as_unreadable(root):
    root.put("large.md", b"# Large\n" + b"x" * MAX_FILE_BYTES)
    root.put("just.md", b"x" * MAX_FILE_BYTES)
    view = root.refresh()
    assert root.differences(view) == {}
    told = [(entry.readable, entry.trust) for entry in view.entries()]
    assert told == [(True, Trust.OWNER), (False, Trust.EXTERNAL)]
    assert root.asked == ["just.md"]
    assert (root.found("large"), root.found("just")) == ([], ["just.md"])
    assert root.lines()[key("large.md")] == "- [large.md](large.md) — unreadable\n"
    root.put("a/x.md", "# X\n")
    for mode, readable in ((0o400, False), (0o700, True)):  # It may be listed, but not entered.
        (root.top / "a").chmod(mode)
        with as_nobody(root.top):
            entry = root.refresh().entry("a/x.md")
        assert (entry.readable, entry.size) == (readable, 4 * readable)


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
        monkeypatch.setattr(visit, "MAX_NAMES", limit)
        return root.refresh(sweep=True)

    for rel in ("a/1.md", "a/2.md", "b.md", "c.md"):
        root.put(rel)
    for limit, complete in ((4, False), (0, False), (5, True)):
        view = limited(limit)
        assert (view.complete, view.odd() == ()) == (complete, complete)
    assert root.differences(view) == {}
    root.put("a/3.md")
    view = root.refresh()
    assert rels(view) == ["b.md", "c.md"]  # What has grown beyond it is passed over whole.
    assert view.odd() == (Odd("a", "the memory contains more than 5 names"),)
    (root.top / "a/1.md").unlink()
    assert rels(root.refresh()) == ["a/2.md", "a/3.md", "b.md", "c.md"]
    monkeypatch.setattr("muniment.kernel.listing.MAX_ENTRIES", 1)
    (root.top / "b.md").unlink()
    (root.top / "c.md").unlink()
    view = root.refresh()
    assert view.odd() == (Odd("a", LONG),)
    assert (view.complete, view.entries(), view.names("a")) == (False, (), None)


def test_rows_are_handed_over_in_pieces_and_a_failure_leaves_them_as_they_were(root, monkeypatch):
    monkeypatch.setattr(visit, "PENDING_CHARS", 0)
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

    view = View(root.catalog, KEY, root.bound, fail)
    raised(ManagedMemoryUnavailable, view.refresh, root.basis, Look(), match="is busy")
    assert root.lines() == before
    assert root.differences(root.refresh()) == {}


def test_two_roots_in_one_catalog_are_two_and_one_that_was_removed_has_no_entries(root, tmp_path):
    (tmp_path / "second").mkdir()
    with catalogued(tmp_path / "second") as other:
        root.put("topic/a.md", "# First\n")
        other.put("topic/a.md", "# Second\n")
        one = root.refresh()
        two = View(root.catalog, "other", other.bound, other.assess).refresh("", Look())
        assert (one.entry("topic/a.md").name, two.entry("topic/a.md").name) == ("First", "Second")
        shutil.rmtree(other.top)
        two.refresh("", Look(sweep=True))
        assert (two.complete, two.entries(), two.directories()) == (False, (), ())
        assert two.odd() == (Odd(".", LONG),)
        assert root.differences(root.refresh(sweep=True)) == {}


# -- What a look finds, what it does not have to look at, its races, and how one that was given up goes on.


@pytest.fixture
def settled(root):
    """A catalog to which no time is too new, with two topics and three levels."""
    root.clock = much_later
    for rel in ("a.md", "one/b.md", "one/two/c.md", "one/two/three/d.md", "other/e.md"):
        root.put(rel, f"# {rel}\n")
    root.refresh()
    return root


def agree(root, **options):
    view = root.refresh(**options)
    assert root.differences(view) == {}
    return view


def rels(view):
    return [entry.rel for entry in view.entries()]


def test_a_file_that_changes_within_the_tick_of_the_last_look_is_found(root):
    path = root.put("topic/a.md", "# Zero\n")
    for name, change in {"One": lambda text: root.put("topic/a.md", text), "Two": path.write_text}.items():
        root.refresh()
        change(f"# {name}\n")
        root.stop_the_clock()
        assert agree(root).entry("topic/a.md").name == name


def test_an_edit_in_place_and_a_second_name_elsewhere_are_found_by_a_sweep(settled, tmp_path):
    path, second = settled.top / B, tmp_path / "second.md"
    hard = (Odd(B, "points outside the memory (hardlink)"),)
    path.write_text("# Edited\n")
    links = (int, "Edited", ()), (lambda: os.link(path, second), None, hard), (second.unlink, "Edited", ())
    for act, name, odd in links:
        act()
        view = agree(settled, sweep=True)
        assert (getattr(view.entry(B), "name", None), view.odd()) == (name, odd)


def test_another_directory_in_the_place_of_one_that_was_moved_away_is_listed(settled):
    topic = settled.top / "one"
    old = topic.stat()
    settled.put(".aside/two/c.md", "# Deeper\n")
    settled.refresh()
    exchange(topic, settled.top / ".aside")
    os.utime(topic, ns=(old.st_atime_ns, old.st_mtime_ns))
    os.utime(settled.top, ns=(0, 0))
    view = agree(settled)
    assert (rels(view), view.entry("one/two/c.md").name) == (["a.md", "one/two/c.md", "other/e.md"], "Deeper")


def test_a_directory_that_cannot_be_read_hides_its_entries_until_it_can(settled):
    (settled.top / "one").chmod(0)
    with as_nobody(settled.top):
        view = settled.refresh()
        assert (view.complete, view.names("one")) == (False, None)
        assert view.odd() == (Odd("one", LONG),)
        assert rels(view) == ["a.md", "other/e.md"]
        changes = settled.catalog.rows("SELECT total_changes()")
        assert not settled.refresh().complete
        assert settled.catalog.rows("SELECT total_changes()") == changes
    (settled.top / "one").chmod(0o700)
    agree(settled)


def test_what_could_not_be_listed_is_tried_again_and_not_taken_for_unchanged(settled, monkeypatch):
    fails = [NotFound("x")]

    def once(root, path):
        if path.rel == ONE and fails:
            raise fails.pop()
        return OpenDirectory(root, path)

    settled.put("one/two/new.md")
    monkeypatch.setattr(visit, "OpenDirectory", once)
    assert agree(settled).entry("one/two/new.md")
    assert not fails


B, ONE = "one/b.md", "one"

SYMLINK = "points outside the memory (symlink)"


@pytest.mark.parametrize(
    ("what", "act", "beside", "odd", "complete"),
    [
        (B, lambda at: at.symlink_to("secret.md"), "one/x.md", (Odd(B, SYMLINK),), True),
        (B, Path.mkdir, "one/x.md", (Odd(B, "became a directory while it was read"),), False),
        (B, lambda _: None, "one/x.md", (), True),
        (ONE, lambda at: at.symlink_to("../moved"), "y.md", (Odd(ONE, SYMLINK),), True),
    ],
)
def test_what_is_replaced_while_it_is_looked_at_is_odd_and_no_part_of_the_memory(
    settled, tmp_path, what, act, beside, odd, complete
):
    settled.put(B, "# Changed\n")
    settled.put(beside)  # Of the root and a topic that both changed, the root is listed first.
    settled.clock = time.time_ns

    def replaced():
        (settled.top / what).rename(tmp_path / "moved")
        act(settled.top / what)

    with nth(OpenDirectory, "entries", 1, replaced, after=True):
        view = settled.refresh()
    assert (view.entry(B), view.odd(), view.complete) == (None, odd, complete)
    assert {"a.md", "other/e.md", beside} <= {*rels(view)}
    agree(settled)


FILES = [f"{topic}{number}.md" for topic in ("", "one/", "one/deep/", "two/") for number in range(5)]


@pytest.fixture
def batched(root, monkeypatch):
    monkeypatch.setattr(visit, "BATCH", 3)
    root.clock = much_later
    for rel in FILES:
        root.put(rel, f"# Entry {rel}\n")
    return root


def look(root, after=None, *, basis="first", catalog=None):
    """Refresh; the files that were read. After so many it is given up: then None is the last."""
    asked = []

    def assess(rel, _digest, _data):
        if len(asked) == after:
            raise Cancelled("enough")
        asked.append(rel)
        return Assessed(Trust.OWNER)

    try:
        View(catalog or root.catalog, KEY, root.bound, assess, clock=much_later).refresh(basis, Look())
    except Cancelled:
        asked.append(None)
    return asked


@pytest.mark.parametrize("after", [0, 2, 3, 10, 19])
def test_a_look_that_is_given_up_anywhere_goes_on_from_its_last_batch(batched, after):
    first = look(batched, after)
    assert (first[-1], len(first)) == (None, after + 1)
    kept = {*first[: after // 3 * 3]}
    view = subject.View(batched.catalog, KEY, batched.bound, batched.assess, clock=much_later)
    assert {*rels(view)} == kept
    assert not view.complete
    assert {*look(batched)} == {*FILES} - kept
    assert batched.differences(batched.refresh()) == {}


def test_on_another_basis_nothing_is_told_that_was_not_read_again(batched):
    batched.refresh()
    look(batched, 7, basis="second")
    told = "SELECT rel FROM entry WHERE expires IS NULL OR expires > '2026'"
    known = {rel for (rel,) in batched.catalog.rows(told)}
    assert len(known) == 6
    batched.basis = "second"
    again = batched.refresh()
    assert {*batched.asked} == {*FILES} - known
    assert batched.differences(again) == {}
    assert batched.relisted() == {entry for (entry,) in batched.catalog.rows("SELECT key FROM entry")}


def test_of_two_that_look_first_at_once_the_later_one_takes_nothing_from_the_other(batched):
    told = "SELECT count(*) FROM entry WHERE expires IS NULL OR expires > '2026'"
    seen, late = [], nth(subject.View, "_of_root", 1, lambda: look(batched), after=True)
    with late, nth(subject, "_stale", 2, lambda: seen.extend(batched.catalog.rows(told))):
        look(batched)
    assert seen == [(len(FILES),)]


@pytest.mark.parametrize(("basis", "read"), [("first", 3), ("second", len(FILES)), (None, len(FILES))])
def test_whoever_is_overtaken_begins_again_and_at_last_keeps_others_out(batched, basis, read):
    real, overtaken = batched.catalog.save, []
    with closing(open_catalog(batched.catalog.path)) as other:

        def save():
            if basis is None or overtaken:
                return basis is not None and real()
            real()
            overtaken.append(True)
            with batched.catalog.bare() as connection:
                connection.execute("COMMIT")
                look(batched, basis=basis, catalog=other)
                connection.execute("BEGIN IMMEDIATE")
            return False

        batched.catalog.save = save
        assert len({*look(batched)}) == read
        batched.catalog.save = real
    assert batched.differences(batched.refresh()) == {}


def test_what_there_is_no_time_for_is_left_to_the_next_look(ground, monkeypatch):
    user, real = ground.roots["user"], upkeep.assessing
    ends = Mock(side_effect=DeadlineExceeded("no time"))
    seen = lambda seconds: view_in_time(ground.state, user, STRICT, patience(seconds)).entries()  # noqa: E731
    late = Mock(**{"check.side_effect": [None, None, Cancelled("enough")]})
    raised(Cancelled, view_of, ground.state, user, STRICT, patience=late)
    assert ground.state.catalog.rows("SELECT * FROM entry") == []
    monkeypatch.setattr(visit, "BATCH", 1)

    def slow(*given):
        calls = chain([real(*given)], repeat(ends))

        def one_file(*asked):
            return next(calls)(*asked)

        return one_file

    with patch.object(upkeep, "assessing", slow):
        assert len(seen(60)) == 1
    assert len(seen(60)) == 2
    raised(DeadlineExceeded, seen, 0)


def test_database_and_code_agree_when_a_day_is_over(monkeypatch):
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE entry (expires TEXT)")
        days = [f"2027-{month:02}-{day:02}" for month in range(1, 13) for day in (1, 6, 13, 27, 28)]
        days += ["9999-12-31", "2027-01-01T12:00:00.000Z", ""]
        database.executemany("INSERT INTO entry VALUES (?)", [(day,) for day in days])
        for zone in ("UTC", "America/New_York", "Australia/Lord_Howe", "Etc/GMT-14"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            try:
                found = [at for (at,) in database.execute(f"SELECT {EXPIRES_AT} FROM entry ORDER BY rowid")]
                assert found == list(map(expiry_time, days)), zone
            finally:
                monkeypatch.delenv("TZ")
                time.tzset()
