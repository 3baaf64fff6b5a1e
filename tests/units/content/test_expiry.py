"""Until when a fact holds, as its words say: a date that is certain, or none."""

from __future__ import annotations

import tomllib
from datetime import date, timedelta

import pytest

from kit.where import FACTS
from muniment.content.expiry import MAX_CHARS, MAX_DAYS, expiry_in, read_expiry

TODAY = date(2026, 11, 26)
SAID = tomllib.loads((FACTS / "expiries.toml").read_text("utf-8"))


def test_of_sentences_of_many_languages_the_date_is_the_one_that_is_said_and_none_is_invented():
    rows = [(sentence, day) for rows in SAID.values() for sentence, day in rows]
    found = {sentence: expiry_in(sentence, TODAY) for sentence, _ in rows}
    wrong = [(said, found[said]) for said, day in rows if found[said] and found[said].isoformat() != day]
    missed = [said for said, day in rows if day and found[said] is None]
    with_a_date = sum(bool(day) for _, day in rows)
    assert (len(rows) >= 60, len(SAID) >= 5, with_a_date >= 30, len(rows) - with_a_date >= 30) == (True,) * 4
    assert (wrong, missed) == ([], [])


def test_a_text_ends_only_if_all_of_it_does_and_with_the_last_of_it():
    both = "The lift is out until 2026-12-01.\nThe stairs are closed until 2026-12-24."
    assert expiry_in(both, TODAY) == date(2026, 12, 24)
    for text in (f"{both} The cellar is damp.", "", "...", f"{'word ' * 500}until 2026-12-31"):
        assert expiry_in(text, TODAY) is None
    assert len(f"{'word ' * 500}") > MAX_CHARS


def test_a_day_of_the_week_or_year_is_the_next_one_and_today_is_none():
    for today, said, day in (
        (date(2026, 11, 27), "Friday", date(2026, 12, 4)),
        (date(2026, 12, 31), "4 January", date(2027, 1, 4)),
        (date(2027, 1, 4), "4 January", date(2028, 1, 4)),
        (date(2026, 11, 30), "the end of the month", None),
        (date(2026, 12, 31), "2026-12-31", None),
        (date(2026, 12, 31), "2199-01-01", None),
    ):
        assert expiry_in(f"The side door is locked until {said}", today) == day, said


def test_a_caller_names_a_day_to_come_or_a_number_of_days():
    for said, day in (
        *((" 2026-12-31 ", date(2026, 12, 31)), ("30d", date(2026, 12, 26)), ("1 D", date(2026, 11, 27))),
        (f"{MAX_DAYS}d", TODAY + timedelta(days=MAX_DAYS)),
    ):
        assert read_expiry(said, TODAY) == day
    nothing = (
        "",
        "0d",
        "-1d",
        "30",
        "d",
        "99999d",
        "2026-11-26",
        "2020-01-01",
        "2026-02-30",
        "20261231",
        "9999-12-31",
    )
    for said in (
        *nothing,
        "2026-12-31T10:00:00",
        "tomorrow",
        "\uff11\uff12d",
        "2026-12-31\nname: x",
        "0" * 10_000,
    ):
        with pytest.raises(ValueError, match=r"no day to come|day is out of range|month"):
            read_expiry(said, TODAY)


def test_any_text_is_read_without_an_error():
    for text in (
        "until \ud83d",
        "until the 99th of May 2027 it is so",
        "until 0/0/2027 it is so",
        "a\0until Friday it is so",
    ):
        expiry_in(text, TODAY)
