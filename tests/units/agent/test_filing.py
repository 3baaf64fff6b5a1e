"""Filing a decision, whoever made it: names that are taken, refusals, the end of the turns."""

from __future__ import annotations

import pytest

from kit.agent.fake_memory import FakeMemory, brief, run
from muniment.agent.decision import Decision, anonymous
from muniment.agent.filing import holds, next_reply, searches
from muniment.agent.model import ModelRequest
from muniment.content.entry import EntryType
from muniment.names import ContextMode, Scope

FACT = "Staging DB is Postgres 16"
FIRST = "project/database/staging.md"
DIGEST = anonymous(FACT).removeprefix("note-")


class Decided:
    """A model that has decided and leaves the filing to the code under test."""

    name = "decided"

    def __init__(self, **more):
        fields = {"scope": Scope("project"), "type": EntryType.PROJECT, "file": "database/staging.md"}
        self.decision = Decision(**{**fields, "title": "Staging", "text": FACT, **more})

    def respond(self, request):
        return next_reply(self.decision, request)


def file(memory, context=ContextMode.WORKSPACE, **more):
    return run(Decided(**more), brief(FACT, context=context), memory)


@pytest.mark.parametrize("fact", [FACT, f"- {FACT}.", FACT + " behind a very long list of proxies" * 9])
def test_an_equal_entry_among_many_twins_is_found(fact):
    twins = {f"project/database/{number}.md": f"以前 {fact.removeprefix('- ')}\n" for number in range(30)}
    memory = FakeMemory({**twins, "project/zz.md": f"{fact}\n"})
    done = run(Decided(text=fact.removeprefix("- ")), brief(fact.removeprefix("- ")), memory)
    assert done.text == "Already known: project/zz.md"


def test_a_name_whose_numbers_are_all_taken_gets_a_digest():
    names = [FIRST, *(f"project/database/staging-{number}.md" for number in range(2, 10))]
    memory = FakeMemory(dict.fromkeys(names, "Something else.\n"))
    assert file(memory).written == [f"project/database/staging-{DIGEST}.md"]
    memory = FakeMemory(dict.fromkeys([*names, f"project/database/staging-{DIGEST}.md"], "Something else.\n"))
    assert file(memory).written == [f"project/database/{anonymous(FACT)}-2.md"]


def test_an_entry_that_was_read_is_never_replaced():
    memory = FakeMemory({FIRST: "Staging DB is Postgres 15, was Postgres 16\n"})
    done = file(memory)
    assert any(call.tool == "read_file" and call.arguments["path"] == FIRST for call in done.calls)
    assert done.written == ["project/database/staging-2.md"]


def test_where_a_file_stands_in_the_place_of_the_folder_the_entry_goes_into_the_scope():
    memory = FakeMemory(stops={FIRST: ("error", "not_a_file")})
    assert file(memory).written == [FIRST, "project/staging.md"]


def test_a_bad_name_is_avoided_once():
    memory = FakeMemory(stops={"project/a*b/c.md": ("deny", "bad_name")})
    assert file(memory, file="a*b/c.md").written == ["project/a*b/c.md", f"project/{anonymous(FACT)}.md"]


def test_a_refusal_in_the_scope_itself_ends_it():
    done = file(FakeMemory(stops={"project/c.md": ("deny", "refused")}), file="c.md")
    assert done.written == ["project/c.md"]
    assert done.text == "Not saved: the write was answered with refused."


def test_two_names_that_do_not_work_end_it():
    memory = FakeMemory(
        stops={FIRST: ("error", "not_read"), f"project/database/staging-{DIGEST}.md": ("error", "not_read")}
    )
    done = file(memory)
    assert len(done.written) == 2
    assert done.turns == 5
    assert done.text.startswith("Not saved: ")


def test_without_tools_it_answers_in_words():
    reply = next_reply(Decided().decision, ModelRequest(brief(FACT), (), (), 1.0))
    assert reply.calls == ()
    assert reply.text == "Not saved: there is no turn left to write in."


def test_an_answer_of_read_file_is_read_defensively():
    assert not holds("", "x")
    assert not holds("x", "x")
    assert not holds("[truncated: x]", "x")
    assert holds("1\tx", "x")
    assert not holds("1\t---\n2\tname: y\n3\tx", "x")
    assert not holds("1\t---\n2\tx\n3\t---\n4\ty", "x")
    assert not holds("41\t---\n42\tx", "x")


def test_patterns_stay_within_what_grep_takes_whatever_the_fact():
    for fact in (
        "\\Q.*(?i)[" * 5000,
        "ﷺ " * 5000,
        "x" * 60_000,
        "ab " * 20_000,
        "深色" * 9000,
        "🙏" * 900,
        "a" * 39 + " " * 9,
    ):
        for search in searches(fact):
            assert 0 < len(search.arguments["pattern"]) <= 1000
