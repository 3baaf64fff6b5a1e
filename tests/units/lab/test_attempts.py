"""Forbidden things, tried in real workers: behind the whole fence, behind each layer alone, and without any.

What a layer is said to stop alone must fail behind that layer alone; whatever no standing layer is said to
stop must really succeed, so that nothing fails here for want of trying. `services/layers_service.py` takes
layers away.
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

from kit.descriptors import nothing_left_open
from kit.sandbox.machine import landlock_abi, needs_fence
from kit.sandbox.probe import SERVICES, soon
from kit.sandbox.services.layers_service import layers_of
from kit.where import REPOSITORY
from muniment.errors import DeadlineExceeded, WorkerLost
from muniment.kernel.names import Enforcement
from muniment.lab.attempts import attempt as subject
from muniment.lab.attempts import trial
from muniment.lab.attempts.attempt import ATTEMPTS, DONE, UNTRIED, Attempt, Targets
from muniment.lab.attempts.trial import Verdict, judge, try_all
from muniment.names import FenceLayer
from muniment.sandbox.fence import pool
from muniment.sandbox.fence.pool import import_directories
from muniment.sandbox.fence.wire import Channel

IS_ROOT = os.geteuid() == 0

CANNOT = {
    "x32": "most kernels are built without that table, and other machines have none",
    "find-environment": "the zygote is started without one; below it is started with one",
}
"""Attempts that come to nothing also without the fence, and why."""

_HANDLES = ("create-nameless", "name-to-handle", "open-by-handle", "set-attribute")
_OF_OTHERS = ("trace-broker", "trace-sibling", "take-descriptor-of-broker")
_MEMORY = [f"{deed}-{whose}-memory" for deed in ("read", "copy") for whose in ("broker", "sibling")]
MAY_BE_FORBIDDEN = {
    **dict.fromkeys((*_OF_OTHERS, *_MEMORY), "Yama may let nobody but an ancestor trace"),
    **dict.fromkeys(_HANDLES, "the file system may have none"),
    "perf": "kernel.perf_event_paranoid",
    "userfaultfd": "the kernel may be built without",
    "io-uring": "kernel.io_uring_disabled",
    "new-user-namespace": "user.max_user_namespaces, or AppArmor",
    "out-of-band": "the kernel may be built without (CONFIG_AF_UNIX_OOB)",
}
"""Attempts that some systems forbid to everybody or to users, fence or no fence, and by what."""


CONFIGURATIONS = ["without_landlock", "without_seccomp"]
CONFIGURATIONS += [f"only_{layer}" for layer in FenceLayer if layer is not FenceLayer.NO_NEW_PRIVS]


def segments():
    """Shared memory, but for that of databases which tests beside these have running."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    makers = {line: Path(f"/proc/{line.split()[4]}/comm") for line in lines}
    return [
        line for line, maker in makers.items() if not (maker.exists() and maker.read_text() == "postgres\n")
    ]


def machine():
    """What attempts that succeed might change for others."""
    status = Path("/proc/self/status").read_text()
    return (
        *(os.uname().nodename, os.readlink("/proc/self/ns/net")),  # noqa: PTH115 - names no file
        *(Path(f"/proc/{name}").read_text() for name in ("self/mountinfo", "self/limits")),
        segments(),
        status[status.index("TracerPid") :].splitlines()[0],
    )


@functools.cache
def tried(configuration):
    """The trial behind the layers that the name says."""
    terms = {"service": f"layers_service:{configuration}", "directories": [SERVICES]}
    before = machine()
    with nothing_left_open(), tempfile.TemporaryDirectory() as parent:
        found = try_all(soon().deadline, parent=Path(parent), **terms)
        assert os.listdir(parent) == []  # noqa: PTH208 - what succeeds leaves nothing behind
    assert machine() == before
    return found


def succeeding(configuration):
    return {each.attempt.name for each in tried(configuration).findings if each.outcome == DONE}


def is_privileged(attempt):
    """Whether the kernel itself refuses it to whoever is not root with all capabilities."""
    return FenceLayer.CAPABILITIES in attempt.stopped_by or attempt.name == "bpf"


def must_fail(attempt, stand):
    """Whether an attempt has to fail behind these layers; None: nothing is said of it."""
    if attempt.stopped_with(landlock_abi(), has_openat2=True) & stand or (
        attempt.ordinary & stand and not IS_ROOT
    ):
        return True
    loses_privilege = IS_ROOT and FenceLayer.CAPABILITIES in stand
    # Broker and zygote keep their capabilities then, which alone keep out whoever has less.
    keeps_out = is_privileged(attempt) or "broker" in attempt.name or "zygote" in attempt.name
    unsaid = keeps_out or attempt.ordinary & stand if loses_privilege else False
    return None if unsaid or attempt.name not in succeeding("nothing") else False


