"""Find secrets in text by the rules of `secrets.toml`, and redact them if possible.

Guarantees, for the forms that the rules know:

- K1. A secret is found in plain text; as an escape of front matter; with backslashes before its characters;
  in full-width letters; in base64 at any offset, once; in the path. If its form alone identifies it, it is
  also found across line breaks, with the markers of lists, quotes and continued lines.
- K2. Results contain the rule and the line, never the value.
- K3. `redact_secrets` removes secrets in plain text. Secrets that appear only after joining lines or decoding
  base64 stay, and `find_secret` still finds them.
- K4. Passwords, PINs, cards and accounts are found by the words around them.
- K5. Linear time: RE2 runs every pattern, each rule reads each text once, and the checks of a match are
  bounded by its pattern.

Not guaranteed: a secret passes if no rule knows its form, or if it is encrypted, reversed, spelt out or
encoded twice. A password of ordinary words cannot be recognized. Do not rely on this check alone.

Attacks on these rules are in tests/units/content/test_secrets.py, with generated values.
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
from functools import cache, partial
from itertools import accumulate, chain
from typing import Any, Final

from muniment.content.expressions import compile_when_used
from muniment.content.frontmatter import decode_front_matter
from muniment.content.patterns import WordExpression, compile_pattern
from muniment.content.secret_clauses import ValueChecks, find_secrets_in_clauses
from muniment.content.secret_notes import find_secrets_in_notes
from muniment.content.typed_secrets import find_typed_secrets, is_chosen_word, is_count, is_not_word
from muniment.files import load_package_tables
from muniment.kernel.normal_forms import normalise

# -- secrets -----------------------------------------------------------------------------------------

MIN_ENTROPY: Final = 3.0
"""Default minimum number of bits per character of a secret. Hexadecimal text of 24 digits has about 3.4."""


_START: Final = r"(?:^|[^A-Za-z0-9]|%[0-9A-Fa-f]{2}|\\(?:[abefnrtv]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}))"
"""Expression for the character before a secret.

