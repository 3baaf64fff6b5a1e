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
NOWHERE: dict[str, list[str]] = {place: [] for place in PLACES}


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


def test_no_key_of_the_broker_is_anywhere_in_a_worker_that_is_not_fenced_yet_or_in_the_zygote(found):
    assert {place: found["worker"][place] for place in PLACES} == NOWHERE
    assert {"[heap]", "[stack]", "anonymous"} <= set(found["worker"]["names"])
    assert set(found["worker"]["unread"]) <= {"[vvar]", "[vvar_vclock]", "[vsyscall]"}
    assert {place: found["zygote"][place] for place in PLACES} == NOWHERE
    if os.geteuid() == 0:  # Another process's memory is root's to read.
        assert {"[stack]", "environ", "cmdline", "auxv"} <= set(found["zygote"]["names"])


def test_the_same_search_finds_every_key_in_a_plain_fork_that_cleared_its_environment(found):
    assert all(found["fork"][place] for place in PLACES)
    # That leaves the initial stack as it was.
    assert all("[stack]" in found["fork"][place] for place in ("argument", "environment"))
