"""Run all content gates (checks for characters, secrets, markup and instructions) over an entry.

- `check_entry`: checks a file that this program is about to write: encoding, invisible characters, secrets,
  active markup. The model receives the gate and the rule, never the value. Runs in the worker, and again in
  the broker.
- `find_withholding_gate`: checks a file that another program wrote, before its text, name or description is
  displayed.
- `find_name_gate`: checks the path of an entry as text; the two functions above also check it. Indexes,
  listings and responses display names without the text of the entry.

Guarantees:

- M1. Every gate also sees the decoded escapes of front matter. YAML readers differ, and this reader knows
  only a subset, so every escape counts, in any key or value. Text before the first double quote has no
  escapes.
- M2. Secrets are rejected for any value of `content.secrets`. Under `redact` the worker redacts them earlier,
  so a secret that still exists here could not be redacted.
- M3. `find_withholding_gate` accepts any bytes and uses every gate. A policy that turns a gate off decides
  about the texts of runs, not about files of unknown origin.
- M4. The folders and file name of a path are checked together as one text: hyphens, underscores, dots,
  capitals and numbers between words count as spaces. `=20`, `%20`, `_x0020_` and `+` count as the characters
  that they encode, up to `_MAX_DECODE_PASSES` times. A name has the trust of its entry; an approved name
  stays.

Attacks on these rules are in tests/units/content/test_admission.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from muniment.content.frontmatter import decode_front_matter
from muniment.content.gates import GATES, check_text, clean_line, decode, encode, escape_invisible
from muniment.content.markdown import ACTIVE_MARKUP, fence_text, find_active_markup
from muniment.content.patterns import compile_pattern
from muniment.errors import ContentRejected
from muniment.files import load_package_tables
from muniment.kernel.decide import Content
from muniment.kernel.names import Trust
from muniment.kernel.normal_forms import normalise
from muniment.kernel.path import FILE_SUFFIX

if TYPE_CHECKING:
    from muniment.content.secrets import SecretFinding

# -- instructions ------------------------------------------------------------------------------------
#
# Find text that gives instructions to an agent instead of stating a fact, so that the user reviews it.
#
# Guarantees, for the words of `instructions.toml`:
#
# - I1. Found for any trust: tokens, tags and blocks that set the speaker for a model; tool calls in the
#   syntax of models; the marks that this program puts around facts and memory; and attempts to override
#   earlier instructions, in English, German, French, Spanish, Italian, Portuguese, Russian, Chinese, Japanese
#   and Korean.
# - I2. Found only for trust `agent` or `external`: orders to the reader, acts hidden from the user, delayed
#   orders, text that copies itself, claims of authority, and requests for data or files outside the
#   workspace.
# - I3. Case, accents, compatibility forms, invisible characters and lookalike letters of Greek and Cyrillic
#   make no difference. For attempts to override instructions, characters between letters are ignored too.
# - I4. A preference or convention in the imperative from `owner` or `workspace` is a fact, and passes.
# - I5. Linear time: RE2, and one pass for each view (spelling) of the text.
#
# Not guaranteed: an attacker can use other words. The defence against such a text is that it is stored with
# its trust and displayed as data; a match only requests a review by the user.
#
# Attacks on these rules are in tests/units/content/test_instructions.py, with the texts of
# tests/facts/injections.json and benign.json.

_View = Literal["raw", "letters", "words"]
_LOW_TRUST: Final = frozenset({Trust.AGENT, Trust.EXTERNAL})

_PART: Final = re.compile(r"\{([a-z_]+)\}")
_NOT_WORD: Final = re.compile(r"[\W_]+")
_MARKS: Final = re.compile("[\u0300-\u036f\u064b-\u0652\u3099\u309a]")
INVISIBLE: Final = re.compile("[\xad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]")
_OTHER_LETTERS: Final = re.compile("[\u0370-\u03ff\u0400-\u052f\u0530-\u058f\u0250-\u02af]")
LOOKALIKES: Final = str.maketrans("авеёкмнорстухіјѕһԁԛԝɡɩαβεηικνορτυχ", "abeekmhopctyxijshdqwgiabenikvoptux")
_ASCII_WORDS: Final = bytes(
    ord(chr(code).lower()) if chr(code).isascii() and chr(code).isalnum() else ord(" ") for code in range(256)
)


@dataclass(frozen=True, slots=True)
class _Rule:
    id: str
    low: bool
    view: _View
    source: str


def find_agent_instruction(text: str, trust: Trust) -> str | None:
    """Return the id of the rule by which `text` gives instructions to an agent, or None.

    Args:
        text: a fact, or a complete file without the provenance line that this program added.
        trust: the trust of its author. For low trust, more rules apply.

    Cost: about 15 µs per KiB of ASCII, 60 µs of other text.
    """
    for spelling in _build_spellings(text):
        for view, low in _SEARCHES:
            if low and trust not in _LOW_TRUST:
                continue
            text_view = spelling[view]
            if _compile_view(view, low=low).search(text_view) is not None:
                return next(
                    rule.id
                    for rule in load_instruction_rules()
                    if (rule.view, rule.low) == (view, low) and compile_pattern(rule.source).search(text_view)
                )
    return None


_SEARCHES: Final[tuple[tuple[_View, bool], ...]] = (
    ("raw", False),
    ("letters", False),
    ("raw", True),
    ("words", True),
    ("letters", True),
)


@cache
def load_instruction_rules() -> tuple[_Rule, ...]:
    """Return the rules of `instructions.toml`. Cost: reads the file once per process."""
    tables = load_package_tables("muniment.content", "instructions")
    parts: dict[str, str] = tables["part"]
    return tuple(
        _Rule(
            table["id"],
            table["trust"] == "low",
            table["view"],
            "|".join(
                f"(?:{_expand_pattern(pattern, parts, table['view'])})" for pattern in table["patterns"]
            ),
        )
        for table in tables["rule"]
    )


def _expand_pattern(pattern: str, parts: dict[str, str], view: _View) -> str:
    """Return a pattern with its `{part}` references replaced, and folded like the view that it searches."""
    while _PART.search(pattern):
        pattern = _PART.sub(lambda found: parts[found[1]], pattern)
    if view == "raw":
        return pattern
    folded = strip_accents(pattern)
    return folded.replace(" ", "") if view == "letters" else folded


@cache
def _compile_view(view: _View, *, low: bool) -> Any:
    sources = [rule.source for rule in load_instruction_rules() if (rule.view, rule.low) == (view, low)]
    return compile_pattern("|".join(f"(?:{source})" for source in sources))


def _build_spellings(text: str) -> list[dict[_View, str]]:
    """Return the views of `text` that rules search, also with lookalike letters replaced by Latin ones."""
    if text.isascii():
        words = b" ".join(text.encode().translate(_ASCII_WORDS).split()).decode()
        return [{"raw": text, "words": f" {words} ", "letters": words.replace(" ", "")}]
    raw = normalise("NFKC", INVISIBLE.sub("", text))
    folded = strip_accents(raw)
    spellings = [_build_views(raw, folded)]
    if _OTHER_LETTERS.search(folded):
        latin = folded.translate(LOOKALIKES)
        spellings.append(_build_views(latin, latin))
    return spellings


def _build_views(raw: str, folded: str) -> dict[_View, str]:
    words = _NOT_WORD.sub(" ", folded)
    return {"raw": raw, "words": f" {words.strip()} ", "letters": words.replace(" ", "")}


def strip_accents(text: str) -> str:
    """Return `text` in lower case and without accents."""
    return _MARKS.sub("", normalise("NFKD", text.casefold()))


# -- admission ---------------------------------------------------------------------------------------

_MAX_DECODE_PASSES: Final = 3
"""Number of passes that decode the escapes of a name: `=3d20` decodes to `=20`, and then to a space."""

_ENCODED: Final = re.compile(r"(?:[=%][0-9A-Fa-f]{2})+|_x(?P<code>00[0-9A-Fa-f]{2})_|\+")
_WORD_BORDER: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""The border before a word in `camelCase` and `HTTPServer`."""

