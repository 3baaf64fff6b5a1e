"""A policy cannot be made to do less than it says: by a typing error, a mode, or what else is installed."""

from __future__ import annotations

import tomllib
from importlib import resources

import pathspec
import pytest

from kit.policy.files import code, parsed, refusal
from muniment.names import Verb
from muniment.policy.decide import Judge
from muniment.policy.grammar import canonicalise
from muniment.policy.load import load_policy

FOLDER = resources.files("muniment") / "policies"
SHIPPED = {file.name[:-5]: file.read_text() for file in FOLDER.iterdir() if file.name.endswith(".toml")}
DENIES = [(name, rule) for name, text in SHIPPED.items() for rule in tomllib.loads(text).get("deny", [])]

BREAKAGES = {
    'paths = ["': ['path = ["', 'paths = ["[0-9', 'paths = ["!', 'paths = ["#', r'paths = ["\\'],
    "verbs = [": ["Verbs = [", 'verbs = ["rewrite", ', "verbs = [] # ["],
    "[[deny]]": ["[[denied]]", "[[deny.rules]]"],
}
"""What becomes of the first such text of a deny rule."""


def rule_text(name, rule):
    """All that stands in front of a deny rule, and its own text."""
    head, marker, tail = SHIPPED[name].partition(f'id = "{rule["id"]}"')
    start = head.rindex("[[deny]]")
    own, rest, below = (head[start:] + marker + tail).partition("\n\n")
    return head[:start], own, rest + below


@pytest.mark.threat("T-POL-01", control="closed_tables")
def test_a_shipped_deny_rule_that_is_broken_refuses_to_load():
    for name, rule in DENIES:
        head, own, below = rule_text(name, rule)
        own = own.replace("paths = [\n    ", "paths = [")
        for old, news in BREAKAGES.items():
            for new in news:
                broken = own.replace(old, new, 1)
                assert broken != own
                found = code(parsed, head + broken + below, **SHIPPED)
                # E401: only the policy's own tests noticed it.
                assert found not in {None, "E401"}, (name, rule["id"], new)


def spoilt(pattern):
    """What may become of a pattern: a bracket left open, blanks, scopes that are none, a negation, a dot."""
    name = pattern.removeprefix("/*").removeprefix("/")
    yield from (f"{pattern}[0-9", f"[0-9{pattern}", f"{pattern} ", f" {pattern}", f"/users/{name}")
    yield from (f"USER/{name}", f"!{pattern}", f"{pattern.removesuffix('/')}.", f"{pattern}//")


@pytest.mark.sweep(3)
@pytest.mark.threat("T-POL-01", control="pattern_subset")
@pytest.mark.parametrize("part", range(12))
def test_a_shipped_policy_with_one_pattern_spoilt_refuses_to_load(part):
    cases = [
        (name, rule, pattern, other)
        for name, rule in DENIES
        for pattern in rule["paths"]
        for other in spoilt(pattern)
    ]
    for name, rule, pattern, other in cases[part::12]:
        head, own, below = rule_text(name, rule)
        before, marker, paths = own.partition("paths = [")
        text = paths.replace(f'"{pattern}"', f'"{other}"', 1)
        assert text != paths
        found = refusal(parsed, head + before + marker + text + below, **SHIPPED)
        assert found.rule in {"E201", "E203", "E206"}, (name, other)
        assert f"deny[{rule['id']}]" in str(found)


WATCHING = """mode = "audit"|mode = "permissive"|audit = true|dry_run = true|enforce = false|
enforcement = "warn"|on_violation = "log\""""


@pytest.mark.threat("T-POL-06", control="closed_tables")
def test_no_key_makes_a_policy_only_watch():
    for place in ("schema", "[confinement]\n", "[scopes]\n", "[changes]\n", "[content]\n"):
        head, marker, tail = SHIPPED["strict"].partition(place)
        for line in WATCHING.replace("\n", "").split("|"):
            text = f"{head}{marker}{line}\n{tail}" if marker != "schema" else f"{line}\n{SHIPPED['strict']}"
            assert code(parsed, text, **SHIPPED) in {"E101", "E104"}, (place, line)


@pytest.mark.threat("T-POL-08", control="own_matching")
def test_no_matcher_of_pathspec_is_asked_so_no_backend_of_it_decides(monkeypatch):
    """pathspec chooses its matcher by what else is installed, google-re2 for one."""

    def asked(*_, **__):
        pytest.fail("pathspec's own matcher was asked")

    for spec in (pathspec.PathSpec, pathspec.GitIgnoreSpec):
        for method in ("match_file", "match_files", "check_file", "check_files", "match_entries"):
            monkeypatch.setattr(spec, method, asked)
    policy = load_policy("strict")
    judge = Judge(policy)
    for text in ("user/a.md", "user/Pinned/a.md", "user/a.md/b.sh", "project/t/x.md", "user/.git/a.md"):
        for verb in Verb:
            judge.decide(verb, canonicalise(text, policy.scopes))