It is not a letter or digit, except as part of an escape in an address or a string.
"""
_PORT_AND_NAME: Final = compile_when_used(rb"([0-9]{2,5})[A-Z]?[a-z]+(?:[._+-][A-Z]?[a-z]+)*[0-9]{0,4}")
"""A port at the end of a line that was joined with the mail address at the start of the next line."""
_BASE64: Final = "[A-Za-z0-9+/_-]{28,}"
_PRINTABLE: Final = compile_when_used(rb"[\t\n\r\x20-\x7e]{16,}")
_STANDARD: Final = bytes.maketrans(b"-_", b"+/")
_SPACED: Final = bytes.maketrans(b"-_/.", b"    ")

_PLACEHOLDER: Final = compile_when_used(
    rb"(?i)example|eintragen|your|placeholder|redacted|change_?me|dummy|x{4}|\*{3}|\.{3}|0{8}|12345678|abcdefgh|\xe2\x80\xa6"
)
_ALL_PLACEHOLDER: Final = compile_when_used(
    rb"(?i)[%\[<{]*(?:(?:your|my|the|some|new|old|real|db|database|user(?:name)?|login|admin|root|guest|postgres|mysql"
    rb"|mariadb|redis|mongo|rabbitmq|minioadmin|local(?:host)?|dev|test|demo|sample|example|dummy|foo|bar|baz|placeholder|redacted|removed"
    rb"|hidden|change(?:_?me|it)?|password|passwd|passwort|passphrase|pass|pwd|pw|secret|token|key|api|value|string|here|text"
    rb"|true|false|yes|no|none|null|nil|empty|required|optional|option|flag|switch|argument|parameter|file|stdin|instead"
    rb"|and|or|is|in|to|for|with|from|of|x{3,}|\*{2,}|\.{3,}|\xe2\x80\xa6|xx)[0-9]{0,3}[-_.,:)\]%]*)+[0-9]?"
)
"""A value that consists of placeholder words, or of words that follow an option in a sentence."""
_CLOSERS: Final = ")]}>.,;:!?*_"
_REFERENCE: Final = compile_when_used(
    rb"\$[A-Za-z{(]|\{\{|%[({]|[<({]|~/|\.{0,2}/|[a-z]{3,}/|[a-z][a-z0-9+.-]*://"
)
_PUBLIC_KEY: Final = compile_when_used(rb"AAAA[BCE][23][NV]|(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9]")
"""The beginning of a public SSH key, or of the name of its kind."""
_WORD: Final = r"(?:[A-Z]{1,3}[a-z\x80-\xff]{2,}|[a-z\x80-\xff]+|[A-Z]{2,})"
_IS_WORDS: Final = rf"(?:[0-9]{{0,4}}(?:{_WORD}+[0-9]{{0,2}})?(?:[._:/\\-]+|$))+"
_SEPARATORS: Final = frozenset(b"._:/\\-")


@dataclass(frozen=True, slots=True)
class SecretFinding:
    """The rule and the position of a secret, without its value.

    Attributes:
        rule: the id of the rule.
        line: the number of the first line of the secret, from 1; 0: the secret is in the path.
    """

    rule: str
    line: int


@dataclass(frozen=True, slots=True)
class SecretRule:
    """One rule of `secrets.toml`, compiled.

    Attributes:
        id: the id of the rule.
        source: the expression, with a group around the secret if the secret is only a part of the match.
        context: whether the expression includes words next to the secret.
        entropy: the minimum number of bits per character of the secret.
        check: returns whether a matched value is a secret.
    """

    id: str
    source: str
    context: bool
    entropy: float
    check: Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class _RuleSet:
    """All rules, and patterns that match if any rule does.

    Most texts match none of the patterns, so that no single rule has to run.

    Attributes:
        rules: the rules.
        any_form: the pattern of the rules that identify a secret by its form alone.
        contexts: the patterns of the other rules.
    """

    rules: tuple[SecretRule, ...]
    any_form: Any
    contexts: tuple[WordExpression, ...]


@dataclass(frozen=True, slots=True)
class _Match:
    rule: str
    start: int
    end: int


def find_secret(data: bytes, rel: str) -> SecretFinding | None:
    """Return the rule and line of the first secret in a file or in its path; None if nothing is found.

    Args:
        data: the file. Bytes that are not UTF-8 do not hide adjacent text.
        rel: the path of the file inside its scope.

    Cost: about 60 µs per file, and 55 µs per KiB of text without base64. The first texts of a process cost
    some milliseconds more, until the expressions for their words are compiled.
    """
    path = rel.encode("utf-8", "replace")
    for found_in_path in chain(_match_rules(path, load_rules()), _find_typed(path.translate(_SPACED))):
        return SecretFinding(found_in_path.rule, 0)
    text = data.decode("utf-8", "replace")
    found = _find_in_text(text)
    if found is None and (other := decode_front_matter(text)) is not None:
        found = _find_in_text(other)
    return found


def redact_secrets(text: str) -> str:
    """Return `text` with `(redacted RULE)` in place of every secret in plain text.

    Encoded secrets, and secrets that continue on the next line, stay; `find_secret` still finds them.
    """
    data = text.encode("utf-8", "surrogatepass")
    for _ in range(_MAX_PASSES):
        spans = _drop_overlaps(_find_matches(data, load_rules()))
        if not spans:
            break
        position, parts = 0, []
        for found in spans:
            parts += [data[position : found.start], f"(redacted {found.rule})".encode()]
            position = found.end
        data = b"".join([*parts, data[position:]])
    return data.decode("utf-8", "surrogatepass")


_MAX_PASSES: Final = 4
"""Number of passes of `redact_secrets`: text that overlaps a redacted secret may be a secret too."""


@cache
def load_rules() -> _RuleSet:
    """Return the rules of `secrets.toml`. Cost: reads and compiles the file once per process, about 10 ms."""
    tables = load_package_tables("muniment.content", "secrets")
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
    forms = [re.sub(r"(?<!\\)\((?!\?)", "(?:", rule.source) for rule in rules if not rule.context]
    return _RuleSet(
        rules=rules,
        any_form=_compile_bytes("|".join(f"(?:{form})" for form in forms)),
        # One expression of these rules would take three times as long to compile.
        contexts=tuple(
            WordExpression(partial(_compile_bytes, table["pattern"]), table.get("words", ()))
            for table in tables["rule"]
            if table.get("context")
        ),
    )


@cache
def _compile_bytes(source: str) -> Any:
    return compile_pattern(source.encode(), is_bytes=True)


# -- search ----------------------------------------------------------------------------------------------


def _find_in_text(text: str) -> SecretFinding | None:
    rules = load_rules()
    data = text.encode("utf-8", "surrogatepass")
    for found in _find_matches(data, rules):
        return SecretFinding(found.rule, data.count(b"\n", 0, found.start) + 1)
    if not text.isascii():
        wide = normalise("NFKC", text).encode("utf-8", "surrogatepass")
        for found in _find_typed(wide):
            return SecretFinding(found.rule, wide.count(b"\n", 0, found.start) + 1)
    joined, starts = _join_lines(text)
    data = joined.encode("utf-8", "surrogatepass")
    for found in _find_matches(data, rules, joined=True):
        if _is_real_match(data, found, starts):
            return SecretFinding(found.rule, bisect_right(starts, found.start))
    for decoded, position in _decode_base64(data):
        for found in chain(_find_matches(decoded, rules, joined=True), _find_matches(decoded, rules)):
            return SecretFinding(found.rule, bisect_right(starts, position))
    return None


def _is_real_match(data: bytes, found: _Match, starts: list[int]) -> bool:
    """Return whether a match in joined lines is a secret: it begins a word, or crosses the end of a line.

    Args:
        data: the joined lines.
        found: the match.
        starts: the offset of each line in `data`.
    """
    if found.rule == "url-password" and (two := _PORT_AND_NAME.fullmatch(data, found.start, found.end)):
        next_line = bisect_right(starts, found.start)
        if next_line < len(starts) and two.end(1) == starts[next_line]:
            return False
    if not data[found.start - 1 : found.start].isalnum():
        return True
    return bisect_right(starts, found.end - 1) > bisect_right(starts, found.start - 1)


def _find_typed(data: bytes) -> Iterator[_Match]:
    """Yield the secrets that people type, such as a password next to its name, without placeholders."""
    checks = ValueChecks(_is_random, is_chosen_word, is_not_word, is_count)
    for rule, start, end in chain(
        find_typed_secrets(data), find_secrets_in_clauses(data, checks), find_secrets_in_notes(data, checks)
    ):
        value = data[start:end]
        if not (_PLACEHOLDER.search(value) or _REFERENCE.match(value) or _PUBLIC_KEY.match(value)):
            yield _Match(rule, start, end)


def _join_lines(text: str) -> tuple[str, list[int]]:
    """Join the lines of `text` without the markers of lists and quotes.

    Returns:
        The joined text, and the offset of each line in it, in bytes.
    """
    if not text.isascii():
        text = normalise("NFKC", text)
    lines = [_strip_markers(line) for line in text.split("\n")]
    starts = [0, *accumulate(len(line.encode("utf-8", "surrogatepass")) for line in lines)]
    return "".join(lines), starts[:-1]


def _strip_markers(line: str) -> str:
    line = line.strip(" \t\r\\|\"'`>")
    while line[:2] in ("- ", "* ", "+ ", "> "):
        line = line[2:].lstrip(" \t\"'`")
    return line.replace("\\", "")


def _decode_base64(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Decode the long runs of base64 in `data` from each of four offsets.

    Yield the printable text in each result, and the offset of the run in `data`.
    """
    for run in _compile_bytes(_BASE64).finditer(data):
        letters = run[0].translate(_STANDARD)
        for offset in range(4):
            part = letters[offset:] if (len(letters) - offset) % 4 != 1 else letters[offset:-1]
            decoded = binascii.a2b_base64(part + b"=" * (-len(part) % 4))
            if text := b"\n".join(_PRINTABLE.findall(decoded)):
                yield text, run.start()


