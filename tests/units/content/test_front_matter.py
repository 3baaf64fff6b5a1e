"""Front matter as PyYAML reads it, which shares no code with our reader and is no dependency of it."""

from __future__ import annotations

import itertools
import time

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from muniment.content.entry import parse
from muniment.content.frontmatter import (
    MAX_FRONT_MATTER_BYTES,
    Unsupported,
    locate,
    read_list,
    read_scalar,
    without_breaks,
    written,
)
from muniment.testing.strategies import entry_texts

FIELDS = ("name", "description", "type")

printable = st.characters(
    codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"], exclude_characters="\u2028\u2029\ufeff"
)
words = st.text(printable, min_size=1, max_size=40).map(lambda text: " ".join(text.split())).filter(bool)
paragraphs = st.lists(words, min_size=1, max_size=12).map(" ".join)


def entry_of(*lines):
    return parse("\n".join(["---", *lines, "---", "body"]))


@given(
    name=words,
    description=paragraphs,
    style=st.sampled_from([None, '"', "'", "|", ">"]),
    width=st.integers(10, 120),
    unicode=st.booleans(),
    keywords=st.lists(words.filter(lambda word: len(word) < 30), max_size=4),
    flow=st.booleans(),
    newline=st.sampled_from(["\n", "\r\n"]),
)
def test_what_a_yaml_writer_writes_is_read_back(
    name, description, style, width, unicode, keywords, flow, newline
):
    head = yaml.safe_dump(
        {"name": name, "description": description, "type": "project"},
        default_style=style,
        width=width,
        allow_unicode=unicode,
        sort_keys=False,
    )
    tail = yaml.safe_dump(
        {"keywords": keywords}, default_flow_style=None if flow else False, allow_unicode=unicode
    )
    entry = parse(f"---\n{head}{tail}---\nbody".replace("\n", newline))
    assert (entry.name, entry.description, entry.type, entry.body) == (name, description, "project", "body")
    assert entry.keywords == tuple(keywords)
    assert entry.notes == ()


NASTY = st.text(st.sampled_from(" ab:#'\"[]{},|>-&*!?%@`\\~01\tntxu.<="), max_size=14)


def is_inside(line):
    return line.rstrip(" \t") not in ("---", "...")


NASTY_LINES = st.lists(
    st.one_of(
        st.builds("{}:{}{}".format, st.sampled_from([*FIELDS, '"name"', "'type'", "x"]), st.just(" "), NASTY),
        st.builds(
            "{}: {}{}".format, st.sampled_from(FIELDS), st.sampled_from(["|", ">", '"', "'", "["]), NASTY
        ),
        st.builds("{}{}".format, st.sampled_from([" ", "  ", "   ", "\t"]), NASTY),
        st.builds("{}{}".format, st.sampled_from(["- ", "  - ", "#", " #", "? "]), NASTY),
        NASTY,
        st.sampled_from(["", " ", "name: user", "type: user", "description: >", "name: |2", "name: >-"]),
    ),
    max_size=7,
) | entry_texts().map(lambda text: list(itertools.takewhile(is_inside, text.split("\n")[1:])))


def indented_deeper(node, lines):
    """Whether every further line of a key or value is indented: YAML 1.2 demands it, PyYAML does not."""
    last = node.end_mark.line if node.end_mark.column else node.end_mark.line - 1
    return all(
        not line or line[0] in " \t" or line.startswith("-")
        for line in lines[node.start_mark.line + 1 : last + 1]
    )


