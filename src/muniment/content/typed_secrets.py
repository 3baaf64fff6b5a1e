"""Find secrets that people type: a password, PIN or code next to its name, or a payment card.

Separate from `secrets`: these secrets are found by words of a language, those of `secrets.toml` by their
form.

Guarantees, for the words of `typed_secrets.toml`, in a text of any language:

- H1. The value that follows the name of a password is a secret in these cases: it is not a word (it has
  letters and digits, or marks inside); it is quoted; it is one word at the end of the clause that is not
  typical for statements *about* passwords; or it is three to six such words. If the name is ambiguous, only
  the first case counts.
- H2. The value of a PIN or a code is a secret if it has three to ten digits and counts nothing.
- H3. Thirteen to nineteen digits with the prefix of a card network and Luhn's check digit (ISO 7812) are a
  secret, even next to other numbers. The number of a bank account is printed on invoices and is not a secret.
- H4. Methods, protocols, versions, dates, files, amounts of time and UUIDs are not secrets.
- H5. Linear time: RE2 finds the names; at most `_MAX_TAIL_BYTES` bytes after a name are read.

Not guaranteed: a secret without such a name, or with other words, passes. So does a password that is a word
from statements about passwords ("the password is wrong").

Attacks on these rules are in tests/units/content/test_typed_secrets.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Final

import re2

from muniment.content.expressions import compile_when_used
from muniment.content.patterns import WordExpression, compile_pattern
from muniment.files import load_package_tables, split_words

PASSWORD: Final = "typed-password"  # noqa: S105  the id of a rule
CODE: Final = "typed-code"
CARD: Final = "payment-card"

_MAX_TAIL_BYTES: Final = 160
"""Number of bytes after a name that are read; a password is shorter."""

_MARK: Final = r"(?:=>|->|→|:=|={1,2}|：|＝|:|\|)"  # noqa: RUF001
_OPEN: Final = "\"'`*“”„‘’´«»「『‹›"  # noqa: RUF001
_QUOTED: Final = compile_when_used(rf"[{_OPEN}]{{1,3}} ?([^{_OPEN}」』\n]{{3,64}}?) ?[{_OPEN}」』]")
_BARE: Final = compile_when_used(
    rf"[^\s{_OPEN}」』，。、；,;|<>（）\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]{{3,100}}"  # noqa: RUF001
)
_NUMBER: Final = compile_when_used(r"#?([0-9](?:[ -]?[0-9]){2,62})[#*]?")
_CODE: Final = compile_when_used(r"(?=\D*\d)[A-Z0-9#*]{4,12}")
_MIXED_CODE: Final = compile_when_used(r"(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9]{5,12}")
_NEXT: Final = compile_when_used(r"[ -]?([^\W\d_]+|%)")
_ENDS: Final = compile_when_used(rf"[{_OPEN}」』)]*\s*(?:$|[.,;!?)\n|。，、；—–]|-)")  # noqa: RUF001
_PHRASE: Final = compile_when_used(r"[a-zà-öø-ÿß]{3,}(?: [a-zà-öø-ÿß]{3,}){2,5}")
_PART_SEPARATORS: Final = compile_when_used(r"[-_.' ]+")
_IS_PLAIN: Final = compile_when_used(
    r"""(?ix) v?\d+(?:[.:/-]\d+)*%? | \d+(?:st|[nr]d|th|er|e|ème|º|ª) | \d{1,5}-?[a-zµ]{1,3}
    | (?-i:[a-z]{2,10}|[A-Z]{2,10}|[A-Z][a-z]{1,3})-\d{1,6}
    | v\d+\S* | q[1-4] | [a-z][a-z0-9_.-]*[(\[].* | [\w.-]+@[\w-]+\.[a-z]{2,} | .*/.*
    | [\w-]+\.(?:md|txt|py|js|ts|json|ya?ml|toml|env|cfg|ini|conf|html?|pem|key|kdbx|csv)
    | [\w-]+\.(?:com|org|net|io|dev|de)"""
)
_IS_NAME_IN_CODE: Final = compile_when_used(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|[a-z]+\d*(?:[_.][a-z]+\d*)+")
_CARD: Final = compile_when_used(rb"(?<![\w.-])[2-6][0-9](?:[ -]?[0-9]){11,17}(?![\w-])")
_GROUPED: Final = compile_when_used(rb"(?<![\w.-])(?=([2-6][0-9]{2,18}(?:[ -][0-9]{3,6}){0,5})(.?))")
"""A possible beginning of a card number next to other numbers. Numbers of a series have fewer digits."""
_LAST: Final = compile_when_used(rb"[0-9](?![\w-])")
"""A possible end of a card number. Later digits, such as the date on the card, are not part of it."""
_DIGITS: Final = "[0-9](?:[ -]?[0-9]){11}"
"""Expression for a part of every card number."""
_NETWORKS: Final = compile_when_used(
    rb"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    rb"|(?:6011|65\d\d|64[4-9]\d|35\d\d)\d{12}|62\d{14,17}"
)
_MIN_CARD_DIGITS: Final = 13
_VALUES: Final = bytes.maketrans(b"0123456789", bytes(range(10)))
_DOUBLED: Final = bytes.maketrans(bytes(range(10)), bytes([0, 2, 4, 6, 8, 1, 3, 5, 7, 9]))
"""The double of each digit, as the sum of its digits (Luhn's check)."""
_CARD_CODE: Final = compile_when_used("cvv|cvc|prüfnummer|cryptogramme|セキュリティコード|安全码".encode())
"""Names of codes that have three digits."""
_SHORT_NAME: Final = compile_when_used(rb"\b(?:tan|otp|cvc|cvv)\b")
"""Names after which a year can follow, as in the name of an event."""
_YEAR: Final = compile_when_used("(?:19|20)[0-9]{2}")
_MIN_PASSWORD_DIGITS: Final = 4
"""Minimum digits of a numeric password. A PIN may have three, like the code on a card."""
_MIN_WORD_CHARS: Final = 4
_MIN_UNLINKED_CHARS: Final = 6
"""Minimum characters of a password that directly follows its name, as in "password hunter2"."""


@dataclass(frozen=True, slots=True)
class _SecretWords:
    """The tables of `typed_secrets.toml` for all languages, compiled.

    Attributes:
        linked_names: finds the name of a secret with a link to its value, such as "is" or a colon.
        unlinked_names: finds the name of a secret that is directly followed by its value.
        preceded_names: finds the name of a secret after its value, as in "… is my password".
        about: words of statements about passwords, such as "wrong".
        endings: endings of such words.
        units: words for things that are counted.
        technical_words: technical terms that look like values.
        patterns: matches technical values, which are not secrets.
    """

    linked_names: WordExpression
    """Its groups: a name of a code, or an ambiguous name."""
    unlinked_names: WordExpression
    preceded_names: WordExpression
    about: frozenset[str]
    endings: tuple[str, ...]
    units: tuple[str, ...]
    technical_words: frozenset[str]
    patterns: re.Pattern[str]


def find_typed_secrets(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield the rule, start and end of every password, PIN, code and card number in UTF-8 text.

    Cost: about 10 µs per KiB of text without secrets.
    """
    words = _load_words()
    for names, is_linked in ((words.linked_names, True), (words.unlinked_names, False)):
        for found in names.finditer(data):
            if (span := _find_after_name(data, found, words, is_linked=is_linked)) is not None:
                yield span
    for found in words.preceded_names.finditer(data):
        if (span := _find_before_name(data, found.start())) is not None:
            yield span
    if compile_pattern(_DIGITS.encode()).search(data):  # RE2 is ten times as fast
        yield from _find_cards(data)


def _find_cards(data: bytes) -> Iterator[tuple[str, int, int]]:
    grouped = (
        (first.start(), last.end())
        for first in _GROUPED.finditer(data)
        for last in _LAST.finditer(data, first.start() + _MIN_CARD_DIGITS - 1, first.end(2))
    )
    for start, end in chain((match.span() for match in _CARD.finditer(data)), grouped):
        digits = data[start:end].translate(None, b" -")
        if _NETWORKS.fullmatch(digits) and _is_luhn(digits):
            yield CARD, start, end


def _find_after_name(
    data: bytes, found: Any, words: _SecretWords, *, is_linked: bool
) -> tuple[str, int, int] | None:
    """Return the rule, start and end of the secret that follows a name, or None.

    Args:
        data: the text.
        found: the match of the name.
        words: the tables.
        is_linked: whether the match includes a link between name and value, such as "is".
    """
    tail = data[found.end() : found.end() + _MAX_TAIL_BYTES].decode("utf-8", "ignore")
    is_code, is_loose = found.span(1)[0] >= 0, found.span(2)[0] >= 0
    number = _NUMBER.match(tail.lstrip(_OPEN))
    if number is not None:
        size = sum(char.isdigit() for char in number[1])
        rest = tail[len(tail) - len(tail.lstrip(_OPEN)) + number.end() :]
        is_card = _CARD_CODE.search(found[0].lower()) is not None
        is_year = (
            not is_linked and _SHORT_NAME.search(found[0].lower()) is not None and _YEAR.fullmatch(number[1])
        )
        least = _MIN_PASSWORD_DIGITS - (is_code and (is_linked or is_card))
        is_whole = not re.match(r"[A-Za-z0-9_/:]|[.-]\w", rest)
        if (
            is_whole
            and not is_year
            and least <= size
            and not is_loose
            and not is_count(rest)
            and not _is_date(number[1])
        ):
            return _build_span(CODE if is_code else PASSWORD, data, found.end(), tail, len(tail) - len(rest))
    quoted = _QUOTED.match(tail)
    bare = quoted or _BARE.match(tail)
    if bare is None:
        return None
    value = quoted[1] if quoted else bare[0].rstrip(".!?:)]}…")
    if is_code and not (_MIXED_CODE.fullmatch(value) or (is_linked and _CODE.fullmatch(value))):
        return None
    if is_not_word(value):
        if not is_linked and len(value) < _MIN_UNLINKED_CHARS - is_code:
            return None
    elif (
        is_loose
        or not is_linked
        or not _is_chosen_value(value, tail, words, quoted=quoted is not None, name=found[0])
    ):
        return None
    elif quoted is None and (phrase := _PHRASE.match(tail)):
        value = phrase[0]
    begin = tail.index(value)
    return _build_span(PASSWORD, data, found.end() + len(tail[:begin].encode()), value, len(value))


def _find_before_name(data: bytes, end: int) -> tuple[str, int, int] | None:
    """Return the secret before "is my password" if it is clearly not a word, or None.

    Args:
        data: the text.
        end: the offset of "is my password".
    """
    head = data[max(0, end - _MAX_TAIL_BYTES) : end].decode("utf-8", "ignore").rstrip(_OPEN + "」』 ")
    value = re.split(rf"[\s{_OPEN}「『,;，。、；：（）\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]", head)[-1]  # noqa: RUF001
    if len(value) < _MIN_UNLINKED_CHARS or not is_not_word(value):
        return None
    start = data.rindex(value.encode(), 0, end)
    return PASSWORD, start, start + len(value.encode())


def _build_span(rule: str, data: bytes, start: int, text: str, size: int) -> tuple[str, int, int]:
    return rule, start, min(len(data), start + len(text[:size].encode()))


def is_chosen_word(word: str) -> bool:
    """Return whether a word may be a chosen password: it is not typical for statements about passwords."""
    return word.isalpha() and _are_chosen([word], _load_words())


def is_count(rest: str) -> bool:
    """Return whether the text after a number names what the number counts, as in "10 minutes"."""
    following, words = _NEXT.match(rest), _load_words()
    return (
        following is not None
        and following[1].lower().startswith(words.units)
        and (not following[1].isascii() or following[1].lower() in words.units)
    )


def _is_date(number: str) -> bool:
    return re.fullmatch(r"(?:19|20)\d\d-\d\d-\d\d", number) is not None


def is_not_word(value: str) -> bool:
    """Return whether a value is neither a word nor an ordinary value with digits, such as a date."""
    words = _load_words()
    folded = value.lower()
    if (
        folded.partition("-")[0] in words.technical_words
        or words.patterns.fullmatch(folded)
        or _IS_PLAIN.fullmatch(value)
    ):
        return False
    if _IS_NAME_IN_CODE.fullmatch(value) or value.startswith(("@", "#{", "[")):
        return False
    if re.match(r"\d+-", value) and folded.endswith(words.units):
        return False
    marks = re.sub(r"[\w.,:'’-]", "", value.strip("!?"))  # noqa: RUF001
    letters = any(char.isalpha() for char in value)
    if any(char.isdigit() for char in value):
        return letters or (bool(marks) and len(value) >= _MIN_UNLINKED_CHARS)
    return letters and bool(marks) and len(value) >= _MIN_UNLINKED_CHARS and "(" not in value


def _is_chosen_value(value: str, tail: str, words: _SecretWords, *, quoted: bool, name: bytes) -> bool:
    """Return whether the words after the name of a password are the password, and not a statement about it.

    Args:
        value: the first word, or the quoted text.
        tail: the text after the name.
        words: the tables.
        quoted: whether the value is quoted.
        name: the matched name, with the link to the value.
    """
    link = name.rstrip()
    if (
        link.endswith((b"=", b"->", b"=>", b"|", b" a"))
        or re.search(rb"[_.$/{]\w*\W*$", link[:2])
        or "://" in tail
    ):
        return (
            quoted
            and link.endswith(b"=")
            and len(value) > _MIN_UNLINKED_CHARS
            and _are_chosen([value], words)
        )
    if quoted:
        return _IS_NAME_IN_CODE.fullmatch(value) is None and _are_chosen([value], words)
    phrase = _PHRASE.match(tail)
    if phrase and _ENDS.match(tail[phrase.end() :]):
        descriptive = [part for part in phrase[0].split() if not _are_chosen([part], words)]
        return len(descriptive) <= phrase[0].count(" ") // 3
    parts = _PART_SEPARATORS.split(value)
    is_one = _ENDS.match(tail[len(value) :]) is not None and value.isprintable()
    descriptive = [part for part in parts if not _are_chosen([part], words)]
    is_descriptive = len(descriptive) > (len(parts) // 3 if len(parts) > 2 else 0)  # noqa: PLR2004
    return is_one and len(value) >= _MIN_WORD_CHARS and all(map(str.isalpha, parts)) and not is_descriptive


def _are_chosen(parts: Iterable[str], words: _SecretWords) -> bool:
    return not any(part.lower() in words.about or part.lower().endswith(words.endings) for part in parts)


def _is_luhn(digits: bytes) -> bool:
    values = digits.translate(_VALUES)
    return (sum(values[::-2]) + sum(values[-2::-2].translate(_DOUBLED))) % 10 == 0


@cache
def _load_words() -> _SecretWords:
    """Return the compiled tables of `typed_secrets.toml`. Cost: reads the file once per process."""
    tables = load_package_tables("muniment.content", "typed_secrets")
    technical = tables.pop("terms")
    every = {
        key: sorted(
            {word for table in tables.values() for word in split_words(table[key])},
            key=lambda word: (-len(word), word),
        )
        for key in next(iter(tables.values()))
    }
    code, loose, password = (_build_name_source(every[key]) for key in ("codes", "loose", "passwords"))
    close = r"""["'`*_)\]」』”’]{0,3}"""  # noqa: RUF001
    names = f"(?:({code})|({loose})|{password}){close}"
    after_name = _build_spaced_source(every["at"], r"[\s'’]")  # noqa: RUF001
    fillers = _build_spaced_source(every["still"], r"[\s:：]+")  # noqa: RUF001
    gap = rf"(?:\s*\([^)\n]{{1,40}}\)|\s+(?:{after_name})[^\n.!?;:=|]{{1,48}}?)?"
    link_words = _build_spaced_source(every["is"], r"\s*[:：]?\s+", before=r",?\s+")  # noqa: RUF001
    link = rf"(?:\s*(?:{fillers}))?(?:\s*{_MARK}[*_]{{0,2}}\s*|['’]s\s+|{link_words}|\s+[-–—]\s+)"  # noqa: RUF001
    link += rf"\s*(?:{fillers}){{0,3}}"
    near = r"(?:[\s'’-][\pL\s'’-]{0,30}?)?"  # noqa: RUF001
    reversed_links = _build_spaced_source(every["as"], near, before=r"\s+", between=r"[\pL\s]{0,12}?")
    ends = rf"(?:$|\s*[.,;!?)\n。，]|です|だ|\s+(?:{after_name}))"  # noqa: RUF001
    of_secrets = [*every["codes"], *every["loose"], *every["passwords"]]

    def defer(source: str) -> WordExpression:
        return WordExpression(lambda: compile_pattern(source.encode()), of_secrets)

    return _SecretWords(
        linked_names=defer(names + gap + link),
        unlinked_names=defer(f"{names}[,\\s]\\s*"),
        preceded_names=defer(f"{close}(?:{reversed_links}){names}{ends}"),
        about=frozenset(every["about"]),
        endings=tuple(every["endings"]),
        units=tuple(every["units"]),
        technical_words=frozenset(technical["words"]),
        patterns=compile_when_used("|".join(f"(?:{pattern})" for pattern in technical["patterns"])),
    )


def _build_name_source(words: list[str]) -> str:
    """Return an expression for names of secrets, with word borders in scripts with spaces.

    A name with `*` at its beginning also matches at the end of a word.
    """
    inside = [word.lstrip("*") for word in words if word.startswith("*") or not _has_spaces(word)]
    separate = [word for word in words if not word.startswith("*") and _has_spaces(word)]
    return "|".join(
        part
        for part in (
            rf"(?:^|[^\pL\pN])(?:{_join_alternatives(separate)})" if separate else "",
            _join_alternatives(inside),
        )
        if part
    )


def _build_spaced_source(words: list[str], after: str, before: str = "", between: str = r"\s*") -> str:
    """Return an expression for words with the text around them.

    Args:
        words: the words.
        after: expression for the text after a word of a script with spaces.
        before: expression for the text before such a word.
        between: expression for the text after a word of a script without spaces.
    """
    running = _join_alternatives([word for word in words if not _has_spaces(word)])
    spaced = rf"{before}(?:{_join_alternatives([word for word in words if _has_spaces(word)])}){after}"
    return rf"{spaced}|\s*(?:{running}){between}" if running else spaced


def _has_spaces(word: str) -> bool:
    return ord(word.lstrip("*")[0]) < _FIRST_WITHOUT_SPACES


_FIRST_WITHOUT_SPACES: Final = 0x0E00
"""The first code point of the scripts without spaces: Thai, then kana, Han and Hangul.

In Hangul, particles are attached to words.
"""


def _join_alternatives(words: list[str]) -> str:
    return "|".join(re2.escape(word).replace("\\ ", r"[\s-]{1,3}") for word in words)
