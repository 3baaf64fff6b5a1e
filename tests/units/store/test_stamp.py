"""Stamping: what an entry says of its origin comes from us, and what it is called is never empty."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.content.entry import parse
from muniment.errors import TooLarge
from muniment.names import RelPath, Scope, Trust
from muniment.policy.grammar import CanonicalPath
from muniment.store.trust import ChangeOrigin, stamp, ulid

OLD_ID = "01ARYZ6S41TSV4RRFFQ69G5FAV"
NEW_ID = "01BX5ZZKBKACTAV9WEVGEMMVRZ"
NOW = datetime(2026, 11, 21, 21, 0, 0, 999, tzinfo=timezone(timedelta(hours=1)))
PATH = CanonicalPath(Scope("user"), RelPath("editor/dark-mode.md"))
PROVENANCE = ChangeOrigin(NEW_ID, NOW, "remember-1", Trust.OWNER, "rules", "strict@a1f4e0db")
LINE = {
    "id": NEW_ID,
    "created": "2026-11-21T20:00:00Z",
    "updated": "2026-11-21T20:00:00Z",
    "task": "remember-1",
    "trust": "owner",
    "decided_by": "rules",
    "policy": "strict@a1f4e0db",
}


def file_with(muniment):
    return f"---\nname: a\nmuniment: {json.dumps(muniment)}\n---\nold\n".encode()


def test_identity_and_creation_survive_a_change_and_nothing_else_does():
    base = file_with({"id": OLD_ID, "created": "2020-02-29T00:00:00Z", "trust": "owner", "extra": "x"})
    muniment = parse(stamp(b"new", base, PATH, PROVENANCE)).muniment
    assert muniment == LINE | {"id": OLD_ID, "created": "2020-02-29T00:00:00Z"}


@pytest.mark.threat("T-MEM-10", control="own_provenance")
def test_what_a_proposal_claims_of_itself_is_thrown_away():
    proposal = file_with({"id": OLD_ID, "created": "2020-01-01T00:00:00Z", "trust": "owner"})
    for base in (None, b"no front matter", b"\xff\xfe", file_with([]), file_with({})):
        assert parse(stamp(proposal, base, PATH, PROVENANCE)).muniment == LINE


@pytest.mark.parametrize(
    "muniment",
    [
        {"id": OLD_ID.lower(), "created": "2020-01-01"},
        {"id": OLD_ID + "0", "created": "2020-02-30T00:00:00Z"},
        {"id": "8" + OLD_ID[1:], "created": "2020-01-01T24:00:00Z"},
        {"id": OLD_ID + "\n", "created": "2020-01-01T00:00:00Z\n"},
        {"id": 1, "created": 2},
        {"id": OLD_ID[:-1] + "U", "created": "٢٠٢٠-01-01T00:00:00Z"},
        {},
    ],
)
def test_an_identity_of_the_wrong_form_is_not_taken_over(muniment):
    assert parse(stamp(b"new", file_with(muniment), PATH, PROVENANCE)).muniment == LINE


def test_the_same_change_stamps_to_the_same_bytes_and_a_second_time_to_the_same():
    once = stamp(b"# T\r\n\r\nx\r\n", None, PATH, PROVENANCE)
    assert once == stamp(b"# T\r\n\r\nx\r\n", None, PATH, PROVENANCE)
    assert stamp(once, once, PATH, PROVENANCE) == once


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_stamping_keeps_every_byte_of_the_body(text):
    stamped = parse(stamp(text.encode(), None, PATH, PROVENANCE))
    assert stamped.body == parse(text).body
    assert stamped.muniment == LINE


def test_front_matter_without_room_is_refused():
    with pytest.raises(TooLarge):
        stamp(b"---\nx: " + b"y" * 8_170 + b"\n---\n", None, PATH, PROVENANCE)


@pytest.mark.parametrize(
    ("milliseconds", "randomness"), [(-1, bytes(10)), (2**48, bytes(10)), (0, bytes(9)), (0, bytes(11))]
)
def test_a_ulid_out_of_range_is_an_error(milliseconds, randomness):
    with pytest.raises(ValueError, match="ULID"):
        ulid(milliseconds, randomness)
