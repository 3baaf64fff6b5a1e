"""A real model, where the environment names a server: every fact is filed, or ends in a clean error.

    export MUNIMENT_TEST_BASE_URL=http://127.0.0.1:8080/v1 MUNIMENT_TEST_MODEL=qwen3-4b
    pytest tests/units/operations/test_live_model.py -s

`MUNIMENT_TEST_PROTOCOL` and `MUNIMENT_TEST_API_KEY_FILE` may say more. It is `examples/live_model.py` that is
run, so that whoever has a server sees the same table.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from kit.agent.served_minds import noise, through
from kit.where import REPOSITORY
from muniment.testing.chat_server import ChatServer

URL, MODEL = os.environ.get("MUNIMENT_TEST_BASE_URL"), os.environ.get("MUNIMENT_TEST_MODEL")
ROW = re.compile(r" *(\d+)  +(\d+)/(\d+)  +([\d.]+)  +(\d+)  (?P<outcome>.+)")
CLEAN = re.compile(r"remember_(?:refused|no_update|failed|timeout|path_escape|scope_mismatch): ")


def table(tmp_path, url, model, *more):
    """The example's rows as matches, and its last line; it fails where no fact is filed at all."""
    command = [sys.executable, REPOSITORY / "examples" / "live_model.py", url, model, *more]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    sys.stdout.write(done.stdout)
    _, *rows, last = done.stdout.splitlines()
    return [ROW.fullmatch(row) for row in rows], last


@pytest.mark.skipif(not (URL and MODEL), reason="set MUNIMENT_TEST_BASE_URL and MUNIMENT_TEST_MODEL")
@pytest.mark.timeout(3600)
def test_a_live_model_files_every_fact_or_ends_in_a_clean_error(tmp_path):
    more = ["--protocol", os.environ.get("MUNIMENT_TEST_PROTOCOL", "auto")]
    if key_file := os.environ.get("MUNIMENT_TEST_API_KEY_FILE"):
        more += ["--api-key-file", key_file]
    rows, last = table(tmp_path, URL, MODEL, *more)
    assert len(rows) >= 10
    failed = [row["outcome"] for row in rows if re.match(r"[a-z_]+: ", row["outcome"])]
    assert all(CLEAN.match(outcome) for outcome in failed)
    assert last.startswith(f"{len(rows) - len(failed)} of {len(rows)} filed, ")


@pytest.mark.slow
def test_the_live_test_tells_what_is_malformed(tmp_path):
    with ChatServer(through(noise(7))) as server:
        rows, last = table(tmp_path, server.base_url, "noise", "--protocol", "tools")
    assert last.startswith("0 of 12 filed")
    assert all(CLEAN.match(row["outcome"]) for row in rows)