_SEPARATORS: Final = re.compile(r"[-_./\\,;+&@=]+")
_LINE_END_WORD: Final = "md"
"""A word added at the end of each line, so that no rule matches across lines."""

_NUMBER: Final = re.compile(r"(?<![^\W_])[0-9]+(?![^\W_])")

SECRETS_GATE: Final = "secrets"
INSTRUCTIONS_GATE: Final = "instructions"
"""Names of gates that have a separate key in a policy."""

NAME_GATE: Final = "name"
"""Result of `find_withholding_gate` if any gate rejects the path. Listings do not show such an entry."""

_ALL_GATES: Final = (*GATES, ACTIVE_MARKUP)


def _find_secret(data: bytes, rel: str) -> SecretFinding | None:
    """Return the first secret in a file or in its path, or None.

    The rules are imported here, because they take 20 ms and reading an entry does not need them.
    """
    from muniment.content.secrets import find_secret

    return find_secret(data, rel)


def check_entry(data: bytes, rel: str, content: Content) -> None:
    """Raise an error if a content check (gate) rejects a file that is about to be written.

    Decoded escapes of the front matter are checked too. Secrets are rejected under any policy.

    Args:
        data: the complete file.
        rel: the path of the file inside its scope.
        content: the content rules of the effective policy. `instructions` is not checked here: such text may
            be written, and waits for review.

    Raises:
        ToolError: the bytes are not UTF-8 or contain NUL, or an escape encodes half a character.
        ContentRejected: a gate rejects the file; `rule` is its name, and the message has the line and the
            rule.

    Cost: about 40 µs for an ordinary entry.
    """
    text = decode(data)
    if (gate := _find_path_gate(rel, content.reject)) is not None:
        raise ContentRejected(f"the gate {gate!r} rejects the path; use another name", rule=gate)
    other = decode_front_matter(text)
    _check_characters(text, other, content.reject)
    if other is not None:
        encode(other.replace("\0", ""))  # The gates handle NUL; none of them handles half a character
    found = _find_secret(data, rel)
    if found is not None:
        where = f"line {found.line} contains" if found.line else "the path contains"
        raise ContentRejected(f"{where} a possible secret ({found.rule}); remove it", rule=SECRETS_GATE)
    if ACTIVE_MARKUP in content.reject and (line := _find_active_line(text, other)) is not None:
        what = "markup that runs or loads something when displayed; write it as code or remove it"
        raise ContentRejected(f"line {line} contains {what}", rule=ACTIVE_MARKUP)


