"""Inline tests: what `[[test]]` can ask of a policy, and that a wrong answer is told."""

from __future__ import annotations

from kit.policy.files import CHECK, SCOPES, code, named, parsed, quota, refusal, rule

WRITE = rule("allow", "w", ["read", "create", "modify"], ["/user/**"])
KEEP = rule("deny", "keep", ["delete"], ["kept/"])
QUOTAS = (
    quota("all", max_file_bytes=100, max_files=10, max_total_bytes=500)
    + quota("small", "/user/small/**", max_file_bytes=40, max_files=20)
    + quota("elsewhere", "/user/other/**", max_file_bytes=1)
)


def answers(body, verb, path, **sizes):
    """What the policy answers: the expectations with which it loads."""
    said = "".join(f"{key} = {size}\n" for key, size in sizes.items())
    asked = {
        each: CHECK.replace("user/{}", "{}").format(verb, path, each) + said for each in ("allow", "deny")
    }
    told = {each: code(parsed, named("own", SCOPES + body + check)) for each, check in asked.items()}
    assert {*told.values()} == {None, "E401"}
    return [each for each, failed in told.items() if failed is None]


ASKED = """
allow: read user/a.md|read /memories/user/a.md|create user/a.md|modify user/a.txt
allow: removal user/a.md|read user/kept/a.md
deny: list user/a.md|create user/a.txt|delete user/a.md|removal user/kept/a.md|removal user/../a.md
deny: read /etc/passwd|read team/a.md|read user|read user/a:b.md|read user/a\\u001b.md|read \

"""


def test_a_test_is_answered_as_a_request_of_the_model_or_a_removal_by_code_would_be():
    for line in ASKED.strip().splitlines():
        expected, _, rows = line.partition(": ")
        for row in rows.split("|"):
            verb, _, path = row.partition(" ")
            assert (row, answers(WRITE + KEEP, verb, path)) == (row, [expected])


def test_the_bound_itself_is_allowed_and_one_more_is_not_and_the_smallest_quota_counts():
    for path, key, bound in (
        ("user/a.md", "file_bytes", 100),
        ("user/a.md", "files", 10),
        ("user/a.md", "total_bytes", 500),
        ("user/small/a.md", "file_bytes", 40),
        ("user/small/a.md", "files", 10),
        ("user/other/a.md", "file_bytes", 1),
    ):
        for verb in ("create", "modify"):
            assert answers(WRITE + QUOTAS, verb, path, **{key: bound}) == ["allow"], (path, key)
            assert answers(WRITE + QUOTAS, verb, path, **{key: bound + 1}) == ["deny"], (path, key)


def test_to_ask_for_a_size_where_nothing_is_written_is_a_mistake():
    for verb in ("list", "read", "delete", "removal"):
        for key in ("file_bytes", "files", "total_bytes"):
            check = CHECK.format(verb, "a.md", "deny") + f"{key} = 9\n"
            problem = refusal(parsed, named("own", SCOPES + WRITE + check))
            assert (problem.rule, problem.where, problem.line) == ("E104", "own test[0]", 10)
            assert "are for create and modify" in problem.problem
