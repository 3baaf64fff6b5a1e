"""`muniment doctor`: what holds a worker here, what a person can do about the rest, and honest exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kit.confine.kernel import needs_fence
from kit.confine.probe import SERVICES, soon
from kit.confine.services.outer_filter import CASES
from muniment.cli import doctor as command
from muniment.cli.app import app
from muniment.confine.attempts.attempt import DONE
from muniment.confine.attempts.system import ATTEMPTS
from muniment.confine.attempts.trial import Verdict, judge, try_all
from muniment.confine.offer import look_around
from muniment.errors import WorkerLost
from muniment.names import FenceLayer

PROGRAM = Path(sys.executable).with_name("muniment")
FEW = [ATTEMPTS[name] for name in ("read-outside-openat2", "metadata-outside", "udp-send", "much-memory")]
"""What Landlock, nothing, seccomp and limits alone stop."""


@pytest.fixture
def doctor(tmp_path):
    def run(*flags, **environment):
        env = {"MUNIMENT_HOME": str(tmp_path / "home"), **environment}
        done = CliRunner().invoke(app, ["doctor", *flags], env=env)
        assert not (tmp_path / "home").exists()
        return done

    return run


@pytest.fixture
def behind(monkeypatch):
    """Tries a few things behind other layers than the whole fence."""

    def behind(which):
        trial = partial(
            try_all, service=f"layers_service:{which}_as_self", directories=[SERVICES], attempts=FEW
        )
        monkeypatch.setattr(command, "try_all", trial)

    return behind


def untried(lines):
    """What the last line says where something could not be tried, as an x32 call on most machines."""
    number = sum("not tried " in line for line in lines)
    return f"; {number} of {len(ATTEMPTS)} not tried" if number else ""


@needs_fence
@pytest.mark.parametrize(("policy", "required"), [("strict", "partial"), ("hardened", "full")])
def test_a_system_that_holds_everything(doctor, policy, required):
    done = doctor("--policy", policy)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert re.match(
        rf"Linux {re.escape(os.uname().release)}, .* files are opened by (openat2|walk)$", lines[0]
    )
    assert [line.split()[0] for line in lines[1:8]] == list(FenceLayer)
    assert all(line.endswith(" holds") for line in lines[1:8] if "mdwe" not in line)
    tried = lines[lines.index("tried in throwaway workers:") + 1 :]
    assert re.match(r"  held +EPERM +read a file outside by its absolute path$", tried[0])
    assert sum(line.startswith(("  held ", "  open ", "  not tried ")) for line in tried) == len(ATTEMPTS)
    assert re.search(r"open: a worker can learn the size of a file outside .*leaves it open", done.stdout)
    assert lines[-1].removesuffix(untried(tried)) == (
        f"enforcement full; policy {policy} requires {required}: met"
    )


@pytest.mark.parametrize(
    ("which", "layer", "opened", "advised"),
    [
        ("without_landlock", "landlock", "read a file outside", "landlock_restrict_self"),
        ("without_seccomp", "seccomp", "send a datagram", "CONFIG_SECCOMP_FILTER"),
        ("without_limits", "limits", "take 1 GiB of memory", "prlimit64"),
    ],
)
@needs_fence
def test_where_a_layer_is_missing_it_is_said_what_is_open_and_what_to_do(
    doctor, behind, which, layer, opened, advised
):
    behind(which)
    for policy, code, met in (("strict", 0, "met"), ("hardened", 1, "NOT met")):
        done = doctor("--policy", policy)
        assert done.exit_code == code, done.output
        assert re.search(
            rf"^  {layer} .*MISSING +the system answered ENOSYS; .*{advised}", done.stdout, re.MULTILINE
        )
        assert re.search(
            rf"^open: a worker can {opened}.*: only {layer} stops it$", done.stdout, re.MULTILINE
        )
        last = done.stdout.splitlines()[-1]
        assert last.startswith(f"enforcement partial (missing: {layer}); policy {policy} requires ")
        assert last.endswith(f": {met}")


def test_with_no_layer_at_all_every_one_is_missing(doctor, behind):
    behind("nothing")
    found = json.loads(doctor("--policy", "hardened", "--json").stdout)
    assert found["missing_layers"] == list(FenceLayer)
    assert (found["enforcement"], found["met"]) == ("partial", False)
    assert all(each["advice"] and not each["holds"] for each in found["layers"])
    assert all(each["verdict"] == "open" for each in found["attempts"])


@needs_fence
def test_what_succeeds_against_a_layer_that_holds_fails_whatever_the_policy_asks(doctor, monkeypatch):
    """As where a kernel holds less than it says."""
    found = try_all(soon(), attempts=FEW)
    broken = [judge(found.findings[0].attempt, DONE, [*FenceLayer], 7), *found.findings[1:]]
    monkeypatch.setattr(command, "try_all", lambda _: replace(found, findings=broken))
    done = doctor()
    assert done.exit_code == 1
    assert re.search(
        r"^  NOT HELD +done +read a file .* \(landlock should stop it\)$", done.stdout, re.MULTILINE
    )
    assert done.stdout.splitlines()[-1] == (
        "enforcement full; policy strict requires partial: met; 1 of 4 attempts NOT held"
    )


@pytest.mark.parametrize(
    ("tried", "code", "told"),
    [(["udp-send"], 0, "; 3 of 4 not tried"), ([], 1, "; 4 of 4 not tried")],
)
def test_what_was_not_tried_is_counted_and_where_nothing_was_the_exit_code_is_1(
    doctor, monkeypatch, tried, code, told
):
    found = try_all(soon(), attempts=FEW)
    findings = [
        each if each.attempt.name in tried else replace(each, outcome="", verdict=Verdict.UNTRIED, why="so")
        for each in found.findings
    ]
    monkeypatch.setattr(command, "try_all", lambda _: replace(found, findings=findings))
    done = doctor()
    assert done.exit_code == code
    assert done.stdout.splitlines()[-1].endswith(f": met{told}")
    assert doctor("--json").exit_code == code


def test_what_an_old_landlock_does_not_know_is_said(doctor, behind, monkeypatch):
    behind("nothing")
    old = replace(look_around(), landlock_abi=3)
    monkeypatch.setattr(command, "look_around", lambda: old)
    assert "open: Landlock ABI 3 does not know TCP\n" in doctor().stdout


def outside(program, withheld, *arguments, home):
    """The program's output where something is withheld from all of it."""
    code = f"from outer_filter import stand_around; stand_around({withheld!r}); {program}"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": SERVICES},
        timeout=50,
    )


