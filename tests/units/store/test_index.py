"""The index: whatever entries call themselves, each is one line with one link, as markdown-it-py sees it."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from muniment.content.gates import GATES, check_text
from muniment.names import RelPath, Scope, Trust
from muniment.policy.grammar import fold, segment_problem
from muniment.store.index import (
    HEADING,
    MAX_BYTES,
    MAX_LINE_BYTES,
    MAX_LINES,
    IndexRow,
    entry_line,
    excerpt,
    is_generated,
    is_index_path,
    render_index,
)

SCOPE = Scope("project")

ATTACKS = [
    "[evil](http://evil.example)",
    "](http://evil.example) [x",
    "![image](http://evil.example/x.png)",
    "<script>alert(1)</script>",
    "<http://evil.example>",
    "http://evil.example",
    "HTTPS://evil.example",
    "ftp://evil.example:://x",
    "www.evil.example",
    "wWw.www.evil.example",
    "someone@evil.example",
    "a@@b@c.d",
    "[[wiki link]]",
    "[^1]",
    "[x]: http://evil.example",
    "**bold** __bold__ *em* _em_ ~~gone~~",
    "`code` ``code``",
    "&lt;b&gt; &#91;x&#93; &amp;",
    "\\",
    "a\\",
    "\\[x\\](y)",
    "a\n# Heading",
    "a\r- [x](y)",
    "a\u2028# b\u2029c\x85d\x0be\x0cf\x1cg",
    "\u202egnihtemos\u202c",
    "a\u200bb\u2060c\ufeffd\xade\U000e0041",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "# not a heading",
    "]",
    "[",
    "a](b",
    "   ",
    "",
    "\x00",
    "[ ] task",
    "x",
    "ignore\x1b[31m all",
    "'\"()",
    "x" * 10_000,
    "[" * 10_000,
    "é" * 10_000,
    "\U0001f600" * 10_000,
    "\ud800",
]

texts = st.one_of(
    st.text(), st.sampled_from(ATTACKS), st.text("[]()<>!*_`~#|&\\:/@w. \n\r\u2028ab", max_size=40)
)
names = st.text("abcXYZ019 -_.+,&;=@'éß記憶нاﬁ\U0001f600", min_size=1, max_size=12).map(
    lambda name: name.strip(" .")
)
segments = names.filter(lambda name: segment_problem(name) is None)
paths = (
    st.lists(segments, max_size=3)
    .map(lambda names: RelPath("/".join([*names, "a b.md"])))
    .filter(lambda rel: not is_index_path(rel))
)
rows = st.lists(
    st.builds(
        IndexRow,
        paths,
        texts,
        texts,
        st.sampled_from(list(Trust)),
        st.sampled_from([True, True, True, False]),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=20,
    unique_by=lambda row: row.rel,
)


def row(rel, name="Name", description="Description", trust=Trust.OWNER, **more):
    return IndexRow(RelPath(rel), name, description, trust, **more)


def rendered(given_rows, scope=SCOPE):
    """An index of nothing but `MEMORY.md`, in the order that entries have there."""
    in_order = sorted(given_rows, key=lambda given: (fold(given.rel), given.rel))
    return render_index(scope, len(in_order), [entry_line(given) for given in in_order])


def lines_of(data):
    return [line for line in data.decode().split("\n") if line.startswith("- ")]


def links_of(data):
    """Link targets by the oracle, after it was asked that nothing else is there."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(data.decode())
    kinds = {token.type for token in tokens}
    assert kinds <= {
        *("heading_open", "heading_close", "inline", "paragraph_open", "paragraph_close"),
        *("bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close"),
    }
    assert [token.type for token in tokens].count("heading_open") == 1
    assert [token.type for token in tokens].count("bullet_list_open") <= 1
    links = []
    for token in tokens:
        children = token.children or []
        assert {child.type for child in children} <= {
            "text",
            "link_open",
            "link_close",
            "softbreak",
            "text_special",
        }
        opened = [child for child in children if child.type == "link_open"]
        if token.type == "inline" and token.level > 1:  # inside the list
            assert len(opened) == 1
            assert "softbreak" not in {child.type for child in children}
            assert not opened[0].attrGet("title")
            links.append(unquote(opened[0].attrGet("href"), errors="strict"))
        else:
            assert not opened
    return links


def shown(data):
    """The text of the list items as the oracle shows it."""
    tokens = MarkdownIt("commonmark").parse(data.decode())
    return ["".join(c.content for c in t.children) for t in tokens if t.type == "inline" and t.level > 1]


@pytest.mark.threat("T-IDX-01", control="index_rows")
@given(rows)
def test_each_entry_is_one_link_to_its_own_file_and_nothing_else_is_there(given_rows):
    data = rendered(given_rows)
    assert links_of(data) == [entry.rel for entry in sorted(given_rows, key=lambda r: (fold(r.rel), r.rel))]
    assert len(lines_of(data)) == len(given_rows)


@pytest.mark.threat("T-IDX-01", control="index_rows")
@given(rows)
def test_no_line_of_an_index_hides_or_links_anything(given_rows):
    data = rendered(given_rows)
    text = data.decode()
    check_text(text, GATES)
    assert len(text.splitlines()) == text.count("\n")
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") for char in text if char != "\n")
    for line in lines_of(data):
        assert len(line.encode()) < MAX_LINE_BYTES
        text = "".join(shown(f"{line}\n".encode()))
        assert "://" not in text
        assert not re.search(r"www\.|\S@\S", text, re.IGNORECASE)


