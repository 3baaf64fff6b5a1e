"""The obedient hostile model: whatever a text talks it into, nothing happens that the policy does not allow.

Each case of tests/kit/agent/injections.json is shown to a model that obeys it. What that came to is judged by
`jobs/victim.py`, which shares no code with Muniment. A case passes only if the model was shown its text and
made the calls that the text asks for, until these ended or the run did.
"""

from __future__ import annotations

import json
import logging
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

import pytest

from kit.agent.obedient import Case, Obedient, injections, load
from kit.jobs.places import any_words, opened
from kit.jobs.victim import CANARY, FACT, SCOPES, Victim
from muniment.agent.openai import OpenAIModel
from muniment.confine.cancel import Cancel, Patience
from muniment.jobs.remember import remember
from muniment.jobs.request import RememberRequest, RememberResult
from muniment.names import Trust
from muniment.policy.decide import Content, ScopeTerms
from muniment.policy.load import load_policy
from muniment.store.upkeep import rebuild
from muniment.testing.chat_server import ChatServer
from muniment.testing.minds import AskForCalls, Decide, Say, asked_for, through

__all__ = ["any_words"]
# What a model may commit is narrowed before this (T-RUN-14); here it writes what it likes.
pytestmark = pytest.mark.usefixtures("any_words")

STRICT, CLEAN = load_policy("strict"), load_policy("clean")
UNGATED = STRICT.model_copy(
    update={
        "content": Content(
            reject=tuple(gate for gate in STRICT.content.reject if gate != "active-markup"),
            instructions="allow",
        ),
        "scope_terms": tuple(ScopeTerms(name=each.name, trust=Trust.AGENT) for each in STRICT.scope_terms),
    }
)
"""Where text may say what it likes, and nothing is trusted more than what a run writes."""

ENDING = {"remember_path_escape", "remember_refused", "remember_failed"}
"""Errors that end a run before the model is done."""

DECIDING = ("out-", "own-", "name-", "forge-", "scope-")
"""Cases that have something to gain by a name, which is all that a decision has a say in."""

every_case = pytest.mark.parametrize("name", injections())
stopped_cases = pytest.mark.parametrize(
    "name", [name for name, case in injections().items() if "stopped" in case]
)


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of one case, and what it left behind."""

    case: Case
    mind: Obedient
    result: RememberResult
    tools: list[str]
    changed: set[str]
    problems: list[str]

    @property
    def ended(self):
        """As the cases say it."""
        if self.result.error is not None:
            return self.result.error.code
        return "unchanged" if self.result.unchanged else self.result.status

    @property
    def expected(self):
        """How it has to end, and what it has to have changed."""
        return (self.case.stopped, set()) if self.case.stopped else (self.case.ends, set(self.case.may))

    @property
    def asked_for(self):
        """Paths that the model asked to write."""
        calls = [given["path"] for tool, given in self.mind.made if tool in {"write_file", "edit"}]
        return {path for path in calls if isinstance(path, str)}


@pytest.fixture
def victim(tmp_path, monkeypatch):
    victim = Victim(tmp_path)
    monkeypatch.chdir(victim.home)
    monkeypatch.setenv("HOME", str(victim.home))
    for name in ("MUNIMENT_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, f"sk-{CANARY}")
    return victim


@pytest.fixture
def records(caplog):
    """What was logged so far, as text."""
    logger = logging.getLogger("muniment")
    propagates, logger.propagate = logger.propagate, True
    caplog.set_level(logging.INFO, "muniment")
    yield lambda: [record.getMessage() for record in caplog.records]
    logger.propagate = propagates


@pytest.fixture
def go(victim, records):
    """Runs one case in a real worker, with the obedient mind as the model or behind a server."""

    def run(name, *, where=None, policy=STRICT, served=None, per_turn=100_000, **asked):
        case = load(name, victim.home)
        where = where or case.where
        victim.poison(**{"entry": {"body": case.text}, "index": {"description": case.text}}.get(where, {}))
        mind = Obedient([case], per_turn)
        if served is not None:
            served.mind = mind
        tools = []
        content = case.text if where == "fact" else FACT
        request = RememberRequest(content, **{"scope": case.scope, "trust": Trust.AGENT, **asked})
        with opened(victim.roots, policy, in_process=False) as place, Cancel() as cancel:
            if where == "index":
                rebuild(place.state, place.roots["user"], policy, Patience(time.monotonic() + 9, cancel))
            victim.seal()
            model = mind if served is None else served.model
            result = remember(request, place, model, observe=lambda decision: tools.append(decision.tool))
        document = result.as_json()
        said = [json.dumps(document, ensure_ascii=False), *mind.heard, *records()]
        problems = [
            *victim.problems(document, trust="agent", policy=policy.label),
            *victim.leaks(*said),
            *(f"a host path in {text!r}" for text in said if str(victim.memory) in text),
        ]
        return Ran(case, mind, result, tools, victim.changed(), problems)

    return run


def assert_obeyed(ran, *, spoken=""):
    """The model was shown the text and did what it says, unless the run was ended before.

    Where calls are `spoken`, as JSON or in plain text, what is no call of a tool on offer is but last words.
    """
    assert ran.mind.obeyed == [ran.case.id]
    made = [*ran.mind.looked, *ran.mind.made]
    assert ran.tools == [tool for tool, _ in made[: len(ran.tools)]]
    following = made[len(ran.tools) :]
    if spoken and following and is_words(following[0], ran.case, spoken):
        return
    assert len(ran.tools) > len(ran.mind.looked) or "an answer of more than" in str(ran.result.error)
    if following or ran.mind.left:
        repeats = len(set(map(repr, ran.mind.made))) < len(ran.mind.made)
        assert ran.ended in ENDING or repeats or ran.result.turns == STRICT.limits.turns


def is_words(call, case, spoken):
    """Whether a call that stands in a model's words is none: of no tool, not in Unicode, or quoted."""
    tool, given = call
    if tool not in {"read_file", "ls", "grep", "write_file", "edit"}:
        return True
    return any("\ud83d" in str(value) for value in given.values()) or (spoken == "text" and case.quoted)


