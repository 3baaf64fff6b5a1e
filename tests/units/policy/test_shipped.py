"""The policies of the package mean what policies/README.md describes."""

import tomllib
from pathlib import Path

import pathspec
import pytest

from kit.policy.files import parse_text, read_error_code
from muniment.kernel.decide import GATES, Changes, Content, PolicyEvaluator, Provenance, Retention
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.lab.proofs import compare_policies, generate_mutants, prove_invariants, read_invariants
from muniment.lab.review import lint_policy
from muniment.lab.schema import render_schema
from muniment.policy.family import read_lock
from muniment.policy.files import LOCK_NAME, get_shipped_folder
from muniment.policy.load import load_files, load_policy

FOLDER = Path(get_shipped_folder())
NAMES = ["ceiling", "clean", "hardened", "strict", "team"]
WRITTEN = "user/editor.md project/build/commands.md"
READ = """user/a/b/deep.md user/pinned/rules.md user/t/Pinned/rules.md user/MEMORY.md project/t/memory.md
user/index/a.md user/AGENTS.md project/t/Claude.md"""
HIDDEN = "user/.hidden.md user/.git/config user/notes.txt user/a.md/evil.sh"


@pytest.mark.threat("T-MEM-12", control="denies")
def test_strict_grants_exactly_this_and_the_others_no_more():
    reading, writing = {Verb.LIST, Verb.READ}, {Verb.CREATE, Verb.MODIFY}
    judges = [PolicyEvaluator(load_policy(name)) for name in ("strict", "hardened", "clean")]
    for texts, verbs in (WRITTEN, reading | writing), (READ, reading), (HIDDEN, set()):
        for text in texts.split():
            path = canonicalise(text, ("user", "project"))
            granted = [{verb for verb in Verb if judge.allows(verb, path)} for judge in judges]
            assert granted == [verbs, verbs, verbs & {Verb.CREATE}], text
    assert not judges[-1].may_grant_in(Verb.LIST, "user")
    assert len(load_policy("strict").text) < 6_200  # Every worker receives it.


def test_package_policies_enable_every_content_check():
    expected = {
        "content": Content(reject=GATES, secrets="reject", instructions="quarantine", poison="quarantine")
    }
    expected["provenance"] = Provenance(untrusted_sources="quarantine")
    expected["retention"] = Retention(default="never", untrusted=14)
    expected |= {"changes": Changes(conflict="retry", max_forget=5, max_scope_share=0.2)}
    for name in ("strict", "hardened", "clean"):
        policy = load_policy(name)
        assert {key: getattr(policy, key) for key in expected} == expected
        assert [policy.get_commit_mode(scope) for scope in policy.scopes] == ["auto", "auto"]
    team = load_policy("team")  # It does not have the scope `user`, and reviews shared facts.
    assert {scope: team.get_commit_mode(scope) for scope in team.scopes} == {
        "project": "auto",
        "team": "review",
    }


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["hardened", "ceiling", "clean", "strict", "team"])
def test_package_policy_is_clean_and_no_wider_than_its_parents(name):
    findings = [(each.code, "one run may read user/" in each.problem) for each in lint_policy(name)]
    assert findings == ([("W804", True)] if name == "ceiling" else [])
    statuses = {each.status for each in generate_mutants(load_files(name))}
    assert statuses in ({"equivalent"}, {"caught", "equivalent"}, {"caught"})
    for elder in ("ceiling", "strict") if name in {"hardened", "clean"} else ["ceiling"]:
        assert compare_policies(load_policy(elder), load_policy(name)).verdict == "proved"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", NAMES)
def test_every_invariant_is_proved_except_one_of_the_ceiling(name):
    invariants = read_invariants(tomllib.loads((FOLDER / "invariants.toml").read_text()), "invariants")
    findings = prove_invariants(invariants, load_policy(name))
    assert [bool(finding.why) for finding in findings] == [True] * 8
    broken = [finding for finding in findings if finding.status != "proved"]
    assert [(finding.id, finding.status) for finding in broken] == [("apart", "broken")] * (name == "ceiling")
    scopes = [each.path.partition("/")[0] for finding in broken for each in finding.witnesses]
    assert scopes == ["user", "team"] * (name == "ceiling")


def test_lock_and_schema_of_the_package_are_current():
    """To update the schema: python -m muniment.lab.schema > policies/policy.schema.json."""
    assert read_lock(FOLDER / LOCK_NAME) == {name: load_policy(name).digest for name in NAMES}
    assert (FOLDER / "policy.schema.json").read_text() == render_schema()
    for name in NAMES:
        assert (FOLDER / f"{name}.toml").read_text().startswith("#:schema ./policy.schema.json\n")


# -- a typing error, a mode or an installed package cannot weaken them --

SHIPPED = {name: (FOLDER / f"{name}.toml").read_text() for name in NAMES}
# Replacements for the first such text of a deny rule.
BREAKAGES = {
    'paths = ["': ['path = ["', 'paths = ["[0-9', 'paths = ["!', 'paths = ["#', r'paths = ["\\'],
    "verbs = [": ["Verbs = [", 'verbs = ["rewrite", ', "verbs = [] # ["],
    "[[deny]]": ["[[denied]]", "[[deny.rules]]"],
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", NAMES)
def test_broken_deny_rule_of_the_package_does_not_load(name):
    for rule in tomllib.loads(SHIPPED[name]).get("deny", []):
        head, marker, tail = SHIPPED[name].partition(f'id = "{rule["id"]}"')
        start = head.rindex("[[deny]]")
        own, rest, below = (head[start:] + marker + tail).partition("\n\n")
        own = own.replace("paths = [\n    ", "paths = [")
        for old, new in ((old, new) for old, news in BREAKAGES.items() for new in news):
            broken = own.replace(old, new, 1)
            found = read_error_code(parse_text, head[:start] + broken + rest + below, **SHIPPED)
            # E401: only its inline tests detected it.
            assert (broken != own, found in {None, "E401"}) == (True, False), (rule["id"], new)


OBSERVE_LINES = (
    'mode = "audit"',
    "audit = true",
    "dry_run = true",
    "enforce = false",
    'on_violation = "log"',
)


@pytest.mark.threat("T-POL-06", control="closed_tables")
def test_no_key_makes_a_policy_only_observe():
    for place in ("schema", "[confinement]\n", "[scopes]\n", "[changes]\n", "[content]\n"):
        head, marker, tail = SHIPPED["strict"].partition(place)
        for line in OBSERVE_LINES:
            text = f"{line}\n{SHIPPED['strict']}" if marker == "schema" else f"{head}{marker}{line}\n{tail}"
            assert read_error_code(parse_text, text, **SHIPPED) in {"E101", "E104"}, (place, line)


@pytest.mark.threat("T-POL-08", control="own_matching")
def test_matchers_of_pathspec_are_never_called(monkeypatch):
    """pathspec chooses its matcher by the installed packages, for example google-re2."""
    calls = []
    for spec in (pathspec.PathSpec, pathspec.GitIgnoreSpec):
        for method in ("match_file", "match_files", "check_file", "check_files", "match_entries"):
            monkeypatch.setattr(spec, method, lambda *args, **_: calls.append(args))
    policy = load_policy("strict")
    for text in ("user/a.md", "user/Pinned/a.md", "user/a.md/b.sh", "project/t/x.md", "user/.git/a.md"):
        for verb in Verb:
            PolicyEvaluator(policy).decide(verb, canonicalise(text, policy.scopes))
    assert calls == []
