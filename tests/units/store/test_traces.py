"""Runs of a text in other bytes, against a search that tries every offset."""

from __future__ import annotations

from muniment.store.tasks import telling


def test_of_an_entry_only_what_says_something_counts():
    entry = (
        b'---\nname: A name\ndescription: "What \\u00e9"\nkeywords: [one, two]\ntype: reference\n'
        b'muniment: {"id": "01", "trust": "owner"}\n---\nThe body.\n'
    )
    assert list(telling(entry)) == [b"The body.\n", b"A name", "What é".encode(), b"one", b"two"]
    assert list(telling(b"only text\n")) == [b"only text\n"]
    assert list(telling(b"\xff\xfe no text")) == [b"\xff\xfe no text"]
    assert list(telling(b"")) == [b""]
