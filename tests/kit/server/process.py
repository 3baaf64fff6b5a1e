"""`muniment serve` as a process of its own, and what tests ask of it: over sockets, with no proxy.

    with serving(tmp_path) as daemon:
        task = daemon.wait(daemon.remember("The user prefers dark mode"))
        daemon.kill()
        daemon.start()  # the same home, workspace and Unix socket; another port

A `HeldModel` is a language model behind a socket that answers when a test lets it.
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
from kit.agent.served_minds import perfect, through
from kit.where import REPOSITORY
from muniment.agent.openai import OpenAIModel
from muniment.kernel.names import Trust
from muniment.server.tokens import Tokens
from muniment.store.state import State
from muniment.testing.chat_server import ChatServer
from threats.switches import source_for_children

BASE = "/workspace/memory"
STOP_SECONDS = 30
ENDED = ("completed", "failed", "cancelled")
_MEASURED = ("coverage", "run", f"--rcfile={REPOSITORY}/pyproject.toml", "-m")


class Event:
    """One event as it came.

    Attributes:
        id: None where it has none.
        type, document, data: its name, the JSON document, and that one's `data`.
    """

    def __init__(self, fields):
        self.id, self.type = fields.get("id"), fields.get("event", "message")
        self.document = json.loads(fields["data"])
        self.data = self.document["data"]

    @property
    def number(self):
        return int(self.id.partition("-")[2])


class Follower:
    """Reads events as a browser does.

    Attributes:
        last_id: of the last event that was read, also of one without data.
        seen: every event so far.
    """

    def __init__(self, response):
        self._lines, self.last_id, self.seen = response.iter_lines(), None, []

    def __iter__(self):
        return self

    def __next__(self):
        """The next event; nothing for ten seconds raises `httpx2.ReadTimeout`."""
        fields = {}
        for line in self._lines:
            name, _, value = line.partition(":")
            if line == "":
                if "id" in fields:
                    self.last_id = fields["id"]
                if "data" in fields:
                    event = Event(fields)
                    self.seen.append(event)
                    return event
                fields = {}
            elif name:
                fields[name] = value.removeprefix(" ")
        raise StopIteration

    def start(self):
        """Read on to where the stream says that it begins."""
        for line in self._lines:
            if line.startswith("id:"):
                self.last_id = line.partition(":")[2].strip()
                return self
        raise AssertionError("the stream ended")

    def until(self, condition):
        """The events up to the first for which `condition` holds, with it."""
        found = []
        for event in self:
            found.append(event)
            if condition(event):
                return found
        raise AssertionError(f"the stream ended after {found}")


class Asking:
    """What tests ask of a daemon.

    Attributes:
        url, token, key: where it listens, the owner's token, the key of its workspace.
        home, work: its home and its workspace.
        http: sends raw requests over TCP: no token, no proxy, no redirect.
    """

    def send(self, method, path, body=None, *, token=None, client=None, **headers):
        """Send a request: by the owner, or by whom `token` belongs to. `body` is JSON, or bytes as they are.

        Headers are named in Python's way: `last_event_id`.
        """
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {} if content is None else {"content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.request(method, path, content=content, headers=sent | self._who(token, client))

    def _who(self, token, client):
        whose = {} if client is None else {"X-Muniment-Client-Id": client}
        return {"Authorization": f"Bearer {token or self.token}", **whose}

    def get(self, path, **more):
        return self.send("GET", path, **more)

    def post(self, path, body=None, **more):
        return self.send("POST", path, body, **more)

    def submit(self, kind, body, **more):
        """Have a task accepted; its id."""
        answer = self.post(f"{BASE}/{kind}", body, **more)
        assert answer.status_code == 202, answer.text
        return answer.json()["taskId"]

    def remember(self, content, *, token=None, client=None, **body):
        """Have a fact accepted; the task's id."""
        return self.submit("remember", {"content": content, **body}, token=token, client=client)

    def look(self, task_id, **more):
        """A task as it is now."""
        return self.get(path_of(task_id), **more).json()

    def wait(self, task_id, **more):
        """A task once it is over."""
        task = self.get(path_of(task_id), prefer="wait=60", **more).json()
        assert task["status"] in ENDED, task
        return task

    def cancel(self, task_id, **more):
        return self.send("DELETE", path_of(task_id), **more)

    def problem(self, method, path, body=None, **more):
        """Status and code of what a request is answered with."""
        answer = self.send(method, path, body, **more)
        return answer.status_code, answer.json().get("code")

    def done(self, kind, body, **more):
        """Have a task carried out; the task once it is over."""
        return self.wait(self.submit(kind, body, **more), **more)

    def cursor(self, number):
        """The cursor of an event by its number."""
        return f"{json.loads((self.home / 'state' / 'daemon.json').read_text())['epoch']}-{number}"

    @contextmanager
    def follow(self, cursor=None, *, token=None, client=None, path=f"{BASE}/events", window=None, **headers):
        """Follow the events; see `Follower`. `window`: bytes that wait for a reader in the kernel."""
        options = () if window is None else ((socket.SOL_SOCKET, socket.SO_RCVBUF, window),)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers |= self._who(token, client) | ({} if cursor is None else {"Last-Event-ID": cursor})
        transport = httpx2.HTTPTransport(socket_options=options)
        with (
            httpx2.Client(base_url=self.url, transport=transport, timeout=60) as http,
            http.stream("GET", path, headers=headers) as response,
        ):
            assert response.status_code == 200, response.status_code
            assert response.headers["x-qwen-event-epoch"] == self.cursor(0).partition("-")[0]
            yield Follower(response)

    # -- what is there -------------------------------------------------------------------------------------

    def root(self, scope="user"):
        """The directory of a scope."""
        return self.home / "user" if scope == "user" else next((self.home / "projects").iterdir()) / "memory"

    def files(self, scope="user"):
        """The entries of a scope, by path beneath it: their text."""
        top = self.root(scope)
        found = {str(path.relative_to(top)): path.read_text("utf-8") for path in sorted(top.rglob("*.md"))}
        return {rel: text for rel, text in found.items() if rel != "MEMORY.md"}


