"""The shipped policies mean what policies/README.md says."""

from __future__ import annotations

import time
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from muniment.lab.proofs import diff, mutants, prove, read_invariants
from muniment.lab.review import lint
from muniment.lab.schema import render
from muniment.names import Verb
from muniment.policy.decide import GATES, Changes, Content, Judge, Provenance, Retention, dump, parse_dump
from muniment.policy.family import LOCK_NAME, read_lock
from muniment.policy.grammar import canonicalise
from muniment.policy.load import load_files, load_policy

FOLDER = Path(str(resources.files("muniment") / "policies"))
NAMES = ["ceiling", "clean", "hardened", "strict", "team"]
WRITING = {Verb.CREATE, Verb.MODIFY}
READING = {Verb.LIST, Verb.READ}


@pytest.mark.threat("T-MEM-12", control="denies")
@pytest.mark.threat("T-PATH-11", control="exact_files")
@pytest.mark.threat("T-PATH-09", control="folding")
@pytest.mark.parametrize(
    ("text", "verbs"),
    [
        ("user/editor.md", READING | WRITING),
        ("project/build/commands.md", READING | WRITING),
        ("user/a/b/deep.md", READING),
        ("user/pinned/rules.md", READING),
        ("user/t/Pinned/rules.md", READING),
        ("user/MEMORY.md", READING),
        ("project/t/memory.md", READING),
        ("user/index/a.md", READING),
        ("user/AGENTS.md", READING),
        ("project/t/Claude.md", READING),
        ("user/.hidden.md", set()),
        ("user/.git/config", set()),
        ("user/notes.txt", set()),
        ("user/a.md/evil.sh", set()),
    ],
)
def test_strict_grants_exactly_this(text, verbs):
    policy = load_policy("strict")
    judge, path = Judge(policy), canonicalise(text, policy.scopes)
    assert {verb for verb in Verb if judge.allows(verb, path)} == verbs


@pytest.mark.parametrize("text", ["user/editor.md", "project/t/a.md", "user/pinned/a.md", "user/a/b/c.md"])
def test_clean_grants_creating_where_strict_does_and_nothing_else(text):
    strict, clean = load_policy("strict"), load_policy("clean")
    path = canonicalise(text, clean.scopes)
    granted = {verb for verb in Verb if Judge(clean).allows(verb, path)}
    assert granted == {Verb.CREATE} & {verb for verb in Verb if Judge(strict).allows(verb, path)}
    assert not Judge(clean).reaches(Verb.LIST, path.scope)


@pytest.mark.parametrize(
    "text", ["user/editor.md", "project/t/a.md", "user/pinned/a.md", "user/a/b/c.md", "user/.git/a.md"]
)
def test_hardened_grants_what_strict_grants(text):
    strict, hardened = load_policy("strict"), load_policy("hardened")
    path = canonicalise(text, hardened.scopes)
    for verb in Verb:
        assert Judge(hardened).allows(verb, path) == Judge(strict).allows(verb, path)


@pytest.mark.parametrize("name", ["strict", "hardened", "clean"])
def test_every_shipped_policy_turns_every_gate_on_and_quarantines_what_is_doubtful(name):
    policy = load_policy(name)
    assert policy.content == Content(reject=GATES, secrets="reject", instructions="quarantine")
    assert policy.provenance == Provenance(untrusted_sources="quarantine")
    assert policy.retention == Retention(default="never", untrusted=14)
    assert policy.changes == Changes(conflict="retry", max_forget=5, max_scope_share=0.2)
    assert [policy.commit_of(scope) for scope in policy.scopes] == ["auto", "auto"]


def test_team_does_not_know_user_and_reviews_what_others_will_read():
    team = load_policy("team")
    assert {scope: team.commit_of(scope) for scope in team.scopes} == {"project": "auto", "team": "review"}


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_policy_lints_clean_but_for_what_the_ceiling_is_there_to_show(name):
    loud = lint(name)
    if name == "ceiling":
        (finding,) = loud
        assert (finding.code, "one run may read user/" in finding.problem) == ("W804", True)
        assert "W804" in (FOLDER / "ceiling.toml").read_text()
    else:
        assert loud == []


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", NAMES)
def test_the_inline_tests_of_a_shipped_policy_notice_every_weakening(name):
    made = list(mutants(load_files(name)))
    assert made
    assert [mutant for mutant in made if mutant.status not in {"caught", "equivalent"}] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_policy_is_proved_below_the_ceiling(name):
    assert diff(load_policy("ceiling"), load_policy(name)).verdict == "proved"


@pytest.mark.parametrize("name", ["hardened", "clean"])
def test_the_children_of_strict_are_proved_below_it(name):
    assert diff(load_policy("strict"), load_policy(name)).verdict == "proved"


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", NAMES)
def test_every_invariant_is_proved_but_that_the_ceiling_joins_user_and_team(name):
    invariants = read_invariants(tomllib.loads((FOLDER / "invariants.toml").read_text()), "invariants")
    findings = prove(invariants, load_policy(name))
    assert len(findings) == 8
    assert all(finding.why for finding in findings)
    broken = [finding for finding in findings if finding.status != "proved"]
    if name == "ceiling":
        (finding,) = broken
        assert (finding.id, finding.status) == ("apart", "broken")
        private, shared = finding.witnesses
        assert private.path.startswith("user/")
        assert shared.path.startswith("team/")
    else:
        assert broken == []


def test_the_lock_and_the_schema_beside_the_shipped_policies_are_current():
    assert read_lock(FOLDER / LOCK_NAME) == {name: load_policy(name).digest for name in NAMES}
    assert (FOLDER / "policy.schema.json").read_text() == render()
    for name in NAMES:
        assert (FOLDER / f"{name}.toml").read_text().startswith("#:schema ./policy.schema.json\n")


def test_handing_a_policy_to_a_worker_is_cheap():
    text = dump(load_policy("strict"))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        Judge(parse_dump(text))
        times.append(time.perf_counter() - start)
    assert len(text) < 4_096
    assert min(times) < 0.05
