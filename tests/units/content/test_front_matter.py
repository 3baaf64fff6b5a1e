"""Front matter compared with PyYAML, which shares no code with our parser."""

import itertools

import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from kit.catching import catch_error
from kit.strategies.entries import entry_texts
from muniment.content import frontmatter
from muniment.content.entry import parse
from muniment.content.frontmatter import escape_json, find_front_matter, quote_scalar, read_list, read_scalar

MAX = frontmatter.MAX_FRONT_MATTER_BYTES
FIELDS = ("name", "description", "type")

printable = st.characters(
    codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"], exclude_characters="\u2028\u2029\ufeff"
)
phrases = st.text(printable, min_size=1, max_size=40).map(lambda text: " ".join(text.split())).filter(bool)
paragraphs = st.lists(phrases, min_size=1, max_size=12).map(" ".join)


def parse_lines(*lines):
    return parse("\n".join(["---", *lines, "---", "body"]))


@given(st.data(), phrases, paragraphs, st.lists(phrases.filter(lambda word: len(word) < 30), max_size=4))
def test_front_matter_written_by_yaml_is_parsed(data, name, description, keywords):
    style, newline = (data.draw(st.sampled_from(each)) for each in ([None, *"\"'|>"], ["\n", "\r\n"]))
    yaml_options = {"allow_unicode": data.draw(st.booleans()), "sort_keys": False}
    labels = {"name": name, "description": description, "type": "project"}
    head = yaml.safe_dump(labels, default_style=style, width=data.draw(st.integers(10, 120)), **yaml_options)
    flow = data.draw(st.sampled_from([None, False]))
    tail = yaml.safe_dump({"keywords": keywords}, default_flow_style=flow, **yaml_options)
    entry = parse(f"---\n{head}{tail}---\nbody".replace("\n", newline))
    assert (entry.name, entry.description, entry.type, entry.body) == (name, description, "project", "body")
    assert (entry.keywords, entry.notes) == (tuple(keywords), ())


NASTY = st.text(st.sampled_from(" ab:#'\"[]{},|>-&*!?%@`\\~01\tntxu.<="), max_size=14)


def is_inside(line):
    return line.rstrip(" \t") not in ("---", "...")


KEYS = [f"{key}: " for key in (*FIELDS, '"name"', "'type'", "x")]
STARTS = [*KEYS, *(" ", "  ", "   ", "\t", "- ", "  - ", "#", " #", "? ")]
OPENED = [f"{field}: {mark}" for field in FIELDS for mark in "|>\"'["]
ODD_LINES = st.sampled_from(["", " ", "name: user", "type: user", "description: >", "name: |2", "name: >-"])
MARKED = (st.builds("{}{}".format, st.sampled_from(each), NASTY) for each in (STARTS, OPENED))
GENERATED_LINES = entry_texts().map(lambda text: list(itertools.takewhile(is_inside, text.split("\n")[1:])))
NASTY_LINES = st.lists(st.one_of(*MARKED, NASTY, ODD_LINES), max_size=7) | GENERATED_LINES


def is_indented_deeper(node, lines):
    """Return whether all further lines of a node are indented: required by YAML 1.2, not by PyYAML."""
    last = node.end_mark.line if node.end_mark.column else node.end_mark.line - 1
    return all(not line or line[0] in " \t-" for line in lines[node.start_mark.line + 1 : last + 1])


