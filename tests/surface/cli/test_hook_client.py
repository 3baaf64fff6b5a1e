"""A daemon answers the hook of coding tools; in every unusual case the hook answers without it."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress

import pytest

from kit.cli.process import SECONDS, launch
from kit.cli.tool_events import get_injected_text, make_event
from kit.policy.files import format_rule
from kit.server.process import start_daemon_process, write_policy
from muniment.integrations.coding_tools.hook import HOOK_SECONDS

FACT = "Answer in British English"
STAGING = "Staging runs on Postgres 16 behind pgbouncer, since the move of the database"
WRONG_ANSWERS = {
    "none": None,
    "empty": b"",
    "no-http": b"no HTTP at all",
    "no-length": b"HTTP/1.1 200 OK\r\n\r\n{}",
    "error": b"HTTP/1.1 500 Error\r\nContent-Length: 2\r\n\r\n{}",
    "no-object": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    "negative-length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    "truncated": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
    "too-long": b"HTTP/1.1 200 OK\r\nContent-Length: 1000002\r\n\r\n{" + b" " * 1_000_000 + b"}",
}


def start(session, source="startup"):
    return make_event("claude-code", "start", session=session, source=source)


def run_hook(base, event, **environment):
    """Return the output of the hook for an event."""
    process = launch(base, "recall", "--hook", **environment)
    output, notes = process.communicate(json.dumps(event).encode(), timeout=SECONDS)
    assert (process.returncode, notes) == (0, b"")
    return output


def send(base, event, **environment):
    """Return the text that the hook injects for an event."""
    return get_injected_text(json.loads(run_hook(base, event, **environment)))


def is_of_daemon(output):
    """Return whether a daemon wrote an answer that is not empty: only its JSON has no spaces."""
    answer = json.loads(output)
    assert answer, "an empty answer does not show who wrote it"
    return output.strip() == json.dumps(answer, separators=(",", ":")).encode()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A home with two facts."""
    found = tmp_path_factory.mktemp("h")
    for fact in (FACT, STAGING):
        process = launch(found, "remember", fact)
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0
    return found


def test_daemon_answers_and_records_what_a_session_received(base):
    prompt = make_event("claude-code", "prompt", prompt="Which Postgres does staging run?")
    with start_daemon_process(base):
        outputs = [run_hook(base, each) for each in (start("s"), prompt, prompt)]
        assert is_of_daemon(outputs[0])
        texts = [get_injected_text(json.loads(each)) for each in outputs]
        assert (FACT in texts[0], "".join(texts).count(STAGING)) == (True, 1)
        assert send(base, start("s", "resume")) == ""
    assert [send(base, each) for each in (prompt, start("s", "resume"))] == ["", ""]


def test_answer_counts_only_after_it_is_confirmed(base):
    event = json.dumps(start("unconfirmed")).encode()
    with start_daemon_process(base) as daemon, closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(str(daemon.socket))
        lines = (
            f"POST /hook?directory={base}/work HTTP/1.1",
            *("Host: localhost", "Content-Type: application/json", "Connection: close"),
            *(f"Content-Length: {len(event)}", "", ""),
        )
        connection.sendall("\r\n".join(lines).encode() + event)
        with connection.makefile("rb") as answer:
            assert FACT.encode() in answer.read()
        assert FACT in send(base, start("unconfirmed", "resume"))


def test_daemon_uses_workspace_that_cursor_names(base):
    other = base / "other"
    (other / ".git").mkdir(parents=True)
    fact = "Releases are tagged by the maintainer of the week"
    process = launch(base, "remember", fact, "--scope=project", f"--workspace={other}")
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    with start_daemon_process(base):
        for roots, found in (([str(other)], True), ([], False)):
            event = make_event("cursor", "prompt", prompt=FACT + fact, session=str(found))
            output = run_hook(base, event | {"workspace_roots": roots})
            assert (fact.encode() in output, is_of_daemon(output)) == (found, True)


def test_hook_with_own_settings_does_not_use_the_daemon(base):
    with start_daemon_process(base):
        assert send(base, start("own"), MUNIMENT_STANDING="off") == ""
        output = run_hook(base, start("own"), MUNIMENT_STANDING_TOKENS="900")
        assert (FACT.encode() in output, is_of_daemon(output)) == (True, False)


def test_daemon_answers_by_the_present_configuration(base):
    configuration = base / "home" / "config.toml"
    with start_daemon_process(base):
        assert FACT in send(base, start("on"))
        configuration.write_text('standing = "off"\n')
        try:
            assert send(base, start("off")) == ""
        finally:
            configuration.unlink()
        assert FACT in send(base, start("on again"))


def test_daemon_answers_by_the_present_policy(base, tmp_path):
    policy, configuration = write_policy(tmp_path), base / "home" / "config.toml"
    configuration.write_text(f"policy = {json.dumps(str(policy))}\n")
    try:
        with start_daemon_process(base):
            assert FACT in send(base, start("before"))
            denial = format_rule("deny", "hidden-user", ["read", "list"], ["/user/**"])
            policy.write_text(f"{policy.read_text()}\n{denial}")
            assert FACT not in send(base, start("after"))
    finally:
        configuration.unlink()


