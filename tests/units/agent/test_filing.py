"""Filing a decision, whoever made it: names that are taken, refusals, the end of the turns."""

from __future__ import annotations

from kit.agent.fake_memory import FakeMemory, brief, run
from muniment.agent.decision import Decision, anonymous
from muniment.agent.filing import holds, next_reply
from muniment.agent.model import ModelRequest
from muniment.content.entry import EntryType
from muniment.names import Scope

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


def file(files=(), stops=(), **more):
    return run(Decided(**more), brief(FACT), FakeMemory(dict(files), dict(stops)))


def test_an_equal_entry_among_many_twins_is_found():
    for fact in (FACT, f"{FACT}.", FACT + " behind a very long list of proxies" * 9):
        twins = {f"project/database/{number}.md": f"以前 {fact}\n" for number in range(30)}
        memory = FakeMemory({**twins, "project/zz.md": f"- {fact}\n"})
        assert run(Decided(text=fact), brief(fact), memory).text == "Already known: project/zz.md"


def test_another_name_is_found_where_one_is_taken_refused_no_folder_or_another_entry_that_was_read():
    names = [FIRST, *(f"project/database/staging-{number}.md" for number in range(2, 10))]
    taken = dict.fromkeys(names, "Something else.\n")
    with_digest = f"project/database/staging-{DIGEST}.md"
    assert file(taken).written == [with_digest]
    assert file({**taken, with_digest: "Else.\n"}).written == [f"project/database/{anonymous(FACT)}-2.md"]
    assert file(stops={FIRST: ("error", "not_a_file")}).written == [FIRST, "project/staging.md"]
    done = file(stops={"project/a*b/c.md": ("deny", "bad_name")}, file="a*b/c.md")
    assert done.written == ["project/a*b/c.md", f"project/{anonymous(FACT)}.md"]
    done = file({FIRST: "Staging DB is Postgres 15, was Postgres 16\n"})
    assert any(call.tool == "read_file" and call.arguments["path"] == FIRST for call in done.calls)
    assert done.written == ["project/database/staging-2.md"]


def test_a_refusal_in_the_scope_itself_and_two_names_that_do_not_work_end_it():
    done = file(stops={"project/c.md": ("deny", "refused")}, file="c.md")
    assert done.written == ["project/c.md"]
    assert done.text == "Not saved: the write was answered with refused."
    not_read = ("error", "not_read")
    done = file(stops={FIRST: not_read, f"project/database/staging-{DIGEST}.md": not_read})
    assert (len(done.written), done.turns) == (2, 5)
    assert done.text.startswith("Not saved: ")
    reply = next_reply(Decided().decision, ModelRequest(brief(FACT), (), (), 1.0))
    assert (reply.calls, reply.text) == ((), "Not saved: there is no turn left to write in.")


def test_an_answer_of_read_file_is_read_defensively():
    truncated = "[truncated: 2 lines in all; read on with offset=1]"
    for answer, held in (
        *(("", False), ("x", False), ("[truncated: x]", False), ("1\tx", True), ("851\t- x\n", False)),
        *(("1\t---\n2\tname: y\n3\tx", False), ("1\t---\n2\tx\n3\t---\n4\ty", False)),
        *(("41\t---\n42\tx", False), (f"1\t- x\n{truncated}", False), (f"1\t- x\n2\t{truncated}", False)),
        (f"1\t- x\n2\t- {truncated}", True),
    ):
        assert holds(answer, "x") is held, answer
