"""The inspector's command line, from npm, against both transports in both eras.

It needs Node and an unpacked `@modelcontextprotocol/inspector` (`npm install` in some directory), which the
variable `MUNIMENT_INSPECTOR` names; without them this is skipped. It asks no network but the loopback.
"""

from __future__ import annotations

import shutil

import pytest

from kit.mcp import INSPECTOR, PROGRAM, inspector
from kit.server.process import serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSPECTOR, reason="MUNIMENT_INSPECTOR names no unpacked inspector"),
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here"),
]

ERAS = ("legacy", "modern")


@pytest.fixture(params=["stdio", "http"])
def ask(request, tmp_path):
    """What the inspector says to a method, as (exit code, document)."""
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
def test_it_lists_calls_reads_and_gets_all_that_there_is(ask, era):
    def result(method, *flags):
        code, document = ask("--protocol-era", era, "--method", method, *flags)
        assert code == 0, document
        return document["result"]

    def call(tool, **arguments):
        given = [f"--tool-arg={name}={value}" for name, value in arguments.items()]
        return result("tools/call", "--tool-name", tool, *given)

    assert len(result("tools/list", "--strict")["tools"]) == 6
    done = call("remember", content="The user keeps a goat")["structuredContent"]
    (path,) = done["paths"]
    assert "goat" in call("recall", query="goat")["structuredContent"]["text"]
    assert "goat" in call("show", path=path)["content"][0]["text"]
    assert call("history", path=path)["structuredContent"]["steps"]
    preview = call("forget", description="goat")["structuredContent"]
    gone = call("forget", description="goat", yes="true", digest=preview["digest"])["structuredContent"]
    assert gone["paths"] == [path]
    assert call("undo", task_id=gone["task_id"])["structuredContent"]["paths"] == [path]
    assert f"muniment://{path}" in [each["uri"] for each in result("resources/list")["resources"]]
    assert "goat" in result("resources/read", "--uri", f"muniment://{path}")["contents"][0]["text"]
    assert result("resources/templates/list")["resourceTemplates"]
    (prompt,) = result("prompts/list")["prompts"]
    text = result("prompts/get", "--prompt-name", prompt["name"], "--prompt-args", "topic=goat")
    assert "goat" in text["messages"][0]["content"]["text"]


def test_it_is_told_of_what_cannot_be(ask):
    code, document = ask("--method", "tools/call", "--tool-name", "recall", "--tool-arg", "limit=0")
    assert (code, document["result"]["isError"]) == (0, True) or code == 5, document
    code, document = ask("--method", "resources/read", "--uri", "file:///etc/passwd")
    assert (code, document["error"]["code"] if "error" in document else None) != (0, None)
