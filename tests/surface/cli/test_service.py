"""`muniment setup --daemon`: writes, starts, stops and removes a systemd service of the user.

`systemctl` is a program of the test that records its arguments and enables a unit by a file.
"""

import errno
import json
import os
import shlex
import shutil
from configparser import ConfigParser
from functools import partial
from unittest.mock import Mock

import pytest

from kit.cli.process import SECONDS, launch
from kit.memories import take_snapshot
from kit.server.process import lock_home
from kit.shell import run_command

SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$RECORD/calls"
test "$1" = --user || exit 9
test "$2" != "$FAILS" || { echo "cannot do $2: \033[31mno bus" >&2; exit 1; }
case "$2" in
is-enabled) test -e "$RECORD/enabled" ;;
enable) cp "$UNIT" "$RECORD/started" && touch "$RECORD/enabled" ;;
disable) rm -f "$RECORD/enabled" ;;
esac
"""
WRITES = ["--user daemon-reload", "--user enable --now muniment.service"]


@pytest.fixture
def unit(user):
    return user / ".config/systemd/user/muniment.service"


@pytest.fixture
def record(tmp_path):
    directory = tmp_path / "record"
    directory.mkdir()
    return directory


@pytest.fixture
def run(run, install_program, unit, record, tmp_path):
    """Return a function that runs commands with the default home and the `systemctl` of the test."""
    install_program("/opt/a b/muniment")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "systemctl").write_text(SYSTEMCTL)
    (programs / "systemctl").chmod(0o755)
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "RECORD": str(record), "UNIT": str(unit), "FAILS": ""}
    return partial(run, MUNIMENT_HOME=None, **variables)


def read_calls(record):
    """Return the calls that change the state of systemd."""
    lines = (record / "calls").read_text().splitlines() if (record / "calls").exists() else []
    return [each for each in lines if each.split()[1] not in {"show", "is-enabled"}]


def read_unit(path):
    parser = ConfigParser(interpolation=None, comment_prefixes=("#",), delimiters=("=",), strict=True)
    parser.optionxform = str
    parser.read_string(path.read_text())
    return {name: dict(section) for name, section in parser.items() if name != "DEFAULT"}


def test_setup_writes_and_starts_service_and_remove_restores(run, user, unit, record, tmp_path):
    done = run("setup", "--daemon", f"--workspace={tmp_path}", "--yes")
    assert done.exit_code == 0, done.output
    assert "the daemon runs as a service" in done.stdout
    command = shlex.split(read_unit(unit)["Service"]["ExecStart"])
    assert command == ["/opt/a b/muniment", "serve", "--workspace", str(tmp_path)]
    assert (record / "started").read_bytes() == unit.read_bytes()
    assert read_calls(record) == WRITES
    written = take_snapshot(user)
    second = run("setup", "--daemon", "--yes")
    assert (second.exit_code, "already set up" in second.stdout) == (0, True)
    assert (take_snapshot(user), read_calls(record)) == (written, WRITES)
    removed = run("setup", "--daemon", "--remove", "--yes")
    assert (removed.exit_code, "stopped and removed" in removed.stdout) == (0, True), removed.output
    assert list(user.iterdir()) == []
    assert read_calls(record)[2:] == ["--user disable --now muniment.service", "--user daemon-reload"]
    last = run("setup", "--daemon", "--remove", "--yes")
    assert (last.exit_code, "no service is set up" in last.stdout) == (0, True)


def test_service_is_not_written_without_consent(run, user, record, request):
    before = take_snapshot(user)
    done = run("setup", "--daemon", stdin="yes\n")
    assert (done.exit_code, take_snapshot(user) == before, read_calls(record)) == (1, True, [])
    assert "+NoNewPrivileges=yes" in done.stdout
    assert "command: systemctl --user enable --now muniment.service" in done.stdout
    document = json.loads(run("setup", "--daemon", "--json").stdout)
    assert (document["daemon"]["status"], take_snapshot(user) == before) == ("not_written", True)
    request.getfixturevalue("fake_terminal")
    assert run("setup", "--daemon", stdin="n\n").exit_code == 1
    assert (take_snapshot(user) == before, read_calls(record)) == (True, [])
    assert run("setup", "--daemon", stdin="yes\n").exit_code == 0
    assert run("setup", "--daemon", "--remove", stdin="n\n").exit_code == 1
    assert read_calls(record) == WRITES


def test_setup_of_tool_and_service_in_one_command(run, user, unit):
    document = json.loads(run("setup", "codex", "--daemon", "--yes", "--json").stdout)
    assert (document["status"], document["daemon"]["status"]) == ("written", "written")
    assert document["daemon"]["unit"] == unit.read_text()
    assert (user / ".codex/config.toml").exists()
    document = json.loads(run("setup", "codex", "--daemon", "--remove", "--yes", "--json").stdout)
    assert (document["status"], document["daemon"]["status"]) == ("removed", "removed")
    assert not (user / ".codex").exists()


@pytest.mark.usefixtures("fake_terminal")
def test_setup_of_tool_mentions_service_at_terminal(run):
    done = run("setup", "codex", stdin="yes\n")
    assert "to run the daemon as a service: muniment setup --daemon" in done.stdout


def test_second_setup_adds_workspace_and_restarts(run, unit, record, tmp_path):
    odd = tmp_path / 'a "$b" %c'
    odd.mkdir()
    run("setup", "--daemon", f"--workspace={odd}", "--yes")
    first = unit.read_bytes()
    assert f'"{tmp_path}/a \\"$$b\\" %%c"\n'.encode() in first
    run("setup", "--daemon", "--yes")
    assert (unit.read_bytes(), read_calls(record)) == (first, WRITES)
    done = run("setup", "--daemon", f"--workspace={odd}", f"--workspace={tmp_path}", "--yes")
    assert done.exit_code == 0, done.output
    assert read_calls(record)[2:] == [*WRITES, "--user restart muniment.service"]
    command = shlex.split(read_unit(unit)["Service"]["ExecStart"].replace("$$", "$").replace("%%", "%"))
    assert command[2:] == ["--workspace", str(odd), "--workspace", str(tmp_path)]


def test_disabled_service_is_enabled_again(run, record):
    run("setup", "--daemon", "--yes")
    (record / "enabled").unlink()
    run("setup", "--daemon", "--yes")
    assert (record / "enabled").exists()


def test_unit_of_user_is_neither_replaced_nor_deleted(run, user, unit, record):
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    before = take_snapshot(user)
    for options in ((), ("--remove",)):
        done = run("setup", "--daemon", *options, "--yes")
        assert (done.exit_code, "was not written by setup, or was changed since" in done.stderr) == (1, True)
    assert (take_snapshot(user), read_calls(record)) == (before, [])


def test_changed_unit_stays_at_removal_and_uninstall(run, unit, record):
    run("setup", "--daemon", "--yes")
    unit.write_text(f"{unit.read_text()}# mine\n")
    assert run("setup", "--daemon", "--remove", "--yes").exit_code == 1
    done = run("uninstall", "--yes")
    assert (done.exit_code, "was not written by setup, or was changed since" in done.stdout) == (0, True)
    assert (unit.read_text().endswith("# mine\n"), read_calls(record)) == (True, WRITES)


def test_setup_without_systemd_prints_command(run, user, tmp_path):
    before = take_snapshot(user)
    (tmp_path / "empty").mkdir()
    done = run("setup", "--daemon", "--yes", PATH=str(tmp_path / "empty"))
    assert (done.exit_code, "systemd is not available: systemctl not found" in done.stderr) == (1, True)
    assert "to run the daemon by hand: '/opt/a b/muniment' serve --workspace" in done.stderr
    done = run("setup", "--daemon", "--yes", FAILS="show")
    assert (done.exit_code, "systemd is not available for this user: cannot do show" in done.stderr) == (
        1,
        True,
    )
    assert "\033" not in done.stderr
    assert take_snapshot(user) == before


def test_service_on_full_disk_leaves_no_file(run, user, record, monkeypatch):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    done = run("setup", "--daemon", "--yes")
    assert (done.exit_code, "No space left on device" in done.stderr) == (1, True)
    assert (list(user.iterdir()), read_calls(record)) == ([], [])


@pytest.mark.parametrize("step", ["daemon-reload", "enable"])
def test_failed_start_is_reported_and_can_be_repeated(run, record, step):
    done = run("setup", "--daemon", "--yes", FAILS=step)
    assert (done.exit_code, f"failed: cannot do {step}" in done.stderr) == (1, True)
    assert run("setup", "--daemon", "--yes").exit_code == 0
    assert (record / "enabled").exists()


def test_failed_stop_keeps_unit(run, unit):
    run("setup", "--daemon", "--yes")
    done = run("setup", "--daemon", "--remove", "--yes", FAILS="disable")
    assert (done.exit_code, unit.exists()) == (1, True)


def test_setup_respects_xdg_config_home_and_home(run, install_program, user, tmp_path):
    home, moved = tmp_path / "other home $x %h", tmp_path / "config"
    unit = moved / "systemd/user/muniment.service"
    more = {"XDG_CONFIG_HOME": str(moved), "UNIT": str(unit)}
    install_program("/opt/muniment", home=str(home))
    done = run("setup", "--daemon", "--yes", MUNIMENT_HOME=str(home), **more)
    assert done.exit_code == 0, done.output
    assert read_unit(unit)["Service"]["Environment"] == f'"MUNIMENT_HOME={tmp_path}/other home $x %%h"'
    assert not (user / ".config").exists()


def test_uninstall_removes_service_and_erases_memory(run, user, record):
    run("setup", "--daemon", "--yes")
    listed = json.loads(run("uninstall", "--json").stdout)
    assert (listed["service"], listed["taken_out_of"]) == ("installed", [])
    done = run("uninstall", "--erase-memory", "--yes")
    assert (done.exit_code, "removed: the daemon service" in done.stdout) == (0, True), done.output
    assert read_calls(record)[2:] == ["--user disable --now muniment.service", "--user daemon-reload"]
    assert list(user.iterdir()) == []


def test_uninstall_erases_nothing_while_other_daemon_runs(run, user):
    run("setup", "--daemon", "--yes")
    with lock_home(user / ".muniment"):
        done = run("uninstall", "--erase-memory", "--yes")
    assert (done.exit_code, "a daemon runs for" in done.stderr) == (1, True)
    assert (user / ".muniment/state").exists()


def test_service_is_not_set_up_while_other_daemon_runs(run, user, record):
    with lock_home(user / ".muniment"):
        done = run("setup", "--daemon", "--yes")
    assert (done.exit_code, "a daemon already runs for" in done.stderr) == (1, True)
    assert ((user / ".config").exists(), read_calls(record)) == (False, [])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "not set up: missing TOOL"),
        (("codex", "--workspace=."), "not set up: Codex: --workspace is only for --daemon"),
    ],
)
def test_setup_with_missing_or_useless_option_fails(run, user, arguments, text):
    done = run("setup", *arguments, "--yes")
    assert (done.exit_code, text in done.stderr, list(user.iterdir())) == (1, True, [])


def test_path_with_line_break_is_rejected(run, user, tmp_path):
    done = run("setup", "--daemon", f"--workspace={tmp_path}/a\nExecStartPre=/bin/evil", "--yes")
    assert (done.exit_code, "cannot be written into a unit" in done.stderr) == (1, True)
    assert list(user.iterdir()) == []


def test_unit_stops_daemon_gracefully_and_allows_fence(run, unit):
    run("setup", "--daemon", "--yes")
    service = read_unit(unit)["Service"]
    assert service["KillMode"] == "mixed"  # Otherwise SIGTERM would end the worker of the running task.
    assert int(service["TimeoutStopSec"]) > 15
    assert (service["UMask"], service["NoNewPrivileges"]) == ("0077", "yes")
    # These would prevent the fence.
    assert not {"SystemCallFilter", "MemoryDenyWriteExecute", "ProcSubset"} & set(service)
    assert not [name for name in service if name.startswith(("Protect", "Private"))]


@pytest.mark.slow
def test_command_of_unit_serves(run, unit, tmp_path):
    run("setup", "--daemon", f"--workspace={tmp_path}", "--yes")
    _, *arguments = shlex.split(read_unit(unit)["Service"]["ExecStart"])
    process = launch(tmp_path, *arguments, "--json")
    result = json.loads(process.stdout.readline())
    process.terminate()
    _, error = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, error
    assert list(result["workspaces"].values()) == [str(tmp_path)]
    assert result["socket"] == str(tmp_path / "home" / "daemon.sock")


def test_systemd_accepts_unit(run, install_program, unit, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    program = tmp_path / "a b" / "muniment"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    home = str(tmp_path / "%h $x")
    install_program(str(program), home=home)
    assert run("setup", "--daemon", "--yes", MUNIMENT_HOME=home).exit_code == 0
    command = ("systemd-analyze", "--user", "--man=no", "verify", unit)
    done = run_command(*command, home=tmp_path, XDG_RUNTIME_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
