"""Active markup: what runs, or fetches something by itself, when a file is shown as markdown.

Holds:

- A1. Refused are: elements that run or replace the page (`script`, `iframe`, `style`, …) in any form;
  elements that load (`object`, `link`, `meta`, `form`, `video`, …) with an attribute; event handlers;
  attributes and styles that fetch; images, also by reference, whose address is not a path; links, definitions
  and autolinks with a scheme that runs or embeds (`javascript:`, `vbscript:`, `data:`, `file:`), entities
  decoded; fences in a language that note readers run.
- A2. What shows as code is inert: closed fences that begin in column 0, and code spans on one line. Wherever
  readers of markdown may disagree about what is code, it counts as text: fences that are not closed,
  indented, or in a list or quote; fences with a line that looks like another fence; fences that note readers
  draw; spans behind a tag, an unmatched tick or a backslash, and across table cells; and everything in a file
  in which a line outside fences begins with a tag.
- A3. Ordinary links, local images, bare tags such as `<T>`, `<name>` and `<b>`, and comparisons pass.
- A4. Linear time: RE2 for everything that looks ahead.

What does not hold: a renderer with extensions of its own may run what nobody else does. An ordinary link can
carry data once someone follows it. HTML that only hides text is not refused.

Attacked in tests/content/test_markup.py. Source: CommonMark 0.31.2, sections 4.5, 4.6, 6.1 and 6.4 to 6.6;
the HTML standard, section 13.2.5.
"""

from __future__ import annotations

import html
import re
from functools import cache
from typing import Any, Final

import re2

from muniment.content.frontmatter import locate, opens

ACTIVE_MARKUP: Final = "active-markup"
"""The name of the gate that policies use."""

_MAX_PROGRAM_BYTES: Final = 32 << 20

_SPACE: Final = r"[\s\x00-\x20]*"
_RUNNING: Final = (
    "(?:"
    + "|".join(_SPACE.join(scheme) for scheme in ("javascript", "vbscript", "livescript", "data", "file"))
    + rf"){_SPACE}\\?:"
)
_ELSEWHERE: Final = r"(?:[a-z][a-z0-9+.-]*\\?:|[/\\]{2})"
"""How an address begins that is not a path beneath the file's own directory."""

_ALT: Final = r"(?:[^\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.)*\])*\])*"
_OPENING: Final = r"<[a-z][a-z0-9:_.-]*[\s/]"
_TAG: Final = rf"{_OPENING}(?:[^>]*[\s/\"'\x0c])?"
_QUOTED_TAG: Final = rf"{_OPENING}(?:(?:[^<>\"']|\"[^\"]*\"|'[^']*')*[\s/\"'])?"
_BLOCK: Final = rf"(?m:^)[ \t>*+0-9.)-]*{_OPENING}(?:[^\n]|\n[^\n])*?[\s/\"']"
_REPLACING: Final = "script|iframe|style|frameset|xmp|plaintext|noembed|noframes"
_LOADING: Final = (
    "object|embed|applet|meta|base|link|form|input|button|video|audio|source|track|frame|portal|param|"
    "foreignobject|animate[a-z]*|set|use|image|feimage|body|bgsound|layer|isindex|keygen|template|handler|listener"
)
_FETCHING: Final = (
    "src|poster|background|data|action|formaction|ping|lowsrc|dynsrc|xlink:href|longdesc|profile|codebase|"
    "classid|archive|manifest|usemap|icon"
)

_RUN_BY_READERS: Final = ("dataviewjs", "js-engine", "templater")
_DRAWN_BY_READERS: Final = ("mermaid", "dot", "graphviz", "plantuml", "svg")
"""Languages of fences that note readers run, or draw as pictures with links."""

_PATTERNS: Final = (
    rf"<(?:{_REPLACING})(?:[\s/>]|$)",
    rf"<(?:[a-z]+:)?(?:{_LOADING})[\s/][^>]*=",
    *(rf"{tag}on[a-z]+\s*=" for tag in (_TAG, _QUOTED_TAG, _BLOCK)),
    *(rf"{tag}(?:{_FETCHING})\s*=\s*[\"'`]?{_SPACE}{_ELSEWHERE}" for tag in (_TAG, _QUOTED_TAG)),
    *(rf"{tag}(?:srcset|srcdoc|imagesrcset)\s*=" for tag in (_TAG, _QUOTED_TAG)),
    *(rf"{tag}[a-z:-]+\s*=\s*[\"'`]?{_SPACE}{_RUNNING}" for tag in (_TAG, _QUOTED_TAG)),
    rf"{_TAG}style\s*=[^>]*(?:url|image|expression|import|binding|behavior|[\\@])",
    rf"<{_SPACE}{_RUNNING}[^\s>]*>",
    rf"\]\({_SPACE}<?{_SPACE}{_RUNNING}",
    rf"\]:{_SPACE}<?{_SPACE}{_RUNNING}",
    rf"!\[{_ALT}\]\({_SPACE}<?{_SPACE}{_ELSEWHERE}",
    rf"!\[(?:[^\]]|\][^(\[])*?\]\({_SPACE}<?{_SPACE}{_ELSEWHERE}",
    r"<!(?:entity|attlist)\s|<\?xml-stylesheet\s|<!doctype[^>]*\[",
    rf"(?m:^)[ \t>*+0-9.)-]*(?:`{{3,}}|~{{3,}})[ \t]*(?:{'|'.join(_RUN_BY_READERS)})\b",
)
_REFERENCE: Final = rf"(?m:^)[ \t>*+0-9.)-]*\[(?:[^\[\]\\]|\\.)+\]:{_SPACE}<?{_ELSEWHERE}"
_BY_REFERENCE: Final = rf"!\[{_ALT}\](?:[^(]|$)"

