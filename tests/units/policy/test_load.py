"""Loading: in doubt no policy is loaded, and the error has a code, a position and a reason."""

from dataclasses import replace

import pytest

from kit.policy import edits
from kit.policy.files import (
    CHECK,
    READ,
    SCOPES,
    catch_invalid,
    format_allow,
    format_deny,
    format_policy,
    format_quota,
    format_rule,
    parse_text,
    read_error_code,
)
from muniment.kernel import decide
from muniment.kernel.decide import DenyPatterns, PolicyEvaluator, Retention, Rule, parse
from muniment.kernel.names import Enforcement, Trust, Verb
from muniment.kernel.path import canonicalise, fold
from muniment.policy import load
from muniment.policy.load import PatternDefect, find_defects, find_shortest_match, load_policy

HEAD = 'schema = "muniment-policy/1"\nname = "own"\n'
R = 'verbs = ["read"], paths = ["/**"]'

WRONG = """
E101 color = 1 | limits.minutes = 5 | retention.trusted = 14 | provenance.sources = 3
E101 changes.max_forgets = 5 | denied = [{}] | allow = [{id = "a", verb = "read", R}]
E101 scopes = {user = {trusted = true}}
E102 schema = | name = "twice" | x = [LONG | x = 9NINES
E103 deny = [{id = "d", paths = ["a"]}] | quota = [{id = "q"}]
E104 limits.turns = true | limits.seconds = 10.5 | limits.turns = "6" | scopes = {user = {trust = "friend"}}
E104 scopes = {user = {commit = "later"}} | scopes = 3 | confinement.require = "maximal" | allow = [3]
E104 confinement.on_escape = "log" | changes.conflict = "merge" | changes.max_forget = 2.5
E104 content.reject = ["html"] | content.reject = [3] | content.secrets = "allow"
E104 content.poison = "reject"
E104 content.instructions = "reject" | provenance.untrusted_sources = "review" | retention.untrusted = "14"
E104 changes.max_scope_share = true | retention.untrusted = true | retention.default = 1.5
E104 test = [{verb = "removal", path = "user/a.md", expect = "deny", total_bytes = 9}]
E104 test = [{verb = "read", path = "user/a.md", expect = "perhaps"}] | description = 1979-05-27
E107 allow = [{id = "a", R}, {id = "a", R}]
E107 quota = [{id = "q", paths = ["/**"]}, {id = "q", paths = ["/**"]}]
E107 allow = [{id = "a", R}]|deny = [{id = "a", R}]
E108 allow = [{id = "a", verbs = [], paths = ["/**"]}] | deny = [{id = "d", verbs = ["*"], paths = []}]
E108 scopes = {} | deny = [{id = "d", verbs = ["*"], paths = [MANY]}]
E109 allow = [{id = "a", verbs = ["write"], paths = ["/**"]}]
E109 allow = [{id = "a", verbs = ["read", "*"], paths = ["/**"]}]
E110 limits.turns = 7 | limits.seconds = 296 | limits.tool_calls = 0 | limits.read_bytes = -1
E110 limits.scan_bytes = 0xHEX | quota = [{id = "q", paths = ["/**"], max_files = 0}] | changes.max_forget = 0
E110 changes.max_scope_share = 0 | changes.max_scope_share = 1.01 | changes.max_scope_share = nan
E110 changes.max_scope_share = inf | retention.untrusted = 0 | retention.default = 36_501
E111 scopes = {"User Space" = {}} | scopes = {memories = {}} | scopes = {nul = {}}
E111 allow = [{id = "a\\nb", R}]
E111 allow = [{id = "default", R}] | deny = [{id = "scopes", R}] | deny = [{id = "name", R}]
E111 extends = ["Evil"] | extends = ["request"] | extends = ["./a\\nb.toml"] | extends = ["./A1023"]
E120 extends = ["../evil"]
E127 extends = ["/etc/evil.toml"] | extends = ["~/evil.toml"]
E201 deny = [{id = "d", verbs = ["*"], paths = ["con"]}]
E203 deny = [{id = "d", verbs = ["*"], paths = ["secrets[0-9/"]}]
E205 allow = [{id = "a", verbs = ["read"], paths = ["*.md"]}] | quota = [{id = "q", paths = ["*.md"]}]
E206 allow = [{id = "a", verbs = ["read"], paths = ["/project/**"]}]
"""
LARGE = {"[LONG": "[" * 5_000, "9NINES": "9" * 5_000, "MANY": '"a",' * 257, "HEX": "F" * 4_000}
WHOLE = {
    "E103": ['name = "own"\n' + SCOPES, 'schema = "muniment-policy/1"\n' + SCOPES],
    "E105": [HEAD.replace("/1", "/2") + SCOPES, HEAD.replace('"muniment-policy/1"', "1") + SCOPES],
    "E111": [HEAD.replace("own", name) + SCOPES for name in ("Own!", "request", "grammar")],
    "E125": [HEAD],
}


