"""Line numbers of values in a policy file, with look-alikes such as comments and strings."""

import re
import tomllib

from hypothesis import given

from kit.strategies.policies import near_policies, policies
from muniment.policy.tables import _iterate_locations, find_line, find_lines, find_nearest_line

TEXT = '''\
# [deny] and id = "pinned" in a comment
schema = "muniment-policy/1" # name = "x"
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
[[test]]
path = "a"
[[test]]
path = "b"
'''


PLACES = """
2 schema | 3 description | 8 scopes | 9 scopes - user | 9 scopes - user commit | 10 scopes - project trust
11 deny | 11 deny first | 14 deny pinned | 14 deny 2 | 15 deny pinned why | 17 deny pinned id
18 deny pinned paths | 20 deny pinned paths pinned/ | 20 deny pinned paths x#y
21 deny pinned paths MEMORY.md | 23 test 1 | 26 test 2 path | - test 3 | - allow pinned | - deny other
- deny first paths b | - deny first why | - deny first id 6 | - scopes - team
"""


def test_value_is_found_on_its_first_line():
    for row in PLACES.strip().replace("\n", " | ").split(" | "):
        line, *words = row.split()
        keys = [None if word == "-" else int(word) if word.isdigit() else word for word in words]
        for text in (TEXT, TEXT.replace("\n", "\r\n")):
            assert find_line(text, *keys) == (None if line == "-" else int(line)), row


def test_invalid_or_unparsable_toml_has_no_lines(monkeypatch):
    for text in ("a = ", "a = 1\na = 2", "x = " + "[" * 5_000, "x = " + "9" * 5_000):
        assert (find_line(text, "a"), find_nearest_line(text, ("a",))) == (None, None)
    assert find_lines("b = 1 # once\n")
    for name, pattern, text in ("_KEY", "(?!)", "b = 2"), ("_SCALAR", "(?!)", "b = 3"), ("_KEY", "b", "bb=1"):
        monkeypatch.setattr(f"muniment.policy.tables.{name}", re.compile(pattern))
        assert not find_lines(text)
        monkeypatch.undo()


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


def test_every_value_of_an_unusual_file_is_found_on_its_line():
    found = {f"{line} {'/'.join(map(str, place))}" for place, line in find_lines(ODD).items()}
    assert found == {*LINES.replace("\n", "").split("|")}


@given(policies() | near_policies([TEXT, ODD]))
def test_every_value_of_any_file_is_on_a_line_with_its_name(text):
    try:
        places = set(_iterate_locations(tomllib.loads(text), ()))
    except ValueError:
        return
    found, lines = dict(find_lines(text)), text.split("\n")
    assert set(found) == places
    for (*_, name), line in found.items():
        assert not str(name).isidentifier() or name in lines[line - 1], (name, line)