def _drop_overlaps(found: Iterable[_Match]) -> list[_Match]:
    """Return the matches from left to right without overlaps; of two with the same start, the longer one."""
    separate: list[_Match] = []
    for match in sorted(found, key=lambda match: (match.start, -match.end)):
        if not separate or match.start >= separate[-1].end:
            separate.append(match)
    return separate


def _find_matches(data: bytes, rules: _RuleSet, *, joined: bool = False) -> Iterator[_Match]:
    """Yield every secret in `data`, rule by rule.

    Args:
        data: the text.
        rules: the rules.
        joined: whether the lines were joined; then only rules apply that identify a secret by its form alone.
    """
    yield from _match_rules(data, rules, joined=joined)
    if not joined:
        yield from _find_typed(data)


def _match_rules(data: bytes, rules: _RuleSet, *, joined: bool = False) -> Iterator[_Match]:
    """Yield the secrets in `data` that a rule of `secrets.toml` finds; for the Args, see `_find_matches`."""
    if any(pattern.search(data) for pattern in (rules.any_form, *(() if joined else rules.contexts))):
        for rule in rules.rules:
            if joined and rule.context:
                continue
            pattern = _compile_bytes(f"({rule.source})" if joined else f"{_START}({rule.source})")
            for match in pattern.finditer(data):
                group = next((n for n in range(2, match.re.groups + 1) if match.span(n)[0] >= 0), 1)
                value = match[group]
                is_user = b"//%b:%b@" % (value, value) in match[0]
                if not is_user and _is_not_placeholder(value, rule) and rule.check(value):
                    yield _Match(rule.id, *match.span(group))


