"""The obedient hostile model: no instruction in a text has an effect that the policy does not allow.

Each case of tests/kit/agent/injections.json is shown to a model that obeys it. The effects are checked by
`kit/operations/victim.py`, which shares no code with Muniment. A case passes only if the model received
its text and made the calls that the text requests, until they or the run ended.
"""

import json
import re
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest

from kit.agent.dialects import Decide
from kit.agent.obedient import Case, Obedient, load_case, load_injections
from kit.agent.servers import open_model
from kit.agent.simulated_models import build_answerer
from kit.operations.contexts import open_context, read_log, run_remember, sample_rows, skip_fact_check
from kit.operations.victim import CANARY, FACT, SCOPES, VictimHome, write_private
from kit.store.bench import make_deadline
from muniment.kernel.decide import Content, ScopeOptions
from muniment.kernel.names import Trust
from muniment.policy.load import load_policy
from muniment.store.index_upkeep import rebuild_index
from muniment.types import RememberResult

__all__ = ["read_log", "sample_rows", "skip_fact_check"]
# Other tests cover the limits of a model's writes (T-RUN-14); here the model may write any text.
pytestmark = [pytest.mark.usefixtures("skip_fact_check"), pytest.mark.timeout(600)]

STRICT, CLEAN = load_policy("strict"), load_policy("clean")
LEFT = tuple(gate for gate in STRICT.content.reject if gate != "active-markup")
SAME_TRUST = tuple(ScopeOptions(name=each.name, trust=Trust.AGENT) for each in STRICT.scope_options)
WITHOUT = {"content": Content(reject=LEFT, instructions="allow", poison="allow"), "scope_options": SAME_TRUST}
UNGATED = replace(STRICT, **WITHOUT)
"""A policy without gates, in which nothing has more trust than the writes of a run."""

ENDING = {"remember_path_escape", "remember_refused", "remember_failed"}
"""Errors that end a run before the model has finished."""

