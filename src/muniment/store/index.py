"""The format of the generated listing of a root: `MEMORY.md` and the pages in `index/`. Pure.

Guaranteed for any content of the entries' fields:

- I1. Each listed entry is one physical line, `- [name](rel/path.md) — description`. The text in it contains
  no control, direction or invisible character. It contains nothing that CommonMark or GitHub's dialect reads
  as a link, image, HTML, emphasis, code, heading, table or reference. Web addresses, `www.` and mail
  addresses get a space inside, because programs that link plain text ignore a backslash. The same is true for
  topics in headings and links of pages.
- I2. A target is percent-encoded, and resolves from the file that contains it to the real path.
- I3. The same entries in any order give the same bytes (`index_layout.py` sorts them).
- I4. A file has at most `MAX_LINES` lines and `MAX_BYTES` bytes. A line has at most `MAX_LINE_BYTES` bytes:
  name and description are shortened, but a path is never cut, so a longer path makes a longer line.
- I5. An entry that is withheld, or trusted less than `workspace`, appears by path and label only: other
  agents load these files as instructions. An unreadable entry appears by path, with a note.
- I6. A file for which `is_replaceable` is True contains only text of current entries. In `index/` this is
  also limited to pages that this module would give that file name.

Not guaranteed: a name or description can still contain any *statement* in plain words, and programs that
guess may link a bare host name without `www.`.

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
"""Lines of an index file: the part of a `MEMORY.md` that coding agents load."""

MAX_BYTES: Final = 25_000
"""UTF-8 bytes of an index file, for the same reason."""

MAX_LINE_BYTES: Final = 500
"""UTF-8 bytes of an entry's line in `MEMORY.md`, with its line break."""

HEAD_LINES: Final = 4
"""Lines of heading and notice, each followed by a blank one."""

PAGE_HEAD_BYTES: Final = 1_000
"""UTF-8 bytes reserved for heading and notice of a page, more than either can need. So whether entries fit on
a page depends on their lines alone.
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
"""Characters of a path that others created: enough to find a file, too few for an instruction."""

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
    """The fields of an entry that the index may use.

    Attributes:
        rel: canonical path inside the scope.
        name: any text; if nothing of it can be displayed, the path is used instead.
        description: any text, also empty.
        trust: of the entry (I5).
        is_readable: whether its file could be read (I5).
        is_withheld: whether a gate withholds its text (I5).
    """

    rel: RelPath
    name: str
    description: str
    trust: Trust
    is_readable: bool = True
    is_withheld: bool = False


def is_index_path(rel: str) -> bool:
    """Return whether `rel` is the index of a root or inside its directory of index pages."""
    return rel == INDEX_NAME or rel.split("/", 1)[0] == INDEX_DIRECTORY


def format_entry_line(row: IndexRow) -> str:
    """Return the line of an entry in `MEMORY.md`, with its line break (I1, I2, I4, I5).

    Text that name and description share appears once: a description with the same content is omitted, and a
    description replaces a name that is only its cut beginning.

    Cost: about 6 µs if name and description are plain ASCII without markup; twice that if they are similar.
    """
    if _choose_label(row):
        return format_legacy_line(row)
    name, description = _merge_titles(row.name, row.description)
    return _format_line(row.rel, name, description, MAX_NAME_CHARS if description else MAX_DESCRIPTION_CHARS)


def format_legacy_line(row: IndexRow) -> str:
    """Return the line in an earlier format: with a description that repeats the name."""
    label = _choose_label(row)
    return _format_line(row.rel, "" if label else row.name, label or row.description, MAX_NAME_CHARS)


def format_page_link(topic: str, prefix: str, entries: int, target: str) -> str:
    """Return the line that links a page of entries, with its line break.

    Args:
        topic: the directory whose entries the page lists; "" for the root.
        prefix: of the keys of its entries, hexadecimal; "" if it lists the complete topic.
        entries: number of listed entries.
        target: its path, relative to the file that contains the line.
    """
    return f"- [{_format_page_title(topic, prefix)}]({target}) — {_format_count(entries)}\n"


def format_pages_link(prefix: str, pages: int, entries: int, target: str) -> str:
    """Return the line that links a page of links to `pages` pages; otherwise as `format_page_link`."""
    counted = f"{pages} {'page' if pages == 1 else 'pages'}, {_format_count(entries)}"
    return f"- [pages {prefix}]({target}) — {counted}\n"


def fits_index(scope: Scope, entries: int, size: int) -> bool:
    """Return whether `MEMORY.md` can list that many entries, whose lines have `size` bytes."""
    return (
        entries <= MAX_LINES - HEAD_LINES and len(_format_head(scope, entries).encode()) + size <= MAX_BYTES
    )


def fits_page(entries: int, size: int) -> bool:
    """Return whether one page can list that many entries, whose lines have `size` bytes in `MEMORY.md`."""
    return fits_links(entries, size + len(_PARENT_PREFIX) * entries)


def fits_links(lines: int, size: int) -> bool:
    """Return whether one page can contain that many lines, of `size` bytes."""
    return lines <= MAX_LINES - HEAD_LINES and size <= MAX_BYTES - PAGE_HEAD_BYTES


def fits_half_index(lines: int, size: int) -> bool:
    """Return whether links to pages take at most half of `MEMORY.md`."""
    return lines <= (MAX_LINES - HEAD_LINES) // 2 and size <= MAX_BYTES // 2


def render_index(scope: Scope, entries: int, lines: Iterable[str], links: Sequence[str] = ()) -> bytes:
    """Return `MEMORY.md` (I1 to I5): as many entries as fit next to the links to pages, then these links.

    Args:
        scope: the name of the scope, for the notice.
        entries: total number of entries.
        lines: of the entries, the most important first; at least as many as can fit, or all.
        links: lines that link to pages with every entry; at most half a page. Empty: the
            index has no pages, and entries that do not fit are only counted.
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
    """Return a page in `index/` for entries of one topic, titled as in `format_page_link`.

    The lines are in order and in the format of `format_entry_line`; targets are made relative to `index/`
    here.
    """
    head = _format_page_head(scope, _format_page_title(topic, prefix), len(lines))
    return f"{head}{_prefix_targets(''.join(lines))}".encode()


