"""Format the time of a change for people. Pure.

- A1 The text is short and never ambiguous: an age for less than a week, then the day, with the year if it is
  not the current one.
- A2 A time in the future comes from a wrong clock or a forged file. It has no age, so the text is its day
  with the year. Clocks of two machines may differ by `MAX_CLOCK_ERROR`.
- A3 Any text is accepted, because front matter can contain any text. The result consists of ASCII digits,
  letters and spaces.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

MAX_CLOCK_ERROR: Final = timedelta(minutes=1)
"""Duration by which a time may be in the future and still count as now."""

MAX_AGE_DAYS: Final = 7
"""Days from which the text is a day instead of an age."""

_MINUTE, _HOUR, _DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def format_age(at: str, now: datetime) -> str:
    """Return the age of a time, such as `2 h ago`, or its day, such as `12 Mar 2025`.

    Args:
        at: an ISO-8601 time; without a time zone it is UTC.
        now: the current time, with the time zone whose days count.

    Returns:
        `just now`, `5 min ago`, `2 h ago` (less than 24 hours), `yesterday`, `3 d ago` (less than 7 days),
        `12 Mar` or `12 Mar 2025`; empty if `at` is not a time.
    """
    try:
        time = datetime.fromisoformat(at)
        time = (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(now.tzinfo)
    except (ValueError, OverflowError):
        return ""
    age = now - time
    if age < -MAX_CLOCK_ERROR:
        return _format_day(time, with_year=True)
    if age < _MINUTE:
        return "just now"
    if age < _HOUR:
        return f"{age // _MINUTE} min ago"
    if age < _DAY:
        return f"{age // _HOUR} h ago"
    days = (now.date() - time.date()).days
    if days < MAX_AGE_DAYS:
        return "yesterday" if days == 1 else f"{days} d ago"
    return _format_day(time, with_year=time.year != now.year)


def _format_day(time: datetime, *, with_year: bool) -> str:
    day = f"{time.day} {_MONTHS[time.month - 1]}"
    return f"{day} {time.year}" if with_year else day
