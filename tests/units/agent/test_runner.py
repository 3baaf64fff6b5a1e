"""The loop and its budget: every way in which a run ends, and what a model cannot talk it into."""

from dataclasses import replace
from functools import reduce
from types import SimpleNamespace

import pytest

from kit.clock import FakeClock
from kit.operations.places import raising
from muniment.agent import model as protocol
from muniment.agent.chat import NUDGE
from muniment.agent.runner import MAX_REFUSALS, Runner
from muniment.errors import Cancelled, DeadlineExceeded, WorkerLost
from muniment.kernel.decide import Limits
from muniment.kernel.names import Scope, Via
from muniment.names import ContextMode
from muniment.sandbox.tools.calls import Outcome
from muniment.testing.minds import ScriptedModel, call, calls, say

SCOPES = tuple(protocol.ScopeBrief(Scope(name), writable=True) for name in ("user", "project"))
DONE = Outcome("allow", None, "done")
DENIED = Outcome("deny", "refused", "no", rule="pinned")
ESCAPED = Outcome("deny", "path_escape", "no", via=Via.SYMLINK)
WRITE = call("write_file", path="user/a.md", content="x")
READ = call("read_file", path="user/a.md")


class Tools:
    """Answers by tool, and keeps what was called."""

    def __init__(self, **answers):
        self.answers, self.called = answers, []

    def __call__(self, tool, arguments):
        self.called.append((tool, arguments))
        answer = self.answers.get(tool, DONE)
        if isinstance(answer, Exception):
            raise answer
        return answer(arguments) if callable(answer) else answer


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def run(cancel, clock):
    def run(steps, tools=None, *, context=ContextMode.WORKSPACE, abort=True, observe=None, **limits):
        tools, model = tools or Tools(), ScriptedModel(steps)
        budget = protocol.Budget(Limits(**limits), cancel, clock)
        more = {"observe": observe} if observe else {}
        runner = Runner(model, tools, budget, abort_on_escape=abort, token="0123456789abcdef", **more)
        outcome = runner.run(protocol.Brief("a fact", SCOPES, context))
        return SimpleNamespace(outcome=outcome, tools=tools, model=model, budget=budget)

    return run


def answers(run):
    """Code of every tool message, in order; None where it was allowed."""
    return [message.code for message in run.outcome.messages if isinstance(message, protocol.ToolMessage)]


def ended_by(done):
    return done.outcome.ended_by


def test_words_end_a_run_unless_they_stand_beside_calls(run):
    done = run([protocol.Reply("I am done!", (READ,)), calls(WRITE), say("  Saved.  ")])
    assert (ended_by(done), done.outcome.final_text, done.budget.turns) == ("final_text", "Saved.", 3)
    assert done.tools.called == [("read_file", READ.arguments), ("write_file", WRITE.arguments)]
    assert "<<fact 0123456789abcdef>>\na fact\n<<end 0123456789abcdef>>" in done.outcome.messages[1].text


@pytest.mark.threat("T-RUN-08", control="escape_ends_run")
def test_an_escape_by_a_writing_tool_ends_it_at_once_with_or_without_a_path(run):
    for tool in ("write_file", "edit"):
        escape = call(tool, path="user/../x\n.md")
        done = run([calls(escape, WRITE), say("Saved.")], Tools(**{tool: ESCAPED}))
        assert ended_by(done) == "escape"
        found = done.outcome.escape
        assert (found.via, found.tool, found.requested) == (Via.SYMLINK, tool, "user/../x\\u{a}.md")
        assert len(done.tools.called) == 1
    for arguments in (None, [], {"path": 7}, {}):
        tools = Tools(write_file=Outcome("deny", "path_escape", "no"))
        done = run([protocol.Reply(calls=(protocol.ToolCall("1", "write_file", arguments),))], tools)
        assert (ended_by(done), done.outcome.escape.requested) == ("escape", "")


def test_read_escapes_and_refusals_count_together_and_three_end_it(run):
    ls = call("ls", path="user")
    tools = Tools(read_file=ESCAPED, ls=DENIED, write_file=DENIED)
    done = run([calls(READ), calls(ls), calls(WRITE, READ), say("Saved.")], tools)
    assert ended_by(done) == "refusals"
    assert len(done.outcome.decisions) == MAX_REFUSALS == 3
    assert ended_by(run([calls(READ), calls(ls), say("No.")], tools)) == "final_text"
    done = run([calls(WRITE), say("No.")], Tools(write_file=ESCAPED), abort=False)
    assert (ended_by(done), done.outcome.escape) == ("final_text", None)


def test_errors_are_no_refusals(run):
    wrong = Outcome("error", "not_found", "no such file")
    paths = [call("read_file", path=f"user/{number}.md") for number in range(8)]
    done = run([calls(*paths), say("No.")], Tools(read_file=wrong))
    assert (ended_by(done), done.outcome.read) == ("final_text", set())


@pytest.mark.threat("T-RUN-01", control="counted_turns")
def test_the_sixth_turn_offers_no_tools_and_a_run_without_words_has_used_its_turns_up(run):
    steps = [calls(call("ls", path=f"user/{number}")) for number in range(6)]
    done = run(steps)
    assert ended_by(done) == "turns"
    assert [bool(request.tools) for request in done.model.requests] == [True] * 5 + [False]
    assert len(done.tools.called) == 5


