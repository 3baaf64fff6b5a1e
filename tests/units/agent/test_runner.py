"""The agent loop and its budget: every end of a run, and limits that a model cannot change."""

from dataclasses import replace
from functools import reduce
from types import SimpleNamespace

import pytest

from kit.clock import FakeClock
from kit.operations.contexts import make_raising_step
from muniment.agent import model as protocol
from muniment.agent.chat import NUDGE
from muniment.agent.runner import MAX_DENIALS, Runner
from muniment.errors import Cancelled, DeadlineExceeded, WorkerLost
from muniment.kernel.decide import Limits
from muniment.kernel.names import Scope, Via
from muniment.names import ContextMode
from muniment.sandbox.tools.calls import Outcome
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text

SCOPES = tuple(protocol.ScopeBrief(Scope(name), writable=True) for name in ("user", "project"))
DONE = Outcome("allow", None, "done")
DENIED = Outcome("deny", "refused", "no", rule="pinned")
ESCAPED = Outcome("deny", "path_escape", "no", via=Via.SYMLINK)
WRITE = make_call("write_file", path="user/a.md", content="x")
READ = make_call("read_file", path="user/a.md")


class Tools:
    """Record calls and return one scripted outcome for each tool."""

    def __init__(self, **list_codes):
        self.answers, self.recorded_calls = list_codes, []

    def __call__(self, tool, arguments):
        self.recorded_calls.append((tool, arguments))
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


def list_codes(run):
    """Return the code of each tool message in order; None if the call was allowed."""
    return [message.code for message in run.outcome.messages if isinstance(message, protocol.ToolMessage)]


def get_end(done):
    return done.outcome.ended_by


def test_text_without_calls_ends_run(run):
    done = run(
        [protocol.Reply("I am done!", (READ,)), reply_with_calls(WRITE), reply_with_text("  Saved.  ")]
    )
    assert (get_end(done), done.outcome.final_text, done.budget.turns) == ("final_text", "Saved.", 3)
    assert done.tools.recorded_calls == [("read_file", READ.arguments), ("write_file", WRITE.arguments)]
    assert "<<fact 0123456789abcdef>>\na fact\n<<end 0123456789abcdef>>" in done.outcome.messages[1].text


@pytest.mark.threat("T-RUN-08", control="escape_ends_run")
def test_path_escape_by_write_tool_ends_run(run):
    for tool in ("write_file", "edit"):
        escape = make_call(tool, path="user/../x\n.md")
        done = run([reply_with_calls(escape, WRITE), reply_with_text("Saved.")], Tools(**{tool: ESCAPED}))
        assert get_end(done) == "escape"
        found = done.outcome.escape
        assert (found.via, found.tool, found.requested) == (Via.SYMLINK, tool, "user/../x\\u{a}.md")
        assert len(done.tools.recorded_calls) == 1
    for arguments in (None, [], {"path": 7}, {}):
        tools = Tools(write_file=Outcome("deny", "path_escape", "no"))
        done = run([protocol.Reply(calls=(protocol.ToolCall("1", "write_file", arguments),))], tools)
        assert (get_end(done), done.outcome.escape.requested) == ("escape", "")


def test_three_denials_or_read_escapes_end_run(run):
    ls = make_call("ls", path="user")
    tools = Tools(read_file=ESCAPED, ls=DENIED, write_file=DENIED)
    done = run(
        [
            reply_with_calls(READ),
            reply_with_calls(ls),
            reply_with_calls(WRITE, READ),
            reply_with_text("Saved."),
        ],
        tools,
    )
    assert get_end(done) == "refusals"
    assert len(done.outcome.decisions) == MAX_DENIALS == 3
    assert (
        get_end(run([reply_with_calls(READ), reply_with_calls(ls), reply_with_text("No.")], tools))
        == "final_text"
    )
    done = run([reply_with_calls(WRITE), reply_with_text("No.")], Tools(write_file=ESCAPED), abort=False)
    assert (get_end(done), done.outcome.escape) == ("final_text", None)


