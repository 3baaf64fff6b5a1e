"""Text that addresses an agent instead of stating a fact: a tripwire before review.

Holds, for the words of `instructions.toml`:

- I1. Of any trust: tokens, tags and blocks that tell a model who speaks; calls of tools as models write them;
  the marks that this program puts around facts and memory; and attempts to have earlier instructions
  dropped, in English, German, French, Spanish, Italian, Portuguese, Russian, Chinese, Japanese and Korean.
- I2. Of trust `agent` or `external` also: orders to whoever reads, acts behind the user's back, delayed
  orders, text that copies itself, claims of authority, and requests for data or files that lie elsewhere.
- I3. Case, accents, compatibility forms, invisible characters and lookalike letters of Greek and Cyrillic
  make no difference; for attempts to drop instructions, neither does anything that stands between letters.
- I4. A preference or convention in the imperative from `owner` or `workspace` is a fact, and passes.
- I5. Linear time: RE2, and one pass a view.

What does not hold: anybody can say the same in other words. What stops such a text is that it is stored with
its trust and shown as data; a hit only asks a person to look.

Attacked in tests/content/test_instructions.py, with tests/facts/injections.json and benign.json.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal

import re2

from muniment.names import Trust
from muniment.policy.grammar import normalised

_MAX_PROGRAM_BYTES: Final = 64 << 20

_View = Literal["raw", "letters", "words"]
_LOW: Final = frozenset({Trust.AGENT, Trust.EXTERNAL})

_PART: Final = re.compile(r"\{([a-z_]+)\}")
_NO_WORD: Final = re.compile(r"[\W_]+")
_MARKS: Final = re.compile("[\u0300-\u036f\u064b-\u0652\u3099\u309a]")
_INVISIBLE: Final = re.compile("[\xad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]")
_OTHER_LETTERS: Final = re.compile("[\u0370-\u03ff\u0400-\u052f\u0530-\u058f\u0250-\u02af]")
_LOOKALIKES: Final = str.maketrans("авеёкмнорстухіјѕһԁԛԝɡɩαβεηικνορτυχ", "abeekmhopctyxijshdqwgiabenikvoptux")
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
                    if (rule.view, rule.low) == (view, low) and _compiled(rule.source).search(shown)
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
    tables = tomllib.loads(
        files("muniment.content").joinpath("instructions.toml").read_text(encoding="utf-8")
    )
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
    folded = _without_marks(pattern)
    return folded.replace(" ", "") if view == "letters" else folded


@cache
def _any(view: _View, *, low: bool) -> Any:
    sources = [rule.source for rule in rules() if (rule.view, rule.low) == (view, low)]
    return _compiled("|".join(f"(?:{source})" for source in sources))


@cache
def _compiled(source: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = False
    options.max_mem = _MAX_PROGRAM_BYTES
    return re2.compile(source, options)


def _spellings(text: str) -> list[dict[_View, str]]:
    """The views of `text`; a second time with lookalikes as Latin letters, where there may be some."""
    if text.isascii():
        words = b" ".join(text.encode().translate(_ASCII_WORDS).split()).decode()
        return [{"raw": text, "words": f" {words} ", "letters": words.replace(" ", "")}]
    raw = normalised("NFKC", _INVISIBLE.sub("", text))
    folded = _without_marks(raw)
    spellings = [_viewed(raw, folded)]
    if _OTHER_LETTERS.search(folded):
        latin = folded.translate(_LOOKALIKES)
        spellings.append(_viewed(latin, latin))
    return spellings


def _viewed(raw: str, folded: str) -> dict[_View, str]:
    words = _NO_WORD.sub(" ", folded)
    return {"raw": raw, "words": f" {words.strip()} ", "letters": words.replace(" ", "")}


def _without_marks(text: str) -> str:
    return _MARKS.sub("", normalised("NFKD", text.casefold()))
