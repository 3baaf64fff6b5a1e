"""What the README says of the daemon is what happens: its commands, their output, and the client."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import muniment
from kit.cli.launched import launch
from kit.daemon.process import serving
from kit.where import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
SECTION = README.split("## As a daemon\n")[1].split("\n## ")[0]
SERVES, ASKS = re.findall(r"```console\n(.*?)```", SECTION, re.DOTALL)
URL = "http://127.0.0.1:8421"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("readme")) as daemon:
        yield daemon


def environment(daemon):
    return {
        "PATH": "/usr/bin:/bin",
        "MUNIMENT_HOME": str(daemon.home),
        "PYTHONPATH": str(Path(muniment.__file__).parents[1]),
    }


@pytest.mark.slow
def test_curl_is_answered_as_shown(daemon):
    script = ASKS.replace(URL, daemon.url).replace("~/.muniment", str(daemon.home))
    lines = script.splitlines()
    token, first, queued, second, completed = lines
    queued, completed = json.loads(queued), json.loads(completed)

    def answer(*commands):
        text = "\n".join(command.removeprefix("$ ") for command in commands)
        done = subprocess.run(
            ["/bin/sh", "-c", text],
            capture_output=True,
            text=True,
            check=True,
            env={"PATH": os.environ["PATH"]},
            timeout=60,
        )
        return json.loads(done.stdout)

    accepted = answer(token, first)
    assert list(accepted) == list(queued)
    assert accepted["status"] in {"queued", "running"}
    over = answer(token, second.replace(queued["taskId"], accepted["taskId"]))
    assert list(over) == list(completed)
    changing = {"taskId": accepted["taskId"], "createdAt": over["createdAt"], "updatedAt": over["updatedAt"]}
    completed |= changing
    completed["result"]["enforcement"] = over["result"]["enforcement"]
    assert over == completed


def test_the_start_says_what_is_shown(tmp_path):
    command, *shown = SERVES.splitlines()
    assert command == f"$ muniment serve --port {URL.rpartition(':')[2]}"
    process = launch(tmp_path, "serve")
    said = [process.stdout.readline().decode().rstrip("\n") for _ in shown]
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
    here = [
        re.sub(r"http://127\.0\.0\.1:\d+", URL, line)
        .replace(f"{tmp_path}/home", "/home/me/.muniment")
        .replace(f"{tmp_path}/work", "/home/me/project")
        for line in said
    ]
    assert here == shown


@pytest.mark.slow
def test_the_client_of_the_readme_runs(daemon):
    (snippet,) = re.findall(r"```py\n(.*?)```", SECTION, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        capture_output=True,
        text=True,
        check=True,
        cwd=daemon.work,
        env=environment(daemon),
        timeout=60,
    )
    assert done.stdout == "('project/team/code-review-takes-place-within-a-day.md',)\n"
