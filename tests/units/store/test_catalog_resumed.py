"""A look that is given up goes on the next time where it ended, whoever else looks meanwhile."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from kit.store.catalogued import KEY, catalogued, much_later
from kit.store.ground import STRICT, laid_out
from muniment.confine.cancel import Patience
from muniment.errors import Cancelled, DeadlineExceeded
from muniment.names import Trust
from muniment.store import catalog as subject
from muniment.store import catalog as visit
from muniment.store import upkeep
from muniment.store.catalog import refresh
from muniment.store.rows import Assessed
from muniment.store.state import open_catalog
from muniment.store.upkeep import view_in_time, view_of

FILES = [f"{topic}{number}.md" for topic in ("", "one/", "one/deep/", "two/") for number in range(5)]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(visit, "BATCH", 3)
    with catalogued(tmp_path) as root:
        root.clock = much_later
        for rel in FILES:
            root.put(rel, f"# Entry {rel}\n")
        yield root


def look(root, after=0, then=None, *, basis="first", catalog=None):
    """Refresh; the files that were read. After so many something else happens first."""
    asked = []

    def assess(rel, _digest, _data):
        if then is not None and len(asked) == after:
            then()
        asked.append(rel)
        return Assessed(Trust.OWNER)

    try:
        refresh(catalog or root.catalog, KEY, root.bound, assess, basis=basis, clock=much_later)
    except Cancelled:
        asked.append(None)
    return asked


def give_up():
    raise Cancelled("enough")


@pytest.mark.parametrize("after", range(len(FILES)))
def test_a_look_that_is_given_up_anywhere_goes_on_from_its_last_batch(root, after):
    first = look(root, after, give_up)
    assert (first[-1], len(first)) == (None, after + 1)
    kept = after // 3 * 3
    view = subject.View(root.catalog, KEY, root.bound, root.assess, clock=much_later)
    assert {entry.rel for entry in view.entries()} == set(first[:kept])
    assert not view.complete
    assert sorted(look(root)) == sorted(set(FILES) - set(first[:kept]))
    assert root.differences(root.refresh()) == {}


def test_looks_of_one_batch_each_come_to_an_end(root):
    looks = 0
    while look(root, 4, give_up)[-1:] == [None]:
        looks += 1
    assert looks == 6
    assert root.differences(root.refresh()) == {}


def test_on_another_basis_nothing_is_told_that_was_not_read_again(root):
    root.refresh()
    look(root, 7, give_up, basis="second")
    told = "SELECT rel FROM entry WHERE expires IS NULL OR expires > '2026'"
    known = {rel for (rel,) in root.catalog.rows(told)}
    assert len(known) == 6
    root.basis = "second"
    again = root.refresh()
    assert set(root.asked) == set(FILES) - known
    assert root.differences(again) == {}
    assert root.relisted() == {entry for (entry,) in root.catalog.rows("SELECT key FROM entry")}


@pytest.mark.parametrize("basis", ["first", "second"])
def test_whoever_is_overtaken_by_another_process_begins_again_and_both_end_with_what_is_there(root, basis):
    with closing(open_catalog(root.catalog.path)) as other:
        overtakes = [0]
        real = root.catalog.save

        def save():
            is_alone = real()
            if not overtakes[0]:
                with root.catalog.bare() as connection:
                    connection.execute("COMMIT")
                    look(root, basis=basis, catalog=other)
                    connection.execute("BEGIN IMMEDIATE")
                is_alone = False
            overtakes[0] += 1
            return is_alone

        root.catalog.save = save
        asked = look(root)
        assert len(set(asked)) == (3 if basis == "first" else len(FILES))
    assert root.differences(root.refresh()) == {}


def test_the_last_try_keeps_others_out(root):
    root.catalog.save = lambda: False
    assert sorted(set(look(root))) == sorted(FILES)
    assert root.differences(root.refresh()) == {}


# -- in time for an answer


@pytest.fixture
def ground(tmp_path, monkeypatch):
    monkeypatch.setattr(visit, "BATCH", 1)
    with laid_out(tmp_path) as ground:
        yield ground


def test_what_there_is_no_time_for_is_left_to_the_next_look(ground, monkeypatch):
    user, looks = ground.roots["user"], [0]
    whole = len(view_of(ground.state, user, STRICT).entries())
    ground.state.renew_catalog()
    real = upkeep._patiently

    def slow(assess, patience):
        def one_file(*asked):
            looks[0] += 1
            if looks[0] > 1:
                raise DeadlineExceeded("no time")
            return assess(*asked)

        return real(one_file, patience)

    monkeypatch.setattr(upkeep, "_patiently", slow)
    patience = Patience(time.monotonic() + 60)
    assert len(view_in_time(ground.state, user, STRICT, patience).entries()) == 1 < whole
    monkeypatch.setattr(upkeep, "_patiently", real)
    assert len(view_in_time(ground.state, user, STRICT, patience).entries()) == whole


def test_whoever_has_no_time_left_at_all_is_told(ground):
    with pytest.raises(DeadlineExceeded):
        view_in_time(ground.state, ground.roots["user"], STRICT, Patience(time.monotonic()))