@pytest.mark.threat("T-FENCE-01", control="landlock")
@pytest.mark.threat("T-FENCE-02", control="great_layers")
@pytest.mark.threat("T-FENCE-03", control="seccomp")
@pytest.mark.threat("T-FENCE-04", control="seccomp")
@pytest.mark.threat("T-FENCE-05", control="great_layers")
@pytest.mark.threat("T-FENCE-06", control="seccomp")
@pytest.mark.threat("T-FENCE-07", control="fence_limits")
@needs_fence
def test_behind_the_whole_fence_nothing_succeeds_but_two_harmless_attempts_and_each_fails_as_recorded():
    """They read, list, write, send, start, load, gain, reach other processes, learn of names, and use up."""
    found = tried("all")
    # What happened is looked at first: a fence that is missing must show by that.
    assert succeeding("all") == {"metadata-outside", "open-outside-for-neither"}
    assert found.held.enforcement is Enforcement.FULL
    outcomes = {each.attempt.name: each.outcome for each in found.findings if each.outcome != UNTRIED}
    assert outcomes == {name: ATTEMPTS[name].expected for name in outcomes}
    assert set(ATTEMPTS) - set(outcomes) <= {"x32"}
    open_ones = {each.attempt.name for each in found.findings if each.verdict is Verdict.OPEN}
    assert open_ones == succeeding("all")


@pytest.mark.sweep(1)
@needs_fence
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_layer_stops_alone_what_it_is_said_to_stop_and_the_rest_succeeds(configuration):
    found, stand = tried(configuration), layers_of(configuration)
    for each in found.findings:
        expected = must_fail(each.attempt, stand)
        if expected:
            assert each.verdict is Verdict.HELD, each
        elif expected is False:
            assert each.outcome == DONE, each
    assert not [each for each in found.findings if each.verdict is Verdict.NOT_HELD]


def test_without_the_fence_every_attempt_succeeds_and_leaves_nothing_behind():
    failing = set(ATTEMPTS) - succeeding("nothing") - set(CANNOT) - set(MAY_BE_FORBIDDEN)
    assert all(is_privileged(ATTEMPTS[name]) and not IS_ROOT for name in failing), failing


def test_the_environment_is_found_where_the_zygote_has_it_and_nowhere_else_what_may_be_secret(monkeypatch):
    popen, attempts = subprocess.Popen, [ATTEMPTS["find-environment"]]

    def start_with_environment(command, **terms):
        return popen(command, **{**terms, "env": dict(os.environ)})

    found = (popen, "ENODATA", Verdict.HELD), (start_with_environment, DONE, Verdict.NOT_HELD)
    for start, *outcome in found:
        monkeypatch.setattr(pool.subprocess, "Popen", start)
        (finding,) = try_all(soon().deadline, attempts=attempts).findings
        assert [finding.outcome, finding.verdict] == outcome
    variables = {b"MODEL_API_KEY": b"key" * 40, b"PATHS": b"p" * 80, b"LANG": b"C.UTF-8", b"PATH": b"/bin"}
    monkeypatch.setattr(os, "environb", variables)
    long = b"/usr/bin:" * 20
    for path, needle in ((b"/bin", b"LANG=C.UTF-8"), (long, (b"PATH=" + long)[:64])):
        variables[b"PATH"] = path
        with trial.standing() as (_, targets):
            assert bytes.fromhex(targets["needle"]) == needle


# -- workers that do not answer as they should ---------------------------------------------------------


def tried_once(service, name="read-outside", seconds=20.0, **terms):
    terms |= {"service": service, "directories": [SERVICES]}
    return try_all(soon(seconds).deadline, attempts=[ATTEMPTS[name]], **terms).findings[0]


def test_an_attempt_that_does_not_end_is_given_up_and_a_worker_that_just_ends_proves_nothing(monkeypatch):
    """However long its worker took to greet: the seconds count from there, and of these there are none."""
    finding = tried_once("odd_attempts_service:leaving")
    assert (finding.outcome, finding.verdict) == ("exit code 3", Verdict.UNTRIED)
    assert finding.why == "the worker ended by exit code 3"
    monkeypatch.setattr(trial, "ATTEMPT_SECONDS", 0.0)
    finding = tried_once("odd_attempts_service:silent")
    assert (finding.verdict, finding.why) == (Verdict.UNTRIED, "no response in 0 s")


def test_a_trial_ends_at_its_deadline_and_there_is_none_without_a_worker_that_greets(tmp_path):
    with nothing_left_open(), pytest.raises(DeadlineExceeded):
        tried_once("odd_attempts_service:silent", seconds=0.2, parent=tmp_path)
    assert list(tmp_path.iterdir()) == []
    for service in ("odd_attempts_service:rude", "odd_attempts_service:vague", "broken_service:serve"):
        with nothing_left_open(), pytest.raises(WorkerLost):
            tried_once(service)


# -- judging ---------------------------------------------------------------------------------------------


def attempt(*stopped_by, expected="EACCES", abi=1, ordinary=()):
    what = ("name", "do it", expected, frozenset(stopped_by), lambda _: None, frozenset(ordinary))
    return Attempt(*what, landlock_abi=abi)