def join_surrogates(text):
    """Join two JSON escapes that spell one character, as readers of JSON do."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16")


@given(NASTY_LINES)
def test_parsed_values_agree_with_yaml(lines):
    assume(all(map(is_inside, lines)))
    entry = parse_lines(*lines)
    try:
        node = yaml.compose("\n".join(lines), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, IndexError):
        return
    # One quoted text or one bracketed list around all lines is not front matter.
    assume(isinstance(node, yaml.MappingNode) and not node.flow_style)
    assume(all(is_indented_deeper(part, lines) for pair in node.value for part in pair))
    for field in (each for each in FIELDS if getattr(entry, each) is not None):
        yaml_value = next(value for key, value in node.value if key.value == field)
        assert isinstance(yaml_value, yaml.ScalarNode)
        assert yaml_value.tag != "tag:yaml.org,2002:null"
        assert getattr(entry, field) == join_surrogates(yaml_value.value).strip()


@given(st.lists(NASTY, max_size=4), st.booleans())
def test_parsed_lists_agree_with_yaml(items, flow):
    lines = [f"[{','.join(items)}]"] if flow else ["", *(f"  - {item}" for item in items)]
    try:
        items_read = read_list(lines[0], lines[1:])
        yaml_node = yaml.compose("keywords: " + "\n".join(lines), Loader=yaml.SafeLoader).value[0][1]
    except (yaml.YAMLError, ValueError):
        return
    found = [] if isinstance(yaml_node, yaml.ScalarNode) else yaml_node.value  # An empty block list.
    assert [*items_read] == [
        each.value for each in found if each.value and (flow or not each.tag.endswith("null"))
    ]


QUOTED = r"""null ~ yes No 12 1.5 2026-01-01 'a "a [a] {a} &a *a !a | > %a @a `a a: #a ? \ .inf << = --- ...
0x1F 記憶"""
SPACED = "- a|a: b|a #b|a | a||a\nb|a\u2028b|a\x85b|a\tb|\ufeffa|é: ü|a\x7fb"


def round_trips(text):
    line = quote_scalar(text)
    return len(line.splitlines()) <= 1 and yaml.safe_load(f"key: {line}")["key"] == read_scalar(line) == text


@given(st.text())
def test_written_scalar_is_read_equally_by_yaml(drawn):
    known = (*QUOTED.split(), *SPACED.split("|"), "x" * 2000)
    assert [text for text in (drawn, *known) if not round_trips(text)] == []
    text = escape_json('{"a": "\u2028\x85\ufeff\x7f \\" é"}')
    assert text == '{"a": "\\u2028\\u0085\\ufeff\\u007f \\" é"}'
    assert yaml.safe_load(text) == {"a": '\u2028\x85\ufeff\x7f " é'}


ONE_LINE = [
    *(("plain", "plain"), ('"quoted"', "quoted"), ("'it''s'", "it's"), (r'"\ud83d\ude00"', "\U0001f600")),
    (r'"\x41\u00e9\U0001F600\t\"\\\/"', 'A\u00e9\U0001f600\t"\\/'),
    *((value, "a") for value in ('"a" # comment', "a # comment")),
    *((value, None) for value in ("# comment", "null", "~", "")),
    *((value, value) for value in ("a#b", "http://example.com", "-a", "true", "12")),
]
SEVERAL = [
    *(("a", ["  b", "", "  c"], "a b\nc"), ("a", ["  b # comment", "  # more"], "a b")),
    *(('"a', ["  b", "", '  c"'], "a b\nc"), ('"a\\', ["  b\\", "", '  c"'], "ab\nc")),
    *(('"a\\ ', ['  b"'], "a  b"), ("'a", ["  b'  # comment", "", "  # more"], "a b")),
    ("|", ["  a", "    b", "", "  c"], "a\n  b\n\nc"),
    (">", ["  a", "  b", "", "  c", "    d", "  e"], "a b\nc\n  d\ne"),
    *((">-", ["", "  a", "", ""], "\na"), ("|2-", ["    a", "  b"], "  a\nb"), ("|-2", ["   a"], " a")),
    *(("|", [], ""), ("| # comment", ["  a"], "a")),
]


def test_scalars_on_one_or_several_lines_are_read():
    for value, expected in ONE_LINE:
        assert read_scalar(f" {value}") == expected, value
        assert read_scalar("", ["  # first a comment", f"  {value}"]) == expected, value
    for first, rest, expected in SEVERAL:
        assert read_scalar(first, rest) == expected
        document = "\n".join([f"key: {first}", *rest])
        assert yaml.safe_load(document)["key"].removesuffix("\n") == expected


OUTSIDE = r"""&a b|*a|!!str a|{a: b}|[a]|a: b|a:|- a|? a|@a|"a|"a" b|"a"#b|"\q"|"\x4"|"\ud83d"|
"\UFFFFFFFF"|"\U00110000"|/  a: b|/- a|/  PIPE/  a|a/- b|a/  b: c|a # comment/  b|'a/  b|"a"/  b|
PIPEPIPE/  a|PIPE0/  a|PIPE/     /  a|PIPE/   a/ b|PIPE/  a/- b|PIPE/# comment/  a|aNUL1b|PIPE/  aNUL1|
aSURROGATE"""
"""Values; their further lines follow after slashes."""
OUTSIDE_LISTS = """a, b|[a|[a, [b]]|[a, {b: c}]|[a: b]|[a:]|[a,,b]|[,a]|['a' b]|[a #b/  ]|[#a]|[?a]|
[&a b]|[a] b|[a]/  b|/  - a/    - b: c|/  - a/ - b|/  - - a|/  - PIPE/    a|/  - a: b|/  - a/  b|
/  b/  - a|/  a: b|[aNUL1]"""


def test_unsupported_yaml_is_rejected_not_guessed():
    for read, key, texts in (read_scalar, "name", OUTSIDE), (read_list, "keywords", OUTSIDE_LISTS):
        for text in texts.replace("|\n", "|").split("|"):
            signed = text.replace("PIPE", "|").replace("NUL1", "\x01").replace("SURROGATE", "\ud800")
            first, *rest = signed.split("/")
            catch_error(ValueError, read, first, rest)
            entry = parse_lines(f"{key}: {first}", *rest)
            assert (entry.name, entry.keywords, len(entry.notes)) == (None, (), 1), text


LISTS = [
    *(("[]", [], ()), ("[a, \"b, c\", 'd', e f,]", [], ("a", "b, c", "d", "e f")), ("", [], ())),
    *(("[a,", ["  b", "  c ]  # comment"], ("a", "b c")), ("[a] # comment", ["  # more"], ("a",))),
    ("", ["  - a", "  - 'b'", "", "  # c", "  -"], ("a", "b")),
    ("# comment", ["", "# more", "- a", "- b"], ("a", "b")),
    ("", ["  - a", "    - b", "", "    c", "  -", "    'd", "     e'  # comment"], ("a - b\nc", "d e")),
]


def test_keyword_lists_with_comments_are_read():
    assert [read_list(first, rest) for first, rest, _ in LISTS] == [expected for *_, expected in LISTS]
    entry = parse_lines("keywords:", "  - a", "# comment", "", "  - b", "# the end", "name: n")
    assert (entry.keywords, entry.name) == (("a", "b"), "n")


def test_front_matter_limit_is_in_bytes_and_noted():
    head, end = "---\nname: a\n#", "\n---\n"
    for unit in ("x", "é", "\U0001f600"):
        for size, name in (MAX, "a"), (MAX + 1, None):
            filler, padding = divmod(size - len(head + end), len(unit.encode()))
            assert parse(f"{head}{unit * filler}{' ' * padding}{end}body").name == name
    assert parse("---\nname: a\n").notes == ("the front matter is not closed within 8192 bytes",)
    filler = "x" * (MAX - len("---\r\n#\r\n---\r"))  # A line break of two characters counts as one.
    assert find_front_matter(f"---\r\n#{filler}\r\n---\r\nbody") is None


FOUND = r"""name: a/type: user|/# comment/name: "a"/# comment//'type' : user|x: "left open/name: a/type: user|
x:/  y: 1/  - z/name: a/my key: x/type: user|x: [left open/name: a/type: user""".replace("|\n", "|")
OTHERS = """ name: a|- name: a|-|? name|{name: a}|"name: a|"name" a|name|name:a|na #me: a"""


def test_only_plain_keys_in_column_zero_are_found():
    for text in (*FOUND.split("|"), *(f"name: a{mark}type: user" for mark in "\u2028\r\x85")):
        entry = parse_lines(*text.split("/"))
        assert (entry.name, entry.type, entry.notes) == ("a", "user", ()), text
    for line in OTHERS.split("|"):
        entry = parse_lines(line, "type: user")
        assert (entry.name, entry.type, entry.notes) == (None, "user", ("line 2 is not `key: value`",)), line


HOSTILE = [
    *("a" * 100_000, "name: " + " " * 8_000, f"name: a{' ' * 8_000}b", "name: '" + "''" * 4_000),
    *('name: "' + " " * 8_000, "name: [" + "[" * 8_000, "muniment: " + "[" * 8_000, "name: " + "#" * 8_000),
    *("keywords: [" + 'a,"",' * 1_600, "a:\n" * 2_600, "\n" * 8_000, " :" * 4_000),
    *("name: a" + " #" * 4_000, "a" + " " * 8_000, "name: |" + " " * 8_000 + "x"),
]


def test_hostile_front_matter_is_parsed_in_time():
    for text in HOSTILE:
        assert parse(f"---\n{text}\n---\n").type is None
