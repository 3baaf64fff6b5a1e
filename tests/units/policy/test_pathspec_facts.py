"""What is relied on in pathspec, so that an upgrade cannot change the meaning of a policy unseen."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from pathspec import GitIgnoreSpec, PathSpec


def spec(*lines):
    return PathSpec.from_lines("gitignore", lines, backend="simple")


@pytest.mark.parametrize(
    ("pattern", "expression"),
    [
        ("/user/*.md", r"^user/[^/]*\.md(?:/|$)"),
        ("/user/**/*.md", r"^user(?:/.+)?/[^/]*\.md(?:/|$)"),
        ("/user/**", "^user/"),
        ("/user/*", "^user/[^/]+/?$"),
        ("/*", "^[^/]+/?$"),
        ("/user/**/*", "^user(?:/.+)?/[^/]+/?$"),
        ("/*/**/*", "^[^/]+(?:/.+)?/[^/]+/?$"),
        ("/*/index/", "^[^/]+/index/"),
        ("/**", "."),
        ("/**/*", "."),
        ("*", "."),
        ("**/", "/"),
        ("/user/**/", "^user/"),
        (".*", r"^(?:.+/)?\.[^/]*(?:/|$)"),
        ("pinned/", "^(?:.+/)?pinned/"),
        ("MEMORY.md", r"^(?:.+/)?MEMORY\.md(?:/|$)"),
        ("a/b", "^a/b(?:/|$)"),
        ("/user/a?b", "^user/a[^/]b(?:/|$)"),
    ],
)
def test_a_pattern_compiles_to_the_expression_that_the_matchers_count_on(pattern, expression):
    assert [p.regex.pattern for p in spec(pattern).patterns] == [expression]


def test_a_star_pattern_matches_below_a_directory_of_that_name_too():
    assert spec("/user/*.md").match_file("user/a.md/evil.sh")


def test_a_star_as_the_last_segment_is_the_one_pattern_that_does_not_match_below():
    assert not spec("/user/*").match_file("user/a/b.md")
    assert spec("/user/a*").match_file("user/a/b.md")


def test_negation_does_not_exclude_what_another_line_includes():
    assert spec("*.md", "!secrets/").match_file("x/secrets/a.md") is False
    assert GitIgnoreSpec.from_lines(["*.md", "!secrets/"], backend="simple").match_file("secrets/a.md")


def test_a_tree_pattern_matches_a_path_that_leaves_the_tree():
    assert spec("memory/**").match_file("memory/../etc/passwd")


def test_a_directory_pattern_does_not_match_a_file_of_that_name():
    assert not spec("secrets/").match_file("secrets")
    assert spec("secrets/").match_file("secrets/a")


def test_a_dot_stops_at_a_newline():
    assert not spec("secret.md").match_file("user/a\nb/secret.md")


@pytest.mark.parametrize("line", ["", "# secrets/", "   "])
def test_some_lines_are_dropped_silently(line):
    assert [p.include for p in spec(line).patterns] in ([], [None])


def test_a_bad_bracket_is_dropped_or_taken_literally_but_never_a_set():
    assert not spec("secrets[0-9/").match_file("secrets1/a")
    assert [p.regex for p in GitIgnoreSpec.from_lines(["secrets[0-9/"], backend="simple").patterns] == [None]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("secrets[0-9]/", "secrets1/a", True),
        ("secrets[0-9/", "secrets1/a", False),
        ("/user/*.md", "user/a.md", True),
        ("/user/*.md", "user/a.md/evil.sh", True),
        ("memory/**", "memory/../etc/passwd", True),
        ("memory/**", "memory", False),
        ("secrets/", "secrets", False),
        ("secrets/", "x/secrets/a", True),
        ("secrets/a", "x/secrets/a", False),
        ("a", "x/a/b", True),
        ("/a", "x/a", False),
        ("*", "a/b", True),
        ("a*b", "a/b", False),
        ("a?b", "a/b", False),
        ("A", "a", False),
        ("\xdf", "ss", False),
        ("?", "\U0001f4dd", True),
        ("a ", "a", True),
    ],
)
@pytest.mark.parametrize("make", [PathSpec, GitIgnoreSpec])
@pytest.mark.parametrize("backend", ["simple", "best"])
def test_the_surprises_are_the_same_by_either_kind_of_spec(pattern, path, matches, make, backend):
    if make is PathSpec:
        found = make.from_lines("gitignore", [pattern], backend=backend)
    else:
        found = make.from_lines([pattern], backend=backend)
    assert found.match_file(path) is matches


def test_what_is_installed_changes_a_verdict_unless_the_backend_is_pinned():
    """Of half a surrogate pair, as in a name from the disk, one backend says something and another raises."""
    pytest.importorskip("re2")
    by_default, pinned = (
        PathSpec.from_lines("gitignore", ["a?b"], backend=backend) for backend in ("best", "simple")
    )
    assert pinned.match_file("a\udc80b")
    with pytest.raises(UnicodeEncodeError):
        by_default.match_file("a\udc80b")


def test_the_facts_were_checked_for_this_version():
    assert version("pathspec").startswith("1.1.")