def iterate_invalid():
    """Yield each file that is invalid in one way, with its code."""
    for line in WRONG.strip().splitlines():
        for row in line[5:].split(" | "):
            text = row.replace("]|", "]\n").replace(", R}", f", {R}}}").replace("A1023", "a" * 1_023)
            for name, large in LARGE.items():
                text = text.replace(name, large)
            yield line[:4], f"{HEAD}{text}\n{'' if row.startswith('scopes') else SCOPES}"
    for each, texts in WHOLE.items():
        yield from ((each, text) for text in texts)


@pytest.mark.threat("T-POL-01", control="closed_tables")
def test_invalid_file_is_rejected_with_its_code():
    for expected, text in iterate_invalid():
        assert (read_error_code(parse_text, text), text) == (expected, text)
    refused = catch_invalid(parse_text, f"{HEAD}limits.turns = true\n{SCOPES}")
    assert "pydantic" not in str(refused)
    assert refused.__suppress_context__ or refused.__context__ is None


COMPLAINTS = [
    (f'allow = [{{id = "topics", path = "/a", {R}}}]\n{SCOPES}', "own allow[topics].path", "'paths'"),
    ("limits.tool_cals = 3\n" + SCOPES, "own limits.tool_cals", "'tool_calls'"),
    ("limits.turns = 7\nlimits.seconds = 0\n" + SCOPES, "own limits.turns", "(and 1 more)"),
    (f'allow = [{{id = "x y", {R}}}]\n{SCOPES}', "own allow[x y].id", "match"),
    (f"allow = [{{{R}}}]\n{SCOPES}", "own allow[0].id", "required"),
    (f'deny = [{{id = "d", verbs = ["*"], paths = ["a["]}}]\n{SCOPES}', "own deny[d]", "'a['"),
    (SCOPES + CHECK.format("list", "a.md", "deny") + "files = 9\n", "own test[0]", "for create and modify"),
    ("a = 1\nb = ?", "own", "line 4"),
]


def test_error_names_the_position_and_a_hint():
    for text, place, hint in COMPLAINTS:
        problem = catch_invalid(parse_text, HEAD + text)
        assert (problem.where, hint in problem.problem) == (place, True), text


def test_missing_options_have_safe_defaults():
    policy, strict = parse_text(HEAD + "[scopes]\nuser = {}\n"), load_policy("strict")
    assert policy.limits == strict.limits == decide.Limits()
    assert policy.content == strict.content == decide.Content(reject=decide.GATES)
    assert (policy.content.secrets, policy.content.instructions) == ("reject", "quarantine")
    assert policy.content.poison == "quarantine"
    assert policy.provenance.untrusted_sources == "quarantine"
    assert (policy.retention.default, policy.retention.untrusted) == ("never", 14)
    assert (policy.changes.max_forget, policy.changes.max_scope_share) == (5, 0.2)
    assert policy.confinement.require is Enforcement.PARTIAL
    assert (policy.confinement.on_escape, policy.changes.conflict) == ("abort", "fail")
    assert [(terms.trust, terms.commit) for terms in policy.scope_options] == [(Trust.EXTERNAL, "auto")]
    assert [each.id for each in policy.quotas] == ["default"]
    policy = parse_text(HEAD + '[scopes]\nuser = { trust = "owner" }\nproject = { commit = "review" }\n')
    options = {
        name: (policy.get_trust(name), policy.get_commit_mode(name)) for name in ("user", "project", "team")
    }
    review = (Trust.EXTERNAL, "review")  # `team` is not declared.
    assert options == {"user": (Trust.OWNER, "auto"), "project": review, "team": review}


