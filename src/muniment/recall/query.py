"""What a message asks of the memory: its words that say something, each once. Pure but for the stemmer.

- Q1. No syntax of the full-text search comes from a message: every word is one that the tokenizer cut.
- Q2. Left out are single characters, stop words, and words of talk that are about no subject (`please`,
  `谢谢`).
- Q3. Weak words rank what others found, and find nothing themselves: words of two letters, words that stand
  in any message to a coding agent (`file`), and pairs of Hiragana, which are endings more often than words.
- Q4. What is written as one name (`10.42.7.19`, `snake_case`, `src/app.py`) is asked for as a phrase, too,
  if one of its parts says something, or is a number.
- Q5. Common words (`two`, `begin`, `after`) find and rank, and tell no subject: what holds no other word of a
  message is not what it is about.
- Q6. Linear time. Of a long message only the beginning and the end are looked at, `_END_CHARS` of each; of
  many words the first and the last, `MAX_WORDS` in all: what is asked stands there, what was pasted stands
  between.

Attacked in tests/recall/test_query.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from muniment.content.words import STOP_WORDS
from muniment.recall.stems import Stemmer, Term
from muniment.store.rows import folded

MAX_WORDS: Final = 48
"""Words of a message that are looked up, phrases included; each costs some 10 µs."""

_MIN_CHARS: Final = 2
_WEAK_CHARS: Final = 2
_PAIR: Final = 2
_MAX_PHRASES: Final = 4
_MAX_PHRASE_WORDS: Final = 16
"""Of a phrase; an address, a path or a date with its time has fewer."""

_END_CHARS: Final = 2_000

_ENGLISH_TALK: Final = """
about above again ain all also always am any anybody anyone anything around ask away back because before
being below best better both but bye can cannot cheers come continue could couldn't did didn do does doesn
doing don done each either else enough even ever every few further get gets getting give given go goes
going gone good got great haven having hello help here hey hi him himself how however just keep know let
lets like ll long look looks lot made make makes many may maybe mean might mine more most much must myself
need needs never nice no none nor not nothing now off often oh ok okay once one only other others ought
out over own perfect perhaps please put quite rather re really right said same say says see seem shall
should show since some something soon sorry still stuff such sure take tell than thank thanks then there
thing things think though through too try under until up upon us use used using ve very want wanted wants
way welcome well what whatever when where whether which while who whole whom whose why work works would
wouldn write yeah yes yet
"""
_GERMAN_TALK: Final = "bitte danke hallo ich ist nicht oder wie was wir auf"  # codespell:ignore ist,oder
_OTHER_TALK: Final = """
bonjour merci oui non pas vous nous je tu ce
hola gracias por favor qui como
ciao grazie ola obrigado obrigada
"""
_PAIRS_OF_TALK: Final = """
你好 谢谢 什么 怎么 怎样 为什 么样 我们 你们 他们 请问 可以 一下 一个 这个 那个 哪个 哪些 哪里 没有 不是
就是 是不 的时 时候 继续 帮我 我的 你的 知道 告诉 好的 现在 今天
です ます した して する ない から まで こと もの それ これ どれ どこ なに なん でしょ しょう よう
くだ ださ さい あり りが がと とう こん んに にち ちは お願 願い いし しま ませ せん 助か まし たか すか
のは には では
입니 니다 습니 합니 해요 세요 주세 어요 아요 나요 까요 안녕 녕하 하세 감사 무엇 어떻 떻게 어디 언제 누구
그리 리고 있어 있는
"""
_TALK: Final = frozenset(
    f"{_ENGLISH_TALK}{_GERMAN_TALK}{_OTHER_TALK}{_PAIRS_OF_TALK}".replace("'", " ").split()
)
"""As the tokenizer cuts them: without accents; of scripts without spaces, pairs."""

_WEAK_WORDS: Final = (
    "user users file files folder code program programs function class script app data line lines"
)
_WEAK: Final = frozenset(_WEAK_WORDS.split())

_COMMON_WORDS: Final = """
zero two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred thousand
million first second third fourth fifth last next final half quarter double single number numbers count
sum total minute hour day week month year time today tomorrow yesterday morning evening night early
earlier late later after during within without between beside behind across along against near among
toward towards old new young big small large little short tall high low full empty hard easy fast slow
quick quickly simple different same similar certain possible important main real true false sure whole
entire general ready free open close closed early clear able plain common usual various begin start stop
stay end finish finished learn play find found lose call turn move hold bring happen happened leave left
feel felt seem read run add set follow following change become grow stand suggest recommend describe
answer reply question wonder guess consider decide understand believe remember hope expect like love hate
prefer enjoy agree word words name title part piece kind type sort side top bottom point case fact reason
problem example person people man woman men women child children guy group list step place area lower
higher upper longer shorter better worse less bit pair set amount size length level
"""
_COMMON: Final = frozenset(_COMMON_WORDS.split())
"""English words that tell no subject by themselves, though they may narrow one (Q5)."""
_Item = TypeVar("_Item")

_GREETING: Final = re.compile(r"\bgood (?:morning|afternoon|evening|night|day)\b")
_HIRAGANA: Final = re.compile("[\u3041-\u309f]+")
# From the beginning of a word alone: else a long one is gone through once for each of its letters.
_NAME: Final = re.compile(r"(?<![^\W_])[^\W_]+(?:[._/:@#-]+[^\W_]+)+")
_IS_ONE_NAME: Final = re.compile(r"[0-9._/:@#]")
_SYMBOL: Final = re.compile(r"[^\w\x00-\x7f\u0300-\u036f]")
"""What parts words: also an emoji that SQLite's older Unicode does not know, and takes for a letter."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word that is looked up, or a phrase.

    Attributes:
        text: without case and accents; the words of a phrase have a space between them.
        stem: what the full-text rows know it by; of a phrase, likewise of its words.
        is_weak: whether it finds nothing by itself (Q3).
        goes_on: whether it shares a character with the strong word before it, as pairs of one word do.
        is_common: whether it tells no subject by itself (Q5).
    """

    text: str
    stem: str
    is_weak: bool = False
    goes_on: bool = False
    is_common: bool = False

    @property
    def is_phrase(self) -> bool:
        """Whether it is one (Q4)."""
        return " " in self.text


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked up: at most `MAX_WORDS` words, in their order; none: nothing is asked."""

    words: tuple[Word, ...]


