"""The ordinary job: hundreds of facts in many languages, all of them remembered, most in the right scope."""

from __future__ import annotations

import json
import random

import pytest

from kit.jobs.places import Diligent, made
from kit.memories import strict
from kit.where import FACTS
from muniment.agent.filing import RuleWriter
from muniment.jobs.remember import remember
from muniment.jobs.request import RememberRequest
from muniment.names import Trust

FOLDER = FACTS
FACTS = json.loads((FOLDER / "ordinary.json").read_text())
MATTERS = json.loads((FOLDER / "matters.json").read_text())
BY_RULES = [fact for number, fact in enumerate(FACTS) if number % 5 in {0, 1}]
BY_MODEL = [fact for number, fact in enumerate(FACTS) if number % 5 in {2, 3}]
AGAIN = 25


def attempt(place, model, fact):
    result = remember(RememberRequest(fact["text"]), place, model)
    assert result.error is None, (fact["text"], result.error)
    assert result.status == "completed"
    # No word of it is anybody else's: nothing to be told, and trusted like who asked.
    assert result.notes == ()
    assert result.trust is (None if result.unchanged else Trust.OWNER), fact["text"]
    return result


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_rules_remember_every_fact_in_a_worker_and_know_them_afterwards(tmp_path):
    assert min(len(BY_RULES), len(BY_MODEL)) >= 200
    with made(tmp_path, strict(), in_process=False) as place:
        results = [attempt(place, RuleWriter(), fact) for fact in BY_RULES]
        written = [result for result in results if not result.unchanged]
        assert len(written) >= 0.95 * len(BY_RULES)
        for result in written:
            assert len(result.files_touched) == len(result.touched_scopes) == 1
        right = sum(
            result.touched_scopes == (fact["scope"],)
            for fact, result in zip(BY_RULES, results, strict=True)
            if not result.unchanged
        )
        assert right >= 0.95 * len(written)
        for fact in BY_RULES[:: len(BY_RULES) // AGAIN]:
            result = attempt(place, RuleWriter(), fact)
            assert result.unchanged, fact["text"]
            assert result.files_touched == ()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_well_behaved_model_gets_every_fact_remembered(tmp_path):
    with made(tmp_path) as place:
        for fact in BY_MODEL:
            result = attempt(place, Diligent(fact["scope"]), fact)
            assert result.touched_scopes == (fact["scope"],)
        for fact in BY_MODEL[:: len(BY_MODEL) // AGAIN]:
            assert attempt(place, Diligent(fact["scope"]), fact).unchanged


def test_a_well_behaved_model_works_in_a_worker_all_the_same(tmp_path):
    with made(tmp_path, strict(), in_process=False) as place:
        for fact in FACTS[::50]:
            assert attempt(place, Diligent(fact["scope"]), fact).touched_scopes == (fact["scope"],)
            assert attempt(place, Diligent(fact["scope"]), fact).unchanged


@pytest.mark.slow
def test_the_folder_of_a_fact_depends_on_no_order_of_saving(tmp_path):
    facts = [*FACTS[::18], *MATTERS[::3]][:59]
    folders = []
    for seed in range(3):
        random.Random(seed).shuffle(facts)
        with made(tmp_path / str(seed)) as place:
            saved = {fact["text"]: attempt(place, RuleWriter(), fact).files_touched for fact in facts}
        folders.append({text: path.rpartition("/")[0] for text, (path,) in saved.items()})
    same = sum(len({each[text] for each in folders}) == 1 for text in folders[0])
    assert (len(facts), same) == (59, 59)
