"""List items and their removal, compared with markdown-it, which shares no code with our parser."""

import re
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from muniment.content.markdown import MAX_NESTING, QUOTE, build_outline, read_lines, remove_item

MARKDOWN = MarkdownIt("commonmark", {"maxNesting": 100})
BREAK = re.compile(r"\r\n|\n|\r")
WRITTEN = (
    "- a|- |-|* b|+ c|1. d|2. e|10) f|1)|  |    |\t| |   | x|para|===|---|- - -|> q|>|```|~~~|# h|<div>|1.e|"
    "</div>|<!-- c|-->|<a b>|||\t- t|  - n|    - m|- - z|-     code|1.  w|#|* * *|> - y|-\tu|<?p|    indented"
)
FRAGMENTS = WRITTEN.split("|")


def is_blank(line):
    return not line.strip(" \t")


def list_markdown_it_items(body):
    """Return the lines of each list item that are not blank, as markdown-it parses the body."""
    lines = BREAK.split(body)
    spans = (token.map for token in MARKDOWN.parse(body) if token.type == "list_item_open")
    lasting = ((first, min(end, len(lines))) for first, end in spans)
    return sorted([n for n in range(first, end) if not is_blank(lines[n])] for first, end in lasting)


def list_outline_items(body):
    """Return the same items as our outline parses them."""
    found = defaultdict(list)
    for number, line in enumerate(read_lines(body)):
        for at in (at for at in enumerate(line.path) if at[1] != QUOTE):
            found[at].append(number)
    return sorted(found.values())


def is_plain(body):
    """Return whether markdown-it parses this body as the specification requires.

    It differs for a block marker after four columns directly below text, which continues the text.
    """
    lines = BREAK.split(body.expandtabs(4))
    return not any(
        re.match(r" {4,}(?:[-+*>=#<`~]|[0-9]+[.)])", below) and not is_blank(above)
        for above, below in pairwise(lines)
    )


def iterate_items(items):
    for item in items:
        yield item
        yield from iterate_items(item.items)


lines = st.tuples(st.sampled_from(["", "", "", " ", "  ", "   "]), st.sampled_from(FRAGMENTS)).map("".join)
ends = st.sampled_from(["\n", "\r\n", "\r"]), st.sampled_from(["", "\n"])
bodies = st.builds(lambda lines, between, end: between.join(lines) + end, st.lists(lines, max_size=9), *ends)


@given(body=bodies)
def test_outline_items_match_markdown_it(body):
    assume(is_plain(body))
    markdown_it_items = list_markdown_it_items(body)
    outline_items = [
        [n for n in item if not is_blank(BREAK.split(body)[n])] for item in list_outline_items(body)
    ]
    assert outline_items == markdown_it_items


ITEMS = [
    *(("- a\n\n  more\n\nnot\n", [[0, 2]]), ("- ```\n  - a\n  ```\n- b\n", [[0, 1, 2], [3]])),
    *(("<!--\n- a\n\n- b\n-->\n- c\n", [[5]]), ("text\n1. a\n", [[1]]), ("- a\n  \t- b\n", [[0, 1], [1]])),
    *(("- - a\n  - b\n", [[0], [0, 1], [1]]), ("- \n\n  a\n", [[0]])),
    *((body, []) for body in ("~~~\n- a\n", "    - a\n", "text\n    - a\n", "text\n2. a\n", "text\n-\n")),
    # markdown-it takes these for code or a nested item, cmark for continued text.
    *(("- a\n- b\n     - c\n", [[0], [1, 2], [2]]), ("  - a\n\t- b\n", [[0, 1], [1]])),
    ("10) f\n    - m\n        - m\n    * b\n", [[0, 1, 2, 3], [1, 2], [2], [3]]),
    ("- a\n   - b\n    - c\n     - d\n", [[0, 1, 2, 3], [1], [2], [3]]),
    (" - a\n  - b\n   - c\n    - d\n", [[0], [1], [2, 3]]),
]


def test_outline_items_match_specification():
    for body, items in ITEMS:
        assert list_outline_items(body) == sorted(items), body


@given(body=bodies)
@example(body="- a\n2. b\n")
@example(body="para\n- a\n===\n")
@example(body="- a\n\npara\n\n    code\n")
@pytest.mark.threat("T-MEM-08", control="unchanged_rest")
def test_removal_deletes_one_span_and_keeps_other_items(body):
    found = build_outline(body)
    for item in (*iterate_items(found.items), *found.passages):
        shorter = remove_item(body, item)
        if shorter is None:
            continue
        removed_chars = len(body) - len(shorter)
        assert shorter == body[: item.start] + body[item.start + removed_chars :]
        assert item.start + removed_chars <= item.end
        assert not body[item.start + removed_chars : item.end].strip("\r\n")
        if not is_plain(body) or not is_plain(shorter):
            continue
        before, after = (BREAK.split(text) for text in (body, shorter))
        first = len(BREAK.findall(body[: item.start]))
        count = len(BREAK.split(body[item.start : item.end].rstrip("\r\n")))
        left = [n for n, line in enumerate(before) if not is_blank(line) and not first <= n < first + count]
        now = [n for n, line in enumerate(after) if not is_blank(line)]
        assert [before[n] for n in left] == [after[n] for n in now]
        was = [[left.index(n) for n in each if n in left] for each in list_markdown_it_items(body)]
        markdown_it_items = [[now.index(n) for n in each] for each in list_markdown_it_items(shorter)]
        assert sorted(filter(None, was)) == markdown_it_items


