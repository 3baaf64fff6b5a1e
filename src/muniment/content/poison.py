"""Find text that would have an agent do harm later: the gate that facts of agents wait for.

A text is cut into sentences. For each passage of two, the rules of `poison.toml` add up: a rule needs words of
several classes, of which the first one is an act that nothing negates. A passage that reaches `THRESHOLD` makes
the text wait, with the reasons of its rules.

Holds, for the words of `poison.toml`:

- P1. Case, accents, compatibility forms, invisible characters, lookalike letters, markup, escapes, spelling apart
  and the usual encodings make no difference.
- P2. A negated act does not count: "never disable TLS verification" states good practice.
- P3. Linear time: RE2, and a fixed number of passes over each text.

Does not hold: the same said in words that no rule knows. Such a text is stored with its trust and shown as data.

Attacked in tests/units/content/test_poison.py.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import unquote

from muniment.content.admission import INVISIBLE, LOOKALIKES, without_marks
from muniment.content.patterns import compiled
from muniment.kernel.path import normalised
from muniment.shipped import shipped_tables

THRESHOLD: Final = 3
"""Weight at which a passage makes its text wait."""

MAX_DECODED: Final = 16
"""Encoded parts of a text that are decoded; a text with more of them waits for that alone."""

MIN_PAIR: Final = 4
_NAME: Final = re.compile(r"[a-z][a-z0-9]+(?:[-_.][a-z0-9]+)*")
MIN_ALIKE: Final = 6
"""Letters that a part of a name has more of before it is compared with a well-known name."""

NEGATED_CHARS: Final = 30
"""Characters between a negation and a check that it negates, at most."""

CONDITION_CHARS: Final = 80
_CONDITION: Final = re.compile(r"\b(?:if|when|where|once|because|since|wenn|si|quand|se|als|если)\b[^,]*$")
_UNTIL: Final = re.compile(r",|\b(?:before|until|unless|bevor|avant|antes|prima)\b")
_OURS: Final = re.compile(r"\A(---\n(?:(?!---\n).*\n)*?)(?:type: [a-z]+|muniment: \{.*\})\n")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|[。！？]|\n\s*\n|\n(?=\s*(?:[-*+#>|]|\d+[.)]|[a-z]+:\s))")
_CLAUSE: Final = re.compile(
    r"[;:。；：]|\n\n|[.!?]\s|\s[-–—]+\s|\b(?:but|instead,|however|except|yet|aber|sondern|sauf|mais|pero|sino|mas|maar|behalve|ma)\b"
    r"|\bonly if\b|但|而是|ただし|но |кроме"
)
_WORD: Final = re.compile(r"\w+")
_APART: Final = re.compile(r"(?<!\w)(?:[^\W\d_][ ._\-·•*|]{1,2}){7,}[^\W\d_](?!\w)")
_GLUE: Final = re.compile(r"""''|""|\\(?=[a-z/.:-])|<[^<>\n]{0,80}>|\*\*|__|~~""")
_TAG_ENDS: Final = re.compile(r"<!--|-->|`")
_MIXED: Final = re.compile(r"[^\W\d_]+")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_HEX: Final = re.compile(r"(?:(?:\\x|0x|%)?[0-9A-Fa-f]{2}[ ,:]?){10,}")
_PERCENT: Final = re.compile(r"(?:%[0-9A-Fa-f]{2}){4,}")
_ESCAPES: Final = re.compile(r"(?:\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}){4,}")
_CODES: Final = re.compile(r"(?:\d{2,3}[ ,;]+){8,}\d{2,3}")
_PROSE: Final = re.compile(r"[\w\s.,:;/'\"|&$<>(){}\[\]=?!@#%*+~^\\-]+", re.ASCII)

_HOST: Final = re.compile(
    r"(?:[a-z][a-z0-9+.-]*://(?:[^\s/@]*@)?(?P<url>\[[0-9a-f:]+\]|[^\s/:\"'<>)\]}|,]+))"
    r"|(?P<mail>[a-z0-9._%+-]+@[a-z0-9-]+(?:\.[a-z0-9-]+)+)"
    r"|(?P<ip>\b\d{1,3}(?:\.\d{1,3}){3}\b)"
    r"|(?P<name>(?<![\w./@-])(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+(?:com|net|org|io|dev|app|xyz|example|test|invalid|co|ru|cn|info|biz"
    r"|cloud|site|online|top|me|gg|ai|tech|tools|link|pw|cc|tk|de|fr|es|it|pt|nl|jp|uk|eu|us|ch|at|be|se|no|fi|dk|pl|cz|in|br|kr|gov|edu"
    r"|host|page|store|space|live|pro|network|systems|support|services|software|download|zip|onion)\b(?![\w-]|\.\w))"
    r"|(?<![:\w/])//(?P<bare>[a-z0-9-]+(?:\.[a-z0-9-]+)+)"
    r"|(?<![\w@.])@(?P<at>[a-z0-9-]+(?:\.[a-z0-9-]+)+)"
    r"|(?P<path>(?<![\w./@-])(?:[a-z0-9-]+\.)+[a-z]{2,}/\S+)"
)
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"'<>)\]}|,]+|[a-z0-9._%+-]+@[a-z0-9-]+(?:\.[a-z0-9-]+)+")
_LOCAL: Final = re.compile(
    r"localhost|127\.|0\.0\.0\.0|10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|\[?::1|host\.docker\.internal|\$|\{|<"
)
_INNER: Final = re.compile(r"\.(?:internal|corp|lan|intra|intranet|local|home|localdomain)$")
_KNOWN: Final = re.compile(
    r"(?:.*\.)?(?:pypi\.org|npmjs\.(?:org|com)|crates\.io|rubygems\.org|golang\.org|maven\.org|docker\.(?:io|com)|nodejs\.org"
    r"|python\.org|debian\.org|ubuntu\.com|rust-lang\.org|kubernetes\.io|brew\.sh|postgresql\.org)"
)
_FILE: Final = re.compile(r".*\.(?:md|py|js|ts|tsx|jsx|rs|go|rb|sh|toml|json|ya?ml|txt|lock|cfg|ini|html|css|sql|java|kt|php|cs|c|h|cpp)")


@dataclass(frozen=True, slots=True)
class _Rule:
    id: str
    reason: str
    weight: int
    classes: tuple[tuple[str, ...], ...]
    near: int
    is_negated: bool
    is_context: bool
    unless: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a passage.

    Attributes:
        rules: the rules that it meets, the heaviest first.
        reason: the same in words.
    """

    rules: tuple[str, ...]
    reason: str