class Served(Asking):
    """A daemon over `base/home` and the workspace `base/work`.

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
        """Start it, once more after it ended; it accepts tasks when this returns."""
        self._launch()
        line = self.process.stdout.readline()  # What it says once it serves: a document on a line.
        assert line, f"it did not start: {self.log[-2000:]}"
        told = json.loads(line)
        self.url, self.key = told["url"], next(iter(told["workspaces"]))
        self.token = Path(told["token_file"]).read_text(encoding="ascii").strip()
        self.http = httpx2.Client(base_url=self.url, trust_env=False, timeout=60)
        local = httpx2.HTTPTransport(uds=str(self.socket))
        self.local = httpx2.Client(base_url="http://local", transport=local, timeout=60)
        return self

    def _launch(self):
        measured = _MEASURED if os.environ.get("COVERAGE_RUN") else ()
        program = ("-m", *measured, "muniment")
        if without := source_for_children():  # A control is switched off here, so it is there as well.
            program = ("-c", f"{without}import runpy; runpy.run_module('muniment', run_name='__main__')")
        places = ("--workspace", self.work, "--socket", self.socket)
        with self.log_path.open("ab") as log:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": log}
            command = [sys.executable, *program, "serve", "--json", *places, *self._flags]
            self.process = subprocess.Popen(command, cwd=self.base, env=self._env(), **pipes)

    def _env(self):
        kept = {"COVERAGE_FILE": f"{REPOSITORY}/.coverage"} if "COVERAGE_RUN" in os.environ else {}
        kept |= {name: os.environ[name] for name in (*kept, "COVERAGE_RUN") if kept and name in os.environ}
        places = {"HOME": str(self.base), "MUNIMENT_HOME": str(self.home), "PATH": "/usr/bin:/bin"}
        places["PYTHONPATH"] = str(Path(muniment.__file__).parents[1])
        return {**places, **kept, **self._environment}

    def stop(self):
        """Send SIGTERM; the exit code once it has ended."""
        self.process.terminate()
        return self.ended()

    def kill(self):
        """Send SIGKILL; only what it had written is left, and its workers, who end by themselves."""
        self.process.kill()
        return self.ended()

    def ended(self):
        """Wait until it has ended; the exit code."""
        code = self.process.wait(STOP_SECONDS)
        self.process.stdout.close()
        for client in filter(None, (self.http, self.local)):
            client.close()
        return code

    def close(self):
        """End it, however it stands."""
        if self.process is not None:
            try:
                self.stop()
            finally:
                self.kill()

    def new_token(self, name, *clients, trust="agent"):
        """A client's token, made as `muniment token add` does."""
        with State(self.home / "state") as state:
            return Tokens(state).add(name, clients, Trust(trust))

    @property
    def log(self):
        """Its standard error so far, of all starts."""
        return self.log_path.read_text(encoding="utf-8")

    def children(self):
        """The processes that it has started, and those that they have."""
        return descendants(self.process.pid)


class HeldModel:
    """A language model behind a socket of the loopback; it thinks as `mind` does, unless it is held.

    Attributes:
        mind: from a request to a thought, see `muniment.testing.minds`; may be replaced at any time.
        server: keeps the requests.
    """

    def __init__(self, mind=perfect):
        self.mind, self._free = mind, threading.Event()
        self._free.set()
        self.server = ChatServer(self._answer)

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *exc):
        self.release()
        self.server.__exit__(*exc)

    @property
    def flags(self):
        """The flags of `serve` for this model; no rules hide there what it did."""
        flags = ("--model", "scripted", "--base-url", self.server.base_url, "--protocol", "tools")
        return (*flags, "--on-model-failure", "fail")

    def asked(self):
        """The model for a daemon in this process; for whoever closes it."""
        return OpenAIModel("scripted", base_url=self.server.base_url, protocol="tools")

    def hold(self):
        """Answer nothing from now on."""
        self._free.clear()

    def release(self):
        """Answer what waits, and everything that follows."""
        self._free.set()

    def wait_until_asked(self, count=1):
        """Wait until it was asked so often since it was made; the requests."""
        return self.server.wait_for_requests(count, 30)

    def _answer(self, request):
        def answer(connection):
            while not self._free.is_set():
                connection.pause(0.01)
            through(self.mind)(request)(connection)

        return answer


@contextmanager
def serving(base, *flags, **environment):
    """A daemon that runs."""
    with closing(Served(Path(base), *flags, **environment)) as served:
        yield served.start()


def policy_file(directory, **changes):
    """A policy like `strict`, with other lines: by the name of the key, the line's new value.

    Without its inline tests, which would notice.
    """
    text = (REPOSITORY / "policies" / "strict.toml").read_text(encoding="utf-8").partition("[[test]]")[0]
    for key, value in changes.items():
        text, count = re.subn(f"(?m)^{key} = .*$", f"{key} = {value}", text, count=1)
        assert count
    path = directory / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def locked(*roots):
    """Hold the locks of roots, as another program does while it commits."""
    with ExitStack() as opened:
        for root in roots:
            fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def path_of(task_id):
    """Where a task is looked at."""
    return f"{BASE}/{task_id.partition('-')[0]}/{task_id}"


def descendants(pid):
    """The processes below one, by pid."""
    found = set()
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text().split()):
                found |= {child, *descendants(child)}
    return found
