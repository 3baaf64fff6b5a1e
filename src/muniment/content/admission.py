"""Which bytes may stand in the memory: the content gates together, in the order in which they are told.

- `check_entry`: what this program is about to write. Encoding, invisible characters, secrets, active markup;
  the model is told the gate and the rule, never the value. Run in the worker, and again in the broker.
- `held_for`: what somebody else wrote, before its text, name or description is shown to anyone.
- `name_gate`: the path of an entry, read as text; both functions above do the same. A name is shown where its
  text is not, in indexes, listings and answers.

Holds:

- M1. Every gate also sees what the escapes of front matter spell: readers of YAML differ, and ours knows only
  a part of it. So every escape counts, whatever key or value it stands in, except before the first double
  quote, where nothing can be one.
- M2. Secrets are refused whatever `content.secrets` says: under `redact` the worker takes them out before,
  and what is left here could not be taken out.
- M4. A path is judged by what its folders and file say together: hyphens, underscores, dots, capitals and
  numbers between words count as spaces, and what is spelled `=20`, `%20`, `_x0020_` or `+` as what it spells,
  up to `_UNSPELLINGS` times. A name has the trust of its entry; an approved one stays.
- M3. `held_for` answers for any bytes, and by every gate that there is: a policy that lets a gate rest speaks
  for what its own runs write, not for files of unknown origin.

Attacked in tests/units/content/test_admission.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from muniment.content.frontmatter import spelled
from muniment.content.gates import GATES, check_text, decode, encode, one_line, visible
from muniment.content.markdown import ACTIVE_MARKUP, active_markup, fenced
from muniment.content.patterns import compiled
from muniment.content.secrets import find_secret
from muniment.errors import ContentRejected
from muniment.files import shipped_tables
from muniment.kernel.decide import Content
from muniment.kernel.names import Trust
from muniment.kernel.normal_forms import normalised
from muniment.kernel.path import FILE_SUFFIX

# -- instructions ------------------------------------------------------------------------------------
#
# Text that addresses an agent instead of stating a fact: a tripwire before review.
#
# Holds, for the words of `instructions.toml`:
#
# - I1. Of any trust: tokens, tags and blocks that tell a model who speaks; calls of tools as models write
#   them; the marks that this program puts around facts and memory; and attempts to have earlier instructions
#   dropped, in English, German, French, Spanish, Italian, Portuguese, Russian, Chinese, Japanese and Korean.
# - I2. Of trust `agent` or `external` also: orders to whoever reads, acts behind the user's back, delayed
#   orders, text that copies itself, claims of authority, and requests for data or files that lie elsewhere.
# - I3. Case, accents, compatibility forms, invisible characters and lookalike letters of Greek and Cyrillic
#   make no difference; for attempts to drop instructions, neither does anything that stands between letters.
# - I4. A preference or convention in the imperative from `owner` or `workspace` is a fact, and passes.
# - I5. Linear time: RE2, and one pass a view.
#
# What does not hold: anybody can say the same in other words. What stops such a text is that it is stored
# with its trust and shown as data; a hit only asks a person to look.
#
# Attacked in tests/units/content/test_instructions.py, with tests/facts/injections.json and benign.json.

_View = Literal["raw", "letters", "words"]
_LOW: Final = frozenset({Trust.AGENT, Trust.EXTERNAL})

_PART: Final = re.compile(r"\{([a-z_]+)\}")
_NO_WORD: Final = re.compile(r"[\W_]+")
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


def addressed_to_agent(text: str, trust: Trust) -> str | None:
    """The rule by which `text` addresses an agent (I1, I2), or None.

    Args:
        text: a fact, or a whole file without the line that this program stamped.
        trust: of who said it.

    Cost: about 15 µs a KiB of ASCII, 60 µs of other text.
    """
    for spelling in _spellings(text):
        for view, low in _SEARCHES:
            if low and trust not in _LOW:
                continue
            shown = spelling[view]
            if _any(view, low=low).search(shown) is not None:
                return next(
                    rule.id
                    for rule in rules()
                    if (rule.view, rule.low) == (view, low) and compiled(rule.source).search(shown)
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
def rules() -> tuple[_Rule, ...]:
    """The shipped rules. Cost: reads one file of the package, once a process."""
    tables = shipped_tables("muniment.content", "instructions")
    parts: dict[str, str] = tables["part"]
    return tuple(
        _Rule(
            table["id"],
            table["trust"] == "low",
            table["view"],
            "|".join(f"(?:{_written(pattern, parts, table['view'])})" for pattern in table["patterns"]),
        )
        for table in tables["rule"]
    )


def _written(pattern: str, parts: dict[str, str], view: _View) -> str:
    """A pattern with its parts, in the letters of its view."""
    while _PART.search(pattern):
        pattern = _PART.sub(lambda found: parts[found[1]], pattern)
    if view == "raw":
        return pattern
    folded = without_marks(pattern)
    return folded.replace(" ", "") if view == "letters" else folded


@cache
def _any(view: _View, *, low: bool) -> Any:
    sources = [rule.source for rule in rules() if (rule.view, rule.low) == (view, low)]
    return compiled("|".join(f"(?:{source})" for source in sources))


def _spellings(text: str) -> list[dict[_View, str]]:
    """The views of `text`; a second time with lookalikes as Latin letters, where there may be some."""
    if text.isascii():
        words = b" ".join(text.encode().translate(_ASCII_WORDS).split()).decode()
        return [{"raw": text, "words": f" {words} ", "letters": words.replace(" ", "")}]
    raw = normalised("NFKC", INVISIBLE.sub("", text))
    folded = without_marks(raw)
    spellings = [_viewed(raw, folded)]
    if _OTHER_LETTERS.search(folded):
        latin = folded.translate(LOOKALIKES)
        spellings.append(_viewed(latin, latin))
    return spellings


def _viewed(raw: str, folded: str) -> dict[_View, str]:
    words = _NO_WORD.sub(" ", folded)
    return {"raw": raw, "words": f" {words.strip()} ", "letters": words.replace(" ", "")}


def without_marks(text: str) -> str:
    """Return `text` without case and accents."""
    return _MARKS.sub("", normalised("NFKD", text.casefold()))


# -- admission ---------------------------------------------------------------------------------------

_UNSPELLINGS: Final = 3
"""How often a name is read for what it spells: `=3d20` spells `=20`."""

_SPELLED: Final = re.compile(r"(?:[=%][0-9A-Fa-f]{2})+|_x(?P<code>00[0-9A-Fa-f]{2})_|\+")
_HUMP: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word begins in `camelCase` and `HTTPServer`."""

