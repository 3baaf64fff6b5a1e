"""`muniment doctor`: what holds a worker here, what a person can do about the rest, and honest exit codes."""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from unittest.mock import Mock

import pytest

from kit.sandbox.machine import needs_fence
from kit.sandbox.probe import SERVICES, soon
from kit.sandbox.services.outer_filter import CASES
from muniment.errors import WorkerLost
from muniment.lab.attempts.attempt import ATTEMPTS, DONE
from muniment.lab.attempts.offer import look_around
from muniment.lab.attempts.trial import Verdict, judge, try_all
from muniment.names import FenceLayer

# What Landlock, nothing, seccomp and limits alone stop.
FEW = [ATTEMPTS[name] for name in ("read-outside-openat2", "metadata-outside", "udp-send", "much-memory")]


@pytest.fixture
def doctor(muniment, home):
    def doctor(*flags, code=0):
        lines = muniment.lines("doctor", *flags, code=code, COLUMNS="300")
        assert not home.exists()
        return lines

    return doctor


@pytest.fixture
def found(monkeypatch):
    """Has the doctor find what was found when a few things were tried, behind other layers if asked."""

    def found(which=None, change=lambda trial: trial):
        layers = {"service": f"layers_service:{which}", "directories": [SERVICES]} if which else {}
        trial = change(try_all(soon().deadline, attempts=FEW, **layers))
        monkeypatch.setattr("muniment.lab.attempts.trial.try_all", lambda _: trial)

    return found


def untried(lines):
    """What the last line says where something could not be tried, as an x32 call on most machines."""
    number = sum("not tried " in line for line in lines)
    return f"; {number} of {len(ATTEMPTS)} not tried" if number else ""


@needs_fence
def test_a_system_that_holds_everything(doctor):
    lines = doctor("--policy", "hardened")
    system = rf"Linux {re.escape(os.uname().release)}, .* files are opened by (openat2|walk)$"
    assert re.match(system, lines[0])
    assert [line.split()[0] for line in lines[1:8]] == list(FenceLayer)
    assert all(line.endswith(" active") for line in lines[1:8] if "mdwe" not in line)
    tried = lines[lines.index("tried in temporary workers:") + 1 :]
    assert re.match(r"  stopped +EPERM +read a file outside by its absolute path$", tried[0])
    assert sum(line.startswith(("  stopped ", "  open ", "  not tried ")) for line in tried) == len(ATTEMPTS)
    opened = r"open: a worker can read the size of a file outside .*does not stop it"
    assert any(re.match(opened, line) for line in lines)
    met = "enforcement full; policy hardened requires full: met"
    assert lines[-1].removesuffix(untried(tried)) == met


@needs_fence
def test_where_a_layer_is_missing_it_is_said_what_is_open_and_what_to_do(doctor, found, request):
    for layer, opened, advised in (
        ("landlock", "read a file outside", "landlock_restrict_self"),
        ("seccomp", "send a datagram", "CONFIG_SECCOMP_FILTER"),
        ("limits", "allocate 1 GiB", "prlimit64"),
    ):
        found(f"without_{layer}")
        for policy, code, met in (("strict", 0, "partial: met"), ("hardened", 1, "full: NOT met")):
            lines = doctor("--policy", policy, code=code)
            missing = rf"  {layer} .*MISSING +the system returned ENOSYS; .*{advised}"
            assert any(re.match(missing, line) for line in lines)
            only = rf"open: a worker can {opened}.*: only {layer} stops it"
            assert any(re.fullmatch(only, line) for line in lines)
            assert lines[-1] == f"enforcement partial (missing: {layer}); policy {policy} requires {met}"
            told = 'no task runs here: enable the MISSING layers or use a policy that requires "partial"'
            assert (f"to do: with the policy hardened {told}" in lines) == (code == 1)
    request.getfixturevalue("terminal")
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(doctor()))
    assert re.search(r"│ limits +│ yes +│ MISSING", text)
    assert re.search(r"│ landlock +│ ABI \d+ +│ active +│", text)
    assert re.search(r"│ open +│ done +│ read the size of a file outside", text)


