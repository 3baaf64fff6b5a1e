"""Layers supported by a system, and suggested remedies."""

import errno
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from kit.catching import catch_error
from muniment.errors import PlatformUnsupported
from muniment.kernel.syscalls import UNKNOWN, is_openat2_available, require_known_machine
from muniment.lab.attempts import offer
from muniment.lab.attempts.offer import SystemSupport, inspect_system, suggest_remedy
from muniment.names import FenceLayer

GOOD = SystemSupport("6.18", "x86_64", "openat2", 7, 0, seccomp=True, mdwe=True, is_root=False, has_proc=True)
WITHOUT = replace(GOOD, landlock_abi=0, landlock_errno=errno.ENOSYS)


def test_system_support_matches_kernel(monkeypatch):
    found = inspect_system()
    assert (found.kernel, found.machine) == (os.uname().release, os.uname().machine)
    assert (found.resolver == "openat2") == is_openat2_available()
    assert (found.landlock_abi == 0) == (found.landlock_errno != 0)
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    assert found.seccomp == (actions.exists() and "kill_process" in actions.read_text().split())
    release = tuple(int(part) for part in found.kernel.split("-")[0].split(".")[:2])
    assert (found.mdwe, found.is_root, found.has_proc) == (release >= (6, 3), os.geteuid() == 0, True)

    def fail_abi_query():
        offer.ctypes.set_errno(errno.EOPNOTSUPP)
        return 0

    monkeypatch.setattr(offer, "read_landlock_abi", fail_abi_query)
    found = inspect_system()
    assert (found.landlock_abi, found.landlock_errno) == (0, errno.EOPNOTSUPP)
    monkeypatch.setattr(offer, "require_known_machine", partial(require_known_machine, UNKNOWN))
    catch_error(PlatformUnsupported, inspect_system)


def test_landlock_features_and_layers_depend_on_abi():
    lacks = ("truncation", "TCP", "device controls", "signals and abstract sockets")
    for abi, left in ((0, ()), (1, lacks), (3, lacks[1:]), (4, lacks[2:]), (5, lacks[3:]), (6, ()), (9, ())):
        assert replace(GOOD, landlock_abi=abi).missing_landlock_features == left, abi
    assert all(GOOD.supports(layer) for layer in FenceLayer)
    bare = replace(GOOD, landlock_abi=2, seccomp=False, mdwe=False)
    missing = {FenceLayer.LANDLOCK, FenceLayer.SECCOMP, FenceLayer.MDWE}
    assert {layer for layer in FenceLayer if not bare.supports(layer)} == missing


def test_remedy_names_cause_and_fix():
    landlock, seccomp, limits = FenceLayer.LANDLOCK, FenceLayer.SECCOMP, FenceLayer.LIMITS
    old, off = replace(GOOD, landlock_abi=2), replace(WITHOUT, landlock_errno=errno.EOPNOTSUPP)
    forbidden = replace(WITHOUT, landlock_errno=errno.EPERM)
    for layer, number, system, phrases in (
        (seccomp, None, GOOD, ["does not confirm", "/proc"]),
        (landlock, errno.ENOTSUP, old, ["ABI 2", "truncation", "Linux 6.2"]),
        (landlock, errno.ENOSYS, off, ["lsm=", "landlock"]),
        (landlock, errno.ENOSYS, WITHOUT, ["ENOSYS", "CONFIG_SECURITY_LANDLOCK", "landlock_add_rule"]),
        (landlock, errno.ENOSYS, forbidden, ["EPERM", "profile"]),
        (landlock, errno.EPERM, GOOD, ["EPERM", "profile allow landlock_create_ruleset"]),
        (landlock, errno.ENOTSUP, GOOD, ["without effect"]),
        (seccomp, errno.EINVAL, GOOD, ["EINVAL", "CONFIG_SECCOMP_FILTER"]),
        (seccomp, errno.ENOTSUP, GOOD, ["without effect"]),
        (FenceLayer.MDWE, errno.EINVAL, GOOD, ["Linux 6.3", "does not require it"]),
        (FenceLayer.CAPABILITIES, errno.EPERM, GOOD, ["profile allow capset"]),
        (limits, errno.EPERM, GOOD, ["profile allow prlimit64"]),
        (limits, errno.ENOENT, GOOD, ["ENOENT", "mount /proc", "size of a process"]),
        (limits, 9999, GOOD, ["9999"]),
    ):
        advised = suggest_remedy(layer, number, system)
        assert all(phrase in advised for phrase in phrases), advised