_BETWEEN: Final = re.compile(r"[-_./\\,;+&@=]+")
_ENDS: Final = "md"
"""A word at the end of each line, so that no rule reads on from one to the next."""

_NUMBER: Final = re.compile(r"(?<![^\W_])[0-9]+(?![^\W_])")

SECRETS: Final = "secrets"
INSTRUCTIONS: Final = "instructions"
"""Gates that have a key of their own in a policy."""

NAME: Final = "name"
"""What `held_for` calls every gate that a path does not pass: such an entry is in no listing either."""

_ALL_GATES: Final = (*GATES, ACTIVE_MARKUP)


def check_entry(data: bytes, rel: str, content: Content) -> None:
    """Pass a whole file through the gates that `content` turns on (M1, M2).

    Args:
        data: the file, to its last byte.
        rel: its path inside its scope.
        content: of the effective policy. `instructions` is none of this function's business: such text may
            be written, and waits for review.

    Raises:
        ToolError: the bytes are not UTF-8 or hold NUL, or an escape spells half a character.
        ContentRejected: a gate refuses the file; `rule` is its name, the message names line and rule.

    Cost: about 40 µs for an ordinary entry.
    """
    text = decode(data)
    if (gate := _gate_in_name(rel, content.reject)) is not None:
        raise ContentRejected(f"the path holds what the gate {gate!r} refuses; use another name", rule=gate)
    other = spelled(text)
    _check_characters(text, other, content.reject)
    if other is not None:
        encode(other.replace("\0", ""))  # NUL is for the gates to judge; half a character is for none of them
    found = find_secret(data, rel)
    if found is not None:
        where = f"line {found.line} holds" if found.line else "the path holds"
        raise ContentRejected(f"{where} what looks like a secret ({found.rule}); leave it out", rule=SECRETS)
    if ACTIVE_MARKUP in content.reject and (line := _active(text, other)) is not None:
        what = "markup that runs or loads something when it is shown; write it as code or leave it out"
        raise ContentRejected(f"line {line} holds {what}", rule=ACTIVE_MARKUP)


def held_for(data: bytes, rel: str, trust: Trust) -> str | None:
    """The gate for which a file that Muniment did not write is held back, or None (M1, M3).

    Args:
        data: the file. Bytes that are not UTF-8 are somebody else's business, and hide nothing here.
        rel: its path, with its scope where that is shown.
        trust: of files in its scope that Muniment did not write.

    Returns:
        One of `muniment.content.gates.GATES`, `marks`, `secrets`, `active-markup`, `instructions`, `name`.

    Cost: about 60 µs for a KiB of English, 120 µs where letters have accents; it grows with the file.
    """
    if _gate_in_name(rel, _ALL_GATES) is not None or addressed_to_agent(name_as_text(rel), trust) is not None:
        return NAME
    text = data.decode("utf-8", "replace")
    other = spelled(text)
    try:
        _check_characters(text, other, GATES)
    except ContentRejected as rejected:
        return rejected.rule
    if (found := find_secret(data, rel)) is not None:
        return SECRETS if found.line else NAME
    if _active(text, other) is not None:
        return ACTIVE_MARKUP
    for view in (text, other):
        if view is not None and addressed_to_agent(view, trust) is not None:
            return INSTRUCTIONS
    return None


