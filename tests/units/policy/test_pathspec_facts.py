"""What is relied on in pathspec, so that an upgrade cannot change the meaning of a policy unseen."""

from importlib.metadata import version

import pytest
from pathspec import GitIgnoreSpec, PathSpec


def spec(*lines, backend="simple"):
    return PathSpec.from_lines("gitignore", lines, backend=backend)


COMPILED = r"""
/user/*.md ^user/[^/]*\.md(?:/|$)  /user/**/*.md ^user(?:/.+)?/[^/]*\.md(?:/|$)  /user/** ^user/
/user/* ^user/[^/]+/?$  /* ^[^/]+/?$  /user/**/* ^user(?:/.+)?/[^/]+/?$  /*/**/* ^[^/]+(?:/.+)?/[^/]+/?$
/*/index/ ^[^/]+/index/  /** .  /**/* .  * .  **/ /  /user/**/ ^user/  pinned/ ^(?:.+/)?pinned/
.* ^(?:.+/)?\.[^/]*(?:/|$)  MEMORY.md ^(?:.+/)?MEMORY\.md(?:/|$)  a/b ^a/b(?:/|$)
/user/a?b ^user/a[^/]b(?:/|$)
"""


def test_a_pattern_compiles_to_the_expression_that_the_matchers_count_on():
    assert version("pathspec").startswith("1.1.")
    told = COMPILED.split()
    assert [spec(each).patterns[0].regex.pattern for each in told[::2]] == told[1::2]


def test_lines_are_dropped_taken_literally_or_negated_as_we_forbid_them_to_be():
    for line in ("", "# secrets/", "   "):
        assert [p.include for p in spec(line).patterns] in ([], [None])
    assert [p.regex for p in GitIgnoreSpec.from_lines(["secrets[0-9/"], backend="simple").patterns] == [None]
    assert spec("*.md", "!secrets/").match_file("x/secrets/a.md") is False
    assert GitIgnoreSpec.from_lines(["*.md", "!secrets/"], backend="simple").match_file("secrets/a.md")
    assert spec("a ").match_file("a")
    assert not spec("/user/*").match_file("user/a/b.md")  # The one pattern that does not match below.
    assert not spec("secret.md").match_file("user/a\nb/secret.md")  # A dot stops at a newline.


def test_what_is_installed_changes_a_verdict_unless_the_backend_is_pinned():
    """Of half a surrogate pair, as in a name from the disk, one backend says something and another raises."""
    pytest.importorskip("re2")
    assert spec("a?b").match_file("a\udc80b")
    with pytest.raises(UnicodeEncodeError):
        spec("a?b", backend="best").match_file("a\udc80b")
