"""Find values that are secrets because of words in their clause: tokens, codes of doors, logins.

Separate from `typed_secrets`: that module reads the text directly after a name. This module reads a complete
clause, in which name and value may be apart and in either order.

Guarantees, for the words of `secret_clauses.toml` in any mixture of languages:

- C1. These values are secrets next to the name of a token, key or secret: a UUID, 24 or more hexadecimal
  digits, and a random text of 16 or more characters. The name precedes the value in the clause, or follows it
  as in "… is the API token". Not a secret is a value that a word marks as public, such as "commit", "digest"
  or "ticket".
- C2. A random word is a secret if the name of a password precedes it in the clause and a mark or a verb
  introduces it.
- C3. Digits are a secret if the clause mentions a code and the thing that it opens, or states that something
  opens with it.
- C4. Secrets are also: lists of recovery codes, the words of a wallet (twelve, or another number of BIP-39 or
  Monero), the key of a wireless network, and "user / password" after the name of a login.
- C5. Linear time: RE2 finds the names; at most `_MAX_DISTANCE` characters before and after a name are read.

Limits: a clause ends at a line break or at the end of a sentence; a value beyond that end is not found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import re2

from muniment.content.expressions import compile_when_used
from muniment.content.patterns import WordExpression, compile_pattern
from muniment.files import load_package_tables, split_words

TOKEN: Final = "named-token"  # noqa: S105  the id of a rule
PASSWORD: Final = "named-password"  # noqa: S105  the id of a rule
CODE: Final = "named-code"
PHRASE: Final = "wallet-phrase"

_MAX_DISTANCE: Final = 120
"""Number of characters of a clause that are read before and after a name."""
_FIRST_WITHOUT_SPACES: Final = 0x0E00
"""The first code point of the scripts without spaces: Thai, kana, Han and Hangul."""
_END_OF_NOTE: Final = compile_when_used(r"[.!?;](?=\s|$)|[。！？；]|\n\s*\n")  # noqa: RUF001
"""The end of a clause that spans several lines, with a name on each."""
_END: Final = compile_when_used(r"(?<![:：=`|-])\n|[.!?;](?=\s|$)|[。！？；]|\n\s*\n")  # noqa: RUF001
OPENING_QUOTES: Final = "\"'`*“”„‘’«»「『‹›"  # noqa: RUF001
_MARK: Final = compile_when_used(
    rf"(?:=>|->|→|:=|[:=：＝(（\[{{|,、—–-])[\s>|{OPENING_QUOTES}]*$|[{OPENING_QUOTES}]$"  # noqa: RUF001
)
_STRONG_MARK: Final = compile_when_used(
    rf"(?:=>|->|→|:=|[:=：＝(（|—–]| - )[\s>|{OPENING_QUOTES}]*$|[{OPENING_QUOTES}]$"  # noqa: RUF001
)
_ID: Final = compile_when_used(
    r"(?<![A-Za-z0-9_-])(?:[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|(?=[0-9]{0,40}[a-fA-F])[0-9a-fA-F]{24,128})(?![A-Za-z0-9_-])"
)
_RANDOM: Final = compile_when_used(
    r"(?<![A-Za-z0-9_+/=.~:-])[A-Za-z0-9+/_~-]{16,200}={0,2}(?![A-Za-z0-9_+/~-])"
)
_LICENSE: Final = compile_when_used(r"(?<![A-Za-z0-9-])(?:[A-Z0-9]{4,6}-){3,7}[A-Z0-9]{4,6}(?![A-Za-z0-9-])")
_BASE32: Final = compile_when_used(
    r"(?<![A-Za-z0-9])(?:[a-z2-7]{4}(?: [a-z2-7]{4}){3,15}|[A-Z2-7]{4}(?: [A-Z2-7]{4}){3,15})"
    r"(?![A-Za-z0-9])"
)
_WORD: Final = compile_when_used(
    rf"[^\s{OPENING_QUOTES},;()（）|<>，。、\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]{{6,64}}"  # noqa: RUF001
)
_COMBINATION: Final = r"[0-9]{1,2}(?:(?: ?[-–/,] ?| )[0-9]{1,2}){2,4}"  # noqa: RUF001
_CODE: Final = compile_when_used(
    rf"(?<![A-Za-z0-9_.,/:#+-])(?:[0-9](?:[-–][0-9]){{2,7}}|{_COMBINATION}"  # noqa: RUF001
    r"|[0-9]{1,4}[A-ZА-Я][0-9]{2,6}"  # noqa: RUF001
    r"|[0-9]{3,10}[#*A-D]?|[#*][0-9]{3,10}|(?=[A-D]{0,4}[0-9]+[A-D])[0-9A-D]{4,8}[#*]?|[A-D][0-9]{3,8})"
    r"(?![A-Za-z0-9_/:%€$-]|[.,][0-9])"
)
_SIDE: Final = (
    r"(?:left|right|links|rechts|gauche|droite|izquierda|derecha|sinistra|destra|esquerda|direita|lewo|prawo|вправо|влево|направо|налево"
    r"|[LR])"
)
_TURNS: Final = compile_when_used(
    rf"(?:[0-9]{{1,2}} ?{_SIDE}\b[^\w\n]{{1,3}}){{2,5}}[0-9]{{1,2}}(?: ?{_SIDE}\b)?"
    rf"|(?:\b{_SIDE} ?[0-9]{{1,2}}[^\w\n]{{1,3}}){{2,5}}{_SIDE} ?[0-9]{{1,2}}"
)
_TO_SIDE: Final = compile_when_used(
    rf"(?i:(?<![^\W\d_]){_SIDE}(?![^\W\d_])|вправо|влево|направо|налево|[右左])"
    r"(?:[^\d.;。；]{0,12}[0-9] ?[^\d\s,;]{1,6})?[^\d,;.。；]{0,16}[0-9]{1,2}(?![0-9回])"  # noqa: RUF001
)
"""One turn of a dial, such as "left to 20"."""
_MIN_TURNS: Final = 3
_ONE_OF_LIST: Final = (
    r"(?:[0-9a-z]{4}(?: [0-9a-z]{4}){3,7}|[0-9]{4,5}[ -][0-9]{4,5}|[0-9]{6,10}"
    r"|[0-9a-zA-Z]{4,5}-[0-9a-zA-Z]{4,5}(?:-[0-9a-zA-Z]{4,5})*"
    r"|(?=[A-Z]*[0-9])(?=[0-9]*[A-Z])[A-Z0-9]{5,12}|(?=[a-z]*[0-9])(?=[0-9]*[a-z])[a-z0-9]{6,12})"
)
_LIST: Final = compile_when_used(
    rf"(?<![A-Za-z0-9_-]){_ONE_OF_LIST}"
    rf"(?:(?:\s*[,;/、•]\s*|\s+|\s*\n[-*]?\s*)(?:[^\W\d_]{{1,4}}\s+)?{_ONE_OF_LIST})*(?![A-Za-z0-9_-])"
)
_PHRASE_SIZES: Final = frozenset({12, 13, 15, 18, 21, 24, 25})
"""Possible numbers of words of a wallet phrase. Source: BIP-39; 13 and 25 are those of Monero."""
_LETTERS: Final = "[a-zß-öø-ÿœąćęłńśźżа-яё]"
_NUMBERED: Final = rf"(?:[0-9]{{1,2}}[.):]?\s*)?{_LETTERS}{{3,9}}"
_PHRASE: Final = compile_when_used(rf"(?<!\w){_NUMBERED}(?:[\s,]+{_NUMBERED}){{11,28}}(?!\w)")
_FUNCTION_WORDS: Final = compile_when_used(
    r"\b(?:the|and|for|with|was|are|has|not|but|der|die|das|und|mit|les|des|est|pour|avec|los|las|por|para"
    r"|con|del|non|che|het|een|van|voor|jest|nie)\b"
)
_LOGIN: Final = compile_when_used(
    r"(?<![\w./@-])"
    r"(?:(?P<user>[\w.@+\\-]{2,64})(?: +[/:] +|\s+\|\s+)"
    r"|(?<!:)(?!(?i:sha|md5|urn|key|id|arn))[\w+\\-]{2,64}:"
    r"|(?:admin|administrator|root|user|guest)/"
    r"|(?:with|as|are|mit|sind|avec|sont|con|son|sono|com|são|met|zijn|jako|to) "
    r"[\w.@+-]{2,64} (?P<and>and|und|et|y|e|en|i) )"
    r"(?P<value>[^\s/|,;()<>\"'`.%][^\s/|,;()<>\"'`]{5,63})(?P<is_followed> [a-z])?"
)
_DIGIT: Final = compile_when_used(rb"[0-9]|\w[!#$&*+@%^~]\w")
"""A part of every secret except a phrase: a digit, or a mark between letters."""
_MIXED: Final = compile_when_used(r"(?=.*[0-9])(?=.*[a-zß-ÿ])(?=.*[A-ZÀ-Þ])")


@dataclass(frozen=True, slots=True)
class _ClauseWords:
    """The tables of `secret_clauses.toml` for all languages, compiled.

    Attributes:
        names: finds the names of each kind of secret, in the order of `_FINDERS`.
        places: finds things that a code opens.
        codes: finds names of a code.
        network_keys: finds names of the key of a network.
        unlocks: finds verbs such as "opens", with people and places, for clauses without a name of the code.
        typed_in: finds verbs that follow a code.
        changes: finds verbs for a change of a password.
        introducers: finds a word that introduces a value, at the end of a text.
        locks: finds places whose only number is their code.
        public_before, public_near, public_anywhere, public_codes: find words that mark a value as public.
    """

    names: tuple[WordExpression, ...]
    places: WordExpression
    codes: WordExpression
    network_keys: WordExpression
    unlocks: WordExpression
    typed_in: WordExpression
    changes: WordExpression
    introducers: WordExpression
    locks: WordExpression
    public_before: WordExpression
    public_near: WordExpression
    public_anywhere: WordExpression
    public_codes: WordExpression


@dataclass(frozen=True, slots=True)
class ValueChecks:
    """Functions that check single values, which the caller provides.

    Attributes:
        is_random: returns whether a text looks random, not like words or names.
        is_chosen: returns whether a word may be a password, because it is not typical for statements about
            one.
        is_not_word: returns whether a text is neither a word nor a version, date, method or file.
        is_count: returns whether the text after a number names what the number counts.
    """

    is_random: Callable[[str], bool]
    is_chosen: Callable[[str], bool]
    is_not_word: Callable[[str], bool]
    is_count: Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class _Clause:
    """The name of a secret and the text around it, up to the ends of its clause."""

    before: str
    name: str
    after: str

    @property
    def text(self) -> str:
        return f"{self.before}{self.name}{self.after}"


def find_secrets_in_clauses(data: bytes, checks: ValueChecks) -> Iterator[tuple[str, int, int]]:
    """Yield the rule, start and end of every secret that a name in its clause identifies, in UTF-8 text.

    Args:
        data: the text.
        checks: the checks of single values.

    Cost: about 10 µs per KiB, and 20 to 100 µs for each name near a digit.
    """
    words, has_digit = _load_words(), _DIGIT.search(data) is not None
    for (kind, find), names in zip(_FINDERS.items(), words.names, strict=True):
        needs_digit = kind not in _WITHOUT_DIGITS
        for found in names.finditer(data) if has_digit or not needs_digit else ():
            start, end = next(span for span in map(found.span, range(1, found.re.groups + 1)) if span[0] >= 0)
            if needs_digit and not _DIGIT.search(
                data, max(0, start - 4 * _MAX_DISTANCE), end + 4 * _MAX_DISTANCE
            ):
                continue
            if _is_part_of_id(data, start, end):
                continue
            ends = _END_OF_NOTE if kind == "networks" else _END
            clause = _read_clause(data, start, end, _MAX_DISTANCE * _LIST_FACTORS.get(kind, 1), ends)
            for rule, position, size in find(clause, words, checks):
                begin = start - len(clause.before.encode()) + len(clause.text[:position].encode())
                yield rule, begin, begin + len(clause.text[position : position + size].encode())


def _is_part_of_id(data: bytes, start: int, end: int) -> bool:
    """Return whether the text at this place ends or begins one of Muniment's own ids: "…YD7670XQKEY"."""
    first = max(0, start - _ID_CHARS)
    return any(
        found.start() + first < end and found.end() + first > start
        for found in _OWN_ID.finditer(data[first : end + _ID_CHARS])
    )


