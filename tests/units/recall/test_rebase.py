"""Proposals against what is there now, by a model that keeps a list of pairs and knows nothing else of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from muniment.recall.rebase import Node, ProposalPart, rebase

IDS = "abcde"

DIGESTS = "123"


def nodes(text):
    """`a1 b2` as nodes; `c-` says that there is none."""
    return tuple(Node(each[0], None if each[1] == "-" else each[1]) for each in text.split())


def part(claims, replaces="", adds=""):
    return ProposalPart(nodes(claims), tuple(replaces.split()), nodes(adds), False)


def test_what_rests_on_what_changed_went_or_came_is_rejected_whole_and_says_why():
    rows = [
        *(("a1 b2", "a1 b1", "b"), ("a1", "a1 b1", "b"), ("a1 b1", "a1 b-", "b"), ("a2", "a1 b1", "ab")),
        ("a1 x2", "a1", "x"),  # It would come twice.
    ]
    for live, claims, broken in rows:
        found = rebase(nodes(live), [part(claims, "a", "x1")])
        assert (found.nodes, found.rejected[0].broken, found.applied) == (nodes(live), tuple(broken), ()), (
            live
        )


def test_what_is_replaced_must_be_claimed_as_there_and_of_an_id_there_is_one():
    for claims in ("b1", "a- b1"):
        with pytest.raises(ValueError, match="does not claim"):
            rebase(nodes("a1 b1"), [part(claims, "a")])
    with pytest.raises(ValueError, match="one id"):
        rebase(nodes("a1 a2"), [])


def of(ids, *digests, **more):
    return some.lists(some.sampled_from(ids), unique=True, **more).flatmap(
        lambda chosen: some.tuples(
            *(some.builds(Node, some.just(each), some.sampled_from(digests)) for each in chosen)
        )
    )


@some.composite
def parts(draw):
    claims = draw(of(IDS, *DIGESTS, None))
    there = [claim.id for claim in claims if claim.digest is not None]
    replaces = tuple(draw(some.lists(some.sampled_from(there), unique=True))) if there else ()
    return ProposalPart(claims, replaces, draw(of(IDS, *DIGESTS, max_size=2)), draw(some.booleans()))


@given(of(IDS, *DIGESTS), some.lists(parts(), max_size=5))
def test_nothing_that_a_part_did_not_know_is_ever_replaced(live, proposed):
    found = rebase(live, proposed)
    standing = [(node.id, node.digest) for node in live]
    for number, each in enumerate(proposed):
        known = dict(standing)
        holds = all(known.get(claim.id) == claim.digest for claim in each.claims)
        holds &= not ({node.id for node in each.adds} & (known.keys() - set(each.replaces)))
        if holds and each.contiguous and each.replaces:
            holds = "".join(each.replaces) in "".join(name for name, _ in standing)
        assert (number in found.applied) == holds
        if holds:
            gone = [at for at, (name, _) in enumerate(standing) if name in each.replaces]
            place = gone[0] if gone else len(standing)
            coming = [(node.id, node.digest) for node in each.adds]
            kept = [pair for pair in standing[place:] if pair[0] not in each.replaces]
            standing = [*standing[:place], *coming, *kept]
    assert [(node.id, node.digest) for node in found.nodes] == standing
    assert len(found.applied) + len(found.rejected) == len(proposed)
