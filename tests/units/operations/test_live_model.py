"""A real model, if the environment names a server: every fact is filed, or ends in a clean error.

    export MUNIMENT_TEST_BASE_URL=http://127.0.0.1:8080/v1 MUNIMENT_TEST_MODEL=qwen3-4b
    pytest tests/units/operations/test_live_model.py -s

Optional: `MUNIMENT_TEST_PROTOCOL` and `MUNIMENT_TEST_API_KEY_FILE`. The test runs `examples/live_model.py`,
    so
that you can see the same table with your server.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from kit.agent.simulated_models import build_answerer, make_random_behavior
from kit.locations import REPOSITORY
from muniment.testing.chat_server import ChatServer

URL, MODEL = os.environ.get("MUNIMENT_TEST_BASE_URL"), os.environ.get("MUNIMENT_TEST_MODEL")
ROW = re.compile(r" *(\d+)  +(\d+)/(\d+)  +([\d.]+)  +(\d+)  (?P<outcome>.+)")
CLEAN = re.compile(r"remember_(?:refused|no_update|failed|timeout|path_escape|scope_mismatch): ")


def run_example(tmp_path, url, model, *options):
    """Return the rows of the example as matches, and its last line."""
    command = [sys.executable, REPOSITORY / "examples" / "live_model.py", url, model, *options]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    sys.stdout.write(done.stdout)
    _, *rows, last = done.stdout.splitlines()
    return [ROW.fullmatch(row) for row in rows], last


@pytest.mark.skipif(not (URL and MODEL), reason="set MUNIMENT_TEST_BASE_URL and MUNIMENT_TEST_MODEL")
@pytest.mark.timeout(3600)
def test_live_model_files_facts_or_ends_in_clean_error(tmp_path):
    options = ["--protocol", os.environ.get("MUNIMENT_TEST_PROTOCOL", "auto")]
    if key_file := os.environ.get("MUNIMENT_TEST_API_KEY_FILE"):
        options += ["--api-key-file", key_file]
    rows, last = run_example(tmp_path, URL, MODEL, *options)
    assert len(rows) >= 10
    failed = [row["outcome"] for row in rows if re.match(r"[a-z_]+: ", row["outcome"])]
    assert all(CLEAN.match(outcome) for outcome in failed)
    assert last.startswith(f"{len(rows) - len(failed)} of {len(rows)} filed, ")


@pytest.mark.slow
def test_live_test_reports_malformed_output(tmp_path):
    with ChatServer(build_answerer(make_random_behavior(7))) as server:
        rows, last = run_example(tmp_path, server.base_url, "noise", "--protocol", "tools")
    assert last.startswith("0 of 12 filed")
    assert all(CLEAN.match(row["outcome"]) for row in rows)