_ID_CHARS: Final = 26
"""Characters of a ULID. Source: github.com/ulid/spec."""
_OWN_ID: Final = compile_when_used(
    rb"(?<![0-9A-Za-z])[0-7][0-9A-HJKMNP-TV-Z]{%d}(?![0-9A-Za-z])" % (_ID_CHARS - 1)
)


def _read_clause(data: bytes, start: int, end: int, max_distance: int, ends: re.Pattern[str]) -> _Clause:
    before = data[max(0, start - 4 * _MAX_DISTANCE) : start].decode("utf-8", "ignore")[-_MAX_DISTANCE:]
    after = data[end : end + 4 * max_distance].decode("utf-8", "ignore")[:max_distance]
    return _Clause(
        ends.split(before)[-1], data[start:end].decode("utf-8", "ignore"), ends.split(after, maxsplit=1)[0]
    )


def _find_tokens(clause: _Clause, words: _ClauseWords, checks: ValueChecks) -> Iterator[tuple[str, int, int]]:
    offset = len(clause.before) + len(clause.name)
    for pattern in (_ID, _RANDOM, _BASE32, _LICENSE):
        for value in pattern.finditer(clause.after):
            gap, is_id = clause.after[: value.start()], pattern is _ID
            if (
                _IN_PATH.match(gap)
                or words.public_before.search(clause.before.encode())
                or _is_public(gap, words)
            ):
                break
            if (is_id or checks.is_random(value[0]) or _is_grouped(value[0])) and (
                _is_introduced(gap, words)
                or gap.isspace()
                or (is_id and len(gap.split()) <= _MAX_GAP_WORDS)
                or (_is_key(value[0]) and gap[:1].isspace() and len(gap.split()) <= _MAX_WORDS_BEFORE_NAME)
            ):
                yield TOKEN, offset + value.start(), len(value[0])
                break
    for value in _ID.finditer(clause.before):
        gap = clause.before[value.end() :]
        if (
            len(gap.split()) <= _MAX_WORDS_BEFORE_NAME
            and _begins_with_verb(gap, words)
            and not _is_public(clause.before[: value.start()], words)
            and not _is_public(gap, words)
        ):
            yield TOKEN, value.start(), len(value[0])


