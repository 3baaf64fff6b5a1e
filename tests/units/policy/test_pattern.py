"""The pattern dialect: what it refuses, and that its matchers mean what a reader takes them to mean."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.errors import PolicyInvalid
from muniment.names import RelPath, Scope
from muniment.policy.decide import AllowPatterns, DenyPatterns, check_pattern
from muniment.policy.grammar import CanonicalPath, fold
from muniment.policy.load import parse_policy

SCOPES = (Scope("user"), Scope("project"))


POLICY = """schema = "muniment-policy/1"
name = "p"
[scopes]
user = {{}}
project = {{}}
[[deny]]
id = "x"
verbs = ["read"]
paths = ["{}"]
"""


def code(pattern, *, deny=True, scopes=SCOPES):
    try:
        check_pattern(pattern, deny=deny, scopes=scopes, where="p deny[x]")
    except PolicyInvalid as invalid:
        return invalid.rule if invalid.where == "p deny[x]" else f"no place: {invalid}"
    return None


def denies(pattern, text):
    return DenyPatterns([pattern]).match(text, fold(text))


def allows(pattern, text):
    scope, _, rel = text.partition("/")
    return AllowPatterns([pattern]).match(CanonicalPath(Scope(scope), RelPath(rel)))


@pytest.mark.parametrize(
    "pattern",
    [
        *[
            ".*",
            "pinned/",
            "MEMORY.md",
            "/*/index/",
            "/user/",
            "/user",
            "*",
            "**",
            "/**",
            "*/",
            "/**/a/",
            "/user/**",
        ],
        *[
            "/u*/x",
            "/us?r/a.md",
            "au*",
            "co?",
            "com?",
            "/project/a.md",
            "**/a/b",
            "日*",
            "a b",
            "*\u0331",
            "İ.md",
        ],
    ],
)
def test_a_deny_pattern_of_the_dialect_that_can_fire_loads(pattern):
    assert code(pattern) is None


@pytest.mark.threat("T-POL-01", control="pattern_subset")
@pytest.mark.parametrize(
    "pattern",
    [
        *[
            "",
            "/",
            "//",
            "!a",
            "#a",
            "secrets[0-9/",
            "a]",
            "a\\b",
            "/user//a",
            "a//",
            "***",
            "a**",
            "/user/**a/x",
        ],
        *[
            "/user/**/**/a",
            " a",
            "a ",
            "a\tb",
            "a\nb",
            "e\u0301",
            "ﬁ",
            "\u200ba",
            "{a,b}",
            "~",
            "$HOME/",
            "a:b",
            "**/",
        ],
    ],
)
def test_a_pattern_outside_the_subset_is_e203(pattern):
    assert code(pattern) == "E203"


def test_an_allow_pattern_names_files_and_not_directories():
    assert code("/user/topics/", deny=False) == "E203"


@pytest.mark.threat("T-POL-07", control="pattern_cost")
@pytest.mark.parametrize("pattern", ["/user/" + "a" * 507, "/**/a/**/b/**", "/user/*a*b*", "/user/*a*/*b*"])
def test_a_pattern_that_would_be_costly_is_e202(pattern):
    assert code(pattern) == "E202"


@pytest.mark.threat("T-POL-01", control="firing_denies")
@pytest.mark.parametrize(
    "pattern",
    [
        "a.",
        "con",
        "aux.*",
        "LPT1/",
        "..",
        "/user/.",
        "/user/a/b/c/d/e/f/g/h/i",
        "x" * 256,
        "\u2044*",
        "/user/...",
    ],
)
def test_a_deny_pattern_that_no_path_of_the_grammar_can_match_is_e201(pattern):
    with pytest.raises(PolicyInvalid) as caught:
        parse_policy(POLICY.format(pattern), where="p", parents={}.__getitem__)
    assert (caught.value.rule, caught.value.where, caught.value.line) == ("E201", "p deny[x]", 9)


@pytest.mark.parametrize("pattern", ["#a", "!a", ""])
def test_what_pathspec_would_drop_or_negate_is_never_compiled(pattern):
    with pytest.raises(PolicyInvalid) as caught:
        DenyPatterns([pattern])
    assert caught.value.rule == "E203"


@pytest.mark.threat("T-PATH-11", control="exact_files")
@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("/user/*.md", "user/a.md", True),
        ("/user/*.md", "user/a.md/evil.sh", False),
        ("/user/*.md", "user/a.md/b.md", False),
        ("/user/*.md", "user/A.MD", False),
        ("/user/*.md", "userx/a.md", False),
        ("/user/*.md", "user", False),
        ("/user/**/*.md", "user/a.md", True),
        ("/user/**/*.md", "user/a/b/c.md", True),
        ("/user/**/*.md", "user/a.md/evil.sh", False),
        ("/user/**", "user/a", True),
        ("/user/**", "user/a/b", True),
        ("/user/**", "user", False),
        ("/**", "user/a", True),
        ("/**/*", "user/a/b.md", True),
        ("/**", "user", False),
        ("/*", "user", False),
        ("/user/a.md", "user/a.md", True),
        ("/user/a.md", "user/a.md\n", False),
        ("/user/a?b.md", "user/a/b.md", False),
    ],
)
def test_an_allow_pattern_matches_exact_files(pattern, text, expected):
    assert allows(pattern, text) is expected


@pytest.mark.threat("T-PATH-09", control="folding")
@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("pinned/", "user/pinned/a.md", True),
        ("pinned/", "user/Pinned/a.md", True),
        ("pinned/", "user/x/PINNED/y/a.md", True),
        ("pinned/", "user/pinned", False),
        ("pinned/", "user/pinned/", True),
        ("Pinned/", "user/pinned/a.md", True),
        ("MEMORY.md", "user/memory.md", True),
        ("MEMORY.md", "user/memory.md/x.md", True),
        ("MEMORY.md", "user/memory.mdx", False),
        ("straße.md", "user/STRASSE.md", True),
        ("a?b.md", "user/aßb.md", True),
        ("H*.md", "user/H\u0331.md", True),
        ("Draft?.md", "user/draft\xdf.md", True),
        ("Draft?.md", "user/DRAFT\u1e9e.md", True),
        ("draft?.md", "user/DRAFT\xdf.md", True),
        ("Geheim?/", "user/geheim\xdf/x.md", True),
        ("A?.md", "user/a\u0130.md", True),
        ("\u03a3?.md", "user/\u03c2\xdf.md", True),
        ("\u0130?.md", "user/\u0130\xdf.md", True),
        ("Draft?.md", "user/draft\xdf\xdf.md", False),
        ("Draft?.md", "user/draf\xdf.md", False),
        ("/user/*.md", "user/a.md/evil.sh", True),
        ("/user/**", "user/", True),
        ("/*/index/", "user/index/a.md", True),
        ("/*/index/", "user/x/index/a.md", False),
        ("/user/*", "user/a/b.md", True),
        ("/*", "user/a.md", True),
        ("/*/t/*", "user/t/a/b.md", True),
        (".*", "user/.git/config", True),
        (".*", "user/a.git", False),
    ],
)
def test_a_deny_pattern_matches_a_file_or_tree_by_any_spelling(pattern, text, expected):
    assert denies(pattern, text) is expected


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
    anchored = "/" in pattern.removesuffix("/")
    segments = body if anchored else ["**", *body]
    shortest_rest = 1 if pattern.endswith("/") or body[-1] == "**" else 0
    return any(same_segments(segments, path[:end]) for end in range(1, len(path) + 1 - shortest_rest))


SEGMENTS = st.lists(st.text("ab.*?", min_size=1, max_size=3) | st.just("**"), min_size=1, max_size=3)
PATHS = st.lists(st.text("ab.", min_size=1, max_size=3), min_size=1, max_size=4).map(
    lambda rest: ["user", *rest]
)


@pytest.mark.threat("T-PATH-11", control="exact_files")
@given(SEGMENTS, st.sampled_from(["/user/", "/*/", "/**/", "/"]), PATHS)
def test_allow_patterns_agree_with_an_independent_matcher(segments, prefix, path):
    pattern = prefix + "/".join(segments)
    if code(pattern, deny=False) is None:
        assert allows(pattern, "/".join(path)) == oracle_allows(pattern, path)


@given(SEGMENTS, st.sampled_from(["/user/", "/*/", "", "/"]), st.sampled_from(["", "/"]), PATHS)
def test_deny_patterns_agree_with_an_independent_matcher(segments, prefix, suffix, path):
    pattern = prefix + "/".join(segments) + suffix
    if code(pattern) is None:
        assert denies(pattern, "/".join(path)) == oracle_denies(pattern, path)


@given(
    st.text("aAß\u017féÉİ\u0131Σς\u0331Hh", min_size=1, max_size=4),
    st.text("aAßéÉH*?", min_size=1, max_size=4),
)
def test_folding_never_saves_a_path_from_a_deny_that_matches_it_as_written(name, pattern):
    written = DenyPatterns([pattern]).match(name, name)
    if fnmatchcase(name, pattern):
        assert denies(pattern, name)
    assert not written or denies(pattern, name)


@given(
    st.text("aA?\xdf\u0130", min_size=1, max_size=5), st.text("aA\xdf\u1e9e\u0130", min_size=1, max_size=5)
)
def test_a_question_mark_denies_any_one_character_whatever_the_case_of_the_others(pattern, name):
    if len(pattern) == len(name) and all(
        of_pattern in ("?", of_name) or {of_pattern, of_name} == {"a", "A"}
        for of_pattern, of_name in zip(pattern, name, strict=True)
    ):
        assert denies(pattern, f"user/{name}")
