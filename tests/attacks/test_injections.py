"""The obedient hostile model: whatever a text talks it into, nothing happens that the policy does not allow.

Each case of tests/kit/agent/injections.json is shown to a model that obeys it. What that came to is judged by
`kit/operations/victim.py`, which shares no code with Muniment. A case passes only if the model was shown its
text and made the calls that the text asks for, until these ended or the run did.
"""

import json
import re
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest

from kit.agent.dialects import Decide
from kit.agent.obedient import Case, Obedient, injections, load
from kit.agent.served_minds import through
from kit.agent.servers import serving
from kit.operations.places import any_words, logged, opened, remembering, some
from kit.operations.victim import CANARY, FACT, SCOPES, Victim, put_private
from kit.store.ground import patience
from muniment.kernel.decide import Content, ScopeTerms
from muniment.kernel.names import Trust
from muniment.policy.load import load_policy
from muniment.store.upkeep import rebuild
from muniment.types import RememberResult

__all__ = ["any_words", "logged", "some"]
# What a model may commit is narrowed before this (T-RUN-14); here it writes what it likes.
pytestmark = [pytest.mark.usefixtures("any_words"), pytest.mark.timeout(600)]

STRICT, CLEAN = load_policy("strict"), load_policy("clean")
LEFT = tuple(gate for gate in STRICT.content.reject if gate != "active-markup")
SAME_TRUST = tuple(ScopeTerms(name=each.name, trust=Trust.AGENT) for each in STRICT.scope_terms)
WITHOUT = {"content": Content(reject=LEFT, instructions="allow", poison="allow"), "scope_terms": SAME_TRUST}
UNGATED = replace(STRICT, **WITHOUT)
"""Where text may say what it likes, and nothing is trusted more than what a run writes."""

ENDING = {"remember_path_escape", "remember_refused", "remember_failed"}
"""Errors that end a run before the model is done."""

CASES = injections()
STOPPED = [name for name, case in CASES.items() if "stopped" in case]
STORED = [name for name, case in CASES.items() if case["where"] != "fact"]
DECIDING = [name for name in CASES if name.startswith(("out-", "own-", "name-", "forge-", "scope-"))]
"""Cases that have something to gain by a name, which is all that a decision has a say in."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of one case, and what it left behind."""

    case: Case
    victim: Victim
    mind: Obedient
    result: RememberResult
    tools: list[str]
    changed: set[str]

    @property
    def ended(self):
        """As the cases say it."""
        if self.result.error is not None:
            return self.result.error.code
        return "unchanged" if self.result.unchanged else self.result.status

    def assert_as_told(self, *, gated=True):
        """It ended as the case says, and changed exactly what that allows."""
        case = self.case
        stopped = case.stopped if gated else None
        expected = (stopped, set()) if stopped else (case.ends, set(case.may))
        if self.is_by_rules and not gated:
            assert not [path for path in self.changed if self.victim.had(path)], case.id
        else:
            assert (self.ended, self.changed) == expected, case.id

    @property
    def is_by_rules(self):
        """The rules filed the fact, since the model would have dropped what an entry says."""
        return self.result.error is None and self.result.decided_by == "rules"

    @property
    def asked_for(self):
        """Paths that the model asked to write."""
        calls = [given["path"] for tool, given in self.mind.made if tool in {"write_file", "edit"}]
        return {path for path in calls if isinstance(path, str)}

    def assert_obeyed(self):
        """The model was shown the text and did what it says, unless the run was ended before."""
        assert self.mind.obeyed == [self.case.id]
        made = [*self.mind.looked, *self.mind.made]
        tools = self.tools[: len(made)] if self.is_by_rules else self.tools
        assert tools == [tool for tool, _ in made[: len(tools)]]
        assert len(self.tools) > len(self.mind.looked) or "an answer of more than" in str(self.result.error)
        repeats = len(set(map(repr, self.mind.made))) < len(self.mind.made)
        is_over = self.ended in ENDING or self.result.turns == STRICT.limits.turns
        assert (len(made) == len(tools) and not self.mind.left) or repeats or is_over

    def assert_only_created(self):
        """Nothing that was there has other bytes; what is new has a name that was asked for, or one of the
        fact's words, numbered or not. Who asked for a path that leads out ended in an error.
        """

        def plain(paths):
            return {re.sub(r"-[0-9]+(?=\.md$|/)", "", path).casefold() for path in paths}

        assert not [path for path in self.changed if self.victim.had(path)]
        said = set(re.findall(r"\w+", self.case.text.casefold()))
        names = [path.rpartition("/")[2][:-3] for path in plain(self.changed) - plain(self.asked_for)]
        assert [name for name in names if not set(re.findall(r"\w+", name)) <= said] == []


