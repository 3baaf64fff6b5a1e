"""The client for threads is the one for asyncio, word for word; and neither loads what a daemon needs."""

from __future__ import annotations

import re
import subprocess
import sys

from kit.client.twin import COMMAND, SYNC, written


def test_the_client_for_threads_is_up_to_date():
    is_current = SYNC.read_text(encoding="utf-8") == written()
    assert is_current, f"client/sync.py is not what client/aio.py says; run: {COMMAND}"


def test_a_client_imports_itself_names_errors_files_and_what_tells_systems_apart_alone():
    for path in SYNC.parent.glob("*.py"):
        found = re.findall(r"^\s*(?:from|import) (muniment[.\w]*)", path.read_text("utf-8"), re.MULTILINE)
        allowed = re.compile(r"muniment\.(client|errors$|files$|names$|portable$)")
        assert all(map(allowed.match, found)), path


def test_a_client_loads_no_model_no_database_and_no_server():
    heavy = ("openai", "pydantic", "sqlite3", "starlette", "uvicorn", "structlog")
    heavy += ("muniment.api", "muniment.daemon")
    code = f"import sys, muniment.client; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