def find_withholding_gate(data: bytes, rel: str, trust: Trust) -> str | None:
    """Return the name of the content check (gate) that hides a file from models, or None.

    Every gate applies, regardless of the policy. Decoded escapes of the front matter are checked too.

    Args:
        data: a file that Muniment did not write. Any bytes are allowed.
        rel: the path of the file, with its scope if that is displayed.
        trust: the trust of such files in this scope.

    Returns:
        A name in `muniment.content.gates.GATES`, or `marks`, `secrets`, `active-markup`, `instructions` or
        `name`.

    Cost: about 60 µs for a KiB of English, 120 µs if letters have accents; linear in the file.
    """
    if (
        _find_path_gate(rel, _ALL_GATES) is not None
        or find_agent_instruction(read_name_as_text(rel), trust) is not None
    ):
        return NAME_GATE
    text = data.decode("utf-8", "replace")
    other = decode_front_matter(text)
    try:
        _check_characters(text, other, GATES)
    except ContentRejected as rejected:
        return rejected.rule
    if (found := _find_secret(data, rel)) is not None:
        return SECRETS_GATE if found.line else NAME_GATE
    if _find_active_line(text, other) is not None:
        return ACTIVE_MARKUP
    for view in (text, other):
        if view is not None and find_agent_instruction(view, trust) is not None:
            return INSTRUCTIONS_GATE
    return None


def find_name_gate(rel: str, trust: Trust) -> str | None:
    """Return the name of the content check (gate) that rejects the path of an entry as text, or None.

    Args:
        rel: the path inside its scope, or with its scope.
        trust: the trust of the author of the path.

    Cost: about 0.2 ms, most of it for secrets.
    """
    if (gate := _find_path_gate(rel, _ALL_GATES)) is not None:
        return gate
    if find_agent_instruction(read_name_as_text(rel), trust):
        # Before secrets: a name with a secret is rejected anyway; this name waits for review.
        return INSTRUCTIONS_GATE
    return SECRETS_GATE if _find_secret(b"", rel) is not None else None


