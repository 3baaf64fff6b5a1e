"""The age of a time, as lists on the page and in a terminal show it."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from muniment.content.moments import format_age

NOW = datetime(2026, 3, 19, 15, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("2026-03-19T15:30:00.000Z", "just now"),
        ("2026-03-19T15:29:00.001Z", "just now"),
        ("2026-03-19T15:29:00.000Z", "1 min ago"),
        ("2026-03-19T14:30:01.000Z", "59 min ago"),
        ("2026-03-19T13:30:00.000Z", "2 h ago"),
        ("2026-03-18T15:31:00.000Z", "23 h ago"),
        ("2026-03-18T15:30:00.000Z", "yesterday"),
        ("2026-03-18T00:00:00.000Z", "yesterday"),
        ("2026-03-17T23:59:59.999Z", "2 d ago"),
        ("2026-03-13T00:00:00.000Z", "6 d ago"),
        ("2026-03-12T23:59:59.999Z", "12 Mar"),
        ("2026-01-01T00:00:00.000Z", "1 Jan"),
        ("2025-12-31T23:59:59.999Z", "31 Dec 2025"),
        ("0001-01-01T00:00:00Z", "1 Jan 1"),
        ("2026-03-19T16:30:00+01:00", "just now"),
        ("2026-03-19T13:30:00", "2 h ago"),
        ("2026-03-12", "12 Mar"),
    ],
)
def test_age_of_past_time_is_short(at, expected):
    assert format_age(at, NOW) == expected


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("2026-03-19T15:31:00.000Z", "just now"),
        ("2026-03-19T15:31:01.001Z", "19 Mar 2026"),
        ("2026-12-12T00:00:00.000Z", "12 Dec 2026"),
        ("9999-12-31T23:59:59.999Z", "31 Dec 9999"),
    ],
)
def test_age_of_future_time_is_its_day(at, expected):
    assert format_age(at, NOW) == expected


@pytest.mark.parametrize("at", ["", "soon", "2026-02-30", "\x1b[31m", "9999-12-31T23:59:59-14:00"])
def test_age_of_invalid_time_is_empty(at):
    assert format_age(at, NOW) == ""


def test_age_counts_days_in_time_zone_of_now():
    tokyo = NOW.astimezone(timezone(timedelta(hours=9)))  # The 20th, 00:30.
    assert format_age("2026-03-18T15:00:00.000Z", NOW) == "yesterday"
    assert format_age("2026-03-18T15:00:00.000Z", tokyo) == "yesterday"
    assert format_age("2026-03-18T14:59:00.000Z", tokyo) == "2 d ago"
    assert format_age("2025-12-31T15:00:00.000Z", tokyo) == "1 Jan"


def test_age_of_older_time_is_never_shorter():
    order = ["just", "min", "h", "yesterday", "d", "Mar"]
    kinds = []
    for minutes in range(0, 10 * 24 * 60, 7):
        age = format_age((NOW - timedelta(minutes=minutes)).isoformat(), NOW)
        kinds.append(next(order.index(each) for each in reversed(order) if each in age.split()))
    assert kinds == sorted(kinds)
    assert set(kinds) == set(range(len(order)))