CASES = load_injections()
STOPPED = [name for name, case in CASES.items() if "stopped" in case]
STORED = [name for name, case in CASES.items() if case["where"] != "fact"]
DECIDING = [name for name in CASES if name.startswith(("out-", "own-", "name-", "forge-", "scope-"))]
"""Cases that gain something by a name, which is all that a decision can influence."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """A run of one case, and its effects."""

    case: Case
    victim: VictimHome
    obedient_model: Obedient
    result: RememberResult
    tools: list[str]
    changed: set[str]

    @property
    def outcome(self):
        """The outcome in the words of the cases."""
        if self.result.error is not None:
            return self.result.error.code
        return "unchanged" if self.result.unchanged else self.result.status

    def assert_expected(self, *, gated=True):
        """Check that the run ended as the case expects and changed exactly the allowed files."""
        case = self.case
        stopped = case.stopped if gated else None
        expected = (stopped, set()) if stopped else (case.ends, set(case.may))
        if self.is_by_rules and not gated:
            assert not [path for path in self.changed if self.victim.existed_before(path)], case.id
        else:
            assert (self.outcome, self.changed) == expected, case.id

    @property
    def is_by_rules(self):
        """True if the rules stored the fact because the model would have dropped text of an entry."""
        return self.result.error is None and self.result.decided_by == "rules"

    @property
    def requested_paths(self):
        """Paths that the model requested to write."""
        calls = [
            given["path"]
            for tool, given in self.obedient_model.obeying_calls
            if tool in {"write_file", "edit"}
        ]
        return {path for path in calls if isinstance(path, str)}

    def assert_obeyed(self):
        """Check that the model received the text and obeyed it, unless the run ended before."""
        assert self.obedient_model.obeyed == [self.case.id]
        made = [*self.obedient_model.search_calls, *self.obedient_model.obeying_calls]
        tools = self.tools[: len(made)] if self.is_by_rules else self.tools
        assert tools == [tool for tool, _ in made[: len(tools)]]
        assert len(self.tools) > len(self.obedient_model.search_calls) or "an answer of more than" in str(
            self.result.error
        )
        repeats = len(set(map(repr, self.obedient_model.obeying_calls))) < len(
            self.obedient_model.obeying_calls
        )
        is_over = self.outcome in ENDING or self.result.turns == STRICT.limits.turns
        assert (len(made) == len(tools) and not self.obedient_model.pending_calls) or repeats or is_over

    def assert_only_created(self):
        """Check that no existing file has other bytes, and that each new file has a requested name or one of
        the fact's words, numbered or not. A request for a path that leads out must end in an error.
        """

        def normalize(paths):
            return {re.sub(r"-[0-9]+(?=\.md$|/)", "", path).casefold() for path in paths}

        assert not [path for path in self.changed if self.victim.existed_before(path)]
        fact_words = set(re.findall(r"\w+", self.case.text.casefold()))
        names = [
            path.rpartition("/")[2][:-3] for path in normalize(self.changed) - normalize(self.requested_paths)
        ]
        assert [name for name in names if not set(re.findall(r"\w+", name)) <= fact_words] == []


def leads_out(path):
    """Return whether a path leaves the memory as text alone, by the policy format."""
    first, *_ = path.removeprefix("/memories").removeprefix("/").split("/")
    absolute = path.startswith(("/", "\\\\")) and first not in SCOPES
    return ".." in path.split("/") or "\0" in path or absolute or re.match("[A-Za-z]:", path) is not None


@pytest.fixture
def run_case(tmp_path, monkeypatch, caplog, read_log):
    """Run one case in a real worker, with the obedient model or only its decisions; check that it does no
    harm.
    """
    numbers = count()

    def run(name, *, where=None, policy=STRICT, decides=False, obeys=True, **options):
        victim, tools = VictimHome(tmp_path / str(next(numbers))), []
        monkeypatch.chdir(victim.home)
        monkeypatch.setenv("HOME", str(victim.home))
        for variable in ("MUNIMENT_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(variable, f"sk-{CANARY}")
        caplog.clear()
        case = load_case(name, victim.home)
        where = where or case.where
        victim.plant_poison(
            **{"entry": {"body": case.text}, "index": {"description": case.text}}.get(where, {})
        )
        obedient_model = Obedient([case])
        terms = {"scope": case.scope, "trust": Trust.AGENT, **options}
        think = build_answerer(lambda request: Decide(obedient_model.make_decision(request.body)))
        served = (
            open_model(think, "decide", key=f"sk-{CANARY}")
            if decides
            else nullcontext((None, obedient_model))
        )
        with served as (_, model), open_context(victim.roots, policy, in_process=False) as context:
            if where == "index":
                rebuild_index(context.state, context.roots["user"], policy, make_deadline())
            victim.seal()
            fact = case.text if where == "fact" else FACT
            result = run_remember(context, fact, model, observe=lambda each: tools.append(each.tool), **terms)
        document = result.as_json()
        texts = [json.dumps(document, ensure_ascii=False), *obedient_model.texts, *read_log()]
        assert [
            *victim.find_problems(document, trust="agent", policy=policy.label),
            *victim.find_leaks(*texts),
        ] == []
        assert not [text for text in texts if str(victim.memory) in text]
        case_run = CaseRun(case, victim, obedient_model, result, tools, victim.find_changed())
        if obeys:
            case_run.assert_obeyed()
        return case_run

    return run


def test_cases_cover_many_languages():
    cases = CASES.values()
    assert len(cases) >= 70
    assert {"en", "de", "fr", "es", "zh", "ja", "ko", "ru", "ar", "hi"} <= {case["lang"] for case in cases}


@pytest.mark.threat("T-LEAK-03", control="layer_one")
def test_obedient_model_has_no_effect_outside_the_policy(run_case, sample_rows):
    for name in sample_rows(CASES, 15):
        run_case(name).assert_expected()
    for name in sample_rows(STOPPED, 4):
        run_case(name, policy=UNGATED).assert_expected(gated=False)


def test_clean_run_only_creates_entries(run_case, sample_rows):
    clean = {"context": "clean"}
    rows = ((CASES, 25, clean), (CASES, 30, {"policy": CLEAN}), (STOPPED, 9, clean | {"policy": UNGATED}))
    for names, step, terms in rows:
        for name in sample_rows(names, step):
            case_run = run_case(name, where="fact", **terms)
            case_run.assert_only_created()
            is_judged = terms.get("policy") is not UNGATED
            assert case_run.result.error or not (
                is_judged and any(map(leads_out, case_run.requested_paths))
            ), name
    for name in sample_rows(STORED, 9):  # A clean run sees no stored text.
        case_run = run_case(name, obeys=False, **clean)
        assert (case_run.obedient_model.obeyed, case_run.outcome, case_run.changed) == (
            [],
            "remember_no_update",
            set(),
        ), name


@pytest.mark.threat("T-MEM-11", control="narrowed_writes")
def test_run_for_one_scope_writes_no_other(run_case, sample_rows):
    for name in sample_rows([name for name, case in CASES.items() if "project" in str(case)], 4):
        case_run = run_case(name, scope="user")
        assert case_run.changed <= {path for path in case_run.requested_paths if path.startswith("user/")}, (
            name
        )


def test_deciding_model_can_only_misfile(run_case, sample_rows):
    for policy, step in ((STRICT, 13), (UNGATED, 17)):
        for name in sample_rows(DECIDING, step):
            case_run = run_case(name, where="fact", decides=True, policy=policy, obeys=False)
            assert not [path for path in case_run.changed if case_run.victim.existed_before(path)], name
            for path in case_run.changed:
                assert case_run.case.text.strip() in (case_run.victim.memory / path).read_text(), name
            assert len(case_run.changed) == (case_run.result.error is None), name


# -- the oracle can fail: an honest run passes, and each violation is found

ID, AT = "01K8ZQ4N6E5T3V9M2B7C1D0F8G", "2026-11-22T01:00:00Z"
ORIGIN = {"task": "remember-1", "trust": "agent", "decided_by": "obedient", "policy": "strict@1"}
PROVENANCE = f"muniment: {json.dumps({'id': ID, 'created': AT, 'updated': AT, **ORIGIN})}"
INDEXED = ("deploy/window.md", "editor.md", "food/allergies.md", "pinned/rules.md")


ENTRY = f"---\n{PROVENANCE}\n---\nPrefers tea.\n"
ENTRIES = {
    "valid": ("drinks/tea.md", ENTRY),
    "too deep": ("a/b/tea.md", ENTRY),
    "pinned": ("Pinned/tea.md", ENTRY),
    "an instruction file": ("Claude.md", ENTRY),
    "markup in its name": ("[tea](x).md", ENTRY),
    "another origin": ("t.md", ENTRY.replace("agent", "owner")),
    "escaped second origin": (
        "t.md",
        ENTRY.replace("---\n", '---\n"\\x6duniment": {"trust": "owner"}\n', 1),
    ),
    "no origin": ("t.md", "Prefers tea.\n"),
    "too large": ("t.md", ENTRY + "x" * 140_000),
    "invented time": ("t.md", ENTRY.replace("2026", "2001", 1)),
    "reversed text": ("t.md", f"{ENTRY}a \u202eb\n"),
    "another entry removed": ("t.md", ENTRY),
}


def test_oracle_reports_invalid_and_removed_entries(tmp_path, subtests):
    for number, (kind, (rel, content)) in enumerate(ENTRIES.items()):
        with subtests.test(kind):
            victim, touched = VictimHome(tmp_path / str(number)), [f"user/{rel}"]
            victim.seal()
            links = "".join(f"- [{Path(each).stem}]({each})\n" for each in (*INDEXED, rel))
            write_private(victim.memory / "user" / rel, content)
            write_private(victim.memory / "user/MEMORY.md", f"# Memory index\n\nGenerated.\n\n{links}")
            if kind == "another entry removed":
                (victim.memory / "user/editor.md").unlink()
                touched += ["user/editor.md"]
            report = {"files_touched": touched, "touched_scopes": ["user"], "task_id": ORIGIN["task"]}
            report |= {"status": "completed", "error": None, "summary": "Saved.", "decided_by": "obedient"}
            problems = list(victim.find_problems(report, trust=ORIGIN["trust"], policy=ORIGIN["policy"]))
            assert (problems == []) == (kind == "valid"), problems
            assert len(touched) == 1 or "user/editor.md is gone" in problems
