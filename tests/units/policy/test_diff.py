"""Differences between two policies: proved by exhaustion, or shown by a path that the decision confirms."""

import random
from dataclasses import fields
from functools import partial

import pytest

from kit.policy.edits import (
    ALPHABET,
    edit_rules,
    list_short_paths,
    make_allow,
    make_deny,
    make_policy,
    make_policy_pair,
    make_rules,
    try_load,
)
from kit.policy.files import format_quota
from kit.policy.patterns import make_path
from muniment.kernel.decide import Policy, PolicyEvaluator
from muniment.kernel.names import Verb
from muniment.kernel.path import canonicalise
from muniment.lab.proofs import MAX_GAINS, Cause, Prover, compare_policies, list_terms
from muniment.policy.automaton import StepBudget
from muniment.policy.load import ACTS, is_granted

WIDE = make_allow("/**", verbs=[verb.value for verb in Verb])
BOMB = tuple(f"*-draft-{number}*.md" for number in range(60))


def require_confirmed_paths(old, new, difference):
    """Require that one policy grants every reported path, and the other does not, for each named act."""
    judges = PolicyEvaluator(old), PolicyEvaluator(new)
    for gains, (less, more) in ((difference.widenings, judges), (difference.narrowings, judges[::-1])):
        for gain in gains:
            path = canonicalise(gain.path, {*old.scopes, *new.scopes})
            assert gain.acts
            assert len(set(gain.acts)) == len(gain.acts)
            assert all(
                is_granted(act, path, more) and not is_granted(act, path, less) for act in gain.acts
            ), gain


def find_shortest_length(difference, act):
    """Return the length of the shortest path that the difference reports for an act."""
    return min((len(gain.path) for gain in difference.widenings if act in gain.acts), default=None)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(20))
def test_diff_agrees_with_random_paths(seed):
    rng, verdicts = random.Random(seed), set()
    for _ in range(6):
        old, new, patterns = make_policy_pair(rng)
        difference = compare_policies(old, new)
        verdicts.add(difference.verdict)
        require_confirmed_paths(old, new, difference)
        less, more = PolicyEvaluator(old), PolicyEvaluator(new)
        for path in (make_path(rng, patterns) for _ in range(150)):
            for act in (
                act for act in ACTS if is_granted(act, path, more) and not is_granted(act, path, less)
            ):
                length = find_shortest_length(difference, act)
                assert length is not None or difference.undecided, (act, path.text, patterns)
                assert (length or 0) <= len(path.text), (act, path.text, patterns)
        if difference.verdict == "proved":
            assert (*difference.widenings, *difference.undecided) == ()
    assert "proved" in verdicts


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(20))
def test_diff_is_exact_in_a_small_world(seed):
    rng = random.Random(f"small {seed}")
    names = ["".join(rng.choices(ALPHABET[:-2], k=rng.choice((1, 1, 2)))) for _ in range(3)]
    rules = make_rules(rng, names)
    old, new = try_load(rules), try_load(edit_rules(rng, rules, names))
    if old is None or new is None:
        old, new = make_policy([WIDE, make_deny("s?")]), make_policy([WIDE, make_deny("ss")])
    difference = compare_policies(old, new)
    require_confirmed_paths(old, new, difference)
    less, more = PolicyEvaluator(old), PolicyEvaluator(new)
    for act in ACTS:
        gained = (
            path
            for path in list_short_paths()
            if is_granted(act, path, more) and not is_granted(act, path, less)
        )
        first, length = next(gained, None), find_shortest_length(difference, act)
        assert first is None or difference.undecided or (length is not None and length <= len(first.text))


DROPPED = "pinned/ user/pinned/.md|MEMORY.md user/memory.md|/*/index/ user/index/.md|con* user/cona.md"


@pytest.mark.threat("T-POL-02", control="prover_denies")
def test_dropped_deny_pattern_is_reported_with_its_rule():
    rules = [make_allow("/user/**/*.md", "/team-2/**/*.md", verbs=WIDE.verbs), make_deny("other", "x/")]
    for dropped, shortest in map(str.split, DROPPED.split("|")):
        old, new = make_policy([*rules, make_deny("z", dropped)]), make_policy([*rules, make_deny("z")])
        (gain,) = compare_policies(old, new).widenings
        assert (gain.acts, len(gain.path)) == (ACTS, len(shortest))
        assert gain.cause == Cause("deny", "own", "deny-2", dropped)
        back = compare_policies(new, old)
        assert (back.verdict, back.widenings, back.narrowings[0].path) == ("proved", (), gain.path)


