r"""The generated listing of a root, `MEMORY.md`: a function of its rows, byte for byte.

Holds, whatever the fields of the entries contain:

- I1. Each listed entry is one physical line, `- [name](rel/path.md) — description`. The text between holds no
  control, direction or invisible character, and nothing that CommonMark or GitHub's dialect takes for a link,
  image, HTML, emphasis, code, heading, table or reference. Web addresses, `www.` and mail addresses get a
  space inside, since programs that link plain text do not heed a backslash.
- I2. The target is percent-encoded and decodes to the real path.
- I3. The same rows in any order give the same bytes.
- I4. At most `MAX_LINES` lines and `MAX_BYTES` bytes. What does not fit is counted in the notice. A line has
  at most `MAX_LINE_BYTES` bytes; name and description give way to the path, but a path is never cut, so a
  longer path makes a longer line.
- I5. An entry that is trusted less than `workspace` appears by path and label only: other agents load this
  file as instructions. An unreadable one appears by path, with a note.

What does not hold: a name or description can still *say* anything in plain words, and a bare host name
without `www.` may be linked by programs that guess.

Attacked in tests/store/test_index.py, with markdown-it-py as the oracle.
Source: CommonMark 0.31.2, sections 2.4 and 6; GitHub Flavored Markdown, 6.9.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from muniment.content.entry import MAX_DESCRIPTION_CHARS, MAX_NAME_CHARS
from muniment.content.gates import one_line
from muniment.errors import PathEscape, Refusal
from muniment.names import INDEX_DIRECTORY, INDEX_NAME, RelPath, Scope, Trust
from muniment.policy.grammar import FILE_SUFFIX, canonicalise, fold

HEADING: Final = "# Memory index"

MAX_LINES: Final = 200
"""Lines of an index page: what coding agents load of a `MEMORY.md` before they cut it."""

MAX_BYTES: Final = 25_000
"""UTF-8 bytes of an index page, for the same reason."""

MAX_LINE_BYTES: Final = 500
"""UTF-8 bytes of an entry's line with its line break."""

_HEAD_LINES: Final = 4
_MIN_NAME_BYTES: Final = 40  # what a name keeps, however long the path is
_CLOSING_BYTES: Final = len("- []()\n")
_DASH: Final = " — "
_NOTICE: Final = re.compile(
    r"Generated from the [0-9]+ entr(?:y|ies) of \S{1,400}; changes made here are lost\."
    r"(?: [0-9]+ more entr(?:y|ies) (?:is|are) not listed here\.)?"
)
_LINK_LINE: Final = re.compile(r"[ \t]*[-*+][ \t]+\[(?:[^\]\\]|\\.)*\]\(([^)]+)\).*")
_LINE_BREAK: Final = re.compile("\r\n|\n|\r")
_ANY_SCOPE: Final = Scope(
    "x"
)  # the scope of an index is not in it, and what is asked here does not depend on it
_MARKUP: Final = re.compile(r"[\\`*_\[\]<>&!|#~]")
_WEB_ADDRESS: Final = re.compile(r":(?=//)")
_WWW: Final = re.compile(r"www(?=\.)", re.IGNORECASE)
_MAIL: Final = re.compile(r"@(?=\S)")


@dataclass(frozen=True, slots=True)
class IndexRow:
    """What the index may know of one entry.

    Attributes:
        rel: canonical path inside the scope.
        name: any text; where nothing of it can be shown, the path stands in.
        description: any text, also empty.
        trust: where the entry comes from (I5).
        readable: whether its file could be read (I5).
    """

    rel: RelPath
    name: str
    description: str
    trust: Trust
    readable: bool = True


def is_index_path(rel: str) -> bool:
    """Whether `rel` is the index of a root or lies in its directory of index pages."""
    return rel == INDEX_NAME or rel.split("/", 1)[0] == INDEX_DIRECTORY


def render_index(scope: Scope, rows: Sequence[IndexRow]) -> bytes:
    """`MEMORY.md` for the entries of a scope (I1 to I5).

    Args:
        scope: the name of the scope, for the notice.
        rows: the entries, in any order, each path once; rows for the index itself are left out.

    Cost: linear in the rows, save for sorting them.
    """
    entries = sorted(
        (row for row in rows if not is_index_path(row.rel)), key=lambda row: (fold(row.rel), row.rel)
    )
    head = _head(scope, len(entries), 0)
    lines = [_line(row) for row in entries]
    if _fits(head, lines):
        return "".join([head, *lines]).encode()
    # The count of all entries has at least as many digits as the count of those left out.
    room = MAX_BYTES - len(_head(scope, len(entries), len(entries)).encode())
    listed: list[str] = []
    for line in lines[: MAX_LINES - _HEAD_LINES]:
        room -= len(line.encode())
        if room < 0:
            break
        listed.append(line)
    return "".join([_head(scope, len(entries), len(entries) - len(listed)), *listed]).encode()


