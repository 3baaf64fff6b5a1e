"""The format of the generated index of a root: `MEMORY.md` and the pages in `index/`. Pure.

Guaranteed for any content of the entries' fields:

- I1. Each listed entry is one physical line, `- [name](rel/path.md) — description`. The text in it contains
  no control, direction or invisible character. It contains nothing that CommonMark or GitHub's dialect reads
  as a link, image, HTML, emphasis, code, heading, table or reference. Web addresses, `www.` and mail
  addresses get a space inside, because programs that link plain text ignore a backslash. The same is true for
  topics (folders) in headings and in links to pages.
- I2. A link target is percent-encoded, and resolves from the file that contains it to the real path.
- I3. The same entries in any order give the same bytes (`index_layout.py` sorts them).
- I4. A file has at most `MAX_LINES` lines and `MAX_BYTES` bytes. A line has at most `MAX_LINE_BYTES` bytes:
  name and description are shortened. A path is never cut, so a longer path makes a longer line.
- I5. An entry that is withheld, or trusted less than `workspace`, appears only with its path and a label,
  because other agents load these files as instructions. An unreadable entry appears with its path and a note.
- I6. A file for which `is_replaceable` is True contains only text of current entries. In `index/` it is also
  a page to which this module would give that file name.

Not guaranteed: a name or description can still contain any *statement* in plain words. A program that guesses
links may link a host name without `www.`.

Attacked in tests/units/store/test_index.py, with markdown-it-py as the oracle.
Source: CommonMark 0.31.2, sections 2.4 and 6; GitHub Flavored Markdown, 6.9.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from muniment.content.entry import MAX_DESCRIPTION_CHARS, MAX_NAME_CHARS
from muniment.content.gates import clean_line
from muniment.content.titles import derive_title
from muniment.content.words import build_comparison_key
from muniment.errors import PathEscape, Refusal
from muniment.kernel.change import digest
from muniment.kernel.names import INDEX_DIRECTORY, INDEX_NAME, RelPath, Scope, Trust, join_path
from muniment.kernel.path import FILE_SUFFIX, canonicalise

HEADING: Final = "# Memory index"

MAX_LINES: Final = 200
"""Maximum lines of an index file: coding agents load only so many lines of a `MEMORY.md`."""

MAX_BYTES: Final = 25_000
"""Maximum UTF-8 bytes of an index file: coding agents load only so many bytes of a `MEMORY.md`."""

MAX_LINE_BYTES: Final = 500
"""Maximum UTF-8 bytes of the line of an entry in `MEMORY.md`, with its line break."""

HEAD_LINES: Final = 4
"""Number of lines for heading and notice of an index file, each followed by a blank line."""

PAGE_HEAD_BYTES: Final = 1_000
"""UTF-8 bytes reserved for heading and notice of a page: more than they can need.

