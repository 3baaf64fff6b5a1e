"""What a system is found to offer, and what is advised where it does not: `muniment.confine.offer`."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from muniment.confine import offer
from muniment.confine.offer import System, advice, look_around
from muniment.confine.syscalls import UNKNOWN, available, require_known_machine
from muniment.errors import PlatformUnsupported
from muniment.names import FenceLayer

GOOD = System(
    kernel="6.18",
    machine="x86_64",
    resolver="openat2",
    landlock_abi=7,
    landlock_errno=0,
    seccomp=True,
    mdwe=True,
    is_root=False,
    has_proc=True,
)
WITHOUT = replace(GOOD, landlock_abi=0, landlock_errno=errno.ENOSYS)


def test_this_system_is_what_the_kernel_says_it_is():
    found = look_around()
    assert (found.kernel, found.machine) == (os.uname().release, os.uname().machine)
    assert (found.resolver == "openat2") == available()
    assert (found.landlock_abi == 0) == (found.landlock_errno != 0)
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    assert found.seccomp == (actions.exists() and "kill_process" in actions.read_text().split())
    release = tuple(int(part) for part in found.kernel.split("-")[0].split(".")[:2])
    assert found.mdwe == (release >= (6, 3))
    assert found.is_root == (os.geteuid() == 0)
    assert found.has_proc


def test_without_landlock_the_reason_is_kept(monkeypatch):
    def refused():
        offer.ctypes.set_errno(errno.EOPNOTSUPP)
        return 0

    monkeypatch.setattr(offer, "offered_abi", refused)
    found = look_around()
    assert (found.landlock_abi, found.landlock_errno) == (0, errno.EOPNOTSUPP)


def test_nothing_is_asked_of_a_machine_whose_calls_are_not_known(monkeypatch):
    monkeypatch.setattr(offer, "require_known_machine", partial(require_known_machine, UNKNOWN))
    with pytest.raises(PlatformUnsupported):
        look_around()


@pytest.mark.parametrize(
    ("abi", "lacks"),
    [
        (0, ()),
        (1, ("truncation", "TCP", "device controls", "signals and abstract sockets")),
        (3, ("TCP", "device controls", "signals and abstract sockets")),
        (4, ("device controls", "signals and abstract sockets")),
        (5, ("signals and abstract sockets",)),
        (6, ()),
        (9, ()),
    ],
)
def test_what_an_abi_does_not_know(abi, lacks):
    assert replace(GOOD, landlock_abi=abi).landlock_lacks == lacks


def test_which_layers_are_offered():
    assert all(GOOD.offers(layer) for layer in FenceLayer)
    bare = replace(GOOD, landlock_abi=2, seccomp=False, mdwe=False)
    assert {layer for layer in FenceLayer if not bare.offers(layer)} == {
        FenceLayer.LANDLOCK,
        FenceLayer.SECCOMP,
        FenceLayer.MDWE,
    }


@pytest.mark.parametrize(
    ("layer", "number", "system", "told"),
    [
        (FenceLayer.SECCOMP, None, GOOD, ["does not confirm", "/proc"]),
        (
            FenceLayer.LANDLOCK,
            errno.ENOTSUP,
            replace(GOOD, landlock_abi=2),
            ["ABI 2", "truncation", "Linux 6.2"],
        ),
        (
            FenceLayer.LANDLOCK,
            errno.ENOSYS,
            replace(WITHOUT, landlock_errno=errno.EOPNOTSUPP),
            ["lsm=", "landlock"],
        ),
        (
            FenceLayer.LANDLOCK,
            errno.ENOSYS,
            WITHOUT,
            ["ENOSYS", "CONFIG_SECURITY_LANDLOCK", "landlock_add_rule"],
        ),
        (
            FenceLayer.LANDLOCK,
            errno.ENOSYS,
            replace(WITHOUT, landlock_errno=errno.EPERM),
            ["EPERM", "profile"],
        ),
        (FenceLayer.LANDLOCK, errno.EPERM, GOOD, ["EPERM", "profile allow landlock_create_ruleset"]),
        (FenceLayer.LANDLOCK, errno.ENOTSUP, GOOD, ["nothing came of it"]),
        (FenceLayer.SECCOMP, errno.EINVAL, GOOD, ["EINVAL", "CONFIG_SECCOMP_FILTER"]),
        (FenceLayer.SECCOMP, errno.ENOTSUP, GOOD, ["nothing came of it"]),
        (FenceLayer.MDWE, errno.EINVAL, GOOD, ["Linux 6.3", "goes without"]),
        (FenceLayer.CAPABILITIES, errno.EPERM, GOOD, ["profile allow capset"]),
        (FenceLayer.LIMITS, errno.EPERM, GOOD, ["profile allow prlimit64"]),
        (FenceLayer.LIMITS, errno.ENOENT, GOOD, ["ENOENT", "mount /proc", "size of a process"]),
        (FenceLayer.LIMITS, 9999, GOOD, ["9999"]),
    ],
)
def test_what_is_advised(layer, number, system, told):
    advised = advice(layer, number, system)
    assert all(words in advised for words in told), advised
