"""A memory of given entries over real files and a real ledger, its recallers, and hosts that use it."""

import hashlib
import json
import logging
import os
import select
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kit.clock import FakeClock
from kit.memories import make_roots, make_strict_policy, write_file
from kit.store.bench import ProposedFile, make_change_set, make_deadline, make_run
from muniment.errors import MunimentError
from muniment.kernel.binding import bind_all
from muniment.kernel.names import RelPath, Trust
from muniment.operations.job_context import JobContext
from muniment.recall.context import Budgets
from muniment.recall.conversation import Conversation
from muniment.recall.recaller import Recaller
from muniment.recall.session import RecallSession
from muniment.store import watching
from muniment.store.audit import read_records
from muniment.store.commit import CommitOptions, commit
from muniment.store.ledger import get_root_key
from muniment.store.state import State
from muniment.store.trust import build_constant_rule
from muniment.types import Recalled
from muniment.types.keys import EntryKey

# Maximum seconds to wait for an event.
WAIT = 20.0

CANARY = "canary-5e1f"
AT = "2026-11-22T10:00:00.000Z"
NO_TIERS = Budgets(system=0, project=0, just_in_time=0)


def format_entry(name, body, description=None, keywords=()):
    """Format the text of an entry."""
    front = {"name": name, "description": description, "keywords": list(keywords)}
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in front.items() if value)
    return f"---\n{''.join(lines)}---\n\n{body.strip()}\n"


ENTRIES = {
    "user/editor.md": format_entry("Editor theme", "Wants dark mode in the editor."),
    "project/deploy.md": format_entry("Deploy day", "Deploys the billing service on Tuesdays."),
    "project/database.md": format_entry("Database", "Staging runs Postgres behind pgbouncer."),
}
DARK, DEPLOY = "dark mode for my editor?", "when do we deploy billing?"
STAGING = "postgres staging pgbouncer?"


class Calendar:
    """A clock for the time of day that only moves when it is advanced."""

    now = datetime(2026, 11, 22, 12, tzinfo=UTC)

    def __call__(self):
        return self.now

    def advance(self, days):
        self.now += timedelta(days=days)


class Gate:
    """Closed until it is opened; waiting ends with the deadline."""

    def __init__(self):
        self._fd, self.reached, self.thread = os.eventfd(0, os.EFD_CLOEXEC), threading.Event(), None

    def open(self):
        os.eventfd_write(self._fd, 1)

    def wait(self, deadline):
        self.thread = threading.current_thread()
        self.reached.set()
        deadline.wait(self._fd, select.POLLIN)

    def close(self):
        os.close(self._fd)


class GatedRecaller(Recaller):
    """A recaller that waits at gates: `gates` are those of the next recalls, in order.

    `asked` records the queries with their excluded entries.
    """

    def recall(self, query, *, exclude=(), **more):
        self.asked.append((query, frozenset(exclude)))
        try:
            if self.gates:
                self.gates.pop(0).wait(more["deadline"])
        except MunimentError as error:
            return Recalled(error=error)
        return super().recall(query, exclude=exclude, **more)


class RecallBench:
    """A context and its content."""

    def __init__(self, context):
        self.context, self.state, self.calendar = context, context.state, Calendar()

    def get_file_path(self, path):
        scope, _, rel = path.partition("/")
        return self.context.roots[scope].trusted_path / rel

    def write_files(self, entries, text=None):
        """Write files of unknown origin: {logical path: text}, or one path and its text."""
        for path, content in (entries if text is None else {entries: text}).items():
            self.get_file_path(path).unlink(missing_ok=True)  # So that its directory changes.
            write_file(
                self.context.roots[path.partition("/")[0]].trusted_path, path.partition("/")[2], content
            )

    def commit(self, path, text, *, trust=Trust.OWNER, at=AT, policy=None, reviewed=True):
        """Commit a file, so that the ledger knows it."""
        known = self.read_key(path).digest if self.get_file_path(path).exists() else None
        policy, run_and_trust = (
            policy or self.context.policy,
            (make_run(trust=trust, at=at), build_constant_rule(trust)),
        )
        options = CommitOptions(
            policy, self.context.roots, make_deadline(), self.state, *run_and_trust, is_reviewed=reviewed
        )
        commit(
            [make_change_set([ProposedFile(path, known, text.encode())], scopes=self.context.roots)], options
        )

    def read_key(self, path):
        """Return the key of the entry at a path with its current content."""
        scope, _, rel = path.partition("/")
        digest = hashlib.sha256(self.get_file_path(path).read_bytes()).hexdigest()
        return EntryKey(get_root_key(self.state, self.context.roots[scope]), RelPath(rel), digest)

    def execute(self, statement, values=()):
        """Change a row of the catalog directly."""
        with self.state.catalog.transaction() as connection:
            connection.execute(statement, values)

    def read_injections(self):
        """Return the audit records of injections."""
        return [record.body for record in read_records(self.state) if record.kind == "injection"]

    @contextmanager
    def open_recaller(self, kind=Recaller, **more):
        context = self.context
        with closing(
            kind(context.policy, context.roots, context.state, clock=self.calendar, **more)
        ) as recaller:
            recaller.asked, recaller.gates = [], []
            yield recaller


