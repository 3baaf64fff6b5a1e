"""Spans of OpenTelemetry, for a program that has set a tracer provider: what they say, and never say."""

import json
import logging
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kit.mcp import over_http
from muniment import errors
from muniment.agent.model import ModelError, Reply
from muniment.events import MAX_PARENTS, TraceParents, span
from muniment.testing.minds import ScriptedModel, call, calls, say
from muniment.types import RememberRequest, Usage

FACT = "The user prefers dark mode in all editors"
SECRET = "sk-live-4eC39HqLyjWDarjtT1zdp7dc"
CANARY = "canary-7f3a"


@pytest.fixture
def provider(monkeypatch):
    """That of the program; a process can set only one, so that it is put back behind the test."""
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield provider
    provider.shutdown()


@pytest.fixture
def spans(provider):
    """All that ended, in the order in which they began."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return lambda: sorted(exporter.get_finished_spans(), key=lambda each: each.start_time)


def tree(spans):
    """The spans as lines, each indented below its parent, with all that they say but ids and tokens."""
    depth, lines = {None: -1}, []
    for each in spans:
        parent = None if each.parent is None else each.parent.span_id
        depth[each.context.span_id] = depth[parent] + 1
        said = {name.rpartition(".")[2]: value for name, value in each.attributes.items()}
        told = (f"{name}={value}" for name, value in said.items() if not name.endswith(("_id", "_tokens")))
        mark = "" if each.status.is_ok or each.status.status_code.name == "UNSET" else " !"
        lines.append(f"{'  ' * depth[each.context.span_id]}{each.name[9:]} {' '.join(told)}".rstrip() + mark)
    return lines


def written(spans):
    """All that a collector would be sent."""
    return json.dumps([json.loads(each.to_json()) for each in spans])


FILES_IT = [
    calls(call("ls", path="user")),
    calls(call("write_file", path="user/editor/dark.md", content=f"{FACT}\n")),
    say("Saved to user/editor/dark.md."),
]


def test_a_remember_is_a_task_with_its_run_its_turns_their_tool_calls_and_its_commit(memory, spans):
    with memory(model=ScriptedModel(FILES_IT)) as opened:
        done = opened.remember(FACT)
    assert tree(spans()) == [
        "task kind=remember status=completed",
        "  run ended_by=final_text calls=2",
        "    turn turn=1",
        "      tool tool=ls verdict=allow",
        "    turn turn=2",
        "      tool tool=write_file verdict=allow",
        "    turn turn=3",
        "  commit dry_run=False files=1 rejected=0 repeated=False",
    ]
    first, *_, last = spans()
    assert first.attributes["muniment.task_id"] == last.attributes["muniment.task_id"] == done.task_id
    assert {each.context.trace_id for each in spans()} == {first.context.trace_id}


def test_a_remember_that_is_refused_or_fails_says_its_code_and_no_commit(memory, spans):
    escapes = [calls(call("write_file", path="../out.md", content="x\n"))]
    with memory(model=ScriptedModel(escapes)) as opened, pytest.raises(errors.RememberPathEscape):
        opened.remember(FACT)
    assert tree(spans()) == [
        "task kind=remember status=failed type=remember_path_escape !",
        "  run ended_by=escape calls=1",
        "    turn turn=1",
        "      tool tool=write_file verdict=deny code=path_escape",
    ]


def test_a_model_that_breaks_is_an_error_of_its_turn_and_the_rules_that_follow_it_are_a_second_run(
    memory, spans
):
    def broken(_):
        raise ModelError(f"the server said {CANARY}")

    with memory(model=ScriptedModel([broken])) as opened:
        opened.remember(FACT)
    assert tree(spans())[:4] == [
        "task kind=remember status=completed",
        "  run ended_by=model_error calls=0",
        "    turn turn=1 type=_OTHER !",
        "  run ended_by=final_text calls=1",
    ]
    assert CANARY not in written(spans())


def test_forget_dream_and_undo_are_tasks_with_a_commit_and_a_question_to_a_model_is_a_turn(memory, spans):
    with memory() as opened:
        done = opened.remember(FACT)
    count = len(spans())
    model = ScriptedModel([Reply(text='{"remove": ["c1"]}', usage=Usage(7, 10**30))])
    with memory(model=model) as opened:
        opened.forget("dark mode")
        opened.dream()
        with pytest.raises(errors.UndoOverlap):
            opened.undo(done.task_id)
    assert tree(spans()[count:]) == [
        "task kind=forget status=completed",
        "  turn turn=1",
        "  commit dry_run=False files=1 rejected=0 repeated=False",
        "task kind=dream status=completed",
        "task kind=undo status=failed type=undo_overlap !",
    ]
    turn = spans()[count + 1].attributes
    # A number that the wire cannot carry would cost the batch that it is in.
    assert (turn["gen_ai.usage.input_tokens"], "gen_ai.usage.output_tokens" in turn) == (7, False)


@pytest.mark.threat("T-LEAK-04", control="bare_spans")
def test_no_span_says_a_fact_a_secret_an_entry_a_directory_a_model_or_what_anybody_chose(
    memory, spans, tmp_path
):
    path = f"user/{CANARY}/{CANARY}.md"
    asks = [
        calls(call("read_file", path=path), call(f"tool-{CANARY}", path=path), call("grep", pattern=CANARY)),
        calls(call("write_file", path=path, content=f"{FACT} {CANARY}\n")),
        say(f"Saved {CANARY} to {path}."),
    ]
    with memory(model=ScriptedModel(asks, name=f"/models/{CANARY}.gguf")) as opened:
        opened.remember(f"{FACT} {CANARY}")
        for terms in ({"scope": CANARY}, {"context": CANARY}, {"expires": CANARY}, {"task_id": f"/{CANARY}"}):
            opened.try_remember(RememberRequest(f"{FACT} {CANARY}", **terms))
        opened.try_remember(RememberRequest(f"the key is {SECRET} {CANARY}"))
        for query in (CANARY, path, f"../{CANARY}"):
            with pytest.raises((errors.MunimentError, ModelError)):
                opened.forget(f"{query} {CANARY}", scope=CANARY)
        with pytest.raises(errors.NotFound):
            opened.undo(f"/{CANARY}")
    said = written(spans())
    assert len(spans()) > 12
    for word in (CANARY, SECRET, "dark mode", "editors", str(tmp_path), "work", ".md", "gguf", "Traceback"):
        assert word not in said, word


class Hostile(SpanProcessor):
    """Breaks wherever it is called."""

    def on_start(self, *_, **__):
        raise ValueError(CANARY)

    on_end = _on_ending = on_start


def test_a_tracer_that_breaks_ends_no_task_and_is_told_without_its_words(memory, provider, caplog):
    caplog.set_level(logging.INFO, logger="muniment")
    provider.add_span_processor(Hostile())
    with memory() as opened:
        assert opened.remember(FACT).status == "completed"
    lost = [record.getMessage() for record in caplog.records if "span_lost" in record.getMessage()]
    assert (bool(lost), CANARY in str(lost)) == (True, False)


def test_without_a_provider_there_is_no_span_and_an_error_in_one_goes_on(memory):
    with memory() as opened, span("task", kind="remember") as told:
        told.tell(status="completed")
        assert opened.remember(FACT).status == "completed"
    with pytest.raises(KeyError), span("task"):
        raise KeyError


LOADING = """
import sys, muniment
with muniment.open(sys.argv[1], home=sys.argv[2]) as memory:
    memory.remember("The user prefers dark mode")
    memory.forget("dark mode")
