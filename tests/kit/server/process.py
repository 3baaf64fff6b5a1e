"""`muniment serve` as a separate process, and requests of tests over sockets without a proxy.

    with serving(tmp_path) as daemon:
        task = daemon.wait_for_task(daemon.remember("The user prefers dark mode"))
        daemon.kill()
        daemon.start()  # the same home, workspace and Unix socket; another port

A `PausableModel` is a language model on a socket that responds when a test allows it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import httpx2

import muniment
from kit.agent.simulated_models import build_answerer, remember_fact
from kit.locations import REPOSITORY
from muniment.agent.openai import OpenAIModel
from muniment.kernel.names import Trust
from muniment.server.tokens import Tokens
from muniment.store.state import State
from muniment.testing.chat_server import ChatServer
from threats.switches import source_for_children

BASE = "/workspace/memory"
STOP_SECONDS = 30
ENDED = ("completed", "failed", "cancelled")
_COVERAGE_COMMAND = ("coverage", "run", f"--rcfile={REPOSITORY}/pyproject.toml", "-m")


class Event:
    """One received event.

    Attributes:
        id: None if it has none.
        type, document, data: its name, the JSON document, and the `data` of the document.
    """

    def __init__(self, fields):
        self.id, self.type = fields.get("id"), fields.get("event", "message")
        self.document = json.loads(fields["data"])
        self.data = self.document["data"]

    @property
    def number(self):
        return int(self.id.partition("-")[2])


class EventReader:
    """Reads events like a browser.

    Attributes:
        last_id: of the last event that was read, including events without data.
        events: every event until now.
    """

    def __init__(self, response):
        self._lines, self.last_id, self.events = response.iter_lines(), None, []

    def __iter__(self):
        return self

    def __next__(self):
        """Return the next event; if nothing arrives for a minute, raise `httpx2.ReadTimeout`."""
        fields = {}
        for line in self._lines:
            name, _, value = line.partition(":")
            if line == "":
                if "id" in fields:
                    self.last_id = fields["id"]
                if "data" in fields:
                    event = Event(fields)
                    self.events.append(event)
                    return event
                fields = {}
            elif name:
                fields[name] = value.removeprefix(" ")
        raise StopIteration

    def read_to_start(self):
        """Read up to the start position that the stream sends."""
        for line in self._lines:
            if line.startswith("id:"):
                self.last_id = line.partition(":")[2].strip()
                return self
        raise AssertionError("the stream ended")

    def read_until(self, condition):
        """Return the events up to and including the first for which `condition` is true."""
        found = []
        for event in self:
            found.append(event)
            if condition(event):
                return found
        raise AssertionError(f"the stream ended after {found}")


class DaemonRequests:
    """Requests of tests to a daemon.

    Attributes:
        url, token, key: its address, the owner's token, the key of its workspace.
        home, work: its home and its workspace.
        http: sends raw requests over TCP without token, proxy or redirects.
    """

    def send(self, method, path, body=None, *, token=None, client=None, **headers):
        """Send a request with the owner's token or `token`. `body` is JSON, or raw bytes.

        Header names are written as in Python: `last_event_id`.
        """
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {} if content is None else {"content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.request(
            method, path, content=content, headers=sent | self._build_headers(token, client)
        )

    def _build_headers(self, token, client):
        client_header = {} if client is None else {"X-Muniment-Client-Id": client}
        return {"Authorization": f"Bearer {token or self.token}", **client_header}

    def get(self, path, **more):
        return self.send("GET", path, **more)

    def post(self, path, body=None, **more):
        return self.send("POST", path, body, **more)

    def submit(self, kind, body, **more):
        """Submit a task that must be accepted; return its id."""
        answer = self.post(f"{BASE}/{kind}", body, **more)
        assert answer.status_code == 202, answer.text
        return answer.json()["taskId"]

    def remember(self, content, *, token=None, client=None, **body):
        """Submit a fact that must be accepted; return the id of the task."""
        return self.submit("remember", {"content": content, **body}, token=token, client=client)

    def read_task(self, task_id, **more):
        """Return the current state of a task."""
        return self.get(build_task_path(task_id), **more).json()

    def wait_for_task(self, task_id, **more):
        """Wait for the end of a task; return it."""
        task = self.get(build_task_path(task_id), prefer="wait=60", **more).json()
        assert task["status"] in ENDED, task
        return task

    def cancel(self, task_id, **more):
        return self.send("DELETE", build_task_path(task_id), **more)

    def request_problem(self, method, path, body=None, **more):
        """Return status and code of the response to a request."""
        answer = self.send(method, path, body, **more)
        return answer.status_code, answer.json().get("code")

    def run_task(self, kind, body, **more):
        """Run a task to its end; return it."""
        return self.wait_for_task(self.submit(kind, body, **more), **more)

    def cursor(self, number):
        """Return the cursor of an event by its number."""
        return f"{json.loads((self.home / 'state' / 'daemon.json').read_text())['epoch']}-{number}"

    @contextmanager
    def follow_events(
        self, cursor=None, *, token=None, client=None, path=f"{BASE}/events", window=None, **headers
    ):
        """Follow the events; see `EventReader`. `window`: size of the receive buffer in bytes."""
        options = () if window is None else ((socket.SOL_SOCKET, socket.SO_RCVBUF, window),)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers |= self._build_headers(token, client) | ({} if cursor is None else {"Last-Event-ID": cursor})
        transport = httpx2.HTTPTransport(socket_options=options)
        with (
            httpx2.Client(base_url=self.url, transport=transport, timeout=60) as http,
            http.stream("GET", path, headers=headers) as response,
        ):
            assert response.status_code == 200, response.status_code
            assert response.headers["x-qwen-event-epoch"] == self.cursor(0).partition("-")[0]
            yield EventReader(response)

    # -- files
    # ------------------------------------------------------------------------------------------------

    def get_root(self, scope="user"):
        """Return the directory of a scope."""
        return self.home / "user" if scope == "user" else next((self.home / "projects").iterdir()) / "memory"

    def read_files(self, scope="user"):
        """Return the entries of a scope, {relative path: text}."""
        top = self.get_root(scope)
        found = {str(path.relative_to(top)): path.read_text("utf-8") for path in sorted(top.rglob("*.md"))}
        return {rel: text for rel, text in found.items() if rel != "MEMORY.md"}


class DaemonProcess(DaemonRequests):
    """A daemon process over `base/home` and the workspace `base/work`.

    Attributes:
        socket: its Unix socket; `local` sends raw requests there.
    """

    def __init__(self, base, *flags, **environment):
        self.base, self._flags, self._environment = base, flags, environment
        self.home, self.work, self.socket = base / "home", base / "work", base / "daemon.sock"
        (self.work / ".git").mkdir(parents=True, exist_ok=True)
        self.home.mkdir(mode=0o700, exist_ok=True)
        self.log_path = base / "stderr"
        self.process = self.http = self.local = None

    # -- the process ---------------------------------------------------------------------------------------

    def start(self):
        """Start it, also again after it ended; return when it accepts tasks."""
        self._launch()
        line = self.process.stdout.readline()  # The startup document, on one line.
        assert line, f"it did not start: {self.log[-2000:]}"
        startup = json.loads(line)
        self.url, self.key = startup["url"], next(iter(startup["workspaces"]))
        self.token = Path(startup["token_file"]).read_text(encoding="ascii").strip()
        self.http = httpx2.Client(base_url=self.url, trust_env=False, timeout=60)
        local = httpx2.HTTPTransport(uds=str(self.socket))
        self.local = httpx2.Client(base_url="http://local", transport=local, timeout=60)
        return self

    def _launch(self):
        coverage_command = _COVERAGE_COMMAND if os.environ.get("COVERAGE_RUN") else ()
        program = ("-m", *coverage_command, "muniment")
        # A control is switched off in this process, so also in the child.
        if disabled_controls := source_for_children():
            program = (
                "-c",
                f"{disabled_controls}import runpy; runpy.run_module('muniment', run_name='__main__')",
            )
        location_flags = ("--workspace", self.work, "--socket", self.socket)
        with self.log_path.open("ab") as log:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": log}
            command = [sys.executable, *program, "serve", "--json", *location_flags, *self._flags]
            self.process = subprocess.Popen(command, cwd=self.base, env=self._env(), **pipes)

    def _env(self):
        coverage_variables = (
            {"COVERAGE_FILE": f"{REPOSITORY}/.coverage"} if "COVERAGE_RUN" in os.environ else {}
        )
        coverage_variables |= {
            name: os.environ[name]
            for name in (*coverage_variables, "COVERAGE_RUN")
            if coverage_variables and name in os.environ
        }
        environment = {"HOME": str(self.base), "MUNIMENT_HOME": str(self.home), "PATH": "/usr/bin:/bin"}
        environment["PYTHONPATH"] = str(Path(muniment.__file__).parents[1])
        return {**environment, **coverage_variables, **self._environment}

    def stop(self):
        """Send SIGTERM; return the exit code."""
        self.process.terminate()
        return self.wait_for_exit()

    def kill(self):
        """Send SIGKILL; only written data remains, and its workers, which end by themselves."""
        self.process.kill()
        return self.wait_for_exit()

    def wait_for_exit(self):
        """Wait until it has ended; return the exit code."""
        code = self.process.wait(STOP_SECONDS)
        self.process.stdout.close()
        for client in filter(None, (self.http, self.local)):
            client.close()
        return code

    def close(self):
        """End it in any state."""
        if self.process is not None:
            try:
                self.stop()
            finally:
                self.kill()

    def create_token(self, name, *clients, trust="agent"):
        """Create a token for a client, like `muniment token add`."""
        with State(self.home / "state") as state:
            return Tokens(state).add(name, clients, Trust(trust))

    @property
    def log(self):
        """Return its standard error, of all starts."""
        return self.log_path.read_text(encoding="utf-8")

    def list_children(self):
        """Return the pids of its descendants."""
        return find_descendants(self.process.pid)


class PausableModel:
    """A language model on a socket of the loopback; it responds as `behavior`, unless it is paused.

    Attributes:
        behavior: from a request to an intent, see `kit.agent.simulated_models`; may be replaced at any time.
        server: records the requests.
    """

    def __init__(self, behavior=remember_fact):
        self.behavior, self._resumed = behavior, threading.Event()
        self._resumed.set()
        self.server = ChatServer(self._answer)

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *exc):
        self.resume()
        self.server.__exit__(*exc)

    @property
    def flags(self):
        """Return the flags of `serve` for this model, without a fallback to the rules."""
        flags = ("--model", "scripted", "--base-url", self.server.base_url, "--protocol", "tools")
        return (*flags, "--on-model-failure", "fail")

    def create_client(self):
        """Return the model for a daemon in this process; the caller closes it."""
        return OpenAIModel("scripted", base_url=self.server.base_url, protocol="tools")

    def pause(self):
        """Stop responding."""
        self._resumed.clear()

    def resume(self):
        """Respond to pending and later requests."""
        self._resumed.set()

    def wait_for_requests(self, count=1):
        """Wait until it has received this many requests in total; return them."""
        return self.server.wait_for_requests(count, 30)

    def _answer(self, request):
        def answer(connection):
            while not self._resumed.is_set():
                connection.pause(0.01)
            build_answerer(self.behavior)(request)(connection)

        return answer


@contextmanager
def start_daemon_process(base, *flags, **environment):
    """Run a daemon process."""
    with closing(DaemonProcess(Path(base), *flags, **environment)) as daemon:
        yield daemon.start()


def write_policy(directory, **changes):
    """Write a policy like `strict` with other values for some keys; return its path.

    Without its inline tests, which would fail.
    """
    text = (REPOSITORY / "policies" / "strict.toml").read_text(encoding="utf-8").partition("[[test]]")[0]
    for key, value in changes.items():
        text, count = re.subn(f"(?m)^{key} = .*$", f"{key} = {value}", text, count=1)
        assert count
    path = directory / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def lock_roots(*roots):
    """Hold the locks of roots, as another program does during a commit."""
    with ExitStack() as opened:
        for root in roots:
            fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield


@contextmanager
def lock_home(home):
    """Hold the lock of a home, as a running daemon does."""
    (home / "state").mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(home / "state" / "daemon.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def build_task_path(task_id):
    """Return the URL path of a task."""
    return f"{BASE}/{task_id.partition('-')[0]}/{task_id}"


def find_descendants(pid):
    """Return the pids of the descendants of a process."""
    found = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                found |= {child, *find_descendants(child)}
    return found
