"""The rows of the catalog: entries, odd paths, counts, and text that is never in a row."""

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

from kit.catching import catch_error
from kit.interleave import act_at_call
from kit.store.bench import STRICT, compute_digest, make_deadline
from kit.store.cataloged_root import KEY, open_cataloged_root, read_future_clock, run_as_nobody
from muniment.content.expiry import compute_expiry_time
from muniment.errors import Cancelled, DeadlineExceeded, ManagedMemoryUnavailable, NotFound
from muniment.kernel.listing import OpenDirectory
from muniment.kernel.names import MAX_DEPTH, MAX_FILE_BYTES, Trust
from muniment.store import catalog as subject
from muniment.store import upkeep, visit
from muniment.store.catalog import ScanPlan, View
from muniment.store.index_pages import EXPIRES_AT
from muniment.store.rows import Assessment
from muniment.store.state import open_catalog
from muniment.store.upkeep import open_view, open_view_in_time
from muniment.store.visit import OddName
from muniment.testing.race import exchange_names

CANARY = "zqcanaryzq"

LONG = "this directory could not be listed"


@pytest.fixture
def root(tmp_path):
    with open_cataloged_root(tmp_path) as opened:
        yield opened


def compute_key(rel):
    return compute_digest(rel.encode())


def test_entry_contains_its_file_fields_and_its_assessment(root):
    root.write_file(
        "topic/b.md", "---\nname: B\ndescription: D\ntype: user\nkeywords: [k, 'l m']\nother\n---\nbody"
    )
    root.assessments["topic/b.md"] = Assessment(Trust.AGENT, expires="2030-01-01T00:00:00Z")
    view = root.refresh()
    (entry,) = view.entries()
    assert (entry.name, entry.keywords, entry.note) == ("B", ("k", "l m"), "line 6 is not `key: value`")
    assert (entry.trust, entry.expires, entry.held) == (Trust.AGENT, "2030-01-01T00:00:00Z", None)
    assert root.find_differences(view) == {}
    assert (view.entry("topic/b.md"), view.entry("b.md")) == (entry, None)
    assert (view.scope, view.key, view.is_complete) == ("user", KEY, True)


def test_path_that_is_not_an_entry_is_odd_with_a_reason(root, tmp_path):
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
        root.write_file(rel)
    view = root.refresh()
    assert [entry.rel for entry in view.entries()] == ["ok.md"]
    assert root.find_differences(view) == {}  # It checks the reasons.
    assert {item.path for item in view.list_odd_names()} >= {
        "new\\u{a}line.md",
        "a\\u{202e}b",
        "Z\\u{dcfc}rich.md",
    }
    assert len(view.list_odd_names()) == 10
    assert all(item.path.isprintable() for item in view.list_odd_names())
    assert "Z\udcfcrich.md" in view.names("")
    assert view.is_complete
    assert CANARY not in root.dump_tables()


def test_too_large_or_unopenable_file_is_listed_as_unreadable(root):
    root.write_file("large.md", b"# Large\n" + b"x" * MAX_FILE_BYTES)
    root.write_file("just.md", b"x" * MAX_FILE_BYTES)
    view = root.refresh()
    assert root.find_differences(view) == {}
    found = [(entry.readable, entry.trust) for entry in view.entries()]
    assert found == [(True, Trust.OWNER), (False, Trust.EXTERNAL)]
    assert root.assessed_paths == ["just.md"]
    assert (root.search_paths("large"), root.search_paths("just")) == ([], ["just.md"])
    assert root.read_lines()[compute_key("large.md")] == "- [large.md](large.md) — unreadable\n"
    root.write_file("a/x.md", "# X\n")
    for mode, readable in ((0o400, False), (0o700, True)):  # Listing is possible, entering is not.
        (root.top / "a").chmod(mode)
        with run_as_nobody(root.top):
            entry = root.refresh().entry("a/x.md")
        assert (entry.readable, entry.size) == (readable, 4 * readable)


