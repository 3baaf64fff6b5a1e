"""Lines: the one on which a thing stands, or none; told apart from everything that only looks like it."""

import re
import tomllib

from hypothesis import given

from muniment.policy.tables import _locs, line_at, line_of, lines_of
from muniment.testing.strategies import near_policies, policies

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


ODD = """\
"d.a\\u0062" . 'l#t' = 1 # = 1
x.z = [ # ]
  "[[", [ '''
[[deny]]
id = "x"''', # "

\t1979-05-27 07:32:00Z ] , { "q r" = nan, b-c = { "é" = -0.5e3 } },
]
[[ 'rule' ]] # [[rule]]
1979-05-27 = \"\"\"""q""\"\"\"
[rule.sub]
_1 = 0xFF
[[rule]]
[rule.sub]
y = [
  true,
  07:32:00]
[one.two]
"""
LINES = """1 d.ab|1 d.ab/l#t|2 x|2 x/z|3 x/z/0|3 x/z/1|3 x/z/1/0|7 x/z/1/1|7 x/z/2|7 x/z/2/q r|7 x/z/2/b-c|
7 x/z/2/b-c/é|9 rule|9 rule/0|10 rule/0/1979-05-27|11 rule/0/sub|12 rule/0/sub/_1|13 rule/1|14 rule/1/sub|
15 rule/1/sub/y|16 rule/1/sub/y/0|17 rule/1/sub/y/1|18 one|18 one/two"""


def test_every_place_of_an_odd_file_is_found_on_its_line():
    rows = (row.split(" ", 1) for row in LINES.replace("\n", "").split("|"))
    names = {row[1]: int(row[0]) for row in rows}
    found = {"/".join(map(str, place)): line for place, line in lines_of(ODD).items()}
    assert found == names


@given(policies() | near_policies([TEXT, ODD]))
def test_every_place_of_any_file_is_found_on_a_line_that_names_it(text):
    try:
        places = set(_locs(tomllib.loads(text), ()))
    except ValueError:
        return
    found, lines = dict(lines_of(text)), text.split("\n")
    assert set(found) == places
    for place, line in found.items():
        name = place[-1]
        if isinstance(name, str) and name.isidentifier():
            assert name in lines[line - 1], (place, line)
