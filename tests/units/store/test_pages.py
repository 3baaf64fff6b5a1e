"""The pages of an index depend only on its entries, not on how they were created."""

from __future__ import annotations

import json
import os
import re
import tempfile
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kit.catching import catch_error
from kit.memories import write_file
from kit.store.bench import (
    STRICT,
    compute_digest,
    make_claim,
    make_deadline,
    open_store_bench,
    propose_new,
    take_snapshot,
    write_files,
)
from kit.store.indexed_root import IndexedRoot, Limits, build_expected
from kit.store.indexed_root import compute_digest as digest_of
from muniment.content.titles import derive_title
from muniment.errors import StoreConflict, Unreadable
from muniment.kernel.names import MAX_FILE_BYTES
from muniment.kernel.root import Root
from muniment.store import catalog, index_layout, index_pages, index_upkeep
from muniment.store import index as index_lines
from muniment.store.state import State
from muniment.testing.corpus.index_oracle import find_index_problems, list_targets

SMALL = Limits(flat=(6, 700), page=(4, 400), half=(3, 300), links=(3, 300), digits=1)

"""Limits under which a dozen entries make pages of links to pages of links, and topics share their digits."""

TOPICS = ("", "a", "A", "b_c", "d/e", "f", "g", "h", "i & j", "é")

NAMES = tuple(f"{name}.md" for name in ("1", "2", "3", "4", "5", "6", "x y", "ü", "Z", "z"))

parts = st.tuples(st.sampled_from(TOPICS), st.sampled_from(NAMES))
weights = st.tuples(st.sampled_from(["owner", "workspace", "agent"]), st.sampled_from(["", "2026", "2027"]))
rels = parts.map(lambda each: "/".join(each).lstrip("/"))


def make_fit(limit, head=lambda _: 0, per_line=0):
    """Return a replacement of one of the four limit checks with another limit."""
    return lambda *size: size[-2] <= limit[0] and size[-1] + head(size[-2]) + per_line * size[-2] <= limit[1]


@cache
def measure_head(count):
    """Return the size of `MEMORY.md` without entry lines."""
    return len(
        build_expected({f"{at}.md": "" for at in range(count)}, Limits(flat=(count, 25_000)))["MEMORY.md"]
    )


