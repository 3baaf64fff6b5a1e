"""System calls by number: the tables, and what the kernel answers, against the standard library."""

from __future__ import annotations

import ctypes
import os

import pytest

from muniment.confine import syscalls as subject
from muniment.confine.syscalls import MACHINES, UNKNOWN, StatGeneric, StatX86, numbers_for
from muniment.errors import PlatformUnsupported


def test_numbers_are_those_of_the_kernel_tables():
    assert MACHINES["x86_64"] == subject.Numbers(fstat=5, getdents64=217, renameat2=316)
    assert MACHINES["aarch64"] == subject.Numbers(fstat=80, getdents64=61, renameat2=276)


@pytest.mark.parametrize(("machine", "pointer"), [("riscv64", 8), ("", 8), ("x86_64", 4), ("aarch64", 4)])
def test_an_unknown_machine_has_no_numbers_and_is_refused(machine, pointer):
    assert numbers_for(machine, pointer) is UNKNOWN
    with pytest.raises(PlatformUnsupported):
        subject.require_known_machine(numbers_for(machine, pointer))


def test_a_known_machine_is_accepted():
    subject.require_known_machine(MACHINES["aarch64"])


@pytest.mark.parametrize(
    ("layout", "offsets"),
    [
        (StatX86, {"st_ino": 8, "st_nlink": 16, "st_mode": 24, "st_size": 48, "st_mtime": 88}),
        (StatGeneric, {"st_ino": 8, "st_mode": 16, "st_nlink": 20, "st_size": 48, "st_mtime": 88}),
    ],
)
def test_layouts_are_those_of_the_kernel_headers(layout, offsets):
    assert {name: getattr(layout, name).offset for name in offsets} == offsets
    assert ctypes.sizeof(layout) == 144


def test_a_descriptor_is_described_as_the_standard_library_does(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 12_345)
    os.link(path, tmp_path / "second")
    for name, flags in (("file", os.O_RDONLY), ("file", os.O_PATH), (".", os.O_PATH)):
        fd = os.open(tmp_path / name, flags)
        expected, found = os.fstat(fd), subject.fstat(fd)
        os.close(fd)
        assert (found.st_dev, found.st_ino, found.st_mode) == (
            expected.st_dev,
            expected.st_ino,
            expected.st_mode,
        )
        assert (found.st_nlink, found.st_size) == (expected.st_nlink, expected.st_size)


def test_a_closed_descriptor_is_an_error_without_a_path():
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        subject.fstat(-1)
    assert caught.value.filename is None


def test_a_number_that_the_kernel_does_not_know_is_an_error(monkeypatch):
    monkeypatch.setattr(subject, "_FSTAT", UNKNOWN.fstat)
    with pytest.raises(OSError, match="not implemented"):
        subject.fstat(0)


def test_a_directory_is_listed_as_the_standard_library_does(tmp_path):
    for number in range(50):
        (tmp_path / f"{number}").touch()
    (tmp_path / "directory").mkdir()
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    found = dict(subject.entries(fd))
    os.close(fd)
    assert set(found) == {os.fsencode(path.name) for path in tmp_path.iterdir()}


def test_listing_what_is_no_directory_is_an_error(tmp_path):
    fd = os.open(tmp_path, os.O_PATH)
    with pytest.raises(OSError, match="Bad file descriptor"):
        list(subject.entries(fd))
    os.close(fd)
