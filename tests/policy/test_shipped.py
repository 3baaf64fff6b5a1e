"""The shipped policies mean what policies/README.md says."""

from __future__ import annotations

import time
from importlib import resources

import pytest

from muniment.names import Verb
from muniment.policy.decide import Judge
from muniment.policy.grammar import canonicalise
from muniment.policy.load import load_policy
from muniment.policy.model import GATES, Changes, Content, Provenance, Retention, dump, parse_dump

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


def test_every_shipped_policy_loads_under_its_own_name_and_is_described():
    folder = resources.files("muniment") / "policies"
    names = sorted(
        file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml")
    )
    assert names == ["clean", "hardened", "strict"]
    readme = (folder / "README.md").read_text()
    for name in names:
        assert load_policy(name).name == name
        assert f"## {name}\n" in readme


def test_handing_a_policy_to_a_worker_is_cheap():
    text = dump(load_policy("strict"))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        Judge(parse_dump(text))
        times.append(time.perf_counter() - start)
    assert len(text) < 4_096
    assert min(times) < 0.05
