"""The normal form: a policy is its text, which is parsed exactly or rejected."""

import hashlib
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.policy.files import catch_invalid, format_policy, format_quota, parse_text, read_error_code
from kit.policy.files import format_deny as denying
from kit.strategies.policies import policies
from muniment.kernel.decide import (
    NORMAL_FORM_HEADER,
    Changes,
    Layer,
    Limits,
    Policy,
    Quota,
    Retention,
    Rule,
    parse,
)
from muniment.kernel.names import Scope, Verb
from muniment.policy import pattern
from muniment.policy.combine import meet, narrow_writes
from muniment.policy.load import load_policy

SHIPPED = ("ceiling", "clean", "hardened", "strict", "team")
STRICT = load_policy("strict")
(LAYER,) = STRICT.layers


def get_parts(policy):
    """Return all values of a policy, without the order of its scopes."""
    values = {field.name: getattr(policy, field.name) for field in fields(policy)}
    return values | {"scope_options": {*policy.scope_options}}


@given(policies(), policies())
def test_parsed_text_equals_the_policy_in_all_parts(one, other):
    one, other = parse_text(one), parse_text(other)
    for policy in (one, meet(one, other), narrow_writes(meet(one, other), Scope("user"))):
        copy = parse(policy.text, policy.name)
        assert get_parts(copy) == get_parts(policy)
        assert (copy, hash(copy), copy.digest) == (policy, hash(policy), policy.digest)


def test_text_has_one_line_per_value_and_a_sha256_digest():
    assert parse_text(format_policy("own", SMALL)).text.splitlines() == [
        NORMAL_FORM_HEADER,
        *EXPECTED.strip().splitlines(),
    ]
    for policy in map(load_policy, SHIPPED):
        head, *lines, end = policy.text.split("\n")
        assert (head, lines, end) == (NORMAL_FORM_HEADER, sorted({*lines}), "")
        assert policy.digest == hashlib.sha256(policy.text.encode()).hexdigest()
        assert replace(policy, name="other").text == policy.text


SMALL = """[scopes]
user = { trust = "owner" }
[content]
reject = []
[[deny]]
id = "d"
verbs = ["read", "list"]
paths = ["b/", "a"]
"""
EXPECTED = """
changes\tconflict\tfail
changes\tmax_forget\t5
changes\tmax_scope_share\t0.2
confinement\ton_escape\tabort
confinement\trequire\tpartial
content\tinstructions\tquarantine
content\tpoison\tquarantine
content\tsecrets\treject
layer\town\t1
layer\town\t1\tdeny\td\tlist\ta
layer\town\t1\tdeny\td\tlist\tb/
layer\town\t1\tdeny\td\tread\ta
layer\town\t1\tdeny\td\tread\tb/
limits\tfiles_written\t8
limits\tread_bytes\t1048576
limits\tscan_bytes\t67108864
limits\tseconds\t295
limits\ttool_calls\t40
limits\tturns\t6
limits\twrite_bytes\t262144
provenance\tuntrusted_sources\tquarantine
quota\tdefault\t1\tmax_file_bytes\t131072
quota\tdefault\t1\tmax_files\t20000
quota\tdefault\t1\tmax_total_bytes\t67108864
quota\tdefault\t1\tpaths\t/user/**
retention\tdefault\tnever
retention\tuntrusted\t14
scope\tuser\tcommit\tauto
scope\tuser\ttrust\towner
"""


def test_order_and_repetition_are_irrelevant():
    rules = [replace(rule, verbs=rule.verbs[::-1] * 2, paths=rule.paths[::-1] * 2) for rule in LAYER.deny]
    reversed_layer = Layer(LAYER.name, LAYER.allow[::-1], (*rules, *LAYER.deny)[::-1])
    turned = replace(
        STRICT,
        scope_options=STRICT.scope_options[::-1],
        layers=(reversed_layer, LAYER, reversed_layer),
        quotas=STRICT.quotas * 2,
        content=replace(STRICT.content, reject=STRICT.content.reject[::-1] * 2),
    )
    assert (turned, hash(turned), turned.digest) == (STRICT, hash(STRICT), STRICT.digest)
    empty = Rule("nothing", (), ("/user/**",)), Rule("nowhere", (Verb.READ,), ())
    assert replace(STRICT, layers=(replace(LAYER, deny=(*LAYER.deny, *empty)),)) == STRICT