def test_widening_names_the_granting_rule_and_is_capped():
    users, verbs = make_allow("/user/*"), (["list"], ["list", "read"])
    one, other = (make_policy([users, make_allow("/team-2/*", verbs=each)]) for each in verbs)
    (gain,) = compare_policies(one, other).widenings
    assert (gain.acts, gain.path) == ((Verb.READ,), "team-2/b")
    assert gain.cause == Cause("allow", "own", "allow-1", "/team-2/*")
    assert (
        compare_policies(
            make_policy([make_allow("/user/*")], "user = {}\n"), make_policy([make_allow("/user/*")])
        ).verdict
        == "proved"
    )
    difference = compare_policies(
        *(make_policy([make_allow("/**")], f"{scope} = {{}}\n") for scope in ("user", "team-2"))
    )
    assert ([gain.path for gain in difference.widenings], difference.verdict) == (["team-2/b"], "wider")
    many = [f"/user/{chr(97 + at % 20)}{chr(97 + at // 20)}" for at in range(MAX_GAINS + 3)]
    difference = compare_policies(
        make_policy([make_allow("/team-2/x")]), make_policy([make_allow("/team-2/x", *many)])
    )
    assert (len(difference.widenings), difference.verdict) == (MAX_GAINS + 1, "wider")


SPELLINGS = """
strasse | STRASSE stra\xdfe | proved ; stra\xdfe | strasse | proved ; A? | a? | proved ; a? | a* | proved
a* | a? | wider ; ss | s? | proved ; s? | ss | wider ; i\u0307 | \u0130 | proved ; x/ | /*/x/ | wider
/user/x/ /team-2/x/ | x/ | proved ; x | x/ | wider ; x/ | x | proved ; /*/**/y | y | proved
/user/* | /user/** | proved ; /user/** | /user/* | proved
"""


def test_equivalent_deny_spellings_are_recognized():
    for line in SPELLINGS.strip().replace("\n", ";").split(";"):
        old, new, verdict = map(str.split, line.split("|"))
        assert (
            line,
            compare_policies(
                make_policy([WIDE, make_deny(*old)]), make_policy([WIDE, make_deny(*new)])
            ).verdict,
        ) == (line, *verdict)


@pytest.mark.threat("T-POL-02", control="undecided_counts")
def test_allow_pattern_of_invalid_names_is_undecided():
    reason = "read: no path that the search found is valid"
    for name in ("con", "nul.md", "x" * 256, "aux/b"):
        difference = compare_policies(
            make_policy([make_allow("/user/a")]), make_policy([make_allow("/user/a", f"/user/{name}")])
        )
        assert (difference.verdict, difference.widenings, difference.undecided) == (
            "undecided",
            (),
            (reason,),
        )


DEEP = [f"*{'?' * number}-a?.md" for number in range(1, 30)]
BROAD = [f"*w{a}x{b}*" for a in range(64) for b in range(4)]
CROWDS = [BOMB, DEEP, BROAD, [f"/*/**/w{a}/**/z{a}*" for a in range(200)]]


def test_pattern_bomb_is_undecided_after_its_step_budget(monkeypatch):
    spent, real = [], StepBudget.spend
    monkeypatch.setattr("muniment.lab.proofs.MAX_WORK", 0)
    monkeypatch.setattr(
        StepBudget, "spend", lambda self, amount: (spent.append(amount), real(self, amount))[1]
    )
    monkeypatch.setattr(Prover.__init__, "__kwdefaults__", {"exact": (), "trees": (), "work": 300_000})
    difference = compare_policies(
        make_policy([WIDE, make_deny(*BOMB)]), make_policy([WIDE, make_deny(*BOMB[:-1])])
    )
    reason = f"{', '.join(ACTS)}: it takes more steps than the budget allows"
    assert (difference.verdict, difference.undecided) == ("undecided", (reason,))
    assert sum(spent) < 1_000_000