def is_generated(data: bytes) -> bool:
    """Whether an index file holds nothing that a person would miss.

    That is: blank lines, lines of a list that begin with a link to a file that an entry or index page may be
    (whatever other tools wrote behind it), and our own heading and notice. Anything else, such as a link to a
    web page or what is not UTF-8, is to be saved before it is replaced.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False
    lines = (line.rstrip(" \t") for line in _LINE_BREAK.split(text))
    return all(not line or line == HEADING or _NOTICE.fullmatch(line) or _linked(line) for line in lines)


def excerpt(index: bytes, shows: Callable[[RelPath], bool]) -> str:
    """The text of a generated index without the lines of the files that are not to be shown.

    Heading, notice and blank lines stay; line breaks become LF.

    Args:
        index: what `is_generated` is true of.
        shows: asked once a line, with the path inside the scope; for index pages too. A link that leads to
            no such path is left out unasked.

    Raises:
        UnicodeDecodeError: the index is not UTF-8, and so not a generated one.
    """
    return "\n".join(
        line
        for line in _LINE_BREAK.split(index.decode("utf-8-sig"))
        if _LINK_LINE.fullmatch(line) is None or ((rel := _linked(line)) is not None and shows(rel))
    )


def _linked(line: str) -> RelPath | None:
    """The path that a line of a list links to, if an entry or index page may have it."""
    found = _LINK_LINE.fullmatch(line)
    if found is None:
        return None
    try:
        rel = canonicalise(f"{_ANY_SCOPE}/{unquote(found[1], errors='strict')}", (_ANY_SCOPE,)).rel
    except (UnicodeDecodeError, PathEscape, Refusal):
        return None
    return rel if rel.endswith(FILE_SUFFIX) else None


def _head(scope: Scope, count: int, missing: int) -> str:
    entries = "entry" if count == 1 else "entries"
    notice = (
        f"Generated from the {count} {entries} of {_escaped(scope, 80, 320)}; changes made here are lost."
    )
    if missing:
        more = "entry is" if missing == 1 else "entries are"
        notice += f" {missing} more {more} not listed here."
    return "\n".join([HEADING, "", notice, *([""] if count else []), ""])


def _fits(head: str, lines: Sequence[str]) -> bool:
    return len(lines) <= MAX_LINES - _HEAD_LINES and len("".join([head, *lines]).encode()) <= MAX_BYTES


def _line(row: IndexRow) -> str:
    target = quote(row.rel, safe="/")
    room = MAX_LINE_BYTES - _CLOSING_BYTES - len(target)
    trusted = row.trust in (Trust.OWNER, Trust.WORKSPACE)
    label = None if trusted else str(row.trust)
    if not row.readable:
        label = "unreadable"
    text = label or row.description
    name = "" if label else _escaped(row.name, MAX_NAME_CHARS, max(_MIN_NAME_BYTES, room))
    if not name:
        name = _escaped(row.rel, MAX_NAME_CHARS, max(_MIN_NAME_BYTES, room))
    room -= len(name.encode()) + len(_DASH.encode())
    description = _escaped(text, MAX_DESCRIPTION_CHARS, room)
    return f"- [{name}]({target}){_DASH if description else ''}{description}\n"


def _escaped(text: str, chars: int, size: int) -> str:
    """`text` as literal markdown on one line, at most `chars` characters and `size` bytes once escaped."""
    plain = one_line(_WEB_ADDRESS.sub(": ", _WWW.sub(r"\g<0> ", _MAIL.sub("@ ", one_line(text)))))
    units = [f"\\{char}" if _MARKUP.match(char) else char for char in plain[: chars + 1]]
    kept = _fitting(units, chars, size)
    if len(kept) == len(plain):
        return "".join(kept)
    kept = _fitting(units, chars - 1, size - len("…".encode()))
    return f"{''.join(kept).rstrip()}…" if kept else ""


def _fitting(units: Sequence[str], chars: int, size: int) -> Sequence[str]:
    for count, unit in enumerate(units[:chars]):
        size -= len(unit.encode())
        if size < 0:
            return units[:count]
    return units[:chars]