def find_poison(text: str) -> Finding | None:
    """Return why `text` has to wait for its owner, or None.

    Args:
        text: a fact, or a whole entry. The line that this program stamped is left out.

    Cost: about 1 ms for a sentence.
    """
    worst: tuple[int, Finding] | None = None
    for view, extra in _views(_OURS.sub(r"\1", _OURS.sub(r"\1", text))):
        sentences = [each for each in _SENTENCE.split(view) if each.strip()]
        for first, second in zip(sentences, [*sentences[1:], ""], strict=True):
            found = _weigh(first, second, extra)
            if found is not None and (worst is None or found[0] > worst[0]):
                worst = found
    return None if worst is None else worst[1]


# -- passages ----------------------------------------------------------------------------------------


def _weigh(first: str, second: str, extra: frozenset[str]) -> tuple[int, Finding] | None:
    passage = f"{first}\n\n{second}" if second else first
    seen = _Passage(passage, extra)
    met = [rule for rule in _rules() if seen.meets(rule)]
    acts = [rule for rule in met if not rule.is_context]
    context = [rule.weight for rule in met if rule.is_context]
    weight = sum(rule.weight for rule in acts)
    weight += max([0, *context]) + min([0, *context])
    if acts and weight >= THRESHOLD:
        acts.sort(key=lambda rule: -rule.weight)
        reasons = dict.fromkeys(rule.reason for rule in acts)
        return weight, Finding(tuple(rule.id for rule in acts), ", ".join([*reasons][:3]))
    return None


