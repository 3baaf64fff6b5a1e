"""The pages of an index are a function of its entries, however they came to be what they are."""

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

from kit.memories import put
from kit.raising import raised
from kit.store.ground import STRICT, claim, lay, new, opened, patience, photograph, sha
from kit.store.shelf import Limits, Shelf, expected
from kit.store.shelf import sha as digest_of
from muniment.content.titles import title_of
from muniment.errors import StoreConflict, Unreadable
from muniment.kernel.names import MAX_FILE_BYTES
from muniment.kernel.root import Root
from muniment.store import catalog, index_layout, index_pages, upkeep
from muniment.store import index as index_lines
from muniment.store.state import State
from muniment.testing.corpus.index_oracle import index_problems, index_targets

SMALL = Limits(flat=(6, 700), page=(4, 400), half=(3, 300), links=(3, 300), digits=1)

"""Limits under which a dozen entries make pages of links to pages of links, and topics share their digits."""

TOPICS = ("", "a", "A", "b_c", "d/e", "f", "g", "h", "i & j", "é")

NAMES = tuple(f"{name}.md" for name in ("1", "2", "3", "4", "5", "6", "x y", "ü", "Z", "z"))

parts = st.tuples(st.sampled_from(TOPICS), st.sampled_from(NAMES))
weights = st.tuples(st.sampled_from(["owner", "workspace", "agent"]), st.sampled_from(["", "2026", "2027"]))
rels = parts.map(lambda each: "/".join(each).lstrip("/"))


def fits(limit, head=lambda _: 0, per_line=0):
    """One of the four questions under another limit; it is asked about lines and bytes."""
    return lambda *asked: (
        asked[-2] <= limit[0] and asked[-1] + head(asked[-2]) + per_line * asked[-2] <= limit[1]
    )


@cache
def head_of(count):
    """Bytes of `MEMORY.md` without any line."""
    return len(expected({f"{at}.md": "" for at in range(count)}, Limits(flat=(count, 25_000)))["MEMORY.md"])


