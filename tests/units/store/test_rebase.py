"""Rebase against a model that keeps a list of pairs and knows nothing else of the subject."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from muniment.store.judge import Node, ProposalPart, rebase

IDS = "abcde"
DIGESTS = "123"


def nodes(text):
    """`a1 b2` as nodes; `c-` says that there is none."""
    return tuple(Node(each[0], None if each[1] == "-" else each[1]) for each in text.split())


def shown(found):
    return " ".join(f"{node.id}{node.digest}" for node in found)


def part(claims, replaces="", adds="", *, contiguous=False):
    return ProposalPart(nodes(claims), tuple(replaces.split()), nodes(adds), contiguous)


@pytest.mark.parametrize(
    ("live", "claims", "broken"),
    [
        ("a1 b2", "a1 b1", ("b",)),
        ("a1", "a1 b1", ("b",)),
        ("a1 b1", "a1 b-", ("b",)),
        ("a2", "a1 b1", ("a", "b")),
    ],
)
def test_what_rests_on_what_changed_went_or_came_is_rejected_whole_and_says_why(live, claims, broken):
    found = rebase(nodes(live), [part(claims, "a", "x1")])
    assert shown(found.nodes) == live
    assert found.rejected[0].broken == broken
    assert found.applied == ()


def test_a_node_that_would_come_twice_is_a_conflict():
    assert rebase(nodes("a1 x2"), [part("a1", "a", "x1")]).rejected[0].broken == ("x",)


@pytest.mark.parametrize("live", ["a1 x1 b1", "b1 a1", "a1"])
def test_what_must_stand_side_by_side_is_rejected_where_it_does_not(live):
    assert rebase(nodes(live), [part("a1 b1", "a b", "z1", contiguous=True)]).applied == ()
    assert rebase(nodes("x1 a1 b1"), [part("a1 b1", "a b", "z1", contiguous=True)]).applied == (0,)


def test_what_is_replaced_must_be_claimed_as_there():
    for claims in ("b1", "a- b1"):
        with pytest.raises(ValueError, match="does not claim"):
            rebase(nodes("a1 b1"), [part(claims, "a")])


def test_two_live_nodes_of_one_id_are_nobodys_state():
    with pytest.raises(ValueError, match="one id"):
        rebase(nodes("a1 a2"), [])


@some.composite
def live_nodes(draw):
    ids = draw(some.permutations(IDS).map(lambda all_ids: all_ids[: draw(some.integers(0, 5))]))
    return tuple(Node(each, draw(some.sampled_from(DIGESTS))) for each in ids)


@some.composite
def parts(draw):
    claimed = draw(some.lists(some.sampled_from(IDS), unique=True))
    claims = tuple(Node(each, draw(some.sampled_from([*DIGESTS, None]))) for each in claimed)
    there = [claim.id for claim in claims if claim.digest is not None]
    replaces = tuple(draw(some.lists(some.sampled_from(there), unique=True))) if there else ()
    coming = draw(some.lists(some.sampled_from(IDS), unique=True, max_size=2))
    adds = tuple(Node(each, draw(some.sampled_from(DIGESTS))) for each in coming)
    return ProposalPart(claims, replaces, adds, draw(some.booleans()))


@given(live_nodes(), some.lists(parts(), max_size=5))
def test_nothing_that_a_part_did_not_know_is_ever_replaced(live, proposed):
    found = rebase(live, proposed)
    standing = [(node.id, node.digest) for node in live]
    for number, each in enumerate(proposed):
        known = dict(standing)
        holds = all(known.get(claim.id) == claim.digest for claim in each.claims)
        holds &= not ({node.id for node in each.adds} & (known.keys() - set(each.replaces)))
        if holds and each.contiguous and each.replaces:
            order = [name for name, _ in standing]
            text, wanted = "".join(order), "".join(each.replaces)
            holds = wanted in text
        assert (number in found.applied) == holds
        if not holds:
            continue
        gone = [at for at, (name, _) in enumerate(standing) if name in each.replaces]
        place = gone[0] if gone else len(standing)
        coming = [(node.id, node.digest) for node in each.adds]
        kept = [pair for pair in standing[place:] if pair[0] not in each.replaces]
        standing = [*standing[:place], *coming, *kept]
    assert [(node.id, node.digest) for node in found.nodes] == standing
    assert len(found.applied) + len(found.rejected) == len(proposed)