class _Passage:
    """Two sentences, and where each class of words is found in them."""

    def __init__(self, text: str, extra: frozenset[str]) -> None:
        self._text = text
        self._words = _URL.sub(lambda found: "¤" * len(found[0]), text)
        self._extra = extra
        self._found: dict[str, tuple[tuple[int, int], ...]] = {}

    def spans(self, name: str) -> tuple[tuple[int, int], ...]:
        """Where words of a class are."""
        found = self._found.get(name)
        if found is None:
            if name == "host":
                found = tuple(_hosts(self._text))
            elif name == "url":
                found = tuple(each for each in self.spans("host") if "@" not in self._text[slice(*each)])
            elif name == "alike":
                found = tuple(_alike(self._text))
            elif name == "pair":
                found = tuple(_pairs(self._text))
            elif name in ("decoded", "spelled_apart"):
                found = ((0, 0),) if name in self._extra else ()
            else:
                words, patterns = _classes()[name]
                found = tuple(
                    each.span()
                    for where, text in ((words, self._words), (patterns, self._text))
                    if where is not None
                    for each in where.finditer(text)
                )
            self._found[name] = found
        return found

    def meets(self, rule: _Rule) -> bool:
        """Whether each class is there, and the act is not negated (or is, if it has to be)."""
        if rule.unless is not None and self.spans(rule.unless):
            return False
        act, *others = rule.classes
        places = [[span for name in names for span in self.spans(name)] for names in others]
        if not all(places):
            return False
        for name in act:
            for span in self.spans(name):
                if not all(any(_apart(span, other) for other in spans) for spans in places):
                    continue
                if rule.near and not all(any(_within(span, other, rule.near) for other in spans) for spans in places):
                    continue
                if (rule.is_context and rule.weight > 0) or self._is_negated(span, rule) == rule.is_negated:
                    return True
        return False

    def _is_negated(self, span: tuple[int, int], rule: _Rule) -> bool:
        start, end = span
        begin = max((each.end() for each in _CLAUSE.finditer(self._text, 0, start)), default=0)
        negators = [each for each in self.spans("not") if begin <= each[0] and each[1] <= start]
        if rule.is_negated:
            near = [self._text[each[1] : start] for each in negators if start - each[1] <= NEGATED_CHARS]
            return len(negators) % 2 == 1 and any(not _UNTIL.search(each) for each in near)
        negators = [each for each in negators if not self._is_over(each[1], start)]
        if len(negators) % 2 == 1:
            return True
        stop = next((each.start() for each in _CLAUSE.finditer(self._text, end)), len(self._text))
        return any(end <= each[0] < min(stop, end + 90) for each in self.spans("forbidden"))

    def _is_over(self, end: int, start: int) -> bool:
        """Whether a clause of its own stands between a negation and an act, so that the act is not negated."""
        between = self._text[end:start]
        head, comma, tail = between.rpartition(",")
        if comma and _CONDITION.search(self._text[max(0, end - CONDITION_CHARS) : end]):
            return True
        return bool(comma) and len(_WORD.findall(tail)) <= 2 and len(_WORD.findall(head)) >= 3 and not head.startswith(",")  # noqa: PLR2004


def _apart(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[1] <= other[0] or other[1] <= one[0]


def _within(one: tuple[int, int], other: tuple[int, int], near: int) -> bool:
    return max(one[0], other[0]) - min(one[1], other[1]) <= near


def _hosts(text: str) -> Iterator[tuple[int, int]]:
    """Hosts that are not of this machine or network, and not a well-known registry."""
    for found in _HOST.finditer(text):
        name = found["url"] or (found["mail"] or "").partition("@")[2] or found["ip"] or found["name"] or found["bare"] or found["at"] or found["path"].partition("/")[0]
        if _LOCAL.match(name) or _INNER.search(name) or _KNOWN.fullmatch(name):
            continue
        if found["path"] and _FILE.fullmatch(name):
            continue
        yield found.span()


def _alike(text: str) -> Iterator[tuple[int, int]]:
    """Names that differ by one letter from that of a package that everybody knows."""
    if not any(_classes()[name][0].search(text) for name in ("install", "package", "swapped")):
        return
    for found in re.finditer(r"[a-z][a-z0-9_.-]{4,30}[a-z0-9]", text):
        whole = found[0].replace("_", "-")
        words = {whole, *(each for each in whole.split("-") if len(each) > MIN_ALIKE)} - _popular()
        if whole not in _popular() and any(_is_one_off(word, each) for word in words for each in _popular()):
            yield found.span()


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    """Names of packages that are another name of the text with something before or behind it."""
    if not _classes()["package"][0].search(text) and not _classes()["install"][0].search(text):
        return
    names = {each[0] for each in _NAME.finditer(text)}
    for found in re.finditer(r"[a-z][a-z0-9]+(?:[-_.][a-z0-9]+)+", text):
        parts = re.split(r"[-_.]", found[0])
        if not _FILE.fullmatch(found[0]) and any(name in (parts[0], parts[-1]) for name in names - {found[0]} if len(name) >= MIN_PAIR):
            yield found.span()


def _is_one_off(one: str, other: str) -> bool:
    """Whether one letter was added, left out, replaced or swapped with its neighbour."""
    if abs(len(one) - len(other)) > 1 or one[0] != other[0]:
        return False
    at = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))
    a, b = one[at:], other[at:]
    return a[1:] == b or a == b[1:] or a[1:] == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


# -- views -------------------------------------------------------------------------------------------


def _views(text: str) -> Iterator[tuple[str, frozenset[str]]]:
    """The spellings of a text, folded, each with what was hidden in it."""
    raw = INVISIBLE.sub("", normalised("NFKC", text))
    raw = html.unescape(raw) if "&" in raw else raw
    plain = _TAG_ENDS.sub(" ", raw)
    views = dict.fromkeys([plain, _GLUE.sub("", plain).replace("${IFS}", " ")])
    for view in views:
        yield _fold(view), frozenset()
    for decoded in _decoded(raw):
        yield _fold(decoded), frozenset({"decoded"})
    for found in _APART.finditer(raw):
        yield _fold(re.sub(r"[ ._\-·•*|]", "", found[0])), frozenset({"spelled_apart"})
    if "rot13" in raw.casefold():
        yield _fold(raw.translate(_ROT13)), frozenset()
    if re.search("revers|backward", raw, re.IGNORECASE):
        yield _fold(raw[::-1]), frozenset()