So the lines of entries alone decide how many entries fit on a page.
"""

_PARENT_PREFIX: Final = "../"
_MIN_NAME_BYTES: Final = 40  # minimum for a name, even if the path is long
_CLOSING_BYTES: Final = len("- []()\n")
_DASH: Final = " — "
_NO_TOPIC: Final = "(no topic)"  # not a folder's name: the grammar has no parentheses
_ELLIPSIS: Final = "…"
FOLDER_PLACEHOLDER: Final = "entry.md"
_WORD: Final = re.compile(r"[^\W_]+")
MAX_DISPLAYED_CHARS: Final = 40
"""Maximum characters of a path that others created: enough to find a file, too few for an instruction."""

_NOTICE: Final = re.compile(
    r"Generated from (?:the )?[0-9]+ (?:of the )?entr(?:y|ies) of \S{1,400}; changes made here are lost\."
    r"(?: [0-9]+ more entr(?:y|ies) (?:is|are)"
    # an earlier version linked them first
    r" (?:not listed here|only on the pages linked (?:first|last))\.)?"
)
_LINK_LINE: Final = re.compile(r"[ \t]*[-*+][ \t]+\[((?:[^\]\\]|\\.)*)\]\(([^)]+)\).*")
_TARGET: Final = re.compile(r"^- \[(?:[^\]\\]|\\.)*\]\(", re.MULTILINE)
_ESCAPE: Final = re.compile(r"\\(.)")
_LINE_BREAK: Final = re.compile("\r\n|\n|\r")
_MERGE_MARK: Final = re.compile(rb"^(?:<{7}|\|{7}|={7}|>{7})(?: [^\r\n]*)?\r?$", re.MULTILINE)
"""git-merge(1), "How conflicts are presented"."""
_COUNTED: Final = re.compile(f"{_DASH}[0-9]{{1,9}} entr(?:y|ies)")
_PAGES_COUNTED: Final = re.compile(f"{_DASH}[0-9]{{1,9}} pages?, [0-9]{{1,9}} entr(?:y|ies)")
_PAGE_FILE: Final = re.compile(r"([0-9a-f]{1,64})(?:-([0-9a-f]{1,64}))?\.md")
_LINKS_FILE: Final = re.compile(r"_pages-([0-9a-f]{1,64})\.md")
_ANY_SCOPE: Final = Scope("x")  # an index does not contain its scope, and the code does not depend on it
_MARKUP: Final = re.compile(r"[\\`*_\[\]<>&!|#~]")
_WEB_ADDRESS: Final = re.compile(r":(?=//)")
_WWW: Final = re.compile(r"www(?=\.)", re.IGNORECASE)
_MAIL: Final = re.compile(r"@(?=\S)")
_NEEDS_ESCAPING: Final = re.compile(r"[^ -~]|  |[\\`*_\[\]<>&!|#~@]|://|[wW]{3}\.")
"""Everything that `_escape_text` may change in a text that does not begin or end with a space."""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """The fields of an entry that its line in the index may contain.

    Attributes:
        rel: canonical path inside the scope.
        name: any text; if no part of it can be displayed, the path is used instead.
        description: any text; may be empty.
        trust: trust of the entry.
        is_readable: whether the file could be read.
        is_withheld: whether a check withholds the text of the entry from models.
    """

    rel: RelPath
    name: str
    description: str
    trust: Trust
    is_readable: bool = True
    is_withheld: bool = False


def is_index_path(rel: str) -> bool:
    """Return whether `rel` is `MEMORY.md`, or a path in the directory of index pages."""
    return rel == INDEX_NAME or rel.split("/", 1)[0] == INDEX_DIRECTORY


def format_entry_line(row: IndexRow) -> str:
    """Return the line of an entry in `MEMORY.md`, with its line break.

    A text that name and description share appears once: a description that only repeats the name is omitted.
    If the name is only the beginning of the description, the description replaces it.

    Cost: about 6 µs if name and description are plain ASCII without markup; twice that if they are similar.
    """
    if _choose_label(row):
        return format_legacy_line(row)
    name, description = _merge_titles(row.name, row.description)
    return _format_line(row.rel, name, description, MAX_NAME_CHARS if description else MAX_DESCRIPTION_CHARS)


def format_legacy_line(row: IndexRow) -> str:
    """Return the line of an entry in an earlier format, in which the description may repeat the name."""
    label = _choose_label(row)
    return _format_line(row.rel, "" if label else row.name, label or row.description, MAX_NAME_CHARS)


def format_page_link(topic: str, prefix: str, entries: int, target: str) -> str:
    """Return the line that links to a page of entries, with its line break.

    Args:
        topic: the folder whose entries the page lists; "" for the root.
        prefix: hexadecimal beginning of the keys of the listed entries; "" if the page lists the complete
            folder.
        entries: number of listed entries.
        target: path of the page, relative to the file that contains the line.
    """
    return f"- [{_format_page_title(topic, prefix)}]({target}) — {_format_count(entries)}\n"


def format_pages_link(prefix: str, pages: int, entries: int, target: str) -> str:
    """Return the line that links to a page of links, with its line break.

    Args:
        prefix: hexadecimal digits with which the slots of the linked pages begin (see `index_layout.py`).
        pages: number of linked pages.
        entries: number of entries on these pages.
        target: path of the page of links, relative to the file that contains the line.
    """
    counted = f"{pages} {'page' if pages == 1 else 'pages'}, {_format_count(entries)}"
    return f"- [pages {prefix}]({target}) — {counted}\n"


def fits_index(scope: Scope, entries: int, size: int) -> bool:
    """Return whether `MEMORY.md` has space for that many entries.

    Args:
        scope: name of the scope, for the notice.
        entries: number of entries.
        size: bytes of all their lines.
    """
    return (
        entries <= MAX_LINES - HEAD_LINES and len(_format_head(scope, entries).encode()) + size <= MAX_BYTES
    )


def fits_page(entries: int, size: int) -> bool:
    """Return whether one page has space for that many entries.

    Args:
        entries: number of entries.
        size: bytes of all their lines in `MEMORY.md`; a line on a page is longer.
    """
    return fits_links(entries, size + len(_PARENT_PREFIX) * entries)


def fits_links(lines: int, size: int) -> bool:
    """Return whether one page has space for that many lines.

    Args:
        lines: number of lines.
        size: bytes of all these lines.
    """
    return lines <= MAX_LINES - HEAD_LINES and size <= MAX_BYTES - PAGE_HEAD_BYTES


def fits_half_index(lines: int, size: int) -> bool:
    """Return whether lines that link to pages take at most half of `MEMORY.md`.

    Args:
        lines: number of lines.
        size: bytes of all these lines.
    """
    return lines <= (MAX_LINES - HEAD_LINES) // 2 and size <= MAX_BYTES // 2


def render_index(scope: Scope, entries: int, lines: Iterable[str], links: Sequence[str] = ()) -> bytes:
    """Return the content of `MEMORY.md`: as many entries as fit, then the links to pages.

    Args:
        scope: name of the scope, for the notice.
        entries: total number of entries.
        lines: lines of entries, the most important first; all of them, or at least as many as can fit.
        links: lines that link to pages with all entries; at most half of `MEMORY.md`. Empty: the index has no
            pages, and entries that do not fit are only counted.
    """
    # The number of omitted entries has at most as many digits as the total.
    missing_note = "only on the pages linked last" if links else "not listed here"
    below = ["\n", *links] if links else []
    rows = list(lines)
    if not links and len(rows) == entries and fits_index(scope, entries, _count_bytes("".join(rows))):
        return "".join([_format_head(scope, entries), *rows]).encode()
    remaining_bytes = MAX_BYTES - _count_bytes(
        "".join([_format_head(scope, entries, entries, missing_note), *below])
    )
    listed = _take_fitting(rows, MAX_LINES - HEAD_LINES - len(below), remaining_bytes)
    head = _format_head(scope, entries, entries - len(listed), missing_note)
    return "".join([head, *listed, *(below if listed else links)]).encode()


def render_page(scope: Scope, topic: str, prefix: str, lines: Sequence[str]) -> bytes:
    """Return the content of a page in `index/` that lists entries of one folder.

    Args:
        scope: name of the scope, for the notice.
        topic: the folder of the entries; "" for the root.
        prefix: as for `format_page_link`.
        lines: the lines of the entries in `MEMORY.md`, sorted. Their link targets are made relative to
            `index/`.
    """
    head = _format_page_head(scope, _format_page_title(topic, prefix), len(lines))
    return f"{head}{_prefix_targets(''.join(lines))}".encode()


def render_links(scope: Scope, prefix: str, entries: int, links: Sequence[str]) -> bytes:
    """Return the content of a page in `index/` that links to other pages.

    Args:
        scope: name of the scope, for the notice.
        prefix: hexadecimal digits with which the slots of the linked pages begin (see `index_layout.py`).
        entries: number of entries on the linked pages together.
        links: the lines that link to the pages.
    """
    return f"{_format_page_head(scope, f'pages {prefix}', entries)}{''.join(links)}".encode()


def is_page_file_name(name: str) -> bool:
    """Return whether a generated page in `index/` could have this file name."""
    return _PAGE_FILE.fullmatch(name) is not None or _LINKS_FILE.fullmatch(name) is not None


def is_generated(data: bytes, rel: str = INDEX_NAME) -> bool:
    """Return whether an index file has the generated format; a user's own list of links may have it too.

    A `MEMORY.md` has it if it contains only: blank lines, the generated heading and notice, and list items
    that begin with a link to a possible entry or index page. Other tools may append text to such an item. In
    a page, the heading must also match the file name, and all links must point to entries of its folder, or
    to pages. A page may also be blank, because a crash may leave it so.

    Args:
        data: content of the file.
        rel: path inside the scope: `MEMORY.md`, or the path of a page.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return False
    lines = [line for line in (line.rstrip(" \t") for line in _LINE_BREAK.split(text)) if line]
    if rel == INDEX_NAME:
        return all(line == HEADING or _NOTICE.fullmatch(line) or _find_link_target(line) for line in lines)
    if not lines:
        return True
    links = [link for line in lines[2:] if (link := _find_link_target(line, INDEX_DIRECTORY)) is not None]
    return (
        bool(links)
        and len(lines) == len(links) + 2
        and lines[0] == _build_expected_heading(rel, links)
        and _NOTICE.fullmatch(lines[1]) is not None
    )


