"""The pattern dialect: what it refuses, and that its matchers mean what a reader takes them to mean."""

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.paths import forged
from kit.policy.files import code, parsed, refusal, rule
from kit.policy.reading import Reader
from muniment.kernel.decide import AllowPatterns, DenyPatterns
from muniment.kernel.names import RelPath, Scope
from muniment.kernel.path import fold
from muniment.policy.automaton import Patterns, Steps, letters_for
from muniment.policy.pattern import check_pattern

SCOPES = (Scope("user"), Scope("project"))
HEAD = 'schema = "muniment-policy/1"\nname = "p"\n[scopes]\nuser = {}\nproject = {}\n'


def problem(pattern, *, deny=True):
    return code(check_pattern, pattern, deny=deny, scopes=SCOPES, where="p deny[x]")


def denies(pattern, text):
    return DenyPatterns([pattern]).match(text, fold(text))


def allows(pattern, text):
    scope, _, rel = text.partition("/")
    return AllowPatterns([pattern]).match(forged(Scope(scope), RelPath(rel)))


def denied(pattern, text):
    """As it is decided, which is how the prover reads it."""
    letters = letters_for((), [pattern])
    tree = Patterns.tree([pattern], letters, Steps(10_000_000))
    assert Reader(letters).reads(tree, text) is denies(pattern, text), (pattern, text)
    return denies(pattern, text)


FINE = """.*|pinned/|MEMORY.md|/*/index/|/user/|/user|*|**|/**|*/|/**/a/|/user/**|/u*/x|/us?r/a.md|au*|
co?|com?|/project/a.md|**/a/b|日*|a b|*\u0331|İ.md"""
OUTSIDE = """/|//|!a|#a|secrets[0-9/|a]|a\\b|/user//a|a//|***|a**|/user/**a/x|/user/**/**/a| a|a |a\tb|
e\u0301|ﬁ|\u200ba|{a,b}|~|$HOME/|a:b|**/"""


@pytest.mark.threat("T-POL-01", control="pattern_subset")
def test_a_pattern_outside_the_subset_is_e203_and_one_inside_that_can_fire_loads():
    outside = ["", "a\nb", *OUTSIDE.replace("\n", "").split("|")]
    assert [each for each in outside if problem(each) != "E203"] == []
    assert [each for each in FINE.replace("\n", "").split("|") if problem(each) is not None] == []
    assert problem("/user/topics/", deny=False) == "E203"  # Of files, not of directories.
    assert refusal(check_pattern, "a]", deny=True, scopes=SCOPES, where="p deny[x]").where == "p deny[x]"


@pytest.mark.threat("T-POL-07", control="pattern_cost")
def test_a_pattern_that_would_be_costly_is_e202():
    for pattern in ("/user/" + "a" * 507, "/**/a/**/b/**", "/user/*a*b*", "/user/*a*/*b*"):
        assert problem(pattern) == "E202", pattern


@pytest.mark.threat("T-POL-01", control="firing_denies")
def test_a_deny_pattern_that_no_path_of_the_grammar_can_match_is_e201_on_its_line():
    silent = "a. con aux.* LPT1/ .. /user/. /user/a/b/c/d/e/f/g/h/i \u2044* /user/..."
    for pattern in (*silent.split(), "x" * 256):
        found = refusal(parsed, HEAD + rule("deny", "x", ["read"], [pattern]))
        assert (found.rule, found.where, found.line) == ("E201", "own deny[x]", 9), pattern


GRANTED = """
/user/*.md: user/a.md user/a.md - user/a.md/evil.sh user/a.md/b.md user/A.MD userx/a.md user
/user/**/*.md: user/a.md user/a/b/c.md - user/a.md/evil.sh | /user/**: user/a user/a/b - user | /*: - user
/**: user/a - user | /**/*: user/a/b.md | /user/a.md: user/a.md - user/a.mdLF | /user/a?b.md: - user/a/b.md
"""


def rows(table):
    """Pattern by pattern: what it matches, and what not."""
    for row in table.strip().replace("\n", " | ").split(" | "):
        pattern, _, texts = row.partition(": ")
        yield pattern, *(part.split() for part in texts.partition("- ")[::2])


