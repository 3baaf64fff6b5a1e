"""Loading: any doubt means no policy, with a code, a place, and a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.errors import PolicyInvalid
from muniment.names import Enforcement, Scope, Trust, Verb
from muniment.policy.decide import GATES, Content, Judge, Limits, Retention, dump, parse_dump
from muniment.policy.grammar import canonicalise
from muniment.policy.load import load_policy, parse_policy
from muniment.policy.tables import read_tables

HEAD = 'schema = "muniment-policy/1"\nname = "own"\n'
SCOPES = '[scopes]\nuser = { trust = "owner", commit = "auto" }\n'
RULE = 'verbs = ["read"]\npaths = ["/**"]\n'


def parse(text, **parents):
    return parse_policy(text, where="own", parents=parents.__getitem__)


def invalid(text, **parents):
    with pytest.raises(PolicyInvalid) as caught:
        parse(text, **parents)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


def named(name, body="", extends=()):
    return f'schema = "muniment-policy/1"\nname = "{name}"\nextends = {list(extends)}\n{body}'


@pytest.mark.threat("T-POL-01", control="closed_tables")
@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("E101", HEAD + "color = 1\n" + SCOPES),
        ("E101", HEAD + SCOPES + '[[allow]]\nid = "a"\nverb = "read"\n' + RULE),
        ("E101", HEAD + SCOPES + "[[denied]]\n"),
        ("E101", HEAD + "[scopes]\nuser = { trusted = true }\n"),
        ("E101", HEAD + SCOPES + "[limits]\nminutes = 5\n"),
        ("E101", HEAD + SCOPES + "[retention]\ntrusted = 14\n"),
        ("E101", HEAD + SCOPES + "[provenance]\nsources = 3\n"),
        ("E101", HEAD + SCOPES + "[changes]\nmax_forgets = 5\n"),
        ("E102", "schema = "),
        ("E102", HEAD + 'name = "twice"\n'),
        ("E102", "x = " + "[" * 5_000),
        ("E102", "x = " + "9" * 5_000),
        ("E103", 'name = "own"\n' + SCOPES),
        ("E103", 'schema = "muniment-policy/1"\n' + SCOPES),
        ("E103", HEAD + SCOPES + '[[deny]]\nid = "d"\npaths = ["a"]\n'),
        ("E103", HEAD + SCOPES + '[[quota]]\nid = "q"\n'),
        ("E104", HEAD + SCOPES + "[limits]\nturns = true\n"),
        ("E104", HEAD + SCOPES + "[limits]\nseconds = 10.5\n"),
        ("E104", HEAD + SCOPES + '[limits]\nturns = "6"\n'),
        ("E104", HEAD + '[scopes]\nuser = { trust = "friend" }\n'),
        ("E104", HEAD + '[scopes]\nuser = { commit = "later" }\n'),
        ("E104", HEAD + "scopes = 3\n"),
        ("E104", HEAD + SCOPES + '[confinement]\nrequire = "maximal"\n'),
        ("E104", HEAD + SCOPES + '[confinement]\non_escape = "log"\n'),
        ("E104", HEAD + SCOPES + '[changes]\nconflict = "merge"\n'),
        ("E104", HEAD + SCOPES + '[content]\nreject = ["html"]\n'),
        ("E104", HEAD + SCOPES + "[content]\nreject = [3]\n"),
        ("E104", HEAD + SCOPES + '[content]\nsecrets = "allow"\n'),
        ("E104", HEAD + SCOPES + '[content]\ninstructions = "reject"\n'),
        ("E104", HEAD + SCOPES + '[provenance]\nuntrusted_sources = "review"\n'),
        ("E104", HEAD + SCOPES + "[changes]\nmax_forget = 2.5\n"),
        ("E104", HEAD + SCOPES + "[changes]\nmax_scope_share = true\n"),
        ("E104", HEAD + SCOPES + '[retention]\nuntrusted = "14"\n'),
        ("E104", HEAD + SCOPES + "[retention]\nuntrusted = true\n"),
        ("E104", HEAD + SCOPES + "[retention]\ndefault = 1.5\n"),
        ("E104", HEAD + "allow = [3]\n" + SCOPES),
        ("E104", HEAD + SCOPES + '[[test]]\nverb = "read"\npath = "user/a.md"\nexpect = "perhaps"\n'),
        ("E104", HEAD + "description = 1979-05-27\n" + SCOPES),
        ("E105", HEAD.replace("/1", "/2") + SCOPES),
        ("E105", HEAD.replace('"muniment-policy/1"', "1") + SCOPES),
        ("E107", HEAD + SCOPES + f'[[allow]]\nid = "a"\n{RULE}[[deny]]\nid = "a"\n{RULE}'),
        (
            "E107",
            HEAD + SCOPES + '[[quota]]\nid = "q"\npaths = ["/**"]\n[[quota]]\nid = "q"\npaths = ["/**"]\n',
        ),
        ("E108", HEAD + SCOPES + '[[allow]]\nid = "a"\nverbs = []\npaths = ["/**"]\n'),
        ("E108", HEAD + SCOPES + '[[deny]]\nid = "d"\nverbs = ["*"]\npaths = []\n'),
        ("E108", HEAD + "[scopes]\n"),
        ("E108", HEAD + SCOPES + f'[[deny]]\nid = "d"\nverbs = ["*"]\npaths = {["a"] * 257}\n'),
        ("E109", HEAD + SCOPES + '[[allow]]\nid = "a"\nverbs = ["write"]\npaths = ["/**"]\n'),
        ("E109", HEAD + SCOPES + '[[allow]]\nid = "a"\nverbs = ["read", "*"]\npaths = ["/**"]\n'),
        ("E110", HEAD + SCOPES + "[limits]\nturns = 7\n"),
        ("E110", HEAD + SCOPES + "[limits]\nseconds = 296\n"),
        ("E110", HEAD + SCOPES + "[limits]\ntool_calls = 0\n"),
        ("E110", HEAD + SCOPES + "[limits]\nread_bytes = -1\n"),
        ("E110", HEAD + SCOPES + "[limits]\nscan_bytes = 0x" + "F" * 4_000 + "\n"),
        ("E110", HEAD + SCOPES + '[[quota]]\nid = "q"\npaths = ["/**"]\nmax_files = 0\n'),
        ("E110", HEAD + SCOPES + "[changes]\nmax_forget = 0\n"),
        ("E110", HEAD + SCOPES + "[changes]\nmax_scope_share = 0\n"),
        ("E110", HEAD + SCOPES + "[changes]\nmax_scope_share = 1.01\n"),
        ("E110", HEAD + SCOPES + "[changes]\nmax_scope_share = nan\n"),
        ("E110", HEAD + SCOPES + "[changes]\nmax_scope_share = inf\n"),
        ("E110", HEAD + SCOPES + "[retention]\nuntrusted = 0\n"),
        ("E110", HEAD + SCOPES + "[retention]\ndefault = 36_501\n"),
        ("E111", HEAD.replace("own", "Own!") + SCOPES),
        ("E111", HEAD.replace("own", "request") + SCOPES),
        ("E111", HEAD.replace("own", "grammar") + SCOPES),
        ("E111", HEAD + '[scopes]\n"User Space" = {}\n'),
        ("E111", HEAD + "[scopes]\nmemories = {}\n"),
        ("E111", HEAD + "[scopes]\nnul = {}\n"),
        ("E111", HEAD + SCOPES + f'[[allow]]\nid = "a\\nb"\n{RULE}'),
        ("E111", HEAD + SCOPES + f'[[allow]]\nid = "default"\n{RULE}'),
        ("E111", HEAD + SCOPES + f'[[deny]]\nid = "scopes"\n{RULE}'),
        ("E111", HEAD + SCOPES + f'[[deny]]\nid = "name"\n{RULE}'),
        ("E111", HEAD + 'extends = ["Evil"]\n' + SCOPES),
        ("E111", HEAD + 'extends = ["request"]\n' + SCOPES),
        ("E111", HEAD + 'extends = ["./a\\nb.toml"]\n' + SCOPES),
        ("E111", HEAD + f'extends = ["./{"a" * 1_023}"]\n' + SCOPES),
        ("E120", HEAD + 'extends = ["../evil"]\n' + SCOPES),
        ("E127", HEAD + 'extends = ["/etc/evil.toml"]\n' + SCOPES),
        ("E127", HEAD + 'extends = ["~/evil.toml"]\n' + SCOPES),
        ("E125", HEAD),
        ("E201", HEAD + SCOPES + '[[deny]]\nid = "d"\nverbs = ["*"]\npaths = ["con"]\n'),
        ("E203", HEAD + SCOPES + '[[deny]]\nid = "d"\nverbs = ["*"]\npaths = ["secrets[0-9/"]\n'),
        ("E205", HEAD + SCOPES + '[[allow]]\nid = "a"\nverbs = ["read"]\npaths = ["*.md"]\n'),
        ("E205", HEAD + SCOPES + '[[quota]]\nid = "q"\npaths = ["*.md"]\n'),
        ("E206", HEAD + SCOPES + '[[allow]]\nid = "a"\nverbs = ["read"]\npaths = ["/project/**"]\n'),
    ],
)
def test_a_file_that_is_wrong_in_one_way_does_not_load(code, text):
    assert invalid(text).rule == code


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        (
            HEAD + SCOPES + f'[[allow]]\nid = "topics"\npath = "/a"\n{RULE}',
            "own allow[topics].path",
            "'paths'",
        ),
        (HEAD + "scope = {}\n", "own scope", "'scopes'"),
        (HEAD + SCOPES + "[limits]\ntool_cals = 3\n", "own limits.tool_cals", "'tool_calls'"),
        (HEAD + "schemas = 1\n" + SCOPES, "own schemas", "'schema'"),
        (HEAD + SCOPES + "[limits]\nturns = 7\n", "own limits.turns", "less than or equal to 6"),
        (HEAD + SCOPES + "[limits]\nturns = 7\nseconds = 0\n", "own limits.turns", "(and 1 more)"),
        (HEAD + SCOPES + f'[[allow]]\nid = "x y"\n{RULE}', "own allow[x y].id", "match"),
        (HEAD + SCOPES + f"[[allow]]\n{RULE}", "own allow[0].id", "required"),
        (HEAD + "allow = [3]\n" + SCOPES, "own allow[0]", "valid dictionary"),
        (HEAD + SCOPES + '[[deny]]\nid = "d"\nverbs = ["*"]\npaths = ["a["]\n', "own deny[d]", "'a['"),
        ("a = 1\nb = ?", "own", "line 2"),
    ],
)
def test_a_complaint_names_the_place_and_what_to_do(text, place, hint):
    problem = invalid(text)
    assert problem.where == place
    assert hint in problem.problem


def test_what_a_file_leaves_out_is_never_unlimited_and_never_permissive():
    policy = parse(HEAD + "[scopes]\nuser = {}\n")
    assert policy.limits == load_policy("strict").limits == Limits()
    assert policy.content == load_policy("strict").content == Content(reject=GATES)
    assert (policy.content.secrets, policy.content.instructions) == ("reject", "quarantine")
    assert policy.provenance.untrusted_sources == "quarantine"
    assert (policy.retention.default, policy.retention.untrusted) == ("never", 14)
    assert (policy.changes.max_forget, policy.changes.max_scope_share) == (5, 0.2)
    assert [terms.commit for terms in policy.scope_terms] == ["auto"]
    assert policy.confinement.require is Enforcement.PARTIAL
    assert (policy.confinement.on_escape, policy.changes.conflict) == ("abort", "fail")
    assert [terms.trust for terms in policy.scope_terms] == [Trust.EXTERNAL]
    assert [quota.id for quota in policy.quotas] == ["default"]


def test_the_trust_of_a_scope_is_the_declared_one_and_the_lowest_for_a_stranger():
    policy = parse(HEAD + SCOPES)
    assert policy.trust_of(Scope("user")) is Trust.OWNER
    assert policy.trust_of(Scope("team")) is Trust.EXTERNAL


def test_changes_of_a_scope_wait_for_review_where_it_says_so_and_where_it_is_not_declared():
    policy = parse(HEAD + '[scopes]\nuser = {}\nproject = { commit = "review" }\n')
    assert [policy.commit_of(Scope(name)) for name in ("user", "project", "team")] == [
        "auto",
        "review",
        "review",
    ]


@pytest.mark.parametrize("days", ["never", 1, 36_500])
def test_a_retention_is_a_number_of_days_or_never_and_survives_the_way_to_the_worker(days):
    written = f'"{days}"' if days == "never" else days
    policy = parse(HEAD + SCOPES + f"[retention]\ndefault = {written}\nuntrusted = {written}\n")
    assert policy.retention == Retention(default=days, untrusted=days)
    assert parse_dump(dump(policy)) == policy


@pytest.mark.threat("T-POL-01", control="inline_tests")
def test_an_inline_test_that_fails_is_e401_and_says_why():
    grant = f'[[allow]]\nid = "a"\n{RULE}'
    check = '[[test]]\nverb = "{}"\npath = "{}"\nexpect = "{}"\n'
    good = [
        ("read", "/memories/user/a.md", "allow"),
        ("read", "user/../a.md", "deny"),
        ("read", "team/a.md", "deny"),
    ]
    good += [("create", "user/a.txt", "deny"), ("read", "user", "deny"), ("read", "user/a:b.md", "deny")]
    parse(HEAD + SCOPES + grant + "".join(check.format(*each) for each in good))
    for verb, path, expect in good:
        turned = "deny" if expect == "allow" else "allow"
        problem = invalid(HEAD + SCOPES + grant + check.format(verb, path, turned))
        assert (problem.rule, problem.where) == ("E401", "own test 1")


def test_the_digest_ignores_words_for_people_and_nothing_else():
    rule = '[[deny]]\nid = "d"\nverbs = ["*"]\npaths = ["x"]\n'
    base = HEAD + SCOPES + rule
    digest = parse(base).digest
    same = [
        HEAD + 'description = "other"\n' + SCOPES + rule + 'why = "because"\n',
        base + '[[test]]\nverb = "read"\npath = "user/x"\nexpect = "deny"\n',
        base.replace('["*"]', '["read", "modify", "list", "delete", "create", "read"]'),
        base.replace('["x"]', '["x", "x"]'),
        base + "[limits]\nturns = 6\n",
        base + "[changes]\nmax_forget = 5\nmax_scope_share = 0.2\n",
    ]
    assert {parse(text).digest for text in same} == {digest}
    other = [
        base.replace('"d"', '"e"'),
        base.replace('["*"]', '["read"]'),
        base.replace('["x"]', '["x/"]'),
        base.replace("owner", "agent"),
        base.replace("deny", "allow").replace('"*"', '"read"').replace('"x"', '"/user/x"'),
        base + "[limits]\nturns = 5\n",
        base + '[confinement]\non_escape = "refuse"\n',
        base + '[changes]\nconflict = "retry"\n',
        base + '[content]\nreject = ["bidi"]\n',
        base + '[content]\nsecrets = "redact"\n',
        base + '[content]\ninstructions = "allow"\n',
        base + '[provenance]\nuntrusted_sources = "allow"\n',
        base + "[retention]\ndefault = 14\n",
        base + "[retention]\nuntrusted = 15\n",
        base + "[changes]\nmax_forget = 6\n",
        base + "[changes]\nmax_scope_share = 0.3\n",
        base.replace('"auto"', '"review"'),
        base + '[[quota]]\nid = "q"\npaths = ["/**"]\n',
    ]
    digests = {parse(text).digest for text in other}
    assert len(digests) == len(other)
    assert digest not in digests
    assert parse(base).label == f"own@{digest[:8]}"


READ = f'[[allow]]\nid = "r"\n{RULE}'


@pytest.mark.threat("T-POL-03", control="meets")
def test_a_child_cannot_grant_what_its_parent_does_not():
    parent = named("mother", SCOPES + '[[allow]]\nid = "r"\nverbs = ["read"]\npaths = ["/user/a.md"]\n')
    wide = '[[allow]]\nid = "w"\nverbs = ["read", "delete"]\npaths = ["/**"]\n[limits]\nturns = 6\n'
    policy = parse(named("own", wide, ["mother"]), mother=parent)
    judge = Judge(policy)
    paths = [canonicalise(f"user/{name}.md", policy.scopes) for name in "ab"]
    assert [judge.allows(Verb.READ, path) for path in paths] == [True, False]
    assert not judge.allows(Verb.DELETE, paths[0])
    assert policy.name == "own"


def test_a_child_without_grants_denies_everything():
    policy = parse(named("own", "", ["mother"]), mother=named("mother", SCOPES + READ))
    assert not Judge(policy).allows(Verb.READ, canonicalise("user/a.md", policy.scopes))


def test_a_child_that_shares_no_scope_with_its_parent_does_not_load():
    assert invalid(named("own", "[scopes]\nteam = {}\n", ["m"]), m=named("m", SCOPES)).rule == "E125"


def test_a_parent_that_is_reached_twice_is_one_layer():
    a, b = (named(name, READ, ["base"]) for name in "ab")
    policy = parse(named("own", READ, ["a", "b"]), a=a, b=b, base=named("base", SCOPES + READ))
    assert [layer.name for layer in policy.layers] == ["a", "b", "base", "own"]


def test_a_test_of_a_parent_is_run_against_the_parent():
    check = '[[test]]\nverb = "read"\npath = "user/a.md"\nexpect = "deny"\n'
    assert invalid(named("own", "", ["m"]), m=named("m", SCOPES + READ + check)).where == "m test 1"


def test_cycles_and_endless_lines_of_ancestors_do_not_load():
    assert invalid(named("own", SCOPES, ["own"])).rule == "E121"
    assert invalid(named("own", SCOPES, ["b"]), b=named("b", SCOPES, ["own"])).rule == "E121"
    line = {f"p{n}": named(f"p{n}", SCOPES, [f"p{n + 1}"]) for n in range(7)}
    assert invalid(named("own", SCOPES, ["p0"]), **line, p7=named("p7", SCOPES)).rule == "E122"
    parse(named("own", SCOPES, ["p1"]), **line, p7=named("p7", SCOPES))


def test_a_file_must_call_itself_what_it_is_called():
    assert invalid(named("own", SCOPES, ["b"]), b=named("c", SCOPES)).rule == "E123"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.toml").write_text(named("mine", READ, ["strict", "base"]))
    (tmp_path / "base.toml").write_text(named("base", SCOPES + READ))
    return tmp_path


def load_error(name, policies_dir=None):
    with pytest.raises(PolicyInvalid) as caught:
        load_policy(name, policies_dir=policies_dir)
    return caught.value.rule


def test_a_missing_policy_is_told_apart_from_a_missing_file(folder):
    assert load_error("mine") == "E120"
    assert load_error("other", folder) == "E120"
    assert load_error(str(folder / "other.toml")) == "E100"
    assert load_error("No Such\nName") == "E111"


@pytest.mark.threat("T-POL-04", control="shipped_names")
def test_a_shipped_name_cannot_be_shadowed(folder):
    (folder / "strict.toml").write_text(named("strict", SCOPES + READ))
    assert load_error("strict", folder) == "E124"
    assert load_error("mine", folder) == "E124"
    assert load_error(str(folder / "mine.toml")) == "E124"


def test_what_cannot_be_read_as_text_of_a_bounded_size_does_not_load(folder):
    (folder / "long.toml").write_text("#" * 262_145)
    (folder / "bytes.toml").write_bytes(b"\xff")
    (folder / "dir.toml").mkdir()
    for name in ("long", "bytes", "dir"):
        assert load_error(name, folder) == "E100"
    assert load_error("a\0/b.toml") == "E100"
    assert load_error("a\ud800/b.toml") == "E100"


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"name": "x"}'])
def test_a_dump_that_is_none_is_e105(text):
    with pytest.raises(PolicyInvalid) as caught:
        parse_dump(text)
    assert caught.value.rule == "E105"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.sampled_from(
        ["schema", "name", "extends", "scopes", "allow", "quota", "confinement", "limits", "content", "test"]
    ),
    VALUES,
)
def test_any_value_anywhere_loads_or_is_told_off_in_one_line(key, value):
    data = {"schema": "muniment-policy/1", "name": "own", "scopes": {"user": {}}, key: value}
    told = "fine"
    try:
        read_tables(data, "own")
    except PolicyInvalid as problem:
        told = str(problem)
    assert told.isprintable()
