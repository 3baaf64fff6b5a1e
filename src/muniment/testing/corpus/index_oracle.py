"""Check an index with a CommonMark parser. The checks do not depend on the code that writes indexes.

A safe index is one heading, paragraphs of plain text, and one list. Each list item is one physical line and
starts with the only link of the item, whose target decodes to a file. Any other markup that markdown or a
terminal would interpret is a forgery. An index that does not fit in one file links to every entry once,
through pages in `index/`, which must be equally safe.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

_BLOCKS: Final = frozenset(
    {
        "heading_open",
        "heading_close",
        "paragraph_open",
        "paragraph_close",
        "bullet_list_open",
        "bullet_list_close",
        "list_item_open",
        "list_item_close",
        "inline",
    }
)
_INLINES: Final = frozenset({"text", "text_special"})
_CATEGORIES: Final = frozenset({"Cc", "Cs", "Co", "Cn", "Zl", "Zp"})
_INVISIBLE: Final = re.compile(
    "[\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e007f]"
)
INDEX: Final = "MEMORY.md"
PAGES: Final = "index/"

_AUTOLINK: Final = re.compile(r"\w://\S|www\.\S|\S@\S+\.\S", re.IGNORECASE)
"""Text that the markdown extensions of GitHub turn into a link."""


def list_targets(data: bytes) -> list[str]:
    """Return the percent-decoded targets of all links in a markdown text, in order."""
    return [
        unquote(str(child.attrs["href"]))
        for token in _parse(data.decode())
        for child in token.children or ()
        if child.type == "link_open"
    ]


def find_memory_problems(root: Path, files: set[str]) -> Iterator[str]:
    """Yield the problems of the index in a root: of `MEMORY.md` and the pages that it links to.

    Args:
        root: the directory with the index.
        files: paths of the existing entries, relative to the root.
    """
    data = (root / INDEX).read_bytes()
    targets = list_targets(data)
    if not any(target.startswith(PAGES) for target in targets):
        yield from find_index_problems(data, files)
        return
    yield from find_index_problems(data, set(targets))
    listed: list[str] = []
    pending, visited = [target for target in targets if target.startswith(PAGES)], set[str]()
    yield from (f"{INDEX} links to {target!r}" for target in sorted({*targets} - {*pending} - files))
    while pending:
        page = pending.pop()
        if page in visited or not (root / page).is_file() or (root / page).is_symlink():
            yield f"{page!r} is linked twice, or is not a file"
            continue
        visited.add(page)
        data = (root / page).read_bytes()
        links = list_targets(data)
        yield from (f"{page}: {problem}" for problem in find_index_problems(data, set(links)))
        linked = [posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in links]
        pending += [path for path in linked if path.startswith(PAGES)]
        listed += [path for path in linked if not path.startswith(PAGES)]
    if sorted(listed) != sorted(files):
        yield f"the pages link to {sorted(listed)!r}, expected {sorted(files)!r}"


def find_index_problems(data: bytes, files: set[str]) -> Iterator[str]:
    """Yield the problems of one file of an index.

    Args:
        data: content of the file.
        files: the paths that the file must link to, relative to its directory.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        yield "the index is not UTF-8"
        return
    for char in sorted(set(text) - {"\n"}):
        if unicodedata.category(char) in _CATEGORIES or _INVISIBLE.match(char):
            yield f"the index contains U+{ord(char):04X}"
    if re.search(r"(?<!\\)\[\[", text):
        yield "the index contains a wiki link"
    tokens = _parse(text)
    yield from _find_block_problems(tokens)
    items = [tokens[position + 2] for position, token in enumerate(tokens) if token.type == "list_item_open"]
    for item in items:
        yield from _find_item_problems(item)
    lines = [line for line in text.split("\n") if re.match(r"\s*([-*+>#|]|\d+[.)])", line)]
    if len(lines) != len(items) + 1:
        yield f"{len(lines)} lines look like heading or item, the list has {len(items)} items"
    targets = list_targets(data)
    if sorted(targets) != sorted(files):
        yield f"links to {sorted(targets)!r}, expected {sorted(files)!r}"


def _parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def _find_block_problems(tokens: list[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type not in _BLOCKS:
            yield f"the index contains a {token.type}"
    headings = [token for token in tokens if token.type == "heading_open"]
    if [token.tag for token in headings] != ["h1"] or tokens[0].type != "heading_open":
        yield f"the index has {len(headings)} headings, not one at its top"
    if sum(token.type == "bullet_list_open" for token in tokens) > 1:
        yield "the index has more than one list"
    in_list = 0
    for token in tokens:
        in_list += {"bullet_list_open": 1, "bullet_list_close": -1}.get(token.type, 0)
        if token.type == "inline" and not in_list:
            yield from _find_text_problems(token.children or [], "outside the list")


def _find_item_problems(item: Token) -> Iterator[str]:
    children = item.children or []
    kinds = [child.type for child in children]
    if kinds[:1] != ["link_open"] or "link_close" not in kinds:
        yield f"an item does not start with a link: {item.content[:80]!r}"
        return
    end = kinds.index("link_close")
    if not "".join(child.content for child in children[1:end]).strip():
        yield f"a link has no text: {item.content[:80]!r}"
    if children[0].attrs.get("title"):
        yield f"a link has a title: {item.content[:80]!r}"
    yield from _find_text_problems(children[1:end] + children[end + 1 :], item.content[:80])


def _find_text_problems(children: list[Token], context: str) -> Iterator[str]:
    for child in children:
        if child.type not in _INLINES:
            yield f"{child.type} in {context!r}"
    if _AUTOLINK.search("".join(child.content for child in children)):
        yield f"an address that is rendered as a link, in {context!r}"