def test_retention_is_days_or_never_and_invalid_text_is_e105():
    for days, written in ("never", '"never"'), (1, 1), (36_500, 36_500):
        policy = parse_text(f"{HEAD}{SCOPES}[retention]\ndefault = {written}\nuntrusted = {written}\n")
        expected = Retention(default=days, untrusted=days)
        assert policy.retention == parse(policy.text, "own").retention == expected
    assert {
        read_error_code(parse, text, "own") for text in ("", "{}", "muniment-policy-form/1\n", "\t", "\0")
    } == {"E105"}


@pytest.mark.threat("T-POL-01", control="inline_tests")
def test_failing_inline_test_is_e401():
    good = CHECK.format("read", "../a.md", "deny") + CHECK.format("read", "a.md", "allow")
    parse_text(HEAD + SCOPES + READ + good)
    for at, turned in (1, good.replace("deny", "allow")), (2, good.replace("allow", "deny")):
        problem = catch_invalid(parse_text, HEAD + SCOPES + READ + turned)
        assert (problem.rule, problem.where) == ("E401", f"own test {at}")
    wrong = format_policy("m", SCOPES + READ + CHECK.format("read", "a.md", "deny"))
    assert catch_invalid(parse_text, format_policy("own", "", ["m"]), m=wrong).where == "m test 1"


def test_digest_ignores_descriptions_and_nothing_else():
    base = HEAD + SCOPES + '[[deny]]\nid = "d"\nverbs = ["*"]\npaths = ["x"]\n'
    digest = parse_text(base).digest
    same = [
        base.replace("[scopes]", 'description = "other"\n[scopes]') + 'why = "because"\n',
        base + CHECK.format("read", "x", "deny"),
        base.replace('["*"]', '["read", "modify", "list", "delete", "create", "read"]'),
        base.replace('["x"]', '["x", "x"]'),
        base + "[limits]\nturns = 6\n[changes]\nmax_forget = 5\nmax_scope_share = 0.2\n",
    ]
    assert {parse_text(text).digest for text in same} == {digest}
    terms = """limits.turns = 5 | confinement.on_escape = "refuse" | changes.conflict = "retry" |
        content.reject = ["bidi"] | content.secrets = "redact" | content.instructions = "allow" |
        content.poison = "allow" |
        provenance.untrusted_sources = "allow" | retention.default = 14 | retention.untrusted = 15 |
        changes.max_forget = 6 | changes.max_scope_share = 0.3 | quota = [{id = "q", paths = ["/**"]}]"""
    other = [base.replace("[scopes]", f"{term.strip()}\n[scopes]") for term in terms.split("|")]
    swaps = {'"d"': '"e"', '["*"]': '["read"]', '["x"]': '["x/"]', "owner": "agent", '"auto"': '"review"'}
    other += [base.replace(old, new) for old, new in swaps.items()]
    other.append(base.replace("deny", "allow").replace('"*"', '"read"').replace('"x"', '"/user/x"'))
    assert len({digest, *(parse_text(text).digest for text in other)}) == len(other) + 1 == 20
    assert parse_text(base).label == f"own@{digest[:8]}"


def test_child_grants_only_what_its_parent_also_grants():
    parent = format_policy("mother", SCOPES + READ.replace("/**", "/user/a.md"))
    wide = format_allow("/**", verbs=["read", "delete"]) + "[limits]\nturns = 6\n"
    policy, bare = (parse_text(format_policy("own", body, ["mother"]), mother=parent) for body in (wide, ""))
    one, other = (canonicalise(f"user/{name}.md", policy.scopes) for name in "ab")
    judge, requests = PolicyEvaluator(policy), [(Verb.READ, one), (Verb.READ, other), (Verb.DELETE, one)]
    assert [judge.allows(*what) for what in requests] == [True, False, False]
    assert not PolicyEvaluator(bare).allows(Verb.READ, one)
    assert policy.name == "own"