def is_replaceable(
    data: bytes, rel: str, new_content: bytes, list_lines: Callable[[RelPath], Collection[str]]
) -> bool:
    """Return whether `new_content` can replace an index file without loss, no matter who wrote the file.

    This is the case if each line of the file is one of these: blank; a conflict marker of git; the generated
    heading or notice; a line of `new_content`; a link to a page whose name matches the folder; a line that a
    current entry may have.

    Args:
        data: current content of the file.
        rel: path of the file inside the scope.
        new_content: the new content.
        list_lines: returns the lines that the entry at a path may have in `MEMORY.md`, with line breaks;
            empty if the entry does not exist.
    """
    data = _MERGE_MARK.sub(b"", data)
    if not is_generated(data, rel):
        return False
    directory = "" if rel == INDEX_NAME else INDEX_DIRECTORY
    new_lines = frozenset(new_content.decode().split("\n"))
    for line in _LINE_BREAK.split(data.decode("utf-8-sig")):
        linked = None if line in new_lines else _find_link_target(line, directory)
        if linked is None or _is_page_link(line, linked):
            continue
        entry_lines = list_lines(linked)
        if f"{line}\n" not in (map(_prefix_targets, entry_lines) if directory else entry_lines):
            return False
    return True


def shorten_path(rel: str) -> str:
    """Return a path in a short form for a model: at most `MAX_DISPLAYED_CHARS` characters.

    The name of each folder is cut after its first three words.
    """
    *folders, name = rel.removesuffix(FILE_SUFFIX).split("/")
    parts = ["-".join(_WORD.findall(folder.lower())[:3]) for folder in folders]
    return "/".join([*parts, "-".join(_WORD.findall(name.lower()))])[:MAX_DISPLAYED_CHARS].strip("-/")