@pytest.mark.slow
def test_pattern_bombs_are_never_proved_equal():
    for crowd in CROWDS:
        rules = [make_deny(each) for each in crowd]
        assert (
            compare_policies(make_policy([WIDE, *rules[::-1]]), make_policy([WIDE, *rules[1:]])).verdict
            != "proved"
        )


@pytest.mark.threat("T-POL-02", control="confirmed_witnesses")
def test_unconfirmed_path_is_not_reported(monkeypatch):
    """If the prover is wrong, it gives no result instead of a false finding."""
    monkeypatch.setattr(Prover, "build_denied_set", lambda self, *_: self.match_tree(()))
    old, new = (
        make_policy([make_allow("/user/b"), make_deny("a*")]),
        make_policy([make_allow("/user/b", "/user/a*"), make_deny("a*")]),
    )
    assert (compare_policies(old, new).verdict, compare_policies(old, new).widenings) == ("undecided", ())


# -- limits, quotas and other options --

LIMITS = "turns seconds tool_calls read_bytes scan_bytes write_bytes files_written"
OPTION_ROWS = """
confinement.require full partial | confinement.on_escape abort refuse | changes.conflict fail retry
changes.max_forget 1 2 | changes.max_scope_share 0.1 0.2 | content.secrets reject redact
content.instructions quarantine allow | content.poison quarantine allow
provenance.untrusted_sources reject quarantine
retention.default 36500 never | retention.untrusted 14 15
"""
ROWS = [row.split() for row in OPTION_ROWS.strip().replace("\n", "|").split("|")]
LOOSER = {f"limits.{name}": ("1", "2") for name in LIMITS.split()} | {
    name: tuple(each if each[0].isdigit() else f'"{each}"' for each in values) for name, *values in ROWS
}
# Every option of a policy: a value, and a value that restricts a run less.
LOOSER["content.reject"] = ('["ansi", "bidi"]', '["bidi"]')


def make_with_option(name, value):
    table, _, key = name.partition(".")
    return make_policy([make_allow("/user/a")], more=f"[{table}]\n{key} = {value}\n")


def changes(old, new):
    difference = compare_policies(old, new)
    return difference.verdict, [(term.name, term.old, term.new, term.is_looser) for term in difference.terms]


@pytest.mark.threat("T-POL-02", control="terms_compared")
def test_changed_option_is_reported_in_both_directions():
    scopes = {"scopes.user.trust", "scopes.user.commit"}
    assert set(list_terms(make_policy([], "user = {}\n"))) == {*LOOSER, *scopes}
    known = {"name", "scope_options", "layers", "quotas", "text"}
    assert {name.partition(".")[0] for name in LOOSER} == {field.name for field in fields(Policy)} - known
    for name, values in LOOSER.items():
        strict, loose = (make_with_option(name, value) for value in values)
        verdict, ((option, *_, is_looser),) = changes(strict, loose)
        assert (verdict, option, is_looser) == ("wider", name, True)
        verdict, ((option, *_, is_looser),) = changes(loose, strict)
        assert (verdict, option, is_looser) == ("proved", name, False)


def make_quotas(*tables):
    return make_policy([make_allow("/user/**")], more="".join(tables))


def test_changed_quota_is_reported_and_fewer_files_is_looser():
    for field in ("max_file_bytes", "max_files", "max_total_bytes"):
        low, high = (make_quotas(format_quota("q", **{field: number})) for number in (1, 2))
        assert changes(low, high) == ("wider", [(f"quota[q].{field}", 1, 2, True)])
        assert changes(high, low) == ("proved", [(f"quota[q].{field}", 2, 1, False)])
    few = partial(format_quota, max_files=5)
    # Each quota limits its own files; both together allow twice as many.
    both = few("a", '/user/t/**", "/user/u/**')
    for old, new in (
        (make_quotas(few("a", "/user/t/**")), make_quotas(few("a", "/user/t/*.md"))),
        (make_quotas(both), make_quotas(few("t", "/user/t/**"), few("u", "/user/u/**"))),
    ):
        verdict, options = changes(old, new)
        assert (verdict, options[0]) == ("wider", ("quota[a].max_files", 5, 20_000, True))