def _is_grouped(value: str) -> bool:
    return bool(_LICENSE.fullmatch(value) or " " in value) and any(map(str.isdigit, value))


def _is_key(value: str) -> bool:
    return len(value) >= _MIN_KEY_CHARS and _MIXED.match(value) is not None and "/" not in value


_MIN_KEY_CHARS: Final = 20


def _is_public(gap: str, words: _ClauseWords) -> bool:
    """Return whether the text between a name and a value marks the value as public."""
    if words.public_anywhere.search(gap.encode()):
        return True
    bare = gap.rstrip(OPENING_QUOTES + " :=#(-–—")  # noqa: RUF001
    if verb := words.introducers.search(bare.encode()):
        bare = bare.encode()[: verb.start() + 1].decode("utf-8", "ignore")
    return words.public_near.search(bare.rstrip(OPENING_QUOTES + " :=#(-–—").encode()) is not None  # noqa: RUF001


_HOUR: Final = r"(?:[01][0-9]|2[0-4])[0-5][0-9]"
_TO: Final = r"(?:to|until|till|and|bis|und|à|et|a|y|alle|e|às|tot|en|do|i|до|и|[-–])"  # noqa: RUF001
_HOURS: Final = compile_when_used(rf"{_HOUR} ?{_TO} ?{_HOUR}\b")
"""Opening hours, which are not codes."""
_IN_PATH: Final = compile_when_used(r"/|\.\w")
"""Text after a name that makes it part of a path or of a file name."""
_MAX_GAP_WORDS: Final = 3
_MAX_WORDS_BEFORE_NAME: Final = 6


