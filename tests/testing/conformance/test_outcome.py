"""What the failures of a case come to, and who is forgiven what."""

from __future__ import annotations

import pytest

from muniment.testing.conformance.targets import MEANS, Outcome, Promises, outcome_of
from muniment.testing.corpus import Failure, Kind

ATTACK = {"expect": "deny"}
ORDINARY = {"expect": "allow"}
EITHER = {"expect": "allow", "accept": ["deny"]}
STRICT = Promises(is_exact=True)


def outcome(case, *kinds, promises=STRICT):
    return outcome_of(case, [Failure(kind, "") for kind in kinds], promises)


def test_where_nothing_is_wrong_it_held():
    assert outcome(ATTACK) is Outcome.HELD


def test_every_kind_of_failure_leads_somewhere_and_never_to_held():
    assert MEANS.keys() == set(Kind)
    assert Outcome.HELD not in MEANS.values()
    assert set(MEANS.values()) == set(Outcome) - {Outcome.HELD}


def test_the_worst_of_what_was_seen_counts():
    seen = list(MEANS)
    for worst in Outcome:
        assert outcome(ORDINARY, *seen) is (worst if seen else Outcome.HELD)
        seen = [kind for kind in seen if MEANS[kind] is not worst]


@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.EFFECT])
def test_only_what_has_to_succeed_can_be_broken(kind):
    assert outcome(ORDINARY, kind) is Outcome.BROKEN
    assert outcome(ATTACK, kind) is Outcome.DIFFERS
    assert outcome(EITHER, kind) is Outcome.DIFFERS


@pytest.mark.parametrize(
    ("kind", "promises", "forgiven"),
    [
        (Kind.WORDING, Promises(), Outcome.HELD),
        (Kind.LOOKED, Promises(), Outcome.HELD),
        (Kind.PATH, Promises(hides_paths=False), Outcome.HELD),
        (Kind.INDEX, Promises(keeps_index=False), Outcome.HELD),
        (Kind.CROSSED, Promises(separates_scopes=False), Outcome.DIFFERS),
    ],
)
def test_nobody_is_blamed_for_what_was_never_promised(kind, promises, forgiven):
    assert outcome(ATTACK, kind, promises=promises) is forgiven
    assert outcome(ATTACK, kind) is MEANS[kind]


def test_an_outside_file_that_loses_a_name_is_no_escape_and_one_that_changes_is():
    assert outcome(ATTACK, Kind.DETACHED) is Outcome.DIFFERS
    assert outcome(ATTACK, Kind.DETACHED, Kind.LEFT) is Outcome.ESCAPED