def test_withheld_entry_leaves_no_text_in_any_row(root):
    text = f"---\nname: N{CANARY}\ndescription: D{CANARY}\nkeywords: [K{CANARY}]\nx{CANARY}\n---\nB{CANARY}"
    root.write_file("t/held.md", text)
    root.assessments["t/held.md"] = Assessment(Trust.WORKSPACE, held="instructions")
    withheld = root.refresh().entry("t/held.md")
    assert CANARY not in root.dump_tables()
    assert (withheld.held, withheld.readable, withheld.trust) == ("instructions", True, Trust.WORKSPACE)
    assert (withheld.name, withheld.description, withheld.keywords, withheld.note) == ("held", "", (), "")
    assert withheld.digest == compute_digest(text.encode())
    assert root.catalog.rows("SELECT * FROM text") == []
    assert root.read_lines() == {compute_key("t/held.md"): "- [t/held.md](t/held.md) — held\n"}
    withheld, rows = root.assessments, "SELECT name, line FROM entry WHERE line || name LIKE ?"
    for root.basis, root.assessments in zip("234", ({}, withheld, {}), strict=True):
        root.refresh()
        assert root.search_paths(f"B{CANARY}") == ([] if root.assessments else ["t/held.md"])
        assert bool(root.catalog.rows(rows, (f"%{CANARY}%",))) == (not root.assessments)


def test_too_many_names_make_the_view_incomplete(root, monkeypatch):
    def refresh_with_limit(limit):
        monkeypatch.setattr(visit, "MAX_NAMES", limit)
        return root.refresh(sweep=True)

    for rel in ("a/1.md", "a/2.md", "b.md", "c.md"):
        root.write_file(rel)
    for limit, complete in ((4, False), (0, False), (5, True)):
        view = refresh_with_limit(limit)
        assert (view.is_complete, view.list_odd_names() == ()) == (complete, complete)
    assert root.find_differences(view) == {}
    root.write_file("a/3.md")
    view = root.refresh()
    assert list_rels(view) == ["b.md", "c.md"]  # A folder that grows above the limit is skipped as a whole.
    assert view.list_odd_names() == (OddName("a", "the memory contains more than 5 names"),)
    (root.top / "a/1.md").unlink()
    assert list_rels(root.refresh()) == ["a/2.md", "a/3.md", "b.md", "c.md"]
    monkeypatch.setattr("muniment.kernel.listing.MAX_ENTRIES", 1)
    (root.top / "b.md").unlink()
    (root.top / "c.md").unlink()
    view = root.refresh()
    assert view.list_odd_names() == (OddName("a", LONG),)
    assert (view.is_complete, view.entries(), view.names("a")) == (False, (), None)


def test_rows_are_written_in_batches_and_a_failure_is_harmless(root, monkeypatch):
    monkeypatch.setattr(visit, "PENDING_CHARS", 0)
    for refreshed, numbers in (("", range(20)), ("again", range(0, 20, 2))):
        for number in numbers:
            root.write_file(
                f"t{number % 3}/{number}.md", f"# Entry {number} {refreshed}\nword{number}{refreshed}\n"
            )
        assert root.find_differences(root.refresh()) == {}
    (root.top / "t1/1.md").unlink()
    assert root.find_differences(root.refresh()) == {}
    assert (root.search_paths("word3"), root.search_paths("word2")) == (["t0/3.md"], [])
    before = root.read_lines()
    root.write_file("t0/0.md", "# Other\n")
    root.write_file("t9/new.md", "# New\n")

    def fail(rel, _digest, _data):
        if rel == "t9/new.md":
            raise ManagedMemoryUnavailable("ledger.db", "is busy")
        return Assessment(Trust.OWNER)

    view = View(root.catalog, KEY, root.bound, fail)
    catch_error(ManagedMemoryUnavailable, view.refresh, root.basis, ScanPlan(), match="is busy")
    assert root.read_lines() == before
    assert root.find_differences(root.refresh()) == {}


def test_two_roots_in_one_catalog_are_separate(root, tmp_path):
    (tmp_path / "second").mkdir()
    with open_cataloged_root(tmp_path / "second") as other:
        root.write_file("topic/a.md", "# First\n")
        other.write_file("topic/a.md", "# Second\n")
        one = root.refresh()
        two = View(root.catalog, "other", other.bound, other.assess).refresh("", ScanPlan())
        assert (one.entry("topic/a.md").name, two.entry("topic/a.md").name) == ("First", "Second")
        shutil.rmtree(other.top)
        two.refresh("", ScanPlan(sweep=True))
        assert (two.is_complete, two.entries(), two.directories()) == (False, (), ())
        assert two.list_odd_names() == (OddName(".", LONG),)
        assert root.find_differences(root.refresh(sweep=True)) == {}


# -- What a refresh finds and skips, its races, and how an interrupted one continues.


@pytest.fixture
def settled_root(root):
    """A catalog to which no time is too recent, with two topics and three levels."""
    root.clock = read_future_clock
    for rel in ("a.md", "one/b.md", "one/two/c.md", "one/two/three/d.md", "other/e.md"):
        root.write_file(rel, f"# {rel}\n")
    root.refresh()
    return root


def refresh_and_compare(root, **options):
    view = root.refresh(**options)
    assert root.find_differences(view) == {}
    return view


