"""The state directory under attack: records that are cut, threads that meet, a signal at the worst moment."""

from __future__ import annotations

import signal
import sqlite3
import threading
from contextlib import closing
from unittest.mock import patch

import pytest

from kit.store.ground import STRICT, laid_out, new, origin, patience
from muniment.names import Trust
from muniment.store import commit as commits
from muniment.store import erase as erasing
from muniment.store.audit import verify
from muniment.store.catalog import refresh
from muniment.store.ledger import root_key, source_of
from muniment.store.rows import Assessed


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as found:
        yield found


CUTS = {
    "the head set back": "DELETE FROM record WHERE seq > 3; UPDATE head SET seq = 3",
    "the head gone": "DELETE FROM record WHERE seq > 3; DELETE FROM head",
    "the head kept": "DELETE FROM record WHERE seq > 3",
    "only the head gone": "DELETE FROM head",
    "the head far ahead": "UPDATE head SET seq = 99",
    "everything": "DELETE FROM record; DELETE FROM head",
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_is_still_found_after_further_commits_have_signed_a_new_end(ground, cut):
    """The next record used to be chained to what the forger had left, and its head marked that as the end."""
    for number in range(4):
        ground.commit(new(f"user/n{number}.md", b"%d\n" % number))
    assert verify(ground.state).problems == ()
    with closing(sqlite3.connect(ground.state.ledger.path, isolation_level=None)) as forger:
        forger.executescript(CUTS[cut])
    if cut == "everything":
        (problem,) = verify(ground.state).problems
        assert "4 of the commits" in problem
    for number in range(2):
        assert ground.commit(new(f"user/after-{number}.md")).changes
        assert verify(ground.state).problems != ()


def test_an_erasure_and_a_look_of_another_thread_do_not_wait_for_each_other(ground, monkeypatch):
    """Each held what the other wanted: the erasure the ledger, the look the catalog."""
    ground.commit(new("user/x.md", b"a text that has to go away\n"))
    inside, looking, real = threading.Event(), threading.Event(), erasing.view_of
    project, key = ground.roots["project"], root_key(ground.state, ground.roots["project"])

    def view(*arguments, **more):
        inside.set()
        looking.wait(10)
        return real(*arguments, **more)

    def assess(rel, digest, _data):
        looking.set()
        source_of(ground.state, key, rel, digest)
        return Assessed(Trust.OWNER)

    def look():
        inside.wait(10)
        refresh(ground.state.catalog, key, project, assess, basis="another")

    monkeypatch.setattr(erasing, "view_of", view)
    where = erasing.EraseGround(ground.state, ground.roots, STRICT, patience(20))
    threads = [threading.Thread(target=look, daemon=True)]
    threads.append(threading.Thread(target=erasing.erase, args=("user/x.md", where), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(15)
    assert not any(thread.is_alive() for thread in threads)
    assert not (ground.user / "x.md").exists()


def test_an_interrupt_just_after_a_commit_is_done_does_not_take_its_files_back(ground):
    """The ledger said done, the files were gone, and the task could never be repeated."""
    real = commits.finish
    interrupted = lambda *arguments: (real(*arguments), signal.raise_signal(signal.SIGINT))  # noqa: E731
    with patch.object(commits, "finish", interrupted), pytest.raises(KeyboardInterrupt):
        ground.commit(new("user/n.md"), origin=origin("task-1"))
    assert ground.commit(new("user/n.md"), origin=origin("task-1")).repeated
    assert (ground.user / "n.md").read_bytes() == b"new\n"
