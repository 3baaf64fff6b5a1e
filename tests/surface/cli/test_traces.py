"""Traces of a command or the daemon: only on request, only to the collector, never blocking."""

import importlib
import json
import signal
import sys
import threading

import pytest

from kit.cli.process import SECONDS, launch
from kit.collector import PATH, collect_traces, read_attributes
from kit.server.process import start_daemon_process
from muniment.cli.entry import main

REMEMBER = ("remember", "The user prefers dark mode in all editors")
PROXIES = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


def otlp_settings(url, **more):
    return {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": url, **more}


@pytest.fixture
def program(tmp_path, monkeypatch, capsys):
    """Run the program in this process, in a temporary home; return the exit code and the lines of both
    streams.
    """
    (tmp_path / "work" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    for name in (*PROXIES, "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGINT)

    def run(*arguments, **environment):
        for name, value in {
            "HOME": str(tmp_path),
            "MUNIMENT_HOME": str(tmp_path / "home"),
            **environment,
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["muniment", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out.splitlines(), err.splitlines()

    yield run
    signal.signal(signal.SIGINT, before)


def span_names(collected):
    return sorted(span["name"] for span in collected.spans)


def test_command_sends_spans_to_configured_collector(program):
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=one", "OTEL_RESOURCE_ATTRIBUTES": "env=test"}
    with collect_traces() as collected:
        code, out, err = program(*REMEMBER, "--json", **otlp_settings(collected.url, **headers))
    done = json.loads("".join(out))
    assert (code, done["status"], err) == (0, "completed", [])
    spans = "commit run task tool turn turn"
    assert span_names(collected) == [f"muniment.{name}" for name in spans.split()]
    (task,) = (span for span in collected.spans if span["name"] == "muniment.task")
    assert read_attributes(task)["muniment.task_id"] == done["task_id"]
    assert {name.partition(".")[0] for name in collected.resource} == {"service", "env"}
    assert collected.resource["service.name"] == "muniment"
    path, sent, _ = collected.requests[0]
    assert (path, sent["x-tenant"]) == (PATH, "one")


@pytest.mark.slow
def test_daemon_sends_spans_and_flushes_at_stop(tmp_path):
    with (
        collect_traces() as collected,
        start_daemon_process(tmp_path, **otlp_settings(collected.url)) as daemon,
    ):
        daemon.wait_for_task(daemon.remember(REMEMBER[1]))
        daemon.run_task("forget", {"query": "dark mode"})
        assert daemon.stop() == 0
        assert span_names(collected).count("muniment.task") == 2


def test_traces_are_sent_only_if_enabled_and_task_runs(program):
    with collect_traces() as collected:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": collected.url}
        for more in ({}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_EXPORTER": " "}):
            assert program(*REMEMBER, **endpoint, **more)[::2] == (0, [])
        assert program(*REMEMBER, **otlp_settings(collected.url, OTEL_SDK_DISABLED="TRUE"))[::2] == (0, [])
        assert program("ls", **otlp_settings(collected.url, OTEL_SDK_DISABLED=""))[::2] == (0, [])
    assert collected.requests == []


def test_unsent_traces_print_one_line_and_fact_is_saved(program, monkeypatch):
    unreachable = otlp_settings("http://127.0.0.1:1", OTEL_EXPORTER_OTLP_TIMEOUT="0.2")
    for environment, message in (
        (
            {"OTEL_TRACES_EXPORTER": "console"},
            "no traces are sent: invalid OTEL_TRACES_EXPORTER: use otlp or none",
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "1"}, "no traces are sent: OpenTelemetry reports:"),
        ({"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere/ca.pem"}, "6 of 6 spans were not sent"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "not a url"}, "6 of 6 spans were not sent"),
    ):
        with monkeypatch.context() as context:
            for name in ("EXPORTER_OTLP_PROTOCOL", "EXPORTER_OTLP_CERTIFICATE", "BSP_MAX_QUEUE_SIZE"):
                context.delenv(f"OTEL_{name}", raising=False)
            code, out, err = program(
                "remember", f"{REMEMBER[1]} {environment}", **(unreachable | environment)
            )
        assert (code, out[0].startswith("saved"), len(err)) == (0, True, 1), err
        assert (err[0].startswith("note: "), message in err[0]) == (True, True), err


def test_missing_trace_extra_prints_install_command(program, monkeypatch):
    for name in ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "requests"):
        with monkeypatch.context() as context:
            importlib.import_module(name)
            context.setitem(sys.modules, name, None)  # Importing it fails.
            code, out, err = program(
                "remember", f"{REMEMBER[1]} {name}", **otlp_settings("http://127.0.0.1:1")
            )
        assert (code, out[0].startswith("saved")) == (0, True)
        assert err == ["note: no traces are sent: traces need the extra `otel`: pip install 'muniment[otel]'"]


@pytest.mark.threat("T-LEAK-16", control="named_collector")
def test_traces_ignore_proxies_redirects_and_netrc(program, tmp_path):
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password canary-7f3a\n")
    (tmp_path / ".netrc").chmod(0o600)
    with (
        collect_traces() as other,
        collect_traces(lambda: (307, {"Location": f"{other.url}{PATH}"})) as collected,
    ):
        assert program(*REMEMBER, **otlp_settings(collected.url))[0] == 0
        assert (
            program("forget", "mode", **otlp_settings(collected.url), **dict.fromkeys(PROXIES, other.url))[0]
            == 0
        )
    assert (len(collected.requests), other.requests) == (2, [])
    assert not [name for _, sent, _ in collected.requests for name in sent if name.lower() == "authorization"]


def test_traces_of_other_libraries_are_not_sent(program, monkeypatch):
    from opentelemetry import trace

    def emit(*_, **__):
        with trace.get_tracer("other").start_as_current_span(
            "POST /chat", attributes={"prompt": "canary-7f3a"}
        ):
            pass

    monkeypatch.setattr("muniment.operations.remember.is_chatter", emit)
    with collect_traces() as collected:
        assert program(*REMEMBER, **otlp_settings(collected.url))[0] == 0
    assert (len(collected.spans), "canary" in str(collected.requests)) == (6, False)


@pytest.mark.slow
def test_hanging_collector_delays_exit_until_timeout_or_ctrl_c(tmp_path):
    release, arrived = threading.Event(), threading.Event()

    def answer():
        arrived.set()
        release.wait(SECONDS)
        return 200, {}

    with collect_traces(answer) as collected:
        process = launch(tmp_path, "forget", "dark mode", **otlp_settings(collected.url))
        output = process.stdout.readline()  # The output does not wait for the collector.
        assert arrived.wait(SECONDS)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, b"no single entry matches" in output) == (0, True)
        assert err.startswith(b"note: 1 of 1 spans were not sent: the collector did not accept them")
        process = launch(tmp_path, *REMEMBER, **otlp_settings(collected.url))
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, out.startswith(b"saved")) == (0, True)
        assert b"6 of 6 spans were not sent" in err
        release.set()


@pytest.mark.slow
def test_daemon_logs_unreachable_collector_once(tmp_path):
    soon = {"OTEL_BSP_SCHEDULE_DELAY": "10", "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"}
    with start_daemon_process(tmp_path, **otlp_settings("http://127.0.0.1:1", **soon)) as daemon:
        for _ in range(3):
            daemon.wait_for_task(daemon.remember(REMEMBER[1]))
        assert daemon.stop() == 0
        lines = daemon.log.splitlines()
        assert sum("traces_not_sent" in line for line in lines) == 1
        assert not [line for line in lines if "foreign_log" in line]
