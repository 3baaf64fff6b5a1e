"""Excerpts: what is cut, and where it must not be; the oracles are markdown-it and a list of characters."""

from __future__ import annotations

import re
import time
from itertools import accumulate, pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from muniment.recall.recaller import CUT, MAX_PASSAGES, MAX_READ_CHARS, excerpt

MARKDOWN = MarkdownIt("commonmark", {"maxNesting": 100})
PARTED_MARKS = re.compile(r"(?:```|~~~)[ \t]+[`~]")

BLOCKS = (
    *(
        "a plain sentence that says something",
        "# Heading",
        "- item one\n- item two\n  goes on",
        "1. first\n2. second",
    ),
    *(
        "> quoted\n> more of it",
        "```\ncode\n\nmore code\n```",
        "~~~py\nx = '```'\n~~~",
        "````\n```\ninner\n```\n````",
    ),
    *(
        "- item with code\n\n  ```\n  in item\n  ```\n- next",
        "- ```\n  begins with code\n  ```",
        "> ```\n> in quote\n> ```",
    ),
    *(
        "```\n    ```\nnot the end\n```",
        "- ```\n  left open\n```\nanother\n```",
        "```\nnever closed",
        "```a\n\n\n```",
    ),
    *(
        "> ```\n> open in a quote\n\n> ```\n> and another\n",
        "1. ~~~\n   tilde\n   ~~~\n\n   text",
        "   ```\n  odd\n    ```\nx\n```",
    ),
    *(
        "```\nfirst\n```\n```\nsecond\n```",
        "- a\n  - b\n    ```\n    deep\n    ```",
        "<pre>\n```\nhtml\n```\n</pre>",
        "text\n```\nend\n```\ntext",
    ),
    *(
        "    indented ```\n    code",
        "`inline` and ``` more ```",
        "-\t```\n\ttab\n\t```",
        "[link]: /url\n```\nq\n```",
        "* * *",
        "setext\n===",
    ),
)
FRAGMENTS = (
    "```",
    "~~~",
    "````",
    "- ",
    "> ",
    "1. ",
    "  ",
    "    ",
    "\t",
    "a b",
    "\n",
    "\n\n",
    "x",
    "#",
    "`",
    "   ```",
)
BODIES = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=8).flatmap(
    lambda blocks: st.sampled_from(["\n\n", "\n"]).map(lambda between: between.join(blocks))
) | st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)


def spans_of_code(text):
    """Where fenced code begins and ends in a text with plain line breaks, as a stranger reads it."""
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    return [
        (starts[token.map[0]], len(text[: starts[token.map[1]]].rstrip()))
        for token in MARKDOWN.parse(text)
        if token.type == "fence"
    ]


def is_plain(text):
    """Whether markdown-it and `content.blocks` are known to read a text alike.

    They do not where a mark stands behind four columns, right below text, nor for marks of code that are
    parted by spaces, which end code for `content.blocks` alone.
    """
    lines = text.expandtabs(4).split("\n")
    return not PARTED_MARKS.search(text) and not any(
        above.strip() and below.startswith("    ") and below.strip()[:1] in set("-+*>=#<`~1")
        for above, below in pairwise(lines)
    )


def places(text, shown):
    """Where in `text` the shown part may stand, for whom nothing that is left out goes unmarked."""
    has_more_before, has_more_after = shown.startswith(f"{CUT}\n"), shown.endswith(CUT)
    core = shown.removeprefix(f"{CUT}\n") if has_more_before else shown
    core = core.removesuffix(CUT).removesuffix("\n") if has_more_after else core
    found = []
    begin = text.find(core)
    while begin >= 0:
        end = begin + len(core)
        if (begin > 0) == has_more_before and (end < len(text)) == has_more_after:
            found.append((begin, end))
        begin = text.find(core, begin + 1)
    return found


def cuts_none(spans, begin, end):
    return not any(first < at < last for first, last in spans for at in (begin, end))


# -- X1 to X3


@given(
    body=BODIES, limit=st.integers(-3, 260), best=st.sampled_from(["", "code", "item", "more", "x", "first"])
)
@example(body="xxxxxxx\n\nlast", limit=10, best="")
@example(body="```\n    ```\nmore\n```\n\ntext that is longer than it may be", limit=30, best="more")
@example(
    body="- ```\n  code\n```\nreal code\nmore\n```\n\ntext that is longer than it may be",
    limit=30,
    best="real",
)
@example(body="first\n\n" + "long " * 20, limit=40, best="long")
def test_an_excerpt_is_one_part_of_the_text_and_cuts_no_code(body, limit, best):
    text = body.strip()
    shown = excerpt(body, limit, lambda passage: float(passage.count(best)) if best else 0.0)
    if len(text) <= limit:
        assert shown == text
        return
    assert len(shown) <= max(limit, 0)
    if shown:
        assume(is_plain(text))
        spans = spans_of_code(text)
        assert any(cuts_none(spans, *place) for place in places(text, shown)), (shown, spans)