L, S = FenceLayer.LANDLOCK, FenceLayer.SECCOMP
MEANINGS = [
    *((attempt(L), "EACCES", [*FenceLayer], Verdict.HELD), (attempt(L), "EACCES", [L], Verdict.HELD)),
    *((attempt(L), "EACCES", [], Verdict.UNTRIED), (attempt(L, abi=6), "EACCES", [L], Verdict.UNTRIED)),
    *((attempt(L, abi=5), "EACCES", [L], Verdict.HELD), (attempt(L, S, abi=6), "EACCES", [S], Verdict.HELD)),
    (attempt(S, ordinary=[FenceLayer.LIMITS]), "EAGAIN", [FenceLayer.LIMITS], Verdict.HELD),
    *((attempt(L), DONE, [*FenceLayer], Verdict.NOT_HELD), (attempt(L), DONE, [S], Verdict.OPEN)),
    *((attempt(L, S), DONE, [S], Verdict.NOT_HELD), (attempt(L, abi=6), DONE, [L], Verdict.OPEN)),
    (attempt(L, S, abi=6), DONE, [*FenceLayer], Verdict.NOT_HELD),
    (attempt(L), "ENOENT", [*FenceLayer], Verdict.UNTRIED),
    (attempt(L), UNTRIED, [*FenceLayer], Verdict.UNTRIED),
    (attempt(expected="ENODATA"), "ENODATA", [], Verdict.HELD),
    (attempt(expected="ENODATA"), DONE, [], Verdict.NOT_HELD),
    (attempt(expected=DONE), DONE, [*FenceLayer], Verdict.OPEN),
    (attempt(expected=DONE), "EPERM", [*FenceLayer], Verdict.HELD),
]


def test_what_an_outcome_means():
    for what, outcome, holding, verdict in MEANINGS:
        finding = judge(what, outcome, holding, 5)
        assert finding.verdict is verdict, (what, outcome, holding)
        assert bool(finding.why) == (verdict is not Verdict.HELD)


def test_where_there_is_no_openat2_seccomp_is_not_said_to_stop_what_it_has_to_let_through():
    both, seccomp = {FenceLayer.LANDLOCK, FenceLayer.SECCOMP}, {FenceLayer.SECCOMP}
    for name in ("read-outside", "read-dotdot", "read-link", "create"):
        old, new = ([judge(ATTEMPTS[name], DONE, each, 5, has_openat2=has) for each in (both, seccomp)]
                    for has in (False, True))  # fmt: skip
        assert [each.why for each in old] == ["landlock should stop it", "only landlock stops it"]
        assert [each.verdict for each in old] == [Verdict.NOT_HELD, Verdict.OPEN]
        assert [each.verdict for each in new] == [Verdict.NOT_HELD] * 2
        assert judge(ATTEMPTS[name], DONE, seccomp, 0, has_openat2=False).why == "only landlock stops it"


# -- a worker's end, and the stage -----------------------------------------------------------------------


def test_a_worker_answers_what_came_of_it(monkeypatch):
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
        ours, theirs = socket.socketpair()
        with ours, theirs, ThreadPoolExecutor(1) as server:
            server.submit(subject.serve, theirs, {subject.ROOT: 7}, {FenceLayer.SECCOMP: 1})
            channel = Channel(ours)
            assert channel.receive(0)[0] == {"t": "hello", "missing": {"seccomp": 1}}
            channel.send({"t": "attempt", "name": "made", "targets": fields})
            assert channel.receive(0)[0] == {"t": "outcome", "outcome": outcome, "why": why}


def untried(name, **terms):
    finding = tried_once("layers_service:nothing", name, **terms)
    assert finding.verdict is Verdict.UNTRIED
    return finding.why


def test_what_the_stage_cannot_have_is_not_tried_and_said(monkeypatch, tmp_path):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    assert "too long for a socket" in untried("unix-path", parent=deep)
    with monkeypatch.context() as patch:
        patch.setattr(trial, "handle_of", Mock(side_effect=OSError(95, "no")))
        assert "has no handles" in untried("open-by-handle")
    with monkeypatch.context() as patch:
        real = import_directories
        nowhere = {("pydantic_core",): (str(tmp_path),)}
        patch.setattr(trial, "import_directories", lambda names: nowhere.get(names) or real(names))
        assert "no library" in untried("load-library")
    with monkeypatch.context() as patch:
        patch.setattr(os, "environb", {b"MODEL_API_KEY": b"key", b"HOME": b""})
        assert "none of PATH, HOME, PWD and LANG" in untried("find-environment")


def test_the_page_says_of_every_attempt_what_stops_it_alone():
    page = (REPOSITORY / "docs" / "confinement.md").read_text()
    told = {}
    for layers, names in re.findall(r"^\| ([a-z, ]+) \| ((?:`[a-z0-9-]+` ?)+)\|$", page, re.MULTILINE):
        told |= {name: set(layers.split(", ")) for name in re.findall(r"`([^`]+)`", names)}
    assert told == {name: set(each.stopped_by) for name, each in ATTEMPTS.items() if each.stopped_by}
    assert all(f"`{name}`" in page for name in ATTEMPTS)
    assert len(page.splitlines()) <= 100
