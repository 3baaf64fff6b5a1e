"""Programs in separate processes: some die, some run concurrently."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from kit.where import TESTS

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS)}
KILLED = 9


def program(source, *arguments):
    """Run a program to its end."""
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120)


def at_once(*commands):
    """Start programs at the same time: each prints `ready` and waits for a line. Return the JSON outputs."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    running = [
        subprocess.Popen([sys.executable, "-c", *map(str, command)], env=ENVIRONMENT, text=True, **pipes)
        for command in commands
    ]
    try:
        assert [each.stdout.readline() for each in running] == ["ready\n"] * len(running)
        for each in running:
            each.stdin.write("go\n")
            each.stdin.flush()
        printed = [each.communicate(timeout=280) for each in running]
    finally:
        for each in running:
            each.kill()
            each.communicate()
    assert [each.returncode for each in running] == [0] * len(running), printed
    return [json.loads(output) for output, _ in printed]


def die(*_arguments, **_more):
    os.kill(os.getpid(), KILLED)


def killed(body):
    """Run `body` in a fork of this process, which must be killed by it."""
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -KILLED
