"""A file of the state directory is there whole, or not at all (P1 to P3)."""

from __future__ import annotations

import resource
import signal
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


def test_what_stood_there_stays_where_the_disk_takes_only_a_part(path):
    path.write_bytes(b"before")
    with nearly_full(), pytest.raises(OSError, match="File too large"):
        put(path, b"more than eight bytes", over=True)
    assert path.read_bytes() == b"before"


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