def render_links(scope: Scope, prefix: str, entries: int, links: Sequence[str]) -> bytes:
    """Return a page in `index/` that links pages with `entries` entries in all."""
    return f"{_format_page_head(scope, f'pages {prefix}', entries)}{''.join(links)}".encode()


def is_page_file_name(name: str) -> bool:
    """Return whether a page in `index/` could have this name."""
    return _PAGE_FILE.fullmatch(name) is not None or _LINKS_FILE.fullmatch(name) is not None


def is_generated(data: bytes, rel: str = INDEX_NAME) -> bool:
    """Return whether an index file has the generated format; a user's links with notes may have it too.

    For `MEMORY.md` the format is: blank lines, the generated heading and notice, and list lines that begin
    with a link to a file that may be an entry or index page (other tools may append text). For a page, the
    heading must also match its name, and all links must point to entries of its topic, or to pages. A page
    may also be blank, as a crash may leave it.

    Args:
        data: content of the file.
        rel: its path inside the scope: `MEMORY.md`, or that of a page.
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
    """Return whether `new_content` can replace an index file without loss, no matter who wrote it (I6).

    Each of its lines must be one of: blank, a conflict marker of git, the generated heading or notice, a line
    of `new_content`, a link to a page whose name matches the topic, or the line of a current entry, for any
    trust.

    Args:
        data: content of the file.
        rel: its path inside the scope.
        new_content: the new content.
        list_lines: returns the lines that an entry may have in `MEMORY.md`, with line breaks; empty if the
            entry is missing.
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
    """Return a shortened path for a model: three words per folder, at most `MAX_DISPLAYED_CHARS`."""
    *folders, name = rel.removesuffix(FILE_SUFFIX).split("/")
    parts = ["-".join(_WORD.findall(folder.lower())[:3]) for folder in folders]
    return "/".join([*parts, "-".join(_WORD.findall(name.lower()))])[:MAX_DISPLAYED_CHARS].strip("-/")


