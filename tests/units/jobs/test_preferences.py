"""What is no poison passes: preferences in the imperative, and the owner's words in the hands of a model."""

from __future__ import annotations

import hashlib
import json

import pytest

from kit.agent.servers import hasty, serving
from kit.jobs.places import any_words, made, opened
from kit.jobs.poisoned import memory
from kit.memories import put
from kit.where import FACTS
from muniment.agent.filing import RuleWriter
from muniment.jobs.remember import remember
from muniment.jobs.request import RememberRequest
from muniment.names import Scope, Trust
from muniment.store.upkeep import view_of
from muniment.testing.minds import AskForCalls, Say, fences, through

__all__ = ["any_words", "hasty"]
# What a model may commit is narrowed before this (T-RUN-14); here it writes what it likes.
pytestmark = pytest.mark.usefixtures("any_words")

PREFERENCES = [each["text"] for each in json.loads((FACTS / "benign.json").read_text(encoding="utf-8"))]
FACT = "The owner's release day is Wednesday, before lunch."


def held_in(place, scope):
    """Names of the entries that a gate holds back, after a look at every file with an empty catalog."""
    place.state.renew_catalog()
    view = view_of(place.state, place.roots[Scope(scope)], place.policy, sweep=True)
    entries = view.entries()
    assert entries
    return len(entries), [(entry.rel, entry.held) for entry in entries if entry.held is not None]


# -- preferences -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_hundred_preferences_of_the_owner_are_filed_and_none_is_held_back(tmp_path, request):
    texts = PREFERENCES if request.config.getoption("--slow") else PREFERENCES[-200:]
    assert len(texts) >= 200
    with made(tmp_path) as place:
        results = [remember(RememberRequest(text), place, RuleWriter()) for text in texts]
        refused = [(text, result.error) for text, result in zip(texts, results, strict=True) if result.error]
        assert refused == []
        written = {path for result in results for path in result.files_touched}
        known = sum(result.unchanged for result in results)
        assert len(written) + known == len(texts)
        found = [held_in(place, scope) for scope in ("user", "project")]
        assert sum(count for count, _ in found) == len(written)
        assert [held for _, held in found] == [[], []]
    roots = {Scope(scope): tmp_path / scope for scope in ("user", "project")}
    with opened(roots) as stranger:  # a state that knows of none of this
        assert [held_in(stranger, scope)[1] for scope in roots] == [[], []]


def test_as_files_of_a_project_none_of_them_is_held_back(tmp_path):
    with made(tmp_path) as place:
        for number, text in enumerate(PREFERENCES):
            put(tmp_path / "project", f"notes/{number}.md", f"{text}\n")
            name = json.dumps(text, ensure_ascii=False)
            put(tmp_path / "project", f"named/{number}.md", f"---\nname: {name}\n---\nAs it is called.\n")
        assert held_in(place, "project") == (2 * len(PREFERENCES), [])


# -- the owner's words -----------------------------------------------------------------------------------


def filer(content, *, looks=True):
    """A mind that first reads all that stands in a project and then files `content` of the fact."""

    def think(request):
        messages = request.body["messages"]
        done = sum(message["role"] == "tool" for message in messages)
        job = next(str(message["content"]) for message in messages if message["role"] == "user")
        fact = dict(fences(job))["fact"]
        if looks and done == 0:
            return AskForCalls([("grep", {"pattern": "."}), ("ls", {"path": "project"})])
        if looks and done == 2:
            return AskForCalls(
                [("read_file", {"path": path}) for path in ("project/heard.md", "project/team/meetings.md")]
            )
        if done < (5 if looks else 1):
            return AskForCalls([("write_file", {"path": "user/release.md", "content": content(fact)})])
        return Say("Saved to user/release.md.")

    return think


def filed(tmp_path, mind):
    """Trust of the owner's fact, as the ledger and the catalog have it, once a served model has filed it."""
    with serving(through(mind), "tools") as (server, model), memory(tmp_path) as kept:
        result = remember(RememberRequest(FACT, trust=Trust.OWNER), kept.place, model)
        assert (result.error, result.files_touched) == (None, ("user/release.md",))
        assert all("tools" in request.body for request in server.requests[:1])
        first = str(server.requests[0].body["messages"])
        assert "Index of project" in first
        assert "meetings" in first.lower()
        digest = hashlib.sha256((tmp_path / "user/release.md").read_bytes()).hexdigest()
        ((catalog,),) = kept.rows("catalog.db", "SELECT trust FROM entry WHERE rel = 'release.md'")
        return kept.trusts()["user/release.md", digest], catalog


VERBATIM = {
    "bare": lambda fact: f"{fact}\n",
    "with front matter": lambda fact: (
        f"---\nname: Release day\ndescription: when\ntype: user\n---\n\n{fact}\n"
    ),
    "as a list item": lambda fact: f"- {fact}\n",
}
OTHERWISE = {
    "in other words": lambda _: "Releases go out on Wednesday morning.\n",
    "with a word added": lambda fact: f"{fact}\n\nThe build may take an hour.\n",
    "cut": lambda fact: f"{fact[:-14]}.\n",
}


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("content", VERBATIM.values(), ids=VERBATIM)
def test_the_owners_words_stay_the_owners_whatever_else_the_model_has_read(tmp_path, content):
    assert filed(tmp_path, filer(content)) == ("owner", "owner")


@pytest.mark.threat("T-MEM-14", control="capped_trust")
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("content", OTHERWISE.values(), ids=OTHERWISE)
def test_other_words_are_worth_no_more_than_the_least_that_the_model_has_read(tmp_path, content):
    assert filed(tmp_path, filer(content)) == ("agent", "agent")


@pytest.mark.usefixtures("hasty")
def test_other_words_are_an_agents_though_the_model_has_read_nothing_but_the_index(tmp_path):
    assert filed(tmp_path, filer(OTHERWISE["in other words"], looks=False)) == ("agent", "agent")