def filter_index(
    index: bytes,
    is_displayed: Callable[[RelPath], bool],
    get_lower_trust: Callable[[RelPath], Trust | None] = lambda _: None,
) -> str:
    """Return the text of a generated `MEMORY.md` without the lines of hidden entries.

    Heading, notice and blank lines stay; line breaks become LF. The link to a page of entries stays if the
    page and an entry of its folder would be displayed, and the line makes clear which folder this is. Links
    to pages of links are removed: they contain no names.

    Args:
        index: content for which `is_generated` is True.
        is_displayed: returns whether the entry at a path may be displayed; called also for missing files. A
            link to any other target is removed without a call.
        get_lower_trust: returns the trust of an entry that the reader trusts less than themselves, else None.
            Only trust and `shorten_path` of such an entry are displayed. The same applies to the folder of a
            page.

    Raises:
        UnicodeDecodeError: the index is not UTF-8, and so not a generated one.
    """
    lines = _LINE_BREAK.split(index.decode("utf-8-sig"))
    displayed = (_filter_line(line, is_displayed, get_lower_trust) for line in lines)
    return "\n".join(line for line in displayed if line is not None)


def digest_topic(topic: str) -> str:
    """Return the hexadecimal SHA-256 of a topic (folder); names of its pages begin with its first digits."""
    return digest(topic.encode())