def read_query(text: str, stemmer: Stemmer) -> Query:
    """The query that a message is (Q1 to Q6).

    Args:
        text: any.
        stemmer: stays the caller's.

    Cost: 0.2 ms for a sentence, some ms for a message of any length.
    """
    if len(text) > 2 * _END_CHARS:
        text = f"{text[:_END_CHARS]} {text[-_END_CHARS:]}"
    plain = _GREETING.sub(" ", folded(text))
    phrases = tuple(_phrases(plain, stemmer))
    words = tuple(_words(stemmer.terms(_SYMBOL.sub(" ", plain))))
    first, last = _ends(words, MAX_WORDS - len(phrases))
    if last:
        last = (replace(last[0], goes_on=False), *last[1:])
    return Query((*phrases, *first, *last))


def units(words: Iterable[Word]) -> int:
    """As how many words some strong ones count: of pairs that share characters every other, a phrase two."""
    count = run = 0
    for word in words:
        run = run + 1 if word.goes_on else 1
        count += 2 if word.is_phrase else run % 2
    return count


def _phrases(plain: str, stemmer: Stemmer) -> Iterator[Word]:
    names = dict.fromkeys(name[0] for name in _NAME.finditer(plain) if _IS_ONE_NAME.search(name[0]))
    first, last = _ends(tuple(names), _MAX_PHRASES)
    for name in (*first, *last):
        terms = stemmer.terms(name)
        if 1 < len(terms) <= _MAX_PHRASE_WORDS and any(map(_tells, terms)):
            yield Word(" ".join(term.word for term in terms), " ".join(term.stem for term in terms))


def _words(terms: Sequence[Term]) -> Iterator[Word]:
    seen: set[str] = set()
    before = ""
    for term in terms:
        word, stem = term
        if _says_nothing(word) or stem in seen:
            before = ""
            continue
        seen.add(stem)
        is_weak = _is_weak(word)
        goes_on = not is_weak and _overlap(before, word)
        yield Word(word, stem, is_weak=is_weak, goes_on=goes_on, is_common=bool({word, stem} & _COMMON))
        before = "" if is_weak else word


def _ends(items: tuple[_Item, ...], limit: int) -> tuple[tuple[_Item, ...], tuple[_Item, ...]]:
    """The first and the last of some things, `limit` in all; where they are no more, the first are all."""
    if len(items) <= limit:
        return items, ()
    half = limit // 2
    return items[: limit - half], items[len(items) - half :]


def _says_nothing(word: str) -> bool:
    """Whether a word is left out (Q2)."""
    return len(word) < _MIN_CHARS or word in STOP_WORDS or word in _TALK


def _tells(term: Term) -> bool:
    """Whether a part of a name tells it from `e.g.` and `and/or` (Q4)."""
    return term.word.isdigit() or not _says_nothing(term.word)


def _overlap(first: str, second: str) -> bool:
    """Whether two words are neighbouring pairs of one run of characters."""
    return len(first) == len(second) == _PAIR and first[1] == second[0] and not second.isascii()


def _is_weak(word: str) -> bool:
    """Whether a word finds nothing by itself (Q3)."""
    is_short = len(word) <= _WEAK_CHARS and word.isascii()
    return is_short or word in _WEAK or _HIRAGANA.fullmatch(word) is not None