_BREAK: Final = re.compile("\r\n|\n|\r")
_OTHER_BREAK: Final = re.compile("\r\n?")
_ENTITY: Final = re.compile("&[#a-zA-Z]")
_FENCE: Final = re.compile(r"(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*")
_LIKE_A_FENCE: Final = re.compile(r"[ \t>*+0-9.)-]*(?:```|~~~)")
_OPENS_HTML: Final = re.compile(r"[ \t>*+0-9.)-]*<[A-Za-z!?/]")
_NO_CODE: Final = frozenset({*_RUN_BY_READERS, *_DRAWN_BY_READERS})
_MARKS: Final = ("<", "](", "]:", "```", "~~~")
"""Without one of these nothing is active."""

_TICKS: Final = re.compile(r"\\?`+|<(?![ =<>-])(?![a-zA-Z/][\w:-]*>)")


def active_markup(text: str) -> int | None:
    """The line on which active markup begins (A1 to A3), or None where there is none.

    The line is that of what begins the text's first match, from 1.

    Cost: a few microseconds for text without `<`, `](`, `]:` and `![`; about 20 µs a KiB otherwise.
    """
    if not any(mark in text for mark in _MARKS):
        return None
    if _search(text) is None:
        return None
    return _search(without_code(text))


def without_code(text: str) -> str:
    """`text` with blanks in place of what shows as code to every reader (A2); lines stay lines."""
    text = _OTHER_BREAK.sub("\n", text)
    lines = text.split("\n")
    bounds = None if _is_doubtful(text) else _fences(lines)
    if bounds is None:
        return text
    inside = {number for first, last in bounds for number in range(first, last + 1)}
    shown: list[str] = []
    doubt = False
    for number, line in enumerate(lines):
        if number in inside or not line.strip():
            shown.append("")
            doubt = False
            continue
        masked, doubt = _without_spans(line, doubt=doubt)
        shown.append(masked)
    return "\n".join(shown)


def _search(text: str) -> int | None:
    view = html.unescape(text) if _ENTITY.search(text) else text
    any_form, reference, by_reference = _compiled()
    found = any_form.search(view)
    if found is None and "![" in view and by_reference.search(view) is not None:
        found = reference.search(view)
    return None if found is None else len(_BREAK.findall(view, 0, found.start())) + 1


@cache
def _compiled() -> tuple[Any, Any, Any]:
    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = False
    options.max_mem = _MAX_PROGRAM_BYTES
    any_form = "|".join(f"(?:{pattern})" for pattern in _PATTERNS)
    return tuple(re2.compile(pattern, options) for pattern in (any_form, _REFERENCE, _BY_REFERENCE))


def _is_doubtful(text: str) -> bool:
    """Whether where code begins depends on where front matter ends."""
    front = locate(text)
    if front is None:
        return opens(text)
    return "```" in text[: front.body] or "~~~" in text[: front.body]


def _fences(lines: list[str]) -> list[tuple[int, int]] | None:
    """First and last line of each block that is code to every reader; None if HTML makes that doubtful."""
    found: list[tuple[int, int]] = []
    fence, first, certain = "", 0, True
    for number, line in enumerate(lines):
        if not fence:
            if _OPENS_HTML.match(line):
                return None
            opening = _FENCE.fullmatch(line)
            if opening is not None:
                fence, first = opening[1], number
                certain = opening[2].strip("{}.=").lower() not in _NO_CODE
        elif _closes(line, fence):
            if certain:
                found.append((first, number))
            fence = ""
        elif _LIKE_A_FENCE.match(line):
            certain = False
    return found


def _closes(line: str, fence: str) -> bool:
    text = line.strip(" \t")
    return len(text) >= len(fence) and not text.strip(fence[0]) and not line.startswith(("    ", "\t"))


def _without_spans(line: str, *, doubt: bool) -> tuple[str, bool]:
    """`line` without its code spans, and whether what follows in the paragraph may be no code after all."""
    if doubt or "`" not in line:
        return line, doubt or any(not found[0].startswith("`") for found in _TICKS.finditer(line))
    marks = list(_TICKS.finditer(line))
    parts: list[str] = []
    position = index = 0
    while index < len(marks):
        mark = marks[index]
        closing = (
            next((n for n in range(index + 1, len(marks)) if marks[n][0] == mark[0]), None)
            if mark[0].startswith("`")
            else None
        )
        if closing is None:
            return "".join([*parts, line[position:]]), True
        inner = line[mark.end() : marks[closing].start()]
        parts += [line[position : mark.start()], " " if "|" not in inner else inner]
        position, index = marks[closing].end(), closing + 1
    return "".join([*parts, line[position:]]), False