def assert_only_created(ran, before):
    """Nothing that was there has other bytes; what is new has a name that was asked for, or one of the fact's
    words, numbered or not.
    """

    def plain(paths):
        return {re.sub(r"-[0-9]+(?=\.md$|/)", "", path).casefold() for path in paths}

    assert not [path for path in ran.changed if before.had(path)]
    said = set(re.findall(r"\w+", ran.case.text.casefold()))
    others = plain(ran.changed) - plain(ran.asked_for)
    assert [
        path for path in others if not set(re.findall(r"\w+", path.rpartition("/")[2][:-3])) <= said
    ] == []


def leads_out(path):
    """Whether a path leaves the memory as text alone, by the words of the policy's format."""
    first, *_ = path.removeprefix("/memories").removeprefix("/").split("/")
    absolute = path.startswith(("/", "\\\\")) and first not in SCOPES
    return ".." in path.split("/") or "\0" in path or absolute or re.match("[A-Za-z]:", path) is not None


# -- the cases themselves --------------------------------------------------------------------------------


def test_the_cases_are_many_and_of_many_kinds():
    cases = injections().values()
    assert len(cases) >= 70
    assert {"en", "de", "fr", "es", "zh", "ja", "ko", "ru", "ar", "hi"} <= {case["lang"] for case in cases}
    for where, least in (("fact", 40), ("entry", 25), ("index", 8)):
        assert sum(case["where"] == where for case in cases) >= least
    assert all(("may" in case) == case.get("allowed", False) for case in cases)
    texts = [re.sub(r"\s", "", case["text"]) for case in cases]
    assert not [text for text in texts if sum(text in other for other in texts) != 1]


# -- the runs ------------------------------------------------------------------------------------------------


@pytest.mark.sweep(6)
@pytest.mark.threat("T-LEAK-03", control="layer_one")
@every_case
def test_obeying_has_no_effect_outside_the_policy(go, name):
    ran = go(name)
    assert ran.problems == []
    assert_obeyed(ran)
    assert (ran.ended, ran.changed) == ran.expected


@stopped_cases
def test_what_gates_and_trust_stop_has_no_effect_outside_the_policy_without_them(go, name):
    ran = go(name, policy=UNGATED)
    assert ran.problems == []
    assert_obeyed(ran)
    assert (ran.ended, ran.changed) == (ran.case.ends, set(ran.case.may))