def test_errors_do_not_count_as_denials(run):
    wrong = Outcome("error", "not_found", "no such file")
    paths = [make_call("read_file", path=f"user/{number}.md") for number in range(8)]
    done = run([reply_with_calls(*paths), reply_with_text("No.")], Tools(read_file=wrong))
    assert (get_end(done), done.outcome.read) == ("final_text", set())


@pytest.mark.threat("T-RUN-01", control="counted_turns")
def test_last_turn_offers_no_tools_then_run_is_out_of_turns(run):
    steps = [reply_with_calls(make_call("ls", path=f"user/{number}")) for number in range(6)]
    done = run(steps)
    assert get_end(done) == "turns"
    assert [bool(request.tools) for request in done.model.requests] == [True] * 5 + [False]
    assert len(done.tools.recorded_calls) == 5


def test_text_on_last_turn_ends_run_despite_calls(run):
    done = run([reply_with_calls(make_call("ls", path="user")), protocol.Reply("Saved.", (WRITE,))], turns=2)
    assert (get_end(done), len(done.tools.recorded_calls)) == ("final_text", 1)
    assert get_end(run([reply_with_text(" ")], turns=1)) == "turns"


def test_empty_answer_gets_one_reminder(run):
    done = run([reply_with_text(" \n"), reply_with_text("Saved.")])
    assert get_end(done) == "final_text"
    assert [each for each in done.outcome.messages[2:] if each == NUDGE] == [NUDGE]
    assert get_end(run([reply_with_text(""), reply_with_text("")])) == "model_error"
    assert get_end(run([reply_with_text(""), reply_with_calls(WRITE), reply_with_text("")])) == "model_error"


def test_model_error_or_lost_worker_ends_run_with_reason(run):
    for done, why in (
        (
            run([make_raising_step(protocol.ModelError("the server is down"))]),
            ("model_error", "the server is down"),
        ),
        (run([reply_with_calls(READ)]), ("model_error", "the script has no further step")),
        (run([reply_with_calls(WRITE)], Tools(write_file=WorkerLost("it died"))), ("worker_lost", "it died")),
    ):
        assert (get_end(done), done.outcome.detail) == why
    for arguments in (None, [], {}, {"path": 7}, {"path": "user/.."}, {"path": "team/a.md"}):
        tool_call = protocol.ToolCall("1", "read_file", arguments)  # A worker that accepts any path.
        assert get_end(run([protocol.Reply(calls=(tool_call,)), reply_with_text("Known.")])) == "worker_lost"


def test_deadline_or_cancel_from_model_or_tool_ends_run(run):
    for error, why in ((DeadlineExceeded("x"), "deadline"), (Cancelled("x"), "cancelled")):
        assert get_end(run([make_raising_step(error)])) == why
        assert get_end(run([reply_with_calls(WRITE)], Tools(write_file=error))) == why


@pytest.mark.threat("T-RUN-01", control="kept_deadline")
def test_deadline_is_checked_between_turns_and_calls(run, clock):
    done = run([lambda _: clock.advance(295) or reply_with_calls(WRITE)])
    assert (get_end(done), done.tools.recorded_calls) == ("deadline", [])
    slow = Tools(ls=lambda _: clock.advance(295) or DONE)
    done = run([reply_with_calls(make_call("ls", path="user"), WRITE), reply_with_text("Saved.")], slow)
    assert (get_end(done), len(done.tools.recorded_calls)) == ("deadline", 1)


def test_request_carries_seconds_left_and_cancel(run, clock, cancel):
    done = run([lambda _: clock.advance(100) or reply_with_calls(WRITE), reply_with_text("Saved.")])
    assert [request.seconds_left for request in done.model.requests] == [295, 195]
    assert done.model.requests[0].cancel is cancel


