"""Relative links: which paths they mean, and that hostile text costs nothing."""

from __future__ import annotations

import pytest

from muniment.content.markdown import relative_links
from muniment.names import RelPath

MEANT = {
    "see [a](a.md)": ["topic/a.md"],
    "![a](img/a.png)": ["topic/img/a.png"],
    "[a](../other/b.md#part)": ["other/b.md"],
    "[a](./b%20c.md?x=1)": ["topic/b c.md"],
    "[a](<b.md>) [b](b.md 'title')": ["topic/b.md", "topic/b.md"],
    "[a](../../secret.md)": [],
    "[a](/etc/passwd) [b](https://example.com/a.md) [c](mailto:a@b) [d](#part) [e](..)": [],
    "```\n[a](a.md)\n```\n    [b](b.md)\n": [],
    "- [a](a.md)\n\n      [code](b.md)\n": ["topic/a.md"],
    "[a]() no links": [],
}


def test_a_link_means_a_path_inside_the_scope_or_nothing():
    assert {body: list(relative_links(body, RelPath("topic/entry.md"))) for body in MEANT} == MEANT
    assert list(relative_links("[a](b/c.md) [d](../e.md)", RelPath("entry.md"))) == ["b/c.md"]


@pytest.mark.sweep(2)
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "text", ["](" * 300_000, "[" * 500_000 + "](a)", "](" + "a" * 600_000, "]( " * 200_000]
)
def test_hostile_text_comes_to_its_end(text):
    assert not any(path.startswith(("/", "..")) for path in relative_links(text, RelPath("a.md")))