def name_gate(rel: str, trust: Trust) -> str | None:
    """Return the gate that the path of an entry does not pass as text, or None (M4).

    Args:
        rel: the path inside its scope, or with it.
        trust: of whoever made the name.

    Cost: about 0.2 ms, most of it for secrets.
    """
    if (gate := _gate_in_name(rel, _ALL_GATES)) is not None:
        return gate
    if addressed_to_agent(name_as_text(rel), trust):
        return INSTRUCTIONS  # Before secrets: a name with a secret is rejected in any case, this one waits.
    return SECRETS if find_secret(b"", rel) is not None else None


def name_as_text(rel: str) -> str:
    """What a path says in the ways in which a reader may take it, one a line: as it stands, then as words."""
    path = _unspelled_path(rel)
    words = " ".join(_BETWEEN.sub(" ", _HUMP.sub(" ", path)).split())
    views = dict.fromkeys((path, words, " ".join(_NUMBER.sub(" ", words).split())))
    return "\n".join(f"{view} {_ENDS}" for view in views)


def _unspelled_path(rel: str) -> str:
    path = rel.removesuffix(FILE_SUFFIX)
    for _ in range(_UNSPELLINGS):
        path, before = _SPELLED.sub(_unspelled, path), path
        if path == before:
            break
    return path


def _unspelled(found: re.Match[str]) -> str:
    """What an escape of a name spells; bytes that are not UTF-8 are themselves."""
    if found[0] == "+":
        return " "
    if found["code"]:
        return chr(int(found["code"], 16))
    return bytes.fromhex(re.sub("[=%]", "", found[0])).decode("utf-8", "replace")


def _gate_in_name(rel: str, reject: Collection[str]) -> str | None:
    """The gate of characters, markup or hidden secrets that a path does not pass; None: it passes all.

    A secret that stands in it as it is, or as words, is what `find_secret` finds in any path.
    """
    if rel.isascii() and _SPELLED.search(rel) is None:
        return None  # The grammar lets in no ASCII that any of them refuses.
    path = _unspelled_path(rel)
    try:
        _check_characters(path, None, reject)
    except ContentRejected as rejected:
        return rejected.rule
    if find_secret(b"", path) is not None:
        return SECRETS
    return ACTIVE_MARKUP if ACTIVE_MARKUP in reject and active_markup(path) is not None else None


def is_cut(before: bytes, after: bytes) -> bool:
    """Whether a text is another one of which lines were taken: nothing in it is new but blank lines."""
    standing = iter(before.splitlines())
    return all(line in standing for line in after.splitlines() if line.strip())


def _check_characters(text: str, other: str | None, reject: Collection[str]) -> None:
    gates = [gate for gate in reject if gate in GATES]
    check_text(text, gates)
    if other is not None:
        check_text(other, gates)


def _active(text: str, other: str | None) -> int | None:
    line = active_markup(text)
    return line if line is not None or other is None else active_markup(other)


# -- hearsay -----------------------------------------------------------------------------------------
#
# What people and programs are told of a model's last words.
#
# Words that pass every content gate, whatever a policy says, are told as text of the least trust: fenced,
# with nothing invisible. Of any others it is told only which gate stopped them.
#
# Does not hold: words that pass may still be false, or ask for something in words that no rule knows. They
# are data for whoever asked to see them.

MAX_QUOTED_CHARS: Final = 300
"""Characters of a model's words that anybody is told."""


def stopped_by(words: str, trust: Trust = Trust.EXTERNAL) -> str | None:
    """The gate that words do not pass; None: they pass all.

    Args:
        words: of a model.
        trust: `WORKSPACE` for sentences of ours that may quote them, and address whoever reads.
    """
    return held_for(words.encode("utf-8", "replace"), "", trust)


def own(sentence: str, instead: str) -> str:
    """A sentence of ours that may quote a model or its server; another one if it does not pass the gates."""
    return sentence if sentence and stopped_by(sentence, Trust.WORKSPACE) is None else instead


def quoted(words: str, token: str) -> str:
    """A model's words as data.

    Args:
        words: of any length; the whole of them is gated.
        token: random text for the fence.
    """
    gate = stopped_by(words)
    if gate is not None:
        return f"(the model's words are not shown: they do not pass the gate {gate!r})"
    return fenced(visible(one_line(words)[:MAX_QUOTED_CHARS]), "words of the model", token)