def test_words_on_the_last_turn_end_it_well_even_beside_calls(run):
    done = run([calls(call("ls", path="user")), protocol.Reply("Saved.", (WRITE,))], turns=2)
    assert (ended_by(done), len(done.tools.called)) == ("final_text", 1)
    assert ended_by(run([say(" ")], turns=1)) == "turns"


def test_an_empty_answer_is_nudged_once(run):
    done = run([say(" \n"), say("Saved.")])
    assert ended_by(done) == "final_text"
    assert [each for each in done.outcome.messages[2:] if each == NUDGE] == [NUDGE]
    assert ended_by(run([say(""), say("")])) == "model_error"
    assert ended_by(run([say(""), calls(WRITE), say("")])) == "model_error"


def test_a_model_that_cannot_answer_and_a_lost_worker_end_it_with_their_reason(run):
    for done, why in (
        (run([raising(protocol.ModelError("the server is down"))]), ("model_error", "the server is down")),
        (run([calls(READ)]), ("model_error", "the script has no further step")),
        (run([calls(WRITE)], Tools(write_file=WorkerLost("it died"))), ("worker_lost", "it died")),
    ):
        assert (ended_by(done), done.outcome.detail) == why
    for arguments in (None, [], {}, {"path": 7}, {"path": "user/.."}, {"path": "team/a.md"}):
        asked = protocol.ToolCall("1", "read_file", arguments)  # A worker that lets it read no path.
        assert ended_by(run([protocol.Reply(calls=(asked,)), say("Known.")])) == "worker_lost"


def test_a_model_or_tool_may_say_that_time_is_up_or_the_caller_gone(run):
    for error, why in ((DeadlineExceeded("x"), "deadline"), (Cancelled("x"), "cancelled")):
        assert ended_by(run([raising(error)])) == why
        assert ended_by(run([calls(WRITE)], Tools(write_file=error))) == why


@pytest.mark.threat("T-RUN-01", control="kept_deadline")
def test_the_deadline_holds_between_turns_and_between_calls(run, clock):
    done = run([lambda _: clock.advance(295) or calls(WRITE)])
    assert (ended_by(done), done.tools.called) == ("deadline", [])
    slow = Tools(ls=lambda _: clock.advance(295) or DONE)
    done = run([calls(call("ls", path="user"), WRITE), say("Saved.")], slow)
    assert (ended_by(done), len(done.tools.called)) == ("deadline", 1)


def test_a_model_is_told_how_much_time_is_left_and_can_see_a_cancel(run, clock, cancel):
    done = run([lambda _: clock.advance(100) or calls(WRITE), say("Saved.")])
    assert [request.seconds_left for request in done.model.requests] == [295, 195]
    assert done.model.requests[0].cancel is cancel


def test_a_cancel_holds_before_the_first_turn_and_between_calls(run, cancel):
    done = run([calls(call("ls", path="user"), WRITE)], Tools(ls=lambda _: cancel.set() or DONE))
    assert (ended_by(done), len(done.tools.called)) == ("cancelled", 1)
    done = run([say("Saved.")])
    assert (ended_by(done), done.model.requests) == ("cancelled", [])


def test_what_was_read_is_kept_by_its_canonical_path(run):
    edit = call("edit", path="project/b.md", old_string="a", new_string="b")
    read = call("read_file", path="/memories/user/a.md")
    done = run([calls(read, edit, call("ls", path="user")), say("x")])
    assert {path.text for path in done.outcome.read} == {"user/a.md", "project/b.md"}


def test_the_same_call_twice_is_a_mistake_unless_something_was_written_between(run):
    again = protocol.ToolCall("2", "read_file", dict(READ.arguments))
    done = run([calls(READ, again), calls(READ, WRITE, READ), say("x")])
    assert answers(done) == [None, "bad_arguments", "bad_arguments", None, None]
    assert len(done.tools.called) == 3
    same = ({"path": "user", "pattern": "x"}, {"pattern": "x", "path": "user"})
    asked = [protocol.ToolCall(str(number), "grep", each) for number, each in enumerate(same)]
    assert answers(run([protocol.Reply(calls=tuple(asked)), say("x")])) == [None, "bad_arguments"]


def test_the_same_write_twice_means_done_unless_it_failed(run):
    done = run([protocol.Reply("Saving.", (WRITE,)), calls(WRITE, call("ls", path="user"))])
    assert (ended_by(done), done.outcome.final_text) == ("final_text", "Saving.")
    assert len(done.tools.called) == 1
    done = run([calls(WRITE), calls(WRITE), say("x")], Tools(write_file=DENIED))
    assert answers(done) == ["refused", "bad_arguments"]