def test_family_shapes_load_once_or_fail_with_their_code():
    line = {f"p{n}": format_policy(f"p{n}", SCOPES, [f"p{n + 1}"] if n < 7 else []) for n in range(8)}
    for expected, parent, texts in (
        *(("E121", "own", {}), ("E121", "b", {"b": format_policy("b", SCOPES, ["own"])})),
        *(("E122", "p0", line), (None, "p1", line), ("E123", "b", {"b": format_policy("c", SCOPES)})),
        ("E125", "b", {"b": format_policy("b", "[scopes]\nteam = {}\n")}),
    ):
        assert (read_error_code(parse_text, format_policy("own", SCOPES, [parent]), **texts), parent) == (
            expected,
            parent,
        )
    a, b = (format_policy(name, READ, ["base"]) for name in "ab")
    policy = parse_text(
        format_policy("own", READ, ["a", "b"]), a=a, b=b, base=format_policy("base", SCOPES + READ)
    )
    assert [layer.name for layer in policy.layers] == ["a", "b", "base", "own"]


@pytest.mark.threat("T-POL-04", control="shipped_names")
def test_package_policy_name_cannot_be_shadowed(tmp_path):
    own_file = str(tmp_path / "mine.toml")
    (tmp_path / "mine.toml").write_text(format_policy("mine", READ, ["strict"]))
    assert [read_error_code(load_policy, name) for name in ("mine", "No Such\nName")] == ["E120", "E111"]
    assert read_error_code(load_policy, "other", policies_dir=tmp_path) == "E120"
    assert read_error_code(load_policy, str(tmp_path / "other.toml")) == "E100"
    (tmp_path / "strict.toml").write_text(format_policy("strict", SCOPES + READ))
    assert {
        read_error_code(load_policy, name, policies_dir=tmp_path) for name in ("strict", "mine", own_file)
    } == {"E124"}


# -- requests that `[[test]]` can make of a policy --

WRITE = format_rule("allow", "w", ["read", "create", "modify"], ["/user/**"])
KEEP = format_rule("deny", "keep", ["delete"], ["kept/"])
QUOTAS = format_quota("all", max_file_bytes=100, max_files=10, max_total_bytes=500)
QUOTAS += format_quota("small", "/user/small/**", max_file_bytes=40, max_files=20)
QUOTAS += format_quota("elsewhere", "/user/other/**", max_file_bytes=1)


def get_answer(body, verb, path, **sizes):
    """Return the answer of the policy: the expectation with which it loads."""
    sizes_toml = "".join(f"{key} = {size}\n" for key, size in sizes.items())
    bodies = (
        CHECK.replace("user/{}", "{}").format(verb, path, each) + sizes_toml for each in ("allow", "deny")
    )
    codes = [read_error_code(parse_text, format_policy("own", SCOPES + body + check)) for check in bodies]
    assert {*codes} == {None, "E401"}
    return "deny" if codes[0] else "allow"


REQUESTS = """
allow: read user/a.md|read /memories/user/a.md|create user/a.md|modify user/a.txt|removal user/a.md
allow: read user/kept/a.md
deny: list user/a.md|create user/a.txt|delete user/a.md|removal user/kept/a.md|removal user/../a.md
deny: read /etc/passwd|read team/a.md|read user|read user/a:b.md|read user/a\\u001b.md|read \

"""


def test_inline_test_is_answered_like_a_real_request():
    for line in REQUESTS.strip().splitlines():
        expected, _, rows = line.partition(": ")
        answers = {row: get_answer(WRITE + KEEP, *row.partition(" ")[::2]) for row in rows.split("|")}
        assert answers == dict.fromkeys(answers, expected)


def test_quota_bound_is_inclusive_and_the_smallest_quota_counts():
    for path, key, bound in (
        *(("user/a.md", "file_bytes", 100), ("user/a.md", "files", 10), ("user/a.md", "total_bytes", 500)),
        *(("user/small/a.md", "file_bytes", 40), ("user/small/a.md", "files", 10)),
        ("user/other/a.md", "file_bytes", 1),
    ):
        for verb in ("create", "modify"):
            answers = [get_answer(WRITE + QUOTAS, verb, path, **{key: size}) for size in (bound, bound + 1)]
            assert answers == ["allow", "deny"], (path, key)


