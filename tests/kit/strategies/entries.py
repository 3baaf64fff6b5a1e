"""Entries as text: front matter of YAML writers, and text that only resembles front matter.

The strategies include every kind of scalar and list that front matter may have, also unfinished, nested,
duplicated, commented out, after a byte order mark, with any line break that some reader accepts, closed or
not.
"""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

KEYS: Final = (
    "name",
    "description",
    "type",
    "keywords",
    "muniment",
    "x",
    '"name"',
    "'type'",
    '"\\u006duniment"',
)

VALUES: Final = (
    *("", "a", "Prefers dark mode", "user", "project", "~", "null", "yes", "1", "1e3", "0x1f", "2026-11-21"),
    *('"a"', "'a'", "'it''s'", '"\\u202e"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\x00"', '"\\'),
    *('"left open', "'open"),
    *("a: b", "a:b", "a #b", "a#b", "# c", "- a", "? a", "& a", "&a b", "*a", "!!str a", "!a", "%a", "@a"),
    "`a`",
    *("[a, b]", '[a, "b, c"]', "[a", "a]", "[]", "[[a]]", "{a: b}", "{", "[a, {b: c}]", "[?, -]", "[a,]"),
    "[,]",
    *("|", ">", "|-", ">+", "|2", ">9", "|x", "| # c", ">- #c", '{"id": "01J", "trust": "owner"}'),
    '{"a": NaN}',
    *("a\tb", "\ta", "a\u2028b", "a\x85b", "é\u0301", "日本", "\ufeffa", "\x07", "\U000e0041", "a\u200bb"),
)
"""Texts after a colon."""

BELOW: Final = (
    *("  more", " - a", "- a", "  - a: b", "  # c", "#c", "", " ", "\t", "\tmore", "   deeper", "plain"),
    *("..", "----"),
    *("'closed'", '  end"', "  ]", "]", "? x", ": y", "name : a", " name: b", "name:b", "---x", "--- x"),
    "... #",
)
"""Lines between the keys."""

GOOD_LINES: Final = (
    *("name: Prefers dark mode", "description: Editor appearance", "type: user"),
    'keywords: [theme, "dark mode"]',
    *('muniment: {"id": "01J", "trust": "owner"}', "name: 'a'", "type: project", "keywords:", "- a"),
    "# comment",
)
"""Lines of real entries."""

BREAKS: Final = ("\r\n", "\r", "\x85", "\u2028")

MARKS: Final = ("\ufeff---", "--- ", "---\t", " ---", "----", "\n---", "--- #", "\ufeff\ufeff---", "", "+++")
"""Opening lines; only the first three are valid."""

CLOSINGS: Final = ("...", "--- ", "", "----", " ---", "---\u2028", "--- # c", "---x")
"""Closing lines; only the first two are valid."""

BODIES: Final = (
    "text\n",
    "",
    "# Heading\n\nText.\n",
    "---\nname: b\n---\n",
    "```\n# code\n",
    "> - 1) item\n",
)


def entry_texts() -> st.SearchStrategy[str]:
    """Return texts of entries, most with front matter. The body may contain lone surrogates."""
    body = st.sampled_from(BODIES) | st.text(st.characters(exclude_categories=()), max_size=40)
    front = _fronts()
    return st.one_of(body, *[st.builds(str.__add__, front, body)] * 3)


@st.composite
def _fronts(draw: st.DrawFn) -> str:
    """Draw front matter with at most two errors."""
    mark, newline, closing = "---", "\n", "---"
    lines = draw(st.lists(st.sampled_from(GOOD_LINES), max_size=5, unique=True))
    for damage in draw(
        st.lists(st.sampled_from(["lines", "lines", "mark", "newline", "closing"]), max_size=2)
    ):
        if damage == "lines":
            lines = draw(st.permutations(lines + draw(st.lists(_bad_lines(), min_size=1, max_size=4))))
        elif damage == "mark":
            mark = draw(st.sampled_from(MARKS))
        elif damage == "newline":
            newline = draw(st.sampled_from(BREAKS))
        else:
            closing = draw(st.sampled_from(CLOSINGS))
    return newline.join([mark, *lines, closing, ""])


def _bad_lines() -> st.SearchStrategy[str]:
    keys = st.sampled_from(KEYS)
    pair = st.builds("{}: {}".format, keys, st.sampled_from(VALUES))
    bare = st.builds("{}{}".format, keys, st.sampled_from([":", " : a", "", ":\ta", "::"]))
    anything = st.text("ab:#'\"[]{}|>-&*!?%@`\\~ \t,", max_size=12)
    return st.one_of(pair, pair, st.sampled_from(BELOW), bare, anything)
