"""The pattern dialect: rejected patterns, and that the matchers do what a reader expects."""

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.paths import forge_path
from kit.policy.files import catch_invalid, format_rule, parse_text, read_error_code
from kit.policy.patterns import PathReader
from muniment.kernel.decide import AllowPatterns, DenyPatterns
from muniment.kernel.names import RelPath, Scope
from muniment.kernel.path import fold
from muniment.policy.automaton import Patterns, StepBudget, build_letters
from muniment.policy.pattern import check_pattern

SCOPES = (Scope("user"), Scope("project"))
HEAD = 'schema = "muniment-policy/1"\nname = "p"\n[scopes]\nuser = {}\nproject = {}\n'


def find_problem(pattern, *, deny=True):
    return read_error_code(check_pattern, pattern, deny=deny, scopes=SCOPES, where="p deny[x]")


def matches_deny(pattern, text):
    return DenyPatterns([pattern]).match(text, fold(text))


def matches_allow(pattern, text):
    scope, _, rel = text.partition("/")
    return AllowPatterns([pattern]).match(forge_path(Scope(scope), RelPath(rel)))


def matches_deny_in_prover(pattern, text):
    """Return whether the pattern denies, checked also as the prover reads it."""
    letters = build_letters((), [pattern])
    tree = Patterns.tree([pattern], letters, StepBudget(10_000_000))
    assert PathReader(letters).matches(tree, text) is matches_deny(pattern, text), (pattern, text)
    return matches_deny(pattern, text)


FINE = """.*|pinned/|MEMORY.md|/*/index/|/user/|/user|*|**|/**|*/|/**/a/|/user/**|/u*/x|/us?r/a.md|au*|
co?|com?|/project/a.md|**/a/b|日*|a b|*\u0331|İ.md"""
OUTSIDE = """/|//|!a|#a|secrets[0-9/|a]|a\\b|/user//a|a//|***|a**|/user/**a/x|/user/**/**/a| a|a |a\tb|
e\u0301|ﬁ|\u200ba|{a,b}|~|$HOME/|a:b|**/"""


@pytest.mark.threat("T-POL-01", control="pattern_subset")
def test_pattern_outside_the_subset_is_e203():
    outside = ["", "a\nb", *OUTSIDE.replace("\n", "").split("|")]
    assert [each for each in outside if find_problem(each) != "E203"] == []
    assert [each for each in FINE.replace("\n", "").split("|") if find_problem(each) is not None] == []
    assert find_problem("/user/topics/", deny=False) == "E203"  # Patterns of files, not of directories.
    assert (
        catch_invalid(check_pattern, "a]", deny=True, scopes=SCOPES, where="p deny[x]").where == "p deny[x]"
    )


@pytest.mark.threat("T-POL-07", control="pattern_cost")
def test_costly_pattern_is_e202():
    for pattern in ("/user/" + "a" * 507, "/**/a/**/b/**", "/user/*a*b*", "/user/*a*/*b*"):
        assert find_problem(pattern) == "E202", pattern


@pytest.mark.threat("T-POL-01", control="firing_denies")
def test_deny_pattern_without_a_possible_match_is_e201():
    silent = "a. con aux.* LPT1/ .. /user/. /user/a/b/c/d/e/f/g/h/i \u2044* /user/..."
    for pattern in (*silent.split(), "x" * 256):
        found = catch_invalid(parse_text, HEAD + format_rule("deny", "x", ["read"], [pattern]))
        assert (found.rule, found.where, found.line) == ("E201", "own deny[x]", 9), pattern


GRANTED = """
/user/*.md: user/a.md user/a.md - user/a.md/evil.sh user/a.md/b.md user/A.MD userx/a.md user
/user/**/*.md: user/a.md user/a/b/c.md - user/a.md/evil.sh | /user/**: user/a user/a/b - user | /*: - user
/**: user/a - user | /**/*: user/a/b.md | /user/a.md: user/a.md - user/a.mdLF | /user/a?b.md: - user/a/b.md
"""


def parse_rows(table):
    """Yield each pattern with the texts that it matches and those that it does not."""
    for row in table.strip().replace("\n", " | ").split(" | "):
        pattern, _, texts = row.partition(": ")
        yield pattern, *(part.split() for part in texts.partition("- ")[::2])


@pytest.mark.threat("T-PATH-11", control="exact_files")
def test_allow_pattern_matches_exact_files():
    for pattern, matched, others in parse_rows(GRANTED):
        assert [text for text in matched if not matches_allow(pattern, text)] == [], pattern
        assert [text for text in others if matches_allow(pattern, text.replace("LF", "\n"))] == [], pattern


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
def test_deny_pattern_matches_a_file_or_tree_by_any_spelling():
    for pattern, matched, others in parse_rows(DENIED):
        assert [text for text in matched if not matches_deny_in_prover(pattern, text)] == [], pattern
        assert [text for text in others if matches_deny_in_prover(pattern, text)] == [], pattern


# An oracle that shares nothing with pathspec: patterns and paths as lists of segments, matched recursively.


def match_segments(pattern, path):
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(match_segments(pattern[1:], path[i:]) for i in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and match_segments(pattern[1:], path[1:])


def allows_by_oracle(pattern, path):
    segments = pattern[1:].split("/")
    return match_segments([*segments, "*"] if segments[-1] == "**" else segments, path)


def denies_by_oracle(pattern, path):
    body = pattern.removesuffix("/").removeprefix("/").split("/")
    segments = body if "/" in pattern.removesuffix("/") else ["**", *body]
    shortest_rest = 1 if pattern.endswith("/") or body[-1] == "**" else 0
    return any(match_segments(segments, path[:end]) for end in range(1, len(path) + 1 - shortest_rest))


SEGMENTS = st.lists(st.text("ab.*?", min_size=1, max_size=3) | st.just("**"), min_size=1, max_size=3)
PATHS = st.lists(st.text("ab.", min_size=1, max_size=3), min_size=1, max_size=4)


PREFIXES = [*product(["/user/", "/*/", "/**/", "/"], ["/user/", "/*/", "", "/"], ["", "/"])]


@given(SEGMENTS, st.sampled_from(PREFIXES), PATHS)
def test_patterns_agree_with_an_independent_matcher(segments, around, rest):
    path, (allow_prefix, deny_prefix, suffix) = ["user", *rest], around
    pattern = allow_prefix + "/".join(segments)
    if find_problem(pattern, deny=False) is None:
        assert matches_allow(pattern, "/".join(path)) == allows_by_oracle(pattern, path)
    pattern = deny_prefix + "/".join(segments) + suffix
    if find_problem(pattern) is None:
        assert matches_deny(pattern, "/".join(path)) == denies_by_oracle(pattern, path)


NAMES = st.text("aAß\u1e9e\u017féÉİ\u0131Σς\u0331Hh", min_size=1, max_size=4)


@given(NAMES, st.text("aAßİéÉH*?", min_size=1, max_size=4))
def test_folding_denies_all_spellings_of_a_match(name, pattern):
    is_match = len(pattern) == len(name) and all(
        one in ("?", other) or {one, other} == {"a", "A"} for one, other in zip(pattern, name, strict=True)
    )
    if is_match or fnmatchcase(name, pattern) or DenyPatterns([pattern]).match(name, name):
        assert matches_deny(pattern, name)
        assert matches_deny(pattern, f"user/{name}")
