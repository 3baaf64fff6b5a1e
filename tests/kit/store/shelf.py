"""A root whose entries exist only in the catalog, its index on disk, and the definition of the index.

`expected` shares no code with the subject: it always builds every file from the set of entries.
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

from kit.store.ground import patience
from muniment.kernel.binding import bind
from muniment.kernel.land import generated, land, lock_roots
from muniment.kernel.write import new_token, temporary_of_index
from muniment.store.index_plan import IndexPlan, verify_index, written
from muniment.store.state import open_catalog

KEY = "key"


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def folded(rel):
    return unicodedata.normalize("NFKC", rel.casefold()).casefold()


def in_order(rels):
    return sorted(rels, key=lambda rel: (folded(rel), rel))


def line_of(rel, description=""):
    """Return a plain line; the content of lines is not under test."""
    return f"- [{rel.rpartition('/')[2]}]({quote(rel)}) — {description or 'plain'}\n"


def data_of(rel, description=""):
    """Return the entry that has this line."""
    front = {"name": rel.rpartition("/")[2], "description": description or "plain"}
    lines = (f"{key}: {json.dumps(value)}\n" for key, value in front.items())
    return f"---\n{''.join(lines)}---\n".encode()


class Shelf:
    """Entries by path, each with its line, in a catalog; and the files of their index."""

    def __init__(self, base):
        self.top = Path(base, "user")
        self.top.mkdir(mode=0o700)
        self.root = bind("user", self.top)
        self.catalog = open_catalog(Path(base, "catalog.db"))
        self.lines = {}
        self.weights = {}  # Trust of each path, and its update time.
        self.ever = defaultdict(set)  # Contents of each path that a ledger knows.

    def close(self):
        self.catalog.close()
        self.root.close()

    def put(self, rel, description="", trust="owner", updated=""):
        """Add or change an entry."""
        self.weights[rel] = trust, updated
        line, (topic, key) = line_of(rel, description), self._gone(rel)
        self.lines[rel] = line
        self.ever[rel].add(data_of(rel, description))
        self.catalog.rows(
            "INSERT INTO entry (root, rel, topic, key, sort, inode, size, mtime_ns, ctime_ns, digest,"
            " name, description, keywords, trust, updated, readable, note, line, line_bytes)"
            " VALUES (?, ?, ?, ?, ?, 0, 0, 0, 0, '', '', '', '[]', ?, ?, 1, '', ?, ?)",
            (KEY, rel, topic, key, folded(rel), trust, updated, line, len(line.encode())),
        )

    def drop(self, rel):
        """Remove an entry."""
        del self.lines[rel]
        self._gone(rel)

    def forget(self):
        """Clear derived tables, like a catalog that was deleted and filled again."""
        for table in ("page", "written", "relisted"):
            self.catalog.rows(f"DELETE FROM {table}")
        for rel in self.lines:
            self._relist(rel)

    def plan(self, **more):
        return IndexPlan(self.catalog, self.root, self.view(), self.ever.__getitem__, **more)

    def carry_out(self, plan):
        """Apply a plan like a commit; return the files that changed."""
        with lock_roots([self.root], patience()) as held:
            land(generated(plan.writes), held, partial(temporary_of_index, new_token()), durable=False)
        written(self.catalog, self.view(), plan)
        return [write.path.rel for write in plan.writes]

    def index(self, **more):
        """Update the index."""
        return self.carry_out(self.plan(**more))

    def verify(self):
        return verify_index(self.catalog, self.root, self.view(), self.ever.__getitem__)

    def view(self):
        """Return an object with the attributes of a view that a plan uses."""
        listed = {"": frozenset(path.name for path in self.top.iterdir())}
        return SimpleNamespace(key=KEY, complete=True, names=listed.__getitem__)

    def files(self):
        """Return the files of the root by path, including the index."""
        found = [path for path in sorted(self.top.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.top)): path.read_text(errors="replace") for path in found}

    def rows(self, table):
        return sorted(self.catalog.rows(f"SELECT * FROM {table} WHERE root = ?", (KEY,)))

    def _gone(self, rel):
        self.catalog.rows("DELETE FROM entry WHERE root = ? AND rel = ?", (KEY, rel))
        return self._relist(rel)

    def _relist(self, rel):
        listed = rel.rpartition("/")[0], sha(rel)
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


def by_weight(rels, weights):
    """Sort entries of the owner first, then newest first, then by path."""
    newest = sorted(in_order(rels), key=lambda rel: weights[rel][1], reverse=True)
    return sorted(newest, key=lambda rel: weights[rel][0] != "owner")


def expected(lines, limits=None, weights=None):
    """Return the files of an index for entries, {path: line}; without weights all have the same weight."""
    limits, order = limits or Limits(), in_order(lines)
    notice = f"Generated from the {_many(len(lines))} of user; changes made here are lost."
    head = f"# Memory index\n\n{notice}\n" + ("\n" if lines else "")
    flat = "".join(lines[rel] for rel in order)
    if _fits(order, len(f"{head}{flat}".encode()), limits.flat):
        return {"MEMORY.md": head + flat}
    pages = _pages(lines, limits)
    files = {
        f"index/{name}.md": _page(_title(topic, prefix), [_from_page(lines[rel]) for rel in rels], len(rels))
        for name, (topic, prefix, rels) in pages.items()
    }
    links = _links(pages, "", "index/", limits.half, limits, files)
    order = by_weight(lines, weights) if weights else order
    files["MEMORY.md"] = _memory(lines, order, links, notice)
    return files


def _memory(lines, order, links, notice):
    kept = []
    room = 25_000 - len("".join([_with_rest(notice, len(order)), "\n", *links]).encode())
    for rel in order[: 200 - 4 - len(links) - 1]:
        room -= len(lines[rel].encode())
        if room < 0:
            break
        kept.append(lines[rel])
    return "".join([_with_rest(notice, len(order) - len(kept)), *kept, "\n" if kept else "", *links])


def _with_rest(notice, count):
    more = "entry is" if count == 1 else "entries are"
    rest = f" {count} more {more} only on the pages linked last." if count else ""
    return f"# Memory index\n\n{notice}{rest}\n\n"


def _pages(lines, limits):
    """Return name, topic, prefix and ordered entries of every page."""
    topics = {}
    for rel in lines:
        topics.setdefault(rel.rpartition("/")[0], []).append(rel)
    begins, pages = Counter(sha(topic)[: limits.digits] for topic in topics), {}
    for topic, rels in topics.items():
        begin = sha(topic)[: limits.digits]
        begin = begin if begins[begin] == 1 else sha(topic)
        for prefix in _prefixes(lines, rels, "", limits):
            listed = in_order(rel for rel in rels if sha(rel).startswith(prefix))
            pages[f"{begin}-{prefix}" if prefix else begin] = (topic, prefix, listed)
    return pages


def _prefixes(lines, rels, prefix, limits):
    rels = [rel for rel in rels if sha(rel).startswith(prefix)]
    if not rels:
        return []
    if _fits(rels, sum(len(_from_page(lines[rel]).encode()) for rel in rels), limits.page):
        return [prefix]
    return [each for digit in "0123456789abcdef" for each in _prefixes(lines, rels, prefix + digit, limits)]


def _links(pages, prefix, way, limit, limits, files):
    """Return the links to the pages whose slots have this prefix; add pages of links to `files`."""
    below = {name: page for name, page in pages.items() if sha(f"{name}.md").startswith(prefix)}
    by_topic = sorted(below.items(), key=lambda item: (folded(item[1][0]), item[1][0], item[1][1]))
    direct = [f"- [{_title(*page[:2])}]({way}{name}.md) — {_many(len(page[2]))}\n" for name, page in by_topic]
    if _fits(direct, len("".join(direct).encode()), limit):
        return direct
    links = []
    for digit in "0123456789abcdef":
        deeper = prefix + digit
        part = {name: page for name, page in below.items() if sha(f"{name}.md").startswith(deeper)}
        if part:
            count = sum(len(rels) for _, _, rels in part.values())
            plural = "page" if len(part) == 1 else "pages"
            target = f"{way}_pages-{deeper}.md"
            links.append(f"- [pages {deeper}]({target}) — {len(part)} {plural}, {_many(count)}\n")
            content = _links(part, deeper, "", limits.links, limits, files)
            files[f"index/_pages-{deeper}.md"] = _page(f"pages {deeper}", content, count)
    return links


def _page(title, lines, count):
    notice = f"Generated from {count} of the entries of user; changes made here are lost."
    return f"# Memory index: {title}\n\n{notice}\n\n{''.join(lines)}"


def _title(topic, prefix):
    escaped = "".join(f"\\{char}" if char in "_&" else char for char in topic) or "(no topic)"
    return f"{escaped}, part {prefix}" if prefix else escaped


def _from_page(line):
    name, target = line.split("](", 1)
    return f"{name}](../{target}"


def _many(count):
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _fits(lines, size, limit):
    return len(lines) <= limit[0] and size <= limit[1]
