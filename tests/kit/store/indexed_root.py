"""A root whose entries exist only in the catalog, its index on disk, and the definition of the index.

`build_expected` shares no code with the subject: it always builds every file from the set of entries.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

from kit.store.bench import make_deadline
from muniment.kernel.apply import apply_changes, lock_roots, seal_index_files
from muniment.kernel.binding import bind
from muniment.kernel.write import get_index_temporary_name, new_token
from muniment.store.index_plan import IndexPlan, record_written, verify_index
from muniment.store.state import open_catalog

KEY = "key"


def compute_digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


def fold(rel):
    return unicodedata.normalize("NFKC", rel.casefold()).casefold()


def sort_paths(rels):
    return sorted(rels, key=lambda rel: (fold(rel), rel))


def format_line(rel, description=""):
    """Return a plain line; the content of lines is not under test."""
    return f"- [{rel.rpartition('/')[2]}]({quote(rel)}) — {description or 'plain'}\n"


def format_entry(rel, description=""):
    """Return the entry that has this line."""
    front = {"name": rel.rpartition("/")[2], "description": description or "plain"}
    lines = (f"{key}: {json.dumps(value)}\n" for key, value in front.items())
    return f"---\n{''.join(lines)}---\n".encode()


class IndexedRoot:
    """Entries by path, each with its line, in a catalog; and the files of their index."""

    def __init__(self, base):
        self.top = Path(base, "user")
        self.top.mkdir(mode=0o700)
        self.root = bind("user", self.top)
        self.catalog = open_catalog(Path(base, "catalog.db"))
        self.lines = {}
        self.weights = {}  # Trust of each path, and its update time.
        self.known_contents = defaultdict(set)  # Contents of each path that a ledger knows.

    def close(self):
        self.catalog.close()
        self.root.close()

    def add_entry(self, rel, description="", trust="owner", updated=""):
        """Add or change an entry."""
        self.weights[rel] = trust, updated
        line, (topic, key) = format_line(rel, description), self._delete_row(rel)
        self.lines[rel] = line
        self.known_contents[rel].add(format_entry(rel, description))
        self.catalog.rows(
            "INSERT INTO entry (root, rel, topic, key, sort, inode, size, mtime_ns, ctime_ns, digest,"
            " name, description, keywords, trust, updated, readable, note, line, line_bytes)"
            " VALUES (?, ?, ?, ?, ?, 0, 0, 0, 0, '', '', '', '[]', ?, ?, 1, '', ?, ?)",
            (KEY, rel, topic, key, fold(rel), trust, updated, line, len(line.encode())),
        )

    def remove_entry(self, rel):
        """Remove an entry."""
        del self.lines[rel]
        self._delete_row(rel)

    def clear_derived(self):
        """Clear derived tables, like a catalog that was deleted and filled again."""
        for table in ("page", "written", "relisted"):
            self.catalog.rows(f"DELETE FROM {table}")
        for rel in self.lines:
            self._relist(rel)

    def make_plan(self, **more):
        return IndexPlan(self.catalog, self.root, self.make_view(), self.known_contents.__getitem__, **more)

    def apply_plan(self, plan):
        """Apply a plan like a commit; return the files that changed."""
        with lock_roots([self.root], make_deadline()) as locked:
            apply_changes(
                seal_index_files(plan.writes),
                locked,
                partial(get_index_temporary_name, new_token()),
                durable=False,
            )
        record_written(self.catalog, self.make_view(), plan)
        return [write.path.rel for write in plan.writes]

    def update_index(self, **more):
        """Update the index."""
        return self.apply_plan(self.make_plan(**more))

    def verify_index(self):
        return verify_index(self.catalog, self.root, self.make_view(), self.known_contents.__getitem__)

    def make_view(self):
        """Return an object with the attributes of a view that a plan uses."""
        listed = {"": frozenset(path.name for path in self.top.iterdir())}
        return SimpleNamespace(key=KEY, is_complete=True, names=listed.__getitem__)

    def read_files(self):
        """Return the files of the root by path, including the index."""
        found = [path for path in sorted(self.top.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.top)): path.read_text(errors="replace") for path in found}

    def read_rows(self, table):
        return sorted(self.catalog.rows(f"SELECT * FROM {table} WHERE root = ?", (KEY,)))

    def _delete_row(self, rel):
        self.catalog.rows("DELETE FROM entry WHERE root = ? AND rel = ?", (KEY, rel))
        return self._relist(rel)

    def _relist(self, rel):
        listed = rel.rpartition("/")[0], compute_digest(rel)
        self.catalog.rows("INSERT INTO relisted (root, topic, key) VALUES (?, ?, ?)", (KEY, *listed))
        return listed


# -- the definition


@dataclass(frozen=True)
class Limits:
    """Maximum content of an index file: (lines, bytes) of entries or links."""

    flat: tuple = (196, 25_000)
    page: tuple = (196, 24_000)
    half: tuple = (98, 12_500)
    links: tuple = (196, 24_000)
    digits: int = 12


def sort_by_weight(rels, weights):
    """Sort entries of the owner first, then newest first, then by path."""
    newest = sorted(sort_paths(rels), key=lambda rel: weights[rel][1], reverse=True)
    return sorted(newest, key=lambda rel: weights[rel][0] != "owner")


def build_expected(lines, limits=None, weights=None):
    """Return the files of an index for entries, {path: line}; without weights all have the same weight."""
    limits, order = limits or Limits(), sort_paths(lines)
    notice = f"Generated from the {_count_entries(len(lines))} of user; changes made here are lost."
    head = f"# Memory index\n\n{notice}\n" + ("\n" if lines else "")
    flat = "".join(lines[rel] for rel in order)
    if _fits(order, len(f"{head}{flat}".encode()), limits.flat):
        return {"MEMORY.md": head + flat}
    pages = _build_pages(lines, limits)
    files = {
        f"index/{name}.md": _format_page(
            _format_title(topic, prefix), [_format_page_line(lines[rel]) for rel in rels], len(rels)
        )
        for name, (topic, prefix, rels) in pages.items()
    }
    links = _build_links(pages, "", "index/", limits.half, limits, files)
    order = sort_by_weight(lines, weights) if weights else order
    files["MEMORY.md"] = _build_memory(lines, order, links, notice)
    return files


def _build_memory(lines, order, links, notice):
    shown_lines = []
    remaining_bytes = 25_000 - len("".join([_format_heading(notice, len(order)), "\n", *links]).encode())
    for rel in order[: 200 - 4 - len(links) - 1]:
        remaining_bytes -= len(lines[rel].encode())
        if remaining_bytes < 0:
            break
        shown_lines.append(lines[rel])
    return "".join(
        [
            _format_heading(notice, len(order) - len(shown_lines)),
            *shown_lines,
            "\n" if shown_lines else "",
            *links,
        ]
    )


def _format_heading(notice, count):
    more = "entry is" if count == 1 else "entries are"
    rest = f" {count} more {more} only on the pages linked last." if count else ""
    return f"# Memory index\n\n{notice}{rest}\n\n"


def _build_pages(lines, limits):
    """Return name, topic, prefix and ordered entries of every page."""
    topics = {}
    for rel in lines:
        topics.setdefault(rel.rpartition("/")[0], []).append(rel)
    begins, pages = Counter(compute_digest(topic)[: limits.digits] for topic in topics), {}
    for topic, rels in topics.items():
        begin = compute_digest(topic)[: limits.digits]
        begin = begin if begins[begin] == 1 else compute_digest(topic)
        for prefix in _split_prefixes(lines, rels, "", limits):
            listed = sort_paths(rel for rel in rels if compute_digest(rel).startswith(prefix))
            pages[f"{begin}-{prefix}" if prefix else begin] = (topic, prefix, listed)
    return pages


def _split_prefixes(lines, rels, prefix, limits):
    rels = [rel for rel in rels if compute_digest(rel).startswith(prefix)]
    if not rels:
        return []
    if _fits(rels, sum(len(_format_page_line(lines[rel]).encode()) for rel in rels), limits.page):
        return [prefix]
    return [
        each for digit in "0123456789abcdef" for each in _split_prefixes(lines, rels, prefix + digit, limits)
    ]


def _build_links(pages, prefix, path_prefix, limit, limits, files):
    """Return the links to the pages whose slots have this prefix; add pages of links to `files`."""
    below = {name: page for name, page in pages.items() if compute_digest(f"{name}.md").startswith(prefix)}
    by_topic = sorted(below.items(), key=lambda item: (fold(item[1][0]), item[1][0], item[1][1]))
    direct = [
        f"- [{_format_title(*page[:2])}]({path_prefix}{name}.md) — {_count_entries(len(page[2]))}\n"
        for name, page in by_topic
    ]
    if _fits(direct, len("".join(direct).encode()), limit):
        return direct
    links = []
    for digit in "0123456789abcdef":
        deeper = prefix + digit
        part = {name: page for name, page in below.items() if compute_digest(f"{name}.md").startswith(deeper)}
        if part:
            count = sum(len(rels) for _, _, rels in part.values())
            plural = "page" if len(part) == 1 else "pages"
            target = f"{path_prefix}_pages-{deeper}.md"
            links.append(f"- [pages {deeper}]({target}) — {len(part)} {plural}, {_count_entries(count)}\n")
            content = _build_links(part, deeper, "", limits.links, limits, files)
            files[f"index/_pages-{deeper}.md"] = _format_page(f"pages {deeper}", content, count)
    return links


def _format_page(title, lines, count):
    notice = f"Generated from {count} of the entries of user; changes made here are lost."
    return f"# Memory index: {title}\n\n{notice}\n\n{''.join(lines)}"


def _format_title(topic, prefix):
    escaped = "".join(f"\\{char}" if char in "_&" else char for char in topic) or "(no topic)"
    return f"{escaped}, part {prefix}" if prefix else escaped


def _format_page_line(line):
    name, target = line.split("](", 1)
    return f"{name}](../{target}"


def _count_entries(count):
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _fits(lines, size, limit):
    return len(lines) <= limit[0] and size <= limit[1]