def list_rels(view):
    return [entry.rel for entry in view.entries()]


def test_change_within_the_clock_tick_of_a_refresh_is_found(root):
    path = root.write_file("topic/a.md", "# Zero\n")
    for name, change in {
        "One": lambda text: root.write_file("topic/a.md", text),
        "Two": path.write_text,
    }.items():
        root.refresh()
        change(f"# {name}\n")
        root.copy_current_times()
        assert refresh_and_compare(root).entry("topic/a.md").name == name


def test_edit_in_place_and_hard_link_are_found_by_a_sweep(settled_root, tmp_path):
    path, second = settled_root.top / B, tmp_path / "second.md"
    hard = (OddName(B, "points outside the memory (hardlink)"),)
    path.write_text("# Edited\n")
    links = (int, "Edited", ()), (lambda: os.link(path, second), None, hard), (second.unlink, "Edited", ())
    for act, name, odd in links:
        act()
        view = refresh_and_compare(settled_root, sweep=True)
        assert (getattr(view.entry(B), "name", None), view.list_odd_names()) == (name, odd)


def test_directory_that_replaced_another_is_listed(settled_root):
    topic = settled_root.top / "one"
    old = topic.stat()
    settled_root.write_file(".aside/two/c.md", "# Deeper\n")
    settled_root.refresh()
    exchange_names(topic, settled_root.top / ".aside")
    os.utime(topic, ns=(old.st_atime_ns, old.st_mtime_ns))
    os.utime(settled_root.top, ns=(0, 0))
    view = refresh_and_compare(settled_root)
    assert (list_rels(view), view.entry("one/two/c.md").name) == (
        ["a.md", "one/two/c.md", "other/e.md"],
        "Deeper",
    )


def test_unreadable_directory_hides_its_entries_until_readable(settled_root):
    (settled_root.top / "one").chmod(0)
    with run_as_nobody(settled_root.top):
        view = settled_root.refresh()
        assert (view.is_complete, view.names("one")) == (False, None)
        assert view.list_odd_names() == (OddName("one", LONG),)
        assert list_rels(view) == ["a.md", "other/e.md"]
        changes = settled_root.catalog.rows("SELECT total_changes()")
        assert not settled_root.refresh().is_complete
        assert settled_root.catalog.rows("SELECT total_changes()") == changes
    (settled_root.top / "one").chmod(0o700)
    refresh_and_compare(settled_root)


def test_failed_listing_is_retried_and_not_taken_as_unchanged(settled_root, monkeypatch):
    fails = [NotFound("x")]

    def fail_once(root, path):
        if path.rel == ONE and fails:
            raise fails.pop()
        return OpenDirectory(root, path)

    settled_root.write_file("one/two/new.md")
    monkeypatch.setattr(visit, "OpenDirectory", fail_once)
    assert refresh_and_compare(settled_root).entry("one/two/new.md")
    assert not fails


B, ONE = "one/b.md", "one"

SYMLINK = "points outside the memory (symlink)"


@pytest.mark.parametrize(
    ("what", "act", "neighbour", "odd", "complete"),
    [
        (B, lambda at: at.symlink_to("secret.md"), "one/x.md", (OddName(B, SYMLINK),), True),
        (B, Path.mkdir, "one/x.md", (OddName(B, "became a directory while it was read"),), False),
        (B, lambda _: None, "one/x.md", (), True),
        (ONE, lambda at: at.symlink_to("../moved"), "y.md", (OddName(ONE, SYMLINK),), True),
    ],
)
def test_path_replaced_during_a_refresh_is_odd_and_no_entry(
    settled_root, tmp_path, what, act, neighbour, odd, complete
):
    settled_root.write_file(B, "# Changed\n")
    settled_root.write_file(neighbour)  # If the root and a topic both changed, the root is listed first.
    settled_root.clock = time.time_ns

    def replace_path():
        (settled_root.top / what).rename(tmp_path / "moved")
        act(settled_root.top / what)

    with act_at_call(OpenDirectory, "entries", 1, replace_path, after=True):
        view = settled_root.refresh()
    assert (view.entry(B), view.list_odd_names(), view.is_complete) == (None, odd, complete)
    assert {"a.md", "other/e.md", neighbour} <= {*list_rels(view)}
    refresh_and_compare(settled_root)


FILES = [f"{topic}{number}.md" for topic in ("", "one/", "one/deep/", "two/") for number in range(5)]


@pytest.fixture
def batched_root(root, monkeypatch):
    monkeypatch.setattr(visit, "BATCH", 3)
    root.clock = read_future_clock
    for rel in FILES:
        root.write_file(rel, f"# Entry {rel}\n")
    return root