def test_with_no_layer_at_all_every_one_is_missing(doctor, found, muniment, monkeypatch):
    found("nothing")
    told = muniment.document("doctor", "--policy", "hardened", code=1)
    assert told["missing_layers"] == list(FenceLayer)
    assert (told["enforcement"], told["met"]) == ("partial", False)
    assert all(each["advice"] and not each["holds"] for each in told["layers"])
    assert all(each["verdict"] == "open" for each in told["attempts"])
    old = replace(look_around(), landlock_abi=3)
    monkeypatch.setattr("muniment.lab.attempts.offer.look_around", lambda: old)
    assert "open: Landlock ABI 3 does not support TCP" in doctor()


@needs_fence
def test_what_succeeds_against_a_layer_that_holds_fails_and_what_is_untried_counts(doctor, found, muniment):
    """As where a kernel holds less than it says."""

    def broken(trial):
        first = judge(trial.findings[0].attempt, DONE, [*FenceLayer], 7)
        return replace(trial, findings=[first, *trial.findings[1:]])

    def skipping(trial):
        untried = {"outcome": "", "verdict": Verdict.UNTRIED, "why": "so"}
        skipped = [replace(each, **untried) for each in trial.findings[:number]]
        return replace(trial, findings=[*skipped, *trial.findings[number:]])

    found(change=broken)
    lines = doctor(code=1)
    told = r"  NOT STOPPED +done +read a file .* \(landlock should stop it\)"
    assert any(re.fullmatch(told, line) for line in lines)
    assert lines[-1] == "enforcement full; policy strict requires partial: met; 1 of 4 attempts NOT stopped"
    assert (
        lines[-2]
        == "to do: an attempt succeeded that must not: report it as in SECURITY.md, with the --json output"
    )
    for number, code in ((3, 0), (4, 1)):  # Where nothing at all was tried it fails.
        found(change=skipping)
        assert doctor(code=code)[-1].endswith(f": met; {number} of 4 not tried")
        muniment.document("doctor", code=code)


WITHHELD = {
    "landlock_unknown": "offered no .*the system returned ENOSYS; it requires Linux 6.2 built with",
    "landlock_switched_off": "offered no .*disabled; add landlock to .* boot parameter lsm=",
    "landlock_not_entered": "offered ABI .*returned EPERM.* profile allow landlock_create_ruleset",
    "landlock_pretended": "offered ABI .*accepted it without effect",
    "seccomp_pretended": "offered yes .*accepted it without effect",
    "seccomp_forbidden": "offered yes .*returned EPERM.* seccomp profile allow prctl",
    "limits_pretended": None,  # The zygote itself cannot keep its promises then, and nothing runs at all.
}


@pytest.mark.sweep(1)
@needs_fence
@pytest.mark.parametrize("withheld", WITHHELD)
def test_inside_a_container_that_withholds_something_it_is_said_and_the_exit_code_is_1(tmp_path, withheld):
    """All of the program runs where it is withheld."""
    code = f"from outer_filter import stand_around; stand_around({withheld!r}); "
    code += "from muniment.cli.entry import main; main()"
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": SERVICES}
    line = [sys.executable, "-c", code, "doctor", "--policy", "hardened"]
    done = subprocess.run(line, check=False, capture_output=True, text=True, env=env, timeout=50)
    assert done.returncode == 1, done
    if WITHHELD[withheld] is None:
        assert "not tested: the zygote" in done.stderr
        return
    (layer,) = CASES[withheld].missing
    assert re.search(rf"^  {layer} .*{WITHHELD[withheld]}", done.stdout, re.MULTILINE), done.stdout
    *lines, last = done.stdout.splitlines()
    missing = f"enforcement partial (missing: {layer}); policy hardened requires full: NOT met"
    assert last.removesuffix(untried(lines)) == missing


def test_what_stands_in_the_way_is_said(doctor, muniment, monkeypatch):
    assert "[policy_invalid]" in doctor("--policy", "./none.toml", code=1)[0]
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/nowhere")
        told = "the temporary directory: No such file or directory [managed_memory_unavailable]"
        assert doctor(code=1)[0].endswith(told)

    monkeypatch.setattr(
        "muniment.lab.attempts.trial.try_all", Mock(side_effect=WorkerLost("the zygote died"))
    )
    assert doctor(code=1) == ["not tested: the zygote died [worker_lost]"]
    monkeypatch.setattr("muniment.lab.attempts.trial.try_all", Mock(side_effect=KeyboardInterrupt))
    assert doctor(code=130) == ["cancelled: by Ctrl-C [cancelled]"]
    assert muniment.document("doctor", code=130)["status"] == "cancelled"