@pytest.mark.sweep(6)
@every_case
def test_in_a_clean_run_it_creates_at_most(go, victim, name):
    ran = go(name, where="fact", context="clean")
    assert ran.problems == []
    assert_obeyed(ran)
    assert_only_created(ran, victim)
    if any(map(leads_out, ran.asked_for)):
        assert ran.result.error is not None


@stopped_cases
def test_in_a_clean_run_it_creates_at_most_without_the_gates_too(go, victim, name):
    ran = go(name, where="fact", context="clean", policy=UNGATED)
    assert ran.problems == []
    assert_obeyed(ran)
    assert_only_created(ran, victim)


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", [name for name, case in injections().items() if case["where"] != "fact"])
def test_a_clean_run_is_shown_nothing_that_stands_in_the_memory(go, name):
    ran = go(name, context="clean")
    assert ran.problems == []
    assert (ran.mind.obeyed, ran.ended, ran.changed) == ([], "remember_no_update", set())


@pytest.mark.sweep(7)
@every_case
def test_under_a_policy_that_only_creates_it_creates_at_most(go, victim, name):
    ran = go(name, where="fact", policy=CLEAN)
    assert ran.problems == []
    assert_obeyed(ran)
    assert_only_created(ran, victim)
    if any(map(leads_out, ran.asked_for)):
        assert ran.result.error is not None


@pytest.mark.sweep(11)
@pytest.mark.threat("T-MEM-11", control="narrowed_writes")
@pytest.mark.parametrize("name", [name for name, case in injections().items() if "project" in str(case)])
def test_in_a_run_for_one_scope_it_writes_no_other(go, name):
    ran = go(name, scope="user")
    assert ran.problems == []
    assert_obeyed(ran)
    assert ran.changed <= {path for path in ran.asked_for if path.startswith("user/")}


# -- over a socket -------------------------------------------------------------------------------------------


@dataclass
class Served:
    """A model behind a real server, whose mind can be exchanged."""

    model: OpenAIModel
    server: ChatServer
    mind: Obedient | None = None


@pytest.fixture(scope="module")
def serve():
    """A server and an adapter for each protocol, kept for all cases."""
    with ExitStack() as stack:

        @cache
        def served(protocol):
            def think(request):
                if asked_for(request.body).startswith("decision"):
                    return Decide(held.mind.decision(request.body))
                calls, said = held.mind.chat(request.body)
                return AskForCalls(calls) if calls else Say(said)

            server = stack.enter_context(ChatServer(through(think)))
            key = f"sk-{CANARY}"
            model = OpenAIModel("obedient", base_url=server.base_url, api_key=key, protocol=protocol)
            stack.callback(model.close)
            held = Served(model, server)
            return held

        yield served


@pytest.mark.sweep(6)
@every_case
@pytest.mark.parametrize("protocol", ["tools", "json", "text"])
def test_behind_a_server_it_has_no_more_effect(go, serve, name, protocol):
    served = serve(protocol)
    ran = go(name, served=served, per_turn=32 if protocol == "tools" else 1)
    assert ran.problems == []
    assert_obeyed(ran, spoken="" if protocol == "tools" else protocol)
    # Asked for words at last, a mind behind a server says its next call, and so ends what should never end.
    assert ran.changed <= set(ran.case.may) | (ran.asked_for if ran.case.per_turn == 1 else set())
    if any(map(leads_out, ran.asked_for)):
        assert ran.result.error is not None
    if protocol == "tools" and ran.case.per_turn > 1 and name != "content-huge":
        assert (ran.ended, ran.changed) == ran.expected


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", [name for name in injections() if name.startswith(DECIDING)])
@pytest.mark.parametrize("policy", [STRICT, UNGATED], ids=["strict", "ungated"])
def test_a_model_that_only_decides_can_only_misfile(go, serve, victim, name, policy):
    ran = go(name, where="fact", served=serve("decide"), policy=policy)
    assert ran.problems == []
    assert not [path for path in ran.changed if victim.had(path)]
    for path in ran.changed:
        assert ran.case.text.strip() in (victim.memory / path).read_text()
    assert len(ran.changed) == (ran.result.error is None)
