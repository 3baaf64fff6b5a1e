"""Excerpts: where text is cut, and where not; the oracles are markdown-it and a list of characters."""

import re
from itertools import accumulate, pairwise

from hypothesis import assume, example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from muniment.recall.excerpt import ELLIPSIS, MAX_PASSAGES, MAX_READ_CHARS, cut_excerpt

MARKDOWN = MarkdownIt("commonmark", {"maxNesting": 100})
PARTED_MARKS = re.compile(r"(?:```|~~~)[ \t]+[`~]")
BLOCKS = (
    *("a plain sentence that says something", "# Heading", "- item one\n- item two\n  goes on"),
    *("1. first\n2. second", "> quoted\n> more of it", "```\ncode\n\nmore code\n```"),
    *("~~~py\nx = '```'\n~~~", "````\n```\ninner\n```\n````", "- ```\n  begins with code\n  ```"),
    *("- item with code\n\n  ```\n  in item\n  ```\n- next", "> ```\n> in quote\n> ```"),
    "```\n    ```\nnot the end\n```",
    *("- ```\n  left open\n```\nanother\n```", "```\nnever closed", "```a\n\n\n```", "* * *", "setext\n==="),
    *("> ```\n> open in a quote\n\n> ```\n> and another\n", "1. ~~~\n   tilde\n   ~~~\n\n   text"),
    *("   ```\n  odd\n    ```\nx\n```", "```\nfirst\n```\n```\nsecond\n```", "<pre>\n```\nhtml\n```\n</pre>"),
    *("- a\n  - b\n    ```\n    deep\n    ```", "text\n```\nend\n```\ntext", "    indented ```\n    code"),
    *("`inline` and ``` more ```", "-\t```\n\ttab\n\t```", "[link]: /url\n```\nq\n```"),
)
FRAGMENTS = ["```", "~~~", "````", "- ", "> ", "1. ", "  ", "    ", "a b", "\n\n", "   ```", *"\t\nx#`"]
SOME_BLOCKS = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=8)
JOINED = st.builds(str.join, st.sampled_from(["\n\n", "\n"]), SOME_BLOCKS)
BEST = ["", "code", "item", "more", "x", "first"]
BODIES = JOINED | st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)


def find_code_spans(text):
    """Return the spans of fenced code in a text with plain line breaks, as markdown-it reads it."""
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    fences = [token.map for token in MARKDOWN.parse(text) if token.type == "fence"]
    return [(starts[first], len(text[: starts[last]].rstrip())) for first, last in fences]


def is_read_equally(text):
    """Return whether markdown-it and `content.blocks` are known to read a text equally.

    They differ on a mark that follows four columns directly below text, and on code marks that are
    separated by spaces, which end code only for `content.blocks`.
    """
    return not PARTED_MARKS.search(text) and not any(
        above.strip() and below.startswith("    ") and below.strip()[:1] in set("-+*>=#<`~1")
        for above, below in pairwise(text.expandtabs(4).split("\n"))
    )


def is_excerpt(text, displayed):
    """Return whether the excerpt fits into `text` so that no code is cut and every gap is marked."""
    has_more_before, has_more_after = displayed.startswith(f"{ELLIPSIS}\n"), displayed.endswith(ELLIPSIS)
    core = displayed.removeprefix(f"{ELLIPSIS}\n") if has_more_before else displayed
    core = core.removesuffix(ELLIPSIS).removesuffix("\n") if has_more_after else core
    spans, begin = find_code_spans(text), text.find(core)
    while begin >= 0:
        end = begin + len(core)
        is_marked = (begin > 0, end < len(text)) == (has_more_before, has_more_after)
        if is_marked and not any(first < at < last for first, last in spans for at in (begin, end)):
            return True
        begin = text.find(core, begin + 1)
    return False


