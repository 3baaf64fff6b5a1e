"""Secrets in text: found by the rules of `secrets.toml`, and taken out where they can be.

Holds, for the forms that the rules know:

- K1. A secret is found as it stands; written as an escape of front matter; with backslashes before its
  characters; in full-width letters; in base64 at any offset, once; in the path; and, where its form alone
  tells it, cut by line breaks, with whatever marks lists, quotes and continued lines.
- K2. What is told is the rule and the line, never the value.
- K3. `redacted` takes out what stands in the text as it is. What only shows once lines are joined or base64
  is decoded stays, and `find_secret` finds it still.
- K4. What people call a password, a PIN, a card or an account is found by the words around it.
- K5. Linear time: every pattern is run by RE2, each text is looked at once a rule, and what is checked of a
  match is bounded by its pattern.

What does not hold: a secret of a form that no rule knows, or encrypted, reversed, spelt out or encoded twice,
passes. A password that is made of words cannot be told from words. This is a tripwire.

Attacked in tests/units/content/test_secrets.py, with generated values.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from typing import Any, Final

import re2

from muniment.content.frontmatter import spelled
from muniment.content.patterns import compiled
from muniment.kernel.path import normalised
from muniment.shipped import shipped_tables

# -- typed secrets -----------------------------------------------------------------------------------
#
# Secrets as people type them: "the wifi password is …", a PIN, the number of a card or an account. Pure.
#
# Holds, for the words of `typed_secrets.toml`, whatever language the rest of the text is in:
#
# - H1. What a name of a password is said to be is one if it is no word (letters and digits, or marks
#   inside), if it is quoted, if it is one word that ends the clause and is none that is said *about*
#   passwords, or if it is three to six such words. Where another word for it would do as well, only the
#   first counts.
# - H2. What a name of a PIN or a code is said to be is one if it has three to ten digits and counts
#   nothing.
# - H3. Thirteen to nineteen digits with the prefix of a card network and Luhn's check digit (ISO 7812),
#   also beside other numbers; the form of an IBAN with the length of its country and the remainder 1 of 97
#   (ISO 13616).
# - H4. Methods, protocols, versions, dates, files, amounts of time and UUIDs are none.
# - H5. Linear time: RE2 finds the names; of what follows at most `_TAIL` bytes are looked at.
#
# What does not hold: a secret that is not said to be one, or said in other words, passes; and so does a
# password that is a word which is also said about passwords ("the password is wrong").
#
# Attacked in tests/units/content/test_typed_secrets.py.

PASSWORD: Final = "typed-password"  # noqa: S105  the id of a rule
CODE: Final = "typed-code"
CARD: Final = "payment-card"
IBAN: Final = "iban"

_TAIL: Final = 160
"""Bytes behind a name that are looked at; a password is shorter."""

_MARK: Final = r"(?:=>|->|→|:=|={1,2}|：|＝|:|\|)"  # noqa: RUF001
_OPEN: Final = "\"'`*“”„‘’´«»「『‹›"  # noqa: RUF001
_QUOTED: Final = re.compile(rf"[{_OPEN}]{{1,3}} ?([^{_OPEN}」』\n]{{3,64}}?) ?[{_OPEN}」』]")
_BARE: Final = re.compile(
    rf"[^\s{_OPEN}」』，。、；,;|<>（）\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]{{3,100}}"  # noqa: RUF001
)
_NUMBER: Final = re.compile(r"#?([0-9](?:[ -]?[0-9]){2,18})[#*]?")
_NEXT: Final = re.compile(r"[ -]?([^\W\d_]+|%)")
_ENDS: Final = re.compile(rf"[{_OPEN}」』)]*\s*(?:$|[.,;!?)\n|。，、；—–]|[-(])")  # noqa: RUF001
_PHRASE: Final = re.compile(r"[a-zà-öø-ÿß]{3,}(?: [a-zà-öø-ÿß]{3,}){2,5}")
_PARTED: Final = re.compile(r"[-_.' ]+")
_IS_PLAIN: Final = re.compile(
    r"""(?ix) v?\d+(?:[.:/-]\d+)*%? | \d+(?:st|[nr]d|th|er|e|ème|º|ª) | \d{1,5}-?[a-zµ]{1,3}
    | [a-z]{2,10}-\d{1,6} | v\d+\S* | q[1-4] | [a-z][a-z0-9_.-]*[(\[].* | [\w.-]+@[\w-]+\.[a-z]{2,} | .*/.*
    | [\w-]+\.(?:md|txt|py|js|ts|json|ya?ml|toml|env|cfg|ini|conf|html?|pem|key|kdbx|csv)
    | [\w-]+\.(?:com|org|net|io|dev|de)"""
)
_IS_NAME_IN_CODE: Final = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|[a-z]+\d*(?:[_.][a-z]+\d*)+")
_CARD: Final = re.compile(rb"(?<![\w.-])[2-6][0-9](?:[ -]?[0-9]){11,17}(?![\w-])")
_GROUPED: Final = re.compile(rb"(?<![\w.-])(?=([2-6][0-9]{2,18}(?:[ -][0-9]{3,6}){0,5})(.?))")
"""Where a card may begin beside other numbers; those of a series have fewer digits."""
_LAST: Final = re.compile(rb"[0-9](?![\w-])")
"""Where a card may end: what follows, as its date, is no part of it."""
_IBAN: Final = re.compile(rb"(?<!\w)(?=([A-Za-z]{2}[0-9]{2}(?:[ -]?[A-Za-z0-9]){11,40}))")
"""Wherever one may begin: what only looks like one hides none that stands behind it."""
_UUID: Final = re.compile(rb"(?i)[0-9a-f]{8}(?:[ -][0-9a-f]{4}){3}[ -][0-9a-f]{12}")
"""As it is or, from a path, with spaces. One in 8 600 has the form of an account; ids of tasks are such."""
_PARTS: Final = (0, 9, 14, 19, 24)
"""Where the parts of a UUID begin."""
_DIGITS: Final = "[0-9](?:[ -]?[0-9]){11}|[a-z]{2}[0-9]{2}(?:[ -]?[a-z0-9]){11}"
"""What a card or an account holds."""
_NETWORKS: Final = re.compile(
    rb"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]|2[2-7])\d{14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    rb"|(?:6011|65\d\d|64[4-9]\d|35\d\d)\d{12}|62\d{14,17}"
)
_LEAST_CARD: Final = 13
_VALUES: Final = bytes.maketrans(b"0123456789", bytes(range(10)))
_DOUBLED: Final = bytes.maketrans(bytes(range(10)), bytes([0, 2, 4, 6, 8, 1, 3, 5, 7, 9]))
"""Twice a digit, as the sum of its digits."""
_LEAST_DIGITS: Final = 4
"""Of a password that is a number; a PIN may have three, as the code on a card."""
_LEAST_WORD: Final = 4
_LEAST_UNSAID: Final = 6
"""Characters of a password that only stands behind its name, as in "password hunter2"."""


@dataclass(frozen=True, slots=True)
class _SecretWords:
    """The tables of all languages, compiled."""

    said: Any
    """name, whether it is `loose`, whether it is of a code, and what stands between it and the secret"""
    unsaid: Any
    before: Any
    about: frozenset[str]
    endings: tuple[str, ...]
    units: tuple[str, ...]
    terms: frozenset[str]
    patterns: re.Pattern[str]
    iban: dict[str, int]


def typed(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Rule, start and end of every secret of H1 to H3 in UTF-8 text. Cost: about 10 µs a KiB without any."""
    words = _words()
    for names, is_said in ((words.said, True), (words.unsaid, False)):
        for found in names.finditer(data):
            if (span := _behind(data, found, words, is_said=is_said)) is not None:
                yield span
    for found in words.before.finditer(data):
        if (span := _ahead(data, found.start(), words)) is not None:
            yield span
    if compiled(_DIGITS.encode()).search(data):  # RE2 is ten times as fast
        yield from _numbers(data, words.iban)


def _numbers(data: bytes, lengths: dict[str, int]) -> Iterator[tuple[str, int, int]]:
    grouped = (
        (first.start(), last.end())
        for first in _GROUPED.finditer(data)
        for last in _LAST.finditer(data, first.start() + _LEAST_CARD - 1, first.end(2))
    )
    for start, end in chain((match.span() for match in _CARD.finditer(data)), grouped):
        digits = data[start:end].translate(None, b" -")
        if _NETWORKS.fullmatch(digits) and _is_luhn(digits):
            yield CARD, start, end
    for match in _IBAN.finditer(data):
        size, at = _iban_in(match[1], lengths), match.start()
        if size is not None and not any(_UUID.fullmatch(data, at - part, at - part + 36) for part in _PARTS):
            yield IBAN, at, at + size


def _behind(data: bytes, found: Any, words: _SecretWords, *, is_said: bool) -> tuple[str, int, int] | None:
    """The secret that stands behind a name."""
    tail = data[found.end() : found.end() + _TAIL].decode("utf-8", "ignore")
    is_code, is_loose = found.span(1)[0] >= 0, found.span(2)[0] >= 0
    number = _NUMBER.match(tail.lstrip(_OPEN))
    if number is not None:
        size = sum(char.isdigit() for char in number[1])
        rest = tail[len(tail) - len(tail.lstrip(_OPEN)) + number.end() :]
        least = _LEAST_DIGITS - (is_code and is_said)
        is_whole = not re.match(r"[A-Za-z0-9_/:]|[.-]\w", rest)
        if (
            is_whole
            and least <= size
            and not is_loose
            and not _counts(rest, words)
            and not _is_date(number[1])
        ):
            return _span(CODE if is_code else PASSWORD, data, found.end(), tail, len(tail) - len(rest))
    quoted = _QUOTED.match(tail)
    bare = quoted or _BARE.match(tail)
    if bare is None:
        return None
    value = quoted[1] if quoted else bare[0].rstrip(".!?:)]}…")
    if is_code and not (is_said and re.fullmatch(r"(?=\D*\d)[A-Z0-9#*]{4,12}", value)):
        return None
    if _is_no_word(value, words):
        if not is_said and len(value) < _LEAST_UNSAID:
            return None
    elif (
        is_loose
        or not is_said
        or not _is_chosen(value, tail, words, quoted=quoted is not None, name=found[0])
    ):
        return None
    elif quoted is None and (phrase := _PHRASE.match(tail)):
        value = phrase[0]
    begin = tail.index(value)
    return _span(PASSWORD, data, found.end() + len(tail[:begin].encode()), value, len(value))


def _ahead(data: bytes, end: int, words: _SecretWords) -> tuple[str, int, int] | None:
    """The secret that stands before "is my password": only what is plainly no word."""
    head = data[max(0, end - _TAIL) : end].decode("utf-8", "ignore").rstrip(_OPEN + "」』 ")
    value = re.split(rf"[\s{_OPEN}「『,;，。、；：（）\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]", head)[-1]  # noqa: RUF001
    if len(value) < _LEAST_UNSAID or not _is_no_word(value, words):
        return None
    start = data.rindex(value.encode(), 0, end)
    return PASSWORD, start, start + len(value.encode())


def _span(rule: str, data: bytes, start: int, text: str, size: int) -> tuple[str, int, int]:
    return rule, start, min(len(data), start + len(text[:size].encode()))


def _counts(rest: str, words: _SecretWords) -> bool:
    """Whether what follows a number says what it is a number of."""
    following = _NEXT.match(rest)
    return (
        following is not None
        and following[1].lower().startswith(words.units)
        and (not following[1].isascii() or following[1].lower() in words.units)
    )


def _is_date(number: str) -> bool:
    return re.fullmatch(r"(?:19|20)\d\d-\d\d-\d\d", number) is not None


def _is_no_word(value: str, words: _SecretWords) -> bool:
    """Whether a value is neither a word nor one of the plain things that hold digits (H4)."""
    folded = value.lower()
    if (
        folded.partition("-")[0] in words.terms
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
        return letters or (bool(marks) and len(value) >= _LEAST_UNSAID)
    return letters and bool(marks) and len(value) >= _LEAST_UNSAID and "(" not in value


def _is_chosen(value: str, tail: str, words: _SecretWords, *, quoted: bool, name: bytes) -> bool:
    """Whether words that a password is said to be are the password, and not about it."""
    said = name.rstrip()
    if (
        said.endswith((b"=", b"->", b"=>", b"|", b" a"))
        or re.search(rb"[_.$/{]\w*\W*$", said[:2])
        or "://" in tail
    ):
        return quoted and said.endswith(b"=") and len(value) > _LEAST_UNSAID and _are_chosen([value], words)
    if quoted:
        return _IS_NAME_IN_CODE.fullmatch(value) is None and _are_chosen([value], words)
    phrase = _PHRASE.match(tail)
    if phrase and _ENDS.match(tail[phrase.end() :]):
        said_of_it = [part for part in phrase[0].split() if not _are_chosen([part], words)]
        return len(said_of_it) <= phrase[0].count(" ") // 3
    parts = _PARTED.split(value)
    is_one = _ENDS.match(tail[len(value) :]) is not None and value.isprintable()
    return is_one and len(value) >= _LEAST_WORD and all(map(str.isalpha, parts)) and _are_chosen(parts, words)


def _are_chosen(parts: Iterable[str], words: _SecretWords) -> bool:
    return not any(part.lower() in words.about or part.lower().endswith(words.endings) for part in parts)


def _is_luhn(digits: bytes) -> bool:
    values = digits.translate(_VALUES)
    return (sum(values[::-2]) + sum(values[-2::-2].translate(_DOUBLED))) % 10 == 0


def _iban_in(text: bytes, lengths: dict[str, int]) -> int | None:
    """How many bytes at the start of `text` are an IBAN."""
    size = lengths.get(text[:2].decode().upper(), 0)
    places = [at for at, char in enumerate(text) if chr(char).isalnum()][:size]
    if not size or len(places) < size:
        return None
    end = places[-1] + 1
    if text[end : end + 1].isalnum():
        return None
    letters = bytes(text[at] for at in places).decode()
    number = "".join(str(int(letter, 36)) for letter in letters[4:] + letters[:4])
    return end if int(number) % 97 == 1 else None  # ISO 7064


@cache
def _words() -> _SecretWords:
    """The shipped words. Cost: reads and compiles one file of the package, once a process."""
    tables = shipped_tables("muniment.content", "typed_secrets")
    terms, iban = tables.pop("terms"), tables.pop("iban")
    every = {
        key: sorted(
            {word for table in tables.values() for word in table[key]}, key=lambda word: (-len(word), word)
        )
        for key in next(iter(tables.values()))
    }
    code, loose, password = (_named(every[key]) for key in ("codes", "loose", "passwords"))
    close = r"""["'`*_)\]」』”’]{0,3}"""  # noqa: RUF001
    names = f"(?:({code})|({loose})|{password}){close}"
    at, still = _spaced(every["at"], r"[\s'’]"), _spaced(every["still"], r"[\s:：]+")  # noqa: RUF001
    gap = rf"(?:\s*\([^)\n]{{1,40}}\)|\s+(?:{at})[^\n.!?;:=|]{{1,48}}?)?"
    says = _spaced(every["is"], r"\s*[:：]?\s+", before=r",?\s+")  # noqa: RUF001
    link = (
        rf"(?:\s*(?:{still}))?(?:\s*{_MARK}[*_]{{0,2}}\s*|['’]s\s+|{says}|\s+[-–—]\s+)\s*(?:{still}){{0,3}}"  # noqa: RUF001
    )
    near = r"(?:[\s'’-][\pL\s'’-]{0,30}?)?"  # noqa: RUF001
    turned = _spaced(every["as"], near, before=r"\s+", between=r"[\pL\s]{0,12}?")
    ends = rf"(?:$|\s*[.,;!?)\n。，]|です|だ|\s+(?:{at}))"  # noqa: RUF001
    return _SecretWords(
        said=compiled((names + gap + link).encode()),
        unsaid=compiled(f"{names}[,\\s]\\s*".encode()),
        before=compiled(f"{close}(?:{turned}){names}{ends}".encode()),
        about=frozenset(every["about"]),
        endings=tuple(every["endings"]),
        units=tuple(every["units"]),
        terms=frozenset(terms["words"]),
        patterns=re.compile("|".join(f"(?:{pattern})" for pattern in terms["patterns"])),
        iban=iban,
    )


def _named(words: list[str]) -> str:
    """Names, apart from other words where their script has spaces; `*`: or at the end of one."""
    inside = [word.lstrip("*") for word in words if word.startswith("*") or not _has_spaces(word)]
    apart = [word for word in words if not word.startswith("*") and _has_spaces(word)]
    return "|".join(
        part for part in (rf"(?:^|[^\pL\pN])(?:{_any(apart)})" if apart else "", _any(inside)) if part
    )


def _spaced(words: list[str], after: str, before: str = "", between: str = r"\s*") -> str:
    """Words with what stands around them; in scripts without spaces there may be some."""
    running = _any([word for word in words if not _has_spaces(word)])
    spaced = rf"{before}(?:{_any([word for word in words if _has_spaces(word)])}){after}"
    return rf"{spaced}|\s*(?:{running}){between}" if running else spaced


def _has_spaces(word: str) -> bool:
    return ord(word.lstrip("*")[0]) < _FIRST_WITHOUT_SPACES


_FIRST_WITHOUT_SPACES: Final = 0x0E00
"""Thai, and behind it kana, Han and Hangul, which writes particles on to words."""


def _any(words: list[str]) -> str:
    return "|".join(re2.escape(word).replace("\\ ", r"[\s-]{1,3}") for word in words)


# -- secrets -----------------------------------------------------------------------------------------

MIN_ENTROPY: Final = 3.0
"""Bits a character of a secret, unless its rule says otherwise: hexadecimal of 24 digits has about 3.4."""


_START: Final = r"(?:^|[^A-Za-z0-9]|%[0-9A-Fa-f]{2}|\\(?:[abefnrtv]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}))"
"""What stands before a secret: no letter or digit, but those of an escape in an address or a string."""
_PORT_AND_NAME: Final = re.compile(rb"([0-9]{2,5})[A-Z]?[a-z]+(?:[._+-][A-Z]?[a-z]+)*[0-9]{0,4}")
"""What an address that ends its line and a mail address that begins the next one would make together."""
_BASE64: Final = "[A-Za-z0-9+/_-]{28,}"
_PRINTABLE: Final = re.compile(rb"[\t\n\r\x20-\x7e]{16,}")
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_SPACED: Final = bytes.maketrans(b"-_/.", b"    ")

_PLACEHOLDER: Final = re.compile(
    rb"(?i)example|your|placeholder|redacted|change_?me|dummy|x{4}|\*{3}|\.{3}|0{8}|12345678|abcdefgh|\xe2\x80\xa6"
)
_REFERENCE: Final = re.compile(rb"\$[A-Za-z{(]|\{\{|%[({]|[<({]|~/|\.{0,2}/|[a-z]{3,}/|[a-z][a-z0-9+.-]*://")
_WORD: Final = r"(?:[A-Z]{1,3}[a-z\x80-\xff]{2,}|[a-z\x80-\xff]+|[A-Z]{2,})"
_WORDS: Final = rf"(?:[0-9]{{0,4}}(?:{_WORD}+[0-9]{{0,2}})?(?:[._:/\\-]+|$))+"
_SEPARATORS: Final = frozenset(b"._:/\\-")


@dataclass(frozen=True, slots=True)
class FoundSecret:
    """A secret, without its value.

    Attributes:
        rule: id of the rule.
        line: number of the line where it begins, from 1; 0 if it stands in the path.
    """

    rule: str
    line: int


@dataclass(frozen=True, slots=True)
class SecretRule:
    """One table of `secrets.toml`, compiled.

    Attributes:
        source: its expression, with a group around what is the secret, if that is not all of it.
        context: whether words beside the secret are part of the expression.
    """

    id: str
    source: str
    context: bool
    entropy: float
    check: Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class _Pack:
    """Every rule, and one pattern that matches wherever any of them does: most texts match none."""

    rules: tuple[SecretRule, ...]
    any: Any
    any_joined: Any


@dataclass(frozen=True, slots=True)
class _Match:
    rule: str
    start: int
    end: int


def find_secret(data: bytes, rel: str) -> FoundSecret | None:
    """The first secret in a file or its path.

    Args:
        data: the file. Bytes that are not UTF-8 hide nothing that stands beside them.
        rel: its path inside its scope.

    Cost: about 10 µs a KiB of text without base64.
    """
    path = rel.encode("utf-8", "replace")
    for found_in_path in chain(_matches(path, pack()), _typed(path.translate(_SPACED))):
        return FoundSecret(found_in_path.rule, 0)
    text = data.decode("utf-8", "replace")
    found = _find(text)
    if found is None and (other := spelled(text)) is not None:
        found = _find(other)
    return found


def redacted(text: str) -> str:
    """`text` with `(redacted RULE)` in place of every secret that stands in it as it is (K3)."""
    data = text.encode("utf-8", "surrogatepass")
    for _ in range(_PASSES):
        spans = _apart(_matches(data, pack()))
        if not spans:
            break
        position, kept = 0, []
        for found in spans:
            kept += [data[position : found.start], f"(redacted {found.rule})".encode()]
            position = found.end
        data = b"".join([*kept, data[position:]])
    return data.decode("utf-8", "surrogatepass")


_PASSES: Final = 4
"""How often `redacted` looks: what overlaps a secret that was taken out may be one itself."""


@cache
def pack() -> _Pack:
    """The shipped rules. Cost: reads and compiles one file of the package, about 30 ms, once a process."""
    tables = shipped_tables("muniment.content", "secrets")
    rules = tuple(
        SecretRule(
            id=table["id"],
            source=table["pattern"],
            context=table.get("context", False),
            entropy=table.get("entropy", MIN_ENTROPY),
            check=_CHECKS[table.get("check", "form")],
        )
        for table in tables["rule"]
    )
    bare = [(re.sub(r"(?<!\\)\((?!\?)", "(?:", rule.source), rule.context) for rule in rules]
    return _Pack(
        rules=rules,
        any=_of_bytes("|".join(f"(?:{pattern})" for pattern, _ in bare)),
        any_joined=_of_bytes("|".join(f"(?:{pattern})" for pattern, context in bare if not context)),
    )


@cache
def _of_bytes(source: str) -> Any:
    return compiled(source.encode(), of_bytes=True)


# -- where secrets are looked for ------------------------------------------------------------------------


def _find(text: str) -> FoundSecret | None:
    rules = pack()
    data = text.encode("utf-8", "surrogatepass")
    for found in _matches(data, rules):
        return FoundSecret(found.rule, data.count(b"\n", 0, found.start) + 1)
    if not text.isascii():
        wide = normalised("NFKC", text).encode("utf-8", "surrogatepass")
        for found in _typed(wide):
            return FoundSecret(found.rule, wide.count(b"\n", 0, found.start) + 1)
    joined, starts = _joined(text)
    data = joined.encode("utf-8", "surrogatepass")
    for found in _matches(data, rules, joined=True):
        if _is_whole(data, found, starts):
            return FoundSecret(found.rule, bisect_right(starts, found.start))
    for decoded, at in _decoded(data):
        for found in chain(_matches(decoded, rules, joined=True), _matches(decoded, rules)):
            return FoundSecret(found.rule, bisect_right(starts, at))
    return None


def _is_whole(data: bytes, found: _Match, starts: list[int]) -> bool:
    """Whether a match in joined lines is none by chance: it begins a word, or goes over the end of a line."""
    if found.rule == "url-password" and (two := _PORT_AND_NAME.fullmatch(data, found.start, found.end)):
        next_line = bisect_right(starts, found.start)
        if next_line < len(starts) and two.end(1) == starts[next_line]:
            return False
    if not data[found.start - 1 : found.start].isalnum():
        return True
    return bisect_right(starts, found.end - 1) > bisect_right(starts, found.start - 1)


def _typed(data: bytes) -> Iterator[_Match]:
    """The secrets that people type, but for placeholders."""
    for rule, start, end in typed(data):
        value = data[start:end]
        if not _PLACEHOLDER.search(value) and not _REFERENCE.match(value):
            yield _Match(rule, start, end)


def _joined(text: str) -> tuple[str, list[int]]:
    """The lines of `text` as one, without what lists and quotes put around them; and where each begins."""
    if not text.isascii():
        text = normalised("NFKC", text)
    lines = [_bare(line) for line in text.split("\n")]
    starts = [0, *accumulate(len(line.encode("utf-8", "surrogatepass")) for line in lines)]
    return "".join(lines), starts[:-1]


def _bare(line: str) -> str:
    line = line.strip(" \t\r\\|\"'`>")
    while line[:2] in ("- ", "* ", "+ ", "> "):
        line = line[2:].lstrip(" \t\"'`")
    return line.replace("\\", "")


def _decoded(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The text in the long runs of base64 in `data`, from each of the four offsets, and where they begin."""
    for run in _of_bytes(_BASE64).finditer(data):
        letters = run[0].translate(_STANDARD)
        for offset in range(4):
            part = letters[offset:] if (len(letters) - offset) % 4 != 1 else letters[offset:-1]
            decoded = binascii.a2b_base64(part + b"=" * (-len(part) % 4))
            if text := b"\n".join(_PRINTABLE.findall(decoded)):
                yield text, run.start()


def _apart(found: Iterable[_Match]) -> list[_Match]:
    """The matches from left to right, without those that overlap an earlier one; the longer first."""
    apart: list[_Match] = []
    for match in sorted(found, key=lambda match: (match.start, -match.end)):
        if not apart or match.start >= apart[-1].end:
            apart.append(match)
    return apart


def _matches(data: bytes, rules: _Pack, *, joined: bool = False) -> Iterator[_Match]:
    """Every secret in `data`, rule by rule; those that people type stand on one line."""
    if (rules.any_joined if joined else rules.any).search(data) is not None:
        for rule in rules.rules:
            if joined and rule.context:
                continue
            pattern = _of_bytes(f"({rule.source})" if joined else f"{_START}({rule.source})")
            for match in pattern.finditer(data):
                group = next((n for n in range(2, match.re.groups + 1) if match.span(n)[0] >= 0), 1)
                value = match[group]
                if _is_no_placeholder(value, rule) and rule.check(value):
                    yield _Match(rule.id, *match.span(group))
    if not joined:
        yield from _typed(data)


# -- what makes a secret of a match ----------------------------------------------------------------------


def _is_no_placeholder(value: bytes, rule: SecretRule) -> bool:
    return _PLACEHOLDER.search(value) is None and _entropy(value) >= rule.entropy


def _entropy(value: bytes) -> float:
    """Bits a character, by the frequencies of the characters in `value` itself."""
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values())


def _has_form(_value: bytes) -> bool:
    return True


def _is_jwt(value: bytes) -> bool:
    """Whether the header is a JSON object that names an algorithm with a key."""
    header = value.partition(b".")[0].translate(_STANDARD)
    try:
        fields = json.loads(binascii.a2b_base64(header + b"=" * (-len(header) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.get("alg") not in (None, "none")


def _is_password(value: bytes) -> bool:
    """Whether a value is as unlike words, names, paths and code as a random one is."""
    if _REFERENCE.match(value) or b"(" in value or _of_bytes(_WORDS).fullmatch(value):
        return False
    kinds = {_kind(char) for char in value} - {"separator"}
    if len(kinds) >= _KINDS_OF_A_PASSWORD:
        return True
    return kinds >= {"digit"} and len(kinds) > 1 and len(value) >= _LENGTH_OF_A_KEY and value.isalnum()


_KINDS_OF_A_PASSWORD: Final = 3
_LENGTH_OF_A_KEY: Final = 16


def _kind(char: int) -> str:
    letter = chr(char)
    if letter.isdigit():
        return "digit"
    if letter.isalpha() and letter.isascii():
        return "upper" if letter.isupper() else "lower"
    if char in _SEPARATORS:
        return "separator"
    return "other" if letter.isascii() else "lower"


_CHECKS: Final[dict[str, Callable[[bytes], bool]]] = {
    "form": _has_form,
    "jwt": _is_jwt,
    "password": _is_password,
}