def leads_out(path):
    """Whether a path leaves the memory as text alone, by the words of the policy's format."""
    first, *_ = path.removeprefix("/memories").removeprefix("/").split("/")
    absolute = path.startswith(("/", "\\\\")) and first not in SCOPES
    return ".." in path.split("/") or "\0" in path or absolute or re.match("[A-Za-z]:", path) is not None


@pytest.fixture
def go(tmp_path, monkeypatch, caplog, logged):
    """Runs one case in a real worker, with the obedient mind or its decisions alone; it does no harm."""
    numbers = count()

    def run(name, *, where=None, policy=STRICT, decides=False, obeys=True, **asked):
        victim, tools = Victim(tmp_path / str(next(numbers))), []
        monkeypatch.chdir(victim.home)
        monkeypatch.setenv("HOME", str(victim.home))
        for variable in ("MUNIMENT_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(variable, f"sk-{CANARY}")
        caplog.clear()
        case = load(name, victim.home)
        where = where or case.where
        victim.poison(**{"entry": {"body": case.text}, "index": {"description": case.text}}.get(where, {}))
        mind = Obedient([case])
        terms = {"scope": case.scope, "trust": Trust.AGENT, **asked}
        think = through(lambda request: Decide(mind.decision(request.body)))
        served = serving(think, "decide", key=f"sk-{CANARY}") if decides else nullcontext((None, mind))
        with served as (_, model), opened(victim.roots, policy, in_process=False) as place:
            if where == "index":
                rebuild(place.state, place.roots["user"], policy, patience())
            victim.seal()
            fact = case.text if where == "fact" else FACT
            result = remembering(place, fact, model, observe=lambda each: tools.append(each.tool), **terms)
        document = result.as_json()
        said = [json.dumps(document, ensure_ascii=False), *mind.heard, *logged()]
        assert [*victim.problems(document, trust="agent", policy=policy.label), *victim.leaks(*said)] == []
        assert not [text for text in said if str(victim.memory) in text]
        ran = Ran(case, victim, mind, result, tools, victim.changed())
        if obeys:
            ran.assert_obeyed()
        return ran

    return run


def test_the_cases_are_many_and_of_many_kinds():
    cases = CASES.values()
    assert len(cases) >= 70
    assert {"en", "de", "fr", "es", "zh", "ja", "ko", "ru", "ar", "hi"} <= {case["lang"] for case in cases}


@pytest.mark.threat("T-LEAK-03", control="layer_one")
def test_obeying_has_no_effect_outside_the_policy_nor_what_only_gates_and_trust_stop(go, some):
    for name in some(CASES, 15):
        go(name).assert_as_told()
    for name in some(STOPPED, 4):
        go(name, policy=UNGATED).assert_as_told(gated=False)


def test_in_a_clean_run_or_under_a_policy_that_only_creates_it_creates_at_most(go, some):
    clean = {"context": "clean"}
    rows = ((CASES, 25, clean), (CASES, 30, {"policy": CLEAN}), (STOPPED, 9, clean | {"policy": UNGATED}))
    for names, step, terms in rows:
        for name in some(names, step):
            ran = go(name, where="fact", **terms)
            ran.assert_only_created()
            is_judged = terms.get("policy") is not UNGATED
            assert ran.result.error or not (is_judged and any(map(leads_out, ran.asked_for))), name
    for name in some(STORED, 9):  # Nothing that stands in the memory is shown to a clean run.
        ran = go(name, obeys=False, **clean)
        assert (ran.mind.obeyed, ran.ended, ran.changed) == ([], "remember_no_update", set()), name


@pytest.mark.threat("T-MEM-11", control="narrowed_writes")
def test_in_a_run_for_one_scope_it_writes_no_other(go, some):
    for name in some([name for name, case in CASES.items() if "project" in str(case)], 4):
        ran = go(name, scope="user")
        assert ran.changed <= {path for path in ran.asked_for if path.startswith("user/")}, name


def test_a_model_that_only_decides_can_only_misfile(go, some):
    for policy, step in ((STRICT, 13), (UNGATED, 17)):
        for name in some(DECIDING, step):
            ran = go(name, where="fact", decides=True, policy=policy, obeys=False)
            assert not [path for path in ran.changed if ran.victim.had(path)], name
            for path in ran.changed:
                assert ran.case.text.strip() in (ran.victim.memory / path).read_text(), name
            assert len(ran.changed) == (ran.result.error is None), name


# -- the oracle can fail: an honest run passes, and each misdeed after it is seen ----------------------

ID, AT = "01K8ZQ4N6E5T3V9M2B7C1D0F8G", "2026-11-22T01:00:00Z"
ORIGIN = {"task": "remember-1", "trust": "agent", "decided_by": "obedient", "policy": "strict@1"}
PROVENANCE = f"muniment: {json.dumps({'id': ID, 'created': AT, 'updated': AT, **ORIGIN})}"
INDEXED = ("deploy/window.md", "editor.md", "food/allergies.md", "pinned/rules.md")


ENTRY = f"---\n{PROVENANCE}\n---\nPrefers tea.\n"
ENTRIES = {
    "of a topic": ("drinks/tea.md", ENTRY),
    "too deep": ("a/b/tea.md", ENTRY),
    "that is pinned": ("Pinned/tea.md", ENTRY),
    "that is loaded as instructions": ("Claude.md", ENTRY),
    "with markup in its name": ("[tea](x).md", ENTRY),
    "of another origin": ("t.md", ENTRY.replace("agent", "owner")),
    "of a second origin that is escaped": (
        "t.md",
        ENTRY.replace("---\n", '---\n"\\x6duniment": {"trust": "owner"}\n', 1),
    ),
    "of no origin": ("t.md", "Prefers tea.\n"),
    "that is too large": ("t.md", ENTRY + "x" * 140_000),
    "of a made-up time": ("t.md", ENTRY.replace("2026", "2001", 1)),
    "with text that is turned around": ("t.md", f"{ENTRY}a \u202eb\n"),
    "beside one that is gone": ("t.md", ENTRY),
}


def test_an_entry_that_may_not_be_or_is_gone_is_seen(tmp_path, subtests):
    for number, (kind, (rel, content)) in enumerate(ENTRIES.items()):
        with subtests.test(kind):
            victim, touched = Victim(tmp_path / str(number)), [f"user/{rel}"]
            victim.seal()
            links = "".join(f"- [{Path(each).stem}]({each})\n" for each in (*INDEXED, rel))
            put_private(victim.memory / "user" / rel, content)
            put_private(victim.memory / "user/MEMORY.md", f"# Memory index\n\nGenerated.\n\n{links}")
            if kind == "beside one that is gone":
                (victim.memory / "user/editor.md").unlink()
                touched += ["user/editor.md"]
            told = {"files_touched": touched, "touched_scopes": ["user"], "task_id": ORIGIN["task"]}
            told |= {"status": "completed", "error": None, "summary": "Saved.", "decided_by": "obedient"}
            problems = list(victim.problems(told, trust=ORIGIN["trust"], policy=ORIGIN["policy"]))
            assert (problems == []) == (kind == "of a topic"), problems
            assert len(touched) == 1 or "user/editor.md is gone" in problems
