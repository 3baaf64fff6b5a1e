"""The fence around a real worker, checked from outside by the kernel's status files.

`test_attempts.py` tries what the fenced process can still *do*.
"""

import errno
import os
import resource
from pathlib import Path

import pytest

from kit.catching import catch_error
from kit.descriptors import assert_descriptors_closed
from kit.memories import CANARY, make_roots, write_file
from kit.sandbox.machine import FULL_ABI, needs_fence, needs_landlock
from kit.sandbox.probe import make_deadline, make_zygote, make_zygote_fixture
from kit.sandbox.threads import read_errno, run_in_new_thread
from muniment.errors import ConfinementUnavailable
from muniment.kernel.names import Enforcement
from muniment.names import FenceLayer
from muniment.sandbox.fence import layers, pool
from muniment.sandbox.fence.layers import (
    MEMORY_BYTES,
    MIN_ABI,
    FenceInput,
    get_handled_rights,
    read_landlock_abi,
    restrict_files,
)
from muniment.sandbox.sandbox import Sandbox
from muniment.sandbox.tools.remote import receive_hello


@pytest.fixture
def roots(tmp_path):
    return make_roots(tmp_path)


def read_limits(worker):
    """Return (soft, hard) by the kernel's name of each limit."""
    lines = Path(f"/proc/{worker.pid}/limits").read_text().splitlines()[1:]
    return {line[:26].strip(): tuple(line[26:].split()[:2]) for line in lines}


LIMITS = {
    **dict.fromkeys(("Max file size", "Max core file size", "Max processes"), 0),
    "Max cpu time": layers.CPU_SECONDS,
    "Max data size": layers.DATA_BYTES,
    "Max open files": layers.OPEN_FILES,
}


@pytest.mark.threat("T-FENCE-07", control="fence_limits")
@needs_fence
def test_worker_is_fully_confined_and_the_kernel_confirms_it(zygote, roots):
    fds = {scope: os.open(path, os.O_PATH | os.O_DIRECTORY) for scope, path in roots.items()}
    with zygote.spawn_worker(fds, make_deadline()) as worker:
        confinement = receive_hello(worker, make_deadline())
        limits = read_limits(worker)
        pages = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[0])
    for fd in fds.values():
        os.close(fd)
    assert {name: limits[name] for name in LIMITS} == {name: (str(at),) * 2 for name, at in LIMITS.items()}
    soft, hard = map(int, limits["Max address space"])
    assert soft == hard
    assert MEMORY_BYTES // 2 < soft - pages * resource.getpagesize() <= MEMORY_BYTES
    assert confinement.enforcement is Enforcement.FULL


@needs_fence
def test_lower_limit_of_the_parent_is_kept():
    with make_zygote("frugal_service:serve") as zygote, zygote.spawn_worker({}, make_deadline()) as worker:
        assert receive_hello(worker, make_deadline()).enforcement is Enforcement.FULL
        assert read_limits(worker)["Max open files"] == ("50", "50")
        assert read_limits(worker)["Max cpu time"] == ("20", "20")


lying_zygote = make_zygote_fixture("claiming_service:serve")
"""A worker source that claims a complete fence and has none."""


@pytest.fixture
def use_lying_zygote(lying_zygote, monkeypatch):
    """Replace the zygote of the sandbox."""
    monkeypatch.setattr(pool, "_SHARED_ZYGOTE", lying_zygote)


@pytest.mark.threat("T-FENCE-08", control="kernel_evidence")
@pytest.mark.usefixtures("use_lying_zygote")
def test_false_claim_of_a_fence_gives_partial_confinement(roots):
    with Sandbox("strict", roots) as box:
        assert box.enforcement is Enforcement.PARTIAL
        assert {FenceLayer.SECCOMP, FenceLayer.NO_NEW_PRIVS} <= set(box.confinement.missing)
        assert box.call("ls", {"path": "user"}).verdict == "allow"