# -- checks of a match -----------------------------------------------------------------------------------


def _is_not_placeholder(value: bytes, rule: SecretRule) -> bool:
    is_placeholder = rule.check is not _is_password_value and _PLACEHOLDER.search(value) is not None
    return not is_placeholder and _compute_entropy(value) >= rule.entropy


def _compute_entropy(value: bytes) -> float:
    """Return the bits per character of `value`, from the frequencies of the characters in it."""
    size = len(value)
    return -sum(count / size * math.log2(count / size) for count in Counter(value).values())


def _has_form(_value: bytes) -> bool:
    return True


def _is_jwt(value: bytes) -> bool:
    """Return whether the header of a JSON Web Token is a JSON object with an algorithm that uses a key."""
    header = value.partition(b".")[0].translate(_STANDARD)
    try:
        fields = json.loads(binascii.a2b_base64(header + b"=" * (-len(header) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and fields.get("alg") not in (None, "none")


def _is_password(value: bytes) -> bool:
    """Return whether a value looks random: it is not a word, name, path or code."""
    value = value.rstrip(_CLOSERS.encode())
    if _REFERENCE.match(value) or b"(" in value or _compile_bytes(_IS_WORDS).fullmatch(value):
        return False
    kinds = {_classify_character(char) for char in value} - {"separator"}
    if len(kinds) >= _MIN_PASSWORD_KINDS:
        return True
    return kinds >= {"digit"} and len(kinds) > 1 and len(value) >= _MIN_KEY_CHARS and value.isalnum()


def _is_password_value(value: bytes) -> bool:
    """Return whether a value in the position of a password is neither a reference nor a placeholder."""
    is_port = re.match(rb"[0-9]{1,5}[/?#]", value) is not None
    is_call = re.match(rb"[A-Za-z_]+(?:\.[A-Za-z_]+)*\(", value) is not None
    return (
        not is_port and not is_call and not _REFERENCE.match(value) and not _ALL_PLACEHOLDER.fullmatch(value)
    )


def _is_mixed(value: bytes) -> bool:
    return not _REFERENCE.match(value) and is_not_word(value.decode("utf-8", "replace").rstrip(_CLOSERS))


def _is_random(text: str) -> bool:
    value = text.encode()
    return _is_password(value) and _compute_entropy(value) >= MIN_ENTROPY


_MIN_PASSWORD_KINDS: Final = 3
_MIN_KEY_CHARS: Final = 16


def _classify_character(char: int) -> str:
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
    "given": _is_password_value,
    "jwt": _is_jwt,
    "mixed": _is_mixed,
    "password": _is_password,
}
