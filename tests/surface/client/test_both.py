"""Both clients have the same methods, and neither loads dependencies of the daemon."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

from muniment import client
from muniment.client import AsyncClient, AsyncTaskHandle, Client, TaskHandle


def test_both_clients_have_equal_documented_methods():
    for threaded, looped in ((Client, AsyncClient), (TaskHandle, AsyncTaskHandle)):
        methods = [name for name in dir(threaded) if not name.startswith("_")]
        assert methods == [name for name in dir(looped) if not name.startswith("_")]
        for name in methods:
            method, async_method = getattr(threaded, name), getattr(looped, name)
            assert inspect.getdoc(method), name
            assert inspect.getdoc(async_method), name
            parameters = [inspect.signature(each).parameters for each in (method, async_method)]
            assert parameters[0] == parameters[1], name
            is_awaited = inspect.iscoroutinefunction(async_method) or inspect.isasyncgenfunction(async_method)
            assert is_awaited is (name != "handle"), name
    annotations = [inspect.signature(each.remember).return_annotation for each in (Client, AsyncClient)]
    assert annotations == ["TaskHandle[RememberResult]", "AsyncTaskHandle[RememberResult]"]


def test_client_imports_only_allowed_modules():
    for path in Path(client.__file__).parent.glob("*.py"):
        found = re.findall(r"^\s*(?:from|import) (muniment[.\w]*)", path.read_text("utf-8"), re.MULTILINE)
        allowed = r"muniment\.(client|types(\.(documents|arguments))?$|errors$|files$|names$|portable$)"
        assert all(re.match(allowed, name) for name in found), path


def test_client_loads_no_model_database_or_server():
    heavy = ("openai", "pydantic", "sqlite3", "starlette", "uvicorn", "structlog")
    heavy += ("muniment.api", "muniment.server")
    code = f"import sys, muniment.client; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