@contextmanager
def use_small_limits():
    """Use the limits of `SMALL`."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (index_lines, index_layout):
            patch.setattr(module, "fits_index", make_fit(SMALL.flat, head=measure_head))
        patch.setattr(index_pages, "fits_page", make_fit(SMALL.page, per_line=len("../")))
        patch.setattr(index_layout, "fits_half_index", make_fit(SMALL.half))
        patch.setattr(index_layout, "fits_links", make_fit(SMALL.links))
        patch.setattr(index_pages, "TOPIC_DIGITS", SMALL.digits)
        yield


@pytest.fixture
def empty_pages(tmp_path):
    made = IndexedRoot(tmp_path)
    yield made
    made.close()


class IndexMachine(RuleBasedStateMachine):
    """For any changes of the entries, an updated index equals a rebuilt one."""

    def __init__(self):
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(use_small_limits())
        self.pages = IndexedRoot(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.stack.callback(self.pages.close)

    @initialize(some=st.lists(rels, max_size=40))
    def begin(self, some):
        self.put(some, 0)
        self.pages.update_index()

    @rule(some=st.lists(rels, min_size=1, max_size=20), length=st.sampled_from([0, 10, 150]), weight=weights)
    def put(self, some, length, weight=("owner", "")):
        for rel in some:
            self.pages.add_entry(rel, "w" * length, *weight)

    @rule(data=st.data())
    def drop(self, data):
        if self.pages.lines:
            self.pages.remove_entry(data.draw(st.sampled_from(sorted(self.pages.lines))))

    @rule(old=st.sampled_from(TOPICS), new=st.sampled_from([None, *TOPICS]))
    def drop_or_rename_topic(self, old, new):
        for rel in [rel for rel in self.pages.lines if rel.rpartition("/")[0] == old]:
            self.pages.remove_entry(rel)
            if new is not None:
                self.pages.add_entry(f"{new}/{rel.rpartition('/')[2]}".lstrip("/"))

    @rule(whole=st.booleans())
    def index(self, whole):
        self.pages.update_index(compare_all=whole)
        self.check_index()

    @rule()
    def lose_catalog(self):
        self.pages.clear_derived()

    @rule()
    def verify(self):
        """Rebuild the pages in the catalog, and write no file."""
        before = self.pages.read_files()
        self.pages.verify_index()
        assert self.pages.read_files() == before

    @rule(rel=rels)
    def index_while_something_changes(self, rel):
        self.pages.make_plan()  # For a commit that is not executed.
        plan = self.pages.make_plan()
        self.pages.add_entry(rel, "meanwhile")
        self.pages.apply_plan(plan)

    def check_index(self):
        files = self.pages.read_files()
        if files or self.pages.lines:  # an empty memory that never had an index needs none
            assert files == build_expected(self.pages.lines, SMALL, self.pages.weights)
        assert self.pages.read_rows("relisted") == []

    def teardown(self):
        with self.stack:
            self.pages.update_index()
            self.check_index()
            assert self.pages.verify_index().problems == ()
            assert self.pages.update_index(compare_all=True) == []


EXAMPLES = settings.default.max_examples // 2

IndexMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=20, deadline=None)

test_updated_index_equals_a_rebuilt_one = IndexMachine.TestCase


def fill_index(empty_pages, rels, description=""):
    with empty_pages.catalog.transaction():
        for rel in rels:
            empty_pages.add_entry(rel, description)
    return empty_pages.update_index()


@pytest.mark.threat("T-IDX-03", control="index_follows")
def test_one_change_writes_its_page_its_links_and_memory_md(empty_pages):
    fill_index(empty_pages, [f"topic {at % 100}/{at}.md" for at in range(500)])
    page = f"index/{digest_of('topic 7')[:12]}.md"
    whole = sorted(["MEMORY.md", f"index/_pages-{digest_of(page.removeprefix('index/'))[0]}.md", page])
    changes = [
        (empty_pages.add_entry, "", whole),
        (empty_pages.add_entry, "another line", [page]),
        (empty_pages.remove_entry, None, whole),
    ]
    for change, line, written in changes:
        change("topic 7/new.md", *([] if line is None else [line]))
        assert sorted(empty_pages.update_index()) == written
        assert empty_pages.read_files() == build_expected(empty_pages.lines)
    assert empty_pages.update_index() == []


@pytest.mark.threat("T-IDX-04", control="index_size")
@pytest.mark.parametrize("entries", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_newest_owner_facts_are_in_the_first_lines(empty_pages, entries):
    """Other tools load 200 lines of it, and no page."""
    with empty_pages.catalog.transaction():
        for at in range(entries):
            updated = f"2026-{at * 7 % 12 + 1:02}-01T10:{at % 60:02}:00Z" if at % 5 else ""
            empty_pages.add_entry(
                f"topic {at % 70}/{at}.md", "d" * 60, ("workspace", "owner")[at % 2], updated
            )
        for at in range(50):
            empty_pages.add_entry(f"z/mine-{at}.md", "d" * 60, "owner", f"2027-01-01T10:00:{at:02}Z")
            empty_pages.add_entry(f"a/theirs-{at}.md", "d" * 60, "agent", f"2028-01-01T10:00:{at:02}Z")
    empty_pages.update_index()
    assert empty_pages.read_files() == build_expected(empty_pages.lines, weights=empty_pages.weights)
    data = (empty_pages.top / "MEMORY.md").read_bytes()
    assert (data.count(b"\n") <= 200, len(data) <= 25_000) == (True, True)
    targets = list_targets(data)
    assert targets[:50] == [f"z/mine-{at}.md" for at in reversed(range(50))]
    links = [target.startswith("index/") for target in targets]
    assert links == sorted(links)  # The links to all other entries are last.
    empty_pages.add_entry("z/mine-7.md", "d" * 60, "owner", "2027-01-01T10:01:00Z")
    assert empty_pages.update_index() == ["MEMORY.md"]  # Its line is unchanged.
    assert list_targets((empty_pages.top / "MEMORY.md").read_bytes())[:2] == ["z/mine-7.md", "z/mine-49.md"]


def test_page_above_a_limit_is_split_by_the_next_digit(empty_pages):
    for entries, parts in ((196, 1), (197, 16)):
        fill_index(empty_pages, [f"t/{at}.md" for at in range(entries)] + [f"u/{at}.md" for at in range(100)])
        assert (
            len([rel for rel in empty_pages.read_files() if rel.startswith(f"index/{digest_of('t')[:12]}")])
            == parts
        )


def test_parts_that_fit_together_are_joined():
    parts = [("0a", 100, 9_000), ("0b", 96, 9_000), ("1", 1, 100), ("2c", 150, 10_000)]
    joined = [("0", 196, 18_000), ("1", 1, 100), ("2", 150, 10_000)]
    assert [*index_pages.split_topic([index_pages.TopicPart(*part) for part in parts])] == joined


# -- The files of an index follow its entries, and foreign text in their place is never lost.


LINK = "user/MEMORY.md was a link; the index replaces it, the target of the link is not changed"

REBUILD = "run: muniment index rebuild"


@pytest.fixture
def index(store_bench):
    return store_bench.user / "MEMORY.md"


def rebuild(ground):
    return index_upkeep.rebuild_index(ground.state, ground.roots["user"], STRICT, make_deadline())


def find_problems(ground, state=None):
    return index_upkeep.verify_root_index(state or ground.state, ground.roots["user"], STRICT).problems


def is_listed(index, *more):
    """Return whether the index lists the initial entries of `ground`, and more."""
    data = index.read_bytes()
    targets = list_targets(data)
    assert list(find_index_problems(data, set(targets))) == []
    return sorted(targets) == sorted(["a.md", "topic/t.md", *more])


def make_saved_note(name, rel="MEMORY.md"):
    return f"user/{rel} was not generated by Muniment; it is saved as user/memory-before-muniment{name}.md"


def test_stale_index_is_replaced_and_an_empty_memory_has_none(store_bench, index):
    rebuild(store_bench)
    (store_bench.user / "new.md").write_bytes(b"# N\n")
    assert find_problems(store_bench) == (f"user/MEMORY.md differs from its entries; {REBUILD}",)
    assert rebuild(store_bench) == ()
    assert is_listed(index, "new.md")
    for path in store_bench.user.rglob("*.md"):
        path.unlink()
    assert find_problems(store_bench) == rebuild(store_bench) == ()
    assert not index.exists()


FOREIGN_INDEXES = [
    b"# My own notes\r\n\r\nfirst \xff\x00 words without a newline",
    *(b"prose\n", b"\xff", b"x" * MAX_FILE_BYTES, b"- [A, and ring Bob](a.md)\n", b"- [gone](gone.md)\n"),
    b"- [A](a.md) \xe2\x80\x94 ring Bob before touching this\n",
    b"# Memory index\n\n- [A](a.md)\n- [T](topic/t.md) - the door code is 4711\n",
    b"* [A](a.md): text\n  + [T](topic/t.md)\n",
    b"- [ring Bob](index/0123456789ab.md) \xe2\x80\x94 3 entries\n",
]


@pytest.mark.threat("T-IDX-05", control="index_of_others_is_saved")
def test_foreign_index_is_saved_completely_and_reported_once(store_bench, index):
    index.write_bytes(FOREIGN_INDEXES[0])
    before = store_bench.take_snapshot()
    assert find_problems(store_bench) == (
        "user/MEMORY.md was not generated by Muniment; a rebuild will first save it as an entry",
    )
    assert store_bench.take_snapshot() == before
    names = []
    for number, text in enumerate(FOREIGN_INDEXES):
        index.write_bytes(text)
        name = f"-{number + 1}" if number else ""
        names += [f"memory-before-muniment{name}.md", f"{number}.md"]
        assert store_bench.commit(propose_new(f"user/{number}.md")).notes == (make_saved_note(name),)
        assert is_listed(index, *names)
        names.append(f"more-{number}.md")
        assert store_bench.commit(propose_new(f"user/more-{number}.md")).notes == ()
        assert (store_bench.user / names[-3]).read_bytes() == text
    assert find_problems(store_bench) == ()


def rebuild_without_catalog(ground):
    """Rebuild as if the catalog had been deleted."""
    with ground.state.catalog.transaction() as connection:
        connection.execute("DELETE FROM written")
    ground.state.recreate_catalog()
    return rebuild(ground)


def test_index_with_only_words_of_entries_is_not_saved(store_bench, index):
    """A catalog may be deleted at any time; an index with only words of the entries may be replaced."""
    store_bench.commit(propose_new("user/n.md", b"# N\n\nfirst\n"))
    old = index.read_bytes()
    assert rebuild_without_catalog(store_bench) == ()
    assert index.read_bytes() == old
    store_bench.commit(store_bench.propose_edit("user/n.md", b"# N\n\nsecond\n"))
    current = index.read_bytes()
    index.write_bytes(old)
    assert rebuild_without_catalog(store_bench) == ()
    assert index.read_bytes() == current  # An index of another home that trusts an entry differently:
    line = next(line for line in current.split(b"\n") if b"(a.md)" in line)
    index.write_bytes(current.replace(line, "- [a.md](a.md) — agent".encode()))
    assert rebuild(store_bench) == ()
    assert index.read_bytes() == current


def test_index_of_an_earlier_version_is_replaced_and_not_saved(store_bench, index):
    """The catalog of that version is lost; its index is recognized by the text of the entries."""
    facts = [*(f"The fact number {at}" for at in range(200)), "The user prefers a long title, " * 4]
    for at, fact in enumerate(facts):
        write_file(
            store_bench.user,
            f"t/{at}.md",
            f"---\nname: {derive_title(fact)}\ndescription: {fact}\n---\n{fact}\n",
        )
    assert rebuild(store_bench) == ()
    originals = {path: path.read_text() for path in (index, *(store_bench.user / "index").iterdir())}
    for path, text in originals.items():
        twice = re.sub(r"\[(The fact .*)\](.*)", r"[\1]\2 — \1", text)
        path.write_text(re.sub(r"\[(The user .*)\](.*)", rf"[{derive_title(facts[-1])}]\2 — \1", twice))
    assert "[The fact number 7](t/7.md) — The fact number 7\n" in index.read_text()
    assert rebuild_without_catalog(store_bench) == ()
    assert {path: path.read_text() for path in originals} == originals
    assert find_problems(store_bench) == ()


@pytest.mark.parametrize("entries", [3, pytest.param(240, marks=pytest.mark.slow)])
def test_homes_that_share_a_root_accept_each_others_index(store_bench, tmp_path, entries):
    """Neither knows the changes and removals of the other: they share only the files."""
    for number in range(entries):
        write_file(store_bench.user, f"t{number % 3}/n{number}.md", f"# Note {number}\n\nfact {number}\n")

    def commit_quietly(*changes, **more):
        assert store_bench.commit(*changes, is_reviewed=True, **more).notes == ()

    with closing(State(tmp_path / "other")) as other:
        for turn in range(4):
            one, two = (store_bench.state, other)[:: 1 if turn % 2 else -1]
            removed, created = f"user/t{turn % 3}/n{turn}.md", f"user/t0/made-{turn}.md"
            if (store_bench.base / removed).exists():
                commit_quietly(
                    removals=[make_claim(removed, (store_bench.base / removed).read_bytes())], state=one
                )
            commit_quietly(propose_new(created, b"# Made\n\nx\n"), state=two)
            commit_quietly(store_bench.propose_edit(created, b"# Other words\n\ny\n"), state=one)
        assert not list(store_bench.user.glob("memory-before-muniment*"))
        assert find_problems(store_bench) == find_problems(store_bench, other) == ()


def test_another_machine_makes_the_same_index(store_bench, index, tmp_path):
    """Sorted by provenance; entries without a valid date are last, by path."""
    days = [f"2026-11-{day}T10:00:00Z" for day in (12, 11, 13)]
    others = ["2026-13", "~", "2026-11-22", "2026-11-22 10:00:00", 5, None, "2026-11-22T10:00:00+01:00"]
    for at, time in enumerate([*days, *others, *[""] * 196]):
        text = f"---\nmuniment: {json.dumps({'updated': time})}\n---\n# Fact\n"
        os.utime(
            write_file(store_bench.user, f"{'u' if at < 3 else 't'}/{at:03}.md", text), ns=(0, 10**18 - at)
        )
    assert rebuild(store_bench) == ()
    first = ["u/002.md", "u/000.md", "u/001.md", "a.md", "t/003.md", "t/004.md", "t/005.md"]
    assert list_targets(index.read_bytes())[:7] == first
    files = {str(path.relative_to(store_bench.base)): path for path in store_bench.base.rglob("*.md")}
    made = {
        rel: path.read_bytes() for rel, path in files.items() if rel.startswith(("user/M", "user/index/"))
    }
    base = tmp_path / "other"
    write_files(
        base, {rel: files[rel].read_bytes() for rel in sorted(files, reverse=True) if rel not in made}
    )
    for number, path in enumerate(base.rglob("*.md")):
        os.utime(path, ns=(number, 10**18 - number * 10**15))
    with open_store_bench(base, tmp_path / "other-state") as other:
        rebuild(other)
        assert {rel: (base / rel).read_bytes() for rel in made} == made


def test_index_replaced_by_a_person_meanwhile_is_saved_or_kept(store_bench, index, monkeypatch):
    rebuild(store_bench)
    (store_bench.user / "n.md").write_bytes(b"new\n")
    real, edits = index_upkeep.apply_changes, [b"mine\n"]

    def edit_and_land(*arguments, **more):
        if edits:
            index.write_bytes(edits.pop())
        return real(*arguments, **more)

    monkeypatch.setattr(index_upkeep, "apply_changes", edit_and_land)
    assert rebuild(store_bench) == (make_saved_note(""),)
    assert (store_bench.user / "memory-before-muniment.md").read_bytes() == b"mine\n"
    assert is_listed(index, "memory-before-muniment.md", "n.md")
    index.write_bytes(FOREIGN_INDEXES[0])
    before = store_bench.read_contents()
    edits += [b"late edit 2", b"late edit 1", b"late edit 0"]
    catch_error(StoreConflict, rebuild, store_bench)
    assert store_bench.read_contents() == {**before, "user/MEMORY.md": compute_digest(b"late edit 2")}


def test_index_that_is_a_link_is_replaced_and_its_target_kept(store_bench, index):
    outside, made = take_snapshot(store_bench.outside), []
    for target in ("secret.md", "nothing.md", "."):
        index.unlink(missing_ok=True)
        index.symlink_to(store_bench.outside / target)
        assert find_problems(store_bench) == (f"user/MEMORY.md is a link; {REBUILD}",)
        made.append(f"{len(made)}.md")
        assert store_bench.commit(propose_new(f"user/{made[-1]}")).notes == (LINK,)
        assert not index.is_symlink()
        assert is_listed(index, *made)
    assert take_snapshot(store_bench.outside) == outside
    index.unlink()
    os.link(store_bench.outside / "secret.md", index)
    assert store_bench.commit(propose_new("user/last.md")).notes == (LINK,)
    assert is_listed(index, *made, "last.md")
    assert (store_bench.outside / "secret.md").read_bytes() == b"secret\n"


def test_irreplaceable_index_is_kept_and_the_commit_succeeds(store_bench, index):
    large = lambda at: at.write_bytes(b"x" * (MAX_FILE_BYTES + 1))  # noqa: E731
    made = []
    for make in (Path.mkdir, os.mkfifo, lambda at: os.mknod(at, 0o140600), large):
        make(index)
        before = index.stat()
        made.append(f"{len(made)}.md")
        (note,) = store_bench.commit(propose_new(f"user/{made[-1]}")).notes
        assert note.startswith("user/MEMORY.md cannot be rebuilt: ")
        assert find_problems(store_bench) == rebuild(store_bench) == (note,)
        assert (store_bench.user / made[-1]).exists()
        assert (index.stat().st_mode, index.stat().st_size) == (before.st_mode, before.st_size)
        if index.is_dir():
            assert note.endswith("user/MEMORY.md is a directory; move it away")
        index.rename(store_bench.outside / made[-1])
    assert store_bench.commit(propose_new("user/m.md")).notes == ()
    assert is_listed(index, *made, "m.md")


def test_incompletely_read_memory_never_loses_its_index(store_bench, index):
    rebuild(store_bench)
    complete = index.read_bytes()
    with patch.object(catalog.View, "is_complete", False):
        note = "user/MEMORY.md cannot be rebuilt: the memory was not read completely; see: muniment ls"
        assert store_bench.commit(propose_new("user/n.md")).notes == (note,)
        assert (store_bench.user / "n.md").exists()
        assert index.read_bytes() == complete
        assert find_problems(store_bench) == rebuild(store_bench) == (note,)
    assert store_bench.commit(propose_new("user/m.md")).notes == ()
    assert is_listed(index, "m.md", "n.md")


MANY = [f"t/{at}.md" for at in range(100)] + [f"u/{at}.md" for at in range(100)]

PAGE, OTHER = (f"index/{digest_of(topic)[:12]}.md" for topic in "tu")

LEFT = f"user/{PAGE} is not a file of the index; it is not changed"


@pytest.fixture
def entries_only(empty_pages):
    """Many entries without an index."""
    with empty_pages.catalog.transaction():
        for rel in MANY:
            empty_pages.add_entry(rel)
    return empty_pages


@pytest.fixture
def pages(entries_only):
    entries_only.update_index()
    return entries_only


def update_index(pages):
    """Update an index and return its notes."""
    plan = pages.make_plan()
    pages.apply_plan(plan)
    return plan.notes


def read_index_files(pages):
    return {rel: text for rel, text in pages.read_files().items() if rel.startswith(("MEMORY.md", "index/"))}


def is_index_correct(pages):
    return read_index_files(pages) == build_expected(pages.lines)


def drop_entries(pages, *parts):
    for rel in (rel for part in parts for rel in MANY[part]):
        pages.remove_entry(rel)


@pytest.mark.parametrize("text", [b"my notes\n", b"\xff\0", b"# Memory index: t\n\n- [A](http://a)\n"])
def test_foreign_file_at_the_name_of_a_page_is_saved(entries_only, text):
    (entries_only.top / "index").mkdir()
    (entries_only.top / PAGE).write_bytes(text)
    (entries_only.top / "memory-before-muniment.md").write_bytes(b"theirs")
    assert entries_only.verify_index().problems.count(
        f"user/{PAGE} was not generated by Muniment; a rebuild will first save it as an entry"
    )
    assert update_index(entries_only) == (make_saved_note("-2", PAGE),)
    assert (entries_only.top / "memory-before-muniment-2.md").read_bytes() == text
    assert (entries_only.top / "memory-before-muniment.md").read_bytes() == b"theirs"
    assert is_index_correct(entries_only)
    assert not entries_only.make_plan(compare_all=True).saved


def test_edited_page_is_saved_if_rewritten_and_kept_if_unused(pages):
    page = pages.top / PAGE
    for name in ("", "-2"):
        edited = page.read_text() + "call Bob\n"
        page.write_text(edited)
        pages.add_entry("u/0.md", f"changed{name}")
        assert update_index(pages) == ()
        pages.add_entry("t/0.md", f"changed{name}")
        assert update_index(pages) == (make_saved_note(name, PAGE),)
        assert (pages.top / f"memory-before-muniment{name}.md").read_text() == edited
        assert is_index_correct(pages)
    page.write_text(edited)
    drop_entries(pages, slice(95), slice(100, 195))
    assert update_index(pages) == ()
    assert sorted(read_index_files(pages)) == ["MEMORY.md", PAGE]
    assert page.read_text() == edited
    page.unlink()
    page.symlink_to(pages.top.parent / "outside.md")
    assert update_index(pages) == ()
    assert page.is_symlink()
    assert (pages.verify_index().notes, pages.verify_index().problems) == ((LEFT,), ())


def test_unknown_pages_are_removed_if_they_have_no_own_text(pages):
    whole, lines = (pages.top / OTHER).read_text(), (pages.top / PAGE).read_text().split("\n")
    drop_entries(pages, slice(99))
    assert f"user/{PAGE} is not part of the index any more; {REBUILD}" in pages.verify_index().problems
    drop_entries(pages, slice(100, 199))
    pages.update_index()
    remaining = "\n".join(line for line in lines if "/t/" not in line or "99" in line)
    foreign = dict.fromkeys(("index/0123456789ab.md", "index/notes.md"), "mine")
    for rel, text in {PAGE: remaining, OTHER: whole, "index/.hidden": "mine", **foreign}.items():
        (pages.top / rel).write_text(text)
    (pages.top / "index" / "sub").mkdir()
    pages.clear_derived()
    pages.known_contents.clear()  # The ledger does not know removed entries, either.
    assert update_index(pages) == ()
    names = sorted([*foreign, OTHER])
    assert sorted(read_index_files(pages)) == ["MEMORY.md", "index/.hidden", *names]
    left = [f"user/{name} is not a file of the index; it is not changed" for name in (*names, "index/sub")]
    assert pages.verify_index().notes == tuple(left)


@pytest.fixture
def unreadable(monkeypatch):
    """Paths that cannot be read or listed at present."""
    paths = set()

    def make_refusing(real):
        def read_or_fail(self, path, *rest):
            if path.rel in paths:
                raise Unreadable("no")
            return real(self, path, *rest)

        return read_or_fail

    for name in ("read_bytes", "list_directory"):
        monkeypatch.setattr(Root, name, make_refusing(getattr(Root, name)))
    return paths


@pytest.mark.parametrize("whole", [False, True])
def test_unreadable_page_of_forgotten_entries_is_removed_later(pages, unreadable, whole):
    drop_entries(pages, slice(99), slice(100, 199))
    pages.known_contents.clear()
    unreadable.add(PAGE)
    plan = pages.make_plan(compare_all=whole)
    pages.apply_plan(plan)
    assert plan.notes == (f"user/{PAGE} cannot be removed: no",)
    assert (pages.top / PAGE).exists()
    unreadable.clear()
    assert update_index(pages) == ()
    assert not (pages.top / PAGE).exists()
    assert is_index_correct(pages)


@pytest.mark.parametrize("whole", [False, True])
def test_unreadable_page_is_not_saved_as_an_entry_later(pages, unreadable, whole):
    pages.add_entry("t/0.md", "words of an entry")
    pages.update_index()
    pages.add_entry("t/0.md", "other words")
    pages.known_contents.clear()
    unreadable.add(PAGE)
    pages.apply_plan(pages.make_plan(compare_all=whole))
    unreadable.clear()
    assert update_index(pages) == ()
    assert not (pages.top / "memory-before-muniment.md").exists()
    assert is_index_correct(pages)


def test_index_folder_that_cannot_be_listed_is_reported(pages, unreadable):
    unreadable.add("index")
    assert pages.verify_index().problems == ("user/index cannot be listed: no",)


def test_removed_or_linked_pages_are_written_again(pages):
    (pages.top / "index").rename(pages.top.parent / "elsewhere")
    pages.add_entry("t/new.md")
    assert update_index(pages) == ()
    assert is_index_correct(pages)
    outside = pages.top.parent / "outside.md"
    outside.write_text("secret\n")
    for rel, link in ((PAGE, os.symlink), (OTHER, os.link)):
        (pages.top / rel).unlink()
        link(outside, pages.top / rel)
        pages.add_entry(f"{'t' if rel == PAGE else 'u'}/another.md")
    assert f"user/{PAGE} is a link; {REBUILD}" in pages.verify_index().problems
    assert {*update_index(pages)} == {LINK.replace("MEMORY.md", rel) for rel in (PAGE, OTHER)}
    assert outside.read_text() == "secret\n"
    assert not (pages.top / PAGE).is_symlink()
    assert is_index_correct(pages)


@pytest.mark.parametrize("kind", ["link", "file", "fifo", "unreadable"])
def test_memory_md_counts_the_rest_without_a_page_directory(entries_only, monkeypatch, kind):
    at, outside, real = entries_only.top / "index", entries_only.top.parent / "outside", Root.examine
    outside.mkdir()
    kinds = {"link": lambda at: at.symlink_to(outside), "file": Path.touch, "fifo": os.mkfifo}
    kinds.get(kind, Path.mkdir)(at)

    def fail_for_index(self, path):
        if path.rel == "index":
            raise Unreadable("no")
        return real(self, path)

    if kind == "unreadable":
        monkeypatch.setattr(Root, "examine", fail_for_index)
    (note,) = update_index(entries_only)
    assert note.startswith("user/index cannot be used: ")
    assert note.endswith(f"; move it away, then {REBUILD}")
    assert "4 more entries are not listed here." in (entries_only.top / "MEMORY.md").read_text()
    assert list(outside.iterdir()) == []
    assert entries_only.verify_index().problems == (note,)
    monkeypatch.undo()
    entries_only.add_entry("t/new.md")
    at.rename(entries_only.top.parent / "away")
    assert update_index(entries_only) == ()
    assert is_index_correct(entries_only)
