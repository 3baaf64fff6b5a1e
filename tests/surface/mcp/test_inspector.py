"""The inspector's command line, from npm, against both transports in both eras.

Needs Node and an unpacked `@modelcontextprotocol/inspector` (`npm install` in a directory) that the variable
`MUNIMENT_INSPECTOR` names; otherwise the tests are skipped. Uses no network except loopback.
"""

from __future__ import annotations

import shutil

import pytest

from kit.mcp import INSPECTOR, PROGRAM, inspector
from kit.server.process import serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSPECTOR, reason="MUNIMENT_INSPECTOR names no unpacked inspector"),
    pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed"),
]

ERAS = ("legacy", "modern")


@pytest.fixture(params=["stdio", "http"])
def run_inspector(request, tmp_path):
    """Return a function that runs a method in the inspector and returns (exit code, document)."""
    if request.param == "stdio":
        (tmp_path / "work" / ".git").mkdir(parents=True)
        home = f"MUNIMENT_HOME={tmp_path / 'home'}"
        target = ("--", *PROGRAM, f"--workspace={tmp_path / 'work'}")
        yield lambda *flags: inspector("-e", home, *flags, *target, home=tmp_path)
    else:
        with serving(tmp_path) as daemon:
            token = ("--header", f"Authorization: Bearer {daemon.token}", "--stored-auth-only")
            target = (f"{daemon.url}/mcp", "--transport", "http", *token)
            yield lambda *flags: inspector(*target, *flags, home=tmp_path)


@pytest.mark.parametrize("era", ERAS)
def test_inspector_uses_all_tools_resources_and_prompts(run_inspector, era):
    def run_method(method, *flags):
        code, document = run_inspector("--protocol-era", era, "--method", method, *flags)
        assert code == 0, document
        return document["result"]

    def call(tool, **arguments):
        arg_flags = [f"--tool-arg={name}={value}" for name, value in arguments.items()]
        return run_method("tools/call", "--tool-name", tool, *arg_flags)

    assert len(run_method("tools/list", "--strict")["tools"]) == 6
    done = call("remember", content="The user keeps a goat")["structuredContent"]
    (path,) = done["paths"]
    assert "goat" in call("recall", query="goat")["structuredContent"]["text"]
    assert "goat" in call("show", path=path)["content"][0]["text"]
    assert call("history", path=path)["structuredContent"]["steps"]
    preview = call("forget", description="goat")["structuredContent"]
    forgotten = call("forget", description="goat", yes="true", digest=preview["digest"])["structuredContent"]
    assert forgotten["paths"] == [path]
    assert call("undo", task_id=forgotten["task_id"])["structuredContent"]["paths"] == [path]
    assert f"muniment://{path}" in [each["uri"] for each in run_method("resources/list")["resources"]]
    assert "goat" in run_method("resources/read", "--uri", f"muniment://{path}")["contents"][0]["text"]
    assert run_method("resources/templates/list")["resourceTemplates"]
    (prompt,) = run_method("prompts/list")["prompts"]
    text = run_method("prompts/get", "--prompt-name", prompt["name"], "--prompt-args", "topic=goat")
    assert "goat" in text["messages"][0]["content"]["text"]


def test_inspector_receives_errors(run_inspector):
    code, document = run_inspector("--method", "tools/call", "--tool-name", "recall", "--tool-arg", "limit=0")
    assert (code, document["result"]["isError"]) == (0, True) or code == 5, document
    code, document = run_inspector("--method", "resources/read", "--uri", "file:///etc/passwd")
    assert (code, document["error"]["code"] if "error" in document else None) != (0, None)