@pytest.mark.sweep(2)
@needs_fence
@pytest.mark.parametrize(
    ("withheld", "told"),
    [
        ("landlock_unknown", "offered no .*the system answered ENOSYS; it takes Linux 6.2 built with"),
        ("landlock_switched_off", "offered no .*switched off; add landlock to .* boot parameter lsm="),
        (
            "landlock_not_entered",
            "offered ABI .*answered EPERM.* seccomp profile allow landlock_create_ruleset",
        ),
        ("landlock_pretended", "offered ABI .*accepted it and nothing came of it"),
        ("seccomp_pretended", "offered yes .*accepted it and nothing came of it"),
        ("seccomp_forbidden", "offered yes .*answered EPERM.* seccomp profile allow prctl"),
        ("limits_pretended", None),
    ],
)
def test_inside_a_container_that_withholds_something_it_is_said_and_the_exit_code_is_1(
    tmp_path, withheld, told
):
    program = "from muniment.cli.entry import main; main()"
    done = outside(program, withheld, "doctor", "--policy", "hardened", home=tmp_path)
    assert done.returncode == 1, done
    if told is None:
        # The zygote itself cannot keep its promises then, and nothing runs at all.
        assert "not examined: the zygote" in done.stderr
        return
    (layer,) = CASES[withheld].missing
    assert re.search(rf"^  {layer} .*{told}", done.stdout, re.MULTILINE), done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1].removesuffix(untried(lines[:-1])) == (
        f"enforcement partial (missing: {layer}); policy hardened requires full: NOT met"
    )


def uncoloured(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.slow
@needs_fence
def test_on_a_terminal_it_is_a_table(tmp_path):
    ours, theirs = pty.openpty()
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "COLUMNS": "100", "TERM": "xterm"}
    with os.fdopen(ours, "rb", 0) as screen:
        process = subprocess.Popen([PROGRAM, "doctor"], stdout=theirs, env=environment)
        os.close(theirs)
        shown = b""
        try:
            while part := screen.read(65536):
                shown += part
        except OSError:  # How a terminal says that nobody writes to it any more.
            pass
        assert process.wait(30) == 0
    text = uncoloured(shown.decode())
    assert re.search(r"│ landlock +│ ABI \d+ +│ holds +│", text)
    assert re.search(r"│ open +│ done +│ learn the size of a file outside", text)
    assert text.splitlines()[-1].startswith("enforcement full; policy strict requires partial: met")


def test_a_missing_layer_is_marked_on_a_terminal_too(behind, monkeypatch, capsys, tmp_path):
    behind("without_limits")
    monkeypatch.setenv("MUNIMENT_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert command.examine("strict", as_json=False) == 0
    assert re.search(r"limits +│ yes +│ MISSING", uncoloured(capsys.readouterr().out))


def test_what_stands_in_the_way_is_said(doctor, monkeypatch):
    assert "[policy_invalid]" in doctor("--policy", "./none.toml").output
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/nowhere")
        done = doctor()
        assert done.exit_code == 1
        assert (
            "the temporary directory: No such file or directory [managed_memory_unavailable]" in done.output
        )
    for error, code, told in (
        (WorkerLost("the zygote died"), 1, "not examined: the zygote died [worker_lost]"),
        (KeyboardInterrupt(), 130, "cancelled: by Ctrl-C [cancelled]"),
    ):
        monkeypatch.setattr(command, "try_all", raising(error))
        done = doctor()
        assert (done.exit_code, done.output.strip()) == (code, told)
    assert json.loads(doctor("--json").stdout)["status"] == "cancelled"


def raising(error):
    def fail(*_):
        raise error

    return fail
