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

from muniment.content.gates import one_line
from muniment.names import RelPath, Scope, Trust
from muniment.store import index
from muniment.store.index import (
    MAX_BYTES,
    MAX_LINES,
    PAGE_HEAD_BYTES,
    IndexRow,
    entry_line,
    excerpt,
    fits_half,
    fits_index,
    fits_links,
    fits_page,
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
from store.test_index import ATTACKS, texts

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


def test_a_page_reads_like_this():
    _, lines = lines_of("editor", ["dark mode.md", "(1).md"], "Prefers [dark] mode", "always]( so")
    assert render_page(SCOPE, "editor", "3f", lines).decode() == (
        "# Memory index: editor, part 3f\n"
        "\n"
        "Generated from 2 of the entries of user; changes made here are lost.\n"
        "\n"
        "- [Prefers \\[dark\\] mode](../editor/dark%20mode.md) — always\\]( so\n"
        "- [Prefers \\[dark\\] mode](../editor/%281%29.md) — always\\]( so\n"
    )


def test_a_page_of_links_reads_like_this():
    links = [
        page_link("editor", "", 52, "0123456789ab.md"),
        page_link("", "4", 1, "fedcba987654-4.md"),
        pages_link("3f", 1, 1, "_pages-3f.md"),
        pages_link("30", 2, 70, "_pages-30.md"),
    ]
    assert render_links(SCOPE, "3", 124, links).decode() == (
        "# Memory index: pages 3\n"
        "\n"
        "Generated from 124 of the entries of user; changes made here are lost.\n"
        "\n"
        "- [editor](0123456789ab.md) — 52 entries\n"
        "- [(no topic), part 4](fedcba987654-4.md) — 1 entry\n"
        "- [pages 3f](_pages-3f.md) — 1 page, 1 entry\n"
        "- [pages 30](_pages-30.md) — 2 pages, 70 entries\n"
    )


def test_an_index_with_pages_reads_like_this():
    _, lines = lines_of("editor", ["a.md"])
    links = [page_link("editor", "", 52, "index/0123456789ab.md")]
    assert render_index(SCOPE, 53, lines, links).decode() == (
        "# Memory index\n"
        "\n"
        "Generated from the 53 entries of user; changes made here are lost."
        " 52 more entries are only on the pages linked first.\n"
        "\n"
        "- [editor](index/0123456789ab.md) — 52 entries\n"
        "\n"
        "- [Name](editor/a.md) — text\n"
    )


def test_one_entry_that_is_only_on_a_page_is_one():
    _, lines = lines_of("editor", ["a.md"])
    data = render_index(SCOPE, 2, lines, [page_link("editor", "", 2, "index/0123456789ab.md")])
    assert b" 1 more entry is only on the pages linked first.\n" in data


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


@pytest.mark.parametrize("topic", TOPICS)
def test_heading_and_notice_of_a_page_take_no_more_than_is_kept_free(topic):
    scope = Scope("é" * 300)
    head = render_page(scope, topic or "\U0001f600" * 300, "f" * 64, []).decode()
    assert len(head.encode()) + len("999999") <= PAGE_HEAD_BYTES
    assert head.count("\n") == 4


# Limits.


@pytest.mark.threat("T-IDX-04", control="index_size")
@pytest.mark.parametrize(("count", "width"), [(196, 50), (55, 440), (130, 180)])
def test_what_fits_on_a_page_keeps_to_the_size_of_a_page(count, width):
    _, lines = lines_of("t", [f"{at:03}" + "x" * width + ".md" for at in range(count)], "é", "")
    while not fits_page(len(lines), len("".join(lines).encode())):
        lines.pop()
    data = render_page(SCOPE, "t", "", lines)
    assert len(data) <= MAX_BYTES
    assert data.count(b"\n") <= MAX_LINES
    assert len(lines) > 20


def test_limits_count_lines_and_bytes_with_the_way_up():
    assert fits_page(196, 24_000 - 3 * 196)
    assert not fits_page(196, 24_001 - 3 * 196)
    assert not fits_page(197, 0)
    assert fits_links(196, 24_000)
    assert not fits_links(196, 24_001)
    assert not fits_links(197, 0)
    assert fits_half(98, 12_500)
    assert not fits_half(99, 0)
    assert not fits_half(98, 12_501)
    head = len(render_index(SCOPE, 0, [])) + len("196") - len("0") + len("\n")
    assert fits_index(SCOPE, 196, MAX_BYTES - head)
    assert not fits_index(SCOPE, 196, MAX_BYTES - head + 1)
    assert not fits_index(SCOPE, 197, 0)


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


def test_an_index_whose_links_leave_no_room_ends_with_them():
    links = [page_link("t", f"{at:02}", 2, f"index/{at:012}.md") for at in range(98)]
    long = "- [x](" + "y" * 24_000 + ")\n"
    data = render_index(SCOPE, 3_000, [long], links)
    assert data.endswith(links[-1].encode())
    assert b" 3000 more entries" in data


# Recognising them.


def page(topic="editor", prefix="", names=("a.md", "b.md")):
    return render_page(SCOPE, topic, prefix, lines_of(topic, names)[1])


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("prefix", ["", "0", "3f" * 32])
def test_a_page_is_recognised_under_its_own_name(topic, prefix):
    part = f"-{prefix}" if prefix else ""
    for digits in (digest(topic), hashlib.sha256(topic.encode()).hexdigest()):
        assert is_page_name(f"{digits}{part}.md")
        assert is_generated(page(topic, prefix), f"index/{digits}{part}.md")


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
    "rel",
    [
        f"index/{digest('another')}.md",
        f"index/{digest('editor')}-0.md",
        "index/notes.md",
        "index/_pages-3.md",
        "index/MEMORY.md",
        "MEMORY.md",
    ],
)
def test_a_page_is_ours_under_no_other_name(rel):
    assert not is_generated(page(), rel)


@pytest.mark.parametrize(
    "name", ["notes.md", "MEMORY.md", "_pages-.md", "_pages-g.md", "ABC.md", "a-.md", "a.txt", ""]
)
def test_other_names_are_not_those_of_pages(name):
    assert not is_page_name(name)


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


def test_the_quick_way_is_taken_by_ordinary_text_and_only_by_that():
    for text in ("Prefers dark mode; size 12 (big), 50%", "it's a.b, 7:30 / x"):
        assert one_line(text) == text
        assert index._CHANGES.search(text) is None
    for text in ("a  b", "a\tb", "é", "*", "x://y", "WWW.", "a@b", "\x7f"):
        assert index._CHANGES.search(text) is not None
