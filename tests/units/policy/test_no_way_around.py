"""A policy cannot be made to do less than it says: by a typing error, a mode, or what else is installed."""

from __future__ import annotations

import tomllib
from importlib import resources

import pathspec
import pytest

from kit.policy.files import code, parsed
from muniment.names import Verb
from muniment.policy.decide import Judge
from muniment.policy.grammar import canonicalise
from muniment.policy.load import load_policy

FOLDER = resources.files("muniment") / "policies"
SHIPPED = {file.name[:-5]: file.read_text() for file in FOLDER.iterdir() if file.name.endswith(".toml")}

BREAKAGES = {
    'paths = ["': ['path = ["', 'paths = ["[0-9', 'paths = ["!', 'paths = ["#', r'paths = ["\\'],
    "verbs = [": ["Verbs = [", 'verbs = ["rewrite", ', "verbs = [] # ["],
    "[[deny]]": ["[[denied]]", "[[deny.rules]]"],
}
"""What becomes of the first such text of a deny rule."""


@pytest.mark.sweep(2)
@pytest.mark.threat("T-POL-01", control="closed_tables")
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_deny_rule_that_is_broken_refuses_to_load(name):
    for rule in tomllib.loads(SHIPPED[name]).get("deny", []):
        head, marker, tail = SHIPPED[name].partition(f'id = "{rule["id"]}"')
        start = head.rindex("[[deny]]")
        own, rest, below = (head[start:] + marker + tail).partition("\n\n")
        own = own.replace("paths = [\n    ", "paths = [")
        for old, news in BREAKAGES.items():
            for new in news:
                broken = own.replace(old, new, 1)
                assert broken != own
                found = code(parsed, head[:start] + broken + rest + below, **SHIPPED)
                assert found not in {None, "E401"}, (rule["id"], new)  # E401: only its own tests noticed it.


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
