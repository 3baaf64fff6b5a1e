r"""Find text that would make an agent do harm later, so that its owner reviews it first.

A text is split into sentences. Each sentence, and each pair of sentences, is a passage with a score. The
score is the learned score of `likeness.py` (trained on texts of independent authors) plus `RULE_SHARE` times
the weight of the rules of `poison.toml`. A rule needs words of several classes. Its first class is an act,
which counts only if it is not negated. If a passage reaches `THRESHOLD`, or its rules weigh
`ENOUGH_RULE_WEIGHT`, the text becomes a pending review. The reasons are the matched rules, or the words with
the highest weights.

Guarantees, for the words of `poison.toml` (P1 and P3 also for the learned score):

- P1. A text is found even if it is disguised. These make no difference: case, accents, compatibility forms,
  invisible characters, lookalike letters in words of mixed alphabets, markup, HTML entities, and quotes or
  backslashes inside words. Letters that are spelled apart are joined. Text in base64, hex, percent, `\x` or
  decimal codes is decoded.
- P2. A negated act does not count: "never disable TLS verification" states good practice. A negated check
  counts: "reviews are not needed". An exception or a new clause ends the range of a negation.
- P3. Linear time: RE2 or expressions that cannot backtrack far, a fixed number of passes over each text, and
  passages of at most twice `MAX_SENTENCE_CHARS`.

Not guaranteed: a text passes if neither the rules nor the training texts have its words, or if it is split
over several facts. Such a text is stored with its trust and displayed as data. Negated good practice reduces
the learned score; an attacker can use this.

Attacks on these rules are in tests/units/content/test_poison.py. The quality is measured by
benchmarks/poison.py and benchmarks/learn_poison.py.
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

from muniment.content.admission import INVISIBLE, LOOKALIKES, strip_accents
from muniment.content.frontmatter import decode_front_matter
from muniment.content.likeness import find_heaviest_words, score_passage
from muniment.content.patterns import compile_pattern
from muniment.files import load_package_tables
from muniment.kernel.normal_forms import normalise

THRESHOLD: Final = 72
"""Minimum score of a passage that needs a review; see `compute_passage_score`."""

RULE_SHARE: Final = 24
MIN_RULE_WEIGHT: Final = -3
ENOUGH_RULE_WEIGHT: Final = 4
"""`RULE_SHARE`: the score for each unit of the weight of rules.