def _find_passwords(
    clause: _Clause, words: _ClauseWords, checks: ValueChecks
) -> Iterator[tuple[str, int, int]]:
    if clause.after[:1] in _JOINS_NAME or _OTHER_NOUN.match(clause.after):
        return
    for value in _WORD.finditer(clause.after):
        text, gap = value[0].rstrip(".!?:]}…"), clause.after[: value.start()]
        is_strong = _is_strong(text, checks) and "://" not in text
        is_strong |= _ARROW.search(gap) is not None and _JOINED_WORDS.fullmatch(text) is not None
        if is_strong and not gap.endswith("/") and _introduces_password(clause, value, words):
            yield PASSWORD, len(clause.before) + len(clause.name) + value.start(), len(text)
            return


_OTHER_NOUN: Final = compile_when_used(
    r" (?:managers?|resets?|polic(?:y|ies)|hints?|generators?|fields?|rotation|rules?|prompts?|stores?"
    r"|vaults?|lengths?|hash(?:es)?|forms?|pages?|links?|strength|dialogs?)\b",
    re.IGNORECASE,
)
"""Nouns after the name of a password that change its meaning, such as "manager"."""
_ARROW: Final = compile_when_used(r"(?:->|→|=>)\s*$")
_JOINED_WORDS: Final = compile_when_used(r"[A-ZÀ-ÞА-Я][^\W\d_]+(?:-[^\W\d_]{2,}){1,4}")


