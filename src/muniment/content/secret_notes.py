"""Find secrets in notes: in tables, near accounts, and in answers to security questions.

Separate from `secret_clauses`: in this module the position or the form of a value identifies a secret,
together with a word elsewhere in the text. In `secret_clauses`, a name in the same clause does.

Guarantees, for the words of `secret_notes.toml` in any mixture of languages:

- N1. A cell below the name of a secret in the head of a table is a secret; delimiters are `,`, `;`, `|` and
  tabs.
- N2. A word that looks invented, such as a capitalised word and a number, is a secret in this case: it
  directly follows a word that introduces a choice, and an account or a login is mentioned within
  `_MAX_DISTANCE` characters.
- N3. A word with digits is a secret if a remark about its small letters or its spaces follows it.
- N4. The answer to a question that proves an identity is a secret.
- N5. Digits with the prefix and the length of a card are a secret near a word for a card, with any check
  digit.
- N6. The text before a bracket such as "(that is the passphrase)" is a secret.
- N7. Linear time: RE2 finds the names; at most `_MAX_DISTANCE` characters around a name are read, and
  `_MAX_ROWS` rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from typing import Any, Final

from muniment.content.expressions import compile_when_used
from muniment.content.patterns import WordExpression
from muniment.content.secret_clauses import (
    OPENING_QUOTES,
    PASSWORD,
    ValueChecks,
    compile_endings,
    compile_names,
)
from muniment.files import load_package_tables, split_words

CARD: Final = "payment-card"
ANSWER: Final = "security-answer"

_MAX_DISTANCE: Final = 160
_MAX_ROWS: Final = 50
_DELIMITERS: Final = ("|", "\t", ";", ",")
_MAX_CELLS: Final = 30
_MAX_HEAD_WORDS: Final = 3
_MAX_HEAD_CHARS: Final = 32
_MIN_CELL_CHARS: Final = 4
"""Minimum characters of a secret in a table cell; the number on the back of a card has three."""
_DIGIT: Final = compile_when_used(rb"[0-9]")
_INVENTED: Final = compile_when_used(
    r"(?=[^\n]{8,64}$)(?:"
    r"(?:[A-ZÀ-ÞА-Я]?[a-zß-ÿąćęłńóśźżа-яё]{3,}[-_.*#!&$+@~]?)+[0-9]{2,6}[!?#*$&]?"
    r"|[A-ZÀ-ÞА-Я][^\W\d_]{2,}(?:[-_*#!&$+@~.][^\W_]{2,})*[-_*#!&$+@~.]?[0-9][^\W_]{1,6}[!?#*$&]?"
    r"|(?:[a-z]+[0-9]+){3,}[a-z]*|(?:[0-9]+[a-z]+){3,}[0-9]*)"
)
"""Words of a language with a number, or words in which digits replace letters."""
_UNUSUAL: Final = compile_when_used(r"[A-ZÀ-ÞА-Я]|[-_*#!&$+@~].|[a-z][0-9]+[a-z]+[0-9]")
_QUOTES: Final = OPENING_QUOTES.replace("*", "")
_TOKEN: Final = compile_when_used(rf"[^\s{_QUOTES},;()|<>，。、；：（）「」]{{6,64}}")  # noqa: RUF001
_VALUE_OF_ANSWER: Final = (
    rf"(?:[{OPENING_QUOTES}]+[^{OPENING_QUOTES}」』\n]{{2,48}}[{OPENING_QUOTES}」』]"
    r"|(?:[A-ZÀ-ÞА-ЯĄĆŁŚŻŹ\d][\w.'’-]+(?: (?:de|di|da|del|von|van) )?\s?){1,6})"  # noqa: RUF001
)
_ANSWER: Final = compile_when_used(rf"[\s:：=-]*({_VALUE_OF_ANSWER}|[\u3040-\u9fff\uac00-\ud7a3]{{2,12}})")  # noqa: RUF001
_EARLIER_ANSWER: Final = compile_when_used(rf"({_VALUE_OF_ANSWER})\s*$")
_ENDS_OF_ANSWER: Final = frozenset((b"angegeben", b"eingetragen", b"hinterlegt", b"opgegeven", b"ingevuld"))
"""Verbs that can follow an answer."""
_CARD: Final = compile_when_used(
    rb"(?<![\w.-])(?:4[0-9]{3}|62[0-9]{2}|3[05689][0-9]{2}|5[1-5][0-9]{2}|2[2-7][0-9]{2}|6011|3[47][0-9]{2})"
    rb"(?:[ -]?[0-9]{4}){2}[ -]?[0-9]{3,4}(?![\w-])"
)
_BRACKET: Final = compile_when_used(
    r"(?:→|->|=>|[:：=])\s*([^\n()→:=\[\]#]{6,80}?)(?:\s\(|（)"  # noqa: RUF001
)


@dataclass(frozen=True, slots=True)
class _NoteWords:
    """The tables of `secret_notes.toml` for all languages, compiled; that file describes them."""

    columns: WordExpression
    accounts: WordExpression
    chosen: WordExpression
    logins: WordExpression
    uses: WordExpression
    changes: WordExpression
    onto: WordExpression
    others: WordExpression
    spelled: WordExpression
    questions: WordExpression
    topics: WordExpression
    persons: WordExpression
    answers: WordExpression
    equals: WordExpression
    cards: WordExpression


def find_secrets_in_notes(data: bytes, checks: ValueChecks) -> Iterator[tuple[str, int, int]]:
    """Yield the rule, start and end of every secret in the tables, answers and notes of a UTF-8 text.

    Args:
        data: the text.
        checks: the checks of single values.

    Cost: about 70 µs per KiB.
    """
    words = _load_words()
    yield from _find_in_tables(data, words, checks)
    yield from _find_in_answers(data, words)
    yield from _find_before_brackets(data, words, checks)
    yield from _find_in_replies(data, words, checks)
    if _DIGIT.search(data):
        yield from _find_near_accounts(data, words, checks)
        yield from _find_spelled(data, words)
        for card in _CARD.finditer(data):
            if words.cards.search(data, max(0, card.start() - _MAX_DISTANCE), card.end() + _MAX_DISTANCE):
                yield CARD, card.start(), card.end()


def _find_in_tables(data: bytes, words: _NoteWords, checks: ValueChecks) -> Iterator[tuple[str, int, int]]:
    if b"\n" not in data:
        return
    last_head = -1
    for found in words.columns.finditer(data):
        position = _find_name_start(found)
        start = data.rfind(b"\n", max(0, position - 4 * _MAX_DISTANCE), position) + 1
        end = data.find(b"\n", position, position + 4 * _MAX_DISTANCE)
        if start == last_head or not 0 <= end - start <= 4 * _MAX_DISTANCE:
            continue
        last_head = start
        head = data[start:end].decode("utf-8", "ignore")
        delimiter = next((each for each in _DELIMITERS if each in head), "")
        cells = head.split(delimiter)[:_MAX_CELLS] if delimiter else []
        above = data[max(0, start - 4 * _MAX_DISTANCE) : max(0, start - 1)].rpartition(b"\n")[2]
        is_row = len(cells) > 1 and above.count(delimiter.encode()) == len(cells) - 1
        if is_row or not all(map(_is_head, cells)):
            continue
        secret = [n for n, cell in enumerate(cells) if words.columns.search(cell.strip(" *_`\"'").encode())]
        yield from _find_cells(data, end + 1, delimiter.encode(), (cells, secret), checks) if secret else ()


def _find_cells(
    data: bytes, at: int, delimiter: bytes, head: tuple[list[str], list[int]], checks: ValueChecks
) -> Iterator[tuple[str, int, int]]:
    """Yield the rule, start and end of each secret in the rows of a table.

    Args:
        data: the text.
        at: the offset of the first row.
        delimiter: the delimiter of the cells.
        head: the names of all columns, and the numbers of the columns with secrets.
        checks: the checks of single values.
    """
    names, columns = head
    for _ in range(_MAX_ROWS):
        end = data.find(b"\n", at, at + 4 * _MAX_DISTANCE)
        end = min(len(data), at + 4 * _MAX_DISTANCE) if end < 0 else end
        row = data[at:end].split(delimiter)
        if len(row) != len(names):
            return
        for column in columns:
            begin = at + sum(len(cell) + 1 for cell in row[:column])
            text = row[column].decode("utf-8", "ignore").strip().strip("`\"'* ")
            if (
                len(text) >= _MIN_CELL_CHARS - ("cv" in names[column].lower())
                and " " not in text
                and _is_cell(text, checks)
            ):
                start = data.index(text.encode(), begin)
                yield PASSWORD, start, start + len(text.encode())
        at = end + 1


def _is_head(cell: str) -> bool:
    return len(cell) <= _MAX_HEAD_CHARS and len(cell.split()) <= _MAX_HEAD_WORDS and "/" not in cell


def _is_cell(text: str, checks: ValueChecks) -> bool:
    has_digit = any(map(str.isdigit, text))
    return text.isdigit() or has_digit or checks.is_chosen(text) or checks.is_not_word(text)


def _find_near_accounts(
    data: bytes, words: _NoteWords, checks: ValueChecks
) -> Iterator[tuple[str, int, int]]:
    """Yield the values that were chosen for an account, used to log in, or set as a new password."""
    for names, introduces in (
        (words.accounts, words.chosen),
        (words.logins, words.uses),
        (words.changes, words.onto),
    ):
        read = 0
        for found in names.finditer(data):
            start = max(read, found.start() - _MAX_DISTANCE)
            read = max(start, found.end() + _MAX_DISTANCE)
            near = data[start:read].decode("utf-8", "ignore")
            if names is words.changes and not _has_account(near.encode(), words):
                continue
            for value in _TOKEN.finditer(near):
                text = value[0].rstrip(".!?:]}…")
                gap = near[: value.start()].rstrip(_QUOTES + " ").encode()
                is_after = found.end() <= start + len(gap)
                if (
                    is_invented(text, checks)
                    and not (names is words.logins and _PRODUCT.fullmatch(text))
                    and (is_after or not _SIMPLE.fullmatch(text) or _FOR.match(near, value.end()))
                    and (introduces.search(gap) or _AFTER_NAME.search(gap))
                    and not words.others.search(introduces.sub(b"", gap).rstrip())
                ):
                    begin = data.index(text.encode(), start)
                    yield PASSWORD, begin, begin + len(text.encode())


_FOR: Final = compile_when_used(r"[`'\"]?\s+(?:for|für|fürs|para|pour|per|voor|do|dla|для)\s")


def _has_account(near: bytes, words: _NoteWords) -> bool:
    return any(each.search(near) is not None for each in (words.accounts, words.logins, words.columns))


_PRODUCT: Final = compile_when_used(r"[^\W\d_]+-[0-9]+")
"""The form of a product name next to a login, such as a browser and its version."""
_SIMPLE: Final = compile_when_used(r"[^\W\d_]+-?[0-9]+")
"""The form of a value that may also be the name and version of a product."""
_AFTER_NAME: Final = compile_when_used(
    rb"[\w.@-]\s*(?:[;|\t]|\s/)$"
    rb"|@[\w-]+\.[\w.-]+(?:\s?[,:]|\s(?:with|mit|avec|con|met|com))$"
)
"""The end of a table cell, or of a name and a slash: a value may follow."""


def is_invented(text: str, checks: ValueChecks) -> bool:
    """Return whether a word looks like a password that a person invented, such as `Summer-2024!`."""
    return (
        _INVENTED.fullmatch(text) is not None
        and _UNUSUAL.search(text) is not None
        and (checks.is_not_word(text) or _CAPITALISED.fullmatch(text) is not None)
    )


_CAPITALISED: Final = compile_when_used(r"[A-ZÀ-ÞА-Я][^\W\d_A-Z]{4,}-[0-9]{2,6}")


def _find_spelled(data: bytes, words: _NoteWords) -> Iterator[tuple[str, int, int]]:
    for found in words.spelled.finditer(data):
        near = data[max(0, found.start() - _MAX_DISTANCE) : _find_name_start(found)].decode("utf-8", "ignore")
        value = _BEFORE_REMARK.search(near)
        if value and any(map(str.isdigit, value[1])) and any(map(str.isalpha, value[1])):
            end = _find_name_start(found) - len(value[0].encode()) + len(value[1].encode())
            yield PASSWORD, end - len(value[1].encode()), end


def _find_name_start(found: Any) -> int:
    """Return the start of a matched name, without the text before it that the expression also matches."""
    return next(int(index) for index, _ in map(found.span, range(1, found.re.groups + 1)) if index >= 0)


_BEFORE_REMARK: Final = compile_when_used(
    rf"([^\s{_QUOTES},;()|<>，。、；：（）「」]{{8,64}})[{_QUOTES}]?\s*[,;(（–—-]\s*(?:[^\W\d_]+\s)?$"  # noqa: RUF001
)


def _find_in_answers(data: bytes, words: _NoteWords) -> Iterator[tuple[str, int, int]]:
    topics = (
        topic
        for topic in words.topics.finditer(data)
        if words.persons.search(data, max(0, topic.start() - _MAX_DISTANCE), topic.end() + _MAX_DISTANCE)
    )
    for found in chain(words.questions.finditer(data), topics):
        start = max(0, found.start() - _MAX_DISTANCE)
        near = data[start : found.end() + _MAX_DISTANCE].decode("utf-8", "ignore")
        start += found.start() - start - len(data[start : found.start()].decode("utf-8", "ignore").encode())
        for answer in words.answers.finditer(near.encode()):
            following = near.encode()[answer.end() :].decode("utf-8", "ignore")
            value = _ANSWER.match(following) or _find_later_answer(following, words)
            if value is None and answer[0].strip().lower() in _ENDS_OF_ANSWER:
                value = _EARLIER_ANSWER.search(near.encode()[: answer.start()].decode("utf-8", "ignore"))
            if value is not None:
                position = near.encode().find(value[1].encode())
                yield ANSWER, start + position, start + position + len(value[1].encode())
                break


def _find_later_answer(following: str, words: _NoteWords) -> re.Match[str] | None:
    """Return the answer that a verb or a mark introduces in the rest of a sentence, or None."""
    rest = _SENTENCE.split(following, maxsplit=1)[0].encode()
    values = (
        _ANSWER.match(following, len(rest[: each.end()].decode("utf-8", "ignore")))
        for each in words.equals.finditer(rest)
    )
    return next((value for value in values if value is not None), None)


_SENTENCE: Final = compile_when_used(r"[.!?]\s|\n")


def _find_in_replies(data: bytes, words: _NoteWords, checks: ValueChecks) -> Iterator[tuple[str, int, int]]:
    """Yield the secret at the start of a line, if the line before asks for a secret."""
    for question in _QUESTION.finditer(data):
        start = max(0, question.start() - _MAX_DISTANCE)
        start = max(start, data.rfind(b"\n", start, question.start()) + 1)
        if (
            words.columns.search(data, start, question.start())
            and b"token" not in data[start : question.start()]
        ):
            reply = data[question.end() : question.end() + _MAX_DISTANCE].decode("utf-8", "ignore")
            value = _REPLY.match(reply)
            text = value[1].rstrip(".!?:") if value else ""
            if (
                value
                and (text.isdigit() or _MARKED.search(text))
                and (text.isdigit() or checks.is_not_word(text))
            ):
                begin = question.end() + len(reply[: value.start(1)].encode())
                yield PASSWORD, begin, begin + len(text.encode())


_QUESTION: Final = compile_when_used(rb"[?\xef\xbc\x9f]\s*\n")
_REPLY: Final = compile_when_used(
    rf"(?:[-–>*]\s*)?(?:[^\s:：\n]{{1,24}}[:：]\s*)?(?:[^\s,:]{{1,12}}\s){{0,3}}?([^\s{_QUOTES},;()|<>，。、]{{4,64}})(?=[\s,.!;)]|$)"  # noqa: RUF001
)
_MARKED: Final = compile_when_used(r"[0-9]|\w[!#$&*+@%^~]\w")


def _find_before_brackets(
    data: bytes, words: _NoteWords, checks: ValueChecks
) -> Iterator[tuple[str, int, int]]:
    for found in words.columns.finditer(data):
        start = max(0, found.start() - _MAX_DISTANCE)
        stop = max(map(found.end, range(1, found.re.groups + 1)))
        near = data[start:stop].decode("utf-8", "ignore")
        opens = max(near.rfind("("), near.rfind("（"))  # noqa: RUF001
        if not data.startswith((b")", "）".encode()), stop):  # noqa: RUF001
            continue
        if opens < 0 or len(near[opens:].split()) > _MAX_BRACKET_WORDS or ")" in near[opens:]:
            continue
        value = list(_BRACKET.finditer(near[: opens + 1]))[-1:]
        if value and (words.equals.search(near[opens:].encode()) or is_invented(value[0][1], checks)):
            start += stop - start - len(near.encode())
            begin = start + len(near[: value[0].start(1)].encode())
            yield PASSWORD, begin, begin + len(value[0][1].encode())


_MAX_BRACKET_WORDS: Final = 6


@cache
def _load_words() -> _NoteWords:
    """Return the compiled tables of `secret_notes.toml`. Cost: reads the file once per process."""
    tables = load_package_tables("muniment.content", "secret_notes")
    words = {
        kind: sorted({w for some in table.values() for w in split_words(some)}, key=lambda w: (-len(w), w))
        for kind, table in tables.items()
    }
    ends = {"chosen", "uses", "onto", "others"}
    return _NoteWords(
        **{
            each.name: (compile_endings if each.name in ends else compile_names)(words[each.name])
            for each in fields(_NoteWords)
        }
    )