def joined(text):
    """Two escapes of JSON that spell one character: one character to us and to readers of JSON."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


@given(NASTY_LINES)
def test_no_value_contradicts_a_yaml_reader(lines):
    assume(all(map(is_inside, lines)))
    entry = entry_of(*lines)
    text = "\n".join(lines)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, IndexError):
        return
    # One quoted text or one bracketed list around all lines is no front matter to anyone.
    assume(isinstance(node, yaml.MappingNode) and not node.flow_style)
    assume(all(indented_deeper(part, lines) for pair in node.value for part in pair))
    for field in FIELDS:
        ours = getattr(entry, field)
        if ours is None:
            continue
        theirs = next(value for key, value in node.value if key.value == field)
        assert isinstance(theirs, yaml.ScalarNode)
        assert theirs.tag != "tag:yaml.org,2002:null"
        assert ours == joined(theirs.value).strip()


@given(st.lists(NASTY, max_size=4), st.booleans())
def test_no_list_contradicts_a_yaml_reader(items, flow):
    lines = [f"[{','.join(items)}]"] if flow else ["", *(f"  - {item}" for item in items)]
    try:
        ours = read_list(lines[0], lines[1:])
    except Unsupported:
        return
    try:
        theirs = yaml.compose("keywords: " + "\n".join(lines), Loader=yaml.SafeLoader).value[0][1]
    except (yaml.YAMLError, ValueError):
        return
    if isinstance(theirs, yaml.ScalarNode):  # an empty block list
        assert ours == ()
        return
    assert list(ours) == [
        item.value for item in theirs.value if item.value and (flow or not item.tag.endswith("null"))
    ]


@given(st.text())
def test_a_written_scalar_is_the_same_string_to_every_reader(text):
    line = written(text)
    assert len(line.splitlines()) <= 1
    loaded = yaml.safe_load(f"key: {line}")["key"]
    assert loaded == text
    assert read_scalar(line) == text


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "~",
        "yes",
        "No",
        "12",
        "1.5",
        "2026-01-01",
        "- a",
        "a: b",
        "a #b",
        "'a",
        '"a',
        "[a]",
        "{a}",
        "&a",
        "*a",
        "!a",
        "|",
        ">",
        "%a",
        "@a",
        "`a",
        "a:",
        "a ",
        " a",
        "#a",
        "?",
        "",
        "a\nb",
        "a\u2028b",
        "a\x85b",
        "\\",
        ".inf",
        "<<",
        "=",
        "---",
        "...",
        "0x1F",
        "a\tb",
        "\ufeffa",
        "é: ü",
        "記憶",
        "a\x7fb",
        "x" * 2000,
    ],
)
def test_text_that_yaml_would_take_for_something_else_is_quoted(text):
    assert yaml.safe_load(f"key: {written(text)}") == {"key": text}
    assert read_scalar(written(text)) == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", "plain"),
        ('"quoted"', "quoted"),
        ("'it''s'", "it's"),
        (r'"\x41\u00e9\U0001F600\t\"\\\/"', 'A\u00e9\U0001f600\t"\\/'),
        (r'"\ud83d\ude00"', "\U0001f600"),
        ('"a" # comment', "a"),
        ("a # comment", "a"),
        ("# comment", None),
        ("a#b", "a#b"),
        ("http://example.com", "http://example.com"),
        ("-a", "-a"),
        ("null", None),
        ("~", None),
        ("", None),
        ("true", "true"),
        ("12", "12"),
    ],
)
def test_one_line_scalars(value, expected):
    assert read_scalar(f" {value}") == expected
    assert read_scalar("", ["  # first a comment", f"  {value}"]) == expected


@pytest.mark.parametrize(
    ("first", "rest", "expected"),
    [
        ("a", ["  b", "", "  c"], "a b\nc"),
        ("a", ["  b # comment", "  # more"], "a b"),
        ('"a', ["  b", "", '  c"'], "a b\nc"),
        ('"a\\', ["  b\\", "", '  c"'], "ab\nc"),
        ('"a\\ ', ['  b"'], "a  b"),
        ("'a", ["  b'  # comment", "", "  # more"], "a b"),
        ("|", ["  a", "    b", "", "  c"], "a\n  b\n\nc"),
        (">", ["  a", "  b", "", "  c", "    d", "  e"], "a b\nc\n  d\ne"),
        (">-", ["", "  a", "", ""], "\na"),
        ("|2-", ["    a", "  b"], "  a\nb"),
        ("|-2", ["   a"], " a"),
        ("|", [], ""),
        ("| # comment", ["  a"], "a"),
    ],
)
def test_scalars_over_several_lines(first, rest, expected):
    assert read_scalar(first, rest) == expected
    document = "\n".join([f"key: {first}", *rest])
    assert yaml.safe_load(document)["key"].removesuffix("\n") == expected


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        ("&a b", []),
        ("*a", []),
        ("!!str a", []),
        ("{a: b}", []),
        ("[a]", []),
        ("a: b", []),
        ("a:", []),
        ("- a", []),
        ("? a", []),
        ("@a", []),
        ("", ["  a: b"]),
        ("", ["- a"]),
        ("", ["  |", "  a"]),
        ("a", ["- b"]),
        ("a", ["  b: c"]),
        ("a # comment", ["  b"]),
        ('"a', []),
        ("'a", ["  b"]),
        ('"a" b', []),
        ('"a"#b', []),
        ('"a"', ["  b"]),
        (r'"\q"', []),
        (r'"\x4"', []),
        (r'"\ud83d"', []),
        (r'"\UFFFFFFFF"', []),
        ("a\x01b", []),
        ("|", ["  a\x01"]),
        ("a\ud800", []),
        ("||", ["  a"]),
        ("|0", ["  a"]),
        ("|", ["     ", "  a"]),
        ("|", ["   a", " b"]),
        ("|", ["  a", "- b"]),
        ("|", ["# comment", "  a"]),
    ],
)
def test_what_is_outside_the_subset_is_not_guessed(first, rest):
    with pytest.raises(Unsupported):
        read_scalar(first, rest)
    entry = entry_of(f"name: {first}", *rest)
    assert entry.name is None
    assert len(entry.notes) == 1


@pytest.mark.parametrize(
    ("first", "rest", "expected"),
    [
        ("[]", [], ()),
        ("[a, \"b, c\", 'd', e f,]", [], ("a", "b, c", "d", "e f")),
        ("[a,", ["  b", "  c ]  # comment"], ("a", "b c")),
        ("[a] # comment", ["  # more"], ("a",)),
        ("", ["  - a", "  - 'b'", "", "  # c", "  -"], ("a", "b")),
        ("# comment", ["", "# more", "- a", "- b"], ("a", "b")),
        ("", ["  - a", "    - b", "", "    c", "  -", "    'd", "     e'  # comment"], ("a - b\nc", "d e")),
        ("", [], ()),
    ],
)
def test_lists_of_keywords(first, rest, expected):
    assert read_list(first, rest) == expected


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        ("a, b", []),
        ("[a", []),
        ("[a, [b]]", []),
        ("[a, {b: c}]", []),
        ("[a: b]", []),
        ("[a:]", []),
        ("[a,,b]", []),
        ("[,a]", []),
        ("['a' b]", []),
        ("[a #b", ["  ]"]),
        ("[#a]", []),
        ("[?a]", []),
        ("[&a b]", []),
        ("[a] b", []),
        ("[a]", ["  b"]),
        ("", ["  - a", "    - b: c"]),
        ("", ["  - a", " - b"]),
        ("", ["  - - a"]),
        ("", ["  - |", "    a"]),
        ("", ["  - a: b"]),
        ("", ["  - a", "  b"]),
        ("", ["  b", "  - a"]),
        ("", ["  a: b"]),
        ("[a\x01]", []),
    ],
)
def test_lists_outside_the_subset_are_not_guessed(first, rest):
    with pytest.raises(Unsupported):
        read_list(first, rest)
    entry = entry_of(f"keywords: {first}", *rest)
    assert entry.keywords == ()
    assert len(entry.notes) == 1


def test_json_is_left_without_any_line_break_of_yaml():
    text = without_breaks('{"a": "\u2028\x85\ufeff\x7f \\" é"}')
    assert text == '{"a": "\\u2028\\u0085\\ufeff\\u007f \\" é"}'
    assert yaml.safe_load(text) == {"a": '\u2028\x85\ufeff\x7f " é'}


def test_unterminated_front_matter_is_noted():
    assert parse("---\nname: a\n").notes == ("the front matter is not closed within 8192 bytes",)


@pytest.mark.parametrize("unit", ["x", "é", "\U0001f600"])
def test_the_limit_of_front_matter_is_in_bytes(unit):
    def of_size(size):
        filler = (size - len("---\nname: a\n#\n---\n")) // len(unit.encode())
        padding = " " * (size - len("---\nname: a\n#\n---\n") - filler * len(unit.encode()))
        return f"---\nname: a\n#{unit * filler}{padding}\n---\nbody"

    assert parse(of_size(MAX_FRONT_MATTER_BYTES)).name == "a"
    assert parse(of_size(MAX_FRONT_MATTER_BYTES + 1)).name is None


def test_a_line_break_of_two_characters_across_the_limit_is_still_one():
    filler = "x" * (MAX_FRONT_MATTER_BYTES - len("---\r\n#\r\n---\r"))
    assert locate(f"---\r\n#{filler}\r\n---\r\nbody") is None


@pytest.mark.parametrize(
    "lines",
    [
        ["name: a", "type: user"],
        ["", "# comment", 'name: "a"', "# comment", "", "'type' : user"],
        ["x:", "  y: 1", "  - z", "name: a", "my key: x", "type: user"],
        ["name: a\u2028type: user"],
        ["name: a\rtype: user"],
        ["name: a\x85type: user"],
        ['x: "left open', "name: a", "type: user"],
        ["x: [left open", "name: a", "type: user"],
    ],
)
def test_a_key_in_column_zero_is_found_whatever_stands_above_it(lines):
    entry = entry_of(*lines)
    assert (entry.name, entry.type, entry.notes) == ("a", "user", ())


@pytest.mark.parametrize(
    "line",
    [
        " name: a",
        "- name: a",
        "-",
        "? name",
        "{name: a}",
        '"name: a',
        '"name" a',
        "name",
        "name:a",
        "na #me: a",
    ],
)
def test_a_line_of_another_form_is_no_key_and_is_noted(line):
    entry = entry_of(line, "type: user")
    assert (entry.name, entry.type) == (None, "user")
    assert entry.notes == ("line 2 is not understood",)


def test_comments_inside_a_value_belong_to_it():
    entry = entry_of("keywords:", "  - a", "# comment", "", "  - b", "# the end", "name: n")
    assert entry.keywords == ("a", "b")
    assert entry.name == "n"


@pytest.mark.parametrize(
    "text",
    [
        "---\n" + "a" * 100_000,
        "---\nname: " + " " * 8_000 + "\n---\n",
        "---\nname: a" + " " * 8_000 + "b\n---\n",
        "---\nname: '" + "''" * 4_000 + "\n---\n",
        '---\nname: "' + " " * 8_000 + "\n---\n",
        "---\nname: [" + "[" * 8_000 + "\n---\n",
        "---\nmuniment: " + "[" * 8_000 + "\n---\n",
        "---\nkeywords: [" + "a ," * 2_600 + "\n---\n",
        "---\nkeywords: [" + '"",' * 2_600 + "\n---\n",
        "---\n" + "a:\n" * 2_600 + "---\n",
        "---\n" + "\n" * 8_000 + "---\n",
        "---\nname: " + "#" * 8_000 + "\n---\n",
        "---\nname: a" + " #" * 4_000 + "\n---\n",
        "---\n" + " :" * 4_000 + "\n---\n",
        "---\n" + "a" + " " * 8_000 + "\n---\n",
        "---\nname: |" + " " * 8_000 + "x\n---\n",
    ],
)
def test_no_front_matter_takes_long_to_read(text):
    began = time.process_time()
    parse(text)
    assert time.process_time() - began < 1
