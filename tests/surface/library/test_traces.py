"""OpenTelemetry spans of a program with a tracer provider: their content, and what they never contain."""

import json
import logging
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kit.mcp import run_over_http
from muniment import errors
from muniment.agent.model import ModelError, Reply
from muniment.events import MAX_PARENTS, TraceParents, span
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text
from muniment.types import RememberRequest, Usage

FACT = "The user prefers dark mode in all editors"
SECRET = "sk-live-4eC39HqLyjWDarjtT1zdp7dc"
CANARY = "canary-7f3a"


@pytest.fixture
def provider(monkeypatch):
    """The tracer provider of the program. A process can set only one, so the fixture restores it after the
    test.
    """
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield provider
    provider.shutdown()


@pytest.fixture
def spans(provider):
    """Return a function that returns the finished spans in the order in which they started."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return lambda: sorted(exporter.get_finished_spans(), key=lambda each: each.start_time)


def format_tree(spans):
    """Return the spans as indented lines with their attributes, except ids and tokens."""
    depth, lines = {None: -1}, []
    for each in spans:
        parent = None if each.parent is None else each.parent.span_id
        depth[each.context.span_id] = depth[parent] + 1
        attributes = {name.rpartition(".")[2]: value for name, value in each.attributes.items()}
        pairs = (
            f"{name}={value}" for name, value in attributes.items() if not name.endswith(("_id", "_tokens"))
        )
        mark = "" if each.status.is_ok or each.status.status_code.name == "UNSET" else " !"
        lines.append(f"{'  ' * depth[each.context.span_id]}{each.name[9:]} {' '.join(pairs)}".rstrip() + mark)
    return lines


def export_json(spans):
    """Return the JSON that a collector would receive."""
    return json.dumps([json.loads(each.to_json()) for each in spans])


WRITING_TURNS = [
    reply_with_calls(make_call("ls", path="user")),
    reply_with_calls(make_call("write_file", path="user/editor/dark.md", content=f"{FACT}\n")),
    reply_with_text("Saved to user/editor/dark.md."),
]


def test_remember_has_spans_for_task_run_turns_tools_and_commit(open_memory, spans):
    with open_memory(model=ScriptedModel(WRITING_TURNS)) as opened:
        done = opened.remember(FACT)
    assert format_tree(spans()) == [
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


def test_failed_remember_span_has_code_and_no_commit(open_memory, spans):
    escapes = [reply_with_calls(make_call("write_file", path="../out.md", content="x\n"))]
    with open_memory(model=ScriptedModel(escapes)) as opened, pytest.raises(errors.RememberPathEscape):
        opened.remember(FACT)
    assert format_tree(spans()) == [
        "task kind=remember status=failed type=remember_path_escape !",
        "  run ended_by=escape calls=1",
        "    turn turn=1",
        "      tool tool=write_file verdict=deny code=path_escape",
    ]


def test_model_error_marks_turn_and_rules_are_second_run(open_memory, spans):
    def fail(_):
        raise ModelError(f"the server answered {CANARY}")

    with open_memory(model=ScriptedModel([fail])) as opened:
        opened.remember(FACT)
    assert format_tree(spans())[:4] == [
        "task kind=remember status=completed",
        "  run ended_by=model_error calls=0",
        "    turn turn=1 type=_OTHER !",
        "  run ended_by=final_text calls=1",
    ]
    assert CANARY not in export_json(spans())


def test_forget_dream_and_undo_have_task_spans(open_memory, spans):
    with open_memory() as opened:
        done = opened.remember(FACT)
    count = len(spans())
    model = ScriptedModel([Reply(text='{"remove": ["c1"]}', usage=Usage(7, 10**30))])
    with open_memory(model=model) as opened:
        opened.forget("dark mode")
        opened.dream()
        with pytest.raises(errors.UndoOverlap):
            opened.undo(done.task_id)
    assert format_tree(spans()[count:]) == [
        "task kind=forget status=completed",
        "  turn turn=1",
        "  commit dry_run=False files=1 rejected=0 repeated=False",
        "task kind=dream status=completed",
        "task kind=undo status=failed type=undo_overlap !",
    ]
    turn = spans()[count + 1].attributes
    # A number too large for the wire format would lose its whole batch.
    assert (turn["gen_ai.usage.input_tokens"], "gen_ai.usage.output_tokens" in turn) == (7, False)


@pytest.mark.threat("T-LEAK-04", control="bare_spans")
def test_no_span_contains_content_paths_or_model_names(open_memory, spans, tmp_path):
    path = f"user/{CANARY}/{CANARY}.md"
    turns = [
        reply_with_calls(
            make_call("read_file", path=path),
            make_call(f"tool-{CANARY}", path=path),
            make_call("grep", pattern=CANARY),
        ),
        reply_with_calls(make_call("write_file", path=path, content=f"{FACT} {CANARY}\n")),
        reply_with_text(f"Saved {CANARY} to {path}."),
    ]
    with open_memory(model=ScriptedModel(turns, name=f"/models/{CANARY}.gguf")) as opened:
        opened.remember(f"{FACT} {CANARY}")
        for options in (
            {"scope": CANARY},
            {"context": CANARY},
            {"expires": CANARY},
            {"task_id": f"/{CANARY}"},
        ):
            opened.try_remember(RememberRequest(f"{FACT} {CANARY}", **options))
        opened.try_remember(RememberRequest(f"the key is {SECRET} {CANARY}"))
        for query in (CANARY, path, f"../{CANARY}"):
            with pytest.raises((errors.MunimentError, ModelError)):
                opened.forget(f"{query} {CANARY}", scope=CANARY)
        with pytest.raises(errors.NotFound):
            opened.undo(f"/{CANARY}")
    exported = export_json(spans())
    assert len(spans()) > 12
    for word in (CANARY, SECRET, "dark mode", "editors", str(tmp_path), "work", ".md", "gguf", "Traceback"):
        assert word not in exported, word


class Hostile(SpanProcessor):
    """A span processor that raises in every method."""

    def on_start(self, *_, **__):
        raise ValueError(CANARY)

    on_end = _on_ending = on_start


def test_broken_tracer_is_logged_and_task_completes(open_memory, provider, caplog):
    caplog.set_level(logging.INFO, logger="muniment")
    provider.add_span_processor(Hostile())
    with open_memory() as opened:
        assert opened.remember(FACT).status == "completed"
    lost = [record.getMessage() for record in caplog.records if "span_lost" in record.getMessage()]
    assert (bool(lost), CANARY in str(lost)) == (True, False)


def test_without_provider_span_is_noop_and_error_propagates(open_memory):
    with open_memory() as opened, span("task", kind="remember") as task_span:
        task_span.set_attributes(status="completed")
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


def test_opentelemetry_is_not_loaded_without_provider(tmp_path):
    (tmp_path / "work" / ".git").mkdir(parents=True)
    command = [sys.executable, "-c", LOADING, str(tmp_path / "work"), str(tmp_path / "home")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


# -- a caller's trace -------------------------------------------------------------------------------------

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_http_task_joins_trace_of_its_request(start_http, spans):
    daemon = start_http()
    traced = ("remember", {"content": FACT}, {"traceparent": f"00-{TRACE}-{PARENT}-01"})
    invalid_parents = (
        "x" * 60_000,
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"01-{TRACE}-{PARENT}-01",
    )
    for kind, body, headers in (
        traced,
        *(("forget", {"query": FACT, "dryRun": True}, {"traceparent": each}) for each in invalid_parents[1:]),
    ):
        assert daemon.run_task(kind, body, **headers)["status"] == "completed"
    first, *others = (each for each in spans() if each.name == "muniment.task")
    assert f"{first.context.trace_id:032x} {first.parent.span_id:016x}" == f"{TRACE} {PARENT}"
    assert [each.parent for each in others] == [None] * 3
    assert {each.context.trace_id for each in others} & {first.context.trace_id} == set()


def test_mcp_task_joins_trace_of_its_request(start_http, spans):
    daemon = start_http()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}

    async def body(client):
        return await client.call_tool("remember", {"content": FACT})

    assert not run_over_http(f"{daemon.url}/mcp", daemon.token, "auto", body, headers=headers).is_error
    (task,) = (each for each in spans() if each.name == "muniment.task")
    assert f"{task.context.trace_id:032x} {task.parent.span_id:016x}" == f"{TRACE} {PARENT}"


def test_trace_parents_are_limited_and_used_once_by_their_task(spans):
    parents = TraceParents()
    for number in range(MAX_PARENTS + 1):
        parents.store(f"task-{number}", [f"00-{TRACE}-{number + 1:016x}-01"])
    parents.store("twice", [f"00-{TRACE}-{PARENT}-01"] * 2)
    for task in ("task-0", "task-1", "task-1", "twice"):
        with parents.attach(task), span("task"):
            pass
    assert [each.parent and each.parent.span_id for each in spans()] == [None, 2, None, None]
