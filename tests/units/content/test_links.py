"""Relative links: which paths they mean, and that hostile text costs nothing."""

from __future__ import annotations

import time

import pytest

from muniment.content.markdown import relative_links
from muniment.names import RelPath


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ("see [a](a.md)", ["topic/a.md"]),
        ("![a](img/a.png)", ["topic/img/a.png"]),
        ("[a](../other/b.md#part)", ["other/b.md"]),
        ("[a](./b%20c.md?x=1)", ["topic/b c.md"]),
        ("[a](<b.md>) [b](b.md 'title')", ["topic/b.md", "topic/b.md"]),
        ("[a](../../secret.md)", []),
        ("[a](/etc/passwd) [b](https://example.com/a.md) [c](mailto:a@b) [d](#part) [e](..)", []),
        ("```\n[a](a.md)\n```\n    [b](b.md)\n", []),
        ("- [a](a.md)\n\n      [code](b.md)\n", ["topic/a.md"]),
        ("[a]()", []),
        ("no links", []),
    ],
)
def test_a_link_means_a_path_inside_the_scope_or_nothing(body, paths):
    assert list(relative_links(body, RelPath("topic/entry.md"))) == paths


def test_links_of_an_entry_at_the_root_go_from_there():
    assert list(relative_links("[a](b/c.md) [d](../e.md)", RelPath("entry.md"))) == ["b/c.md"]


@pytest.mark.parametrize(
    "text", ["](" * 300_000, "[" * 500_000 + "](a)", "](" + "a" * 600_000, "]( " * 200_000]
)
def test_hostile_text_takes_a_moment(text):
    started = time.process_time()
    assert sum(1 for _ in relative_links(text, RelPath("a.md"))) >= 0
    assert time.process_time() - started < 3
