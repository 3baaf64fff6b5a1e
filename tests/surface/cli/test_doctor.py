"""`muniment doctor`: the confinement on this machine, advice, exit codes."""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from unittest.mock import Mock

import pytest

from kit.sandbox.machine import needs_fence
from kit.sandbox.probe import SERVICES, make_deadline
from kit.sandbox.services.outer_filter import CASES
from muniment.errors import WorkerLost
from muniment.lab.attempts.attempt import ATTEMPTS, DONE
from muniment.lab.attempts.offer import inspect_system
from muniment.lab.attempts.trial import Verdict, judge_outcome, run_trial
from muniment.names import FenceLayer

# Stopped by Landlock, nothing, seccomp and limits alone.
FEW = [ATTEMPTS[name] for name in ("read-outside-openat2", "metadata-outside", "udp-send", "much-memory")]


@pytest.fixture
def doctor(cli, home):
    def doctor(*flags, code=0):
        lines = cli.run_for_lines("doctor", *flags, code=code, COLUMNS="300")
        assert not home.exists()
        return lines

    return doctor


@pytest.fixture
def fake_findings(monkeypatch):
    """Replace the result of the doctor with that of a few attempts, optionally under other layers."""

    def fake_findings(which=None, change=lambda trial: trial):
        layers = {"service": f"layers_service:{which}", "directories": [SERVICES]} if which else {}
        trial = change(run_trial(make_deadline().expires_at, attempts=FEW, **layers))
        monkeypatch.setattr("muniment.lab.attempts.trial.run_trial", lambda _: trial)

    return fake_findings


def untried_suffix(lines):
    """Return the end of the last line if attempts are impossible, such as an x32 call on most machines."""
    number = sum("not tried " in line for line in lines)
    return f"; {number} of {len(ATTEMPTS)} not tried" if number else ""


@needs_fence
def test_doctor_on_full_system_reports_every_layer(doctor):
    lines = doctor("--policy", "hardened")
    system = rf"Linux {re.escape(os.uname().release)}, .* files are opened by (openat2|walk)$"
    assert re.match(system, lines[0])
    assert [line.split()[0] for line in lines[1:8]] == list(FenceLayer)
    assert all(line.endswith(" active") for line in lines[1:8] if "mdwe" not in line)
    attempts = lines[lines.index("tried in temporary workers:") + 1 :]
    assert re.match(r"  stopped +EPERM +read a file outside by its absolute path$", attempts[0])
    assert sum(line.startswith(("  stopped ", "  open ", "  not tried ")) for line in attempts) == len(
        ATTEMPTS
    )
    open_attempt = r"open: a worker can read the size of a file outside .*does not stop it"
    assert any(re.match(open_attempt, line) for line in lines)
    summary = "enforcement full; policy hardened requires full: met"
    assert lines[-1].removesuffix(untried_suffix(attempts)) == summary


@needs_fence
def test_doctor_with_missing_layer_prints_gap_and_advice(doctor, fake_findings, request):
    for layer, attempt, advised in (
        ("landlock", "read a file outside", "landlock_restrict_self"),
        ("seccomp", "send a datagram", "CONFIG_SECCOMP_FILTER"),
        ("limits", "allocate 1 GiB", "prlimit64"),
    ):
        fake_findings(f"without_{layer}")
        for policy, code, summary in (("strict", 0, "partial: met"), ("hardened", 1, "full: NOT met")):
            lines = doctor("--policy", policy, code=code)
            missing = rf"  {layer} .*MISSING +the system returned ENOSYS; .*{advised}"
            assert any(re.match(missing, line) for line in lines)
            open_line = rf"open: a worker can {attempt}.*: only {layer} stops it"
            assert any(re.fullmatch(open_line, line) for line in lines)
            assert lines[-1] == f"enforcement partial (missing: {layer}); policy {policy} requires {summary}"
            advice = 'no task runs here: enable the MISSING layers or use a policy that requires "partial"'
            assert (f"to do: with the policy hardened {advice}" in lines) == (code == 1)
    request.getfixturevalue("fake_terminal")
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(doctor()))
    assert re.search(r"│ limits +│ yes +│ MISSING", text)
    assert re.search(r"│ landlock +│ ABI \d+ +│ active +│", text)
    assert re.search(r"│ open +│ done +│ read the size of a file outside", text)


