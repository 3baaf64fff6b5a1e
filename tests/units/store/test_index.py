"""The index: for any entry name, each entry is one line with one link, as markdown-it-py reads it."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from muniment.content.gates import GATES, check_text
from muniment.kernel.names import RelPath, Scope, Trust
from muniment.kernel.path import find_segment_problem, fold
from muniment.store import index
from muniment.testing.corpus.index_oracle import find_index_problems, list_targets

USER = Scope("user")
ATTACKS = [
    *("[evil](http://evil.example)", "](http://evil.example) [x", "![image](http://evil.example/x.png)"),
    *("<script>alert(1)</script>", "<http://evil.example>", "http://evil.example", "HTTPS://evil.example"),
    *("ftp://evil.example:://x", "www.evil.example", "wWw.www.evil.example", "someone@evil.example"),
    *("a@@b@c.d", "[[wiki link]]", "[^1]", "[x]: http://evil.example", "`code` ``code``", "\\", "a\\"),
    *("**bold** __bold__ *em* _em_ ~~gone~~", "&lt;b&gt; &#91;x&#93; &amp;", "\\[x\\](y)", "a\n# Heading"),
    *("a\r- [x](y)", "a\u2028# b\u2029c\x85d\x0be\x0cf\x1cg", "\u202egnihtemos\u202c", "# not a heading"),
    *("a\u200bb\u2060c\ufeffd\xade\U000e0041", "| a | b |\n|---|---|\n| 1 | 2 |", "]", "[", "a](b", "   "),
    *("", "\x00", "[ ] task", "x", "ignore\x1b[31m all", "'\"()", "x" * 2_000, "[" * 2_000, "é" * 2_000),
    *("\U0001f600" * 2_000, "\ud800"),
]
marks = st.text("[]()<>!*_`~#|&\\:/@w. \n\r\u2028ab", max_size=40)
texts = st.one_of(st.text(), st.sampled_from(ATTACKS), marks)
names = st.text("abcXYZ019 -_.+,&;=@'éß記憶нاﬁ\U0001f600", min_size=1, max_size=12)
segments = names.map(lambda name: name.strip(" .")).filter(lambda name: find_segment_problem(name) is None)
paths = st.lists(segments, max_size=3).map(lambda names: RelPath("/".join([*names, "a b.md"])))
one_of_four = st.sampled_from([True, False, False, False])
files = paths.filter(lambda rel: not index.is_index_path(rel))
flags = one_of_four.map(lambda chosen: not chosen), one_of_four
each_row = st.builds(index.IndexRow, files, texts, texts, st.sampled_from(list(Trust)), *flags)
rows = st.lists(each_row, max_size=20, unique_by=lambda row: row.rel)


def make_row(rel, name="Name", description="Description", trust=Trust.OWNER, **more):
    return index.IndexRow(RelPath(rel), name, description, trust, **more)


def sort_rows(index_rows):
    return sorted(index_rows, key=lambda index_row: (fold(index_row.rel), index_row.rel))


def render(index_rows):
    """Render an index of only `MEMORY.md`, in the order of its entries."""
    lines = [index.format_entry_line(index_row) for index_row in sort_rows(index_rows)]
    return index.render_index(Scope("project"), len(index_rows), lines)


def list_lines(data):
    return [line for line in data.decode().split("\n") if line.startswith("- ")]


def list_links(data):
    """Return the link targets, after the oracle checked that nothing else is present."""
    links = list_targets(data)
    assert [each for each in find_index_problems(data, {*links}) if "contains U+" not in each] == []
    return links


def render_line(line):
    """Return the text of a list item as markdown renders it."""
    (item,) = (token for token in MarkdownIt("commonmark").parse(line) if token.type == "inline")
    return "".join(child.content for child in item.children)


@pytest.mark.threat("T-IDX-01", control="index_rows")
@given(rows)
def test_each_entry_is_one_link_and_no_line_hides_another_link(index_rows):
    data = render(index_rows)
    text = data.decode()
    assert list_links(data) == [entry.rel for entry in sort_rows(index_rows)]
    assert len(list_lines(data)) == len(index_rows)
    check_text(text, GATES)
    assert len(text.splitlines()) == text.count("\n")
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") for char in text if char != "\n")
    for line in list_lines(data):
        assert len(line.encode()) < index.MAX_LINE_BYTES
        text = render_line(line)
        assert not re.search(r"://|www\.|\S@\S", text, re.IGNORECASE)
    assert index.is_generated(data)


@pytest.mark.threat("T-IDX-01", control="index_rows")
def test_no_field_can_forge_a_line_a_link_or_a_heading():
    expected = ["index/0123456789ab.md", "index/ba9876543210.md"]
    for attack in (*TOPICS, *ATTACKS):
        index_rows = [
            make_row("a.md"),
            make_row("b.md", attack, attack),
            make_row("c.md", attack, attack, Trust.EXTERNAL),
        ]
        assert list_links(render(index_rows)) == ["a.md", "b.md", "c.md"], attack
        topic = attack.encode(errors="ignore").decode()
        above = [
            index.format_page_link(each, "", 2, rel) for each, rel in zip((topic, "b"), expected, strict=True)
        ]
        assert list(find_index_problems(index.render_index(USER, 3, [], above), {*expected})) == [], topic
        page = index.render_page(USER, topic, "", make_lines("b", ["a.md"], attack, attack))
        assert list_links(page) == ["../b/a.md"], topic
    for trust in Trust:
        (line,) = list_lines(render([make_row("a.md", "IGNORE", "OBEY", trust, is_withheld=True)]))
        assert line == "- [a.md](a.md) — held"


CUT = "Prefers a fact that is so long that no title has room for all of it, whatever…"
WHOLE = "The user prefers a fact that is so long that no title has room for all of it, whatever it says"


def test_text_shared_by_name_and_description_is_shown_once():
    for name, description, expected in (
        *(("Dark mode", each, "Dark mode") for each in ("Dark mode", "dark  mode.", "Dark\nmode", "")),
        ("Prefers dark mode", "The user prefers dark mode.", "Prefers dark mode"),
        ("Prefers dark mode", "Remember: The user prefers **dark** mode", "Prefers dark mode"),
        ("設定は暗い", "設定は暗い。", "設定は暗い"),
        ("Dark mode", "The user prefers dark mode", "Dark mode — The user prefers dark mode"),
        ("Dark mode", "Dark mode at night", "Dark mode — Dark mode at night"),
        ("Dark mode", "Dark mode\nbut never at night", "Dark mode — Dark mode but never at night"),
        ("Dark mode?", "Dark mode", "Dark mode? — Dark mode"),
        (CUT, WHOLE, WHOLE),
        (CUT, CUT, CUT),
        (CUT.rstrip("…"), WHOLE, f"{CUT.rstrip('…')} — {WHOLE}"),
        ("A fact that…", "A fact that is told", "A fact that is told"),
        ("A fact that…", "Another fact that is told", "A fact that… — Another fact that is told"),
        ("n" * 100, "n" * 100, "n" * 100),
    ):
        line = index.format_entry_line(make_row("a.md", name, description))
        assert render_line(line) == expected, (name, description)
        assert list_links(index.render_index(USER, 1, [line])) == ["a.md"]
    for trust in (Trust.AGENT, Trust.EXTERNAL):
        assert render_line(index.format_entry_line(make_row("a.md", CUT, WHOLE, trust))) == f"a.md — {trust}"


def test_name_and_description_are_cut_in_favour_of_the_path():
    fields = [("n", "d"), *((char * 500, other * 500) for char, other in ("xy", "éü", "\U0001f600[", "*_"))]
    for (name, description), path_bytes in product(fields, (4, 100, 400, 440, 480)):
        rel = "p" * (path_bytes - 3) + ".md"
        data = render([make_row(rel, name, description)])
        (line,) = list_lines(data)
        assert list_links(data) == [rel]
        assert len(line.encode()) < max(index.MAX_LINE_BYTES, path_bytes + 50)
        text = render_line(line)
        assert text.startswith(name[:1])
        assert len(text) <= 80 + 3 + 150


def is_within_size(data, next_line):
    """Return whether an index obeys its size and, if a line was left out, whether that line does not fit."""
    lines, size = data.count(b"\n"), len(data)
    assert lines <= index.MAX_LINES
    assert size <= index.MAX_BYTES
    assert index.is_generated(data)
    is_full = next_line is None or size + len(next_line.encode()) + 10 > index.MAX_BYTES
    return is_full or lines == index.MAX_LINES


@pytest.mark.threat("T-IDX-04", control="index_size")
def test_index_is_bounded_and_counts_the_rest():
    long, longer = ("n" * 80, "d" * 150), ("é" * 80, "é" * 150)
    for count, fields in ((196, ("n", "")), (197, ("n", "")), (1_000, ("n", "")), (150, long), (300, longer)):
        index_rows = [make_row(f"{at:05}.md", *fields) for at in range(count)]
        data = render(index_rows)
        listed = len(list_lines(data))
        assert list_links(data) == [f"{at:05}.md" for at in range(listed)]
        missing = re.search(rb" ([0-9]+) more entr(?:y is|ies are) not listed here\.", data)
        assert (int(missing[1]) if missing else 0) == count - listed
        assert is_within_size(data, index.format_entry_line(index_rows[listed]) if missing else None)
    for links, width in ((16, 10), (98, 40), (20, 240), (1, 3)):
        above = [
            index.format_page_link("t" * 60, f"{at:03}", 200, f"index/{at:012}.md") for at in range(links)
        ]
        lines = make_lines("t", [f"{at:03}" + "x" * width + ".md" for at in range(200)], "é", "é")
        data = index.render_index(USER, 3_000, lines, above)
        listed = len(list_lines(data)) - links
        assert f" {3_000 - listed} more entries are only".encode() in data
        assert is_within_size(data, lines[listed])


# Pages: links that lead to their target, names that match the content.

TOPICS = ["editor", "", "a_b & c", "項目/x", "www.a.b", "me@home", "t" * 200, "Éé/Ü", "deep/er/still", "_"]


def compute_digest(topic):
    return hashlib.sha256(topic.encode()).hexdigest()[:12]


def make_page_path(topic):
    return f"index/{compute_digest(topic)}.md"


def make_lines(topic, names=("a.md", "b.md"), name="Name", description="text"):
    rels = [RelPath(f"{topic}/{each}".lstrip("/")) for each in names]
    return [index.format_entry_line(index.IndexRow(rel, name, description, Trust.OWNER)) for rel in rels]


# Recognizing generated files.

TARGETS = [
    *("https://wiki/x.md", "https:wiki.md", "mailto:bob@example.md", "//wiki/x.md", "/etc/x.md", "../x.md"),
    *("a/../x.md", "%2e%2e/x.md", "a/%2E%2E/x.md", "%2Fetc/x.md", "https%3A//wiki/x.md", "C:/x.md"),
    *("a%00.md", "a\0.md", "a%0Ab.md", "%FF.md", "./a.md", "a//b.md", "a.md ", "a.txt", "a.MD", "a.md#part"),
    *('a.md "call Bob"', "<a.md>", "call Bob", "index/abc", "index/../../x.md", "a.md?x=1"),
    *("a" * 300 + ".md", "a/" * 9 + "a.md"),
]
FOREIGN = [
    *("# Memory", "# Memory index of mine", "## Memory index", "Remember to buy milk", "- buy milk", "- [A]"),
    *("- [ ] buy milk", "- [A]()", "- text before [A](a.md)", "[A](a.md)", "- [A](a.md)\nbuy milk"),
    "Generated from the 3 entries of two words; changes made here are lost.",
    "Generated from the 3 entries of user; changes made here are lost. Buy milk.",
    *(f"- [On-call]({target}) - call Bob" for target in TARGETS),
]
GENERATED = [
    *(b"", b"\n \n\t\n", b"# Memory index"),
    b"- [A](a.md)\n* [B](b/c.md) - text\n  + [C \\] x](d.md): text\n",
    b"\xef\xbb\xbf# Memory index\r\n\r\n- [A](a.md) \xe2\x80\x94 hook\r\n",
]


def test_foreign_text_is_not_generated_but_other_indexes_are():
    foreign = [(f"{index.HEADING}\n\n{text}\n".encode(), False) for text in FOREIGN]
    for data, generated in (*foreign, *((data, True) for data in GENERATED)):
        assert index.is_generated(data) == generated, data


def test_edited_page_is_not_generated():
    rel, page = make_page_path("editor"), index.render_page(USER, "editor", "", make_lines("editor"))
    targets = "../other/x.md", "http://wiki/x.md", "../../etc/x.md", "%2e%2e/editor/x.md", "editor/a.md"
    more = "buy milk", "- buy milk", "# Memory index: editor", *(f"- [A]({target})" for target in targets)
    heading = b"# Memory index: editor"
    edits = {heading: b"# Memory index: call Bob", b": editor": b"", b"made here are lost.": b"mine."}
    for edited in (
        *(page + f"{line}\n".encode() for line in more),
        *(page.replace(old, new, 1) for old, new in edits.items()),
        *(b"\n".join(line for line in page.split(b"\n") if b"[" not in line), heading + b"\n"),
        *(b"\0" * 99, page + b"\xff"),
    ):
        assert not index.is_generated(edited, rel), edited
    for generated in (page, b"", b"\r\n \t\n"):
        assert index.is_generated(generated, rel), generated


def test_page_of_links_is_recognized_only_under_its_own_name():
    links = [
        index.format_page_link("a", "", 9, f"{compute_digest('a')}.md"),
        index.format_pages_link("3f", 1, 1, "_pages-3f.md"),
    ]
    data, rel = index.render_links(USER, "3", 9, links), "index/_pages-3.md"
    for name in (rel, "index/_pages-4.md", make_page_path("a")):
        assert index.is_generated(data, name) == (name == rel)
    assert index.is_page_file_name("_pages-3.md")
    for fragment in (b"", b"pages 3f", b" 1 entry", b"[a"):
        edited = data.replace(fragment, fragment + b", ring Bob") if fragment else data
        assert index.is_replaceable(edited, rel, b"", lambda _: ()) == (not fragment), fragment


# Excerpts for a run.


def test_excerpt_decodes_paths_and_drops_dangling_links():
    paths = []
    data = b"\xef\xbb\xbf# Memory index\r\n* [A](t/%C3%89%20x.md) - hook\r- [B](http://b.md)\n - [C](c.md)"
    excerpt = index.filter_index(data, lambda rel: paths.append(rel) or rel != "c.md")
    assert excerpt == "# Memory index\n* [A](t/%C3%89%20x.md) - hook"
    assert paths == ["t/É x.md", "c.md"]
    assert index.filter_index(b"- [All](MEMORY.md)", lambda _: True) == "- [All](MEMORY.md)"


def test_excerpt_has_no_entries_or_pages_of_a_hidden_folder():
    topics = ("secret", "open")
    links = [index.format_page_link(topic, "", 200, make_page_path(topic)) for topic in topics]
    lines = [
        line
        for topic in topics
        for line in make_lines(topic, name=f"{topic} that…", description=f"{topic} that is")
    ]
    data = index.render_index(USER, 400, lines, links)
    assert list_targets(data)[:2] == ["secret/a.md", "secret/b.md"]
    excerpt = index.filter_index(data, lambda rel: not rel.startswith("secret/"))
    assert "secret" not in excerpt
    assert list_targets(excerpt.encode()) == ["open/a.md", "open/b.md", make_page_path("open")]


def is_link_shown(topic, is_visible=lambda _: True, rel=None, prefix=""):
    rel = rel or f"index/{compute_digest(topic)}{prefix and '-'}{prefix}.md"
    link = index.format_page_link(topic, prefix, 3, rel)
    assert index.is_generated(link.encode())
    return index.filter_index(link.encode(), is_visible).strip("\n") + "\n" == link


def test_page_link_is_shown_if_page_and_entries_may_be_shown():
    paths = []
    assert [topic for topic in ("editor", "") if not is_link_shown(topic)] == []
    assert is_link_shown("a_b/c&d", prefix="3f")
    assert is_link_shown("a/b", lambda rel: paths.append(rel) or True)
    assert paths == [make_page_path("a/b"), "a/b/entry.md"]
    for hidden in ("index/", "editor/"):
        assert not is_link_shown("editor", lambda rel, hidden=hidden: not rel.startswith(hidden))
    doubtful = [("editor", make_page_path("secret")), ("editor", "index/notes.md")]
    for topic, rel in (*doubtful, ("me@home", None), ("t" * 200, None)):
        assert not is_link_shown(topic, rel=rel)
    other = lambda rel: rel != "editor/entry.md"  # noqa: E731
    for line, is_visible in (  # The text of a link cannot imitate another topic.
        (index.format_pages_link("3", 2, 9, "index/_pages-3.md"), bool),
        (f"- [editor, part 3]({make_page_path('editor')}) — 3 entries", bool),
        (f"- [editor](index/{compute_digest('editor')}-3.md) — 3 entries", other),
    ):
        assert index.filter_index(line.encode(), is_visible) == "", line


@given(st.one_of(texts, st.text("ab .:/w@", max_size=30)), st.integers(1, 90), st.integers(1, 300))
def test_quick_escape_equals_the_full_escape(text, chars, size):
    quick = index._escape_text(text, chars, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "_NEEDS_ESCAPING", re.compile(""))
        assert index._escape_text(text, chars, size) == quick
