"""The pages of an index are a function of its entries, however they came to be what they are."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from functools import cache

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kit.store.shelf import Limits, Shelf, expected, sha
from muniment.store import index
from muniment.store.index import TopicPart, split

SMALL = Limits(flat=(6, 700), page=(4, 400), half=(3, 300), links=(3, 300), digits=1)
"""Limits under which a dozen entries make pages of links to pages of links, and topics share their digits."""

TOPICS = ("", "a", "A", "b_c", "d/e", "f", "g", "h", "i & j", "é")
NAMES = tuple(f"{name}.md" for name in ("1", "2", "3", "4", "5", "6", "x y", "ü", "Z", "z"))
rels = st.builds(
    lambda topic, name: f"{topic}/{name}".lstrip("/"), st.sampled_from(TOPICS), st.sampled_from(NAMES)
)


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
        patch.setattr(index, "fits_index", fits(SMALL.flat, head=head_of))
        patch.setattr(index, "fits_page", fits(SMALL.page, per_line=len("../")))
        patch.setattr(index, "fits_half", fits(SMALL.half))
        patch.setattr(index, "fits_links", fits(SMALL.links))
        patch.setattr(index, "TOPIC_DIGITS", SMALL.digits)
        yield


@pytest.fixture
def shelf(tmp_path):
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

    @rule(some=st.lists(rels, min_size=1, max_size=20), length=st.sampled_from([0, 10, 150]))
    def put(self, some, length):
        for rel in some:
            self.shelf.put(rel, "w" * length)

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
            assert files == expected(self.shelf.lines, SMALL)
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


# The real limits.


def filled(shelf, rels, description=""):
    with shelf.catalog.transaction():
        for rel in rels:
            shelf.put(rel, description)
    return shelf.index()


@pytest.mark.threat("T-IDX-03", control="index_follows")
def test_one_change_writes_its_page_the_links_to_it_and_memory_md(shelf):
    filled(shelf, [f"topic {at % 100}/{at}.md" for at in range(500)])
    page = f"index/{sha('topic 7')[:12]}.md"
    whole = sorted(["MEMORY.md", f"index/_pages-{sha(page.removeprefix('index/'))[0]}.md", page])
    changes = [(shelf.put, "", whole), (shelf.put, "another line", [page]), (shelf.drop, None, whole)]
    for change, line, written in changes:
        change("topic 7/new.md", *([] if line is None else [line]))
        assert sorted(shelf.index()) == written
        assert shelf.files() == expected(shelf.lines)
    assert shelf.index() == []


def test_a_page_that_would_pass_a_limit_is_split_by_the_next_digit(shelf):
    for entries, parts in ((196, 1), (197, 16)):
        filled(shelf, [f"t/{at}.md" for at in range(entries)] + [f"u/{at}.md" for at in range(100)])
        assert len([rel for rel in shelf.files() if rel.startswith(f"index/{sha('t')[:12]}")]) == parts


# Pages as values.


def test_parts_that_fit_together_are_one_and_others_stay_apart():
    parts = [("0a", 100, 9_000), ("0b", 96, 9_000), ("1", 1, 100), ("2c", 150, 10_000)]
    joined = [("0", 196, 18_000), ("1", 1, 100), ("2", 150, 10_000)]
    assert list(split([TopicPart(*part) for part in parts])) == [TopicPart(*part) for part in joined]
