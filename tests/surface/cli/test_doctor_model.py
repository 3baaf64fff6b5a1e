"""`muniment doctor --model`: what a server can do, said so that a person knows what to configure."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from kit.agent.servers import KEY, form_of
from muniment.agent.openai import FormFinding, Probe
from muniment.cli import doctor as command
from muniment.cli.app import app
from muniment.testing.chat_server import (
    NO_RESPONSE_FORMAT,
    NO_TOOLS,
    ChatServer,
    always,
    failure,
    raw,
    tool_call,
    tool_calls,
    words,
)
from muniment.testing.minds import perfect, through

LS = tool_calls(tool_call("ls", {"path": "user"}))
ACTION = words('{"action": "ls", "path": "user"}')
DECISION = words('{"title": "Dark mode", "scope": "user", "type": "user", "file": "editor/dark-mode"}')
PROSE = words("You would list the scope user.")


@pytest.fixture
def doctor(tmp_path):
    """Examines a server that answers so."""

    def run(answer, *flags, **environment):
        with ChatServer(answer) as server:
            env = {"MUNIMENT_HOME": str(tmp_path / "home"), **environment}
            named = ["--model", "tiny", "--base-url", server.base_url]
            done = CliRunner().invoke(app, ["doctor", *named, *flags], env=env)
        assert not (tmp_path / "home").exists()
        return done, server

    return run


def by_form(**answers):
    return lambda request: answers[form_of(request)]


def lines(done):
    return [re.sub(r"\d+\.\d\d s(  \d+\.\d tokens/s)?", "T", line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("protocol", ["auto", "decide"])
def test_a_perfect_model_passes(doctor, protocol):
    done, _ = doctor(through(perfect), "--protocol", protocol)
    assert done.exit_code == 0
    assert "yes" in done.stdout
    assert "no " not in done.stdout


def test_one_without_tools_is_used_by_actions(doctor):
    done, server = doctor(by_form(tools=NO_TOOLS["ollama"], json=ACTION, text=ACTION))
    assert done.exit_code == 0
    assert lines(done)[1].startswith("  tools no         T  the server answered 400: ")
    assert lines(done)[-2:] == [
        "a run will use json",
        "--protocol json spares each run a request that is refused",
    ]
    assert len(server.requests) == 3


def test_one_that_ignores_tools_is_found_out_and_what_is_better_is_said(doctor):
    done, _ = doctor(by_form(tools=PROSE, json=ACTION, text=PROSE))
    assert done.exit_code == 1
    assert lines(done)[-2:] == [
        "a run will use tools",
        "the model does not act in the form tools; run it with --protocol json",
    ]


def test_a_model_that_does_not_act_at_all(doctor):
    done, _ = doctor(always(PROSE))
    assert done.exit_code == 1
    told = "the model did not act in any form that was tried; a larger one may, or --protocol decide"
    assert lines(done)[-1] == told


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_refused_key_ends_it_after_one_request(doctor, flags):
    done, server = doctor(always(failure(401, f"bad {KEY}")), *flags, MUNIMENT_API_KEY=KEY)
    assert done.exit_code == 1
    assert "the server refused the key (401)" in done.stdout
    assert "as it is now, no run can use this model" in done.stdout
    assert KEY not in done.output
    assert len(server.requests) == 1


def test_deciding_is_examined_by_a_decision(doctor):
    done, server = doctor(by_form(json=NO_RESPONSE_FORMAT["openai"], text=DECISION), "--protocol", "decide")
    assert done.exit_code == 0
    assert lines(done)[-1] == "a run will use text for its decision"
    assert len(server.requests) == 2


def test_one_protocol_is_examined_alone(doctor):
    done, server = doctor(always(LS), "--protocol", "tools")
    assert done.exit_code == 0
    assert len(server.requests) == 1


def test_a_server_that_does_not_answer_in_time(doctor, monkeypatch):
    monkeypatch.setattr(command, "PROBE_SECONDS", 0.2)
    done, server = doctor(always(raw(60.0)))
    assert done.exit_code == 1
    assert done.stdout.count("no answer in time") == 3
    assert "the model was slow" in lines(done)[-1]
    assert "no run can use" not in done.stdout
    assert len(server.requests) == 3


@pytest.mark.slow
def test_behind_a_slow_answer_the_next_form_is_tried_and_speed_is_told(doctor, monkeypatch):
    monkeypatch.setattr(command, "PROBE_SECONDS", 1.0)
    done, _ = doctor(by_form(tools=raw(60.0), json=ACTION, text=ACTION), "--json")
    found = json.loads(done.stdout)
    assert [each["verdict"] for each in found["forms"]] == ["slow", "yes", "yes"]
    assert found["forms"][1]["tokens_per_second"] > 0
    assert "run it with --protocol json" in found["advice"][0]


def test_the_rules_need_no_server(tmp_path):
    rules = ["doctor", "--model", "rules"]
    done = CliRunner().invoke(app, rules, env={"MUNIMENT_HOME": str(tmp_path)})
    assert (done.exit_code, done.stdout) == (
        0,
        "rules: the embedded writer needs no server; name a language model with --model\n",
    )
    done = CliRunner().invoke(app, [*rules, "--json"], env={"MUNIMENT_HOME": str(tmp_path)})
    assert json.loads(done.stdout)["forms"] == []


def test_a_policy_has_nothing_to_do_with_a_model():
    done = CliRunner().invoke(app, ["doctor", "--model", "rules", "--policy", "strict"])
    assert done.exit_code == 2
    assert "examine a model without it" in done.output


def test_what_is_misconfigured_is_said(tmp_path):
    done = CliRunner().invoke(app, ["doctor", "--model", "tiny"], env={"MUNIMENT_HOME": str(tmp_path)})
    assert done.exit_code == 1
    assert "needs a server" in done.output


@pytest.mark.parametrize(
    ("url", "key", "told"),
    [
        ("http://192.0.2.1/v1", KEY, "the key and the memory will travel unencrypted to 192.0.2.1"),
        ("http://127.evil.example/v1", "", "the memory will travel unencrypted to 127.evil.example"),
        ("http://models.example/v1", "", "the memory will travel unencrypted to models.example"),
        ("https://models.example/v1", KEY, None),
        ("http://127.0.0.7:1/v1", KEY, None),
        ("http://[::1]:1/v1", KEY, None),
    ],
)
def test_what_travels_in_the_clear_is_said(tmp_path, monkeypatch, url, key, told):
    monkeypatch.setattr(command, "probe", lambda *_: probe_of_nothing())
    flags = ["--model", "tiny", "--base-url", url]
    environment = {"MUNIMENT_HOME": str(tmp_path), "MUNIMENT_API_KEY": key}
    output = CliRunner().invoke(app, ["doctor", *flags], env=environment).stdout
    assert ("unencrypted" in output) == (told is not None)
    assert told is None or told in output


def probe_of_nothing():
    return Probe((FormFinding("tools", "yes", "", 0.1),), "tools", None)