def test_doctor_without_layers_reports_all_missing(doctor, fake_findings, cli, monkeypatch):
    fake_findings("nothing")
    document = cli.run_for_document("doctor", "--policy", "hardened", code=1)
    assert document["missing_layers"] == list(FenceLayer)
    assert (document["enforcement"], document["met"]) == ("partial", False)
    assert all(each["advice"] and not each["holds"] for each in document["layers"])
    assert all(each["verdict"] == "open" for each in document["attempts"])
    old = replace(inspect_system(), landlock_abi=3)
    monkeypatch.setattr("muniment.lab.attempts.offer.inspect_system", lambda: old)
    assert "open: Landlock ABI 3 does not support TCP" in doctor()


@needs_fence
def test_doctor_fails_on_broken_layer_and_counts_untried(doctor, fake_findings, cli):
    """A kernel may enforce less than it reports."""

    def break_first_finding(trial):
        first = judge_outcome(trial.findings[0].attempt, DONE, [*FenceLayer], 7)
        return replace(trial, findings=[first, *trial.findings[1:]])

    def skip_findings(trial):
        untried_values = {"outcome": "", "verdict": Verdict.UNTRIED, "why": "so"}
        skipped = [replace(each, **untried_values) for each in trial.findings[:number]]
        return replace(trial, findings=[*skipped, *trial.findings[number:]])

    fake_findings(change=break_first_finding)
    lines = doctor(code=1)
    failed_line = r"  NOT stopped +done +read a file .* \(landlock should stop it\)"
    assert any(re.fullmatch(failed_line, line) for line in lines)
    assert lines[-1] == "enforcement full; policy strict requires partial: met; 1 of 4 attempts NOT stopped"
    assert (
        lines[-2]
        == "to do: an attempt succeeded that must fail: report it as in SECURITY.md, with the --json output"
    )
    for number, code in ((3, 0), (4, 1)):  # It fails if nothing was tried.
        fake_findings(change=skip_findings)
        assert doctor(code=code)[-1].endswith(f": met; {number} of 4 not tried")
        cli.run_for_document("doctor", code=code)


WITHHELD = {
    "landlock_unknown": "offered no .*the system returned ENOSYS; it requires Linux 6.2 built with",
    "landlock_switched_off": "offered no .*disabled; add landlock to .* boot parameter lsm=",
    "landlock_not_entered": "offered ABI .*returned EPERM.* profile allow landlock_create_ruleset",
    "landlock_pretended": "offered ABI .*accepted it without effect",
    "seccomp_pretended": "offered yes .*accepted it without effect",
    "seccomp_forbidden": "offered yes .*returned EPERM.* seccomp profile allow prctl",
    "limits_pretended": None,  # The zygote itself fails then, and nothing runs.
}


@pytest.mark.sweep(1)
@needs_fence
@pytest.mark.parametrize("withheld", WITHHELD)
def test_doctor_in_restricted_container_exits_1_with_reason(tmp_path, withheld):
    """The whole program runs without the withheld feature."""
    code = f"from outer_filter import install_filter; install_filter({withheld!r}); "
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
    assert last.removesuffix(untried_suffix(lines)) == missing


def test_doctor_reports_environment_errors(doctor, cli, monkeypatch):
    assert "[policy_invalid]" in doctor("--policy", "./none.toml", code=1)[0]
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/nowhere")
        message = "the temporary directory: No such file or directory [managed_memory_unavailable]"
        assert doctor(code=1)[0].endswith(message)

    monkeypatch.setattr(
        "muniment.lab.attempts.trial.run_trial", Mock(side_effect=WorkerLost("the zygote died"))
    )
    assert doctor(code=1) == ["not tested: the zygote died [worker_lost]"]
    monkeypatch.setattr("muniment.lab.attempts.trial.run_trial", Mock(side_effect=KeyboardInterrupt))
    assert doctor(code=130) == ["cancelled: by Ctrl-C [cancelled]"]
    assert cli.run_for_document("doctor", code=130)["status"] == "cancelled"