@pytest.mark.threat("T-PATH-11", control="exact_files")
def test_an_allow_pattern_matches_exact_files():
    for pattern, matched, others in rows(GRANTED):
        assert [text for text in matched if not allows(pattern, text)] == [], pattern
        assert [text for text in others if allows(pattern, text.replace("LF", "\n"))] == [], pattern


DENIED = """
pinned/: user/pinned/a.md user/Pinned/a.md user/x/PINNED/y/a.md user/pinned/ - user/pinned user/mypinned/a.md
Pinned/: user/pinned/a.md | MEMORY.md: user/memory.md user/memory.md/x.md - user/memory.mdx
straße.md: user/STRASSE.md | a?b.md: user/aßb.md | a??b: user/aßb | a???b: - user/aßb | *s: user/ß
i\u0307: user/\u0130 | user: user/x | /us?r/x/: user/X/y - user/x | /**/x/**: user/x/y - user/x
H*.md: user/H\u0331.md | Draft?.md: user/draftß.md user/DRAFT\u1e9e.md - user/draftßß.md user/drafß.md
draft?.md: user/DRAFTß.md | Geheim?/: user/geheimß/x.md | A?.md: user/a\u0130.md | Σ?.md: user/ςß.md
\u0130?.md: user/\u0130ß.md | /user/*.md: user/a.md/evil.sh | /user/**: user/ | /user/*: user/a/b.md
/*/index/: user/index/a.md - user/x/index/a.md | /*: user/a.md | /*/t/*: user/t/a/b.md
.*: user/.git/config - user/a.git
"""


@pytest.mark.threat("T-PATH-09", control="folding")
def test_a_deny_pattern_matches_a_file_or_tree_by_any_spelling():
    for pattern, matched, others in rows(DENIED):
        assert [text for text in matched if not denied(pattern, text)] == [], pattern
        assert [text for text in others if denied(pattern, text)] == [], pattern


# An oracle that shares nothing with pathspec: patterns and paths as lists of segments, matched by recursion.


def same_segments(pattern, path):
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(same_segments(pattern[1:], path[i:]) for i in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and same_segments(pattern[1:], path[1:])


def oracle_allows(pattern, path):
    segments = pattern[1:].split("/")
    return same_segments([*segments, "*"] if segments[-1] == "**" else segments, path)


def oracle_denies(pattern, path):
    body = pattern.removesuffix("/").removeprefix("/").split("/")
    segments = body if "/" in pattern.removesuffix("/") else ["**", *body]
    shortest_rest = 1 if pattern.endswith("/") or body[-1] == "**" else 0
    return any(same_segments(segments, path[:end]) for end in range(1, len(path) + 1 - shortest_rest))


SEGMENTS = st.lists(st.text("ab.*?", min_size=1, max_size=3) | st.just("**"), min_size=1, max_size=3)
PATHS = st.lists(st.text("ab.", min_size=1, max_size=3), min_size=1, max_size=4)


PREFIXES = [*product(["/user/", "/*/", "/**/", "/"], ["/user/", "/*/", "", "/"], ["", "/"])]


@given(SEGMENTS, st.sampled_from(PREFIXES), PATHS)
def test_patterns_agree_with_an_independent_matcher(segments, around, rest):
    path, (of_allow, of_deny, suffix) = ["user", *rest], around
    pattern = of_allow + "/".join(segments)
    if problem(pattern, deny=False) is None:
        assert allows(pattern, "/".join(path)) == oracle_allows(pattern, path)
    pattern = of_deny + "/".join(segments) + suffix
    if problem(pattern) is None:
        assert denies(pattern, "/".join(path)) == oracle_denies(pattern, path)


NAMES = st.text("aAß\u1e9e\u017féÉİ\u0131Σς\u0331Hh", min_size=1, max_size=4)


@given(NAMES, st.text("aAßİéÉH*?", min_size=1, max_size=4))
def test_folding_never_saves_a_path_and_a_question_mark_is_any_character_whatever_its_case(name, pattern):
    is_alike = len(pattern) == len(name) and all(
        one in ("?", other) or {one, other} == {"a", "A"} for one, other in zip(pattern, name, strict=True)
    )
    if is_alike or fnmatchcase(name, pattern) or DenyPatterns([pattern]).match(name, name):
        assert denies(pattern, name)
        assert denies(pattern, f"user/{name}")