def filter_index(
    index: bytes,
    is_displayed: Callable[[RelPath], bool],
    get_lower_trust: Callable[[RelPath], Trust | None] = lambda _: None,
) -> str:
    """Return the text of a generated `MEMORY.md` without the lines of hidden entries.

    Heading, notice and blank lines stay; line breaks become LF. The link to a page of entries stays if both
    the page and an entry of its topic would be displayed, and the topic is certain from the line. Links to
    pages of links are removed: they contain no names.

    Args:
        index: content for which `is_generated` is True.
        is_displayed: called with paths inside the scope, also of missing files. A link to any other target is
            omitted without a call.
        get_lower_trust: returns the trust of an entry that the reader trusts less than themselves, else
            None. Only trust and `shorten_path` of such an entry are displayed; the same for the folder of a
            page.

    Raises:
        UnicodeDecodeError: the index is not UTF-8, and so not a generated one.
    """
    lines = _LINE_BREAK.split(index.decode("utf-8-sig"))
    displayed = (_filter_line(line, is_displayed, get_lower_trust) for line in lines)
    return "\n".join(line for line in displayed if line is not None)


def digest_topic(topic: str) -> str:
    """Return the SHA-256 of a topic, hexadecimal; the names of its pages begin with its first digits."""
    return digest(topic.encode())


def _filter_line(
    line: str, is_displayed: Callable[[RelPath], bool], get_lower_trust: Callable[[RelPath], Trust | None]
) -> str | None:
    """Return a line without the text of less trusted authors; None if the line is hidden."""
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
    """Return lines of entries in the form that they have in a page."""
    # A bracket inside a name or description is preceded by a backslash.
    return (
        _TARGET.sub(rf"\g<0>{_PARENT_PREFIX}", text)
        if "\\" in text
        else text.replace("](", f"]({_PARENT_PREFIX}")
    )


def _is_page_link(line: str, rel: RelPath) -> bool:
    """Return whether a line is a link to that page, with only words that match the name of the page."""
    tail = line.rpartition(")")[2]
    if (page := _LINKS_FILE.fullmatch(rel.partition("/")[2])) is not None:
        return line.startswith(f"- [pages {page[1]}](") and _PAGES_COUNTED.fullmatch(tail) is not None
    return _COUNTED.fullmatch(tail) is not None and _find_linked_topic(line, rel) is not None


def _find_linked_topic(line: str, rel: RelPath) -> str | None:
    """Return the topic whose page a line of `MEMORY.md` links, if the name of the page matches the topic."""
    link, page = _LINK_LINE.fullmatch(line), _PAGE_FILE.fullmatch(rel.partition("/")[2])
    if link is None or page is None:
        return None
    title = _ESCAPE.sub(r"\1", link[1]).removesuffix(_format_part(page[2] or ""))
    topic = "" if title == _NO_TOPIC else title
    return topic if digest_topic(topic).startswith(page[1]) else None


def _find_link_target(line: str, directory: str = "") -> RelPath | None:
    """Return the path that a list line links to, if an entry or index page may have it.

    Args:
        line: of an index file.
        directory: of the file: the root or `index`.
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
    """Return the heading that a page of that name has with these links; None if it cannot have them."""
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
    """Return the line of an entry; the path replaces a name that cannot be displayed."""
    target = quote(rel, safe="/")
    remaining_bytes = MAX_LINE_BYTES - _CLOSING_BYTES - len(target)
    displayed_name = _escape_text(name, chars, max(_MIN_NAME_BYTES, remaining_bytes))
    if not displayed_name:
        displayed_name = _escape_text(rel, MAX_NAME_CHARS, max(_MIN_NAME_BYTES, remaining_bytes))
    remaining_bytes -= _count_bytes(displayed_name) + len(_DASH.encode())
    displayed_description = _escape_text(description, MAX_DESCRIPTION_CHARS, remaining_bytes)
    return f"- [{displayed_name}]({target}){_DASH if displayed_description else ''}{displayed_description}\n"


def _merge_titles(name: str, description: str) -> tuple[str, str]:
    """Return name and description; if they are equivalent, only the longer one, as the name."""
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
    """Return the label that replaces an entry's text; empty if the text may be displayed."""
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
    """Return the first of `units`, at most `max_count`, with at most `size` bytes in all."""
    if _count_bytes("".join(units[:max_count])) <= size:
        return units[:max_count]
    for count, unit in enumerate(units[:max_count]):
        size -= len(unit.encode())
        if size < 0:
            return units[:count]
    return units[:max_count]


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
