"""After any edits of a tree, a catalog that reads only changes equals a full scan."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kit.store.cataloged_root import CatalogedRoot, read_future_clock
from muniment.store.watching import WatchedRoot
from muniment.testing.race import exchange_names

SOME = ["a.md", "B.md", "b.md", "t", "u", "u.md", "note.txt", ".dot", "index", "MEMORY.md", "bad:.md", "ü.md"]
PATHS = st.lists(st.sampled_from(SOME), min_size=1, max_size=4).map("/".join)
BODIES = ["", "# A\n", "# B\n", "---\nname: n\nkeywords: [k]\n---\nbody\n", "---\nopen", "日本\n"]
TEXTS = st.sampled_from(BODIES)
PLANTS = {
    "link": lambda self, path: path.symlink_to(self.base / "outside"),
    "link inside": lambda self, path: path.symlink_to(self.path("t")),
    "fifo": lambda _, path: os.mkfifo(path),
    "second name": lambda self, path: os.link(self.path("a.md"), path, follow_symlinks=False),
}


class Edits(RuleBasedStateMachine):
    """Edits between refreshes; edits that change no directory time need a sweep."""

    @initialize()
    def begin(self):
        self.base = Path(tempfile.mkdtemp(prefix="muniment-catalog-"))
        (self.base / "outside").mkdir()
        self.tree = CatalogedRoot(self.base)
        self.view, self.lines, self.needs_sweep = self.tree.refresh(), {}, False

    def path(self, rel):
        return self.tree.top / rel

    @rule(rel=PATHS, text=TEXTS)
    def write(self, rel, text):
        with suppress(OSError):
            self.tree.write_file(rel, text)

    @rule(rel=PATHS, text=TEXTS)
    def edit_in_place(self, rel, text):
        if self.path(rel).is_file():
            self.path(rel).write_text(text)
            self.needs_sweep = True

    @rule(rel=PATHS)
    def remove(self, rel):
        path = self.path(rel)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            self.needs_sweep |= path.is_file() and path.stat().st_nlink > 1
            with suppress(OSError):
                path.unlink()

    @rule(rel=PATHS, is_much_later=st.booleans())
    def make_directory_and_reset_time(self, rel, is_much_later):
        with suppress(OSError):
            self.path(rel).mkdir(parents=True)
        with suppress(OSError):
            os.utime(self.path(rel), (0, 0), follow_symlinks=False)
        self.tree.clock = read_future_clock if is_much_later else type(self.tree).clock

    @rule(old=PATHS, new=PATHS, swap=st.booleans())
    def rename_or_exchange(self, old, new, swap):
        with suppress(OSError):
            (exchange_names if swap else os.rename)(self.path(old), self.path(new))

    @rule(rel=PATHS, kind=st.sampled_from(list(PLANTS)))
    def plant(self, rel, kind):
        with suppress(OSError):
            PLANTS[kind](self, self.path(rel))
            self.needs_sweep |= kind == "second name"

    @rule(rel=PATHS, text=TEXTS)
    def write_and_recheck(self, rel, text):
        self.refresh_view(sweep=False)
        with suppress(OSError):
            self.tree.write_file(rel, text)
        parent = self.path(rel).parent.resolve()  # The write went through the link.
        if parent.is_relative_to(self.tree.top):
            self.view.rescan({"/".join(parent.relative_to(self.tree.top).parts)})
            self.compare()

    @rule(sweep=st.booleans())
    def refresh_view(self, sweep):
        self.view = self.tree.refresh(sweep=sweep or self.needs_sweep)
        self.needs_sweep = False
        self.compare()

    def compare(self):
        self.tree.wait_for_clock_tick()
        assert self.tree.find_differences(self.view) == {}
        lines = self.tree.read_lines()
        changed = {key for key, line in {*lines.items()} ^ {*self.lines.items()}}
        assert changed <= self.tree.pop_relisted()
        self.lines = lines

    @invariant()
    def every_text_row_belongs_to_an_entry(self):
        assert self.tree.catalog.rows("SELECT rowid FROM text EXCEPT SELECT id FROM entry") == []

    def teardown(self):
        if hasattr(self, "kept"):
            self.refresh_view(sweep=False)
            self.tree.close()
            shutil.rmtree(self.base)


class WatchedEdits(Edits):
    """The same edits with a watch, which also reports edits in place, and recovers from lost events."""

    @initialize()
    def begin(self):
        super().begin()
        self.watched = WatchedRoot()
        self.tree.refresh(look=self.watched)

    @rule()
    def lose_events(self):
        self.watched._is_complete = False

    @rule(rel=PATHS, text=TEXTS)
    def append(self, rel, text):
        if self.path(rel).is_file():
            with self.path(rel).open("a") as file:
                file.write(text)

    @rule(sweep=st.just(True))
    def refresh_view(self, sweep):  # noqa: ARG002  same signature
        self.view = self.tree.refresh(look=self.watched)
        assert self.watched._watch
        assert self.watched.pending == {}
        self.compare()

    def teardown(self):
        super().teardown()
        self.watched.close()


TestEdits, TestWatchedEdits = Edits.TestCase, WatchedEdits.TestCase
TestEdits.settings = TestWatchedEdits.settings = settings(stateful_step_count=20)
