"""Models that lose a fact on the way: it stands in the memory verbatim, or the result is no success."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import pytest

from kit.agent.servers import hasty, serving
from kit.jobs.places import made
from kit.memories import SCOPES, put
from muniment.jobs.remember import remember
from muniment.jobs.request import RememberRequest
from muniment.testing.chat_server import Response
from muniment.testing.minds import (
    DIALECTS,
    AskForCalls,
    Say,
    ScriptedModel,
    Utter,
    asked_for,
    call,
    calls,
    say,
    spell,
    through,
)

__all__ = ["hasty"]
pytestmark = pytest.mark.usefixtures("hasty")

NATIVE = DIALECTS["native"]
FRONT = "---\nname: Deploys\ndescription: when\ntype: project\n---\n"


@dataclass(frozen=True)
class Case:
    """A fact, and where a model would write it."""

    fact: str
    path: str

    @classmethod
    def of(cls, number):
        return cls(
            f"We do not deploy ring {number} on Fridays after 16:30, says Anna; ask Ben.",
            f"project/deploy-{number}.md",
        )

    def write(self, body=None, front=FRONT):
        content = f"{front}{self.fact if body is None else body}\n"
        return AskForCalls([("write_file", {"path": self.path, "content": content})])

    def but(self, old, new):
        """Writes the fact with something else in it."""
        assert old in self.fact
        return self.write(self.fact.replace(old, new))

    def edit(self, old, new, path=None):
        return AskForCalls([("edit", {"path": path or self.path, "old_string": old, "new_string": new})])

    def read(self, path=None):
        return AskForCalls([("read_file", {"path": path or self.path})])

    def doubled(self, body):
        """A call as a common template shows it: with its braces doubled."""

        def think(request):
            arguments = {"path": self.path, "content": f"{FRONT}{body}\n"}
            if "action" in asked_for(request.body):
                return Utter("{" + json.dumps({"action": "write_file", **arguments}) + "}")
            inner = json.dumps({"name": "write_file", "arguments": arguments})
            return Utter("<tool_call>\n{" + inner + "}\n</tool_call>")

        return think

    def fenced(self, body):
        """A write that copies the fences of the prompt."""

        def think(request):
            found = re.search(r"<<fact (\w+)>>", json.dumps(request.body))
            token = found[1] if found else "0"
            return self.write(f"<<fact {token}>>\n{body}\n<<end {token}>>")

        return think


SCRIPTS = {
    "overwrites it with a tool's answer": lambda at: [at.write(), at.read(), at.write(f"created {at.path}")],
    "overwrites it with thanks": lambda at: [at.write(), at.edit(at.fact, "Thank you!")],
    "changes a number": lambda at: [at.but("16", "15")],
    "drops a not": lambda at: [at.but("not ", "")],
    "adds a not": lambda at: [at.write(f"It is false that {at.fact}")],
    "swaps two names": lambda at: [at.but("Anna; ask Ben", "Ben; ask Anna")],
    "makes up a name": lambda at: [at.but("Anna", "Carl")],
    "saves another fact": lambda at: [at.write("The user likes green tea.")],
    "saves half of it": lambda at: [at.but(" after 16:30, says Anna; ask Ben", "")],
    "splices it": lambda at: [at.write("We do not ask Ben. Deploy on Fridays after 16:30, says Anna.")],
    "babbles into a file": lambda at: [at.write("lorem ipsum " * 300)],
    "babbles": lambda _: [Say("la " * 500)],
    "answers in words": lambda at: [Say(f"Saved to {at.path}.")],
    "names what it did not write": lambda at: [at.read("user/tea.md"), Say("Already known: user/tea.md")],
    "hides it in front matter": lambda at: [at.write("Noted.", FRONT.replace("when", json.dumps(at.fact)))],
    "spoils another entry": lambda at: [at.read("user/tea.md"), at.edit("green", "black", "user/tea.md")],
    "looks for ever": lambda _: [AskForCalls([("grep", {"pattern": f"deploy{each}"})]) for each in range(9)],
    "says nothing": lambda _: [Utter("")],
    "asks for what is not there": lambda at: [AskForCalls([("save", {"fact": at.fact})])] * 3,
    "breaks off": lambda _: [Utter('{"action": "write_file", "path": "project/dep')] * 9,
    "doubles braces": lambda at: [at.doubled(at.fact)],
    "doubles braces around another number": lambda at: [at.doubled(at.fact.replace("16", "17"))],
    "copies fences": lambda at: [at.fenced(at.fact)],
    "copies fences around another fact": lambda at: [at.fenced("The user likes tea.")],
}
RUNS = [
    *((protocol, "rules", name) for protocol in ("tools", "json", "text", "decide") for name in SCRIPTS),
    *(("auto", "rules", name) for name in list(SCRIPTS)[::4]),
    *(("tools", "fail", name) for name in SCRIPTS),
]


def script(steps, path):
    """A mind that takes the steps in turn, and then says that it has saved the fact."""

    def think(request):
        turn = sum(message["role"] == "assistant" for message in request.body["messages"])
        step = steps[turn] if turn < len(steps) else Say(f"Saved to {path}.")
        return step(request) if callable(step) else step

    return think


def is_kept(base, fact):
    """Whether an entry holds the fact as it was said, as lines of its text."""
    return any(
        fact in path.read_text().rpartition("\n---\n")[2].splitlines()
        for scope in SCOPES
        for path in (base / scope).rglob("*.md")
        if path.name != "MEMORY.md"
    )


@pytest.mark.sweep(2)
@pytest.mark.threat("T-RUN-14", control="fact_is_held")
@pytest.mark.parametrize("protocol", ["tools", "json", "text", "decide", "auto"])
def test_a_fact_is_never_lost_behind_completed(tmp_path, protocol):
    minds = []
    runs = [(follows, name) for each, follows, name in RUNS if each == protocol]
    with (
        serving(lambda request: spell(minds[-1](request), NATIVE, request.body), protocol) as (_, model),
        made(tmp_path) as place,
    ):
        put(tmp_path / "user", "tea.md", "The user likes green tea.\n")
        for number, (follows, name) in enumerate(runs):
            case = Case.of(number)
            minds.append(script(SCRIPTS[name](case), case.path))
            result = remember(RememberRequest(case.fact), replace(place, on_model_failure=follows), model)
            told = (name, follows, result.status, result.error, result.notes)
            assert is_kept(tmp_path, case.fact) or (follows == "fail" and result.status == "failed"), told
            is_filed_by_rules = any("the rules filed the fact" in note for note in result.notes)
            assert not is_filed_by_rules or result.decided_by == "rules", told
            assert is_filed_by_rules or result.decided_by == "scripted" or protocol in {"decide", "auto"}, (
                told
            )


def test_at_least_sixty_scripts_are_tried_in_all_protocols():
    assert len(RUNS) >= 60


CASE = Case.of(0)


@pytest.mark.parametrize("protocol", ["tools", "json", "text"])
@pytest.mark.parametrize("name", ["doubles braces", "copies fences"])
def test_a_slip_of_form_is_mended_and_no_failure(tmp_path, name, protocol):
    with (
        serving(through(script(SCRIPTS[name](CASE), CASE.path)), protocol) as (_, model),
        made(tmp_path) as place,
    ):
        result = remember(RememberRequest(CASE.fact), place, model)

    assert (result.status, result.decided_by, result.notes) == ("completed", "scripted", ())
    text = (tmp_path / result.files_touched[0]).read_text()
    assert text.endswith(f"---\n{CASE.fact}\n")
    assert "<<" not in text


def test_what_the_rules_filed_says_so_in_the_result_and_in_the_entry(tmp_path):
    model = ScriptedModel(
        [calls(call("write_file", path="user/a.md", content="Thank you!\n")), say("Saved.")]
    )
    with made(tmp_path, on_model_failure="fail") as place:
        result = remember(RememberRequest(CASE.fact), place, model)

    assert result.decided_by == "rules"
    why = "what it wrote or named does not hold the fact"
    assert result.notes == (f"the model scripted failed: {why}; the rules filed the fact as it is",)
    assert result.as_json()["notes"] == list(result.notes)
    assert '"decided_by": "rules"' in (tmp_path / result.files_touched[0]).read_text()
    assert not (tmp_path / "user" / "a.md").exists()


def test_a_server_that_is_gone_is_followed_by_the_rules_and_named(tmp_path):
    with (
        serving(lambda _: Response(b"{}", status=503), "tools") as (_, model),
        made(tmp_path, on_model_failure="rules") as place,
    ):
        result = remember(RememberRequest(CASE.fact), place, model)

    assert (result.status, result.decided_by) == ("completed", "rules")
    assert "503" in result.notes[0]
    assert is_kept(tmp_path, CASE.fact)


def test_a_refused_run_is_not_followed(tmp_path):
    steps = [calls(call("read_file", path=f"user/../../{number}")) for number in range(3)]
    with made(tmp_path, on_model_failure="rules") as place:
        result = remember(RememberRequest(CASE.fact), place, ScriptedModel(steps))

    assert (result.status, result.decided_by) == ("failed", "scripted")
