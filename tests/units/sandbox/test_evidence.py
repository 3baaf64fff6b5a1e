"""What is believed of a worker's report: `muniment.sandbox.fence.evidence`."""

import os

import pytest

from muniment.kernel.names import Enforcement
from muniment.names import IN_PROCESS, FenceLayer, Held
from muniment.sandbox.fence.evidence import read_status, what_holds

FENCED = "Name:\tpython3\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n"
PLAIN = "Name:\tpython3\nCapEff:\t000001ffffffffff\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n"


@pytest.mark.threat("T-FENCE-08", control="kernel_asked")
def test_a_kernel_that_says_otherwise_outweighs_the_report():
    for line, instead, layer in (
        ("Seccomp:\t2", "Seccomp:\t0", FenceLayer.SECCOMP),
        *(("Seccomp:\t2", "Seccomp:\t1", FenceLayer.SECCOMP), ("Seccomp:\t2", "", FenceLayer.SECCOMP)),
        ("NoNewPrivs:\t1", "NoNewPrivs:\t0", FenceLayer.NO_NEW_PRIVS),
        ("NoNewPrivs:\t1", "", FenceLayer.NO_NEW_PRIVS),
        ("CapEff:\t0000000000000000", "CapEff:\t0000000000000400", FenceLayer.CAPABILITIES),
        ("CapEff:\t0000000000000000", "CapEff:\t", FenceLayer.CAPABILITIES),
    ):
        status = FENCED.replace(f"{line}\n", f"{instead}\n")
        assert what_holds([], status, PLAIN) == Held(Enforcement.PARTIAL, (layer,)), instead


def test_a_filter_of_the_containers_is_none_of_the_workers_and_old_kernels_count_none():
    filtered = PLAIN.replace("filters:\t0", "filters:\t1")
    seccomp = Held(Enforcement.PARTIAL, (FenceLayer.SECCOMP,))
    assert what_holds([], FENCED, filtered) == seccomp
    assert (
        what_holds([], FENCED.replace("filters:\t1", "filters:\t2"), filtered).enforcement is Enforcement.FULL
    )
    uncounted = [text.replace("Seccomp_filters:\t", "Other:\t") for text in (FENCED, PLAIN)]
    assert what_holds([], *uncounted) == Held(Enforcement.FULL, ())


def test_a_worker_is_fully_held_without_mdwe_and_without_no_other_layer():
    for layer in FenceLayer:
        expected = Enforcement.FULL if layer is FenceLayer.MDWE else Enforcement.PARTIAL
        assert what_holds([layer], FENCED, PLAIN) == Held(expected, (layer,))


def test_the_kernel_is_asked_about_one_process_and_tools_in_this_one_are_held_by_nothing():
    status = read_status(os.getpid())
    assert f"\nPid:\t{os.getpid()}\n" in status
    assert what_holds([], status, PLAIN).enforcement is Enforcement.PARTIAL
    assert read_status(2**22 + 1) == ""  # above the largest process id there can be
    assert Held(Enforcement.NONE, tuple(FenceLayer)) == IN_PROCESS