def _is_strong(text: str, checks: ValueChecks) -> bool:
    return _STRONG.match(text) is not None and checks.is_not_word(text)


_STRONG: Final = compile_when_used(r"(?=.*[0-9])(?=.*[^\W\d_])|[^\W_]{2,}[!#$&*+@%^~][^\W_]{2,}")
"""Letters and digits, or a mark between letters."""


def _introduces_password(clause: _Clause, value: re.Match[str], words: _ClauseWords) -> bool:
    gap = clause.after[: value.start()]
    if _STRONG_MARK.search(gap) or _follows_verb(gap, words):
        return True
    if re.search(r"\s(?:en|in|a|à|auf|naar|na|para|pra|to)\s$", gap):
        return words.changes.search((clause.before + gap).encode()) is not None
    is_label = not clause.before.strip() and not clause.after[value.end() :].strip(OPENING_QUOTES + " .")
    return is_label and len(gap.split()) <= 1 and _MIXED.match(value[0]) is not None


_JOINS_NAME: Final = tuple("_@-./\\")
"""Characters after which a name is only part of a longer name."""


def _find_networks(
    clause: _Clause, words: _ClauseWords, checks: ValueChecks
) -> Iterator[tuple[str, int, int]]:
    if pair := _NETWORK.match(clause.after):
        if checks.is_not_word(pair["value"]):
            yield PASSWORD, len(clause.text) - len(clause.after) + pair.start("value"), len(pair["value"])
        return
    data = clause.after.encode()
    ends = [max(map(key.end, range(1, key.re.groups + 1))) for key in words.network_keys.finditer(data)]
    if words.network_keys.search(clause.before[-_MAX_NAME_DISTANCE:].encode()):
        ends.insert(0, 0)
    for end in ends:
        rest = data[end:].decode()
        value = _WORD.search(rest)
        if value is None:
            continue
        is_far = len(rest[: value.start()].split()) > (_MAX_GAP_WORDS if "=" in rest[: value.start()] else 1)
        if is_far:
            continue
        text, is_marked = value[0].rstrip(".!?:]}…"), _MARK.search(rest[: value.start()]) is not None
        is_key = len(text) >= _MIN_NETWORK_KEY_CHARS and (
            text.isdigit() or (is_marked and checks.is_chosen(text))
        )
        if checks.is_not_word(text) or is_key:
            yield PASSWORD, len(clause.text) - len(rest) + value.start(), len(text)
            return


_NETWORK: Final = compile_when_used(
    r"(?::?\s+[^\s/,;:]+){1,5}\s/\s(?P<value>(?=\S*[0-9])[^\s/,;]{8,63})(?=\s*$|[.,;)])"
)
"""The name of a network, a slash and its key."""
_MAX_NAME_DISTANCE: Final = 12
"""Maximum characters between the name of a key and the word for its network, as in "key of the wifi"."""
_MIN_NETWORK_KEY_CHARS: Final = 8
"""Minimum characters of a WPA key. Source: IEEE 802.11, clause 12."""


