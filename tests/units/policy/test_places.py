"""Lines: the one on which a thing stands, or none; told apart from everything that only looks like it."""

from __future__ import annotations

import re
import tomllib

from hypothesis import given
from hypothesis import strategies as st

from muniment.policy.tables import _locs, line_at, line_of, lines_of

TEXT = '''\
# [deny] and id = "pinned" in a comment
schema = "muniment-policy/1" # name = "x"
name = "own"
description = """
[[deny]]
id = "pinned"
"""

[scopes]
"user" = { trust = "owner", commit = "auto" }
project.trust = 'agent'

[[deny]]
id = "first"
paths = ["a"]
[[deny]]
why = \'\'\'
paths = ["MEMORY.md"]\'\'\'
id = "pinned" # [[deny]]
paths = [
    # "MEMORY.md" is below
    "pinned/", "x#y",

    "MEMORY.md",
]
[limits]
turns = 6
seconds = 1_0
[[test]]
path = "a"
[[test]]
path = "b"
'''


PLACES = """
2 schema | 4 description | 9 scopes | 10 scopes - user | 10 scopes - user commit | 11 scopes - project trust
13 deny | 13 deny first | 16 deny pinned | 16 deny 2 | 17 deny pinned why | 19 deny pinned id
20 deny pinned paths | 22 deny pinned paths pinned/ | 22 deny pinned paths x#y
24 deny pinned paths MEMORY.md | 27 limits - turns | 28 limits - seconds
29 test 1 | 32 test 2 path | - test 3 | - allow pinned | - deny other
- deny first paths b | - deny first why | - limits - turns 6 | - limits - tool_calls
"""


def test_a_thing_stands_on_the_line_where_it_begins():
    for row in PLACES.strip().replace("\n", " | ").split(" | "):
        line, *words = row.split()
        asked = [None if word == "-" else int(word) if word.isdigit() else word for word in words]
        for text in (TEXT, TEXT.replace("\n", "\r\n")):
            assert line_of(text, *asked) == (None if line == "-" else int(line)), row


def test_what_is_no_toml_or_cannot_be_followed_has_no_lines(monkeypatch):
    for text in ("a = ", "a = 1\na = 2", "x = " + "[" * 5_000, "x = " + "9" * 5_000):
        assert line_of(text, "a") is None
        assert line_at(text, ("a",)) is None
    assert lines_of("b = 1 # once\n")
    for pattern in ("_KEY", "_SCALAR"):
        monkeypatch.setattr(f"muniment.policy.tables.{pattern}", re.compile("(?!)"))
        assert not lines_of(f"b = 1 # {pattern}\n")
        monkeypatch.undo()
    monkeypatch.setattr("muniment.policy.tables._KEY", re.compile("b"))
    assert not lines_of("bb = 1\n")


# -- files with known positions ------------------------------------------------------------------------

BAIT = ["[[deny]]", 'id = "x"', "a = 1", "#", "[limits]", '"', "'", "{ b = 2 }", "]", "é"]
KEYS = st.sampled_from(["a", "b-c", "_1", "1979-05-27", '"q r"', "'l#t'", '"d.o\\u0074"', '"é"'])
NUMBERS = ["1", "-0.5e3", "0xFF", "true", "nan", "1979-05-27", "1979-05-27 07:32:00Z", "07:32:00"]
STRINGS = ['""', "''", '"[["', "'a\"#'", '"\\"#\\\\"', "'''o'''", '"""o"""', '"""""q"""""', "'''''q'''''"]
SCALARS = st.sampled_from([*NUMBERS, *STRINGS])
SECTIONS = ["[[rule]]", "[[ 'rule' ]]", "[one]", "[x.y]", "[rule.sub]"]


def long_strings(quote):
    bait = st.lists(st.sampled_from([each for each in BAIT if each != quote[0]]), min_size=1, max_size=4)
    return bait.map(lambda lines: "\n".join([quote + lines[0], *lines[1:], quote]))


LONG = st.sampled_from(['"""', "'''"]).flatmap(long_strings)
BLANKS = st.lists(st.sampled_from(["\n", " \n", "\t# ]\n", '# "\n', "# [[deny]]\n"]), max_size=2).map("".join)
"""What may stand between elements of a list: comments and empty lines."""


@st.composite
def values(draw, depth=2):
    """A value as text, with the place and line, from 0, of everything in it."""
    kind = draw(st.sampled_from(["scalar", "long", "list", "table"] if depth else ["scalar"]))
    if kind in {"scalar", "long"}:
        return draw(SCALARS if kind == "scalar" else LONG), {}
    text, found = ("[", {}) if kind == "list" else ("{", {})
    if kind == "list":
        for index, (inner, places) in enumerate(draw(st.lists(values(depth - 1), max_size=3))):
            text += draw(BLANKS)
            line = text.count("\n")
            found[(index,)] = line
            found |= {(index, *loc): line + at for loc, at in places.items()}
            text += inner + draw(st.sampled_from([",", " , "]))
        return text + draw(BLANKS) + "]", found
    pairs = draw(st.lists(st.tuples(KEYS, values(0)), max_size=3, unique_by=lambda pair: parsed(pair[0])))
    found = {(parsed(key),): 0 for key, _ in pairs}
    return "{ " + ", ".join(f"{key} = {value}" for key, (value, _) in pairs) + " }", found


def parsed(key):
    return next(iter(tomllib.loads(f"{key} = 0")))


@st.composite
def pairs(draw, prefix, text, found):
    """`text` with a few more keys of the table `prefix`, whose lines are noted."""
    for name in draw(st.lists(KEYS, max_size=3, unique_by=parsed)):
        text += draw(BLANKS)
        line = text.count("\n") + 1
        value, places = draw(values())
        loc = (*prefix, parsed(name))
        found[loc] = line
        if draw(st.booleans()):
            loc = (*loc, "z")
        text += f"{name}{' . z' * (loc not in found)} = {value} # = 1\n"
        found[loc] = line
        found |= {(*loc, *inner): line + at for inner, at in places.items()}
    return text, found


@st.composite
def files(draw):
    """A file, with the place and line, from 1, of everything in it."""
    text, found = draw(pairs((), "", {}))
    rules, used = -1, set()
    for section in draw(st.lists(st.sampled_from(SECTIONS), max_size=5)):
        if section in used or (section == "[rule.sub]" and rules < 0):
            continue
        text += draw(BLANKS)
        line = text.count("\n") + 1
        prefix = tuple(section.strip("[]").split("."))
        if section.startswith("[["):
            rules += 1
            found.setdefault(("rule",), line)
            prefix = ("rule", rules)
            used.discard("[rule.sub]")
        else:
            used.add(section)
        prefix = ("rule", rules, "sub") if section == "[rule.sub]" else prefix
        for end in range(1, len(prefix) + 1):
            found.setdefault(prefix[:end], line)
        text, found = draw(pairs(prefix, f"{text}{section} # [[rule]]\n", found))
    return text, found


@given(files())
def test_every_place_of_any_file_is_found_on_its_line(made):
    text, found = made
    assert set(found) == set(_locs(tomllib.loads(text), ()))
    assert dict(lines_of(text)) == found
