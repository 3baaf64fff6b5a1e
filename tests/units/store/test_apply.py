"""All or none: a fault at any stage leaves names and bytes as they were, and nothing of ours behind."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from kit.store.ground import laid_out
from muniment import events
from muniment.confine import writing
from muniment.confine.writing import Directory
from muniment.errors import ManagedMemoryUnavailable, NotAFile, PathEscape, StoreConflict
from muniment.store import apply as subject
from muniment.store.apply import Expected, Write
from muniment.store.ledger import new_token, temporary_of


def apply(writes):
    subject.apply(writes, partial(temporary_of, new_token()))


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        (tmp_path / "user" / "MEMORY.md").symlink_to(tmp_path / "outside" / "secret.md")
        yield made


def writes(ground):
    """Every kind of write, with new directories inside each other, the generated one in front."""
    user, project = ground.roots["user"], ground.roots["project"]
    return [
        Write(user, "MEMORY.md", Expected.LINK, b"index\n"),
        Write(user, "a.md", b"# A\nalpha\n", b"a after\n"),
        Write(user, "fresh/x.md", Expected.ABSENT, b"x\n"),
        Write(user, "fresh/deep/y.md", Expected.ABSENT, b"y\n"),
        Write(user, "topic/t.md", b"# T\ntopic\n", b"t after\n"),
        Write(project, "other/z.md", Expected.ABSENT, b"z\n"),
        Write(project, "p.md", b"# P\nproject\n", b"p after\n"),
    ]

    """Names and bytes, without the two places where a rename is known to be final."""
    return ground.contents()


class Faulty:
    """A callable whose call number `at` fails, before or after its work; `lasting`: and all later ones."""

    def __init__(self, real, at, error, *, after=False, lasting=False):
        self.real, self.at, self.error = real, at, error
        self.after, self.lasting, self.calls = after, lasting, 0

    def __get__(self, instance, _owner):
        return lambda *args, **keywords: self(instance, *args, **keywords)

    def __call__(self, *args, **keywords):
        self.calls += 1
        due = self.calls == self.at or (self.lasting and self.calls > self.at)
        if due and not self.after:
            raise self.error
        result = self.real(*args, **keywords)
        if due:
            raise self.error
        return result


def fault(monkeypatch, where, name, **how):
    faulty = Faulty(getattr(where, name), **how)
    monkeypatch.setattr(where, name, faulty)
    return faulty


# Faults of the system: the n-th call of each kind, and the reason that a person reads.

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "quota",
    errno.EIO: "the disk reports an error",
    errno.EROFS: "the file system is read-only",
}


@pytest.mark.sweep(23)
@pytest.mark.parametrize("number", REASONS)
@pytest.mark.parametrize("call", ["write", "fsync", "mkdir", "fchmod"])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_fault_of_the_system_at_any_stage_changes_nothing(ground, monkeypatch, call, number, at):
    before = ground.contents()
    with monkeypatch.context() as patched:
        faulty = fault(patched, os, call, at=at, error=OSError(number, os.strerror(number)))
        if call == "mkdir" and at > 3:
            apply(writes(ground))  # There are three directories to make: the fault is never met.
            return
        with pytest.raises(ManagedMemoryUnavailable, match=REASONS[number]):
            apply(writes(ground))
    assert faulty.calls >= at
    assert ground.contents() == before


@pytest.mark.parametrize("at", range(1, 7))
def test_a_rename_that_fails_leaves_everything_as_it_was(ground, monkeypatch, at):
    before, calls = ground.contents(), []
    real = writing._renameat2

    def refuse(*args):
        calls.append(args)
        if len(calls) == at:
            writing.ctypes.set_errno(errno.EIO)
            return -1
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(writing, "_renameat2", refuse)
        with pytest.raises(ManagedMemoryUnavailable, match="the disk reports an error"):
            apply(writes(ground))
    assert ground.contents() == before


# Interrupts: before a call, and after it did its work but before it could say so.


@pytest.mark.threat("T-RUN-02", control="taken_back")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("call", "times"), [("stage", 7), ("publish_new", 3), ("replace", 3), ("replace_link", 1), ("_unlink", 3)]
)
def test_an_interrupt_at_any_moment_leaves_everything_as_it_was(ground, monkeypatch, call, times, after):
    before = ground.contents()
    for at in range(1, times + 1):
        if after and call in {"stage", "replace_link"}:
            continue  # Told below: what is lost there, and why.
        with monkeypatch.context() as patched:
            fault(patched, Directory, call, at=at, error=KeyboardInterrupt(), after=after)
            with pytest.raises(KeyboardInterrupt):
                apply(writes(ground))
        assert ground.contents() == before, f"{call} number {at}"


def test_a_name_that_fails_last_takes_back_every_scope(ground, monkeypatch):
    """Also the generated file is not overwritten before all else has its name."""
    before = ground.contents()
    with monkeypatch.context() as patched:
        fault(patched, Directory, "replace_link", at=1, error=StoreConflict(("user/MEMORY.md",)))
        with pytest.raises(StoreConflict):
            apply(writes(ground))
    assert ground.contents() == before


# What somebody else does meanwhile.


def meddle(monkeypatch, method, deed, at=1):
    """Let `deed` happen just before the call number `at` of a method of `Directory`."""
    real, calls = getattr(Directory, method), []

    def meddled(self, *args, **keywords):
        calls.append(args)
        if len(calls) == at:
            deed()
        return real(self, *args, **keywords)

    monkeypatch.setattr(Directory, method, meddled)


@pytest.mark.parametrize(
    ("rel", "method"),
    [
        ("a.md", "stage"),
        ("a.md", "replace"),
        ("a.md", "_rename"),
        ("topic/t.md", "stage"),
        ("topic/t.md", "publish_new"),
        ("topic/t.md", "replace"),
        ("topic/t.md", "_rename"),
    ],
)
def test_an_edit_that_somebody_makes_meanwhile_is_kept_and_nothing_lands(ground, monkeypatch, method, rel):
    path = ground.user / rel
    expected = {**ground.contents()}
    meddle(monkeypatch, method, lambda: path.write_bytes(b"edited by a peer"))
    with pytest.raises(StoreConflict, match=rel):
        apply(writes(ground)[1:])
    assert path.read_bytes() == b"edited by a peer"
    expected[f"user/{rel}"] = ground.contents()[f"user/{rel}"]
    assert ground.contents() == expected


def test_a_name_that_somebody_takes_meanwhile_stays_theirs(ground, monkeypatch):
    before = ground.contents()
    meddle(monkeypatch, "publish_new", lambda: (ground.user / "fresh" / "x.md").write_bytes(b"theirs"))
    with pytest.raises(StoreConflict, match=r"fresh/x\.md"):
        apply(writes(ground)[1:])
    assert (ground.user / "fresh" / "x.md").read_bytes() == b"theirs"
    (ground.user / "fresh" / "x.md").unlink()
    (ground.user / "fresh").rmdir()
    assert ground.contents() == before


@pytest.mark.threat("T-PATH-04", control="resolvers")
@pytest.mark.parametrize("kind", ["link", "file", "directory"])
def test_what_takes_the_place_of_a_directory_meanwhile_is_not_followed(ground, monkeypatch, kind):
    def deed():
        place = ground.project / "other"
        if kind == "link":
            place.symlink_to(ground.outside)
        elif kind == "file":
            place.write_bytes(b"")
        else:
            place.mkdir()

    def elsewhere():
        found = ground.photograph()
        return {path: found[path] for path in found if path.startswith(("outside", "user"))}

    before = elsewhere()
    error = {"link": PathEscape, "file": NotAFile}.get(kind)
    only = [writes(ground)[2], writes(ground)[5]]
    meddle(monkeypatch, "stage", deed)
    if error is None:
        apply(only)
        assert (ground.project / "other" / "z.md").read_bytes() == b"z\n"
        return
    with pytest.raises(error):
        apply(only)
    assert elsewhere() == before


# What cannot be taken back is named.


def test_what_somebody_edited_after_it_got_its_name_is_kept_and_named(ground, monkeypatch):
    real, published = Directory.replace, []

    def edited_and_broken(self, staged, name, claimed):
        if published:
            (ground.user / "a.md").write_bytes(b"a peer's edit")
            (ground.user / "fresh" / "x.md").write_bytes(b"a peer's edit")
            monkeypatch.setattr(Directory, "replace", real)
            raise KeyboardInterrupt
        published.append(name)
        return real(self, staged, name, claimed)

    monkeypatch.setattr(Directory, "replace", edited_and_broken)
    with pytest.raises(ManagedMemoryUnavailable) as caught:
        apply(writes(ground)[1:])
    reason = str(caught.value)
    assert "KeyboardInterrupt" in reason
    assert "user/a.md" in reason
    assert "user/fresh/x.md" in reason
    assert "t.md" not in reason
    assert (ground.user / "a.md").read_bytes() == b"a peer's edit"
    assert (ground.user / "fresh" / "x.md").read_bytes() == b"a peer's edit"
    assert (ground.user / "topic" / "t.md").read_bytes() == b"# T\ntopic\n"
    assert not [path for path in ground.contents() if ".tmp" in path]


def test_a_disk_that_stays_broken_is_told_with_the_files_that_could_not_be_taken_back(ground, monkeypatch):
    broken = OSError(errno.EIO, "no")

    def deed():
        fault(monkeypatch, os, "write", at=1, error=broken, lasting=True)
        raise StoreConflict(("user/topic/t.md",))

    meddle(monkeypatch, "replace", deed, at=2)
    with pytest.raises(ManagedMemoryUnavailable) as caught:
        apply(writes(ground)[1:])
    assert "could not be taken back for user/a.md; the next command" in caught.value.reason
    assert "changed by someone else" in caught.value.reason
    assert (ground.user / "a.md").read_bytes() == b"a after\n"
    assert not (ground.user / "fresh").exists()
    assert not [path for path in ground.contents() if ".tmp" in path]


def test_a_directory_that_cannot_be_removed_again_is_named(ground, monkeypatch):
    fault(monkeypatch, os, "rmdir", at=1, error=OSError(errno.EIO, "no"))
    fault(monkeypatch, Directory, "replace", at=1, error=KeyboardInterrupt())
    with pytest.raises(ManagedMemoryUnavailable, match=r"taken back for project/other; the next command"):
        apply(writes(ground)[5:])


@pytest.mark.parametrize("call", ["replace_link", "sync"])
def test_a_generated_file_that_replaced_a_link_cannot_be_taken_back_and_is_named(ground, monkeypatch, call):
    fault(monkeypatch, Directory, call, at=1, error=KeyboardInterrupt(), after=True)
    with pytest.raises(ManagedMemoryUnavailable, match=r"taken back for user/MEMORY\.md; the next command"):
        apply(writes(ground))
    assert (ground.user / "a.md").read_bytes() == b"# A\nalpha\n"
    assert not (ground.user / "fresh").exists()


def test_a_file_that_took_the_place_of_a_link_gets_its_name_back(ground, monkeypatch):
    """It was displaced, and then the commit was interrupted before anybody looked."""

    def swap_and_break(self, staged, name):
        (ground.user / name).unlink()
        (ground.user / name).write_bytes(b"a peer's")
        self._rename(staged.temporary, name, writing._EXCHANGE)
        raise KeyboardInterrupt

    monkeypatch.setattr(Directory, "replace_link", swap_and_break)
    with pytest.raises(KeyboardInterrupt):
        apply(writes(ground)[:1])
    assert (ground.user / "MEMORY.md").read_bytes() == b"a peer's"
    assert not [path for path in ground.contents() if ".tmp" in path]


def test_what_is_not_there_cannot_be_removed(ground):
    with pytest.raises(ValueError, match="cannot be removed"):
        apply([Write(ground.roots["user"], "none.md", Expected.ABSENT, None)])


# File systems without the flags of renameat2.


@pytest.fixture
def lacking(monkeypatch):
    def refuse(*_args):
        writing.ctypes.set_errno(errno.EINVAL)
        return -1

    monkeypatch.setattr(writing, "_renameat2", refuse)


@pytest.mark.usefixtures("lacking")
def test_a_plain_rename_is_told_to_whoever_listens(ground, monkeypatch):
    told = []
    monkeypatch.setattr(events, "emit", lambda event, **fields: told.append((event, fields)))
    all_writes = writes(ground)
    apply(all_writes)
    assert len(told) == len(all_writes)
    assert told[0] == ("commit_degraded", {"scope": "user", "landing": "plain_rename"})


def test_every_descriptor_is_closed_again(ground):
    held = len(list(Path("/proc/self/fd").iterdir()))
    apply(writes(ground)[2:4])
    with pytest.raises(ManagedMemoryUnavailable, match="not a temporary name"):
        subject.apply(writes(ground)[5:], lambda _number: "no temporary name")
    assert len(list(Path("/proc/self/fd").iterdir())) == held


@pytest.mark.sweep(38)
@pytest.mark.parametrize("moments", range(256))
def test_whenever_a_peer_exchanges_the_name_our_bytes_do_not_stay_aside_and_the_peers_are_kept(
    ground, tmp_path, monkeypatch, moments
):
    name, decoy = tmp_path / "user" / "a.md", tmp_path / "decoy"
    os.mkfifo(decoy)
    theirs = {name.stat().st_ino: "the file", decoy.stat().st_ino: "the FIFO"}
    real, moment = writing._renameat2, iter(range(8))

    def exchange_if_due():
        if moments >> next(moment, 8) & 1:
            spare = tmp_path / "spare"
            name.rename(spare)
            decoy.rename(name)
            spare.rename(decoy)

    def raced(*arguments):
        exchange_if_due()
        result = real(*arguments)
        exchange_if_due()
        return result

    monkeypatch.setattr(writing, "_renameat2", raced)
    try:
        apply([Write(ground.roots["user"], "a.md", b"# A\nalpha\n", b"ours\n")])
    except (StoreConflict, ManagedMemoryUnavailable):
        landed = False
    else:
        landed = True
    aside = list((tmp_path / "user").glob(".muniment-*.tmp"))
    assert not [path for path in aside if path.is_file() and path.read_bytes() == b"ours\n"]
    standing = {path.stat().st_ino for path in (name, decoy, *aside)}
    lost = {what for inode, what in theirs.items() if inode not in standing}
    assert lost == ({"the file"} if landed else set())