_UPPER: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ROT13: Final = str.maketrans(
    _UPPER + _UPPER.lower(), _UPPER[13:] + _UPPER[:13] + _UPPER[13:].lower() + _UPPER[:13].lower()
)


def _fold(text: str) -> str:
    """`text` without case, accents and lookalikes in words that mix alphabets; lines that were wrapped are joined."""
    text = without_marks(text.replace("’", "'").replace("\r\n", "\n"))
    return text if text.isascii() else _MIXED.sub(_latin, text)


def _latin(found: re.Match[str]) -> str:
    word = found[0]
    latin = word.translate(LOOKALIKES)
    return latin if latin.isascii() and not word.isascii() and re.search("[a-z]", word) else word


def _decoded(text: str) -> Iterator[str]:
    """What encoded parts of a text say, as far as it is text."""
    for number, found in enumerate(_BASE64.finditer(text)):
        if number >= MAX_DECODED:
            break
        part = found[0].replace("-", "+").replace("_", "/").rstrip("=")
        with_padding = part + "=" * (-len(part) % 4)
        try:
            yield from _if_prose(base64.b64decode(with_padding, validate=True))
        except binascii.Error:
            continue
    for found in _HEX.finditer(text):
        digits = re.sub(r"\\x|0x|[ ,:%]", "", found[0])
        yield from _if_prose(bytes.fromhex(digits[: len(digits) // 2 * 2]))
    for found in _PERCENT.finditer(text):
        yield from _if_prose(unquote(found[0]).encode())
    for found in _ESCAPES.finditer(text):
        yield from _if_prose("".join(chr(int(each, 16)) for each in re.findall(r"[0-9A-Fa-f]{2,4}", found[0])).encode())
    for found in _CODES.finditer(text):
        codes = [int(each) for each in re.findall(r"\d+", found[0])]
        if max(codes) < 127:  # noqa: PLR2004
            yield from _if_prose(bytes(codes))


def _if_prose(data: bytes) -> Iterator[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    letters = sum(map(str.isalpha, text))
    if len(text) >= 8 and letters >= len(text) / 2 and text.isprintable() and re.search(r"[\s/:.]", text) and _PROSE.fullmatch(text):  # noqa: PLR2004
        yield text


# -- tables ------------------------------------------------------------------------------------------


@cache
def _tables() -> Mapping[str, Any]:
    return shipped_tables("muniment.content", "poison")


@cache
def _popular() -> frozenset[str]:
    return frozenset(_tables()["popular"]["packages"].split())


@cache
def _rules() -> tuple[_Rule, ...]:
    return tuple(
        _Rule(
            table["id"],
            table["reason"],
            table["weight"],
            tuple(tuple(names.split("|")) for names in table["all"]),
            table.get("near", 0),
            table.get("negated", False),
            table.get("context", False),
            table.get("unless"),
        )
        for table in _tables()["rule"]
    )


@cache
def _classes() -> Mapping[str, tuple[Any, Any]]:
    """By class, what finds its words outside addresses, and its patterns anywhere."""
    words, patterns = _tables()["words"], _tables()["patterns"]
    return {
        name: (_any(_sources(words.get(name, ""))), _any(f"(?:{each})" for each in patterns.get(name, ())))
        for name in {*words, *patterns}
    }


def _any(sources: Iterable[str]) -> Any:
    source = "|".join(sources)
    return compiled(source) if source else None


def _sources(words: str) -> Iterator[str]:
    """An expression for all Latin words of a class, and one for all others."""
    entries = [without_marks(each.strip()) for each in words.replace("\n", " ").split(",") if each.strip()]
    latin = [each for each in entries if each.isascii()]
    others = [each for each in entries if not each.isascii()]
    if latin:
        yield "|".join(_bounded(each) for each in sorted(latin, key=len, reverse=True))
    if others:
        yield "|".join(re.escape(each) for each in sorted(others, key=len, reverse=True))


def _bounded(entry: str) -> str:
    body = re.escape(entry).replace(r"\*", "[a-z]*").replace(r"\ ", r"\s+").replace("'", "'?")
    before = r"\b" if entry[0].isalnum() else ""
    after = r"\b" if entry[-1].isalnum() or entry[-1] == "*" else ""
    return f"{before}{body}{after}"
