"""Secrets are sent to a daemon: every byte under its home is searched for them, the ledger's log included."""

from __future__ import annotations

import pytest

from kit.content.secret_values import filled
from kit.daemon.process import BASE, serving
from muniment.lane import Ended, Lane, NewTask, Originator
from muniment.store.state import State
from units.content.test_secrets import RULES

OWNER = Originator("owner")
SECRETS = {rule["id"]: filled(rule["positive"][-1], 11) for rule in RULES}
WIFI = filled("The deploy token is ghp_{a62:36}", 3)


def pieces(text):
    """What is random of a text: runs of letters and digits."""
    runs = "".join(char if char.isalnum() else " " for char in text).split()
    cut = {run[at : at + 16] for run in runs if len(run) >= 16 for at in range(0, len(run) - 15, 8)}
    return {each.encode() for each in cut if any(map(str.isdigit, each)) and any(map(str.isalpha, each))}


def holding(home, wanted):
    """The files beneath a home that hold one of some pieces, in their bytes or their name."""
    return [
        path
        for path in home.rglob("*")
        for data in [path.read_bytes() if path.is_file() else b""]
        if any(piece in data or piece in bytes(path) for piece in wanted)
    ]


@pytest.mark.threat("T-LEAK-11", control="withheld_secrets")
def test_not_even_while_its_task_waits_is_a_secret_on_the_disk(tmp_path):
    with State(tmp_path / "state") as state:
        lane = Lane(state, "w")
        for number, secret in enumerate(SECRETS.values()):
            lane.submit(NewTask("remember", {"content": secret}, OWNER, {}, ref=WIFI))
            if number % 10 == 9:
                while (begun := lane.claim()) is not None:
                    lane.finish(begun, Ended("failed", error={"code": "remember_refused"}))
        wanted = {piece for text in (WIFI, *SECRETS.values()) for piece in pieces(text)}
        assert holding(tmp_path, wanted) == []


@pytest.mark.slow
def test_a_refused_secret_stands_in_no_file_whatever_kind_it_is_of(tmp_path):
    with serving(tmp_path) as daemon:
        source = {"trust": "owner", "ref": WIFI}
        codes = {}
        for kind, secret in SECRETS.items():
            task = daemon.wait(daemon.remember(f"Keep this: {secret}", source=source))
            codes[kind] = task["error"]["code"]
        assert set(codes.values()) == {"remember_refused"}
        wanted = {piece for text in (WIFI, *SECRETS.values()) for piece in pieces(text)}
        assert len(wanted) > len(SECRETS)
        assert holding(daemon.home, wanted) == []
        again = [daemon.post(f"{BASE}/remember", {"content": WIFI}, idempotency_key="k") for _ in range(2)]
        assert again[0].json()["taskId"] == again[1].json()["taskId"]
        other = daemon.post(f"{BASE}/remember", {"content": WIFI.swapcase()}, idempotency_key="k")
        assert other.status_code == 422
        daemon.kill()
        assert holding(daemon.home, wanted) == []
        daemon.start()
    assert holding(daemon.home, wanted) == []


@pytest.mark.threat("T-LEAK-11", control="emptied_logs")
@pytest.mark.threat("T-LEAK-11", control="overwritten_pages")
def test_of_what_was_asked_without_effect_nothing_is_left_once_no_task_waits(tmp_path):
    """Long texts have pages of their own, short ones share one; some are gone while others still wait."""
    with State(tmp_path / "state") as state:
        lane = Lane(state, "w")
        said = [f"{number:03}-wombatquartz-{number * 7919 % 1000:03}" for number in range(60)]
        for number, words in enumerate(said):
            asked = NewTask("forget", {"query": f"{words} " * (1, 3, 90, 900)[number % 4]}, OWNER, {})
            lane.submit(asked)
            if number % 3 == 2:
                while (begun := lane.claim()) is not None:
                    lane.finish(begun, Ended("failed", error={"code": "forget_failed"}))
        assert lane.tidy()
        assert holding(tmp_path, [words.encode() for words in said]) == []


WORDS = "zebrafinch quokkasong", "marmosetglow dugongmoon", "axolotlrain pangolinwind"


@pytest.mark.threat("T-LEAK-12", control="scrubbed_ledger")
def test_after_an_erasure_no_byte_beneath_the_home_says_it(tmp_path):
    with serving(tmp_path) as daemon:
        client = daemon.new_token("editor", "editor-1", trust="owner")
        facts = [f"The user's dream of {words} is called {words.title()} at home" for words in WORDS]
        tasks = [daemon.wait(daemon.remember(fact, token=client, client="editor-1")) for fact in facts]
        for fact in facts:
            daemon.post(f"{BASE}/recall", {"query": fact})
        daemon.wait(daemon.submit("forget", {"query": "marmosetglow dugongmoon"}))
        daemon.wait(daemon.submit("dream", {}))
        wanted = {each for words in WORDS for word in words.split() for each in (word.encode(),)}
        wanted |= {each.title() for each in wanted}
        assert len(holding(daemon.home, wanted)) > 3
        for task in tasks:
            for path in task["result"]["filesTouched"]:
                answer = daemon.post(f"{BASE}/erase", {"target": path, "yes": True})
                assert answer.json()["status"] == "erased", answer.text
        assert holding(daemon.home, wanted) == []
        daemon.kill()
        assert holding(daemon.home, wanted) == []