@given(body=BODIES, limit=st.integers(-3, 260), best=st.sampled_from(BEST))
@example(body="xxxxxxx\n\nlast", limit=10, best="")
@example(body="```\n    ```\nmore\n```\n\ntext that is longer than it may be", limit=30, best="more")
@example(body="- ```\n  code\n```\nreal code\nmore\n```\n\ntext longer than it may be", limit=30, best="real")
@example(body="first\n\n" + "long " * 20, limit=40, best="long")
def test_excerpt_is_one_part_of_the_text_and_cuts_no_code(body, limit, best):
    text = body.strip()
    displayed = cut_excerpt(body, limit, lambda passage: float(passage.count(best)) if best else 0.0)
    if len(text) <= limit:
        assert displayed == text
        return
    assert len(displayed) <= max(limit, 0)
    if displayed:
        assume(is_read_equally(text))
        assert is_excerpt(text, displayed), displayed


def test_excerpt_shows_the_parts_that_fit():
    for body, limit, displayed in (
        *(("", 0, ""), ("  short\n\n", 5, "short"), ("short", 4, ""), ("short", -1, "")),
        *(("one two three four five", 12, "one two…"), ("onetwothreefourfive", 14, "onetwothr…")),
        *(
            ("a\n\none two three four five", 12, "…\none two…"),
            ("- one\n- two\n- three", 16, "- one\n- two\n…"),
        ),
        ("a and be " * 10, 60, "a and be " * 5 + "a and be…"),
        ("# Title\ntext of it\n# Other\ntext", 24, "# Title\ntext of it\n…"),
        *(("```\na\nb\nc\nd\ne\n```", 12, ""), ("```\na\nb\nc\nd\ne\n```\nbehind", 12, "…\nbehind")),
        ("before it\n```\na\n```\nbehind", 24, "before it\n```\na\n```\n…"),
        ("before it\n```\na\n```\nbehind", 22, "before it\n…"),
    ):
        assert cut_excerpt(body, limit, len if body.startswith("a\n\n") else lambda _: 0.0) == displayed, body
    twice = "```\nfirst\n```\n```\nsecond\n```\n\nand so on, for a while"
    assert cut_excerpt(twice, 30, lambda passage: float("second" in passage)) == "…\n```\nsecond\n```\n…"
    items = [f"- item {number}" for number in range(30)]
    for newline in ("\n", "\r\n", "\r"):  # Line breaks of other systems separate passages, too.
        displayed = cut_excerpt(newline.join(items), 50)
        assert displayed.removesuffix("\n…").split(newline) == items[: displayed.count("item")]
        assert 40 <= len(displayed) <= 50


def test_excerpt_of_a_hostile_body_is_bounded_in_cost():
    ones = ("x" * 1_048_576, "\u0301" * 500_000, "🇩" * 200_000)
    for body in ("- a\n" * 262_144, "a\n\n" * 349_525, "> " * 500_000, "```\n" * 262_144, *ones):
        weighed = []
        assert (
            len(cut_excerpt(body, 1_200, lambda it, weighed=weighed: float(bool(weighed.append(it)))))
            <= 1_200
        )
        assert len(weighed) <= MAX_PASSAGES
        assert sum(map(len, weighed)) <= MAX_READ_CHARS


def test_excerpt_after_the_search_limit_is_marked_and_whole():
    body = "\n\n".join(f"{number:04} {'word ' * 19}" for number in range(400))
    displayed = cut_excerpt(body, 300, lambda passage: float(passage[:4]) if passage.strip() else 0.0)
    assert (displayed[:4], displayed[-2:]) == ("…\n03", "\n…")
    text = "\n\n".join(["word " * 19] * 336)
    assert 0 < MAX_READ_CHARS - len(text) - len("\n\n```\n") < 800
    code = "```\n" + "needle\n" * 200 + "```"
    assert "needle" not in cut_excerpt(f"{text}\n\n{code}", 1_200, lambda passage: float("needle" in passage))
