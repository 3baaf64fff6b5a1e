"""All or none: a fault at any stage leaves names and bytes as they were, and nothing of ours behind."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle, product
from pathlib import Path

import pytest

from muniment import events
from muniment.confine import writing
from muniment.confine.binding import bind
from muniment.confine.writing import Directory, open_directory
from muniment.errors import ManagedMemoryUnavailable, PathEscape, StoreConflict
from muniment.store import apply as subject
from muniment.store.apply import Expected, Write, take_back
from muniment.store.ledger import new_token, temporary_of


def apply(writes):
    subject.apply(writes, partial(temporary_of, new_token()))


@pytest.fixture
def writes(ground):
    """Every kind of write, with new directories inside each other, the generated one in front."""
    user, project = ground.roots["user"], ground.roots["project"]
    (ground.user / "MEMORY.md").symlink_to(ground.outside / "secret.md")
    (ground.user / "gone.md").write_bytes(b"gone\n")
    return [
        Write(user, "MEMORY.md", Expected.LINK, b"index\n"),
        Write(user, "a.md", b"# A\nalpha\n", b"a after\n"),
        Write(user, "fresh/x.md", Expected.ABSENT, b"x\n"),
        Write(user, "fresh/deep/y.md", Expected.ABSENT, b"y\n"),
        Write(user, "topic/t.md", b"# T\ntopic\n", b"t after\n"),
        Write(user, "gone.md", b"gone\n", None),
        Write(project, "other/z.md", Expected.ABSENT, b"z\n"),
        Write(project, "p.md", b"# P\nproject\n", b"p after\n"),
    ]


@contextmanager
def nth(owner, name, at, act, *, after=False, lasting=False):
    """Have `act` happen just before the call number `at`, or when its work is done; and at all later ones."""
    real, calls = getattr(owner, name), []

    def method(*arguments, **keywords):
        calls.append(arguments)
        due = len(calls) == at or (lasting and len(calls) > at)
        if due and not after and (instead := act()) is not None:
            return instead
        result = real(*arguments, **keywords)
        if due and after:
            act()
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, method)
        yield calls


def fail(error):
    def act():
        raise error

    return act


def refusing(number):
    """What `renameat2` does where it cannot."""
    return lambda *_: (writing.ctypes.set_errno(number), -1)[1]


REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "quota",
    errno.EIO: "the disk reports an error",
    errno.EROFS: "the file system is read-only",
}


@pytest.mark.threat("T-RUN-02", control="taken_back")
def test_a_fault_or_an_interrupt_at_any_moment_leaves_everything_as_it_was(ground, writes):
    before, numbers = ground.contents(), cycle(REASONS)

    def broken(owner, call, at, act, error, match=None, **more):
        with nth(owner, call, at, act, **more) as calls, pytest.raises(error, match=match):
            apply(writes)
        assert len(calls) >= at
        assert ground.contents() == before, (call, at, more)

    for call, times in {"write": 7, "fsync": 7, "mkdir": 3, "fchmod": 7}.items():
        for at, number in zip(range(1, times + 1), numbers, strict=False):
            broken(os, call, at, fail(OSError(number, "no")), ManagedMemoryUnavailable, REASONS[number])
    for at in range(1, 7):
        broken(writing, "_renameat2", at, refusing(errno.EIO), ManagedMemoryUnavailable)
    calls = {"stage": 7, "publish_new": 3, "replace": 3, "withdraw": 1, "replace_link": 1, "_unlink": 4}
    for (call, times), after in product(calls.items(), (False, True)):
        if not after or call not in {"stage", "replace_link"}:  # Told below: what is lost there, and why.
            for at in range(1, times + 1):
                broken(Directory, call, at, fail(KeyboardInterrupt()), KeyboardInterrupt, after=after)


# What cannot be taken back is named.


def test_what_somebody_edited_after_it_got_its_name_is_kept_and_named(ground, writes):
    edited = [ground.user / "a.md", ground.user / "fresh" / "x.md"]

    def edit():
        for path in edited:
            path.write_bytes(b"a peer's edit")
        raise KeyboardInterrupt

    with nth(Directory, "replace", 2, edit), pytest.raises(ManagedMemoryUnavailable) as caught:
        apply(writes[1:])
    assert all(word in str(caught.value) for word in ("KeyboardInterrupt", "user/a.md", "user/fresh/x.md"))
    assert "t.md" not in str(caught.value)
    assert {path.read_bytes() for path in edited} == {b"a peer's edit"}
    assert (ground.user / "topic" / "t.md").read_bytes() == b"# T\ntopic\n"
    assert not list(ground.base.rglob("*.tmp"))


def test_a_disk_that_stays_broken_is_told_with_the_files_that_are_not_taken_back(ground, writes, monkeypatch):
    def deed():
        monkeypatch.setattr(os, "write", lambda *_: fail(OSError(errno.EIO, "no"))())
        raise StoreConflict(("user/topic/t.md",))

    with nth(Directory, "replace", 2, deed), pytest.raises(ManagedMemoryUnavailable) as caught:
        apply(writes[1:])
    assert "could not be taken back for user/a.md; the next command" in caught.value.reason
    assert "changed by someone else" in caught.value.reason
    assert (ground.user / "a.md").read_bytes() == b"a after\n"
    assert not [*ground.base.rglob("*.tmp"), *ground.user.glob("fresh")]


def test_a_directory_that_cannot_be_removed_again_is_named(writes):
    with (
        nth(os, "rmdir", 1, fail(OSError(errno.EIO, "no"))),
        nth(Directory, "replace", 1, fail(KeyboardInterrupt())),
        pytest.raises(ManagedMemoryUnavailable, match=r"taken back for project/other; the next command"),
    ):
        apply(writes[6:])


@pytest.mark.parametrize("call", ["replace_link", "sync"])
def test_a_generated_file_that_replaced_a_link_cannot_be_taken_back_and_is_named(ground, writes, call):
    with (
        nth(Directory, call, 1, fail(KeyboardInterrupt()), after=True),
        pytest.raises(ManagedMemoryUnavailable, match=r"taken back for user/MEMORY\.md; the next command"),
    ):
        apply(writes)
    assert (ground.user / "a.md").read_bytes() == b"# A\nalpha\n"
    assert not (ground.user / "fresh").exists()


def test_a_file_that_took_the_place_of_a_link_gets_its_name_back(ground, writes, monkeypatch):
    """It was displaced, and then the commit was interrupted before anybody looked."""

    def swap_and_break(self, staged, name):
        (ground.user / name).unlink()
        (ground.user / name).write_bytes(b"a peer's")
        self._rename(staged.temporary, name, writing._EXCHANGE)
        raise KeyboardInterrupt

    monkeypatch.setattr(Directory, "replace_link", swap_and_break)
    with pytest.raises(KeyboardInterrupt):
        apply(writes[:1])
    assert (ground.user / "MEMORY.md").read_bytes() == b"a peer's"
    assert not list(ground.base.rglob("*.tmp"))


def test_a_plain_rename_is_told_and_what_is_not_there_cannot_be_removed(ground, writes, monkeypatch):
    told = []
    with pytest.raises(ValueError, match="cannot be removed"):
        apply([Write(ground.roots["user"], "none.md", Expected.ABSENT, None)])
    monkeypatch.setattr(writing, "_renameat2", refusing(errno.EINVAL))
    monkeypatch.setattr(events, "emit", lambda event, **fields: told.append((event, fields)))
    apply(writes)
    assert len(told) == len(writes)
    assert told[0] == ("commit_degraded", {"scope": "user", "landing": "plain_rename"})


def test_every_descriptor_is_closed_again(writes):
    held = len(list(Path("/proc/self/fd").iterdir()))
    apply(writes[2:4])
    with pytest.raises(ManagedMemoryUnavailable, match="not a temporary name"):
        subject.apply(writes[6:], lambda _number: "no temporary name")
    assert len(list(Path("/proc/self/fd").iterdir())) == held


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_whenever_a_peer_exchanges_the_name_its_bytes_alone_are_kept(tmp_path, monkeypatch, step):
    real = writing._renameat2
    for moments in range(0, 256, step):
        base = tmp_path / str(moments)
        base.mkdir(mode=0o700)
        name, decoy, spare = base / "a.md", tmp_path / f"decoy-{moments}", tmp_path / "spare"
        name.write_bytes(b"before\n")
        os.mkfifo(decoy)
        theirs = {name.stat().st_ino: "the file", decoy.stat().st_ino: "the FIFO"}
        due, ways = (
            iter([moments >> at & 1 for at in range(8)]),
            ((name, spare), (decoy, name), (spare, decoy)),
        )

        def raced(*arguments, due=due, ways=ways):
            result = None
            for turn in range(2):
                if next(due, 0):
                    for old, new in ways:
                        old.rename(new)
                result = result if turn else real(*arguments)
            return result

        monkeypatch.setattr(writing, "_renameat2", raced)
        bound, landed = bind("user", base), False
        with suppress(StoreConflict, ManagedMemoryUnavailable):
            apply([Write(bound, "a.md", b"before\n", b"ours\n")])
            landed = True
        bound.close()
        aside = list(base.glob(".muniment-*.tmp"))
        assert not [path for path in aside if path.is_file() and path.read_bytes() == b"ours\n"], moments
        standing = {path.stat().st_ino for path in (name, decoy, *aside)}
        lost = {what for inode, what in theirs.items() if inode not in standing}
        assert lost == ({"the file"} if landed else set()), moments


# One file is brought back from every state in which a kill or a peer may have left its two names.

TEMPORARY = ".muniment-00112233445566aa.tmp"
BEFORE, AFTER, THEIRS, OTHERS = b"before\n", b"after\n", b"theirs\n", b"others'\n"
CHANGES = [(None, AFTER), (BEFORE, AFTER), (BEFORE, None), (BEFORE, BEFORE)]
REACHED = [
    # What a kill of ours can leave: before, staged, exchanged and not dropped, done.
    *((None, AFTER, current, aside) for current, aside in ((None, None), (None, AFTER), (AFTER, None))),
    *((BEFORE, AFTER, BEFORE, aside) for aside in (None, AFTER)),
    *((BEFORE, AFTER, AFTER, aside) for aside in (BEFORE, None)),
    *((BEFORE, None, current, aside) for current, aside in ((BEFORE, None), (None, BEFORE), (None, None))),
]


def brought_back(ground, before, after, *standing):
    """What stands under both names once `n.md` was brought back from what stood there, and if it was told."""
    paths, told = [ground.user / "n.md", ground.user / TEMPORARY], False
    for path, content in zip(paths, standing, strict=True):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
    with open_directory(ground.roots["user"].root, "", create=False) as directory:
        try:
            take_back(directory, "n.md", before, after, TEMPORARY)
        except StoreConflict:
            told = True
    return [path.read_bytes() if path.exists() else None for path in paths], told


@pytest.mark.threat("T-IDX-02", control="recovery")
def test_from_every_state_of_both_names_nothing_of_a_peer_is_lost_and_nothing_of_ours_stays(ground):
    currents, asides = [None, BEFORE, AFTER, THEIRS], [None, BEFORE, AFTER, OTHERS]
    for (before, after), current, aside in product(CHANGES, currents, asides):
        row = (before, after, current, aside)
        standing, told = brought_back(ground, *row)
        for theirs, held in ((THEIRS, current), (OTHERS, aside)):
            assert (held == theirs) == (theirs in standing), row
        assert told or standing[1] is None, row
        if not told and aside is None and current in {before, after}:
            assert standing[0] == before, row
        assert current != THEIRS or standing[0] == THEIRS, row
        assert row not in REACHED or (standing, told) == ([before, None], False), row
    for part in (b"", AFTER[:3], AFTER[:3] + bytes(3), bytes(6)):  # What a kill or a power failure cut off.
        assert brought_back(ground, BEFORE, AFTER, BEFORE, part) == ([BEFORE, None], False), part


def test_what_is_no_file_of_its_own_is_neither_followed_nor_dropped(ground):
    secret, paths = ground.outside / "secret.md", (ground.user / "n.md", ground.user / TEMPORARY)
    kinds = (lambda path: path.symlink_to(secret), os.mkfifo, lambda path: os.link(secret, path))
    for (one, other), make in product((paths, paths[::-1]), kinds):
        other.write_bytes(BEFORE)
        make(one)
        before = ground.photograph()
        opened = open_directory(ground.roots["user"].root, "", create=False)
        with opened as directory, pytest.raises(PathEscape):
            take_back(directory, "n.md", BEFORE, AFTER, TEMPORARY)
        assert ground.photograph() == before
        one.unlink()
        other.unlink()


def test_a_fault_while_the_old_bytes_are_put_back_leaves_them_under_no_second_name(ground):
    with nth(Directory, "replace", 1, fail(KeyboardInterrupt())), pytest.raises(KeyboardInterrupt):
        brought_back(ground, BEFORE, AFTER, AFTER, None)
    assert (ground.user / "n.md").read_bytes() == AFTER
    assert not (ground.user / TEMPORARY).exists()
