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


def instruction(wanted, number=None):
    """The one instruction of a name, or of several that with a number."""
    found = [rest for name, rest in instructions() if name == wanted]
    assert number is not None or len(found) == 1
    return found[number or 0]


def variables():
    return dict(each.split("=", 1) for each in instruction("ENV").split())


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


def test_the_image_has_a_tag_a_user_of_its_own_its_memory_in_a_volume_and_no_more_than_the_package():
    assert re.fullmatch(r"BASE=docker\.io/library/python:3\.\d+-slim-\w+", instruction("ARG", 0))
    assert [rest for name, rest in instructions() if name == "FROM"] == ["${BASE} AS build", "${BASE}"]
    assert re.fullmatch(r"(\d{5}):\1", instruction("USER"))
    names = [name for name, _ in instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert Path(variables()["MUNIMENT_HOME"]).is_relative_to(instruction("VOLUME"))
    copied = {each for name, rest in instructions() if name == "COPY" for each in rest.split()[:-1]}
    assert copied - {"--from=build", "/opt/muniment"} == {
        *("pyproject.toml", "README.md", "LICENSE", "constraints.txt", "policies", "src"),
    }


def test_the_image_installs_what_constraints_pin_and_the_extras_that_are_asked_for(tmp_path):
    _, install = instruction("RUN", 0).split(" && ")
    assert "--constraint /src/constraints.txt" in install
    for extras, wanted in (("", "/src"), ("otel", "/src[otel]"), ("mcp,otel", "/src[mcp,otel]")):
        (last,) = shlex.split(install)[-1:]
        assert printed("/bin/sh", "-c", f'printf %s "{last}"', home=tmp_path, EXTRAS=extras) == wanted


DRIVEN = """
import json, os, subprocess, sys
from pathlib import Path
from muniment.client import Client
where, command, check = json.loads(sys.argv[1])
os.chdir(where)
serving = subprocess.Popen([sys.executable, "-m", *command, "--json"], stdout=subprocess.PIPE)
try:
    told = {"url": json.loads(serving.stdout.readline())["url"], "who": os.getuid()}
    try:
        Path("/muniment-wrote-here").touch()
    except OSError as error:
        told["outside"] = error.strerror
    told["health"] = subprocess.run([sys.executable, *check[1:]]).returncode
    told["enforcement"] = Client().remember("The user prefers dark mode").wait(timeout=60).enforcement
finally:
    serving.terminate()
    ended = serving.wait(30)
print(json.dumps(told | {"ended": ended}))
"""
"""Serves, looks at the health of it, has a fact remembered, and stops it, all where it itself runs."""

UP = """
import fcntl, socket, struct
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sh14x", b"lo", 0x49))
"""
"""The loopback of a new network namespace is down; netdevice(7), SIOCSIFFLAGS."""

NAMESPACES = """
mount --bind "$1" "$1" && mount -o remount,bind,ro / && "$2" -c "$3" && shift 3 && exec "$@"
"""


@pytest.mark.slow
def test_the_command_of_the_image_serves_as_its_user_without_privileges_over_a_root_that_nobody_writes(
    tmp_path,
):
    assert json.loads(instruction("ENTRYPOINT")) == ["muniment"]
    command, (user, group) = json.loads(instruction("CMD")), instruction("USER").split(":")
    # All as it stands, but for the two directories that only the image has.
    places = {"/work": tmp_path / "work", instruction("VOLUME"): tmp_path / "volume"}
    for path in places.values():
        path.mkdir(mode=0o700)

    def here(text):
        return next((f"{new}{text[len(old) :]}" for old, new in places.items() if text.startswith(old)), text)

    assert set(places) <= {each if each in places else str(Path(each).parent) for each in command}
    check = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    driven = json.dumps([here(instruction("WORKDIR")), ["muniment", *map(here, command)], check])
    become = ("unshare", "--user", f"--map-user={user}", f"--map-group={group}")
    outer = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--propagation", "private")
    if run(*outer, *become, "setpriv", "--no-new-privs", "true", home=tmp_path).returncode != 0:
        pytest.skip("this system gives no namespaces to whoever runs the tests")
    inner = (*become, "setpriv", "--no-new-privs", sys.executable, "-c", DRIVEN, driven)
    whole = (*outer, "sh", "-c", NAMESPACES, "sh", tmp_path, sys.executable, UP, *inner)
    environment = {name: here(value) for name, value in variables().items() if name != "PATH"}
    told = json.loads(printed(*whole, home=tmp_path, **environment | {"HOME": str(tmp_path)}))
    assert told == {
        "url": f"http://127.0.0.1:{instruction('EXPOSE')}",
        "who": int(user),
        "outside": "Read-only file system",
        "health": 0,
        "enforcement": IN_A_WORKER,
        "ended": 0,
    }


def test_every_option_of_the_images_command_is_one_of_the_command(tmp_path):
    options = {each for each in json.loads(instruction("CMD")) if each.startswith("--")}
    said = printed("muniment", "serve", "--help", home=tmp_path, COLUMNS="200")
    assert {each for each in options if each not in said} == set()