def test_daemon_does_not_answer_by_its_own_options(base, tmp_path):
    (tmp_path / "other").mkdir(mode=0o700)
    with start_daemon_process(base, "--root", f"user={tmp_path / 'other'}"):
        output = run_hook(base, start("options"))
        assert (FACT in output.decode(), is_of_daemon(output)) == (True, True)


def test_answer_of_daemon_is_valid_json_in_every_encoding(base):
    answer = '{"a":"na\xefve \U0001f427"}'.encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer)
    with run_fake_daemon(base, head + answer):
        output = run_hook(base, start("encoding"), PYTHONIOENCODING="ascii")
    assert json.loads(output) == json.loads(answer)


def measure_answer(base, *, is_input_open):
    """Return the seconds until the hook answers, with an empty input that is open or closed."""
    start = time.monotonic()
    process = launch(base, "recall", "--hook")
    if not is_input_open:
        process.stdin.close()
    with process:
        assert process.stdout.readline() == b"{}\n"
        return time.monotonic() - start


def test_input_that_stays_open_delays_answer_by_4_seconds(base):
    delay = measure_answer(base, is_input_open=True) - measure_answer(base, is_input_open=False)
    assert delay < HOOK_SECONDS + 0.7


@contextmanager
def announce(base, path):
    """Announce a socket as that of a daemon; return the announcement."""
    announcement = base / "home" / "state" / "daemon.json"
    announcement.touch(mode=0o600)
    announcement.write_text(json.dumps({"socket": str(path)}))
    try:
        yield announcement
    finally:
        announcement.unlink()


def answer_client(listener, answers, received):
    try:
        connection, _ = listener.accept()
    except OSError:  # The test ends without a request.
        return
    with connection:
        for answer in answers:
            received += connection.recv(1 << 16)
            if answer is None:
                connection.recv(1 << 16)  # Until the client ends.
            else:
                with suppress(ConnectionError):  # The client ends before it has read a too long answer.
                    connection.sendall(answer)


@contextmanager
def run_fake_daemon(base, *answers):
    """Announce a daemon that gives some answers to one client.

    Return the announcement and the bytes that the daemon receives.
    """
    path, received = base / "home" / "fake.sock", bytearray()
    with closing(socket.socket(socket.AF_UNIX)) as listener, announce(base, path) as announcement:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=answer_client, args=(listener, answers, received))
        thread.start()
        try:
            yield announcement, received
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(SECONDS)
            path.unlink()


@pytest.mark.parametrize("kind", WRONG_ANSWERS)
def test_hook_answers_itself_if_the_daemon_misbehaves(base, kind):
    with run_fake_daemon(base, WRONG_ANSWERS[kind]) as (_, received):
        assert FACT in send(base, start(kind))
        assert b"SessionStart" in received


@pytest.mark.parametrize("kind", [kind for kind, answer in WRONG_ANSWERS.items() if answer])
def test_answer_is_printed_once_if_its_confirmation_fails(base, kind):
    answer = b'HTTP/1.1 200 OK\r\nX-Muniment-Answer: a\r\nContent-Length: 7\r\n\r\n{"a":1}'
    with run_fake_daemon(base, answer, WRONG_ANSWERS[kind]) as (_, received):
        assert run_hook(base, start(f"unconfirmed {kind}")) == b'{"a":1}\n'
        assert b"/hook/confirm" in received


def test_invalid_name_of_an_answer_causes_no_second_answer(base):
    answer = b'HTTP/1.1 200 OK\r\nX-Muniment-Answer: \xe9\r\nContent-Length: 7\r\n\r\n{"a":1}'
    with run_fake_daemon(base, answer):
        assert run_hook(base, start("invalid name")) == b'{"a":1}\n'


@pytest.mark.parametrize("place", ["deleted directory", "unreadable input"])
def test_hook_answers_with_exit_code_0_in_an_unusual_place(base, tmp_path, place):
    command = {"deleted directory": 'rmdir "$PWD"; exec "$@"', "unreadable input": 'exec "$@" 0>/dev/null'}
    line = ["sh", "-c", command[place], "sh", sys.executable, "-m", "muniment", "recall", "--hook"]
    path = os.pathsep.join(filter(None, sys.path))
    variables = {"HOME": str(base), "MUNIMENT_HOME": str(base / "home"), "PYTHONPATH": path, "PATH": "/bin"}
    (tmp_path / "place").mkdir()
    done = subprocess.run(
        line,
        input=json.dumps(start(place)).encode(),
        cwd=tmp_path / "place",
        env=variables,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"{}\n")
    assert done.stderr.startswith(b"nothing was recalled: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")
def test_event_is_not_sent_to_a_process_of_another_user(base, tmp_path):
    path = tmp_path / "s"
    code = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.setuid(65533);"
        f" s.settimeout({SECONDS}); s.listen(); print(flush=True); print(s.accept()[0].recv(1 << 16))"
    )
    with subprocess.Popen([sys.executable, "-I", "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        with announce(base, path):
            assert FACT in send(base, start("other user"))
            assert process.stdout.readline() == b"b''\n"


def test_readable_announcement_is_not_used(base):
    with run_fake_daemon(base, b"") as (announcement, received):
        announcement.chmod(0o644)
        assert FACT in send(base, start("readable"))
        assert not received
