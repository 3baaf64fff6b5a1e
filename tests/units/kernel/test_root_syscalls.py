"""System calls by number: tables and results, compared with the standard library."""

import ctypes
import os

import pytest

from kit.catching import catch_error
from muniment.errors import PlatformUnsupported
from muniment.kernel import syscalls as subject
from muniment.kernel.syscalls import MACHINES, UNKNOWN, StatGeneric, StatX86, get_numbers


def test_syscall_numbers_match_kernel_and_unknown_are_rejected():
    assert MACHINES["x86_64"] == subject.Numbers(fstat=5, getdents64=217, renameat2=316)
    assert MACHINES["aarch64"] == subject.Numbers(fstat=80, getdents64=61, renameat2=276)
    for layout, mode, links, size in ((StatX86, 24, 16, 144), (StatGeneric, 16, 20, 128)):
        offsets = {"st_ino": 8, "st_nlink": links, "st_mode": mode, "st_size": 48}
        assert {name: getattr(layout, name).offset for name in offsets} == offsets
        assert ctypes.sizeof(layout) == size
    subject.require_known_machine(MACHINES["aarch64"])
    for machine, pointer in (("riscv64", 8), ("", 8), ("x86_64", 4), ("aarch64", 4)):
        assert get_numbers(machine, pointer) is UNKNOWN
        with pytest.raises(PlatformUnsupported):
            subject.require_known_machine(get_numbers(machine, pointer))


def test_fstat_and_entries_match_standard_library(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 12_345)
    os.link(path, tmp_path / "second")
    for name, flags in (("file", os.O_RDONLY), ("file", os.O_PATH), (".", os.O_PATH)):
        fd = os.open(tmp_path / name, flags)
        expected, found = os.fstat(fd), subject.fstat(fd)
        os.close(fd)
        for field in ("st_dev", "st_ino", "st_mode", "st_nlink", "st_size"):
            assert getattr(found, field) == getattr(expected, field)
    for number in range(50):
        (tmp_path / f"{number}").touch()
    (tmp_path / "directory").mkdir()
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    found = dict(subject.iterate_entries(fd))
    os.close(fd)
    assert set(found) == {os.fsencode(path.name) for path in tmp_path.iterdir()}


def test_syscall_errors_contain_no_path(tmp_path, monkeypatch):
    assert catch_error(OSError, subject.fstat, -1, match="Bad file descriptor").filename is None
    fd = os.open(tmp_path, os.O_PATH)
    with pytest.raises(OSError, match="Bad file descriptor"):
        list(subject.iterate_entries(fd))
    os.close(fd)
    monkeypatch.setattr(subject, "_FSTAT", UNKNOWN.fstat)
    catch_error(OSError, subject.fstat, 0, match="not implemented")
