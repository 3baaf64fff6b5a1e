"""Find when a fact ends, from the option of a caller or from the text of the fact.

A day `D` always means the complete day in the time zone of this process: "until D" includes D, and an entry
that expires on D does so when D is over.

- U1. `parse_expiry` accepts only today or a later day (`2026-12-31`), or a number of days (`30d`).
- U2. `find_end` finds a date after a word for `until`, in the languages of `expiry.toml`. The date must be
  complete: with its year, or as the next such day (`Friday`, `4 March`, the end of the month).
- U3. If it is uncertain when the fact ends, `find_end` returns None. Uncertain are: a sentence without an
  end, or with an end that is not a date ("until the release"); a sentence that continues ("then", "but") or
  repeats ("every"); a range of days or months ("Monday until Friday"); a date that does not exist, is
  ambiguous, or has passed; and a date without a year in a sentence about the past ("lived in Rome until June
  3").
- U4. `find_end` also returns None if the end is the subject of the sentence: a warranty, a contract, a
  deadline ("the warranty runs until D"). Such a fact is still needed after D.

An end in a text is a hint: it hides and removes nothing (ADR 0054). Therefore an entry without a certain end
does not end. A text of several sentences ends only if all sentences do, on the latest of their days.

Not guaranteed: that every end is found.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Final

from muniment.files import load_package_tables
from muniment.kernel.normal_forms import normalise
from muniment.kernel.path import fold

MAX_DAYS: Final = 36_500
"""Maximum number of days from today to the end of a fact: a hundred years."""

MAX_CHARS: Final = 2_000
"""Maximum number of characters of a fact that is searched for an end. Longer texts do not end as a whole."""

_DAYS: Final = re.compile(r"([0-9]{1,5})\s*d", re.IGNORECASE)
_ISO: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_WEEK: Final = 7
_YEAR: Final = "(?P<year{}>[12][0-9]{{3}})"
_MONTH: Final = "(?P<month{}>[01]?[0-9])"
_DAY: Final = "(?P<day{}>[0-3]?[0-9])"
_DAY_SIGN: Final = "[\u65e5\u53f7\uc77c]"

_ORDINAL: Final = re.compile(r"(?<=[0-9])\.(?=\s+(\w))")
_SIGNS: Final = re.compile("[-/]")
_DAY_CHARS: Final = len("2026-12-31")
_QUOTES: Final = "\"'\u2018\u201a\u201c\u201e\u00ab\u300c"
_WORD: Final = re.compile(r"\w")
_ENDS_SENTENCE: Final = r"[.!?;](?=\s|\Z)"
_OTHER_ENDS: Final = "[\u3002\uff01\uff1f\uff1b\u0964\u061f]|[\r\n]+"
_SENTENCE_END: Final = re.compile(f"{_ENDS_SENTENCE}|{_OTHER_ENDS}")
_NUMBER_END: Final = re.compile(f"[0-9]{_ENDS_SENTENCE}")
_UNSPACED: Final = "\u3005-\u30ff\u3400-\u9fff\uac00-\ud7a3"

_MAX_WORDS_AFTER_DATE: Final = 4
"""Maximum number of words after a date, from "is valid" on, in a sentence whose subject is the end itself."""

_END_SUBJECT: Final = ("about", "subject", "state", "event", "passing")
"""The keys of a language in `expiry.toml` for an `_EndSubject`, in the order of its attributes."""

_MIN_OTHER_WORDS: Final = 2
"""A sentence states a fact if it has more words than this, without its date.

In scripts without spaces, characters are counted instead of words.
"""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a fact.

    Attributes:
        day: the last day on which the fact is true.
        is_explicit: True: the caller gave the day, and the entry is hidden after it; False: the text states
            it.
    """

    day: date
    is_explicit: bool = False


def compute_local_day(time: datetime | None = None) -> date:
    """Return the day of a time in the time zone of this process; None: the current time."""
    return (time or datetime.now(UTC)).astimezone().date()


def compute_expiry_time(expires: str) -> str:
    """Return the time when an entry expires, in the format of the ledger (ISO-8601, UTC, milliseconds).

    Args:
        expires: the value of `content.entry.Entry.expires`: a time in UTC; or a day, which is over at local
            midnight.
    """
    if len(expires) != _DAY_CHARS:
        return expires
    try:
        over = datetime.fromisoformat(expires) + timedelta(days=1)
        return format_utc(over.astimezone())
    except OverflowError:
        return expires  # The time is outside the range of datetime.


