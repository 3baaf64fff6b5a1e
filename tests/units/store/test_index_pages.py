"""Pages of the index as files: links that lead where they say, names that bear out what is on them."""

from __future__ import annotations

import hashlib
import posixpath
import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from muniment.names import RelPath, Scope, Trust
from muniment.store import index
from muniment.store.index import (
    MAX_BYTES,
    MAX_LINES,
    IndexRow,
    entry_line,
    excerpt,
    is_generated,
    is_page_name,
    page_link,
    pages_link,
    render_index,
    render_links,
    render_page,
    says_nothing_else,
)
from muniment.testing.corpus.index_oracle import index_problems
from units.store.test_index import ATTACKS, texts

SCOPE = Scope("user")
TOPICS = ["editor", "", "a_b & c", "項目/x", "www.a.b", "me@home", "t" * 200, "Éé/Ü", "deep/er/still", "_"]


def digest(topic):
    return hashlib.sha256(topic.encode()).hexdigest()[:12]


def lines_of(topic, names=("a.md", "b c.md"), name="Name", description="text"):
    rels = [RelPath(f"{topic}/{each}".lstrip("/")) for each in names]
    return rels, [entry_line(IndexRow(rel, name, description, Trust.OWNER)) for rel in rels]


def led_to(data, rel):
    """Where the links of a file lead, as a reader of markdown resolves them."""
    tokens = MarkdownIt("commonmark").parse(data.decode())
    hrefs = [
        child.attrGet("href")
        for token in tokens
        for child in token.children or ()
        if child.type == "link_open"
    ]
    return [posixpath.normpath(posixpath.join(posixpath.dirname(rel), unquote(href))) for href in hrefs]


# What is on a page.


@pytest.mark.threat("T-IDX-01", control="index_rows")
@given(st.sampled_from(TOPICS), texts, texts)
def test_the_links_of_a_page_lead_to_its_entries_and_nothing_else_is_there(topic, name, description):
    rels, lines = lines_of(topic, ["a.md", "b c.md", "é, 1.md"], name, description)
    rel = f"index/{digest(topic)}-0.md"
    data = render_page(SCOPE, topic, "0", lines)
    assert led_to(data, rel) == rels
    problems = index_problems(data, {f"../{each}" for each in rels})
    assert [
        problem for problem in problems if "holds U+" not in problem
    ] == []  # of those test_index.py knows
    assert is_generated(data, rel)


@pytest.mark.threat("T-IDX-01", control="index_rows")
@pytest.mark.parametrize("topic", [*TOPICS, *ATTACKS[:-1]], ids=lambda text: ascii(text)[:30])
def test_no_topic_can_forge_a_link_or_a_heading(topic):
    links = [page_link(topic, "", 2, "index/0123456789ab.md"), page_link("b", "", 1, "index/ba9876543210.md")]
    expected = {"index/0123456789ab.md", "index/ba9876543210.md"}
    assert list(index_problems(render_index(SCOPE, 3, [], links), expected)) == []
    assert (
        list(index_problems(render_page(SCOPE, topic, "", lines_of("b", ["a.md"])[1]), {"../b/a.md"})) == []
    )


# Limits.


@pytest.mark.threat("T-IDX-04", control="index_size")
@pytest.mark.parametrize(("links", "width"), [(16, 10), (98, 40), (20, 240), (1, 3)])
def test_an_index_with_pages_keeps_to_its_size_and_lists_what_fits(links, width):
    above = [page_link("t" * 60, f"{at:03}", 200, f"index/{at:012}.md") for at in range(links)]
    _, lines = lines_of("t", [f"{at:03}" + "x" * width + ".md" for at in range(200)], "é", "é")
    data = render_index(SCOPE, 3_000, lines, above)
    listed = led_to(data, "MEMORY.md")[links:]
    assert len(data) <= MAX_BYTES
    assert data.count(b"\n") <= MAX_LINES
    assert f" {3_000 - len(listed)} more entries are only".encode() in data
    assert is_generated(data)
    next_line = lines[len(listed)].encode()
    assert data.count(b"\n") == MAX_LINES or len(data) + len(next_line) + 10 > MAX_BYTES


# Recognising them.


def page(topic="editor", prefix="", names=("a.md", "b.md")):
    return render_page(SCOPE, topic, prefix, lines_of(topic, names)[1])