@contextmanager
def small():
    """The limits of `SMALL`."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (index_lines, index_layout):
            patch.setattr(module, "fits_index", fits(SMALL.flat, head=head_of))
        patch.setattr(index_pages, "fits_page", fits(SMALL.page, per_line=len("../")))
        patch.setattr(index_layout, "fits_half", fits(SMALL.half))
        patch.setattr(index_layout, "fits_links", fits(SMALL.links))
        patch.setattr(index_pages, "TOPIC_DIGITS", SMALL.digits)
        yield


@pytest.fixture
def empty(tmp_path):
    made = Shelf(tmp_path)
    yield made
    made.close()


class Following(RuleBasedStateMachine):
    """Whatever happens to the entries, an index that follows them is the one that is made anew."""

    def __init__(self):
        super().__init__()
        self.held = ExitStack()
        self.held.enter_context(small())
        self.shelf = Shelf(self.held.enter_context(tempfile.TemporaryDirectory()))
        self.held.callback(self.shelf.close)

    @initialize(some=st.lists(rels, max_size=40))
    def begin(self, some):
        self.put(some, 0)
        self.shelf.index()

    @rule(some=st.lists(rels, min_size=1, max_size=20), length=st.sampled_from([0, 10, 150]), weight=weights)
    def put(self, some, length, weight=("owner", "")):
        for rel in some:
            self.shelf.put(rel, "w" * length, *weight)

    @rule(data=st.data())
    def drop(self, data):
        if self.shelf.lines:
            self.shelf.drop(data.draw(st.sampled_from(sorted(self.shelf.lines))))

    @rule(old=st.sampled_from(TOPICS), new=st.sampled_from([None, *TOPICS]))
    def drop_or_rename_topic(self, old, new):
        for rel in [rel for rel in self.shelf.lines if rel.rpartition("/")[0] == old]:
            self.shelf.drop(rel)
            if new is not None:
                self.shelf.put(f"{new}/{rel.rpartition('/')[2]}".lstrip("/"))

    @rule(whole=st.booleans())
    def index(self, whole):
        self.shelf.index(whole=whole)
        self.is_right()

    @rule()
    def lose_catalog(self):
        self.shelf.forget()

    @rule()
    def verify(self):
        """Makes the pages anew in the catalog, and writes no file."""
        before = self.shelf.files()
        self.shelf.verify()
        assert self.shelf.files() == before

    @rule(rel=rels)
    def index_while_something_changes(self, rel):
        self.shelf.plan()  # For a commit that is not carried out.
        plan = self.shelf.plan()
        self.shelf.put(rel, "meanwhile")
        self.shelf.carry_out(plan)

    def is_right(self):
        files = self.shelf.files()
        if files or self.shelf.lines:  # an empty memory that never had an index needs none
            assert files == expected(self.shelf.lines, SMALL, self.shelf.weights)
        assert self.shelf.rows("relisted") == []

    def teardown(self):
        with self.held:
            self.shelf.index()
            self.is_right()
            assert self.shelf.verify().problems == ()
            assert self.shelf.index(whole=True) == []


EXAMPLES = settings.default.max_examples // 2

Following.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=20, deadline=None)

test_an_index_that_follows_its_entries_is_the_one_made_anew = Following.TestCase


def filled(empty, rels, description=""):
    with empty.catalog.transaction():
        for rel in rels:
            empty.put(rel, description)
    return empty.index()


@pytest.mark.threat("T-IDX-03", control="index_follows")
def test_one_change_writes_its_page_the_links_to_it_and_memory_md(empty):
    filled(empty, [f"topic {at % 100}/{at}.md" for at in range(500)])
    page = f"index/{digest_of('topic 7')[:12]}.md"
    whole = sorted(["MEMORY.md", f"index/_pages-{digest_of(page.removeprefix('index/'))[0]}.md", page])
    changes = [(empty.put, "", whole), (empty.put, "another line", [page]), (empty.drop, None, whole)]
    for change, line, written in changes:
        change("topic 7/new.md", *([] if line is None else [line]))
        assert sorted(empty.index()) == written
        assert empty.files() == expected(empty.lines)
    assert empty.index() == []


@pytest.mark.threat("T-IDX-04", control="index_size")
@pytest.mark.parametrize("entries", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_newest_facts_of_the_owner_stand_in_the_first_lines_however_many_entries_there_are(
    empty, entries
):
    """Others load 200 lines of it, and no page."""
    with empty.catalog.transaction():
        for at in range(entries):
            updated = f"2026-{at * 7 % 12 + 1:02}-01T10:{at % 60:02}:00Z" if at % 5 else ""
            empty.put(f"topic {at % 70}/{at}.md", "d" * 60, ("workspace", "owner")[at % 2], updated)
        for at in range(50):
            empty.put(f"z/mine-{at}.md", "d" * 60, "owner", f"2027-01-01T10:00:{at:02}Z")
            empty.put(f"a/theirs-{at}.md", "d" * 60, "agent", f"2028-01-01T10:00:{at:02}Z")
    empty.index()
    assert empty.files() == expected(empty.lines, weights=empty.weights)
    data = (empty.top / "MEMORY.md").read_bytes()
    assert (data.count(b"\n") <= 200, len(data) <= 25_000) == (True, True)
    targets = index_targets(data)
    assert targets[:50] == [f"z/mine-{at}.md" for at in reversed(range(50))]
    links = [target.startswith("index/") for target in targets]
    assert links == sorted(links)  # What leads to all others comes last.
    empty.put("z/mine-7.md", "d" * 60, "owner", "2027-01-01T10:01:00Z")
    assert empty.index() == ["MEMORY.md"]  # Its line is the same.
    assert index_targets((empty.top / "MEMORY.md").read_bytes())[:2] == ["z/mine-7.md", "z/mine-49.md"]


def test_a_page_that_would_pass_a_limit_is_split_by_the_next_digit(empty):
    for entries, parts in ((196, 1), (197, 16)):
        filled(empty, [f"t/{at}.md" for at in range(entries)] + [f"u/{at}.md" for at in range(100)])
        assert len([rel for rel in empty.files() if rel.startswith(f"index/{digest_of('t')[:12]}")]) == parts


def test_parts_that_fit_together_are_one_and_others_stay_apart():
    parts = [("0a", 100, 9_000), ("0b", 96, 9_000), ("1", 1, 100), ("2c", 150, 10_000)]
    joined = [("0", 196, 18_000), ("1", 1, 100), ("2", 150, 10_000)]
    assert [*index_pages.split([index_pages.TopicPart(*part) for part in parts])] == joined


# -- The files of an index follow its entries, and what a person wrote in their place is never lost.


LINK = "user/MEMORY.md was a link; the index replaces it, the target of the link is not changed"

REBUILD = "run: muniment index rebuild"


@pytest.fixture
def index(ground):
    return ground.user / "MEMORY.md"


def rebuilt(ground):
    return upkeep.rebuild(ground.state, ground.roots["user"], STRICT, patience())


def problems(ground, state=None):
    return upkeep.verify(state or ground.state, ground.roots["user"], STRICT).problems


def listed(index, *more):
    """The index is of the entries that `ground` begins with, and more."""
    data = index.read_bytes()
    targets = index_targets(data)
    assert list(index_problems(data, set(targets))) == []
    return sorted(targets) == sorted(["a.md", "topic/t.md", *more])


def saved_as(name, rel="MEMORY.md"):
    return f"user/{rel} was not generated by Muniment; it is saved as user/memory-before-muniment{name}.md"


def test_an_index_of_ours_that_is_stale_is_replaced_and_not_saved_and_nothing_needs_none(ground, index):
    rebuilt(ground)
    (ground.user / "new.md").write_bytes(b"# N\n")
    assert problems(ground) == (f"user/MEMORY.md differs from its entries; {REBUILD}",)
    assert rebuilt(ground) == ()
    assert listed(index, "new.md")
    for path in ground.user.rglob("*.md"):
        path.unlink()
    assert problems(ground) == rebuilt(ground) == ()
    assert not index.exists()


THEIRS = [
    b"# My own notes\r\n\r\nfirst \xff\x00 words without a newline",
    *(b"prose\n", b"\xff", b"x" * MAX_FILE_BYTES, b"- [A, and ring Bob](a.md)\n", b"- [gone](gone.md)\n"),
    b"- [A](a.md) \xe2\x80\x94 ring Bob before touching this\n",
    b"# Memory index\n\n- [A](a.md)\n- [T](topic/t.md) - the door code is 4711\n",
    b"* [A](a.md): text\n  + [T](topic/t.md)\n",
    b"- [ring Bob](index/0123456789ab.md) \xe2\x80\x94 3 entries\n",
]


@pytest.mark.threat("T-IDX-05", control="index_of_others_is_saved")
def test_what_a_person_wrote_in_its_place_is_saved_whole_and_said_once(ground, index):
    index.write_bytes(THEIRS[0])
    before = ground.photograph()
    assert problems(ground) == (
        "user/MEMORY.md was not generated by Muniment; a rebuild will first save it as an entry",
    )
    assert ground.photograph() == before
    kept = []
    for number, mine in enumerate(THEIRS):
        index.write_bytes(mine)
        name = f"-{number + 1}" if number else ""
        kept += [f"memory-before-muniment{name}.md", f"{number}.md"]
        assert ground.commit(new(f"user/{number}.md")).notes == (saved_as(name),)
        assert listed(index, *kept)
        kept.append(f"more-{number}.md")
        assert ground.commit(new(f"user/more-{number}.md")).notes == ()
        assert (ground.user / kept[-3]).read_bytes() == mine
    assert problems(ground) == ()


def forgetful(ground):
    """A rebuild as if the catalog had been deleted."""
    with ground.state.catalog.transaction() as connection:
        connection.execute("DELETE FROM written")
    ground.state.renew_catalog()
    return rebuilt(ground)


def test_an_index_that_says_what_entries_say_or_said_is_not_saved_though_nobody_remembers_it(ground, index):
    """A catalog may be deleted at any time: what holds no word but those of the entries is no loss."""
    ground.commit(new("user/n.md", b"# N\n\nfirst\n"))
    old = index.read_bytes()
    assert forgetful(ground) == ()
    assert index.read_bytes() == old
    ground.commit(ground.edit("user/n.md", b"# N\n\nsecond\n"))
    ours = index.read_bytes()
    index.write_bytes(old)
    assert forgetful(ground) == ()
    assert index.read_bytes() == ours  # Of another home, that trusts an entry otherwise:
    line = next(line for line in ours.split(b"\n") if b"(a.md)" in line)
    index.write_bytes(ours.replace(line, "- [a.md](a.md) — agent".encode()))
    assert rebuilt(ground) == ()
    assert index.read_bytes() == ours


def test_an_index_of_a_version_that_said_things_twice_is_replaced_and_not_saved(ground, index):
    """Its catalog went with that version: what it wrote is known by what the entries say."""
    facts = [*(f"The fact number {at}" for at in range(200)), "The user prefers a long title, " * 4]
    for at, fact in enumerate(facts):
        put(ground.user, f"t/{at}.md", f"---\nname: {title_of(fact)}\ndescription: {fact}\n---\n{fact}\n")
    assert rebuilt(ground) == ()
    ours = {path: path.read_text() for path in (index, *(ground.user / "index").iterdir())}
    for path, text in ours.items():
        twice = re.sub(r"\[(The fact .*)\](.*)", r"[\1]\2 — \1", text)
        path.write_text(re.sub(r"\[(The user .*)\](.*)", rf"[{title_of(facts[-1])}]\2 — \1", twice))
    assert "[The fact number 7](t/7.md) — The fact number 7\n" in index.read_text()
    assert forgetful(ground) == ()
    assert {path: path.read_text() for path in ours} == ours
    assert problems(ground) == ()


@pytest.mark.parametrize("entries", [3, pytest.param(240, marks=pytest.mark.slow)])
def test_two_homes_that_share_a_root_save_no_index_of_each_other(ground, tmp_path, entries):
    """Each knows nothing of what the other wrote, changed and removed: only the files are shared."""
    for number in range(entries):
        put(ground.user, f"t{number % 3}/n{number}.md", f"# Note {number}\n\nfact {number}\n")

    def done(*changes, **more):
        assert ground.commit(*changes, reviewed=True, **more).notes == ()

    with closing(State(tmp_path / "other")) as other:
        for turn in range(4):
            one, two = (ground.state, other)[:: 1 if turn % 2 else -1]
            gone, kept = f"user/t{turn % 3}/n{turn}.md", f"user/t0/made-{turn}.md"
            if (ground.base / gone).exists():
                done(removals=[claim(gone, (ground.base / gone).read_bytes())], state=one)
            done(new(kept, b"# Made\n\nx\n"), state=two)
            done(ground.edit(kept, b"# Other words\n\ny\n"), state=one)
        assert not list(ground.user.glob("memory-before-muniment*"))
        assert problems(ground) == problems(ground, other) == ()


def test_another_machine_makes_the_same_index_of_the_same_files_whatever_their_times(ground, index, tmp_path):
    """By what provenance says of them; what says nothing of it, or nonsense, comes last, by path."""
    days = [f"2026-11-{day}T10:00:00Z" for day in (12, 11, 13)]
    others = ["2026-13", "~", "2026-11-22", "2026-11-22 10:00:00", 5, None, "2026-11-22T10:00:00+01:00"]
    for at, time in enumerate([*days, *others, *[""] * 196]):
        text = f"---\nmuniment: {json.dumps({'updated': time})}\n---\n# Fact\n"
        os.utime(put(ground.user, f"{'u' if at < 3 else 't'}/{at:03}.md", text), ns=(0, 10**18 - at))
    assert rebuilt(ground) == ()
    first = ["u/002.md", "u/000.md", "u/001.md", "a.md", "t/003.md", "t/004.md", "t/005.md"]
    assert index_targets(index.read_bytes())[:7] == first
    files = {str(path.relative_to(ground.base)): path for path in ground.base.rglob("*.md")}
    made = {
        rel: path.read_bytes() for rel, path in files.items() if rel.startswith(("user/M", "user/index/"))
    }
    base = tmp_path / "other"
    lay(base, {rel: files[rel].read_bytes() for rel in sorted(files, reverse=True) if rel not in made})
    for number, path in enumerate(base.rglob("*.md")):
        os.utime(path, ns=(number, 10**18 - number * 10**15))
    with opened(base, tmp_path / "other-state") as other:
        rebuilt(other)
        assert {rel: (base / rel).read_bytes() for rel in made} == made


def test_an_index_that_becomes_a_persons_own_meanwhile_is_saved_or_left(ground, index, monkeypatch):
    rebuilt(ground)
    (ground.user / "n.md").write_bytes(b"new\n")
    real, edits = upkeep.land, [b"mine\n"]

    def late(*arguments, **more):
        if edits:
            index.write_bytes(edits.pop())
        return real(*arguments, **more)

    monkeypatch.setattr(upkeep, "land", late)
    assert rebuilt(ground) == (saved_as(""),)
    assert (ground.user / "memory-before-muniment.md").read_bytes() == b"mine\n"
    assert listed(index, "memory-before-muniment.md", "n.md")
    index.write_bytes(THEIRS[0])
    before = ground.contents()
    edits += [b"late edit 2", b"late edit 1", b"late edit 0"]
    raised(StoreConflict, rebuilt, ground)
    assert ground.contents() == {**before, "user/MEMORY.md": sha(b"late edit 2")}


def test_an_index_that_is_a_link_is_replaced_and_its_target_is_not_touched(ground, index):
    outside, made = photograph(ground.outside), []
    for target in ("secret.md", "nothing.md", "."):
        index.unlink(missing_ok=True)
        index.symlink_to(ground.outside / target)
        assert problems(ground) == (f"user/MEMORY.md is a link; {REBUILD}",)
        made.append(f"{len(made)}.md")
        assert ground.commit(new(f"user/{made[-1]}")).notes == (LINK,)
        assert not index.is_symlink()
        assert listed(index, *made)
    assert photograph(ground.outside) == outside
    index.unlink()
    os.link(ground.outside / "secret.md", index)
    assert ground.commit(new("user/last.md")).notes == (LINK,)
    assert listed(index, *made, "last.md")
    assert (ground.outside / "secret.md").read_bytes() == b"secret\n"


def test_what_cannot_be_replaced_by_an_index_is_left_and_told_and_the_commit_lands(ground, index):
    large = lambda at: at.write_bytes(b"x" * (MAX_FILE_BYTES + 1))  # noqa: E731
    made = []
    for make in (Path.mkdir, os.mkfifo, lambda at: os.mknod(at, 0o140600), large):
        make(index)
        before = index.stat()
        made.append(f"{len(made)}.md")
        (note,) = ground.commit(new(f"user/{made[-1]}")).notes
        assert note.startswith("user/MEMORY.md cannot be rebuilt: ")
        assert problems(ground) == rebuilt(ground) == (note,)
        assert (ground.user / made[-1]).exists()
        assert (index.stat().st_mode, index.stat().st_size) == (before.st_mode, before.st_size)
        if index.is_dir():
            assert note.endswith("user/MEMORY.md is a directory; move it away")
        index.rename(ground.outside / made[-1])
    assert ground.commit(new("user/m.md")).notes == ()
    assert listed(index, *made, "m.md")


def test_a_memory_that_cannot_be_read_completely_never_loses_its_index(ground, index):
    rebuilt(ground)
    complete = index.read_bytes()
    with patch.object(catalog.View, "complete", False):
        note = "user/MEMORY.md cannot be rebuilt: the memory could not be read completely"
        assert ground.commit(new("user/n.md")).notes == (note,)
        assert (ground.user / "n.md").exists()
        assert index.read_bytes() == complete
        assert problems(ground) == rebuilt(ground) == (note,)
    assert ground.commit(new("user/m.md")).notes == ()
    assert listed(index, "m.md", "n.md")


MANY = [f"t/{at}.md" for at in range(100)] + [f"u/{at}.md" for at in range(100)]

PAGE, OTHER = (f"index/{digest_of(topic)[:12]}.md" for topic in "tu")

LEFT = f"user/{PAGE} is not a file of the index; it is not changed"


@pytest.fixture
def bare(empty):
    """A shelf with many entries and no index yet."""
    with empty.catalog.transaction():
        for rel in MANY:
            empty.put(rel)
    return empty


@pytest.fixture
def shelf(bare):
    bare.index()
    return bare


def told(shelf):
    """What a person is told of an index that is brought up to date."""
    plan = shelf.plan()
    shelf.carry_out(plan)
    return plan.notes


def in_index(shelf):
    return {rel: text for rel, text in shelf.files().items() if rel.startswith(("MEMORY.md", "index/"))}


def is_right(shelf):
    return in_index(shelf) == expected(shelf.lines)


def drop(shelf, *parts):
    for rel in (rel for part in parts for rel in MANY[part]):
        shelf.drop(rel)


@pytest.mark.parametrize("text", [b"my notes\n", b"\xff\0", b"# Memory index: t\n\n- [A](http://a)\n"])
def test_a_persons_own_file_at_the_name_of_a_page_is_saved_whole(bare, text):
    (bare.top / "index").mkdir()
    (bare.top / PAGE).write_bytes(text)
    (bare.top / "memory-before-muniment.md").write_bytes(b"theirs")
    assert bare.verify().problems.count(
        f"user/{PAGE} was not generated by Muniment; a rebuild will first save it as an entry"
    )
    assert told(bare) == (saved_as("-2", PAGE),)
    assert (bare.top / "memory-before-muniment-2.md").read_bytes() == text
    assert (bare.top / "memory-before-muniment.md").read_bytes() == b"theirs"
    assert is_right(bare)
    assert not bare.plan(whole=True).saved


def test_a_page_that_somebody_wrote_in_is_saved_once_it_is_written_again_and_left_if_it_is_no_more(shelf):
    page = shelf.top / PAGE
    for name in ("", "-2"):
        edited = page.read_text() + "call Bob\n"
        page.write_text(edited)
        shelf.put("u/0.md", f"changed{name}")
        assert told(shelf) == ()
        shelf.put("t/0.md", f"changed{name}")
        assert told(shelf) == (saved_as(name, PAGE),)
        assert (shelf.top / f"memory-before-muniment{name}.md").read_text() == edited
        assert is_right(shelf)
    page.write_text(edited)
    drop(shelf, slice(95), slice(100, 195))
    assert told(shelf) == ()
    assert sorted(in_index(shelf)) == ["MEMORY.md", PAGE]
    assert page.read_text() == edited
    page.unlink()
    page.symlink_to(shelf.top.parent / "outside.md")
    assert told(shelf) == ()
    assert page.is_symlink()
    assert (shelf.verify().notes, shelf.verify().problems) == ((LEFT,), ())


def test_pages_that_nobody_remembers_go_with_a_rebuild_where_they_say_nothing_of_their_own(shelf):
    whole, lines = (shelf.top / OTHER).read_text(), (shelf.top / PAGE).read_text().split("\n")
    drop(shelf, slice(99))
    assert f"user/{PAGE} is not part of the index any more; {REBUILD}" in shelf.verify().problems
    drop(shelf, slice(100, 199))
    shelf.index()
    standing = "\n".join(line for line in lines if "/t/" not in line or "99" in line)
    mine = dict.fromkeys(("index/0123456789ab.md", "index/notes.md"), "mine")
    for rel, text in {PAGE: standing, OTHER: whole, "index/.hidden": "mine", **mine}.items():
        (shelf.top / rel).write_text(text)
    (shelf.top / "index" / "sub").mkdir()
    shelf.forget()
    shelf.ever.clear()  # The ledger, too, knows of nothing that went.
    assert told(shelf) == ()
    names = sorted([*mine, OTHER])
    assert sorted(in_index(shelf)) == ["MEMORY.md", "index/.hidden", *names]
    left = [f"user/{name} is not a file of the index; it is not changed" for name in (*names, "index/sub")]
    assert shelf.verify().notes == tuple(left)


@pytest.fixture
def unreadable(monkeypatch):
    """Paths that the system does not let be read or listed, for now."""
    paths = set()

    def refusing(real):
        def asked(self, path, *rest):
            if path.rel in paths:
                raise Unreadable("no")
            return real(self, path, *rest)

        return asked

    for name in ("read_bytes", "list_directory"):
        monkeypatch.setattr(Root, name, refusing(getattr(Root, name)))
    return paths


@pytest.mark.parametrize("whole", [False, True])
def test_page_of_forgotten_entries_that_cannot_be_read_is_removed_later(shelf, unreadable, whole):
    drop(shelf, slice(99), slice(100, 199))
    shelf.ever.clear()
    unreadable.add(PAGE)
    plan = shelf.plan(whole=whole)
    shelf.carry_out(plan)
    assert plan.notes == (f"user/{PAGE} cannot be removed: no",)
    assert (shelf.top / PAGE).exists()
    unreadable.clear()
    assert told(shelf) == ()
    assert not (shelf.top / PAGE).exists()
    assert is_right(shelf)


@pytest.mark.parametrize("whole", [False, True])
def test_page_of_ours_that_cannot_be_read_is_not_saved_as_an_entry_later(shelf, unreadable, whole):
    shelf.put("t/0.md", "words of an entry")
    shelf.index()
    shelf.put("t/0.md", "other words")
    shelf.ever.clear()
    unreadable.add(PAGE)
    shelf.carry_out(shelf.plan(whole=whole))
    unreadable.clear()
    assert told(shelf) == ()
    assert not (shelf.top / "memory-before-muniment.md").exists()
    assert is_right(shelf)


def test_index_folder_that_cannot_be_listed_is_told(shelf, unreadable):
    unreadable.add("index")
    assert shelf.verify().problems == ("user/index cannot be listed: no",)


def test_pages_that_somebody_removed_altogether_or_that_are_links_are_made_again(shelf):
    (shelf.top / "index").rename(shelf.top.parent / "elsewhere")
    shelf.put("t/new.md")
    assert told(shelf) == ()
    assert is_right(shelf)
    outside = shelf.top.parent / "outside.md"
    outside.write_text("secret\n")
    for rel, link in ((PAGE, os.symlink), (OTHER, os.link)):
        (shelf.top / rel).unlink()
        link(outside, shelf.top / rel)
        shelf.put(f"{'t' if rel == PAGE else 'u'}/another.md")
    assert f"user/{PAGE} is a link; {REBUILD}" in shelf.verify().problems
    assert {*told(shelf)} == {LINK.replace("MEMORY.md", rel) for rel in (PAGE, OTHER)}
    assert outside.read_text() == "secret\n"
    assert not (shelf.top / PAGE).is_symlink()
    assert is_right(shelf)


@pytest.mark.parametrize("kind", ["link", "file", "fifo", "unreadable"])
def test_without_a_directory_for_pages_memory_md_counts_what_it_cannot_list(bare, monkeypatch, kind):
    at, outside, real = bare.top / "index", bare.top.parent / "outside", Root.examine
    outside.mkdir()
    kinds = {"link": lambda at: at.symlink_to(outside), "file": Path.touch, "fifo": os.mkfifo}
    kinds.get(kind, Path.mkdir)(at)

    def failing(self, path):
        if path.rel == "index":
            raise Unreadable("no")
        return real(self, path)

    if kind == "unreadable":
        monkeypatch.setattr(Root, "examine", failing)
    (note,) = told(bare)
    assert note.startswith("user/index cannot be used: ")
    assert note.endswith(f"; move it away, then {REBUILD}")
    assert "4 more entries are not listed here." in (bare.top / "MEMORY.md").read_text()
    assert list(outside.iterdir()) == []
    assert bare.verify().problems == (note,)
    monkeypatch.undo()
    bare.put("t/new.md")
    at.rename(bare.top.parent / "away")
    assert told(bare) == ()
    assert is_right(bare)