REMOVALS = [  # Body, item to remove, expected rest.
    *(("- a\n- b\n- c\n", "b", "- a\n- c\n"), ("- a\n- b", "b", "- a\n"), ("text\n\n- a\n", "a", "text\n\n")),
    *(("- a\n  - b\n\n    c\n- d\n", "a", "- d\n"), ("- a\n  - b\n  - c\n- d\n", "b", "- a\n  - c\n- d\n")),
    *(("- a\n- b\ngoes on\n- c\n", "b", "- a\n- c\n"), ("- a\r- b\r- c", "b", "- a\r- c")),
    ("- a\n- b\n  ```\n  - x\n\n  y\n  ```\n- c\n", "b", "- a\n- c\n"),
    ("# H\r\n- a\r\n- b\r\n\r\nend", "a", "# H\r\n- b\r\n\r\nend"),
    *(("-\ta\n-\tb\n\t-\tc\n", "b", "-\ta\n"), ("- a\n\n\n- b\n\n- c\n", "b", "- a\n\n\n\n- c\n")),
    *(("1. a\n2. b\n3. c\n", "b", "1. a\n3. c\n"), ("- a  \n- b \t \n- c\n", "b", "- a  \n- c\n")),
    # Text below is not joined with text above, and a line does not become a heading.
    *(("para\n- a\n2. b\n", "a", "para\n\n2. b\n"), ("para\n- a\n---\n", "a", "para\n\n---\n")),
]


def test_removal_is_exact_or_rejected_if_items_would_nest():
    for body, text, expected in REMOVALS:
        (item,) = (
            each for each in iterate_items(build_outline(body).items) if each.own_text.split()[:1] == [text]
        )
        assert remove_item(body, item) == expected
    body = " - a\n  - b\n   - c\n"
    assert remove_item(body, build_outline(body).items[1]) is None


def test_outline_lists_items_and_passages_without_headings():
    assert build_outline("> - a\n> - b\n").items == build_outline("- > - a\n- \n").items[0].items == ()
    (item,) = build_outline("- 1. a\n  2. b\n").items
    assert (item.own_text, [each.own_text for each in item.items]) == ("a\n", ["b\n"])
    (item,) = build_outline("12. a\n    * b\n      c\n    * d\n").items
    assert (item.own_text, [each.own_text for each in item.items]) == ("a\n", ["b\nc\n", "d\n"])
    assert item.text.split() == ["a", "b", "c", "d"]
    found = build_outline("# H\none\ntwo\n\nthree\n- a\n\nSetext\n===\n\n***\n> four\n```\nfive\n```\n")
    passages = [passage.own_text.split() for passage in found.passages]
    assert passages == [["one", "two"], ["three"], [">", "four", "```", "five", "```"]]
    empty = ("", "\n \n", "# H\n", "H\n===\n\n***\n", ">\n")
    assert [build_outline(body).is_empty for body in (*empty, "# H\none\n")] == [True] * 5 + [False]


PASSAGES = [  # Body, number of the passage, expected rest.
    *(("a\n\nb\n\nc\n", 1, "a\n\nc\n"), ("a\n\nb\n\n\nc\n", 1, "a\n\nc\n"), ("a\n\nb\n\n", 0, "b\n\n")),
    *(("a\n\n\nb", 1, "a\n"), ("a\r\n\r\nb\r\n", 1, "a\r\n"), ("a\n\nb\n\n \n", 1, "a\n\n \n")),
    *(("# H\n\na\n\n- b\n", 0, "# H\n\n- b\n"), ("- b\n\na\n\n- c\n", 0, "- b\n\n- c\n")),
    ("one\n\n```\ntwo\n\nthree\n```\n\nfour\n", 1, "one\n\nfour\n"),
    ("one\n\n<!-- two\n\nthree -->\n\nfour\n", 1, "one\n\nfour\n"),
]


def test_passage_removal_includes_following_blank_lines():
    for body, number, expected in PASSAGES:
        assert remove_item(body, build_outline(body).passages[number]) == expected, body
    # The code below would become part of the item.
    assert (
        remove_item("- a\n\npara\n\n    code\n", build_outline("- a\n\npara\n\n    code\n").passages[0])
        is None
    )


HOSTILE = [
    *("- " * 200_000, "- " * 1_000 + "a\n" + "lazy\n" * 50_000, "- " * 1_000 + "\n" + "\n" * 100_000),
    *("> " * 100_000 + "\na\n" * 50_000, "<a" + " b" * 200_000, "<a" + " " * 200_000 + "x", "*" * 400_000),
    *("1" * 400_000 + ". a", "\t" * 400_000 + "- a", "".join(f"{' ' * n}- a\n" for n in range(600))),
]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_markdown_is_parsed_with_limited_nesting(number):
    depth, items = 0, build_outline(HOSTILE[number]).items
    while items:
        depth, items = depth + 1, items[-1].items
    assert depth <= MAX_NESTING