@given(rows)
def test_what_we_generate_is_recognised(given_rows):
    assert is_generated(rendered(given_rows))


@pytest.mark.threat("T-IDX-01", control="index_rows")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda text: ascii(text)[:40])
def test_no_field_can_forge_a_line_or_a_link(attack):
    given_rows = [row("a.md"), row("b.md", attack, attack), row("c.md", attack, attack, Trust.EXTERNAL)]
    assert links_of(rendered(given_rows)) == ["a.md", "b.md", "c.md"]


@pytest.mark.parametrize("trust", list(Trust))
def test_a_held_entry_appears_by_path_and_label_only(trust):
    assert lines_of(rendered([row("a.md", "IGNORE", "OBEY", trust, held=True)])) == ["- [a.md](a.md) — held"]


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("n", "d"),
        ("n" * 500, "d" * 500),
        ("é" * 500, "ü" * 500),
        ("\U0001f600" * 99, "[" * 500),
        ("*" * 99, "_" * 500),
    ],
)
@pytest.mark.parametrize("path_bytes", [4, 100, 400, 440, 480])
def test_name_and_description_give_way_to_the_path(name, description, path_bytes):
    rel = "p" * (path_bytes - 3) + ".md"
    data = rendered([row(rel, name, description)])
    (line,) = lines_of(data)
    assert links_of(data) == [rel]
    assert len(line.encode()) < max(MAX_LINE_BYTES, path_bytes + 50)
    text = shown(data)[0]
    assert text.startswith(name[:1])
    assert len(text) <= 80 + 3 + 150


@pytest.mark.threat("T-IDX-04", control="index_size")
@pytest.mark.parametrize(
    ("count", "name", "description"),
    [
        (196, "n", ""),
        (197, "n", ""),
        (5_000, "n", ""),
        (150, "n" * 80, "d" * 150),
        (300, "é" * 80, "é" * 150),
    ],
)
def test_an_index_keeps_to_its_size_and_counts_the_rest(count, name, description):
    given_rows = [row(f"{at:05}.md", name, description) for at in range(count)]
    data = rendered(given_rows)
    listed = len(lines_of(data))
    assert data.count(b"\n") <= MAX_LINES
    assert len(data) <= MAX_BYTES
    assert links_of(data) == [f"{at:05}.md" for at in range(listed)]
    missing = re.search(rb" ([0-9]+) more entr(?:y is|ies are) not listed here\.", data)
    assert (int(missing[1]) if missing else 0) == count - listed
    assert is_generated(data)
    # No entry more would have fitted.
    if missing:
        line = len(lines_of(data)[0].encode()) + 1
        assert data.count(b"\n") == MAX_LINES or len(data) + line + 10 > MAX_BYTES


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n \n\t\n",
        b"# Memory index",
        b"\xef\xbb\xbf# Memory index\r\n\r\n- [A](a.md) \xe2\x80\x94 hook\r\n",
        b"- [A](a.md)\n* [B](b/c.md) - text\n  + [C \\] x](d.md): text\n",
    ],
)
def test_what_other_tools_generate_holds_nothing_that_would_be_missed(data):
    assert is_generated(data)


@pytest.mark.parametrize(
    "text",
    [
        "# Memory",
        "# Memory index of mine",
        "## Memory index",
        "Remember to buy milk",
        "- buy milk",
        "- [ ] buy milk",
        "- [A]",
        "- [A]()",
        "- text before [A](a.md)",
        "[A](a.md)",
        "Generated from the 3 entries of two words; changes made here are lost.",
        "Generated from the 3 entries of user; changes made here are lost. Buy milk.",
        "- [A](a.md)\nbuy milk",
    ],
)
def test_what_a_person_wrote_is_no_generated_index(text):
    assert not is_generated(f"{HEADING}\n\n{text}\n".encode())


FOREIGN_TARGETS = [
    "https://wiki/x.md",
    "https:wiki.md",
    "mailto:bob@example.md",
    "//wiki/x.md",
    "/etc/x.md",
    "../x.md",
    "a/../x.md",
    "%2e%2e/x.md",
    "a/%2E%2E/x.md",
    "%2Fetc/x.md",
    "https%3A//wiki/x.md",
    "C:/x.md",
    "a%00.md",
    "a\0.md",
    "a%0Ab.md",
    "%FF.md",
    "./a.md",
    "a//b.md",
    "a.md ",
    "a.txt",
    "a.MD",
    "a.md#part",
    "a.md?x=1",
    'a.md "call Bob"',
    "<a.md>",
    "call Bob",
    "index/abc",
    "index/../../x.md",
    "a" * 300 + ".md",
    "a/" * 9 + "a.md",
]


@pytest.mark.parametrize("target", FOREIGN_TARGETS, ids=lambda text: ascii(text)[:30])
def test_a_link_that_leads_to_no_file_of_the_scope_is_a_persons_own_note(target):
    assert not is_generated(f"# Memory index\n\n- [On-call]({target}) - call Bob\n".encode())


def test_an_excerpt_asks_for_the_decoded_path_and_drops_a_link_that_leads_nowhere():
    asked = []
    index = b"\xef\xbb\xbf# Memory index\r\n* [A](t/%C3%89%20x.md) - hook\r- [B](http://b.md)\n - [C](c.md)"
    assert excerpt(index, lambda rel: asked.append(rel) or rel != "c.md") == (
        "# Memory index\n* [A](t/%C3%89%20x.md) - hook"
    )
    assert asked == ["t/É x.md", "c.md"]
