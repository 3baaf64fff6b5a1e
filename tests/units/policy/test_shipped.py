"""The shipped policies mean what policies/README.md says."""

import tomllib
from pathlib import Path

import pathspec
import pytest

from kit.policy.files import code, parsed
from muniment.kernel.decide import GATES, Changes, Content, Judge, Provenance, Retention
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.lab.proofs import diff, mutants, prove, read_invariants
from muniment.lab.review import lint
from muniment.lab.schema import render
from muniment.policy.family import LOCK_NAME, read_lock, shipped_folder
from muniment.policy.load import load_files, load_policy

FOLDER = Path(shipped_folder())
NAMES = ["ceiling", "clean", "hardened", "strict", "team"]
WRITTEN = "user/editor.md project/build/commands.md"
READ = """user/a/b/deep.md user/pinned/rules.md user/t/Pinned/rules.md user/MEMORY.md project/t/memory.md
user/index/a.md user/AGENTS.md project/t/Claude.md"""
HIDDEN = "user/.hidden.md user/.git/config user/notes.txt user/a.md/evil.sh"


@pytest.mark.threat("T-MEM-12", control="denies")
def test_strict_grants_exactly_this_and_hardened_and_clean_no_more():
    reading, writing = {Verb.LIST, Verb.READ}, {Verb.CREATE, Verb.MODIFY}
    judges = [Judge(load_policy(name)) for name in ("strict", "hardened", "clean")]
    for texts, verbs in (WRITTEN, reading | writing), (READ, reading), (HIDDEN, set()):
        for text in texts.split():
            path = canonicalise(text, ("user", "project"))
            granted = [{verb for verb in Verb if judge.allows(verb, path)} for judge in judges]
            assert granted == [verbs, verbs, verbs & {Verb.CREATE}], text
    assert not judges[-1].reaches(Verb.LIST, "user")
    assert len(load_policy("strict").text) < 6_200  # It is handed to every worker.


def test_every_shipped_policy_turns_every_gate_on_and_quarantines_what_is_doubtful():
    expected = {
        "content": Content(reject=GATES, secrets="reject", instructions="quarantine", poison="quarantine")
    }
    expected["provenance"] = Provenance(untrusted_sources="quarantine")
    expected["retention"] = Retention(default="never", untrusted=14)
    expected |= {"changes": Changes(conflict="retry", max_forget=5, max_scope_share=0.2)}
    for name in ("strict", "hardened", "clean"):
        policy = load_policy(name)
        assert {key: getattr(policy, key) for key in expected} == expected
        assert [policy.commit_of(scope) for scope in policy.scopes] == ["auto", "auto"]
    team = load_policy("team")  # It does not know `user`, and reviews what others will read.
    assert {scope: team.commit_of(scope) for scope in team.scopes} == {"project": "auto", "team": "review"}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["hardened", "ceiling", "clean", "strict", "team"])
def test_a_shipped_policy_lints_clean_notices_every_weakening_and_is_proved_below_its_elders(name):
    told = [(each.code, "one run may read user/" in each.problem) for each in lint(name)]
    assert told == ([("W804", True)] if name == "ceiling" else [])
    statuses = {each.status for each in mutants(load_files(name))}
    assert statuses in ({"equivalent"}, {"caught", "equivalent"}, {"caught"})
    for elder in ("ceiling", "strict") if name in {"hardened", "clean"} else ["ceiling"]:
        assert diff(load_policy(elder), load_policy(name)).verdict == "proved"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", NAMES)
def test_every_invariant_is_proved_but_that_the_ceiling_joins_user_and_team(name):
    invariants = read_invariants(tomllib.loads((FOLDER / "invariants.toml").read_text()), "invariants")
    findings = prove(invariants, load_policy(name))
    assert [bool(finding.why) for finding in findings] == [True] * 8
    broken = [finding for finding in findings if finding.status != "proved"]
    assert [(finding.id, finding.status) for finding in broken] == [("apart", "broken")] * (name == "ceiling")
    scopes = [each.path.partition("/")[0] for finding in broken for each in finding.witnesses]
    assert scopes == ["user", "team"] * (name == "ceiling")


def test_the_lock_and_the_schema_beside_the_shipped_policies_are_current():
    """Otherwise: python -m muniment.lab.schema > policies/policy.schema.json."""
    assert read_lock(FOLDER / LOCK_NAME) == {name: load_policy(name).digest for name in NAMES}
    assert (FOLDER / "policy.schema.json").read_text() == render()
    for name in NAMES:
        assert (FOLDER / f"{name}.toml").read_text().startswith("#:schema ./policy.schema.json\n")


# -- they cannot be made to do less: by a typing error, a mode, or what else is installed --

SHIPPED = {name: (FOLDER / f"{name}.toml").read_text() for name in NAMES}
# What becomes of the first such text of a deny rule.
BREAKAGES = {
    'paths = ["': ['path = ["', 'paths = ["[0-9', 'paths = ["!', 'paths = ["#', r'paths = ["\\'],
    "verbs = [": ["Verbs = [", 'verbs = ["rewrite", ', "verbs = [] # ["],
    "[[deny]]": ["[[denied]]", "[[deny.rules]]"],
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_deny_rule_that_is_broken_refuses_to_load(name):
    for rule in tomllib.loads(SHIPPED[name]).get("deny", []):
        head, marker, tail = SHIPPED[name].partition(f'id = "{rule["id"]}"')
        start = head.rindex("[[deny]]")
        own, rest, below = (head[start:] + marker + tail).partition("\n\n")
        own = own.replace("paths = [\n    ", "paths = [")
        for old, new in ((old, new) for old, news in BREAKAGES.items() for new in news):
            broken = own.replace(old, new, 1)
            found = code(parsed, head[:start] + broken + rest + below, **SHIPPED)
            # E401: only its own tests noticed it.
            assert (broken != own, found in {None, "E401"}) == (True, False), (rule["id"], new)


WATCHING = ('mode = "audit"', "audit = true", "dry_run = true", "enforce = false", 'on_violation = "log"')


@pytest.mark.threat("T-POL-06", control="closed_tables")
def test_no_key_makes_a_policy_only_watch():
    for place in ("schema", "[confinement]\n", "[scopes]\n", "[changes]\n", "[content]\n"):
        head, marker, tail = SHIPPED["strict"].partition(place)
        for line in WATCHING:
            text = f"{line}\n{SHIPPED['strict']}" if marker == "schema" else f"{head}{marker}{line}\n{tail}"
            assert code(parsed, text, **SHIPPED) in {"E101", "E104"}, (place, line)


@pytest.mark.threat("T-POL-08", control="own_matching")
def test_no_matcher_of_pathspec_is_asked_so_no_backend_of_it_decides(monkeypatch):
    """pathspec chooses its matcher by what else is installed, google-re2 for one."""
    asked = []
    for spec in (pathspec.PathSpec, pathspec.GitIgnoreSpec):
        for method in ("match_file", "match_files", "check_file", "check_files", "match_entries"):
            monkeypatch.setattr(spec, method, lambda *given, **_: asked.append(given))
    policy = load_policy("strict")
    for text in ("user/a.md", "user/Pinned/a.md", "user/a.md/b.sh", "project/t/x.md", "user/.git/a.md"):
        for verb in Verb:
            Judge(policy).decide(verb, canonicalise(text, policy.scopes))
    assert asked == []