# -- ineffective deny rules are found for any reason --

# Patterns of the dialect that match no canonical path.
SILENT = """a.|con|aux.*|LPT1/|..|/user/.|/user/...|a./x| ?|\u2044*|com1.txt|?./|/user/a/b/c/d/e/f/g/h/i|
/user/a/b/c/d/e/f/g/h/|H\u0331/\u2044|e/?. |/**/nul.md|a/.."""


@pytest.fixture(autouse=True)
def clear_passed(monkeypatch):
    """Start every test without cached results."""
    monkeypatch.setattr(load, "_passed_digests", {})


def make_denies(*patterns, verbs=("modify",), name="d"):
    """Build a policy that `load` may reject, without loading it."""
    denying = Rule(id=name, verbs=tuple(map(Verb, verbs)), paths=patterns)
    layer = decide.Layer(name="own", allow=(), deny=(denying,))
    return replace(edits.make_policy([edits.make_allow("/**")]), layers=(layer,))


def test_deny_pattern_that_matches_no_path_is_a_defect(monkeypatch):
    long = ("x" * 256, "*" + "x" * 256, "\xe9" * 128)
    for pattern in (*SILENT.replace("\n", "").split("|"), *long):
        reason = "matches no path that the name grammar allows; correct or remove it"
        assert list(find_defects(make_denies(pattern))) == [
            PatternDefect("deny", "d", pattern, "E201", reason)
        ]
    assert list(find_defects(make_denies("b", name="default"))) == []
    monkeypatch.setattr(PolicyEvaluator, "_find_denial", lambda *_: None)
    monkeypatch.setattr(load, "_passed_digests", {})
    assert len(list(find_defects(make_denies("b", name="default")))) == 1


def test_cache_of_passed_policies_is_bounded(monkeypatch):
    monkeypatch.setattr(load, "MAX_CACHED_DIGESTS", 2)
    policies = [make_denies(pattern) for pattern in "bcd"]
    assert [list(find_defects(each)) for each in policies] == [[], [], []]
    assert list(load._passed_digests) == [each.digest for each in policies[1:]]


TRIED = """con* user/cona|aux* user/auxb|nul*/ user/nula/a|con? user/cona|?\u0301.md user/-\u0301.md|
e*\u0301 user/e-\u0301|H\u0331.md user/\u1e96.md|\u0130.md user/i\u0307.md|STRA\xdfE user/strasse|
MEMORY.md user/memory.md|.* user/.a|* user/a|** user/a|/** user/a|user user/a|team-2/ team-2/b|
/us?r/*.md user/.md|/*/** user/a|/*/index/ user/index/a|/**/x user/x|*-????-??-??.md user/-aaaa-aa-aa.md|
/user/a/b/c/d/e/f/g/h user/a/b/c/d/e/f/g/h"""


def test_sample_of_a_pattern_is_its_shortest_match():
    long = "x" * 254
    for row in (*TRIED.replace("\n", "").split("|"), f"{long}* user/{long}"):
        pattern, path = row.split()
        assert find_shortest_match(pattern, ("user", "team-2")).text == path
        assert DenyPatterns((pattern,)).match(path, fold(path))


def test_pattern_that_fails_for_one_verb_is_reported(monkeypatch):
    real = PolicyEvaluator._find_denial
    monkeypatch.setattr(
        PolicyEvaluator,
        "_find_denial",
        lambda *requests: None if requests[1] == Verb.READ else real(*requests),
    )
    found = list(find_defects(make_denies("b", "c/", verbs=("modify", "read"))))
    assert found == [
        PatternDefect("deny", "d", pattern, "E201", f"does not deny user/{path} for read")
        for pattern, path in (("b", "b"), ("c/", "c/a"))
    ]
    for _ in range(2):  # It is not cached as passed when it is checked again.
        problem = catch_invalid(
            parse_text, format_policy("own", SCOPES + format_deny("b", verbs=["modify", "read"]))
        )
        assert "pattern 'b' does not deny user/b for read" in problem.problem
        assert (problem.rule, problem.where, problem.line) == ("E201", "own deny[d]", 9)