def format_utc(time: datetime) -> str:
    """Return a time in the format of the ledger: ISO-8601, UTC, milliseconds."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_expired(expires: str | None, now: str) -> bool:
    """Return whether an entry has expired at the time `now`.

    Args:
        expires: the value of `content.entry.Entry.expires`; None: the entry never expires.
        now: a time in the format of the ledger.
    """
    return expires is not None and compute_expiry_time(expires) <= now


def has_ended(ends: str | date | None, time: datetime | None = None) -> bool:
    """Return whether the last day on which a fact is true has passed.

    Args:
        ends: that day; None: the fact does not end.
        time: the time to compare with; None: the current time.
    """
    return ends is not None and str(ends) < str(compute_local_day(time))


def parse_expiry(text: str, today: date) -> date:
    """Return the last day of validity that a caller gave as a day (`2026-12-31`) or a number of days (`30d`).

    Args:
        text: the option of the caller.
        today: the current day.

    Raises:
        ValueError: the text has another form, or the day has passed or is more than `MAX_DAYS` away.
    """
    stripped = text.strip()
    found = None
    if _ISO.fullmatch(stripped):
        found = date.fromisoformat(stripped)
    elif (days := _DAYS.fullmatch(stripped)) and int(days[1]):
        found = today + timedelta(days=min(int(days[1]), MAX_DAYS + 1))
    if found is None or not _is_in_future(found, today):
        raise ValueError("use today or a later day (2026-12-31), or a number of days (30d)")
    return found


def find_end(fact: str, today: date) -> date | None:
    """Return the last day on which a fact is true according to its text; None if that is uncertain.

    A day is found after a word for `until`, as in "until 2026-12-31" or "until Friday". The rules U2 to U4 of
    the module docstring define what is certain.

    Args:
        fact: any text.
        today: the day on which the fact was stated.

    Cost: linear; 0.1 ms for a sentence without a word for `until`, 1 ms with one.
    """
    if len(fact) > MAX_CHARS:
        return None
    ends: list[date] = []
    text = _fold_text(fact)
    sentence_end = _compile_sentence_end() if _NUMBER_END.search(text) else _SENTENCE_END
    for sentence in sentence_end.split(text):
        if _WORD.search(sentence) is None:
            continue
        end = _find_sentence_end_date(sentence, today)
        if end is None:
            return None
        ends.append(end)
    return max(ends, default=None)


def _is_in_future(found: date, today: date) -> bool:
    return today <= found <= today + timedelta(days=MAX_DAYS)


def _fold_text(text: str) -> str:
    """Return `text` folded for the search, with one kind of apostrophe.

    Removed are the accents of Latin, Greek and Cyrillic letters, and the periods of ordinal numbers (`4.
    floor`).
    """
    bare = "".join(
        char
        for char in normalise("NFKD", fold(_ORDINAL.sub(_drop_period, text)))
        if not ("\u0300" <= char <= "\u036f" or "\u064b" <= char <= "\u0652")
    )
    return normalise("NFKC", bare).replace("\u2019", "'")


def _drop_period(ordinal: re.Match[str]) -> str:
    return "" if ordinal[1].islower() else ordinal[0]


@dataclass(frozen=True, slots=True)
class _EndSubject:
    """Words that distinguish a fact about an end ("the warranty runs until D") from a fact that ends.

    Attributes:
        lasting: words for "is valid", "runs"; they count only directly next to the end.
        subject: words for "warranty", "contract".
        state: words for "closed", "away"; a sentence with one of them is about a temporary state.
        event: words for "hand in", "exam": the end is a deadline or the end of an appointment.
        passing: words for "use", "price"; they count like `state`, unless the sentence has an `event` word.
    """

    lasting: re.Pattern[str]
    subject: re.Pattern[str]
    state: re.Pattern[str]
    event: re.Pattern[str]
    passing: re.Pattern[str]

    def is_subject_of(self, sentence: str, start: int, stop: int) -> bool:
        """Return whether the subject of a sentence is the end itself, so that the fact does not end.

        Args:
            sentence: the folded sentence.
            start: the offset of the date with its word for `until`.
            stop: the offset after the date and that word.
        """
        before, after = sentence[:start].rstrip(" ,:("), sentence[stop:].strip(" ,:).!")
        rest = f"{before} | {after}"
        for words, answer in ((self.state, False), (self.event, True), (self.passing, False)):
            if words.search(rest):
                return answer
        if self.subject.search(rest):
            return True
        near = list(self.lasting.finditer(rest))
        is_brief = len(after.split()) <= _MAX_WORDS_AFTER_DATE
        return any(
            each.end() == len(before)
            or (is_brief and each.start() == len(before) + 3)
            or each.end() == len(rest)
            for each in near
        )


@dataclass(frozen=True, slots=True)
class _Language:
    """The compiled expressions of one language.

    Attributes:
        ends: finds a date with the word for `until` next to it.
        bare: finds the word for `until` alone. If it matches more often than `ends`, one of the words has no
            date.
        days: the number of each weekday name, from 0.
        months: the number of each month name, from 1.
        day_or_month: finds the name of a day or month; None: no names are listed.
        doubt: finds a word that makes every end in the sentence uncertain, such as "then".
        past: finds a word for the past; then a date needs a year.
        end_subject: decides whether a sentence is about the end itself.
        hint: finds a word of the language that a numeric date requires in its sentence; None: not required.
        day_first: whether `1/2/2026` is the first of February.
    """

    ends: re.Pattern[str]
    bare: re.Pattern[str]
    days: Mapping[str, int]
    months: Mapping[str, int]
    day_or_month: re.Pattern[str] | None
    doubt: re.Pattern[str]
    past: re.Pattern[str]
    end_subject: _EndSubject
    hint: re.Pattern[str] | None
    day_first: bool


def _find_sentence_end_date(sentence: str, today: date) -> date | None:
    """Return the day on which a folded sentence ends, if exactly one day is certain."""
    found: dict[tuple[int, int], date | None] = {}
    for language in _select_languages(sentence):
        dates = list(language.ends.finditer(sentence))
        if language.hint is not None and not language.hint.search(sentence):
            dates = [each for each in dates if not _SIGNS.search(each["date"])]
        if not dates:
            continue
        # In Polish and Czech the word for `until` also means "to".
        has_others = language.hint is None and len(language.bare.findall(sentence)) > len(dates)
        if has_others or len(dates) > 1 or language.doubt.search(sentence):
            return None
        (only,) = dates
        if language.end_subject.is_subject_of(sentence, only.start(), only.end()):
            return None
        # Two languages may match the same text; one valid date is enough.
        span = only.span("date")
        found[span] = found.get(span) or _read_date(only, language, sentence, today)
    if len(found) != 1:
        return None
    (((start, stop), end),) = found.items()
    rest = f"{sentence[:start]} {sentence[stop:]}"
    has_statement = len(re.findall(rf"[{_UNSPACED}]|[^\W\d_]+", rest)) > _MIN_OTHER_WORDS
    return end if end is not None and has_statement and _is_in_future(end, today) else None


def _read_date(found: re.Match[str], language: _Language, sentence: str, today: date) -> date | None:
    part = {name: text for name, text in found.groupdict().items() if text is not None}
    try:
        if "tomorrow" in part:
            return today + timedelta(days=1)
        if "first" in part:
            return _read_slash_date(
                int(part["first"]), int(part["second"]), int(part["slash_year"]), language
            )
        if not _read_date_part(part, "year") and language.past.search(sentence):
            return None
        if "month_end" in part:
            return today.replace(day=monthrange(today.year, today.month)[1])
        if "year_end" in part:
            return date(today.year, 12, 31)
        if "weekday" in part:
            return (
                None
                if _has_other_dates(sentence, found, language)
                else _find_next_weekday(language.days[part["weekday"]], today)
            )
        day, month = int(_read_date_part(part, "day")), _read_date_part(part, "month")
        number = int(month) if month.isdecimal() else language.months[month]
        if year := _read_date_part(part, "year"):
            return date(int(year), number, day)
        return None if _has_other_dates(sentence, found, language) else _find_next_date(number, day, today)
    except (ValueError, KeyError):
        return None


def _read_date_part(part: Mapping[str, str], name: str) -> str:
    """Return a part of a date, such as `year`, from the groups of all forms of date (`year1`, `year2`)."""
    return next((text for key, text in part.items() if key.rstrip("0123456789") == name), "")


def _read_slash_date(first: int, second: int, year: int, language: _Language) -> date | None:
    """Return the date for `31/12/2026` or `12/31/2026`; None if it is ambiguous."""
    most_months = 12
    if language.day_first or first > most_months:
        return date(year, second, first)
    return date(year, first, second) if second > most_months else None


def _has_other_dates(sentence: str, found: re.Match[str], language: _Language) -> bool:
    """Return whether the sentence names another day or month, as in a range or a repeated time."""
    start, end = found.span("date")
    return language.day_or_month is not None and any(
        not start <= each.start() < end for each in language.day_or_month.finditer(sentence)
    )


def _find_next_weekday(weekday: int, today: date) -> date:
    return today + timedelta(days=(weekday - today.weekday() - 1) % _WEEK + 1)


def _find_next_date(month: int, day: int, today: date) -> date:
    this = date(today.year, month, day)
    return this if this >= today else date(today.year + 1, month, day)


@cache
def _load_tables() -> dict[str, dict[str, str]]:
    return load_package_tables("muniment.content", "expiry")


@cache
def _load_cues() -> dict[str, tuple[list[str], list[str], list[str]]]:
    """Return the words for `until` of each language: before a date, after it, at the start of a range."""
    return {
        name: (
            [*_list_words(table, "before"), *_list_words(table, "dated")],
            _list_words(table, "after"),
            [first for first, _ in _list_groups(table, "range")],
        )
        for name, table in _load_tables().items()
    }


def _select_languages(sentence: str) -> Iterator[_Language]:
    """Yield the languages whose word for `until` is in a folded sentence. The others find no date in it."""
    start = sentence.lstrip()
    for name, (before, after, first) in _load_cues().items():
        if (
            any(word in sentence and re.search(_build_word_source([word]), sentence) for word in before)
            or any(word in sentence for word in after)
            or any(map(start.startswith, first))
        ):
            yield _compile_language(name)


@cache
def _compile_sentence_end() -> re.Pattern[str]:
    """Return a pattern for the end of a sentence. The period of `4. April` is not the end of one."""
    months = [word for table in _load_tables().values() for word in _list_words(table, "months")]
    return re.compile(
        rf"(?<![0-9]){_ENDS_SENTENCE}|(?<=[0-9]){_ENDS_SENTENCE}(?!\s+(?:{_build_word_source(months)}|[0-9]))"
        f"|{_OTHER_ENDS}"
    )


@cache
def _compile_language(name: str) -> _Language:
    """Return the compiled expressions of a language. Cost: about 5 ms, once per process."""
    table = _load_tables()[name]
    months = {word: number for number, each in enumerate(_list_groups(table, "months"), 1) for word in each}
    days = {word: number for number, each in enumerate(_list_groups(table, "days")) for word in each}
    dates = rf"(?P<date>{_build_date_source(table, months, days)})"
    if before := _list_words(table, "before"):
        bare = _build_word_source(before)
        skip = rf"(?:{_build_word_source([*_list_words(table, 'skip'), *days])}[,.]?\s*){{0,3}}"
        dated = f"{_build_word_source([*before, *_list_words(table, 'dated')])}{_build_range_source(table)}"
        ends = rf"(?<![{_QUOTES}])(?:{dated}):?\s*{skip}{dates}"
    else:
        bare = f"(?:{'|'.join(map(re.escape, sorted(_list_words(table, 'after'), key=len, reverse=True)))})"
        ends = dates + bare
    return _Language(
        re.compile(ends),
        re.compile(bare),
        days,
        months,
        re.compile(_build_word_source([*months, *days])) if months or days else None,
        re.compile(_build_word_source([*_list_words(table, "then"), *_list_words(table, "again")])),
        re.compile(_build_word_source(_list_words(table, "past"))),
        _EndSubject(*(re.compile(_build_form_source(_list_words(table, key))) for key in _END_SUBJECT)),
        re.compile(_build_word_source(hints)) if (hints := _list_words(table, "hint")) else None,
        "day_first" in table,
    )


def _build_range_source(table: Mapping[str, str]) -> str:
    """Return an alternative of an expression for "from 4 January to" at the beginning of a sentence."""
    return "".join(
        rf"|\A\s*{re.escape(first)}\s(?:\w+\s)?[0-9][^;!?]{{0,30}}?\s{re.escape(last)}(?!\w)"
        for first, last in _list_groups(table, "range")
    )


def _build_date_source(table: Mapping[str, str], months: Mapping[str, int], days: Mapping[str, int]) -> str:
    """Return an expression for a date in a language, with named groups for its parts."""
    forms = [
        rf"{_YEAR.format(2)}\s?[\u5e74\ub144]\s?{_MONTH.format(2)}\s?[\u6708\uc6d4]\s?{_DAY.format(2)}\s?{_DAY_SIGN}",
        rf"{_MONTH.format(3)}\s?[\u6708\uc6d4]\s?{_DAY.format(3)}\s?{_DAY_SIGN}",
    ]
    if "words_only" not in table or "hint" in table:
        forms += [
            rf"{_YEAR.format(1)}(?P<mark>[-/.])\s?{_MONTH.format(1)}(?P=mark)\s?{_DAY.format(1)}(?:t[0-9:]{{4,8}}z?)?",
            rf"{_DAY.format(4)}\.\s?{_MONTH.format(4)}\.\s?{_YEAR.format(4)}",
            r"(?P<first>[0-3]?[0-9])(?P<slash>[-/])(?P<second>[0-3]?[0-9])(?P=slash)(?P<slash_year>[12][0-9]{3})",
        ]
    if months:
        name = _build_word_source(months, "month5")
        year = rf"(?:,?\s*(?:de\s|del\s)?{_YEAR.format(5)})?"
        forms.append(rf"{_DAY.format(5)}(?:\.|st|[nr]d|th|er|o|\u00ba)?\s*(?:de\s|of\s)?{name}\.?{year}")
        name, year = _build_word_source(months, "month6"), rf"(?:,?\s*{_YEAR.format(6)})?"
        forms.append(rf"{name}\.?\s{_DAY.format(6)}(?:st|[nr]d|th)?{year}")
    if days:
        forms.append(_build_word_source(days, "weekday"))
    if tomorrow := _list_words(table, "tomorrow"):
        forms.append(_build_word_source(tomorrow, "tomorrow"))
    for what in ("month", "year"):
        if table.get("end") and table.get(what):
            joint = "" if re.search(f"[{_UNSPACED}]", table[what]) else " "
            ends = [
                f"{end}{joint}{word}".replace("' ", "'")
                for end in _list_words(table, "end")
                for word in _list_words(table, what)
            ]
            forms.append(_build_word_source(ends, f"{what}_end"))
    return rf"(?:{'|'.join(forms)})(?![0-9]|[-/.][0-9a-z])"


def _list_words(table: Mapping[str, str], key: str) -> list[str]:
    return [word for group in _list_groups(table, key) for word in group]


def _list_groups(table: Mapping[str, str], key: str) -> Iterator[list[str]]:
    for group in table.get(key, "").split(","):
        if group.strip():
            yield [_fold_text(word).replace("_", " ") for word in group.split()]


def _build_form_source(words: list[str]) -> str:
    """Return an expression for any of the words; without words, it never matches.

    In a word, `*` matches any letters, and `?` one letter.
    """
    forms = []
    for word in words:
        is_unspaced = re.search(f"[{_UNSPACED}]", word) is not None
        form = re.escape(word).replace(r"\*", r"\w*").replace(r"\?", r"\w")
        forms.append(form if is_unspaced else rf"(?<!\w){form}(?!\w)")
    return "|".join(forms) or r"(?!)"


def _build_word_source(words: list[str] | Mapping[str, int], name: str = "") -> str:
    """Return an expression for any of the words, longest first.

    In scripts with spaces, only complete words match.
    """
    alternatives = []
    for word in sorted(words, key=len, reverse=True):
        is_unspaced = re.search(f"[{_UNSPACED}]", word) is not None
        begins = "" if is_unspaced or not re.match(r"\w", word) else r"(?<!\w)"
        ends = "" if is_unspaced or not re.search(r"\w\Z", word) else r"(?!\w)"
        alternatives.append(f"{begins}{re.escape(word)}{ends}")
    return f"(?{f'P<{name}>' if name else ':'}{'|'.join(alternatives)})"