@pytest.mark.parametrize("block", BLOCKS)
def test_no_code_is_cut_wherever_the_limit_falls(block):
    text = f"leading text\n\n{block}\n\ntrailing text of some length"
    spans = spans_of_code(text)
    for best in {line.strip(" >-") for line in block.split("\n")} | {"trailing"}:
        for limit in range(5, len(text)):
            shown = excerpt(text, limit, lambda passage, best=best: float(passage.count(best)))
            assert not shown or any(cuts_none(spans, *place) for place in places(text, shown)), (best, shown)


@pytest.mark.parametrize(
    ("body", "limit", "shown"),
    [
        ("", 0, ""),
        ("  \n\n ", 10, ""),
        ("short", 5, "short"),
        ("  short\n\n", 5, "short"),
        ("short", 4, ""),
        ("short", 0, ""),
        ("short", -1, ""),
        ("one two three four five", 12, "one two…"),
        ("onetwothreefourfive", 14, "onetwothr…"),
        ("a\n\none two three four five", 12, "…\none two…"),
        ("one two three\n\nb", 14, "one two t…"),
        ("a and be " * 10, 60, "a and be " * 5 + "a and be…"),
        ("- one\n- two\n- three", 16, "- one\n- two\n…"),
        ("# Title\ntext of it\n# Other\ntext", 24, "# Title\ntext of it\n…"),
        ("```\na\nb\nc\nd\ne\n```", 12, ""),
        ("```\na\nb\nc\nd\ne\n```\nbehind", 12, "…\nbehind"),
        ("before it\n```\na\n```\nbehind", 24, "before it\n```\na\n```\n…"),
        ("before it\n```\na\n```\nbehind", 22, "before it\n…"),
    ],
)
def test_what_fits_is_shown(body, limit, shown):
    weigh = len if body.startswith("a\n\n") else lambda _: 0.0
    assert excerpt(body, limit, weigh) == shown


def test_two_codes_side_by_side_are_two_passages():
    body = "```\nfirst\n```\n```\nsecond\n```\n\nand so on, for a while"
    assert excerpt(body, 30, lambda passage: float("second" in passage)) == "…\n```\nsecond\n```\n…"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_breaks_of_other_systems_part_passages_too(newline):
    items = [f"- item {number}" for number in range(30)]
    shown = excerpt(newline.join(items), 50)
    assert shown.removesuffix("\n…").split(newline) == items[: shown.count("item")]
    assert 40 <= len(shown) <= 50


# -- X4


@pytest.mark.parametrize(
    "body",
    [
        "- a\n" * 262_144,
        "a\n\n" * 349_525,
        "> " * 500_000,
        "```\n" * 262_144,
        "x" * 1_048_576,
        "\u0301" * 500_000,
        "🇩" * 200_000,
    ],
)
def test_a_body_cannot_be_made_to_take_long(body):
    weighed = []

    def weight(passage):
        weighed.append(passage)
        return 0.0

    began = time.process_time()
    assert len(excerpt(body, 1_200, weight)) <= 1_200
    assert time.process_time() - began < 1
    assert len(weighed) <= MAX_PASSAGES
    assert sum(map(len, weighed)) <= MAX_READ_CHARS


def test_what_follows_the_last_passage_that_is_looked_at_is_marked():
    body = "\n\n".join(f"{number:04} {'word ' * 19}" for number in range(400))
    shown = excerpt(body, 300, lambda passage: float(passage[:4]) if passage.strip() else 0.0)
    assert shown.startswith("…\n03")
    assert shown.endswith("\n…")


def test_code_cannot_be_cut_where_the_looking_ends():
    text = "\n\n".join(["word " * 19] * 336)
    room = MAX_READ_CHARS - len(text) - len("\n\n```\n")
    assert 0 < room < 800
    code = "```\n" + "needle\n" * 200 + "```"
    shown = excerpt(f"{text}\n\n{code}", 1_200, lambda passage: float("needle" in passage))
    assert "needle" not in shown