def test_cancel_is_checked_before_turns_and_calls(run, cancel):
    done = run(
        [reply_with_calls(make_call("ls", path="user"), WRITE)], Tools(ls=lambda _: cancel.set() or DONE)
    )
    assert (get_end(done), len(done.tools.recorded_calls)) == ("cancelled", 1)
    done = run([reply_with_text("Saved.")])
    assert (get_end(done), done.model.requests) == ("cancelled", [])


def test_read_files_are_recorded_by_canonical_path(run):
    edit = make_call("edit", path="project/b.md", old_string="a", new_string="b")
    read = make_call("read_file", path="/memories/user/a.md")
    done = run([reply_with_calls(read, edit, make_call("ls", path="user")), reply_with_text("x")])
    assert {path.text for path in done.outcome.read} == {"user/a.md", "project/b.md"}


def test_repeated_read_is_rejected_unless_write_between(run):
    repeated_read = protocol.ToolCall("2", "read_file", dict(READ.arguments))
    done = run(
        [reply_with_calls(READ, repeated_read), reply_with_calls(READ, WRITE, READ), reply_with_text("x")]
    )
    assert list_codes(done) == [None, "bad_arguments", "bad_arguments", None, None]
    assert len(done.tools.recorded_calls) == 3
    same = ({"path": "user", "pattern": "x"}, {"pattern": "x", "path": "user"})
    grep_calls = [protocol.ToolCall(str(number), "grep", each) for number, each in enumerate(same)]
    assert list_codes(run([protocol.Reply(calls=tuple(grep_calls)), reply_with_text("x")])) == [
        None,
        "bad_arguments",
    ]


def test_repeated_write_ends_run_unless_it_failed(run):
    done = run([protocol.Reply("Saving.", (WRITE,)), reply_with_calls(WRITE, make_call("ls", path="user"))])
    assert (get_end(done), done.outcome.final_text) == ("final_text", "Saving.")
    assert len(done.tools.recorded_calls) == 1
    done = run(
        [reply_with_calls(WRITE), reply_with_calls(WRITE), reply_with_text("x")], Tools(write_file=DENIED)
    )
    assert list_codes(done) == ["refused", "bad_arguments"]


@pytest.mark.threat("T-RUN-07", control="escape_ends_run")
def test_second_unknown_tool_ends_run(run):
    for second in ("bash", "python"):
        done = run(
            [
                reply_with_calls(make_call("bash", command="id")),
                reply_with_calls(make_call(second, command="id")),
                reply_with_text("x"),
            ]
        )
        assert (get_end(done), list_codes(done)) == ("model_error", ["unknown_tool", "unknown_tool"])
        assert "edit, grep, ls, read_file, write_file" in done.outcome.decisions[0].outcome.text
        assert done.tools.recorded_calls == []
    assert get_end(run([reply_with_calls(make_call("bash")), reply_with_text("x")])) == "final_text"


@pytest.mark.threat("T-RUN-07", control="offered_tools")
def test_clean_run_has_no_read_tools(run):
    for tool in ("read_file", "grep", "ls"):
        done = run(
            [reply_with_calls(make_call(tool, path="user", pattern="x")), reply_with_text("x")],
            context=ContextMode.CLEAN,
        )
        assert (list_codes(done), done.tools.recorded_calls) == (["unknown_tool"], [])
        assert "edit, write_file" in done.outcome.decisions[0].outcome.text


@pytest.mark.threat("T-RUN-01", control="counted_calls")
def test_calls_over_budget_are_answered_but_not_made(run):
    listing = [make_call("ls", path=f"user/{number}") for number in range(5)]
    done = run([reply_with_calls(*listing), reply_with_text("x")], tool_calls=3)
    assert (list_codes(done), len(done.tools.recorded_calls)) == ([None, None, None, "budget", "budget"], 3)