def _filter_line(
    line: str, is_displayed: Callable[[RelPath], bool], get_lower_trust: Callable[[RelPath], Trust | None]
) -> str | None:
    """Return a line of `MEMORY.md` as a reader may see it; None if the line is hidden.

    For the arguments see `filter_index`.
    """
    if _LINK_LINE.fullmatch(line) is None:
        return line
    rel = _find_link_target(line)
    if rel is None or not is_displayed(rel):
        return None
    if rel == INDEX_NAME:
        return line
    if not is_index_path(rel):
        return line if (trust := get_lower_trust(rel)) is None else f"- [{trust}] {shorten_path(rel)}"
    topic = _find_linked_topic(line, rel)
    if topic is None or not is_displayed(entry := join_path(topic, FOLDER_PLACEHOLDER)):
        return None
    return line if get_lower_trust(entry) is None else f"- [{shorten_path(entry)}]({rel})"


def _prefix_targets(text: str) -> str:
    """Return the lines of entries with link targets relative to `index/` instead of the root."""
    # A bracket inside a name or description is preceded by a backslash.
    return (
        _TARGET.sub(rf"\g<0>{_PARENT_PREFIX}", text)
        if "\\" in text
        else text.replace("](", f"]({_PARENT_PREFIX}")
    )


def _is_page_link(line: str, rel: RelPath) -> bool:
    """Return whether a line is a generated link to the page `rel`, and its text matches the page's name."""
    tail = line.rpartition(")")[2]
    if (page := _LINKS_FILE.fullmatch(rel.partition("/")[2])) is not None:
        return line.startswith(f"- [pages {page[1]}](") and _PAGES_COUNTED.fullmatch(tail) is not None
    return _COUNTED.fullmatch(tail) is not None and _find_linked_topic(line, rel) is not None


def _find_linked_topic(line: str, rel: RelPath) -> str | None:
    """Return the topic (folder) that the text of a link names, if it is the topic of the linked page.

    Args:
        line: line of `MEMORY.md`.
        rel: path of the linked page.
    """
    link, page = _LINK_LINE.fullmatch(line), _PAGE_FILE.fullmatch(rel.partition("/")[2])
    if link is None or page is None:
        return None
    title = _ESCAPE.sub(r"\1", link[1]).removesuffix(_format_part(page[2] or ""))
    topic = "" if title == _NO_TOPIC else title
    return topic if digest_topic(topic).startswith(page[1]) else None


def _find_link_target(line: str, directory: str = "") -> RelPath | None:
    """Return the path that a list item links to, if an entry or an index page may have this path.

    Args:
        line: line of an index file.
        directory: directory of the index file: "" for the root, or `index`.
    """
    found = _LINK_LINE.fullmatch(line)
    if found is None:
        return None
    target = found[2]
    if directory:
        target = (
            target.removeprefix(_PARENT_PREFIX)
            if target.startswith(_PARENT_PREFIX)
            else f"{directory}/{target}"
        )
    try:
        rel = canonicalise(f"{_ANY_SCOPE}/{unquote(target, errors='strict')}", (_ANY_SCOPE,)).rel
    except (UnicodeDecodeError, PathEscape, Refusal):
        return None
    return rel if rel.endswith(FILE_SUFFIX) else None


def _build_expected_heading(rel: str, links: Sequence[RelPath]) -> str | None:
    """Return the heading of the page `rel` with these links; None if the page cannot contain them."""
    name = rel.partition("/")[2]
    if (page := _LINKS_FILE.fullmatch(name)) is not None:
        return f"{HEADING}: pages {page[1]}" if all(map(is_index_path, links)) else None
    topics = {link.rpartition("/")[0] for link in links}
    page, topic = _PAGE_FILE.fullmatch(name), topics.pop()
    if page is None or topics or not digest_topic(topic).startswith(page[1]):
        return None
    return f"{HEADING}: {_format_page_title(topic, page[2] or '')}"


def _format_head(scope: Scope, count: int, missing: int = 0, missing_note: str = "") -> str:
    entries = "entry" if count == 1 else "entries"
    notice = f"Generated from the {count} {entries} of {_format_scope(scope)}; changes made here are lost."
    if missing:
        notice += f" {missing} more {'entry is' if missing == 1 else 'entries are'} {missing_note}."
    return "\n".join([HEADING, "", notice, *([""] if count else []), ""])