def _find_logins(
    clause: _Clause, _words: _ClauseWords, checks: ValueChecks
) -> Iterator[tuple[str, int, int]]:
    for pair in _LOGIN.finditer(clause.text, len(clause.before)):
        text = pair["value"].rstrip(".!?:]}…")
        is_pair_of_names = (
            pair.start() == len(clause.before) and ":" in pair[0] and not checks.is_random(text)
        )
        is_pair_of_names |= pair["and"] is not None and (
            len(text) < _MIN_CHARS_AFTER_AND or not _MIXED.match(text)
        )
        is_pair_of_names |= pair["user"] is not None and _drop_digits(pair["user"]) == _drop_digits(text)
        is_path = pair["user"] is None and pair["and"] is None and "/" in pair[0]
        is_name = is_pair_of_names or (pair["is_followed"] is not None and (is_path or text.lower() == text))
        if _is_strong(text, checks) and not is_name and not _NOT_LOGIN.search(text):
            yield PASSWORD, pair.start("value"), len(text)
            return


_NOT_LOGIN: Final = compile_when_used(r"\\[ux][0-9a-fA-F]{2}|^[0-9]{2}:[0-9]{2}")
"""An escaped character of a path, or the rest of a time of day."""
_MIN_CHARS_AFTER_AND: Final = 8


def _drop_digits(text: str) -> str:
    return re.sub("[0-9]+", "", text)


def _find_entries(
    clause: _Clause, words: _ClauseWords, checks: ValueChecks
) -> Iterator[tuple[str, int, int]]:
    value = _WORD.search(clause.after)
    if value is None or clause.after[: value.start()].strip(OPENING_QUOTES + " :："):  # noqa: RUF001
        return
    text = value[0].rstrip(".!?:]}…")
    others = (clause.before, clause.after[value.end() :])
    is_opened = any(words.unlocks.search(part.encode()) for part in others)
    if is_opened and _is_strong(text, checks):
        yield PASSWORD, len(clause.text) - len(clause.after) + value.start(), len(text)


def _find_lists(clause: _Clause, words: _ClauseWords, _checks: ValueChecks) -> Iterator[tuple[str, int, int]]:
    for value in _LIST.finditer(clause.after):
        if _is_introduced(clause.after[: value.start()], words) and any(map(str.isdigit, value[0])):
            yield CODE, len(clause.before) + len(clause.name) + value.start(), len(value[0])
            return


def _find_phrases(
    clause: _Clause, words: _ClauseWords, _checks: ValueChecks
) -> Iterator[tuple[str, int, int]]:
    for phrase in _PHRASE.finditer(clause.after):
        parts = re.findall(f"{_LETTERS}+", phrase[0])
        while parts and words.introducers.search(f" {parts[0]}".encode()):
            parts = parts[1:]
        is_varied = 4 * len(set(parts)) >= 3 * len(parts)
        if len(parts) in _PHRASE_SIZES and is_varied and not _FUNCTION_WORDS.search(" ".join(parts)):
            yield PHRASE, len(clause.before) + len(clause.name) + phrase.start(), len(phrase[0])


def _find_codes(clause: _Clause, words: _ClauseWords, checks: ValueChecks) -> Iterator[tuple[str, int, int]]:
    text = clause.text
    data = text.encode()
    if not (_CODE.search(text) or _TURNS.search(text) or _TO_SIDE.search(text)) or words.public_codes.search(
        data
    ):
        return
    for turns in _TURNS.finditer(text):
        yield CODE, turns.start(), len(turns[0])
    sides = list(_TO_SIDE.finditer(text))
    if len(sides) >= _MIN_TURNS:
        yield CODE, sides[0].start(), sides[-1].end() - sides[0].start()
    is_named = words.codes.search(data) is not None
    is_unlocked = words.unlocks.search(data) is not None
    hours = [found.span() for found in _HOURS.finditer(text)]
    for value in _CODE.finditer(text):
        if any(start <= value.start() < end for start, end in hours):
            continue
        before, rest = text[: value.start()], text[value.end() :]
        is_last_name = _ends_with((words.codes, words.places), before)
        if not checks.is_count(rest) and (
            ((is_named or _is_combination(value[0])) and (is_last_name or _is_introduced(before, words)))
            or _SINGLE_DIGITS.fullmatch(value[0])
            or ((is_named or is_unlocked) and _IN_PAIRS.fullmatch(value[0]))
            or _is_place_label(clause, value, words)
            or (is_named and _is_near_name(before, rest, value[0], words))
            or (is_unlocked and (_is_introduced(before, words) or _ends_with((words.unlocks,), before)))
            or (_begins_with_verb(rest, words) and words.codes.search(rest.encode()))
            or _begins_with(words.typed_in, rest)
            or (is_named and _is_label(clause, value))
        ):
            yield CODE, value.start(), len(value[0])