`MIN_RULE_WEIGHT` and `ENOUGH_RULE_WEIGHT`: the bounds of that weight. At the upper bound, rules alone are
enough for a review.
"""

ENOUGH_SCORE: Final = 1_000
"""Minimum score of a passage that needs a review because of rules alone."""

MAX_REASONS: Final = 3
"""Maximum number of reasons that the owner receives for a passage."""

MAX_SENTENCE_CHARS: Final = 500
"""Maximum number of characters of a sentence; longer sentences are split."""

MIN_PASSAGE_CHARS: Final = 14
"""Minimum number of characters of a passage that is checked: it has an act and its object."""

MAX_DECODED: Final = 16
"""Maximum number of encoded parts that are decoded in a text, for each kind of encoding."""

NEGATED_CHARS: Final = 30
"""Maximum number of characters between a negation and a check that it negates."""

FORBIDDEN_CHARS: Final = 90
"""Maximum number of characters between an act and a word such as "forbidden" that negates the act."""

CONDITION_CHARS: Final = 80
"""Maximum number of characters between a word such as "if" and a negation in the same condition."""

MIN_SPELLED_APART: Final = 15
"""Minimum number of characters of words with spaces between their letters that count as hidden."""

MIN_DECODED: Final = 8
MIN_PAIRED_NAME: Final = 4
MIN_COMPARED_NAME: Final = 6
"""Minimum number of letters of decoded text, and of names and parts of names that are compared."""

_Span = tuple[int, int]

# -- expressions -------------------------------------------------------------------------------------

_GENERATED_LINE: Final = re.compile(r"\A(---\n(?:(?!---\n).*\n)*?)(?:type: [a-z]+|muniment: \{.*\})\n")
_SENTENCE: Final = re.compile(
    r"(?<=[.!?])\s+|[。！？]|\n\s*\n|\n(?=\s*(?:[-*+#>|]|\d+[.)]|[a-z]+:\s))"  # noqa: RUF001
)
_PIECE: Final = re.compile(rf".{{1,{MAX_SENTENCE_CHARS}}}(?=\s|$)|.{{{MAX_SENTENCE_CHARS}}}|.+$", re.DOTALL)
_CLAUSE: Final = re.compile(
    r"[;:。；：]|\n\n|[.!?]\s|\s[-–—]+\s|但|而是|ただし|но |кроме|\bonly if\b"  # noqa: RUF001
    r"|\b(?:but|instead,|however|except|yet|aber|sondern|sauf|mais|pero|sino|mas|maar|behalve|ma)\b"
)
_UNTIL: Final = re.compile(r",|\b(?:before|until|unless|bevor|avant|antes|prima)\b")
_WORD: Final = re.compile(r"\w+")
_NAME: Final = re.compile(r"[a-z][a-z0-9]+(?:[-_.][a-z0-9]+)*")
_LONG_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{4,30}[a-z0-9]")
_SEPARATOR: Final = re.compile(r"[-_.]")

_SPELLED_APART: Final = re.compile(r"(?<!\w)(?:[^\W\d_][ ._\-·•*|]{1,2}){3,}[^\W\d_](?!\w)")
_BETWEEN_LETTERS: Final = re.compile(r"[ ._\-·•*|]")
_GLUE: Final = re.compile(r"""''|""|\\(?=[a-z/.:-])|<[^<>\n]{0,80}>|\*\*|__|~~""")
_TAG_ENDS: Final = re.compile(r"<!--|-->|`")
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_LATIN: Final = re.compile("[a-z]")
_BACKWARDS: Final = re.compile("revers|backward", re.IGNORECASE)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_HEX: Final = re.compile(r"(?:(?:\\x|0x|%)?[0-9A-Fa-f]{2}[ ,:]?){10,}")
_PERCENT: Final = re.compile(r"(?:%[0-9A-Fa-f]{2}){4,}")
_ESCAPES: Final = re.compile(r"(?:\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}){4,}")
_CODES: Final = re.compile(r"(?:\d{2,3}[ ,;]+){8,}\d{2,3}")
_PROSE: Final = re.compile(r"[\w\s.,:;/'\"|&$<>(){}\[\]=?!@#%*+~^\\-]+", re.ASCII)
_GAP: Final = re.compile(r"[\s/:.]")
_UPPER: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ROT13: Final = str.maketrans(
    _UPPER + _UPPER.lower(), _UPPER[13:] + _UPPER[:13] + _UPPER[13:].lower() + _UPPER[:13].lower()
)

_URL: Final = re.compile(
    r"[a-z][a-z0-9+.-]{0,20}://[^\s\"'<>)\]}|,]+|[a-z0-9._%+-]{1,64}@[a-z0-9-]{1,64}(?:\.[a-z0-9-]+)+"
)
_TOP: Final = (
    "com|net|org|io|dev|app|xyz|example|test|invalid|co|ru|cn|info|biz|cloud|site|online|top|me|gg|ai|tech|tools"
    "|link|pw|cc|tk|de|fr|es|it|pt|nl|jp|uk|eu|us|ch|at|be|se|no|fi|dk|pl|cz|in|br|kr|gov|edu|host|page|store|space"
    "|live|pro|network|systems|support|services|software|download|zip|onion"
)
_HOST: Final = re.compile(
    r"[a-z][a-z0-9+.-]{0,20}://(?:[^\s/@]{0,100}@)?(?P<url>\[[0-9a-f:]+\]|[^\s/:\"'<>)\]}|,]+)"
    r"|[a-z0-9._%+-]{1,64}@(?P<mail>[a-z0-9-]{1,64}(?:\.[a-z0-9-]+)+)"
    r"|(?P<ip>\b\d{1,3}(?:\.\d{1,3}){3}\b)"
    rf"|(?P<name>(?<![\w./@-])(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+(?:{_TOP})\b(?![\w-]|\.\w))"
    r"|(?<![:\w/])//(?P<bare>[a-z0-9-]+(?:\.[a-z0-9-]+)+)"
    r"|(?<![\w@.])@(?P<at>[a-z0-9-]+(?:\.[a-z0-9-]+)+)"
    r"|(?<![\w./@-])(?P<path>(?:[a-z0-9-]+\.)+[a-z]{2,})/\S+"
)
_LOCAL: Final = re.compile(
    r"localhost|127\.|0\.0\.0\.0|10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|\[?::1|host\.docker\.internal"
    r"|\$|\{|<|.*\.(?:internal|corp|lan|intra|intranet|local|home|localdomain)$"
)
_KNOWN: Final = re.compile(
    r"(?:.*\.)?(?:pypi\.org|npmjs\.(?:org|com)|crates\.io|rubygems\.org|golang\.org|maven\.org|docker\.(?:io|com)"
    r"|nodejs\.org|python\.org|debian\.org|ubuntu\.com|rust-lang\.org|kubernetes\.io|brew\.sh|postgresql\.org)"
)
_FILE: Final = re.compile(
    r".*\.(?:md|py|js|ts|tsx|jsx|rs|go|rb|sh|toml|json|ya?ml|txt|lock|cfg|ini|html|css|sql|java|kt|php|cs|c|h|cpp)"
)


# -- findings ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PoisonRule:
    id: str
    reason: str
    weight: int
    classes: tuple[tuple[str, ...], ...]
    near: int
    is_negated: bool
    is_context: bool
    unless: str | None


@dataclass(frozen=True, slots=True)
class PoisonFinding:
    """The reason why a text needs a review.

    Attributes:
        rules: the ids of the matched rules of a passage, the heaviest first.
        reason: a description of the harm; it continues a sentence that begins with the name of the text.
    """

    rules: tuple[str, ...]
    reason: str


def find_poison(text: str) -> PoisonFinding | None:
    """Return why the owner must review `text` before it is stored; None if no review is needed.

    Args:
        text: a fact, or a complete entry; the lines that this program adds to an entry are ignored.

    Cost: about 1.5 ms for a sentence.
    """
    worst, highest = None, float(THRESHOLD)
    for passage, hidden in split_passages(text):
        score, acts = compute_passage_score(passage, hidden)
        if score >= highest:
            worst, highest = (passage, acts), score
    if worst is None:
        return None
    passage, acts = worst
    reasons = [*dict.fromkeys(rule.reason for rule in acts)][:MAX_REASONS]
    words = ", ".join(f"{each!r}" for each in find_heaviest_words(passage))
    learned = f"is similar to texts that make agents do harm (by the words {words})"
    return PoisonFinding(tuple(rule.id for rule in acts) or ("likeness",), ", ".join(reasons) or learned)


def split_passages(text: str) -> Iterator[tuple[str, str]]:
    """Yield the passages of a text to score: its sentences, and pairs of sentences, without case and accents.

    Each passage comes with the way in which it was hidden: `decoded`, `spelled_apart`, or empty.
    """
    without_generated = _GENERATED_LINE.sub(r"\1", _GENERATED_LINE.sub(r"\1", text))
    for spelling in filter(None, (without_generated, decode_front_matter(without_generated))):
        for view, hidden in _build_views(spelling):
            raw_sentences = [each for each in _SENTENCE.split(view) if each.strip()]
            sentences = [piece for each in raw_sentences for piece in _PIECE.findall(each)]
            pairs = zip(sentences, [*sentences[1:], ""], strict=False)
            # Each sentence is also checked alone, so that good practice next to it excuses nothing.
            for passage in dict.fromkeys([*("\n\n".join(filter(None, each)) for each in pairs), *sentences]):
                if len(passage) >= MIN_PASSAGE_CHARS:
                    yield passage, hidden


def compute_passage_score(passage: str, hidden: str) -> tuple[float, list[_PoisonRule]]:
    """Return the score of a passage, and the matched rules that describe an act, the heaviest first.

    Args:
        passage: a passage from `split_passages`.
        hidden: the way in which the passage was hidden, from `split_passages`.
    """
    weight, acts = compute_rule_weight(passage, hidden)
    score = score_passage(passage) + RULE_SHARE * weight
    return max(score, ENOUGH_SCORE) if weight >= ENOUGH_RULE_WEIGHT else score, acts


def compute_rule_weight(passage: str, hidden: str) -> tuple[int, list[_PoisonRule]]:
    """Return the total weight of the rules that match a passage, and those about acts, heaviest first.

    The weight is limited to the range from `MIN_RULE_WEIGHT` to `ENOUGH_RULE_WEIGHT`.

    Args:
        passage: a passage from `split_passages`.
        hidden: the way in which the passage was hidden, from `split_passages`.
    """
    risky = _RiskyPassage(passage, hidden)
    met = [rule for rule in _load_rules() if risky.matches(rule)]
    acts = sorted((rule for rule in met if not rule.is_context), key=lambda rule: -rule.weight)
    context = [rule.weight for rule in met if rule.is_context]
    # Of all context rules, only the highest positive and the lowest negative weight count.
    weight = sum(rule.weight for rule in acts) + max([0, *context]) + min([0, *context])
    if not acts and any(map(risky.negates_act, _load_rules())):
        return MIN_RULE_WEIGHT, acts
    return max(MIN_RULE_WEIGHT, min(weight, ENOUGH_RULE_WEIGHT if acts else 0)), acts


class _RiskyPassage:
    """A passage of one or two sentences, with the positions of each class of words in it."""

    def __init__(self, text: str, hidden: str) -> None:
        self._text = text
        self._words = _URL.sub(lambda found: "¤" * len(found[0]), text)
        self._found: dict[str, tuple[_Span, ...]] = {"decoded": (), "spelled_apart": ()}
        self._negated: dict[tuple[_Span, bool], bool] = {}
        if hidden:
            self._found[hidden] = ((0, 0),)

    def find_spans(self, name: str) -> tuple[_Span, ...]:
        """Return the positions of the words of a class in the passage."""
        if name not in self._found:
            self._found[name] = tuple(self._find(name))
        return self._found[name]

    def _find(self, name: str) -> Iterator[_Span]:
        match name:
            case "host":
                yield from _find_hosts(self._text)
            case "url":
                yield from (each for each in self.find_spans("host") if "@" not in self._text[slice(*each)])
            case "alike":
                yield from _find_similar_names(self._text)
            case "pair":
                yield from _find_paired_names(self._text)
            case _:
                words, patterns = _load_classes()[name]
                for expression, text in ((words, self._words), (patterns, self._text)):
                    if expression is not None:
                        yield from (each.span() for each in expression.finditer(text))

    def matches(self, rule: _PoisonRule) -> bool:
        """Return whether a rule matches the passage.

        A rule matches if words of all its classes occur, and if its first class, the act, is not negated.
        Some rules require a negated act instead.
        """
        return any(
            (rule.is_context and rule.weight > 0) or self._negates(span, rule.is_negated) == rule.is_negated
            for span in self._find_acts(rule)
        )

    def negates_act(self, rule: _PoisonRule) -> bool:
        """Return whether the act (first class) of a rule occurs, and is negated each time.

        Words of another class of the rule must occur too.
        """
        if rule.is_negated or rule.is_context:
            return False
        act, *others = rule.classes
        acts = [span for name in act for span in self.find_spans(name)]
        return (
            bool(acts)
            and any(self.find_spans(name) for names in others for name in names)
            and all(self._negates(span, is_check=False) for span in acts)
        )

    def _find_acts(self, rule: _PoisonRule) -> Iterator[_Span]:
        """Yield the positions of the act (first class) of a rule that are near words of all other classes."""
        if rule.unless is not None and self.find_spans(rule.unless):
            return
        act, *others = rule.classes
        span_groups = [[span for name in names for span in self.find_spans(name)] for names in others]
        if all(span_groups):
            for span in (each for name in act for each in self.find_spans(name)):
                if all(any(_is_near(span, other, rule.near) for other in spans) for spans in span_groups):
                    yield span

    def _negates(self, span: _Span, is_check: bool) -> bool:  # noqa: FBT001  one of two checks
        """Return whether the act at `span` is negated; the result is cached.

        Args:
            span: the position of the act.
            is_check: whether the act is a safety check, for which other rules of negation apply.
        """
        key = span, is_check
        if key not in self._negated:
            self._negated[key] = self._is_negated(*key)
        return self._negated[key]

    def _is_negated(self, span: _Span, is_check: bool) -> bool:  # noqa: FBT001  as above
        start, end = span
        begin = max((each.end() for each in _CLAUSE.finditer(self._text, 0, start)), default=0)
        negators = [each for each in self.find_spans("not") if begin <= each[0] and each[1] <= start]
        if is_check:
            near = [each[1] for each in negators if start - each[1] <= NEGATED_CHARS]
            return len(negators) % 2 == 1 and any(self._covers(each, start) for each in near)
        if len([each for each in negators if not self._is_clause_over(each[1], start)]) % 2 == 1:
            return True
        clause = next((each.start() for each in _CLAUSE.finditer(self._text, end)), len(self._text))
        stop = min(clause, end + FORBIDDEN_CHARS)
        return any(end <= each[0] < stop for each in self.find_spans("forbidden"))

    def _covers(self, end: int, start: int) -> bool:
        """Return whether a negation refers to a later check, and not to omitting the check.

        Args:
            end: the end of the negation.
            start: the start of the check.
        """
        return not _UNTIL.search(self._text[end:start]) and not any(
            end <= off[0] and off[1] <= start for off in self.find_spans("off")
        )

    def _is_clause_over(self, end: int, start: int) -> bool:
        """Return whether a clause ends between a negation and an act, so that the act is not negated.

        Args:
            end: the end of the negation.
            start: the start of the act.
        """
        head, comma, tail = self._text[end:start].rpartition(",")
        if not comma or head.startswith(","):
            return False
        conditions = [each for each in self.find_spans("condition") if end - CONDITION_CHARS <= each[0] < end]
        if any("," not in self._text[each[1] : end] for each in conditions):
            return True
        return len(_WORD.findall(head)) > 2 >= len(_WORD.findall(tail))  # noqa: PLR2004


def _is_near(one: _Span, other: _Span, near: int) -> bool:
    """Return whether two ranges do not overlap and are at most `near` characters apart (0: any distance)."""
    gap = max(one[0], other[0]) - min(one[1], other[1])
    return gap >= 0 and (near == 0 or gap <= near)


def _find_hosts(text: str) -> Iterator[_Span]:
    """Yield the positions of hosts that are neither in a local network nor a well-known package registry."""
    for found in _HOST.finditer(text):
        name = next(filter(None, found.groups()))
        is_file = found["path"] is not None and _FILE.fullmatch(name) is not None
        if not (is_file or _LOCAL.match(name) or _KNOWN.fullmatch(name)):
            yield found.span()


def _is_about_packages(text: str) -> bool:
    return any(
        _load_classes()[name][0].search(text) is not None for name in ("install", "package", "swapped")
    )


def _find_similar_names(text: str) -> Iterator[_Span]:
    """Yield the positions of names that differ by one letter from the name of a popular package."""
    if not _is_about_packages(text):
        return
    known = _load_popular_packages()
    for found in _LONG_NAME.finditer(text):
        name = found[0].replace("_", "-")
        words = {name, *(each for each in name.split("-") if len(each) > MIN_COMPARED_NAME)} - known
        if name not in known and any(_differs_by_one_letter(word, each) for word in words for each in known):
            yield found.span()


def _find_paired_names(text: str) -> Iterator[_Span]:
    """Yield the positions of package names that begin or end with another name in the text."""
    if not _is_about_packages(text):
        return
    names = {each[0] for each in _NAME.finditer(text) if len(each[0]) >= MIN_PAIRED_NAME}
    for found in _NAME.finditer(text):
        parts = _SEPARATOR.split(found[0])
        if len(parts) > 1 and not _FILE.fullmatch(found[0]) and {parts[0], parts[-1]} & (names - {found[0]}):
            yield found.span()


def _differs_by_one_letter(one: str, other: str) -> bool:
    """Return whether one letter was added, removed, replaced or swapped with the next one."""
    if abs(len(one) - len(other)) > 1 or one[0] != other[0]:
        return False
    shorter = min(len(one), len(other))
    position = next((position for position in range(shorter) if one[position] != other[position]), shorter)
    a, b = one[position:], other[position:]
    return a[1:] == b or a == b[1:] or a[1:] == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


# -- views -------------------------------------------------------------------------------------------


def _build_views(text: str) -> Iterator[tuple[str, str]]:
    """Yield the spellings of a text to check, folded, each with the way in which it was hidden."""
    raw = INVISIBLE.sub("", normalise("NFKC", text))
    raw = html.unescape(raw) if "&" in raw else raw
    plain = _TAG_ENDS.sub(" ", raw)
    for view in dict.fromkeys([plain, _GLUE.sub("", plain).replace("${IFS}", " ")]):
        yield _fold(view), ""
    for decoded in _decode_parts(raw):
        yield _fold(decoded), "decoded"
    joined = _SPELLED_APART.sub(lambda found: _BETWEEN_LETTERS.sub("", found[0]), raw)
    if sum(len(each[0]) for each in _SPELLED_APART.finditer(raw)) >= MIN_SPELLED_APART:
        yield _fold(joined), "spelled_apart"
    if "rot13" in raw.casefold():
        yield _fold(raw.translate(_ROT13)), ""
    if _BACKWARDS.search(raw):
        yield _fold(raw[::-1]), ""


def _fold(text: str) -> str:
    """Return `text` without case, accents, and lookalike letters in words of mixed alphabets."""
    text = strip_accents(text.replace("\u2019", "'").replace("\r\n", "\n"))
    return text if text.isascii() else _LETTERS.sub(_replace_lookalikes, text)


def _replace_lookalikes(found: re.Match[str]) -> str:
    word = found[0]
    latin = word.translate(LOOKALIKES)
    return latin if latin.isascii() and not word.isascii() and _LATIN.search(word) else word


def _decode_parts(text: str) -> Iterator[str]:
    """Yield the decoded text of each encoded part of `text`, if the result is readable."""
    for found in _find_first(_BASE64, text):
        part = found.replace("-", "+").replace("_", "/").rstrip("=")
        try:
            yield from _decode_if_prose(base64.b64decode(part + "=" * (-len(part) % 4), validate=True))
        except binascii.Error:
            continue
    for found in _find_first(_HEX, text):
        digits = re.sub(r"\\x|0x|[ ,:%]", "", found)
        yield from _decode_if_prose(bytes.fromhex(digits[: len(digits) // 2 * 2]))
    for found in _find_first(_PERCENT, text):
        yield from _decode_if_prose(bytes.fromhex(found.replace("%", "")))
    for found in _find_first(_ESCAPES, text):
        codes = re.findall(r"[0-9A-Fa-f]{2,4}", found)
        yield from _decode_if_prose("".join(chr(int(each, 16)) for each in codes).encode("utf-8", "replace"))
    for found in _find_first(_CODES, text):
        yield from _decode_if_prose(bytes(int(each) & 127 for each in re.findall(r"\d+", found)))


def _find_first(expression: re.Pattern[str], text: str) -> Iterator[str]:
    return (found[0] for _, found in zip(range(MAX_DECODED), expression.finditer(text), strict=False))


def _decode_if_prose(data: bytes) -> Iterator[str]:
    """Yield `data` as text if the text looks like prose."""
    text = data.decode("utf-8", "replace")
    letters = sum(map(str.isalpha, text))
    is_text = text.isprintable() and _PROSE.fullmatch(text) is not None and _GAP.search(text) is not None
    if is_text and len(text) >= MIN_DECODED and letters >= len(text) / 2:
        yield text


# -- tables ------------------------------------------------------------------------------------------


@cache
def _load_tables() -> Mapping[str, Any]:
    return load_package_tables("muniment.content", "poison")


@cache
def _load_popular_packages() -> frozenset[str]:
    return frozenset(_load_tables()["popular"]["packages"].split())


@cache
def _load_rules() -> tuple[_PoisonRule, ...]:
    return tuple(
        _PoisonRule(
            table["id"],
            table["reason"],
            table["weight"],
            tuple(tuple(names.split("|")) for names in table["all"]),
            table.get("near", 0),
            table.get("negated", False),
            table.get("context", False),
            table.get("unless"),
        )
        for table in _load_tables()["rule"]
    )


@cache
def _load_classes() -> Mapping[str, tuple[Any, Any]]:
    """Return two expressions for each class of words.

    The first one finds the words of the class outside addresses, the second one its patterns anywhere.
    """
    words, patterns = _load_tables()["words"], _load_tables()["patterns"]
    return {
        name: (
            _compile_any(_build_sources(words.get(name, ""))),
            _compile_any(f"(?:{each})" for each in patterns.get(name, ())),
        )
        for name in {*words, *patterns}
    }


def _compile_any(sources: Iterable[str]) -> Any:
    source = "|".join(sources)
    return compile_pattern(source) if source else None


def _build_sources(words: str) -> Iterator[str]:
    """Yield an expression for each word of a class, the longest word first."""
    entries = {strip_accents(each.strip()) for each in words.replace("\n", " ").split(",")} - {""}
    for entry in sorted(entries, key=lambda each: (-len(each), each)):
        body = re.escape(entry)
        if not entry.isascii():
            yield body
            continue
        body = body.replace(r"\*", "[a-z]*").replace(r"\ ", r"\s+").replace("'", "'?")
        before = r"\b" if entry[0].isalnum() else ""
        after = r"\b" if entry[-1].isalnum() or entry[-1] == "*" else ""
        yield f"{before}{body}{after}"
