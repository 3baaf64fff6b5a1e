"""The deployment examples work as their README describes."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from kit.locations import REPOSITORY
from kit.memories import WORKER_CONFINEMENT
from kit.shell import get_output, run_command

DEPLOY = REPOSITORY / "examples" / "deploy"


def read_instructions():
    """Return the instructions of the Containerfile as name and rest, with continued lines joined."""
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    found = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name, " ".join(rest.split())) for name, _, rest in found]


def find_instruction(wanted, number=None):
    """Return the only instruction with a name, or the one with a number."""
    found = [rest for name, rest in read_instructions() if name == wanted]
    assert number is not None or len(found) == 1
    return found[number or 0]


def read_variables():
    return dict(each.split("=", 1) for each in find_instruction("ENV").split())


@pytest.mark.slow
def test_the_fence_is_the_same_with_no_new_privileges(tmp_path):
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv(1) is not installed")
    command = ("setpriv", "--no-new-privs", "muniment", "remember", "The user prefers dark mode", "--json")
    assert json.loads(get_output(*command, home=tmp_path))["enforcement"] == WORKER_CONFINEMENT


def test_image_has_pinned_base_user_volume_and_minimal_files():
    assert re.fullmatch(r"BASE=docker\.io/library/python:3\.\d+-slim-\w+", find_instruction("ARG", 0))
    assert [rest for name, rest in read_instructions() if name == "FROM"] == ["${BASE} AS build", "${BASE}"]
    assert re.fullmatch(r"(\d{5}):\1", find_instruction("USER"))
    names = [name for name, _ in read_instructions()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert Path(read_variables()["MUNIMENT_HOME"]).is_relative_to(find_instruction("VOLUME"))
    copied = {each for name, rest in read_instructions() if name == "COPY" for each in rest.split()[:-1]}
    assert copied - {"--from=build", "/opt/muniment"} == {
        *("pyproject.toml", "README.md", "LICENSE", "constraints.txt", "policies", "src"),
    }


def test_image_installs_constraints_and_requested_extras(tmp_path):
    _, install = find_instruction("RUN", 0).split(" && ")
    assert "--constraint /src/constraints.txt" in install
    for extras, wanted in (("", "/src"), ("otel", "/src[otel]"), ("mcp,otel", "/src[mcp,otel]")):
        (last,) = shlex.split(install)[-1:]
        assert get_output("/bin/sh", "-c", f'printf %s "{last}"', home=tmp_path, EXTRAS=extras) == wanted


DRIVEN = """
import json, os, subprocess, sys
from pathlib import Path
from muniment.client import Client
where, command, check = json.loads(sys.argv[1])
os.chdir(where)
serving = subprocess.Popen([sys.executable, "-m", *command, "--json"], stdout=subprocess.PIPE)
try:
    result = {"url": json.loads(serving.stdout.readline())["url"], "who": os.getuid()}
    try:
        Path("/muniment-wrote-here").touch()
    except OSError as error:
        result["outside"] = error.strerror
    result["health"] = subprocess.run([sys.executable, *check[1:]]).returncode
    result["enforcement"] = Client().remember("The user prefers dark mode").wait(timeout=60).enforcement
finally:
    serving.terminate()
    ended = serving.wait(30)
print(json.dumps(result | {"ended": ended}))
"""
"""Serves, checks the health of the server, has a fact remembered, and stops the server, in one environment.
"""

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
def test_image_command_serves_unprivileged_on_read_only_root(
    tmp_path,
):
    assert json.loads(find_instruction("ENTRYPOINT")) == ["muniment"]
    command, (user, group) = json.loads(find_instruction("CMD")), find_instruction("USER").split(":")
    # Everything is as shipped, except the two directories that only the image has.
    directories = {"/work": tmp_path / "work", find_instruction("VOLUME"): tmp_path / "volume"}
    for path in directories.values():
        path.mkdir(mode=0o700)

    def map_path(text):
        return next(
            (f"{new}{text[len(old) :]}" for old, new in directories.items() if text.startswith(old)), text
        )

    assert set(directories) <= {each if each in directories else str(Path(each).parent) for each in command}
    check = json.loads(find_instruction("HEALTHCHECK").partition("CMD ")[2])
    driven = json.dumps([map_path(find_instruction("WORKDIR")), ["muniment", *map(map_path, command)], check])
    become = ("unshare", "--user", f"--map-user={user}", f"--map-group={group}")
    outer = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--propagation", "private")
    if run_command(*outer, *become, "setpriv", "--no-new-privs", "true", home=tmp_path).returncode != 0:
        pytest.skip("this system does not permit user namespaces")
    inner = (*become, "setpriv", "--no-new-privs", sys.executable, "-c", DRIVEN, driven)
    whole = (*outer, "sh", "-c", NAMESPACES, "sh", tmp_path, sys.executable, UP, *inner)
    environment = {name: map_path(value) for name, value in read_variables().items() if name != "PATH"}
    result = json.loads(get_output(*whole, home=tmp_path, **environment | {"HOME": str(tmp_path)}))
    assert result == {
        "url": f"http://127.0.0.1:{find_instruction('EXPOSE')}",
        "who": int(user),
        "outside": "Read-only file system",
        "health": 0,
        "enforcement": WORKER_CONFINEMENT,
        "ended": 0,
    }


def test_options_of_image_command_exist(tmp_path):
    options = {each for each in json.loads(find_instruction("CMD")) if each.startswith("--")}
    help_text = get_output("muniment", "serve", "--help", home=tmp_path, COLUMNS="200")
    assert {each for each in options if each not in help_text} == set()