@pytest.mark.threat("T-RUN-07", control="escape_ends_run")
def test_an_unknown_tool_is_told_once_and_ends_it_the_second_time(run):
    for second in ("bash", "python"):
        done = run([calls(call("bash", command="id")), calls(call(second, command="id")), say("x")])
        assert (ended_by(done), answers(done)) == ("model_error", ["unknown_tool", "unknown_tool"])
        assert "edit, grep, ls, read_file, write_file" in done.outcome.decisions[0].outcome.text
        assert done.tools.called == []
    assert ended_by(run([calls(call("bash")), say("x")])) == "final_text"


@pytest.mark.threat("T-RUN-07", control="offered_tools")
def test_a_clean_run_has_no_tools_that_show(run):
    for tool in ("read_file", "grep", "ls"):
        done = run([calls(call(tool, path="user", pattern="x")), say("x")], context=ContextMode.CLEAN)
        assert (answers(done), done.tools.called) == (["unknown_tool"], [])
        assert "edit, write_file" in done.outcome.decisions[0].outcome.text


@pytest.mark.threat("T-RUN-01", control="counted_calls")
def test_calls_beyond_the_budget_are_answered_and_not_made(run):
    listing = [call("ls", path=f"user/{number}") for number in range(5)]
    done = run([calls(*listing), say("x")], tool_calls=3)
    assert (answers(done), len(done.tools.called)) == ([None, None, None, "budget", "budget"], 3)


def test_every_call_is_answered_by_its_id_in_order_and_observed_without_content(run):
    seen = []
    asked = tuple(protocol.ToolCall(f"id-{number}", "ls", {"path": f"user/{number}"}) for number in range(4))
    done = run([protocol.Reply(calls=asked), calls(WRITE), say("x")], observe=seen.append)
    told = [message.call_id for message in done.outcome.messages if isinstance(message, protocol.ToolMessage)]
    assert told[:4] == ["id-0", "id-1", "id-2", "id-3"]
    kinds = {protocol.AssistantMessage: "said", protocol.ToolMessage: "told"}
    turns = [kinds[type(message)] for message in done.outcome.messages[2:]]
    assert turns == ["said", *["told"] * 4, "said", "told", "said"]
    decided = [(each.turn, each.tool, each.outcome.verdict) for each in seen]
    assert decided == [*[(1, "ls", "allow")] * 4, (2, "write_file", "allow")]


def test_the_timeline_says_what_each_turn_took_also_the_one_that_failed(run, clock):
    one = replace(calls(WRITE), usage=protocol.Usage(3, 5))
    fail = raising(protocol.ModelError("gone"))
    done = run([lambda _: clock.advance(2) or one, lambda request: clock.advance(1.5) or fail(request)])
    assert ended_by(done) == "model_error"
    failed = protocol.Turn(1.5, protocol.Usage())
    assert done.budget.timeline == [protocol.Turn(2, protocol.Usage(3, 5)), failed]


def results(request):
    return [message.text for message in request.messages if isinstance(message, protocol.ToolMessage)]


def overflowing(*, after):
    """A step that overflows where more than `after` characters of results are shown."""

    def respond(request):
        if sum(map(len, results(request))) > after:
            raise protocol.ContextOverflow("too long")
        return say("It is in user/a.md.")

    return respond


def test_what_is_too_long_loses_the_results_of_earlier_turns_and_is_asked_once_more(run):
    answer = Tools(read_file=Outcome("allow", None, "x" * 1000), ls=Outcome("allow", None, "y" * 500))
    steps = [calls(READ), calls(call("ls", path="user")), *[overflowing(after=700)] * 2]
    done = run(steps, answer)
    assert ended_by(done) == "final_text"
    first, second = results(done.model.requests[-1])
    assert "dropped" in first
    assert second == "y" * 500
    assert len(done.budget.timeline) == done.budget.turns == 3


def test_the_last_results_are_dropped_where_there_are_no_earlier_ones_once_and_may_be_read_again(run):
    def read(*steps):
        return run([calls(READ), *steps], Tools(read_file=Outcome("allow", None, "x" * 1000)))

    assert ended_by(read(*[overflowing(after=700)] * 2)) == "final_text"
    again = call("read_file", path="user/a.md", limit=3)
    done = read(overflowing(after=0), lambda _: calls(again), overflowing(after=0))
    assert (ended_by(done), done.outcome.detail) == ("model_error", "too long")
    assert len(done.model.requests) == 4
    done = read(overflowing(after=0), lambda _: calls(READ), say("Saved."))
    assert (answers(done), len(done.tools.called)) == ([None, None], 2)


def test_what_is_too_long_without_any_result_ends_it(run):
    done = run([raising(protocol.ContextOverflow("too long")), say("never")])
    assert (ended_by(done), len(done.model.requests)) == ("model_error", 1)


LOOP = []
LOOP.append(LOOP)


def test_no_arguments_make_the_loop_raise(run):
    wrong = Outcome("error", "bad_arguments", "no")
    nested = reduce(lambda inner, _: [inner], range(5000), [])
    odd = (nested, {1: "a", "b": 2}, {"x": float("nan")}, LOOP, object(), "\ud800", 10**5000)
    for number, arguments in enumerate(odd):
        reply = protocol.Reply(calls=(protocol.ToolCall("1", "ls", arguments),))
        assert ended_by(run([reply, say("x")], Tools(ls=wrong))) == "final_text", number
