"""One file is brought back from every state in which a kill or a peer may have left its two names."""

from __future__ import annotations

import os
from itertools import product

import pytest

from kit.store.ground import laid_out
from muniment.confine.writing import Directory, open_directory
from muniment.errors import PathEscape, StoreConflict
from muniment.store.apply import take_back

TEMPORARY = ".muniment-00112233445566aa.tmp"
BEFORE, AFTER, THEIRS, OTHERS = b"before\n", b"after\n", b"theirs\n", b"others'\n"


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made


def brought_back(ground, name, before, after):
    with open_directory(ground.roots["user"].root, "", create=False) as directory:
        take_back(directory, name, before, after, TEMPORARY)


def lay(path, content):
    if content is not None:
        path.write_bytes(content)


def content_of(path):
    return path.read_bytes() if path.exists() else None


CHANGES = [(None, AFTER), (BEFORE, AFTER), (BEFORE, None), (BEFORE, BEFORE)]
STATES = [None, BEFORE, AFTER, THEIRS]


@pytest.mark.threat("T-IDX-02", control="recovery")
@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize(("current", "aside"), list(product(STATES, [None, BEFORE, AFTER, OTHERS])))
def test_from_every_state_of_both_names_nothing_of_a_peer_is_lost_and_nothing_of_ours_stays(
    ground, before, after, current, aside
):
    name, temporary = ground.user / "n.md", ground.user / TEMPORARY
    lay(name, current)
    lay(temporary, aside)
    told = False
    try:
        brought_back(ground, "n.md", before, after)
    except StoreConflict:
        told = True
    standing = [content_of(name), content_of(temporary)]
    for theirs, held in ((THEIRS, current), (OTHERS, aside)):
        assert (held == theirs) == (theirs in standing)
    if not told:
        assert standing[1] is None
    if not told and aside is None and current in {before, after}:
        assert standing[0] == before
    if current == THEIRS:
        assert standing[0] == THEIRS


REACHED = [
    # What a kill of ours can leave: before, staged, exchanged and not dropped, done.
    (None, AFTER, None, None),
    (None, AFTER, None, AFTER),
    (None, AFTER, AFTER, None),
    (BEFORE, AFTER, BEFORE, None),
    (BEFORE, AFTER, BEFORE, AFTER),
    (BEFORE, AFTER, AFTER, BEFORE),
    (BEFORE, AFTER, AFTER, None),
    (BEFORE, None, BEFORE, None),
    (BEFORE, None, None, BEFORE),
    (BEFORE, None, None, None),
]


@pytest.mark.parametrize(("before", "after", "current", "aside"), REACHED)
def test_from_every_state_that_a_kill_leaves_the_before_state_comes_back_alone(
    ground, before, after, current, aside
):
    untouched = ground.contents()
    name, temporary = ground.user / "n.md", ground.user / TEMPORARY
    lay(name, current)
    lay(temporary, aside)
    brought_back(ground, "n.md", before, after)
    assert content_of(name) == before
    if before is not None:
        name.unlink()
    assert ground.contents() == untouched


@pytest.mark.parametrize("where", ["n.md", TEMPORARY])
@pytest.mark.parametrize("kind", ["link", "FIFO", "hard link"])
def test_what_is_no_file_of_its_own_is_neither_followed_nor_dropped(ground, where, kind):
    lay(ground.user / ("n.md" if where != "n.md" else TEMPORARY), BEFORE)
    secret = ground.outside / "secret.md"
    match kind:
        case "link":
            (ground.user / where).symlink_to(secret)
        case "FIFO":
            os.mkfifo(ground.user / where)
        case "hard link":
            os.link(secret, ground.user / where)
    before = ground.photograph()
    with pytest.raises(PathEscape):
        brought_back(ground, "n.md", BEFORE, AFTER)
    assert ground.photograph() == before


def test_a_fault_while_the_old_bytes_are_put_back_leaves_them_under_no_second_name(ground, monkeypatch):
    lay(ground.user / "n.md", AFTER)

    def fail(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(Directory, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        brought_back(ground, "n.md", BEFORE, AFTER)
    assert content_of(ground.user / "n.md") == AFTER
    assert content_of(ground.user / TEMPORARY) is None


@pytest.mark.parametrize("part", [b"", AFTER[:3], AFTER[:3] + bytes(3), bytes(6)])
def test_bytes_of_ours_that_a_kill_or_a_power_failure_cut_off_are_dropped(ground, part):
    lay(ground.user / "n.md", BEFORE)
    lay(ground.user / TEMPORARY, part)
    brought_back(ground, "n.md", BEFORE, AFTER)
    assert content_of(ground.user / "n.md") == BEFORE
    assert content_of(ground.user / TEMPORARY) is None
