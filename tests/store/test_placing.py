"""A file of the state directory is there whole, or not at all (P1 to P3)."""

from __future__ import annotations

import os
import resource
import signal
import stat
import threading
from contextlib import contextmanager

import pytest

from muniment.store.state import put


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@contextmanager
def nearly_full():
    """The system takes the first eight bytes of a file, and refuses what comes after them.

    Also of what this process prints to a file: around nothing but the call.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("over", [True, False])
def test_a_file_is_whole_alone_and_ours_alone_whatever_the_umask(path, over):
    before = os.umask(0)
    try:
        put(path, b"whole", over=over)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"whole"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_nlink == 1


@pytest.mark.parametrize("over", [True, False])
def test_what_the_disk_takes_only_a_part_of_is_not_there(path, over):
    with nearly_full(), pytest.raises(OSError, match="File too large"):
        put(path, b"more than eight bytes", over=over)
    assert list(path.parent.iterdir()) == []


def test_what_stood_there_stays_where_the_disk_takes_only_a_part(path):
    path.write_bytes(b"before")
    with nearly_full(), pytest.raises(OSError, match="File too large"):
        put(path, b"more than eight bytes", over=True)
    assert path.read_bytes() == b"before"


def test_what_is_taken_in_parts_is_there_whole(path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    put(path, b"in several parts", over=False)
    assert path.read_bytes() == b"in several parts"


def test_what_was_left_unfinished_and_what_is_to_be_replaced_are(path):
    for name in ("file.unfinished", "file.0123abcd.unfinished"):
        path.with_name(name).write_bytes(b"half")
    path.write_bytes(b"before")
    put(path, b"after", over=True)
    assert path.read_bytes() == b"after"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("plant", [lambda path: path.write_bytes(b"mine"), lambda path: path.symlink_to("x")])
def test_what_is_not_to_be_replaced_stays(path, plant):
    plant(path)
    before = path.lstat()
    with pytest.raises(FileExistsError):
        put(path, b"after", over=False)
    assert path.lstat() == before
    assert list(path.parent.iterdir()) == [path]


def test_no_link_is_written_through(path):
    (path.parent / "elsewhere").write_bytes(b"mine")
    for name in ("file", "file.unfinished"):
        (path.parent / name).symlink_to("elsewhere")
    put(path, b"after", over=True)
    assert (path.parent / "elsewhere").read_bytes() == b"mine"
    assert not path.is_symlink()


def test_of_many_who_put_a_file_one_does(path):
    barrier, done = threading.Barrier(8), []

    def start(number):
        barrier.wait()
        try:
            put(path, f"by {number}".encode(), over=False)
        except (FileExistsError, FileNotFoundError):
            return
        done.append(f"by {number}")

    threads = [threading.Thread(target=start, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [path.read_text()]
