"""The examples of deployment are what their README says was tried."""

import json
import re
import shlex
import shutil
import stat
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from kit.cli.launched import SECONDS, launch
from kit.memories import IN_A_WORKER
from kit.shell import PROGRAMS, printed, run
from kit.where import REPOSITORY

DEPLOY = REPOSITORY / "examples" / "deploy"
UNIT = DEPLOY / "muniment.service"


def unit():
    """The sections of the unit: its keys, with what they say."""
    parser = ConfigParser(interpolation=None, comment_prefixes=("#",), delimiters=("=",), strict=True)
    parser.optionxform = str
    parser.read_string(UNIT.read_text())
    return {name: dict(section) for name, section in parser.items() if name != "DEFAULT"}


def instructions():
    """The instructions of the Containerfile: name and rest, continued lines joined."""
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    found = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name, " ".join(rest.split())) for name, _, rest in found]


def instruction(wanted):
    (found,) = (rest for name, rest in instructions() if name == wanted)
    return found


@pytest.fixture
def serve(tmp_path):
    """Serves with a command line until the test ends: what it said; it ends with 0."""
    running = []

    def serve(arguments):
        process = launch(tmp_path, *arguments, "--json")
        running.append(process)
        return json.loads(process.stdout.readline())

    yield serve
    for process in running:
        process.terminate()
        _, err = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, err


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    # It looks for the program; everything else is as it is shipped.
    text = UNIT.read_text().replace("%h/.local/bin/muniment", str(PROGRAMS / "muniment"))
    (tmp_path / UNIT.name).write_text(text)
    command = ("systemd-analyze", "--user", "--man=no", "verify", tmp_path / UNIT.name)
    done = run(*command, home=tmp_path, XDG_RUNTIME_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_stops_the_daemon_as_it_wants_to_be_stopped_and_lets_it_build_the_fence():
    service = unit()["Service"]
    assert service["KillMode"] == "mixed"  # Else SIGTERM would end the running task's worker.
    assert int(service["TimeoutStopSec"]) > 15
    assert service["UMask"] == "0077"
    assert not {"SystemCallFilter", "MemoryDenyWriteExecute", "ProcSubset"} & set(service)  # They take it.
    assert not [name for name in service if name.startswith(("Protect", "Private"))]
    assert service["NoNewPrivileges"] == "yes"


@pytest.mark.slow
def test_the_command_of_the_unit_serves(serve, tmp_path):
    (tmp_path / "project").mkdir()
    command = unit()["Service"]["ExecStart"].replace("%h", str(tmp_path)).replace("%t", str(tmp_path))
    program, *arguments = shlex.split(command)
    assert program == f"{tmp_path}/.local/bin/muniment"
    told = serve(arguments)
    assert list(told["workspaces"].values()) == [f"{tmp_path}/project"]
    assert stat.S_ISSOCK((tmp_path / "muniment.sock").stat().st_mode)


@pytest.mark.slow
def test_the_fence_is_the_same_with_no_new_privileges(tmp_path):
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv(1)")
    command = ("setpriv", "--no-new-privs", "muniment", "remember", "The user prefers dark mode", "--json")
    assert json.loads(printed(*command, home=tmp_path))["enforcement"] == IN_A_WORKER


def test_the_image_has_a_tag_a_user_of_its_own_and_its_memory_in_a_volume():
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+-slim-\w+", instruction("FROM"))
    assert int(instruction("USER")) > 0
    home = re.fullmatch("MUNIMENT_HOME=(.*)", instruction("ENV"))[1]
    assert Path(home).is_relative_to(instruction("VOLUME"))
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")


@pytest.mark.slow
def test_the_command_of_the_image_serves_and_its_health_check_passes(serve, tmp_path):
    assert json.loads(instruction("ENTRYPOINT")) == ["muniment"]
    command = json.loads(instruction("CMD"))
    # What is only there in the image, and a port that may be taken here.
    here = {"/work": str(tmp_path / "work"), "0.0.0.0": "127.0.0.1", instruction("EXPOSE"): "0"}
    assert set(here) <= set(command)
    socket = command[command.index("--socket") + 1]
    assert Path(socket).is_relative_to(instruction("VOLUME"))
    serve([{**here, socket: str(tmp_path / "d.sock")}.get(each, each) for each in command])
    check = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    assert check[0] == "python"
    for home, code in (("home", 0), ("nobody", 1)):
        printed(sys.executable, *check[1:], home=tmp_path, code=code, MUNIMENT_HOME=str(tmp_path / home))
