"""Forbidden operations, attempted in real workers: with full confinement, with one layer, and without any.

A layer must stop its own attempts when it is alone. All other attempts must succeed, which shows that
they are really made. `services/layers_service.py` removes layers.
"""

import functools
import os
import re
import socket
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from kit.descriptors import assert_descriptors_closed
from kit.locations import REPOSITORY
from kit.sandbox.machine import needs_fence, read_landlock_abi
from kit.sandbox.probe import SERVICES, make_deadline
from kit.sandbox.services.layers_service import parse_layers
from muniment.errors import DeadlineExceeded, WorkerLost
from muniment.kernel.names import Enforcement
from muniment.lab.attempts import attempt as subject
from muniment.lab.attempts import trial
from muniment.lab.attempts.attempt import ATTEMPTS, DONE, UNTRIED, Attempt, Targets
from muniment.lab.attempts.trial import Verdict, judge_outcome, run_trial
from muniment.names import FenceLayer
from muniment.sandbox.fence import pool
from muniment.sandbox.fence.pool import find_import_directories
from muniment.sandbox.fence.wire import Channel

IS_ROOT = os.geteuid() == 0

IMPOSSIBLE = {
    "x32": "most kernels are built without that table, and other machines have none",
    "find-environment": "the zygote is started without one; below it is started with one",
}
"""Attempts that fail even without confinement, with the reason."""

_HANDLES = ("create-nameless", "name-to-handle", "open-by-handle", "set-attribute")
_OF_OTHERS = ("trace-broker", "trace-sibling", "take-descriptor-of-broker")
_MEMORY = [f"{deed}-{owner}-memory" for deed in ("read", "copy") for owner in ("broker", "sibling")]
MAY_BE_FORBIDDEN = {
    **dict.fromkeys((*_OF_OTHERS, *_MEMORY), "Yama may allow only an ancestor to trace"),
    **dict.fromkeys(_HANDLES, "the file system may have none"),
    "perf": "kernel.perf_event_paranoid",
    "userfaultfd": "the kernel may be built without",
    "io-uring": "kernel.io_uring_disabled",
    "new-user-namespace": "user.max_user_namespaces, or AppArmor",
    "out-of-band": "the kernel may be built without (CONFIG_AF_UNIX_OOB)",
}
"""Attempts that some systems deny without confinement, with the cause."""


CONFIGURATIONS = ["without_landlock", "without_seccomp"]
CONFIGURATIONS += [f"only_{layer}" for layer in FenceLayer if layer is not FenceLayer.NO_NEW_PRIVS]