def _is_place_label(clause: _Clause, value: re.Match[str], words: _ClauseWords) -> bool:
    """Return whether a clause consists of a place, a colon and digits that are neither a year nor a time."""
    gap = clause.text[: value.start()]
    return (
        not clause.before.strip(OPENING_QUOTES + " -")
        and gap.rstrip(OPENING_QUOTES + " ").endswith((":", "：", "="))  # noqa: RUF001
        and len(gap.split()) <= _MAX_GAP_WORDS
        and not clause.text[value.end() :].strip(OPENING_QUOTES + " .")
        and _NOT_YEAR.fullmatch(value[0]) is not None
        and not _TIME.fullmatch(value[0])
        and words.locks.search(gap.encode()) is not None
    )


_TIME: Final = compile_when_used(r"(?:[01][0-9]|2[0-3])[0-5][05]")


def _is_near_name(before: str, rest: str, value: str, words: _ClauseWords) -> bool:
    """Return whether exactly one word, such as a bank, separates a name from the code at the end.

    Args:
        before: the text before the code.
        rest: the text after the code.
        value: the code.
        words: the tables.
    """
    head, _, last = before.rstrip().rpartition(" ")
    is_end = not rest.strip(OPENING_QUOTES + " .)") or rest.startswith((",", ")", " -", " –", " —"))  # noqa: RUF001
    is_name = len(last) >= _MIN_NAME_CHARS and last.isalpha()
    return (
        is_end
        and is_name
        and bool(_NOT_YEAR.fullmatch(value))
        and _ends_with((words.codes, words.places), head)
    )


_MIN_NAME_CHARS: Final = 5
_SINGLE_DIGITS: Final = compile_when_used(r"[0-9](?:[-–][0-9]){3,7}")  # noqa: RUF001
_IN_PAIRS: Final = compile_when_used(r"[0-9]{2}(?:[-–][0-9]{2}){2,4}")  # noqa: RUF001


def _is_label(clause: _Clause, value: re.Match[str]) -> bool:
    """Return whether a code ends a short clause and is not a year."""
    gap = clause.text[len(clause.before) + len(clause.name) : value.start()]
    is_short = len(gap.split()) <= _MAX_GAP_WORDS and len(clause.text.split()) <= _MAX_LABEL_WORDS
    is_last = not clause.text[value.end() :].strip(OPENING_QUOTES + " .")
    return is_short and is_last and _NOT_YEAR.fullmatch(value[0]) is not None


_MAX_LABEL_WORDS: Final = 7
_NOT_YEAR: Final = compile_when_used(r"(?!(?:19|20)[0-9]{2}$)[0-9]{4,10}[#*]?")


def _is_combination(value: str) -> bool:
    """Return whether digits look like the combination of a lock or a code, not like a date."""
    if value.endswith(("#", "*")):
        return True
    numbers = [int(each) for each in re.findall("[0-9]+", value)]
    if not re.fullmatch(_COMBINATION, value):
        return False
    first, second, third = numbers[:3]
    return second > _MONTHS and (first > _MONTHS or third > _DAYS)


_MONTHS: Final = 12
_DAYS: Final = 31


def _is_introduced(gap: str, words: _ClauseWords) -> bool:
    return _MARK.search(gap) is not None or _follows_verb(gap, words)


def _follows_verb(gap: str, words: _ClauseWords) -> bool:
    return words.introducers.search(gap.rstrip(OPENING_QUOTES + " ").encode()) is not None


def _ends_with(names: Iterable[Any], before: str) -> bool:
    tail = before.rstrip(OPENING_QUOTES + " ")[-_MAX_TAIL_CHARS:].encode()
    return any(
        found.end() == len(tail)
        or tail[max(map(found.end, range(1, found.re.groups + 1))) :].decode().isalpha()
        for each in names
        for found in each.finditer(tail)
    )


_MAX_TAIL_CHARS: Final = 24


def _begins_with(names: Any, rest: str) -> bool:
    return names.search(rest.lstrip(OPENING_QUOTES + " ").split(" ", 1)[0].encode()) is not None