def test_a_page_of_links_is_recognised_under_its_own_name():
    data = render_links(
        SCOPE, "3", 9, [page_link("a", "", 9, f"{digest('a')}.md"), pages_link("3f", 1, 1, "_pages-3f.md")]
    )
    assert is_generated(data, "index/_pages-3.md")
    assert not is_generated(data, "index/_pages-4.md")
    assert not is_generated(data, f"index/{digest('a')}.md")
    assert is_page_name("_pages-3.md")
    assert says_nothing_else(data, "index/_pages-3.md", b"", lambda _: ())
    for told, edited in (
        (b"pages 3f]", b"pages 3f, ring Bob]"),
        (b" 1 entry", b" 1 entry of Bob"),
        (b"[a]", b"[Bob]"),
    ):
        assert not says_nothing_else(data.replace(told, edited), "index/_pages-3.md", b"", lambda _: ())


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text + "buy milk\n",
        lambda text: text + "- buy milk\n",
        lambda text: text + "- [A](../other/x.md)\n",
        lambda text: text + "- [A](http://wiki/x.md)\n",
        lambda text: text + "- [A](../../etc/x.md)\n",
        lambda text: text + "- [A](%2e%2e/editor/x.md)\n",
        lambda text: text + "- [A](editor/a.md)\n",
        lambda text: text + "# Memory index: editor\n",
        lambda text: text.replace("# Memory index: editor", "# Memory index: call Bob"),
        lambda text: text.replace("# Memory index: editor", "# Memory index"),
        lambda text: text.replace("; changes made here are lost.", "; mine."),
        lambda text: "\n".join(line for line in text.split("\n") if "[" not in line),
        lambda _: "# Memory index: editor\n",
        lambda _: "\0" * 99,
    ],
)
def test_a_page_that_somebody_wrote_in_is_not_ours(edit):
    rel = f"index/{digest('editor')}.md"
    assert is_generated(page(), rel)
    assert not is_generated(edit(page().decode()).encode(), rel)


def test_a_page_that_is_no_text_is_not_ours_and_a_blank_one_holds_nothing():
    rel = f"index/{digest('editor')}.md"
    assert not is_generated(page() + b"\xff", rel)
    assert is_generated(b"", rel)
    assert is_generated(b"\r\n \t\n", rel)


# What a run is shown.


def shown(topic, shows=lambda _: True, rel=None, prefix=""):
    link = page_link(topic, prefix, 3, rel or f"index/{digest(topic)}{'-' if prefix else ''}{prefix}.md")
    assert is_generated(link.encode())
    return excerpt(link.encode(), shows).strip("\n") + "\n" == link


def test_a_link_to_a_page_is_shown_if_the_page_and_entries_of_its_topic_are():
    assert shown("editor")
    assert shown("a_b/c&d", prefix="3f")
    assert shown("")
    asked = []
    shown("a/b", lambda rel: asked.append(rel) or True)
    assert asked == [f"index/{digest('a/b')}.md", "a/b/entry.md"]


@pytest.mark.parametrize("hidden", ["index/", "editor/"])
def test_a_topic_that_a_run_may_not_read_is_not_named_to_it(hidden):
    assert not shown("editor", lambda rel: not rel.startswith(hidden))


@pytest.mark.parametrize(
    ("topic", "rel"),
    [
        ("editor", f"index/{digest('secret')}.md"),
        ("editor", "index/notes.md"),
        ("me@home", None),
        ("t" * 200, None),
    ],
)
def test_a_topic_that_cannot_be_told_with_certainty_is_not_shown(topic, rel):
    assert not shown(topic, rel=rel)


def test_links_to_pages_of_links_are_not_shown():
    link = pages_link("3", 2, 9, "index/_pages-3.md").encode()
    assert excerpt(link, lambda _: True) == ""


def test_the_text_of_a_link_cannot_pass_for_another_topic():
    line = f"- [editor, part 3](index/{digest('editor')}.md) — 3 entries"
    assert excerpt(line.encode(), lambda _: True) == ""
    line = f"- [editor](index/{digest('editor')}-3.md) — 3 entries"
    assert excerpt(line.encode(), lambda rel: rel != "editor/entry.md") == ""


# The quick way.


@given(st.one_of(texts, st.text("ab .:/w@", max_size=30)), st.integers(1, 90), st.integers(1, 300))
def test_text_that_nothing_happens_to_is_what_the_whole_way_makes_of_it(text, chars, size):
    quick = index._escaped(text, chars, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_CHANGES", re.compile(""))
        assert index._escaped(text, chars, size) == quick
