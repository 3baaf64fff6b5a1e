"""A program that only talks to a daemon loads nothing of what a daemon needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import muniment.client

FILES = sorted(Path(muniment.client.__file__).parent.glob("*.py"))
ALLOWED = {"muniment.client", "muniment.errors", "muniment.names"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_client_imports_itself_names_and_errors_alone(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "muniment":
            assert node.module in ALLOWED or node.module.startswith("muniment.client."), node.module
        elif isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] != "muniment" for alias in node.names)


def test_it_loads_no_model_no_database_and_no_server():
    heavy = (
        "openai",
        "pydantic",
        "sqlite3",
        "starlette",
        "uvicorn",
        "structlog",
        "muniment.api",
        "muniment.daemon",
    )
    code = f"import sys, muniment.client; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