def _format_page_head(scope: Scope, title: str, count: int) -> str:
    notice = f"Generated from {count} of the entries of {_format_scope(scope)}; changes made here are lost."
    return "\n".join([f"{HEADING}: {title}", "", notice, "", ""])


def _format_page_title(topic: str, prefix: str) -> str:
    return (_escape_text(topic, MAX_NAME_CHARS, 4 * MAX_NAME_CHARS) or _NO_TOPIC) + _format_part(prefix)


def _format_part(prefix: str) -> str:
    return f", part {prefix}" if prefix else ""


def _format_scope(scope: Scope) -> str:
    return _escape_text(scope, 80, 320)


def _format_count(entries: int) -> str:
    return f"{entries} {'entry' if entries == 1 else 'entries'}"


def _format_line(rel: RelPath, name: str, description: str, chars: int) -> str:
    """Return the line of an entry; its path replaces a name that cannot be displayed.

    Args:
        rel: path of the entry.
        name: any text.
        description: any text.
        chars: maximum characters of the name.
    """
    target = quote(rel, safe="/")
    remaining_bytes = MAX_LINE_BYTES - _CLOSING_BYTES - len(target)
    displayed_name = _escape_text(name, chars, max(_MIN_NAME_BYTES, remaining_bytes))
    if not displayed_name:
        displayed_name = _escape_text(rel, MAX_NAME_CHARS, max(_MIN_NAME_BYTES, remaining_bytes))
    remaining_bytes -= _count_bytes(displayed_name) + len(_DASH.encode())
    displayed_description = _escape_text(description, MAX_DESCRIPTION_CHARS, remaining_bytes)
    return f"- [{displayed_name}]({target}){_DASH if displayed_description else ''}{displayed_description}\n"


def _merge_titles(name: str, description: str) -> tuple[str, str]:
    """Return name and description; if they have the same content, return only the longer one, as the name."""
    name_key, description_key = build_comparison_key(name), build_comparison_key(description)
    is_cut = name.rstrip().endswith(_ELLIPSIS)
    if not is_cut and name_key == description_key:
        return name, ""
    if (
        name_key.partition(" ")[0] not in description_key
    ):  # Without its first word, the name is not a title of it.
        return name, description
    title = derive_title(clean_line(description))
    is_titled = name_key == build_comparison_key(title)
    if is_cut and (is_titled or description_key.startswith(name_key)):
        return description, ""
    return name, "" if is_titled and not title.endswith(_ELLIPSIS) else description


def _choose_label(row: IndexRow) -> str:
    """Return the label that replaces the text of an entry; empty if the text may be displayed."""
    if not row.is_readable:
        return "unreadable"
    if row.is_withheld:
        return "held"
    return "" if row.trust in (Trust.OWNER, Trust.WORKSPACE) else str(row.trust)


def _escape_text(text: str, chars: int, size: int) -> str:
    """Return `text` as literal markdown on one line, with at most `chars` characters and `size` bytes."""
    if len(text) <= min(chars, size) and _NEEDS_ESCAPING.search(text) is None and text == text.strip(" "):
        return text
    single_line = clean_line(_WEB_ADDRESS.sub(": ", _WWW.sub(r"\g<0> ", _MAIL.sub("@ ", clean_line(text)))))
    units = [f"\\{char}" if _MARKUP.match(char) else char for char in single_line[: chars + 1]]
    fitting_units = _take_fitting(units, chars, size)
    if len(fitting_units) == len(single_line):
        return "".join(fitting_units)
    fitting_units = _take_fitting(units, chars - 1, size - len("…".encode()))
    return f"{''.join(fitting_units).rstrip()}…" if fitting_units else ""


def _take_fitting(units: Sequence[str], max_count: int, size: int) -> Sequence[str]:
    """Return the first of `units`: as many as fit into `size` bytes together, at most `max_count`."""
    if _count_bytes("".join(units[:max_count])) <= size:
        return units[:max_count]
    for count, unit in enumerate(units[:max_count]):
        size -= len(unit.encode())
        if size < 0:
            return units[:count]
    return units[:max_count]


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