def test_each_call_is_answered_in_order_and_observed(run):
    seen = []
    tool_calls = tuple(
        protocol.ToolCall(f"id-{number}", "ls", {"path": f"user/{number}"}) for number in range(4)
    )
    done = run(
        [protocol.Reply(calls=tool_calls), reply_with_calls(WRITE), reply_with_text("x")], observe=seen.append
    )
    result_ids = [
        message.call_id for message in done.outcome.messages if isinstance(message, protocol.ToolMessage)
    ]
    assert result_ids[:4] == ["id-0", "id-1", "id-2", "id-3"]
    kinds = {protocol.AssistantMessage: "assistant", protocol.ToolMessage: "tool"}
    turns = [kinds[type(message)] for message in done.outcome.messages[2:]]
    assert turns == ["assistant", *["tool"] * 4, "assistant", "tool", "assistant"]
    decided = [(each.turn, each.tool, each.outcome.verdict) for each in seen]
    assert decided == [*[(1, "ls", "allow")] * 4, (2, "write_file", "allow")]


def test_timeline_records_every_turn_including_failed(run, clock):
    one = replace(reply_with_calls(WRITE), usage=protocol.Usage(3, 5))
    fail = make_raising_step(protocol.ModelError("gone"))
    done = run([lambda _: clock.advance(2) or one, lambda request: clock.advance(1.5) or fail(request)])
    assert get_end(done) == "model_error"
    failed = protocol.Turn(1.5, protocol.Usage())
    assert done.budget.timeline == [protocol.Turn(2, protocol.Usage(3, 5)), failed]


def list_results(request):
    return [message.text for message in request.messages if isinstance(message, protocol.ToolMessage)]


def make_overflow_step(*, limit):
    """Create a step that overflows if the results have more than `limit` characters."""

    def respond(request):
        if sum(map(len, list_results(request))) > limit:
            raise protocol.ContextOverflow("too long")
        return reply_with_text("It is in user/a.md.")

    return respond


def test_overflow_drops_earlier_results_and_retries(run):
    answer = Tools(read_file=Outcome("allow", None, "x" * 1000), ls=Outcome("allow", None, "y" * 500))
    steps = [
        reply_with_calls(READ),
        reply_with_calls(make_call("ls", path="user")),
        *[make_overflow_step(limit=700)] * 2,
    ]
    done = run(steps, answer)
    assert get_end(done) == "final_text"
    first, second = list_results(done.model.requests[-1])
    assert "dropped" in first
    assert second == "y" * 500
    assert len(done.budget.timeline) == done.budget.turns == 3


def test_overflow_drops_last_results_once_and_allows_reread(run):
    def read(*steps):
        return run([reply_with_calls(READ), *steps], Tools(read_file=Outcome("allow", None, "x" * 1000)))

    assert get_end(read(*[make_overflow_step(limit=700)] * 2)) == "final_text"
    shorter_read = make_call("read_file", path="user/a.md", limit=3)
    done = read(
        make_overflow_step(limit=0), lambda _: reply_with_calls(shorter_read), make_overflow_step(limit=0)
    )
    assert (get_end(done), done.outcome.detail) == ("model_error", "too long")
    assert len(done.model.requests) == 4
    done = read(make_overflow_step(limit=0), lambda _: reply_with_calls(READ), reply_with_text("Saved."))
    assert (list_codes(done), len(done.tools.recorded_calls)) == ([None, None], 2)


def test_overflow_without_results_ends_run(run):
    done = run([make_raising_step(protocol.ContextOverflow("too long")), reply_with_text("never")])
    assert (get_end(done), len(done.model.requests)) == ("model_error", 1)


LOOP = []
LOOP.append(LOOP)


def test_malformed_arguments_do_not_raise(run):
    wrong = Outcome("error", "bad_arguments", "no")
    nested = reduce(lambda inner, _: [inner], range(5000), [])
    odd = (nested, {1: "a", "b": 2}, {"x": float("nan")}, LOOP, object(), "\ud800", 10**5000)
    for number, arguments in enumerate(odd):
        reply = protocol.Reply(calls=(protocol.ToolCall("1", "ls", arguments),))
        assert get_end(run([reply, reply_with_text("x")], Tools(ls=wrong))) == "final_text", number