def list_shared_memory():
    """Return the shared memory segments, without those of databases of other tests."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    makers = {line: Path(f"/proc/{line.split()[4]}/comm") for line in lines}
    return [
        line for line, maker in makers.items() if not (maker.exists() and maker.read_text() == "postgres\n")
    ]


def read_machine_state():
    """Return system state that successful attempts might change."""
    status = Path("/proc/self/status").read_text()
    return (
        *(os.uname().nodename, os.readlink("/proc/self/ns/net")),  # noqa: PTH115 - names no file
        *(Path(f"/proc/{name}").read_text() for name in ("self/mountinfo", "self/limits")),
        list_shared_memory(),
        status[status.index("TracerPid") :].splitlines()[0],
    )


@functools.cache
def run_cached_trial(configuration):
    """Run the trial with the layers of this configuration."""
    options = {"service": f"layers_service:{configuration}", "directories": [SERVICES]}
    before = read_machine_state()
    with assert_descriptors_closed(), tempfile.TemporaryDirectory() as parent:
        found = run_trial(make_deadline().expires_at, parent=Path(parent), **options)
        assert os.listdir(parent) == []  # noqa: PTH208 - successful attempts clean up
    assert read_machine_state() == before
    return found


def list_succeeding(configuration):
    return {each.attempt.name for each in run_cached_trial(configuration).findings if each.outcome == DONE}


def is_privileged(attempt):
    """Return whether the kernel allows the attempt only to root with all capabilities."""
    return FenceLayer.CAPABILITIES in attempt.stopped_by or attempt.name == "bpf"


def must_fail(attempt, active_layers):
    """Return whether these layers must stop an attempt; None if either result is allowed."""
    if attempt.find_stopping_layers(read_landlock_abi(), has_openat2=True) & active_layers or (
        attempt.ordinary & active_layers and not IS_ROOT
    ):
        return True
    loses_privilege = IS_ROOT and FenceLayer.CAPABILITIES in active_layers
    # Broker and zygote keep their capabilities, which block processes that have fewer.
    blocks_others = is_privileged(attempt) or "broker" in attempt.name or "zygote" in attempt.name
    is_unspecified = blocks_others or attempt.ordinary & active_layers if loses_privilege else False
    return None if is_unspecified or attempt.name not in list_succeeding("nothing") else False


@pytest.mark.threat("T-FENCE-01", control="landlock")
@pytest.mark.threat("T-FENCE-02", control="great_layers")
@pytest.mark.threat("T-FENCE-03", control="seccomp")
@pytest.mark.threat("T-FENCE-04", control="seccomp")
@pytest.mark.threat("T-FENCE-05", control="great_layers")
@pytest.mark.threat("T-FENCE-06", control="seccomp")
@pytest.mark.threat("T-FENCE-07", control="fence_limits")
@needs_fence
def test_full_confinement_stops_all_but_two_attempts():
    """Attempt to read, list, write, send, start, load, gain, reach processes, learn names and use up
    resources.
    """
    found = run_cached_trial("all")
    # The results are checked first, so that missing confinement shows there.
    assert list_succeeding("all") == {"metadata-outside", "open-outside-for-neither"}
    assert found.confinement.enforcement is Enforcement.FULL
    outcomes = {each.attempt.name: each.outcome for each in found.findings if each.outcome != UNTRIED}
    assert outcomes == {name: ATTEMPTS[name].expected for name in outcomes}
    assert set(ATTEMPTS) - set(outcomes) <= {"x32"}
    open_ones = {each.attempt.name for each in found.findings if each.verdict is Verdict.OPEN}
    assert open_ones == list_succeeding("all")


@pytest.mark.sweep(1)
@needs_fence
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_each_layer_stops_exactly_its_attempts(configuration):
    found, active_layers = run_cached_trial(configuration), parse_layers(configuration)
    for each in found.findings:
        expected = must_fail(each.attempt, active_layers)
        if expected:
            assert each.verdict is Verdict.STOPPED, each
        elif expected is False:
            assert each.outcome == DONE, each
    assert not [each for each in found.findings if each.verdict is Verdict.NOT_STOPPED]


def test_without_confinement_attempts_succeed_and_clean_up():
    failing = set(ATTEMPTS) - list_succeeding("nothing") - set(IMPOSSIBLE) - set(MAY_BE_FORBIDDEN)
    assert all(is_privileged(ATTEMPTS[name]) and not IS_ROOT for name in failing), failing


def test_environment_is_found_only_if_zygote_has_it(monkeypatch):
    popen, attempts = subprocess.Popen, [ATTEMPTS["find-environment"]]

    def start_with_environment(command, **options):
        return popen(command, **{**options, "env": dict(os.environ)})

    found = (popen, "ENODATA", Verdict.STOPPED), (start_with_environment, DONE, Verdict.NOT_STOPPED)
    for start, *outcome in found:
        monkeypatch.setattr(pool.subprocess, "Popen", start)
        (finding,) = run_trial(make_deadline().expires_at, attempts=attempts).findings
        assert [finding.outcome, finding.verdict] == outcome
    variables = {b"MODEL_API_KEY": b"key" * 40, b"PATHS": b"p" * 80, b"LANG": b"C.UTF-8", b"PATH": b"/bin"}
    monkeypatch.setattr(os, "environb", variables)
    long = b"/usr/bin:" * 20
    for path, needle in ((b"/bin", b"LANG=C.UTF-8"), (long, (b"PATH=" + long)[:64])):
        variables[b"PATH"] = path
        with trial.create_targets() as (_, targets):
            assert bytes.fromhex(targets["needle"]) == needle


# -- workers that respond incorrectly --------------------------------------------------------------------


def run_attempt(service, name="read-outside", seconds=20.0, **options):
    options |= {"service": service, "directories": [SERVICES]}
    return run_trial(make_deadline(seconds).expires_at, attempts=[ATTEMPTS[name]], **options).findings[0]


def test_hanging_attempt_or_ended_worker_is_untried(monkeypatch):
    """Count the seconds from the hello of the worker; here the limit is 0."""
    finding = run_attempt("odd_attempts_service:leaving")
    assert (finding.outcome, finding.verdict) == ("exit code 3", Verdict.UNTRIED)
    assert finding.why == "the worker ended by exit code 3"
    monkeypatch.setattr(trial, "ATTEMPT_SECONDS", 0.0)
    finding = run_attempt("odd_attempts_service:silent")
    assert (finding.verdict, finding.why) == (Verdict.UNTRIED, "no response in 0 s")


def test_trial_ends_at_deadline_and_needs_hello_of_worker(tmp_path):
    with assert_descriptors_closed(), pytest.raises(DeadlineExceeded):
        run_attempt("odd_attempts_service:silent", seconds=0.2, parent=tmp_path)
    assert list(tmp_path.iterdir()) == []
    for service in ("odd_attempts_service:rude", "odd_attempts_service:vague", "broken_service:serve"):
        with assert_descriptors_closed(), pytest.raises(WorkerLost):
            run_attempt(service)


# -- judging ---------------------------------------------------------------------------------------------


def make_attempt(*stopped_by, expected="EACCES", abi=1, ordinary=()):
    what = ("name", "do it", expected, frozenset(stopped_by), lambda _: None, frozenset(ordinary))
    return Attempt(*what, landlock_abi=abi)


L, S = FenceLayer.LANDLOCK, FenceLayer.SECCOMP
MEANINGS = [
    *(
        (make_attempt(L), "EACCES", [*FenceLayer], Verdict.STOPPED),
        (make_attempt(L), "EACCES", [L], Verdict.STOPPED),
    ),
    *(
        (make_attempt(L), "EACCES", [], Verdict.UNTRIED),
        (make_attempt(L, abi=6), "EACCES", [L], Verdict.UNTRIED),
    ),
    *(
        (make_attempt(L, abi=5), "EACCES", [L], Verdict.STOPPED),
        (make_attempt(L, S, abi=6), "EACCES", [S], Verdict.STOPPED),
    ),
    (make_attempt(S, ordinary=[FenceLayer.LIMITS]), "EAGAIN", [FenceLayer.LIMITS], Verdict.STOPPED),
    *(
        (make_attempt(L), DONE, [*FenceLayer], Verdict.NOT_STOPPED),
        (make_attempt(L), DONE, [S], Verdict.OPEN),
    ),
    *(
        (make_attempt(L, S), DONE, [S], Verdict.NOT_STOPPED),
        (make_attempt(L, abi=6), DONE, [L], Verdict.OPEN),
    ),
    (make_attempt(L, S, abi=6), DONE, [*FenceLayer], Verdict.NOT_STOPPED),
    (make_attempt(L), "ENOENT", [*FenceLayer], Verdict.UNTRIED),
    (make_attempt(L), UNTRIED, [*FenceLayer], Verdict.UNTRIED),
    (make_attempt(expected="ENODATA"), "ENODATA", [], Verdict.STOPPED),
    (make_attempt(expected="ENODATA"), DONE, [], Verdict.NOT_STOPPED),
    (make_attempt(expected=DONE), DONE, [*FenceLayer], Verdict.OPEN),
    (make_attempt(expected=DONE), "EPERM", [*FenceLayer], Verdict.STOPPED),
]


def test_outcome_is_judged_by_active_layers():
    for what, outcome, active_layers, verdict in MEANINGS:
        finding = judge_outcome(what, outcome, active_layers, 5)
        assert finding.verdict is verdict, (what, outcome, active_layers)
        assert bool(finding.why) == (verdict is not Verdict.STOPPED)


def test_without_openat2_seccomp_is_not_expected_to_stop_paths():
    both, seccomp = {FenceLayer.LANDLOCK, FenceLayer.SECCOMP}, {FenceLayer.SECCOMP}
    for name in ("read-outside", "read-dotdot", "read-link", "create"):
        old, new = (
            [judge_outcome(ATTEMPTS[name], DONE, each, 5, has_openat2=has) for each in (both, seccomp)]
            for has in (False, True)
        )
        assert [each.why for each in old] == ["landlock should stop it", "only landlock stops it"]
        assert [each.verdict for each in old] == [Verdict.NOT_STOPPED, Verdict.OPEN]
        assert [each.verdict for each in new] == [Verdict.NOT_STOPPED] * 2
        assert (
            judge_outcome(ATTEMPTS[name], DONE, seccomp, 0, has_openat2=False).why == "only landlock stops it"
        )


# -- the end of a worker, and its test environment -------------------------------------------------------


def test_worker_reports_outcome_of_attempt(monkeypatch):
    subject.warm()
    fields = {field: "" for field in Targets.__slots__ if field not in {"root", "connection"}}
    for error, outcome, why in (
        *((None, DONE, ""), (PermissionError(13, "no"), "EACCES", ""), (OSError("no"), "errno None", "")),
        *(
            (OSError(9999, "no"), "errno 9999", ""),
            (NotImplementedError("nothing here"), UNTRIED, "nothing here"),
        ),
        (ModuleNotFoundError("no"), "ModuleNotFoundError", ""),
    ):
        made = Attempt("made", "do it", "EACCES", frozenset(), Mock(side_effect=error))
        monkeypatch.setitem(ATTEMPTS, "made", made)
        client, worker = socket.socketpair()
        with client, worker, ThreadPoolExecutor(1) as server:
            server.submit(subject.serve_attempt, worker, {subject.ROOT: 7}, {FenceLayer.SECCOMP: 1})
            channel = Channel(client)
            assert channel.receive(0)[0] == {"t": "hello", "missing": {"seccomp": 1}}
            channel.send({"t": "attempt", "name": "made", "targets": fields})
            assert channel.receive(0)[0] == {"t": "outcome", "outcome": outcome, "why": why}


def get_untried_reason(name, **options):
    finding = run_attempt("layers_service:nothing", name, **options)
    assert finding.verdict is Verdict.UNTRIED
    return finding.why


def test_missing_requirement_is_reported_as_untried(monkeypatch, tmp_path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    assert "too long for a socket" in get_untried_reason("unix-path", parent=deep)
    with monkeypatch.context() as patch:
        patch.setattr(trial, "read_handle", Mock(side_effect=OSError(95, "no")))
        assert "has no handles" in get_untried_reason("open-by-handle")
    with monkeypatch.context() as patch:
        real = find_import_directories
        nowhere = {("pydantic_core",): (str(tmp_path),)}
        patch.setattr(trial, "find_import_directories", lambda names: nowhere.get(names) or real(names))
        assert "no library" in get_untried_reason("load-library")
    with monkeypatch.context() as patch:
        patch.setattr(os, "environb", {b"MODEL_API_KEY": b"key", b"HOME": b""})
        assert "none of PATH, HOME, PWD and LANG" in get_untried_reason("find-environment")


def test_page_documents_layers_for_every_attempt():
    page = (REPOSITORY / "docs" / "confinement.md").read_text()
    documented = {}
    for layers, names in re.findall(r"^\| ([a-z, ]+) \| ((?:`[a-z0-9-]+` ?)+)\|$", page, re.MULTILINE):
        documented |= {name: set(layers.split(", ")) for name in re.findall(r"`([^`]+)`", names)}
    assert documented == {name: set(each.stopped_by) for name, each in ATTEMPTS.items() if each.stopped_by}
    assert all(f"`{name}`" in page for name in ATTEMPTS)
    assert len(page.splitlines()) <= 100
