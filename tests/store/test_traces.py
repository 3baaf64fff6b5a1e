"""Runs of a text in other bytes, against a search that tries every offset."""

from __future__ import annotations

import random

from hypothesis import example, given
from hypothesis import strategies as st

from muniment.store.tasks import RUN_BYTES, Runs, telling

FEW = st.binary(max_size=80).map(lambda data: bytes(byte % 2 for byte in data))
"""Bytes of two kinds, so that texts share runs."""


def windows(data):
    return {data[at : at + RUN_BYTES] for at in range(len(data) - RUN_BYTES + 1)}


@given(st.lists(FEW, max_size=3), FEW)
@example([b"x" * 16], b"x" * 16)
@example([b"x" * 15], b"x" * 100)
def test_every_run_is_found_at_every_offset_and_nothing_else(texts, data):
    every = set().union(*map(windows, texts))
    runs = Runs(texts)
    assert len(runs) == len(every)
    assert runs.found_in(data) == every & windows(data)


@given(st.lists(FEW, max_size=3), st.lists(FEW, max_size=3), FEW)
def test_what_others_hold_is_left_out(texts, others, data):
    every = set().union(*map(windows, texts)) - set().union(*map(windows, others))
    left = Runs(texts).without(others)
    assert len(left) == len(every)
    assert left.found_in(data) == every & windows(data)


@given(st.integers(0, 40), st.integers(0, 40))
def test_sixteen_bytes_in_random_surroundings_are_enough(before, behind):
    source = random.Random(before * 41 + behind)
    text = source.randbytes(100)
    data = source.randbytes(before) + text[30:46] + source.randbytes(behind)
    assert text[30:46] in Runs([text]).found_in(data)  # By chance a neighbour may fit as well.


def test_of_an_entry_only_what_says_something_counts():
    entry = (
        b'---\nname: A name\ndescription: "What \\u00e9"\nkeywords: [one, two]\ntype: reference\n'
        b'muniment: {"id": "01", "trust": "owner"}\n---\nThe body.\n'
    )
    assert list(telling(entry)) == [b"The body.\n", b"A name", "What é".encode(), b"one", b"two"]
    assert list(telling(b"only text\n")) == [b"only text\n"]
    assert list(telling(b"\xff\xfe no text")) == [b"\xff\xfe no text"]
    assert list(telling(b"")) == [b""]
