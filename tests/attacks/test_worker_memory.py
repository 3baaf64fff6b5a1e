"""What a worker holds of the broker's memory: nothing, before any fence is up (`confine/zygote.py`, Z1)."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys

import pytest

from kit.where import TESTS

BROKER = TESTS / "kit" / "confine" / "broker_with_keys.py"
PLACES = ("argument", "environment", "set later", "heap")


@pytest.fixture(scope="module")
def found():
    """Where a broker found each of its keys."""
    keys = {place: f"sk-{secrets.token_hex(32)}" for place in PLACES}
    environment = {"PATH": os.environ["PATH"], "MUNIMENT_API_KEY": keys["environment"]}
    done = subprocess.run(
        [sys.executable, str(BROKER), keys["argument"]],
        env=environment,
        input=f"{keys['set later']}\n{keys['heap']}\n",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=50,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("place", PLACES)
def test_no_key_of_the_broker_is_anywhere_in_a_worker_that_is_not_fenced_yet(found, place):
    assert found["worker"][place] == []


def test_the_whole_memory_of_the_worker_was_searched(found):
    assert {"[heap]", "[stack]", "anonymous"} <= set(found["worker"]["names"])
    assert set(found["worker"]["unread"]) <= {"[vvar]", "[vvar_vclock]", "[vsyscall]"}


@pytest.mark.skipif(os.geteuid() != 0, reason="another process's memory is root's to read")
@pytest.mark.parametrize("place", PLACES)
def test_no_key_of_the_broker_is_anywhere_in_the_zygote(found, place):
    assert {"[stack]", "environ", "cmdline", "auxv"} <= set(found["zygote"]["names"])
    assert found["zygote"][place] == []


@pytest.mark.parametrize("place", PLACES)
def test_the_same_search_finds_every_key_in_a_plain_fork_that_cleared_its_environment(found, place):
    assert found["fork"][place] != []


@pytest.mark.parametrize("place", ["argument", "environment"])
def test_clearing_the_environment_leaves_the_initial_stack_as_it_was(found, place):
    assert "[stack]" in found["fork"][place]
