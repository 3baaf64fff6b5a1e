"""Inline tests: what `[[test]]` can ask of a policy, and that a wrong answer is told."""

from __future__ import annotations

import pytest

from kit.policy.files import SCOPES, named
from muniment.errors import PolicyInvalid
from muniment.policy.decide import Judge
from muniment.policy.load import failure, parse_policy
from muniment.policy.tables import CheckTable

WRITE = '[[allow]]\nid = "w"\nverbs = ["read", "create", "modify"]\npaths = ["/user/**"]\n'
KEEP = '[[deny]]\nid = "keep"\nverbs = ["delete"]\npaths = ["kept/"]\n'
QUOTAS = """\
[[quota]]
id = "all"
paths = ["/**"]
max_file_bytes = 100
max_files = 10
max_total_bytes = 500
[[quota]]
id = "small"
paths = ["/user/small/**"]
max_file_bytes = 40
max_files = 20
[[quota]]
id = "elsewhere"
paths = ["/user/other/**"]
max_file_bytes = 1
"""


def policy(body):
    return parse_policy(named("own", SCOPES + body), where="own", parents={}.__getitem__)


def answer(body, verb, path, **sizes):
    """What the policy answers, by which expectation does not fail; the other one has to."""
    effective = policy(body)
    judge = Judge(effective)
    told = {
        expect: failure(CheckTable(verb=verb, path=path, expect=expect, **sizes), judge, effective)
        for expect in ("allow", "deny")
    }
    (held,) = (expect for expect, failed in told.items() if failed is None)
    return held


@pytest.mark.parametrize(
    ("verb", "path", "expected"),
    [
        ("read", "user/a.md", "allow"),
        ("read", "/memories/user/a.md", "allow"),
        ("list", "user/a.md", "deny"),
        ("create", "user/a.md", "allow"),
        ("create", "user/a.txt", "deny"),
        ("modify", "user/a.txt", "allow"),
        ("delete", "user/a.md", "deny"),
        ("removal", "user/a.md", "allow"),
        ("removal", "user/kept/a.md", "deny"),
        ("read", "user/kept/a.md", "allow"),
        ("removal", "user/../a.md", "deny"),
        ("read", "/etc/passwd", "deny"),
        ("read", "team/a.md", "deny"),
        ("read", "user", "deny"),
        ("read", "user/a\x1b.md", "deny"),
        ("read", "", "deny"),
    ],
)
def test_a_test_is_answered_as_a_request_of_the_model_or_a_removal_by_code_would_be(verb, path, expected):
    assert answer(WRITE + KEEP, verb, path) == expected


@pytest.mark.parametrize(
    ("path", "key", "bound"),
    [
        ("user/a.md", "file_bytes", 100),
        ("user/a.md", "files", 10),
        ("user/a.md", "total_bytes", 500),
        ("user/small/a.md", "file_bytes", 40),
        ("user/small/a.md", "files", 10),
        ("user/other/a.md", "file_bytes", 1),
    ],
)
@pytest.mark.parametrize("verb", ["create", "modify"])
def test_the_bound_itself_is_allowed_and_one_more_is_not_and_the_smallest_quota_counts(
    verb, path, key, bound
):
    assert answer(WRITE + QUOTAS, verb, path, **{key: bound}) == "allow"
    assert answer(WRITE + QUOTAS, verb, path, **{key: bound + 1}) == "deny"


@pytest.mark.parametrize("verb", ["list", "read", "delete", "removal"])
@pytest.mark.parametrize("key", ["file_bytes", "files", "total_bytes"])
def test_to_ask_for_a_size_where_nothing_is_written_is_a_mistake(verb, key):
    check = f'[[test]]\nverb = "{verb}"\npath = "user/a.md"\nexpect = "deny"\n{key} = 9\n'
    with pytest.raises(PolicyInvalid) as caught:
        policy(WRITE + check)
    assert (caught.value.rule, caught.value.where, caught.value.line) == ("E104", "own test[0]", 10)
    assert "are for create and modify" in caught.value.problem
