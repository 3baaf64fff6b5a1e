"""What a ruleset takes charge of, by the ABI of the kernel; that it holds is tried in `test_fence.py`."""

from __future__ import annotations

import errno
import os

import pytest

from kit.confine.kernel import FULL_ABI, needs_landlock
from kit.confine.threads import in_a_thread_of_its_own, refused
from muniment.confine import fence
from muniment.confine.fence import MIN_ABI, Grounds, handled_by, offered_abi, restrict
from muniment.names import FenceLayer

RIGHTS = (
    *("execute", "write_file", "read_file", "read_dir", "remove_dir", "remove_file"),
    *("make_char", "make_dir", "make_reg", "make_sock", "make_fifo", "make_block", "make_sym"),
    *("refer", "truncate", "ioctl_dev"),
)
"""In the order of their bits (`linux/landlock.h`)."""

PR_SET_NO_NEW_PRIVS = 38
SINCE = dict.fromkeys(RIGHTS, 1) | {"refer": 2, "truncate": 3, "ioctl_dev": 5}


def test_every_right_that_the_kernel_knows_is_taken_charge_of_and_no_other():
    for abi in range(1, 13):
        handled = handled_by(abi)
        taken = {name for bit, name in enumerate(RIGHTS) if handled.files >> bit & 1}
        assert taken == {name for name in RIGHTS if SINCE[name] <= abi}
        assert handled.files < 1 << len(RIGHTS)
        assert (handled.network, handled.scoped) == (0b11 * (abi >= 4), 0b11 * (abi >= 6))
    assert SINCE["truncate"] == MIN_ABI == FULL_ABI


@needs_landlock
def test_beneath_its_roots_and_nowhere_else_files_are_read(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    for directory in (root, outside):
        directory.mkdir()
        (directory / "a.md").write_text(directory.name)
    (root / "out").symlink_to(outside)

    def attempt():
        handle = os.open(root, os.O_PATH | os.O_DIRECTORY)
        try:
            fence.prctl(PR_SET_NO_NEW_PRIVS, 1)
            restrict([handle], offered_abi())
        finally:
            os.close(handle)
        return [
            (root / "a.md").read_text(),
            [path.name for path in root.iterdir()],
            *(refused(act) for act in acts(root, outside)),
        ]

    content, names, *refusals = in_a_thread_of_its_own(attempt)
    assert (content, sorted(names)) == ("root", ["a.md", "out"])
    assert refusals == [errno.EACCES] * len(refusals)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.md", "a.md", "out", "outside", "root"]
    assert (root / "a.md").read_text() == "root"


def acts(root, outside):
    yield (outside / "a.md").read_text
    yield (root / "out" / "a.md").read_text
    yield lambda: next(outside.iterdir())
    yield lambda: (root / "a.md").write_text("changed")
    yield lambda: os.truncate(root / "a.md", 0)
    yield (root / "new.md").touch
    yield (root / "new").mkdir
    yield lambda: (root / "link").symlink_to("a.md")
    yield (root / "a.md").unlink
    yield lambda: (root / "a.md").rename(root / "b.md")
    yield lambda: os.mkfifo(root / "fifo")


def test_what_the_kernel_refuses_as_to_a_process_that_could_gain_privileges_is_raised():
    with pytest.raises(OSError, match="Bad file descriptor"):
        restrict([-1], 1)

    def attempt():
        fence.STEPS[FenceLayer.CAPABILITIES](Grounds([], 1, os.uname().machine))
        return refused(lambda: restrict([], max(offered_abi(), 1)))

    assert in_a_thread_of_its_own(attempt) == errno.EPERM