def test_layers_and_quotas_of_one_name_are_kept_separate():
    own, user, project = Layer("own", (), ()), *(narrow_writes(STRICT, Scope(each)) for each in STRICT.scopes)
    both = meet(meet(user, project), replace(STRICT, layers=(own,)))
    assert [layer.name for layer in both.layers] == ["own", "request", "request", "strict"]
    assert "\nlayer\town\t1\nlayer\trequest\t1\n" in both.text
    assert "\nlayer\trequest\t2\tdeny\trequest-scope\tcreate\t/user/\n" in both.text
    small = replace(
        STRICT, quotas=(*STRICT.quotas, Quota("all", ("/user/a/**",)), Quota("all", ("/user/b/**",)))
    )
    for policy in (both, small):
        assert parse(policy.text, "strict").text == policy.text
    assert [each.paths for each in small.quotas] == [("/**",), ("/user/a/**",), ("/user/b/**",)]
    assert len({STRICT.digest, user.digest, project.digest, both.digest, small.digest}) == 5


# Each replaces a part of a valid text: no policy has the result.
SLIPS = [
    *(
        (f"{NORMAL_FORM_HEADER}\n", each)
        for each in (
            "",
            "\n",
            f"\ufeff{NORMAL_FORM_HEADER}\n",
            f"{NORMAL_FORM_HEADER}\r\n",
            f"{NORMAL_FORM_HEADER}/2\n",
            f"{NORMAL_FORM_HEADER}\t\n",
        )
    ),
    *(
        ("turns\t6", f"turns\t{each}")
        for each in ("7", "0", "06", "+6", "6.0", "-1", "", "x", "٦", "6\t6", " 6")
    ),
    *(
        ("share\t0.2", f"share\t{each}")
        for each in ("0.20", ".2", "2e-1", "0", "1.01", "nan", "inf", "1", "-0.2")
    ),
    *(("default\tnever", f"default\t{each}") for each in ("Never", "0", "36501", "", "1_4")),
    *(("require\tpartial", f"require\t{each}") for each in ("Partial", "maximal", "")),
    *(("trust\towner", f"trust\t{each}") for each in ("friend", "OWNER")),
    *(("strict\t1\tdeny", f"strict\t{each}\tdeny") for each in ("2", "0", "01", "", "1\t")),
    *(("strict\t1\tdeny", f"strict\t1\t{each}") for each in ("Deny", "grant", "allow\tdeny")),
    *(("\thidden\tread\t", f"\thidden\t{each}\t") for each in ("*", "write", "READ")),
    *((piece, "") for piece in ("layer\tstrict\t1\n", "limits\tturns\t6\n", "scope\tuser\ttrust\towner\n")),
    *((piece, "") for piece in ("quota\tall\t1\tmax_files\t20000\n", "content\tsecrets\treject\n")),
    *(
        (piece, piece * 2)
        for piece in ("limits\tturns\t6\n", "layer\tstrict\t1\n", "content\treject\tansi\n")
    ),
    ("layer\tstrict\t1\tdeny\tpinned\tcreate\tpinned/\n", ""),  # The remainder is not a rule.
    ("limits\tturns\t6\n", "limits\tturns\t5\nlimits\tturns\t6\n"),
    ("limits\tturns\t6\n", "limits\tmore\t6\nlimits\tturns\t6\n"),
    ("content\treject\tansi\n", "content\treject\tansi\ncontent\treject\thtml\n"),
    ("scope\tuser\ttrust\towner\n", "scope\tuser\ttrust\towner\nzone\tuser\ttrust\towner\n"),
    ("limits\tturns\t6\n", "limits\tturns\t6\n\n"),
    ("limits\tturns\t6\n", "limits turns 6\n"),
    ("owner\n", "owner"),
]


def test_text_of_no_policy_is_rejected():
    for old, new in SLIPS:
        text = STRICT.text.replace(old, new)
        assert (text != STRICT.text, read_error_code(parse, text, "strict")) == (True, "E105"), (old, new)
    head, *lines = STRICT.text.splitlines(keepends=True)
    for at in range(len(lines) - 1):
        swapped = [head, *lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]
        assert read_error_code(parse, "".join(swapped), "strict") == "E105"
    assert {
        read_error_code(parse, text, "x") for text in ("", "\n", "\t", "{}", "\0", f"{NORMAL_FORM_HEADER}\n")
    } == {"E105"}


