"""What the failures of a case come to, and who is forgiven what."""

from __future__ import annotations

import pytest

from muniment.testing.conformance.targets import MEANS, Outcome, Promises, outcome_of
from muniment.testing.corpus import Failure, Kind

ATTACK = {"expect": "deny"}
STRICT = Promises(is_exact=True)


def outcome(case, *kinds, promises=STRICT):
    return outcome_of(case, [Failure(kind, "") for kind in kinds], promises)


def test_every_kind_of_failure_leads_somewhere_and_never_to_held():
    assert MEANS.keys() == set(Kind)
    assert Outcome.HELD not in MEANS.values()
    assert set(MEANS.values()) == set(Outcome) - {Outcome.HELD}


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