@pytest.mark.threat("T-RUN-11", control="required_enforcement")
@pytest.mark.usefixtures("use_lying_zygote")
def test_required_fence_that_is_missing_rejects_the_run(roots):
    with assert_descriptors_closed(), pytest.raises(ConfinementUnavailable) as caught:
        Sandbox("hardened", roots)
    assert caught.value.offered is Enforcement.PARTIAL
    for words in ("the kernel does not enforce", "seccomp", "muniment doctor"):
        assert words in str(caught.value)


@needs_fence
def test_hardened_policy_checks_the_fence_of_every_worker(roots, monkeypatch, lying_zygote):
    write_file(roots["user"], "b.md", CANARY)
    with Sandbox("hardened", roots) as box:
        assert box.enforcement is Enforcement.FULL
        assert CANARY in box.call("grep", {"pattern": "canary"}).text
        box.call("write_file", {"path": "user/a.md", "content": "a\n"})
        box.commit()
        assert (roots["user"] / "a.md").read_text() == "a\n"
        monkeypatch.setattr(pool, "_SHARED_ZYGOTE", lying_zygote)
        catch_error(ConfinementUnavailable, box.call, "ls", {"path": "user"})


# -- the rights that a ruleset handles, by the ABI of the kernel ------------------------------------------


RIGHTS = (
    *("execute", "write_file", "read_file", "read_dir", "remove_dir", "remove_file"),
    *("make_char", "make_dir", "make_reg", "make_sock", "make_fifo", "make_block", "make_sym"),
    *("refer", "truncate", "ioctl_dev"),
)
"""The rights in the order of their bits (`linux/landlock.h`)."""

PR_SET_NO_NEW_PRIVS = 38
SINCE = dict.fromkeys(RIGHTS, 1) | {"refer": 2, "truncate": 3, "ioctl_dev": 5}


def test_every_right_that_the_kernel_knows_is_handled():
    for abi in range(1, 13):
        handled = get_handled_rights(abi)
        handled_names = {name for bit, name in enumerate(RIGHTS) if handled.files >> bit & 1}
        assert handled_names == {name for name in RIGHTS if SINCE[name] <= abi}
        assert handled.files < 1 << len(RIGHTS)
        assert (handled.network, handled.scoped) == (0b11 * (abi >= 4), 0b11 * (abi >= 6))
    assert SINCE["truncate"] == MIN_ABI == FULL_ABI


@needs_landlock
def test_files_are_readable_only_inside_the_roots(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    for directory in (root, outside):
        directory.mkdir()
        (directory / "a.md").write_text(directory.name)
    (root / "out").symlink_to(outside)

    def attempt():
        handle = os.open(root, os.O_PATH | os.O_DIRECTORY)
        try:
            layers.prctl(PR_SET_NO_NEW_PRIVS, 1)
            restrict_files([handle], read_landlock_abi())
        finally:
            os.close(handle)
        refusals = [read_errno(act) for act in iterate_acts(root, outside)]
        return [(root / "a.md").read_text(), [path.name for path in root.iterdir()], *refusals]

    content, names, *refusals = run_in_new_thread(attempt)
    assert (content, sorted(names)) == ("root", ["a.md", "out"])
    assert refusals == [errno.EACCES] * len(refusals)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.md", "a.md", "out", "outside", "root"]
    assert (root / "a.md").read_text() == "root"


def iterate_acts(root, outside):
    inside = root / "a.md"
    yield from ((outside / "a.md").read_text, (root / "out/a.md").read_text, lambda: next(outside.iterdir()))
    yield from (lambda: inside.write_text("changed"), lambda: os.truncate(inside, 0), inside.unlink)
    yield from ((root / "new.md").touch, (root / "new").mkdir, lambda: inside.rename(root / "b.md"))
    yield from (lambda: (root / "link").symlink_to("a.md"), lambda: os.mkfifo(root / "fifo"))


def test_landlock_error_of_the_kernel_is_raised():
    catch_error(OSError, restrict_files, [-1], 1, match="Bad file descriptor")

    def attempt():
        layers.STEPS[FenceLayer.CAPABILITIES](FenceInput([], 1, os.uname().machine))
        return read_errno(lambda: restrict_files([], max(read_landlock_abi(), 1)))

    assert run_in_new_thread(attempt) == errno.EPERM
