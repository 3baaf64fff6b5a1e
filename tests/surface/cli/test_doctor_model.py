"""`muniment doctor --model`: what a server can do, said so that a person knows what to configure."""

import json
import re

import pytest

from kit.agent import misbehaviours
from kit.agent.served_minds import perfect, through
from kit.agent.servers import KEY, form_of
from muniment.agent.openai import FormFinding, Probe
from muniment.cli import doctor as command
from muniment.testing import chat_server as server
from muniment.testing.chat_server import always, failure, raw, tool_call, tool_calls, words

LS = tool_calls(tool_call("ls", {"path": "user"}))
ACTION = words('{"action": "ls", "path": "user"}')
DECISION = words('{"title": "Dark mode", "scope": "user", "type": "user", "file": "editor/dark-mode"}')
PROSE = words("You would list the scope user.")


@pytest.fixture
def doctor(muniment, home):
    """Examines a server that answers so: what is said, without the times, and how often it was asked."""

    def run(answer, *flags, code=0, **environment):
        with server.ChatServer(answer) as asked:
            named = ("doctor", "--model", "tiny", "--base-url", asked.base_url)
            lines = muniment.lines(*named, *flags, code=code, **environment)
        assert not home.exists()
        told = [re.sub(r"\d+\.\d\d s(  \d+\.\d tokens/s)?", "T", line) for line in lines]
        return told, len(asked.requests)

    return run


def by_form(**answers):
    return lambda request: answers[form_of(request)]


def test_a_perfect_model_passes(doctor):
    for protocol in ("auto", "decide"):
        said = " ".join(doctor(through(perfect), "--protocol", protocol)[0])
        assert ("yes" in said, "no " in said) == (True, False)


def test_it_is_said_which_form_a_run_will_use_and_which_is_better(doctor):
    lines, asked = doctor(by_form(tools=misbehaviours.NO_TOOLS["ollama"], json=ACTION, text=ACTION))
    assert lines[1].startswith("  tools no         T  the server returned 400: ")
    spares = "--protocol json saves each run one rejected request"
    assert (lines[-2:], asked) == (["a run will use json", spares], 3)
    lines, _ = doctor(by_form(tools=PROSE, json=ACTION, text=PROSE), code=1)
    other = "the model ignores the form tools; run it with --protocol json"
    assert lines[-2:] == ["a run will use tools", other]
    told = "the model ignored every form that was tried; use a larger model, or --protocol decide"
    assert doctor(always(PROSE), code=1)[0][-1] == told
    refusing = by_form(json=misbehaviours.NO_RESPONSE_FORMAT["openai"], text=DECISION)
    lines, asked = doctor(refusing, "--protocol", "decide")
    assert (lines[-1], asked) == ("a run will use text for its decision", 2)
    assert doctor(always(LS), "--protocol", "tools")[1] == 1


def test_a_refused_key_ends_it_after_one_request(doctor):
    for flags in ((), ("--json",)):
        lines, asked = doctor(always(failure(401, f"bad {KEY}")), *flags, code=1, MUNIMENT_API_KEY=KEY)
        said = " ".join(lines)
        assert "the server rejected the key (401)" in said
        assert "with these settings, no run can use this model" in said
        assert (KEY in said, asked) == (False, 1)


def test_a_server_that_does_not_answer_in_time(doctor, monkeypatch):
    monkeypatch.setattr(command, "PROBE_SECONDS", 0.5)
    lines, asked = doctor(always(raw(60.0)), code=1)
    said = " ".join(lines)
    assert (said.count("no response in time"), asked, "no run can use" in said) == (3, 3, False)
    assert "the model was slow" in lines[-1]


@pytest.mark.slow
def test_behind_a_slow_answer_the_next_form_is_tried_and_speed_is_told(doctor, monkeypatch):
    monkeypatch.setattr(command, "PROBE_SECONDS", 1.0)
    lines, _ = doctor(by_form(tools=raw(60.0), json=ACTION, text=ACTION), "--json", code=1)
    found = json.loads("\n".join(lines))
    assert [each["verdict"] for each in found["forms"]] == ["slow", "yes", "yes"]
    assert found["forms"][1]["tokens_per_second"] > 0
    assert "run it with --protocol json" in found["advice"][0]


def test_the_rules_need_no_server_and_every_other_model_does(muniment):
    rules = "rules: the built-in rules need no server; to test a language model, use --model NAME"
    assert muniment.lines("doctor", "--model", "rules") == [rules]
    assert muniment.document("doctor", "--model", "rules")["forms"] == []
    assert "needs a server" in muniment.lines("doctor", "--model", "tiny", code=1)[0]


def test_what_travels_in_the_clear_is_said(muniment, monkeypatch):
    nothing = Probe((FormFinding("tools", "yes", "", 0.1),), "tools", None)
    monkeypatch.setattr("muniment.agent.openai.probe", lambda *_: nothing)
    clear = "the memory will be sent unencrypted to"
    for url, key, told in (
        ("http://192.0.2.1/v1", KEY, f"the key and {clear} 192.0.2.1"),
        ("http://127.evil.example/v1", "", f"{clear} 127.evil.example"),
        *((url, KEY, "") for url in ("https://models.example/v1", "http://127.0.0.7:1/v1", "http://[::1]:1")),
    ):
        said = muniment("doctor", "--model", "tiny", "--base-url", url, MUNIMENT_API_KEY=key).stdout
        assert (told in said, "unencrypted" in said) == (True, bool(told))
