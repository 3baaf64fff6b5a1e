"""The index files of a root and their contents, computed from the entries of the root and nothing else.

- L1. If the lines of all entries fit into `MEMORY.md`, it is the only index file.
- L2. Otherwise every entry is on exactly one page (`index_pages.py`). `MEMORY.md` links to all pages at its
  end, and lists entries before the links while there is space. If these links would take more than half of
  `MEMORY.md`, it links to pages of links instead: `index/_pages-<prefix>.md`. There is one for each first
  digit of a slot, which is the SHA-256 of a page's file name. If such a page would exceed a limit, it links
  to further pages of links, by one more digit. So a reader who follows the links from `MEMORY.md` finds every
  entry once on a page of entries.
- L3. If one file lists all entries, and on a page, entries are sorted by their folded paths. So one change
  moves one line: merges stay small, and a reader can find a known name. Pages are sorted by topic (folder),
  then by prefix.
- L4. If `MEMORY.md` cannot list all entries, it begins with the important ones, because other tools load only
  its beginning. Entries of trust `owner` are first, then all others. In each group the newest are first, by
  the time `updated` in the front matter, which proves nothing; then entries without that time, by path. File
  times do not count, so that every machine with the same trust in the entries generates the same index.

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
    fits_half_index,
    fits_index,
    fits_links,
    format_page_link,
    format_pages_link,
    render_index,
    render_links,
    render_page,
)
from muniment.store.index_pages import (
    BY_PATH,
    BY_WEIGHT,
    PAGES_PREFIX,
    IndexChanges,
    IndexRows,
    compute_slot,
    expire_lines,
    rebuild_pages,
    update_pages,
)

_LINKS_PREFIX: Final = f"{PAGES_PREFIX}_pages-"
_DIGITS: Final = hexdigits[:16]


@dataclass(frozen=True, slots=True)
class Layout:
    """The index files of a root that may have changed.

    Attributes:
        files: new contents of these files; always includes `MEMORY.md`.
        obsolete: files of the last index that are no longer part of the index.
        entries: number of entries in the root.
        is_paged: whether there are pages, because `MEMORY.md` alone cannot list all entries.
        upto: number of the last row of the table `relisted` that these files take into account.
    """

    files: Mapping[RelPath, bytes]
    obsolete: tuple[RelPath, ...]
    entries: int
    is_paged: bool
    upto: int


def compute_layout(
    database: Database,
    key: str,
    scope: Scope,
    *,
    now: str,
    rebuild: bool = False,
    can_write_pages: bool = True,
) -> Layout:
    """Return the index files that may have changed since the last index was written, and always `MEMORY.md`.

    This updates the table `page` of the catalog; the rows of `relisted` stay.

    Args:
        database: the catalog. Its table `page` must be as this function left it; or empty, if `relisted`
            contains all entries.
        key: key of the root.
        scope: name of the scope, for the notices.
        now: current time, ISO-8601 UTC; entries that expired before are omitted.
        rebuild: compute all files, not only those that may have changed.
        can_write_pages: False if `index/` cannot be written; then `MEMORY.md` only counts the entries that do
            not fit.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be used.
    """
    with database.transaction() as connection:
        rows = IndexRows(connection, key)
        expire_lines(rows, now)
        upto = rows.newest_relisted()
        if rebuild:
            rebuild_pages(rows)
        changes = None if rebuild else update_pages(rows)
        entries, size = rows.read_total()
        paged = not fits_index(scope, entries, size)
        files: dict[RelPath, bytes] = {}
        links: list[str] = []
        obsolete: Collection[RelPath] = ()
        if not paged:
            obsolete = rows.list_written(PAGES_PREFIX)
        elif can_write_pages:
            tree = _PageTree(rows, scope, changes)
            links, files, obsolete = tree.build_links(), tree.files, tree.find_obsolete()
        order = BY_WEIGHT if paged else BY_PATH
        lines = rows.read_first_lines(order, MAX_LINES - HEAD_LINES - len(links))
        files[RelPath(INDEX_NAME)] = render_index(scope, entries, lines, links)
        return Layout(files, tuple(sorted(obsolete)), entries, paged, upto)


class _PageTree:
    """The content of `index/`: pages of entries, and pages of links to them.

    Args:
        rows: rows of the root.
        scope: name of the scope, for the notices.
        changes: changes since the last index was written; None: render all pages.

    Attributes:
        files: contents of the pages that may have changed; complete after `build_links` was called.
    """

    def __init__(self, rows: IndexRows, scope: Scope, changes: IndexChanges | None) -> None:
        self._rows, self._scope = rows, scope
        self._should_render_all = changes is None
        self._written_links = rows.list_written(_LINKS_PREFIX)
        self._unchanged_prefixes: list[str] = []  # path prefixes of unchanged pages of links
        self._obsolete: set[RelPath] = set()
        self._slots: list[str] = []  # of all pages that were added, removed or changed
        self.files: dict[RelPath, bytes] = {}
        for begin in [PAGES_PREFIX] if changes is None else changes.prefixes:
            written = rows.list_written(begin) - self._written_links
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
            self._obsolete |= written.difference(page.rel for page in pages)
        self._slots += map(compute_slot, self._obsolete)

    def build_links(self) -> list[str]:
        """Return the lines of `MEMORY.md` that link to pages; render the pages of links."""
        links = self._build_direct_links("", PAGES_PREFIX, fits_half_index)
        return self._build_nested_links("", PAGES_PREFIX) if links is None else links

    def find_obsolete(self) -> set[RelPath]:
        """Return the files of the last index that are obsolete. Call this after `build_links`."""
        unchanged_prefixes = tuple(self._unchanged_prefixes)
        return self._obsolete | {
            rel
            for rel in self._written_links.difference(self.files)
            if not rel.startswith(unchanged_prefixes)
        }

    def _build_direct_links(
        self, prefix: str, link_prefix: str, fits: Callable[[int, int], bool]
    ) -> list[str] | None:
        """Return sorted links to all pages whose slots begin with `prefix`; None if the links do not fit.

        Args:
            prefix: beginning of the slots.
            link_prefix: relative path to `index/` from the file that contains the links.
            fits: returns whether a number of lines with a number of bytes fits.
        """
        if not fits(self._rows.count_pages(prefix)[0], 0):
            return None
        pages = self._rows.pages("slot", prefix)
        links = [
            format_page_link(
                page.topic,
                page.part.prefix,
                page.part.entries,
                link_prefix + page.rel.removeprefix(PAGES_PREFIX),
            )
            for page in sorted(pages, key=lambda page: (fold(page.topic), page.topic, page.part))
        ]
        return links if fits(len(links), sum(len(link.encode()) for link in links)) else None

    def _build_nested_links(self, prefix: str, link_prefix: str) -> list[str]:
        """Return links to pages of links, one for each next digit of a slot; render the pages that changed.

        Args:
            prefix: beginning of the slots.
            link_prefix: relative path to `index/` from the file that contains the links.
        """
        links = []
        for longer_prefix in (prefix + digit for digit in _DIGITS):
            pages, entries = self._rows.count_pages(longer_prefix)
            if not pages:
                continue
            begin = f"{_LINKS_PREFIX}{longer_prefix}"
            rel = RelPath(begin + FILE_SUFFIX)
            links.append(
                format_pages_link(longer_prefix, pages, entries, link_prefix + rel.removeprefix(PAGES_PREFIX))
            )
            if self._should_render_all or rel not in self._written_links or self._is_touched(longer_prefix):
                direct = self._build_direct_links(longer_prefix, "", fits_links)
                page_links = self._build_nested_links(longer_prefix, "") if direct is None else direct
                self.files[rel] = render_links(self._scope, longer_prefix, entries, page_links)
            else:
                self._unchanged_prefixes.append(begin)
        return links

    def _is_touched(self, prefix: str) -> bool:
        return any(slot.startswith(prefix) for slot in self._slots)
