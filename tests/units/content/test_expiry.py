"""End dates in facts: a certain date or none."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from datetime import date, timedelta

import pytest

from kit.locations import FACTS
from muniment.content.entry import parse
from muniment.content.expiry import MAX_CHARS, MAX_DAYS, find_end, is_expired, parse_expiry

TODAY = date(2026, 11, 26)
ENDS = json.loads((FACTS / "ends.json").read_text("utf-8"))["sentences"]
DATED_SENTENCES = tomllib.loads((FACTS / "expiries.toml").read_text("utf-8"))


def test_find_end_matches_dates_of_sentence_set():
    rows = [(sentence, day) for rows in DATED_SENTENCES.values() for sentence, day in rows]
    found = {sentence: find_end(sentence, TODAY) for sentence, _ in rows}
    wrong = [
        (sentence, found[sentence])
        for sentence, day in rows
        if found[sentence] and found[sentence].isoformat() != day
    ]
    missed = [sentence for sentence, day in rows if day and found[sentence] is None]
    with_a_date = sum(bool(day) for _, day in rows)
    assert (len(rows) >= 60, len(DATED_SENTENCES) >= 5, with_a_date >= 30, len(rows) - with_a_date >= 30) == (
        True,
    ) * 4
    assert (wrong, missed) == ([], [])


def test_find_end_of_independent_set_reaches_stated_figures():
    """Find a day only in sentences that state an end; the set was written for 28 November 2026."""
    right, seen = Counter[str](), Counter[str]()
    for number, row in enumerate(ENDS):
        end = find_end(row["text"], date(2026, 11, 28))
        wanted = row["date"] if row["kind"] == "end" else None
        is_right = (end and end.isoformat()) == wanted
        for group in ("loose",) if row["loose"] else ("all", ("tuned", "sealed")[number % 2], row["kind"]):
            seen[group] += 1
            right[group] += is_right
    kinds = {"end": 147, "about_end": 126, "event": 42, "history": 40, "other": 53}
    assert dict(seen) == {"all": 408, "tuned": 202, "sealed": 206, "loose": 32} | kinds
    least = {"all": 397, "tuned": 200, "sealed": 197, "loose": 32}
    least |= {"end": 137, "about_end": 125, "event": 42, "history": 40, "other": 53}
    assert {group: right[group] for group in least if right[group] < least[group]} == {}
    assert right["all"] >= 0.95 * seen["all"]
    assert right["sealed"] >= 0.95 * seen["sealed"]


def test_find_end_requires_end_in_every_sentence():
    both = "The lift is out until 2026-12-01.\nThe stairs are closed until 2026-12-24."
    assert find_end(both, TODAY) == date(2026, 12, 24)
    for text in (f"{both} The cellar is damp.", "", "...", f"{'word ' * 500}until 2026-12-31"):
        assert find_end(text, TODAY) is None
    assert len(f"{'word ' * 500}") > MAX_CHARS


def test_find_end_of_partial_date_takes_next_one():
    for today, phrase, day in (
        (date(2026, 11, 27), "Friday", date(2026, 12, 4)),
        (date(2026, 12, 31), "4 January", date(2027, 1, 4)),
        (date(2027, 1, 4), "4 January", date(2027, 1, 4)),
        (date(2027, 1, 5), "4 January", date(2028, 1, 4)),
        (date(2026, 11, 30), "the end of the month", date(2026, 11, 30)),
        (date(2026, 12, 31), "2026-12-31", date(2026, 12, 31)),
        (date(2027, 1, 1), "2026-12-31", None),
        (date(2026, 12, 31), "2199-01-01", None),
    ):
        assert find_end(f"The side door is locked until {phrase}", today) == day, phrase


def test_read_expiry_takes_today_later_days_and_durations():
    for phrase, day in (
        *(
            (str(TODAY), TODAY),
            (" 2026-12-31 ", date(2026, 12, 31)),
            ("30d", date(2026, 12, 26)),
            ("1 D", date(2026, 11, 27)),
        ),
        (f"{MAX_DAYS}d", TODAY + timedelta(days=MAX_DAYS)),
    ):
        assert parse_expiry(phrase, TODAY) == day
    invalid_phrases = (
        "",
        "0d",
        "-1d",
        "30",
        "d",
        "99999d",
        "2026-11-25",
        "2020-01-01",
        "2026-02-30",
        "20261231",
        "9999-12-31",
    )
    for phrase in (
        *invalid_phrases,
        "2026-12-31T10:00:00",
        "tomorrow",
        "\uff11\uff12d",
        "2026-12-31\nname: x",
        "0" * 10_000,
    ):
        with pytest.raises(ValueError, match=r"today or a later day|day is out of range|month"):
            parse_expiry(phrase, TODAY)


def test_find_end_of_malformed_date_does_not_raise():
    for text in (
        "until \ud83d",
        "until the 99th of May 2027 it is so",
        "until 0/0/2027 it is so",
        "a\0until Friday it is so",
    ):
        find_end(text, TODAY)


def test_parse_separates_explicit_and_inferred_end():
    for line, expires, ends, notes in (
        ("expires: 2026-12-31", "2026-12-31", None, 0),
        ("expires: 2026-12-31T12:00:00+02:00", "2026-12-31T10:00:00.000Z", None, 0),
        ("ends: 2026-12-31", None, TODAY.replace(month=12, day=31), 0),
        ("ends: 2026-12-31\nexpires: 2027-01-01", "2027-01-01", TODAY.replace(month=12, day=31), 0),
        ("ends: soon", None, None, 1),
        ("expires: 20261231", None, None, 1),
    ):
        entry = parse(f"---\n{line}\n---\nThe gym is closed\n")
        assert (entry.expires, entry.ends, len(entry.notes)) == (expires, ends, notes), line
        assert entry.has_end_date == (notes == 0)


def test_is_expired_compares_first_and_last_day():
    assert not is_expired("9999-12-31", "2026-11-26T00:00:00.000Z")
    assert is_expired("0001-01-01", "2026-11-26T00:00:00.000Z")
    assert is_expired("", "2026-11-26T00:00:00.000Z")  # A row that must be read again.
    assert not is_expired(None, "2026-11-26T00:00:00.000Z")