print([name for name in sys.modules if name.partition(".")[0] in {"opentelemetry", "requests", "google"}])
"""


def test_where_nobody_asks_for_spans_nothing_of_it_is_loaded(tmp_path):
    (tmp_path / "work" / ".git").mkdir(parents=True)
    command = [sys.executable, "-c", LOADING, str(tmp_path / "work"), str(tmp_path / "home")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


# -- a caller's trace -------------------------------------------------------------------------------------

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_task_over_http_is_part_of_the_trace_of_whoever_sent_it(http, spans):
    daemon = http()
    traced = ("remember", {"content": FACT}, {"traceparent": f"00-{TRACE}-{PARENT}-01"})
    odd = (
        "x" * 60_000,
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"01-{TRACE}-{PARENT}-01",
    )
    for kind, body, headers in (
        traced,
        *(("forget", {"query": FACT, "dryRun": True}, {"traceparent": each}) for each in odd[1:]),
    ):
        assert daemon.done(kind, body, **headers)["status"] == "completed"
    first, *others = (each for each in spans() if each.name == "muniment.task")
    assert f"{first.context.trace_id:032x} {first.parent.span_id:016x}" == f"{TRACE} {PARENT}"
    assert [each.parent for each in others] == [None] * 3
    assert {each.context.trace_id for each in others} & {first.context.trace_id} == set()


def test_a_task_over_mcp_is_part_of_the_trace_of_the_request_that_asked_for_it(http, spans):
    daemon = http()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}

    async def body(client):
        return await client.call_tool("remember", {"content": FACT})

    assert not over_http(f"{daemon.url}/mcp", daemon.token, "auto", body, headers=headers).is_error
    (task,) = (each for each in spans() if each.name == "muniment.task")
    assert f"{task.context.trace_id:032x} {task.parent.span_id:016x}" == f"{TRACE} {PARENT}"


def test_of_the_parents_that_wait_so_many_are_kept_and_each_for_its_task_alone(spans):
    parents = TraceParents()
    for number in range(MAX_PARENTS + 1):
        parents.keep(f"task-{number}", [f"00-{TRACE}-{number + 1:016x}-01"])
    parents.keep("twice", [f"00-{TRACE}-{PARENT}-01"] * 2)
    for task in ("task-0", "task-1", "task-1", "twice"):
        with parents.above(task), span("task"):
            pass
    assert [each.parent and each.parent.span_id for each in spans()] == [None, 2, None, None]
