"""Which parts of a worker's report are believed: `muniment.sandbox.fence.evidence`."""

import os

import pytest

from muniment.kernel.names import Enforcement
from muniment.names import IN_PROCESS, FenceLayer, Held
from muniment.sandbox.fence.evidence import read_status, what_holds

FENCED = "Name:\tpython3\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"
PLAIN = "Name:\tpython3\nCapEff:\t000001ffffffffff\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"


@pytest.mark.threat("T-FENCE-08", control="kernel_evidence")
def test_kernel_status_overrides_the_report():
    for line, replacement, layer in (
        ("Seccomp:\t2", "Seccomp:\t0", FenceLayer.SECCOMP),
        *(("Seccomp:\t2", "Seccomp:\t1", FenceLayer.SECCOMP), ("Seccomp:\t2", "", FenceLayer.SECCOMP)),
        ("NoNewPrivs:\t1", "NoNewPrivs:\t0", FenceLayer.NO_NEW_PRIVS),
        ("NoNewPrivs:\t1", "", FenceLayer.NO_NEW_PRIVS),
        ("CapEff:\t0000000000000000", "CapEff:\t0000000000000400", FenceLayer.CAPABILITIES),
        ("CapEff:\t0000000000000000", "CapEff:\t", FenceLayer.CAPABILITIES),
    ):
        status = FENCED.replace(f"{line}\n", f"{replacement}\n")
        assert what_holds([], status, PLAIN) == Held(Enforcement.PARTIAL, (layer,)), replacement


def test_filter_of_the_container_does_not_count_as_the_workers():
    filtered = PLAIN.replace("filters:\t0", "filters:\t1")
    seccomp = Held(Enforcement.PARTIAL, (FenceLayer.SECCOMP,))
    assert what_holds([], FENCED, filtered) == seccomp
    assert (
        what_holds([], FENCED.replace("filters:\t1", "filters:\t2"), filtered).enforcement is Enforcement.FULL
    )
    uncounted = [text.replace("Seccomp_filters:\t", "Other:\t") for text in (FENCED, PLAIN)]
    assert what_holds([], *uncounted) == Held(Enforcement.FULL, ())


def test_confinement_is_full_without_mdwe_only():
    for layer in FenceLayer:
        expected = Enforcement.FULL if layer is FenceLayer.MDWE else Enforcement.PARTIAL
        assert what_holds([layer], FENCED, PLAIN) == Held(expected, (layer,))


def test_kernel_status_is_read_per_process():
    status = read_status(os.getpid())
    assert f"\nPid:\t{os.getpid()}\n" in status
    assert what_holds([], status, PLAIN).enforcement is Enforcement.PARTIAL
    assert read_status(2**22 + 1) == ""  # above the largest possible process id
    assert Held(Enforcement.NONE, tuple(FenceLayer)) == IN_PROCESS