@given(
    st.integers(0, len(STRICT.text) - 1),
    st.text(max_size=2) | st.sampled_from("\t\n 0129ae/*."),
    st.booleans(),
)
def test_changed_text_is_rejected_or_another_policy(at, put, is_inserted):
    text = STRICT.text[:at] + put + STRICT.text[at + (0 if is_inserted else 1) :]
    if read_error_code(parse, text, "strict") != "E105":
        policy = parse(text, "strict")
        assert (policy.text, policy == STRICT) == (text, text == STRICT.text)


def test_invalid_policy_objects_are_rejected():
    def make_layers(name, rule_id, path):
        return (Layer(name, (), (Rule(rule_id, (Verb.READ,), (path,)),)),)

    for expected, terms in (
        *(("E111", {"layers": make_layers(*each)}) for each in (("a\tb", "d", "x"), ("a", "d\n", "x"))),
        *(("E111", {"layers": make_layers("a", "d", each)}) for each in ("x\ty", "x\n", "\udc80", "\u202e")),
        *(("E108", {each: ()}) for each in ("layers", "quotas")),
        ("E108", {"scope_options": STRICT.scope_options * 2}),
        *(("E110", {"limits": Limits(turns=each)}) for each in (0, 7, -1)),
        *(("E110", {"changes": Changes(max_scope_share=each)}) for each in (0, 1.01, float("nan"))),
        *(("E110", {"retention": Retention(untrusted=each)}) for each in (0, 36_501)),
        *(("E110", {"quotas": (Quota("q", ("/**",), max_files=each),)}) for each in (0, 1_000_001)),
    ):
        assert (read_error_code(replace, STRICT, **terms), terms) == (expected, terms)
    twice = Rule("d", (Verb.READ,), ("x",)), Rule("d", (Verb.LIST,), ("y",))
    assert read_error_code(Layer, "own", (), twice) == "E107"
    assert isinstance(replace(STRICT, scope_options=()), Policy)  # It grants nothing.


def test_parsing_and_deciding_need_only_the_standard_library():
    script = """
import sys
from muniment.kernel.decide import PolicyEvaluator, parse
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
policy = parse(sys.stdin.read(), "strict")
assert PolicyEvaluator(policy).allows(Verb.READ, canonicalise("user/a.md", policy.scopes))
heavy = {"pydantic", "pydantic_core", "pathspec", "re2"} & {*sys.modules}
print(policy.digest, *heavy)
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, input=STRICT.text, capture_output=True, text=True, check=False, timeout=50)
    assert done.stdout.split() == [STRICT.digest], done.stderr


# -- a second opinion --


def test_pattern_that_pathspec_reads_differently_does_not_load(monkeypatch):
    body = (
        SMALL
        + '[[allow]]\nid = "a"\nverbs = ["read"]\npaths = ["/user/*.md"]\n'
        + format_quota("q", "/user/**")
    )
    lines = format_policy("own", body).splitlines()
    for line, kind in (("b/", "deny[d]"), ("/user/*.md/%", "allow[a]"), ("/user/**/*/%", "quota[q]")):
        with monkeypatch.context() as patched:
            real = pattern._compile_pathspec
            patched.setattr(
                pattern,
                "_compile_pathspec",
                lambda each, line=line, real=real: (lambda _: False) if each == line else real(each),
            )
            found = catch_invalid(parse_text, format_policy("own", body))
        assert (found.rule, found.where) == ("E204", f"own {kind}"), line
        assert found.problem.split("'")[1] in lines[found.line - 1]
        assert "has another meaning for pathspec, for example for user/" in found.problem
    parse_text(format_policy("own", body))


def test_pathspec_is_not_called_for_a_cached_policy(monkeypatch):
    text = format_policy("own", SMALL + denying("c", name="e"))
    digest = parse_text(text).digest
    monkeypatch.setitem(sys.modules, "pathspec", None)
    assert parse_text(text).digest == digest
    with pytest.raises(ImportError):
        parse_text(text.replace('"c"', '"another"'))
