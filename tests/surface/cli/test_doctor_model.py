"""`muniment doctor --model`: the abilities of a server and how to configure it."""

import json
import re

import pytest

from kit.agent import misbehaviours
from kit.agent.servers import KEY, detect_form
from kit.agent.simulated_models import build_answerer, remember_fact
from muniment.agent.openai import FormFinding, Probe
from muniment.cli import doctor as command
from muniment.testing import chat_server as server
from muniment.testing.chat_server import (
    error_response,
    make_tool_call,
    repeat_responder,
    send_raw,
    text_response,
    tool_calls_response,
)

LS = tool_calls_response(make_tool_call("ls", {"path": "user"}))
ACTION = text_response('{"action": "ls", "path": "user"}')
DECISION = text_response(
    '{"title": "Dark mode", "scope": "user", "type": "user", "file": "editor/dark-mode"}'
)
PROSE = text_response("You would list the scope user.")


@pytest.fixture
def doctor(cli, home):
    """Examine a server that answers with `answer`; return the output without times, and the request count."""

    def run(answer, *flags, code=0, **environment):
        with server.ChatServer(answer) as chat_server:
            arguments = ("doctor", "--model", "tiny", "--base-url", chat_server.base_url)
            lines = cli.run_for_lines(*arguments, *flags, code=code, **environment)
        assert not home.exists()
        output = [re.sub(r"\d+\.\d\d s(  \d+\.\d tokens/s)?", "T", line) for line in lines]
        return output, len(chat_server.requests)

    return run


def answer_by_form(**answers):
    return lambda request: answers[detect_form(request)]


def test_doctor_passes_perfect_model(doctor):
    for protocol in ("auto", "decide"):
        output = " ".join(doctor(build_answerer(remember_fact), "--protocol", protocol)[0])
        assert ("yes" in output, "no " in output) == (True, False)


def test_doctor_names_used_form_and_better_form(doctor):
    lines, request_count = doctor(
        answer_by_form(tools=misbehaviours.NO_TOOLS["ollama"], json=ACTION, text=ACTION)
    )
    assert lines[1].startswith("  tools no         T  the server returned 400: ")
    advice_first = "--protocol json saves each run one rejected request"
    assert (lines[-2:], request_count) == (["a run will use json", advice_first], 3)
    lines, _ = doctor(answer_by_form(tools=PROSE, json=ACTION, text=PROSE), code=1)
    advice_json = "the model ignores the form tools; run it with --protocol json"
    assert lines[-2:] == ["a run will use tools", advice_json]
    advice = "the model ignored every form that was tried; use a larger model, or --protocol decide"
    assert doctor(repeat_responder(PROSE), code=1)[0][-1] == advice
    refusing = answer_by_form(json=misbehaviours.NO_RESPONSE_FORMAT["openai"], text=DECISION)
    lines, request_count = doctor(refusing, "--protocol", "decide")
    assert (lines[-1], request_count) == ("a run will use text for its decision", 2)
    assert doctor(repeat_responder(LS), "--protocol", "tools")[1] == 1


def test_doctor_stops_after_rejected_key(doctor):
    for flags in ((), ("--json",)):
        lines, request_count = doctor(
            repeat_responder(error_response(401, f"bad {KEY}")), *flags, code=1, MUNIMENT_API_KEY=KEY
        )
        output = " ".join(lines)
        assert "the server rejected the key (401)" in output
        assert "with these settings, no run can use this model" in output
        assert (KEY in output, request_count) == (False, 1)


def test_doctor_reports_slow_server(doctor, monkeypatch):
    monkeypatch.setattr(command, "PROBE_SECONDS", 0.5)
    lines, request_count = doctor(repeat_responder(send_raw(60.0)), code=1)
    output = " ".join(lines)
    assert (output.count("no response in time"), request_count, "no run can use" in output) == (3, 3, False)
    assert "the model was slow" in lines[-1]


@pytest.mark.slow
def test_doctor_tries_next_form_after_slow_answer(doctor, monkeypatch):
    monkeypatch.setattr(command, "PROBE_SECONDS", 1.0)
    lines, _ = doctor(answer_by_form(tools=send_raw(60.0), json=ACTION, text=ACTION), "--json", code=1)
    found = json.loads("\n".join(lines))
    assert [each["verdict"] for each in found["forms"]] == ["slow", "yes", "yes"]
    assert found["forms"][1]["tokens_per_second"] > 0
    assert "run it with --protocol json" in found["advice"][0]


def test_doctor_needs_server_unless_model_is_rules(cli):
    rules = "rules: the built-in rules need no server; to test a language model, use --model NAME"
    assert cli.run_for_lines("doctor", "--model", "rules") == [rules]
    assert cli.run_for_document("doctor", "--model", "rules")["forms"] == []
    assert "needs a server" in cli.run_for_lines("doctor", "--model", "tiny", code=1)[0]


def test_doctor_warns_about_unencrypted_connection(cli, monkeypatch):
    no_forms = Probe((FormFinding("tools", "yes", "", 0.1),), "tools", None)
    monkeypatch.setattr("muniment.agent.openai.probe_server", lambda *_: no_forms)
    clear = "the memory will be sent unencrypted to"
    for url, key, warning in (
        ("http://192.0.2.1/v1", KEY, f"the key and {clear} 192.0.2.1"),
        ("http://127.evil.example/v1", "", f"{clear} 127.evil.example"),
        *((url, KEY, "") for url in ("https://models.example/v1", "http://127.0.0.7:1/v1", "http://[::1]:1")),
    ):
        output = cli("doctor", "--model", "tiny", "--base-url", url, MUNIMENT_API_KEY=key).stdout
        assert (warning in output, "unencrypted" in output) == (True, bool(warning))
