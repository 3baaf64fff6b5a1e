"""Select the words of a title that a file name consists of.

A name repeats the subject of a fact, not its values: "The API port is 8080" gives `api-port`. Values change
often, and a name is replaced when the text no longer has its words.

- M1. The first sentence counts whose words carry meaning.
- M2. Function words of the title's language are left out. A word with a capital inside a sentence is a name
  and stays.
- M3. Numbers with their units, dates, times and versions are left out. A number stays if it distinguishes a
  subject ("Invoice 17 is paid"), or if it is denied ("not on Tuesdays").
- M4. At most three words after "is" or a similar word are left out, if they end the sentence, and if at least
  two words precede them that carry meaning and are not all names.
- M5. Words that deny something stay, except in case M4. After a comma they end the name ("on Mondays, not on
  Tuesdays").
- M6. If no word is left, the title gives all its words.

Separate from `titles.py`, because these rules and their tables are used for file names only.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from muniment.content.expressions import compile_when_used
from muniment.content.function_words import choose_languages, load_function_word_tables
from muniment.content.words import is_word_character
from muniment.files import load_package_tables
from muniment.kernel.normal_forms import normalise
from muniment.kernel.path import BLANKS, CONFUSABLES, fold

_MIN_SUBJECT: Final = 2
_MAX_VALUE: Final = 3
"""Minimum number of words before a copula, and maximum number after it (rule M4)."""

_MIN_RUN: Final = 4
_MIN_RUN_SUBJECT: Final = 3
_MAX_RUN_VALUE: Final = 8
"""The same in characters, for scripts without spaces."""

_ASCII_SIGNS: Final = str.maketrans(
    {
        "\u2019": "'",
        **dict.fromkeys("\u2013\u2014", "-"),
        **dict.fromkeys("\u3002\uff01\uff1f\uff1b\u0964\u061f\u061b", ". "),
        **dict.fromkeys("\uff0c\u3001\u060c", ", "),
    }
)
"""ASCII signs for others: an expression with such signs takes milliseconds to compile."""

_SENTENCE_END: Final = compile_when_used(r"(?<=[.!?;])\s+|\s+-\s+")
_RUNNING_RANGES: Final = ("\u0e00\u0eff", "\u1000\u109f", "\u1780\u17ff", "\u3041\u30ff", "\u3400\u9fff")
"""First and last characters of scripts without spaces."""

_ELISION: Final = compile_when_used(r"(?<!\w)([^\W\d_]{1,5})'(\w+)")
_RUNNING_LANGUAGES: Final = ("zh", "ja", "th")
_MIN_FILLED: Final = 3
_INDEX_CHARS: Final = 3
_MAX_CONTRACTED: Final = 2
"""Maximum length of an elided article (`d'été`), and of a verb after an apostrophe (`they've`)."""

_CONTRACTED_NOT: Final = ("n't", "n't,")
_ASCII_WORD: Final = compile_when_used("[A-Za-z0-9]+")
_BREAK: Final = (",", ";", ":")


class _Forms(NamedTuple):
    """A set of words and beginnings of words.

    Attributes:
        words: the complete words.
        beginnings: the beginnings, by their first `_INDEX_CHARS` characters.
    """

    words: frozenset[str]
    beginnings: Mapping[str, tuple[str, ...]]

    @classmethod
    def from_line(cls, line: str) -> _Forms:
        """Return the words of a line of the tables; a beginning ends in `*`."""
        words, beginnings = set[str](), defaultdict[str, tuple[str, ...]](tuple)
        for word in set(fold(line).split()):
            if word.endswith("*"):
                beginnings[word[:_INDEX_CHARS]] += (word[:-1],)
            else:
                words.add(word)
        return cls(frozenset(words), dict(beginnings))

    def has_form(self, key: str) -> bool:
        """Return whether a folded word is in the set."""
        return key in self.words or key.startswith(self.beginnings.get(key[:_INDEX_CHARS], ()))


class _NameTables(NamedTuple):
    """The tables of `name_words.toml`, compiled, and the function words.

    Attributes:
        digits: matches a number with its unit, such as `v4`, `10:30` or `16GB`.
        dates: words for days, months and times.
        numbers: the number words, by language.
        units: words for units.
        denials: words that deny something.
        changes: words that only state that a fact is new.
        languages: the names of the languages, the largest first.
        functions: the languages of each function word.
        copulas: the words between a subject and its value, by language.
        running_values: finds values in scripts without spaces.
        running_copulas: finds copulas in scripts without spaces.
        prepositions: words that do not end a name.
        particles: finds particles at the beginning and end of a part of such a text.
    """

    digits: re.Pattern[str]
    dates: _Forms
    numbers: Mapping[str, frozenset[str]]
    units: _Forms
    denials: _Forms
    changes: frozenset[str]
    languages: Sequence[str]
    functions: Mapping[str, Sequence[str]]
    copulas: Mapping[str, frozenset[str]]
    running_values: re.Pattern[str]
    running_copulas: re.Pattern[str]
    prepositions: frozenset[str]
    particles: re.Pattern[str]


class _Token(NamedTuple):
    """A word of a title.

    Attributes:
        text: the word in NFKC.
        key: the word, folded.
        is_number: whether the word is a number.
        is_value: whether the word is a number, a date or a unit.
        is_denial: whether the word denies something.
        is_name: whether the word has a capital inside a sentence.
        ending: the comma, semicolon or colon that follows; otherwise empty.
    """

    text: str
    key: str
    is_number: bool
    is_value: bool
    is_denial: bool
    is_name: bool
    ending: str


def select_name_words(title: str, max_words: int, max_chars: int) -> list[str]:
    """Return the words of a title that carry meaning, in order; all words if none does.

    The last word is not a preposition, nor a word that denies words after it, if others remain.

    Args:
        title: the title.
        max_words: the maximum number of words.
        max_chars: the maximum length of the words with a character between them. If less than a third of it
            would remain without the last word, that word stays, and the caller must cut it.

    Cost: linear. The first call reads two tables.
    """
    tables = _load_tables()
    sentences = _SENTENCE_END.split(title if title.isascii() else title.translate(_ASCII_SIGNS))
    found = (words for sentence in sentences if (words := _select_words(sentence)))
    if not (distinct_words := list({fold(word): word for word in next(found, [])}.values())):
        distinct_words = find_words(title)
    words = distinct_words[:max_words]
    while words[1:] and (
        len("-".join(words)) > max_chars < _MIN_FILLED * len("-".join(words[:-1]))
        or fold(words[-1]) in tables.prepositions
        or (tables.denials.has_form(fold(words[-1])) and len(words) < len(distinct_words))
    ):
        words.pop()
    return words


def find_words(text: str) -> list[str]:
    """Return runs of word characters in NFKC, each beginning with a letter or digit."""
    if text.isascii():
        return _ASCII_WORD.findall(text.replace("'", ""))
    spaced = "".join(
        char if is_word_character(char) and char not in BLANKS and char not in CONFUSABLES else " "
        for char in normalise("NFKC", text.replace("'", "").replace("\u2019", ""))
    )
    runs = (_strip_leading_marks(run) for run in spaced.split())
    return [run for run in runs if run]


def is_mark(char: str) -> bool:
    """Return whether a character is a combining mark."""
    return unicodedata.category(char).startswith("M")


@cache
def _load_tables() -> _NameTables:
    tables, words = load_package_tables("muniment.content", "name_words"), load_function_word_tables()
    prepositions = fold(words["beside"]["words"]).split()
    particles = [each.strip() for name in _RUNNING_LANGUAGES for each in words["running"][name].split(",")]
    long_particles = "|".join(each for each in particles if len(each) > 1)
    functions = defaultdict[str, list[str]](list)
    for language, line in words["words"].items():
        for word in set(fold(line).split()):
            functions[word].append(language)
    for word in prepositions:
        functions.pop(word, None)
    return _NameTables(
        compile_when_used(tables["number"]),
        _Forms.from_line(tables["dates"]),
        _split_lines(tables["numbers"]),
        _Forms.from_line(tables["units"]),
        _Forms.from_line(tables["denials"]),
        frozenset(fold(tables["changes"]).split()),
        tuple(words["words"]),
        functions,
        _split_lines(tables["copulas"]),
        compile_when_used(tables["running_values"]),
        compile_when_used(tables["running_copulas"]),
        frozenset([*prepositions, *fold(tables["endings"]).split()]),
        compile_when_used(rf"\A(?:{long_particles})+|(?:{'|'.join(particles)})+\Z"),
    )


def _split_lines(table: Mapping[str, str]) -> Mapping[str, frozenset[str]]:
    """Return the words of each language."""
    return {name: frozenset(fold(line).split()) for name, line in table.items()}


def _select_words(sentence: str) -> list[str]:
    """Return the words of a sentence that carry meaning (rules M2 to M5)."""
    chunks = [(chunk, _split_chunk(chunk)) for chunk in sentence.split()]
    language = _find_language(chunks)
    tables, tokens = _load_tables(), list(_read_tokens(chunks, language))
    copulas = tables.copulas.get(language, frozenset())
    copula = next((number for number, each in enumerate(tokens) if each.key in copulas), 0)
    before = _drop_words(tokens[:copula], language, has_copula=True)
    after = _drop_words(tokens[copula:], language, has_copula=False)
    if (
        len(before) >= _MIN_SUBJECT
        and len(tokens) - copula - 1 <= _MAX_VALUE
        and not all(each.is_name or each is tokens[0] for each in before)
        and not any(each.ending for each in tokens[copula:])
    ):
        after = []
    selected = [*before, *after]
    return [word for each in selected for word in _shorten_run(each.text)]


def _drop_words(tokens: Iterable[_Token], language: str, *, has_copula: bool) -> list[_Token]:
    """Return the tokens that are neither values nor function words.

    Args:
        tokens: the words of a sentence.
        language: the language of the sentence, or "".
        has_copula: whether the words precede a copula: then a number may distinguish the subject.
    """
    tables, is_denied, found = _load_tables(), False, list[_Token]()
    previous = None
    for each in tokens:
        is_function = each.key in tables.changes or language in tables.functions.get(each.key, ())
        is_identifier = has_copula and each.is_number and bool(found) and previous is found[-1]
        is_aside = previous is not None and previous.ending == "," and bool(found)
        previous = each
        if each.is_denial and is_aside:
            break
        if each.is_denial:
            is_denied = True
        elif (is_function and not each.is_name) or (each.is_value and not (is_denied or is_identifier)):
            continue
        elif not each.is_value:
            is_denied = False
        found.append(each)
    return found


def _read_tokens(chunks: Iterable[tuple[str, list[str]]], language: str) -> Iterator[_Token]:
    """Yield the words of a sentence in order.

    Args:
        chunks: the parts of the sentence without spaces, and their words.
        language: the language of the sentence, or "".
    """
    tables, is_after_number, is_first = _load_tables(), False, True
    numbers = tables.numbers.get(language, frozenset())
    for chunk, words in chunks:
        is_number = not chunk.isalpha() and tables.digits.fullmatch(chunk) is not None
        is_after_date, ending = False, chunk[-1] if chunk.endswith(_BREAK) else ""
        for word in words:
            key = fold(word)
            is_date = (
                key in numbers
                or tables.dates.has_form(key)
                or (is_after_number and tables.units.has_form(key))
            )
            is_name = not is_first and len(word) > 1 and word[0].isupper() and not is_date
            is_denial = tables.denials.has_form(key) or (
                key.endswith("nt") and chunk.endswith(_CONTRACTED_NOT)
            )
            yield _Token(word, key, is_number, is_number or is_date, is_denial, is_name, ending)
            is_after_date, is_first = is_date, False
        is_after_number = is_number or is_after_date


def _split_chunk(chunk: str) -> list[str]:
    """Return the words of a part of a sentence without spaces.

    An elided article (`l'heure`) and a contracted verb (`it's`) are separate words, but `can't` is one word.
    """
    found = _ELISION.search(chunk)
    if found is None or found[2] == "t" or found[1] == "O" or fold(found[1]) not in _load_tables().functions:
        return find_words(chunk)
    article = found[1] if len(found[1]) > _MAX_CONTRACTED else ""
    rest = found[2] if len(found[2]) > _MAX_CONTRACTED else found[1]
    return find_words(f"{chunk[: found.start()]} {article} {rest}{chunk[found.end() :]}")


def _find_language(chunks: Iterable[tuple[str, list[str]]]) -> str:
    """Return the language to which most of the function words of a sentence belong; "" if none does.

    If several languages have equally many, the first of the table counts.

    Args:
        chunks: as for `_read_tokens`.
    """
    tables = _load_tables()
    keys = [fold(word) for chunk, words in chunks if not chunk.endswith(_CONTRACTED_NOT) for word in words]
    counts = Counter(
        name for key in keys if not tables.denials.has_form(key) for name in tables.functions.get(key, ())
    )
    chosen = choose_languages(counts)
    return next((name for name in tables.languages if name in chosen), "")


def _shorten_run(word: str) -> Iterator[str]:
    """Yield a word; a run of a script without spaces is yielded without its values (rules M3 and M4)."""
    if not _has_running_character(word):
        yield word
        return
    tables = _load_tables()
    pieces = tables.running_values.split(word)
    if len(pieces) > 1:
        pieces = [tables.particles.sub("", each) for each in pieces]
        pieces = pieces[:1] if len(pieces[0]) >= _MIN_RUN_SUBJECT else pieces
    else:
        copulas = tables.running_copulas.finditer(word)
        subjects = (
            word[: found.start()]
            for found in copulas
            if found.start() >= _MIN_RUN and len(word) - found.end() <= _MAX_RUN_VALUE
        )
        pieces = [next(subjects, word)]
    yield from find_words(" ".join(pieces))


def _has_running_character(word: str) -> bool:
    """Return whether a word has a character of a script without spaces; Hangul does not count."""
    return max(word) >= _RUNNING_RANGES[0][0] and any(
        first <= char <= last for first, last in _RUNNING_RANGES for char in word
    )


def _strip_leading_marks(run: str) -> str:
    """Return `run` without the combining marks at its beginning, which have no base character."""
    return run[next((index for index, char in enumerate(run) if not is_mark(char)), len(run)) :]