def _begins_with_verb(gap: str, words: _ClauseWords) -> bool:
    first = gap.lstrip(OPENING_QUOTES + " ").split(" ", 1)[0]
    return bool(first) and words.introducers.search(f" {first}".encode()) is not None


_FINDERS: Final = {
    "tokens": _find_tokens,
    "passwords": _find_passwords,
    "lists": _find_lists,
    "phrases": _find_phrases,
    "networks": _find_networks,
    "logins": _find_logins,
    "entries": _find_entries,
    "places": _find_codes,
}
_WITHOUT_DIGITS: Final = frozenset(("phrases", "networks"))
"""Kinds of secrets whose values may have no digit."""
_LIST_FACTORS: Final = {"lists": 2, "phrases": 3}
"""Kinds of secrets whose values are lists, with the factor by which more text is read after their names."""


@cache
def _load_words() -> _ClauseWords:
    """Return the compiled tables of `secret_clauses.toml`. Cost: reads the file once per process."""
    tables = load_package_tables("muniment.content", "secret_clauses")
    public = tables.pop("public")
    words = {
        kind: sorted(
            {word for some in table.values() for word in split_words(some)},
            key=lambda word: (-len(word), word),
        )
        for kind, table in tables.items()
    }
    return _ClauseWords(
        names=tuple(compile_names(words[kind]) for kind in _FINDERS),
        places=compile_names(words["places"]),
        codes=compile_names(words["codes"]),
        network_keys=compile_names(words["network_keys"]),
        unlocks=compile_names(words["unlocks"]),
        typed_in=compile_names(words["typed_in"]),
        changes=compile_names(words["changes"]),
        introducers=compile_endings(words["says"]),
        locks=compile_names(words["locks"]),
        public_before=WordExpression(lambda: _compile_ending(public["before"])),
        public_near=WordExpression(lambda: _compile_ending(public["near"])),
        public_anywhere=WordExpression(
            lambda: compile_pattern(f"{_START}(?:{'|'.join(public['anywhere'])}){_STOP}".encode())
        ),
        public_codes=compile_names(public["codes"], is_escaped=True),
    )


_START: Final = r"(?:^|[^\p{Latin}\p{Cyrillic}\pN])"
_STOP: Final = r"(?:[^\p{Latin}\p{Cyrillic}\pN]|$)"


def compile_names(words: list[str], *, is_escaped: bool = False) -> WordExpression:
    """Return an expression for any of the names, with the matched name in a group.

    A `*` at one end of a name allows more letters at that end.

    Args:
        words: the names.
        is_escaped: whether the names are already expressions.
    """
    return WordExpression(lambda: _compile_now(words, is_escaped=is_escaped), () if is_escaped else words)


def _compile_now(words: list[str], *, is_escaped: bool) -> Any:
    parts = []
    for word in words:
        has_spaces = ord(word.strip("*")[0]) < _FIRST_WITHOUT_SPACES
        start = "" if word.startswith("*") or not has_spaces else _START
        stop = "" if word.endswith("*") or not has_spaces else _STOP
        parts.append((start, word.strip("*") if is_escaped else _escape_word(word.strip("*")), stop))
    grouped = {
        (start, stop): [name for s, name, e in parts if (s, e) == (start, stop)] for start, _, stop in parts
    }
    alternatives = (f"{start}({'|'.join(names)}){stop}" for (start, stop), names in grouped.items())
    return compile_pattern("|".join(alternatives).encode())


def compile_endings(words: list[str]) -> WordExpression:
    """Return an expression that finds one of the words at the end of a text."""
    return WordExpression(lambda: _compile_ending(map(_escape_word, words)), words)


def _compile_ending(expressions: Iterable[str]) -> Any:
    """Return an expression that finds one of the given expressions at the end of a text."""
    spaced: list[str] = []
    running: list[str] = []
    for each in expressions:
        (spaced if ord(each[0]) < _FIRST_WITHOUT_SPACES else running).append(each)
    ends = [f"{_START}(?:{'|'.join(spaced)})", *running]
    return compile_pattern(f"(?:{'|'.join(ends)})\\s*$".encode())


def _escape_word(word: str) -> str:
    return str(re2.escape(word)).replace("\\ ", r"[\s-]{1,3}")
