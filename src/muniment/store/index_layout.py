"""The set of index files of a root and their contents: a function of the set of its entries alone.

- L1 If the lines of all entries fit in `MEMORY.md`, that is the only file.
- L2 Otherwise every entry is on exactly one page (`index_pages.py`). `MEMORY.md` links all pages at its end,
  and lists entries before them while there is space. If the links would take more than half of it, it links
  pages of links, `index/_pages-<prefix>.md`: one for each first digit of a slot, the SHA-256 of a page's file
  name. A page of links that would exceed a limit links such pages itself, by one digit more. So a reader who
  follows the links from `MEMORY.md` finds every entry once on a page of entries.
- L3 If one file lists all entries, and on a page, entries are sorted by their folded paths: one change moves
  one line, so merges stay small and a reader can find a known name. Pages are sorted by topic, then by
  prefix.
- L4 If `MEMORY.md` cannot list all entries, it begins with the important ones, since other tools load only
  its
  beginning: entries of trust `owner` before others, each group with the newest first, by their provenance
  (`updated`, which proves nothing); then entries without that date, by path. File times do not count, so that
  every machine with the same trust in the entries generates the same index.

Cost: after one change, one page, its pages of links and `MEMORY.md` are rendered, and each page is counted.

Separate from `index_plan.py`, which writes these files: this module opens none.

Attacked in tests/units/store/test_pages.py, with files built from this definition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from string import hexdigits
from typing import Final

from muniment.kernel.names import INDEX_NAME, RelPath, Scope
from muniment.kernel.path import FILE_SUFFIX, fold
from muniment.store.database import Database
from muniment.store.index import (
    HEAD_LINES,
    MAX_LINES,
    fits_half,
    fits_index,
    fits_links,
    page_link,
    pages_link,
    render_index,
    render_links,
    render_page,
)
from muniment.store.index_pages import (
    BY_PATH,
    BY_WEIGHT,
    PAGES,
    IndexChanges,
    Rows,
    expire,
    follow,
    renew,
    slot_of,
)

_PAGES_OF_LINKS: Final = f"{PAGES}_pages-"
_DIGITS: Final = hexdigits[:16]


@dataclass(frozen=True, slots=True)
class Layout:
    """The index files that may have changed.

    Attributes:
        files: their contents; includes `MEMORY.md`.
        gone: files of the last index that are obsolete.
        entries: in the root.
        paged: whether `MEMORY.md` alone cannot list them.
        upto: the last row of `relisted` that is covered.
    """

    files: Mapping[RelPath, bytes]
    gone: tuple[RelPath, ...]
    entries: int
    paged: bool
    upto: int


def lay_out(
    database: Database, key: str, scope: Scope, *, now: str, whole: bool = False, pages: bool = True
) -> Layout:
    """Return the index files that may have changed since `written` was updated, and always `MEMORY.md`.

    Updates the table `page` from the entries; `relisted` stays.

    Args:
        database: the catalog. The table `page` is as this function left it, or empty while `relisted`
            contains all entries.
        key: of the root.
        scope: the name of the scope, for the notices.
        now: ISO-8601 UTC; entries that expired before are omitted.
        whole: rebuild everything; all files are in the result.
        pages: False if `index/` cannot be written; then `MEMORY.md` only counts the entries that do not fit.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be used.
    """
    with database.transaction() as connection:
        rows = Rows(connection, key)
        expire(rows, now)
        upto = rows.newest_relisted()
        if whole:
            renew(rows)
        changes = None if whole else follow(rows)
        entries, size = rows.total()
        paged = not fits_index(scope, entries, size)
        files: dict[RelPath, bytes] = {}
        links: list[str] = []
        gone: Collection[RelPath] = ()
        if not paged:
            gone = rows.written(PAGES)
        elif pages:
            tree = _Tree(rows, scope, changes)
            links, files, gone = tree.links(), tree.files, tree.gone()
        order = BY_WEIGHT if paged else BY_PATH
        lines = rows.first_lines(order, MAX_LINES - HEAD_LINES - len(links))
        files[RelPath(INDEX_NAME)] = render_index(scope, entries, lines, links)
        return Layout(files, tuple(sorted(gone)), entries, paged, upto)


class _Tree:
    """The content of `index/`: pages of entries, and pages of links above them (L2).

    Args:
        rows: of the root.
        scope: the name of the scope, for the notices.
        changes: since the last index was written; None: render everything.

    Attributes:
        files: contents of the pages that may have changed; complete after `links` was called.
    """

    def __init__(self, rows: Rows, scope: Scope, changes: IndexChanges | None) -> None:
        self._rows, self._scope = rows, scope
        self._everything = changes is None
        self._above = rows.written(_PAGES_OF_LINKS)
        self._kept: list[str] = []  # path prefixes of unchanged pages of links
        self._gone: set[RelPath] = set()
        self._slots: list[str] = []  # of all pages that were added, removed or changed
        self.files: dict[RelPath, bytes] = {}
        for begin in [PAGES] if changes is None else changes.begins:
            written = rows.written(begin) - self._above
            pages = rows.pages("rel", begin)
            for page in pages:
                if (
                    changes is None
                    or page.rel not in written
                    or (page.topic, page.part.prefix) in changes.pages
                ):
                    lines = rows.lines(page.topic, page.part.prefix)
                    self.files[page.rel] = render_page(scope, page.topic, page.part.prefix, lines)
                    self._slots.append(page.slot)
            self._gone |= written.difference(page.rel for page in pages)
        self._slots += map(slot_of, self._gone)

    def links(self) -> list[str]:
        """Return the links of `MEMORY.md`."""
        links = self._direct("", PAGES, fits_half)
        return self._divided("", PAGES) if links is None else links

    def gone(self) -> set[RelPath]:
        """Return the obsolete files of the last index; call it after `links`."""
        kept = tuple(self._kept)
        return self._gone | {rel for rel in self._above.difference(self.files) if not rel.startswith(kept)}

    def _direct(self, prefix: str, way: str, fits: Callable[[int, int], bool]) -> list[str] | None:
        """Return sorted links to all pages whose slots begin with a prefix (L3); None if they do not fit.

        Args:
            prefix: of the slots.
            way: relative path from the file that contains the links to `index/`.
            fits: returns whether a number of lines and bytes fits.
        """
        if not fits(self._rows.count(prefix)[0], 0):
            return None
        pages = self._rows.pages("slot", prefix)
        links = [
            page_link(page.topic, page.part.prefix, page.part.entries, way + page.rel.removeprefix(PAGES))
            for page in sorted(pages, key=lambda page: (fold(page.topic), page.topic, page.part))
        ]
        return links if fits(len(links), sum(len(link.encode()) for link in links)) else None

    def _divided(self, prefix: str, way: str) -> list[str]:
        """Return links to pages of links, one for each next digit of a slot; render changed pages."""
        links = []
        for below in (prefix + digit for digit in _DIGITS):
            pages, entries = self._rows.count(below)
            if not pages:
                continue
            begin = f"{_PAGES_OF_LINKS}{below}"
            rel = RelPath(begin + FILE_SUFFIX)
            links.append(pages_link(below, pages, entries, way + rel.removeprefix(PAGES)))
            if self._everything or rel not in self._above or self._is_touched(below):
                direct = self._direct(below, "", fits_links)
                under = self._divided(below, "") if direct is None else direct
                self.files[rel] = render_links(self._scope, below, entries, under)
            else:
                self._kept.append(begin)
        return links

    def _is_touched(self, prefix: str) -> bool:
        return any(slot.startswith(prefix) for slot in self._slots)
