"""A policy cannot be made to do less than it says: by a typing error, a mode, or what else is installed."""

from __future__ import annotations

import tomllib
from importlib import resources

import pathspec
import pytest

from muniment.errors import PolicyInvalid
from muniment.names import Verb
from muniment.policy.decide import Judge
from muniment.policy.grammar import canonicalise
from muniment.policy.load import load_policy, parse_policy

FOLDER = resources.files("muniment") / "policies"
SHIPPED = {
    file.name.removesuffix(".toml"): file.read_text()
    for file in FOLDER.iterdir()
    if file.name.endswith(".toml")
}
DENIES = [
    (name, rule["id"]) for name, text in SHIPPED.items() for rule in tomllib.loads(text).get("deny", [])
]

BREAKAGES = {
    "a key with a typing error": ('paths = ["', 'path = ["'),
    "a key in capitals": ("verbs = ", "Verbs = "),
    "a table of another name": ("[[deny]]", "[[denied]]"),
    "a nested table": ("[[deny]]", "[[deny.rules]]"),
    "a bracket that is left open": ('paths = ["', 'paths = ["[0-9'),
    "a negation": ('paths = ["', 'paths = ["!'),
    "a comment for a pattern": ('paths = ["', 'paths = ["#'),
    "a backslash": ('paths = ["', r'paths = ["\\'),
    "a verb with a typing error": ('verbs = ["', 'verbs = ["rewrite", "'),
    "no verb": ("verbs = [", "verbs = [] # ["),
}
"""What becomes of the first such text behind the rule's table header."""


def broken(text, rule, breakage):
    """`text` with one deny rule broken; None where it holds nothing of that kind to break."""
    old, new = BREAKAGES[breakage]
    head, marker, tail = text.partition(f'id = "{rule}"')
    start = head.rindex("[[deny]]")
    table, _, rest = (head[start:] + marker + tail).partition("\n\n")
    if "\n]" in table and old.startswith("paths"):
        table = table.replace("[\n    ", "[")
    if old not in table:
        return None
    return f"{head[:start]}{table.replace(old, new, 1)}\n\n{rest}"


@pytest.mark.threat("T-POL-01", control="closed_tables")
@pytest.mark.parametrize("breakage", BREAKAGES)
@pytest.mark.parametrize(("name", "rule"), DENIES)
def test_a_shipped_deny_rule_that_is_broken_refuses_to_load(name, rule, breakage):
    text = broken(SHIPPED[name], rule, breakage)
    assert text not in {None, SHIPPED[name]}
    with pytest.raises(PolicyInvalid) as caught:
        parse_policy(text, where=name, parents=SHIPPED.__getitem__)
    assert caught.value.rule != "E401", "only the policy's own tests noticed it"


PATTERNS = [
    (name, rule["id"], pattern)
    for name, text in SHIPPED.items()
    for rule in tomllib.loads(text).get("deny", [])
    for pattern in rule["paths"]
]

SPOILT = {
    "a bracket that is left open": lambda pattern: f"{pattern}[0-9",
    "a bracket that is left open before it": lambda pattern: f"[0-9{pattern}",
    "a space behind it": lambda pattern: f"{pattern} ",
    "a space before it": lambda pattern: f" {pattern}",
    "an undeclared scope, anchored": lambda pattern: f"/users/{pattern.removeprefix('/*').removeprefix('/')}",
    "an undeclared scope, in capitals": lambda pattern: (
        f"USER/{pattern.removeprefix('/*').removeprefix('/')}"
    ),
    "a negation": lambda pattern: f"!{pattern}",
    "a dot behind it": lambda pattern: f"{pattern.removesuffix('/')}.",
    "a slash too many": lambda pattern: f"{pattern}//",
}
"""What becomes of one pattern of a rule."""


@pytest.mark.sweep(95)
@pytest.mark.threat("T-POL-01", control="pattern_subset")
@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize(("name", "rule", "pattern"), PATTERNS)
def test_a_shipped_policy_with_one_pattern_spoilt_refuses_to_load(name, rule, pattern, spoilt):
    text = SHIPPED[name]
    start = text.index("paths", text.rindex("[[deny]]", 0, text.index(f'id = "{rule}"') + len(rule) + 8))
    end = text.index("]\n", start)
    paths = text[start:end].replace(f'"{pattern}"', f'"{SPOILT[spoilt](pattern)}"', 1)
    assert paths != text[start:end]
    with pytest.raises(PolicyInvalid) as caught:
        parse_policy(text[:start] + paths + text[end:], where=name, parents=SHIPPED.__getitem__)
    assert caught.value.rule in {"E201", "E203", "E206"}
    assert f"deny[{rule}]" in str(caught.value)


@pytest.mark.threat("T-POL-06", control="closed_tables")
@pytest.mark.parametrize(
    "line",
    [
        'mode = "audit"',
        'mode = "permissive"',
        "audit = true",
        "dry_run = true",
        "enforce = false",
        'enforcement = "warn"',
        'on_violation = "log"',
    ],
)
@pytest.mark.parametrize("place", ["", "[confinement]\n", "[scopes]\n", "[changes]\n", "[content]\n"])
def test_no_key_makes_a_policy_only_watch(line, place):
    head, marker, tail = SHIPPED["strict"].partition(place) if place else ("", "", SHIPPED["strict"])
    with pytest.raises(PolicyInvalid):
        parse_policy(f"{head}{marker}{line}\n{tail}", where="strict", parents=SHIPPED.__getitem__)


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