@contextmanager
def open_bench(base, policy=None, entries=(), kind=RecallBench, embedder=None):
    """Open a context under `base` with files of unknown origin, {logical path: text}."""
    roots = bind_all(make_roots(base))
    context = JobContext(
        policy or make_strict_policy(require="none"),
        roots,
        State(base / "state", embedder=embedder),
        in_process=True,
    )
    with closing(context):
        bench = kind(context)
        bench.write_files(dict(entries))
        yield bench


class RecallStage:
    """A memory, a recaller with gates, and hosts that are closed with it."""

    def __init__(self, bench, recaller, stack):
        self.bench, self.recaller, self._stack, self.clock = bench, recaller, stack, FakeClock(100.0)

    def register(self, resource):
        return self._stack.enter_context(resource if hasattr(resource, "__exit__") else closing(resource))

    def open_session(self, **more):
        return self.register(RecallSession(self.recaller, clock=self.clock, **more))

    def open_conversation(self, budgets=NO_TIERS, **more):
        return self.register(Conversation(self.recaller, budgets=budgets, **more))

    def add_gate(self):
        """Add a gate before the next recall that has none."""
        self.recaller.gates.append(self.register(Gate()))
        return self.recaller.gates[-1]


@contextmanager
def open_stage(base, entries=ENTRIES, policy=None, **options):
    with assert_threads_ended(), ExitStack() as outer_stack, ExitStack() as stack:
        bench = outer_stack.enter_context(open_bench(base, policy, entries))
        yield RecallStage(
            bench, outer_stack.enter_context(bench.open_recaller(GatedRecaller, **options)), stack
        )


def make_foreign_policy(trust):
    """Return a policy that gives this trust to foreign files of the project."""
    policy, changed = make_strict_policy(require="none"), {"user": {}, "project": {"trust": trust}}
    scope_options = tuple(replace(each, **changed[each.name]) for each in policy.scope_options)
    return replace(policy, scope_options=scope_options)


def list_paths(recalled):
    """Return the logical paths of the entries of a recall."""
    return [each.path for each in recalled.entries]


def join_threads(host, except_threads=()):
    """Wait for the background threads of a host to end, except some."""
    prefetch = getattr(host, "session", host)
    for thread in list(getattr(prefetch, "prefetch", prefetch)._threads):
        if thread not in except_threads:
            thread.join(WAIT)
            assert not thread.is_alive()


def make_event_reader(caplog):
    """Return a function that parses the events logged until now."""
    caplog.set_level(logging.INFO, logger="muniment")
    return lambda: [json.loads(each.getMessage()) for each in caplog.records if each.name == "muniment"]


@contextmanager
def assert_threads_ended():
    """Assert that the block leaves no new thread."""
    before = set(map(id, threading.enumerate()))
    yield
    assert [each.name for each in threading.enumerate() if id(each) not in before] == []


class EndlessSweep:
    """Sweeps that start with every second check of a root, and end only when cancelled.

    Attributes:
        started: set when one runs.
        root_was_open: of each sweep, whether its root was still open at the end.
    """

    def __init__(self, monkeypatch):
        self.started, self.root_was_open = threading.Event(), []
        monkeypatch.setattr(watching, "SWEEP_SECONDS", 0)
        monkeypatch.setattr(watching, "open_stale_view", self._view)

    def _view(self, _state, root, _policy):
        self._root = root
        return self

    def find_stale(self):
        return {}

    def find_edited(self, deadline):
        self.started.set()
        try:
            while True:
                deadline.check()
                time.sleep(0)
        finally:
            self.root_was_open.append(self._root.root.fd >= 0)
