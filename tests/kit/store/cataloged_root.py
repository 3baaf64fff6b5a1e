"""A root with its catalog, checked from outside: through its views, its tables, and a scan as oracle."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from muniment.content.entry import parse, read_titles
from muniment.errors import printable
from muniment.kernel.binding import bind
from muniment.kernel.names import Trust
from muniment.kernel.path import find_segment_problem
from muniment.store.catalog import ScanPlan, View
from muniment.store.rows import Assessment
from muniment.store.state import open_catalog

NOBODY = 65_534

KEY = "key"

FIELDS = attrgetter("size", "digest", "name", "description", "type", "keywords", "readable", "note")


def read_future_clock():
    """Return a wall clock time so late that no file time is too new for the catalog."""
    return time.time_ns() + 3_600 * 10**9


class CatalogedRoot:
    """The root `user` and its catalog."""

    clock = staticmethod(time.time_ns)

    def __init__(self, base):
        self.top = Path(base, "user")
        self.top.mkdir(mode=0o700)
        self.catalog = open_catalog(Path(base, "catalog.db"))
        self.bound = bind("user", self.top)
        self._probe = os.open(Path(base, "probe"), os.O_RDWR | os.O_CREAT)
        os.fchmod(self._probe, 0o666)  # for any user of the process later
        self.assessed_paths = []
        self.assessments = {}
        self.basis = "first"

    def assess(self, rel, _digest, _data):
        self.assessed_paths.append(rel)
        return self.assessments.get(rel, Assessment(Trust.OWNER))

    def refresh(self, *, sweep=False, look=None):
        """Refresh a view and return it; `assessed_paths` then contains only what was read for it."""
        self.assessed_paths.clear()
        view = View(self.catalog, KEY, self.bound, self.assess, clock=self.clock)
        view.refresh(self.basis, look or ScanPlan(sweep=sweep))
        self.wait_for_clock_tick()
        return view

    def wait_for_clock_tick(self):
        """Wait for a tick of the file system clock (1 to 10 ms), unless some times are too new for the
        catalog.
        """
        if self.clock is read_future_clock:
            os.utime(self._probe)
            before = os.fstat(self._probe).st_ctime_ns
            while os.fstat(self._probe).st_ctime_ns == before:
                os.utime(self._probe)

    def write_file(self, rel, content="text\n"):
        """Write a complete file at once, with its directories."""
        path = self.top / rel
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(".staged")
        staged.write_bytes(content if isinstance(content, bytes) else content.encode())
        staged.rename(path)
        return path

    def copy_current_times(self):
        """Record the current times of everything, as if later changes had the same times."""
        with self.catalog.transaction() as connection:
            for table, key, where in (("directory", "path", ""), ("entry", "rel", " WHERE ctime_ns > 0")):
                for (path,) in connection.execute(f"SELECT {key} FROM {table}{where}").fetchall():
                    status = (self.top / path).lstat()
                    change = f"UPDATE {table} SET inode = ?, mtime_ns = ?, ctime_ns = ? WHERE {key} = ?"
                    times = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
                    connection.execute(change, (*times, path))

    def pop_relisted(self):
        """Return and clear the keys of the entries whose line has changed."""
        keys = {key for (key,) in self.catalog.rows("SELECT key FROM relisted")}
        with self.catalog.transaction() as connection:
            connection.execute("DELETE FROM relisted")
        return keys

    def read_lines(self):
        return dict(self.catalog.rows("SELECT key, line FROM entry"))

    def search_paths(self, query):
        """Return the paths whose full-text row matches."""
        wanted = "SELECT rel FROM text JOIN entry ON entry.id = text.rowid WHERE text MATCH ? ORDER BY rel"
        return [rel for (rel,) in self.catalog.rows(wanted, (query,))]

    def dump_tables(self):
        """Return the content of all tables as one text, including full-text shadow tables."""
        tables = self.catalog.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return "\n".join(repr(self.catalog.rows(f'SELECT * FROM "{table}"')) for (table,) in tables)

    def find_differences(self, view):
        """Return the differences between the view and the oracle; empty if they agree."""
        expected = scan_root(self.top)
        entries = {entry.rel: FIELDS(entry) for entry in view.entries()}
        found = {
            "entries": (entries, expected.entries),
            "list_odd_names": (
                {item.path: item.reason for item in view.list_odd_names()},
                expected.odd,
            ),
            "names": ({path: view.names(path) for path in view.directories()}, expected.names),
            "usage": (view.usage().files, len(expected.entries)),
            "bytes": (view.usage().bytes, sum(kept[0] for kept in expected.entries.values())),
            "words": tuple(
                {rowid for (rowid,) in self.catalog.rows(f"SELECT {rows}")}
                for rows in ("rowid FROM text", "id FROM entry WHERE readable")
            ),
            "complete": (view.is_complete, True),
        }
        return {name: pair for name, pair in found.items() if pair[0] != pair[1]}

    def close(self):
        os.close(self._probe)
        self.bound.close()
        self.catalog.close()


@contextmanager
def open_cataloged_root(base):
    root = CatalogedRoot(base)
    try:
        yield root
    finally:
        root.close()


@contextmanager
def run_as_nobody(top):
    """Run as an unprivileged user who owns `top` and everything under it: root can read everything."""
    if os.geteuid() != 0:
        yield
        return
    for path in (top, *top.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


# -- A scan of a complete root by path, with the standard library: the oracle of the catalog.


LARGEST = 1_048_576


@dataclass
class ScannedRoot:
    """Entries by path (size, digest, name, description, type, keywords, readable, note), invalid names with
    their reason, and all names by directory.
    """

    entries: dict = field(default_factory=dict)
    odd: dict = field(default_factory=dict)
    names: dict = field(default_factory=dict)


def scan_root(top, scope="user"):
    """Scan everything under `top`."""
    found, waiting = ScannedRoot(), [""]
    while waiting:
        directory = waiting.pop()
        names = [path.name for path in Path(top, directory).iterdir()]
        found.names[directory] = frozenset(names)
        for name in names:
            rel = f"{directory}/{name}" if directory else name
            if name.startswith(".") or rel in {"MEMORY.md", "index"}:
                continue
            if problem := _find_problem(scope, rel, name):
                found.odd[printable(rel)] = problem
                continue
            status = Path(top, rel).lstat()
            if stat.S_ISDIR(status.st_mode):
                waiting.append(rel)
            elif not stat.S_ISREG(status.st_mode):
                found.odd[rel] = "a link or special file"
            elif name.endswith(".md"):
                if status.st_nlink > 1:
                    found.odd[rel] = "points outside the memory (hardlink)"
                else:
                    found.entries[rel] = _read_entry(Path(top, rel), rel, status.st_size)
    return found


def _read_entry(path, rel, size):
    stem = path.name[: -len(".md")]
    if size > LARGEST:
        return (size, None, stem, "", None, (), False, f"the file is larger than {LARGEST} bytes")
    data = path.read_bytes()
    entry = parse(data)
    titles = read_titles(entry, rel)
    digest, note = hashlib.sha256(data).hexdigest(), "; ".join(entry.notes)
    return (size, digest, titles.name, titles.description, entry.type, entry.keywords, True, note)


def _find_problem(scope, rel, name):
    if problem := find_segment_problem(name):
        return problem
    if rel.count("/") + 2 > 9:
        return "deeper than 9 levels"
    return "a path longer than 1024 bytes" if len(f"{scope}/{rel}".encode()) > 1024 else None