def read_name_as_text(rel: str) -> str:
    """Return the texts that a reader may see in a path, one per line: the path, then the words in it."""
    path = _decode_path(rel)
    words = " ".join(_SEPARATORS.sub(" ", _WORD_BORDER.sub(" ", path)).split())
    views = dict.fromkeys((path, words, " ".join(_NUMBER.sub(" ", words).split())))
    return "\n".join(f"{view} {_LINE_END_WORD}" for view in views)


def _decode_path(rel: str) -> str:
    path = rel.removesuffix(FILE_SUFFIX)
    for _ in range(_MAX_DECODE_PASSES):
        path, before = _ENCODED.sub(_decode_name_escape, path), path
        if path == before:
            break
    return path


def _decode_name_escape(found: re.Match[str]) -> str:
    """Return the character of one escape in a name; bytes that are not UTF-8 become U+FFFD."""
    if found[0] == "+":
        return " "
    if found["code"]:
        return chr(int(found["code"], 16))
    return bytes.fromhex(re.sub("[=%]", "", found[0])).decode("utf-8", "replace")


def _find_path_gate(rel: str, reject: Collection[str]) -> str | None:
    """Return the gate for characters, markup or encoded secrets that rejects a path, or None.

    Other secrets are not searched here: `find_secret` finds them in any path.

    Args:
        rel: the path.
        reject: the names of the gates that are turned on.
    """
    if rel.isascii() and _ENCODED.search(rel) is None:
        return None  # The name grammar allows no ASCII character that a gate rejects.
    path = _decode_path(rel)
    try:
        _check_characters(path, None, reject)
    except ContentRejected as rejected:
        return rejected.rule
    if _find_secret(b"", path) is not None:
        return SECRETS_GATE
    return ACTIVE_MARKUP if ACTIVE_MARKUP in reject and find_active_markup(path) is not None else None


def is_text_with_lines_removed(before: bytes, after: bytes) -> bool:
    """Return whether `after` equals `before` with lines removed; additional blank lines are allowed."""
    earlier_lines = iter(before.splitlines())
    return all(line in earlier_lines for line in after.splitlines() if line.strip())


def _check_characters(text: str, other: str | None, reject: Collection[str]) -> None:
    gates = [gate for gate in reject if gate in GATES]
    check_text(text, gates)
    if other is not None:
        check_text(other, gates)


def _find_active_line(text: str, other: str | None) -> int | None:
    line = find_active_markup(text)
    return line if line is not None or other is None else find_active_markup(other)


# -- hearsay -----------------------------------------------------------------------------------------
#
# Prepare the last message of a model for display to users and programs.
#
# A message that passes every content gate, under any policy, is displayed as text of the least trust: fenced,
# without invisible characters. For any other message, only the gate that rejected it is displayed.
#
# Not guaranteed: a message that passes may still be false, or request something in words that no rule knows.
# It is data for the caller who requested it.

MAX_QUOTED_CHARS: Final = 300
"""Maximum number of characters of a model's message that are displayed."""


def find_rejecting_gate(text: str, trust: Trust = Trust.EXTERNAL) -> str | None:
    """Return the name of the content check (gate) that rejects a text of a model, or None.

    Args:
        text: the text.
        trust: the trust of its author; `WORKSPACE` for sentences of this program that may quote a model and
            address the reader.
    """
    return find_withholding_gate(text.encode("utf-8", "replace"), "", trust)


def replace_if_rejected(sentence: str, instead: str) -> str:
    """Return a sentence of this program that may quote a model, or `instead` if a gate rejects it."""
    return sentence if sentence and find_rejecting_gate(sentence, Trust.WORKSPACE) is None else instead


def quote_model_text(text: str, token: str) -> str:
    """Return a model's message as fenced data, or a sentence that names the gate that rejects it.

    Args:
        text: the message, of any length; the complete text is checked.
        token: random text for the fence, so that the message cannot close it.
    """
    gate = find_rejecting_gate(text)
    if gate is not None:
        return f"(the model's message is hidden: the gate {gate!r} rejects it)"
    return fence_text(escape_invisible(clean_line(text)[:MAX_QUOTED_CHARS]), "words of the model", token)
