"""A daemon answers the hook of coding tools; in every unusual case the hook answers without it."""

import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import pytest

from kit.cli.process import launch, wait_until

FACT = "Answer in British English"
START = {"hook_event_name": "SessionStart", "source": "startup", "session_id": "s"}
PROMPT = {"hook_event_name": "UserPromptSubmit", "prompt": "Which Postgres does staging run?"}


def send(base, event, **environment):
    """Return the answer of the hook to an event, and whether a daemon gave it: its JSON has no spaces."""
    process = launch(base, "recall", "--hook", **environment)
    output, notes = process.communicate(json.dumps(event).encode(), timeout=30)
    assert (process.returncode, notes) == (0, b"")
    answer = json.loads(output)
    is_of_daemon = output.strip() == json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode()
    return answer.get("hookSpecificOutput", answer).get("additionalContext", ""), is_of_daemon


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A home with two facts."""
    found = tmp_path_factory.mktemp("h")
    for fact in (FACT, "Staging runs on Postgres 16 behind pgbouncer, since the move of the database"):
        process = launch(found, "remember", fact)
        process.communicate(timeout=40)
        assert process.returncode == 0
    return found


@contextmanager
def serve(base):
    """Run a daemon of the home."""
    process = launch(base, "serve", "--port", "0")
    try:
        wait_until(process, (base / "home" / "state" / "daemon.json").exists)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=40)


def test_daemon_answers_and_records_what_a_session_received(base):
    prompt = {**PROMPT, "session_id": "s"}
    with serve(base):
        text, is_of_daemon = send(base, START)
        assert (FACT in text, is_of_daemon) == (True, True)
        texts = [text, send(base, prompt)[0], send(base, prompt)[0]]
        assert "".join(texts).count("Staging runs on") == 1
        assert send(base, START | {"source": "resume"}) == ("", True)
    assert send(base, prompt)[0] == ""
    assert send(base, START | {"source": "resume"})[0] == ""


def test_answer_counts_only_after_it_is_confirmed(base):
    event = json.dumps(START | {"session_id": "unconfirmed"}).encode()
    with serve(base), closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(str(base / "home" / "daemon.sock"))
        lines = (
            f"POST /hook?directory={base}/work HTTP/1.1",
            *("Host: localhost", "Content-Type: application/json", "Connection: close"),
            *(f"Content-Length: {len(event)}", "", ""),
        )
        connection.sendall("\r\n".join(lines).encode() + event)
        with connection.makefile("rb") as answer:
            assert FACT.encode() in answer.read()
        assert FACT in send(base, START | {"session_id": "unconfirmed", "source": "resume"})[0]


def test_hook_with_own_settings_does_not_use_the_daemon(base):
    with serve(base):
        assert send(base, START | {"session_id": "own"}, MUNIMENT_STANDING="off") == ("", True)  # `{}`
        assert send(base, START | {"session_id": "own"}, MUNIMENT_STANDING_TOKENS="900")[1] is False


class FakeDaemon:
    """Listens at a socket that `daemon.json` of the home announces, and answers each request wrongly."""

    def __init__(self, base, answer):
        self.path, self.received = base / "home" / "fake.sock", bytearray()
        self.announcement = base / "home" / "state" / "daemon.json"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.answer = answer
        self.thread = threading.Thread(target=self.run)

    def run(self):
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        with connection:
            self.received += connection.recv(1 << 16)
            if self.answer is None:
                connection.recv(1 << 16)  # Until the client ends.
            else:
                connection.sendall(self.answer)

    def __enter__(self):
        self.announcement.touch(mode=0o600)
        self.announcement.write_text(json.dumps({"socket": str(self.path)}))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join(30)
        self.listener.close()
        self.path.unlink()
        self.announcement.unlink()


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"",
        b"no HTTP at all",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.1 500 Error\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b" " * 100_000,
    ],
)
def test_hook_answers_itself_if_the_daemon_misbehaves(base, answer):
    with FakeDaemon(base, answer) as fake:
        text, _ = send(base, START | {"session_id": f"bad {answer!r:.40}"})
        assert FACT in text
        assert b"SessionStart" in fake.received


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")
def test_event_is_not_sent_to_a_process_of_another_user(base, tmp_path):
    path = tmp_path / "s"
    code = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.setuid(65533);"
        " s.listen(); print(flush=True); print(s.accept()[0].recv(1 << 16))"
    )
    with subprocess.Popen([sys.executable, "-I", "-c", code, str(path)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        announcement = base / "home" / "state" / "daemon.json"
        announcement.touch(mode=0o600)
        announcement.write_text(json.dumps({"socket": str(path)}))
        try:
            assert FACT in send(base, START | {"session_id": "other user"})[0]
            assert process.stdout.readline() == b"b''\n"
        finally:
            announcement.unlink()


def test_readable_announcement_is_not_used(base):
    with FakeDaemon(base, b"") as fake:
        fake.announcement.chmod(0o644)
        assert FACT in send(base, START | {"session_id": "readable"})[0]
        assert not fake.received
