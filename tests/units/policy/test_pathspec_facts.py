"""Assumptions about pathspec, so that an upgrade cannot silently change the meaning of a policy."""

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


def test_patterns_compile_to_the_assumed_expressions():
    assert version("pathspec").startswith("1.1.")
    rows = COMPILED.split()
    assert [spec(each).patterns[0].regex.pattern for each in rows[::2]] == rows[1::2]


def test_rejected_lines_are_dropped_taken_literally_or_negated():
    for line in ("", "# secrets/", "   "):
        assert [p.include for p in spec(line).patterns] in ([], [None])
    assert [p.regex for p in GitIgnoreSpec.from_lines(["secrets[0-9/"], backend="simple").patterns] == [None]
    assert spec("*.md", "!secrets/").match_file("x/secrets/a.md") is False
    assert GitIgnoreSpec.from_lines(["*.md", "!secrets/"], backend="simple").match_file("secrets/a.md")
    assert spec("a ").match_file("a")
    assert not spec("/user/*").match_file("user/a/b.md")  # The only pattern that does not match deeper files.
    assert not spec("secret.md").match_file("user/a\nb/secret.md")  # A dot does not match a newline.


def test_installed_backend_changes_results_unless_pinned():
    """For half of a surrogate pair, as in a name from the disk, one backend answers and another raises."""
    pytest.importorskip("re2")
    assert spec("a?b").match_file("a\udc80b")
    with pytest.raises(UnicodeEncodeError):
        spec("a?b", backend="best").match_file("a\udc80b")
