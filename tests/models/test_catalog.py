"""Whatever is done to a tree, a catalog that only looks at what changed says what a whole walk says."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kit.store.catalogued import Catalogued, much_later
from muniment.store.watching import WatchedRoot
from muniment.testing.race import exchange

SOME = ["a.md", "B.md", "b.md", "t", "u", "u.md", "note.txt", ".dot", "index", "MEMORY.md", "bad:.md", "ü.md"]
PATHS = st.lists(st.sampled_from(SOME), min_size=1, max_size=4).map("/".join)
SAID = ["", "# A\n", "# B\n", "---\nname: n\nkeywords: [k]\n---\nbody\n", "---\nopen", "日本\n"]
TEXTS = st.sampled_from(SAID)
PLANTS = {
    "link": lambda self, path: path.symlink_to(self.base / "outside"),
    "link inside": lambda self, path: path.symlink_to(self.path("t")),
    "fifo": lambda _, path: os.mkfifo(path),
    "second name": lambda self, path: os.link(self.path("a.md"), path, follow_symlinks=False),
}


class Edits(RuleBasedStateMachine):
    """Edits between looks. What the times of directories do not tell waits for a sweep."""

    @initialize()
    def begin(self):
        self.base = Path(tempfile.mkdtemp(prefix="muniment-catalog-"))
        (self.base / "outside").mkdir()
        self.kept = Catalogued(self.base)
        self.view, self.lines, self.needs_sweep = self.kept.refresh(), {}, False

    def path(self, rel):
        return self.kept.top / rel

    @rule(rel=PATHS, text=TEXTS)
    def write(self, rel, text):
        with suppress(OSError):
            self.kept.put(rel, text)

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

    @rule(rel=PATHS, stands=st.booleans())
    def make_directory_and_set_the_time_back(self, rel, stands):
        with suppress(OSError):
            self.path(rel).mkdir(parents=True)
        with suppress(OSError):
            os.utime(self.path(rel), (0, 0), follow_symlinks=False)
        self.kept.clock = much_later if stands else type(self.kept).clock

    @rule(old=PATHS, new=PATHS, swap=st.booleans())
    def rename_or_change_places(self, old, new, swap):
        with suppress(OSError):
            (exchange if swap else os.rename)(self.path(old), self.path(new))

    @rule(rel=PATHS, what=st.sampled_from(list(PLANTS)))
    def plant(self, rel, what):
        with suppress(OSError):
            PLANTS[what](self, self.path(rel))
            self.needs_sweep |= what == "second name"

    @rule(rel=PATHS, text=TEXTS)
    def write_and_look_again(self, rel, text):
        self.look(sweep=False)
        with suppress(OSError):
            self.kept.put(rel, text)
        parent = self.path(rel).parent.resolve()  # Where a link leads, there it was written.
        if parent.is_relative_to(self.kept.top):
            self.view.look_again({"/".join(parent.relative_to(self.kept.top).parts)})
            self.compare()

    @rule(sweep=st.booleans())
    def look(self, sweep):
        self.view = self.kept.refresh(sweep=sweep or self.needs_sweep)
        self.needs_sweep = False
        self.compare()

    def compare(self):
        self.kept.let_time_pass()
        assert self.kept.differences(self.view) == {}
        lines = self.kept.lines()
        changed = {key for key, line in {*lines.items()} ^ {*self.lines.items()}}
        assert changed <= self.kept.relisted()
        self.lines = lines

    @invariant()
    def every_word_belongs_to_an_entry(self):
        assert self.kept.catalog.rows("SELECT rowid FROM text EXCEPT SELECT id FROM entry") == []

    def teardown(self):
        if hasattr(self, "kept"):
            self.look(sweep=False)
            self.kept.close()
            shutil.rmtree(self.base)


class WatchedEdits(Edits):
    """The same behind a watch, which tells of edits in place as well, also once it lost count."""

    @initialize()
    def begin(self):
        super().begin()
        self.watched = WatchedRoot()
        self.kept.refresh(look=self.watched)

    @rule()
    def lose_count(self):
        self.watched._is_whole = False

    @rule(rel=PATHS, text=TEXTS)
    def append(self, rel, text):
        if self.path(rel).is_file():
            with self.path(rel).open("a") as file:
                file.write(text)

    @rule(sweep=st.just(True))
    def look(self, sweep):  # noqa: ARG002  as above
        self.view = self.kept.refresh(look=self.watched)
        assert self.watched._watch
        assert self.watched.pending == {}
        self.compare()

    def teardown(self):
        super().teardown()
        self.watched.close()


TestEdits, TestWatchedEdits = Edits.TestCase, WatchedEdits.TestCase
TestEdits.settings = TestWatchedEdits.settings = settings(stateful_step_count=20)