def refresh_until(root, after=None, *, basis="first", catalog=None):
    """Refresh and return the files that were read. After `after` files it is cancelled: then None is the
    last.
    """
    calls = []

    def assess(rel, _digest, _data):
        if len(calls) == after:
            raise Cancelled("enough")
        calls.append(rel)
        return Assessment(Trust.OWNER)

    try:
        View(catalog or root.catalog, KEY, root.bound, assess, clock=read_future_clock).refresh(
            basis, ScanPlan()
        )
    except Cancelled:
        calls.append(None)
    return calls


@pytest.mark.parametrize("after", [0, 2, 3, 10, 19])
def test_cancelled_refresh_continues_after_its_last_batch(batched_root, after):
    first = refresh_until(batched_root, after)
    assert (first[-1], len(first)) == (None, after + 1)
    opened = {*first[: after // 3 * 3]}
    view = subject.View(
        batched_root.catalog, KEY, batched_root.bound, batched_root.assess, clock=read_future_clock
    )
    assert {*list_rels(view)} == opened
    assert not view.is_complete
    assert {*refresh_until(batched_root)} == {*FILES} - opened
    assert batched_root.find_differences(batched_root.refresh()) == {}


def test_changed_basis_shows_only_entries_that_were_read_again(batched_root):
    batched_root.refresh()
    refresh_until(batched_root, 7, basis="second")
    query = "SELECT rel FROM entry WHERE expires IS NULL OR expires > '2026'"
    known = {rel for (rel,) in batched_root.catalog.rows(query)}
    assert len(known) == 6
    batched_root.basis = "second"
    refreshed = batched_root.refresh()
    assert {*batched_root.assessed_paths} == {*FILES} - known
    assert batched_root.find_differences(refreshed) == {}
    assert batched_root.pop_relisted() == {
        entry for (entry,) in batched_root.catalog.rows("SELECT key FROM entry")
    }


def test_concurrent_first_refresh_keeps_the_rows_of_the_other(batched_root):
    query = "SELECT count(*) FROM entry WHERE expires IS NULL OR expires > '2026'"
    seen, late = (
        [],
        act_at_call(subject.View, "_read_basis", 1, lambda: refresh_until(batched_root), after=True),
    )
    with late, act_at_call(subject, "_find_stale", 2, lambda: seen.extend(batched_root.catalog.rows(query))):
        refresh_until(batched_root)
    assert seen == [(len(FILES),)]


@pytest.mark.parametrize(("basis", "read"), [("first", 3), ("second", len(FILES)), (None, len(FILES))])
def test_overtaken_refresh_restarts_and_then_locks_out_others(batched_root, basis, read):
    real, overtaken = batched_root.catalog.save, []
    with closing(open_catalog(batched_root.catalog.path)) as other:

        def save():
            if basis is None or overtaken:
                return basis is not None and real()
            real()
            overtaken.append(True)
            with batched_root.catalog.open_outside_transaction() as connection:
                connection.execute("COMMIT")
                refresh_until(batched_root, basis=basis, catalog=other)
                connection.execute("BEGIN IMMEDIATE")
            return False

        batched_root.catalog.save = save
        assert len({*refresh_until(batched_root)}) == read
        batched_root.catalog.save = real
    assert batched_root.find_differences(batched_root.refresh()) == {}


def test_files_over_the_deadline_are_left_to_the_next_refresh(store_bench, monkeypatch):
    user, real = store_bench.roots["user"], upkeep.build_assessment
    ends = Mock(side_effect=DeadlineExceeded("no time"))

    def seen(seconds):
        return open_view_in_time(store_bench.state, user, STRICT, make_deadline(seconds)).entries()

    late = Mock(**{"check.side_effect": [None, None, Cancelled("enough")]})
    catch_error(Cancelled, open_view, store_bench.state, user, STRICT, deadline=late)
    assert store_bench.state.catalog.rows("SELECT * FROM entry") == []
    monkeypatch.setattr(visit, "BATCH", 1)

    def slow(*args):
        calls = chain([real(*args)], repeat(ends))

        def assess_file(*file):
            return next(calls)(*file)

        return assess_file

    with patch.object(upkeep, "build_assessment", slow):
        assert len(seen(60)) == 1
    assert len(seen(60)) == 2
    catch_error(DeadlineExceeded, seen, 0)


def test_database_and_code_agree_on_the_end_of_a_day(monkeypatch):
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
                assert found == list(map(compute_expiry_time, days)), zone
            finally:
                monkeypatch.delenv("TZ")
                time.tzset()
