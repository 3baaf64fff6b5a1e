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
from kit.memories import make_roots, put, strict
from kit.store.ground import Proposed, by, change_set, patience
from muniment.errors import MunimentError
from muniment.kernel.binding import bind_all
from muniment.kernel.names import RelPath, Trust
from muniment.operations.place import Place
from muniment.recall.context import Budgets
from muniment.recall.conversation import Conversation
from muniment.recall.recaller import Recaller
from muniment.recall.session import RecallSession
from muniment.store import watching
from muniment.store.audit import records
from muniment.store.commit import Terms, commit
from muniment.store.ledger import root_key
from muniment.store.state import State
from muniment.store.trust import constant
from muniment.types import Recalled
from muniment.types.keys import EntryKey

# Maximum seconds to wait for an event.
WAIT = 20.0

CANARY = "canary-5e1f"
AT = "2026-11-22T10:00:00.000Z"
NO_TIERS = Budgets(system=0, project=0, just_in_time=0)


def entry_of(name, body, description=None, keywords=()):
    """Format the text of an entry."""
    front = {"name": name, "description": description, "keywords": list(keywords)}
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in front.items() if value)
    return f"---\n{''.join(lines)}---\n\n{body.strip()}\n"


ENTRIES = {
    "user/editor.md": entry_of("Editor theme", "Wants dark mode in the editor."),
    "project/deploy.md": entry_of("Deploy day", "Deploys the billing service on Tuesdays."),
    "project/database.md": entry_of("Database", "Staging runs Postgres behind pgbouncer."),
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

    def wait(self, patience):
        self.thread = threading.current_thread()
        self.reached.set()
        patience.wait(self._fd, select.POLLIN)

    def close(self):
        os.close(self._fd)


class Slow(Recaller):
    """A recaller that waits at gates: `gates` are those of the next recalls, in order.

    `asked` records the queries with their excluded entries.
    """

    def recall(self, query, *, exclude=(), **more):
        self.asked.append((query, frozenset(exclude)))
        try:
            if self.gates:
                self.gates.pop(0).wait(more["patience"])
        except MunimentError as error:
            return Recalled(error=error)
        return super().recall(query, exclude=exclude, **more)


class Ground:
    """A context and its content."""

    def __init__(self, place):
        self.place, self.state, self.calendar = place, place.state, Calendar()

    def file(self, path):
        scope, _, rel = path.partition("/")
        return self.place.roots[scope].trusted_path / rel

    def put(self, entries, text=None):
        """Write files of unknown origin: {logical path: text}, or one path and its text."""
        for path, content in (entries if text is None else {entries: text}).items():
            self.file(path).unlink(missing_ok=True)  # So that its directory changes.
            put(self.place.roots[path.partition("/")[0]].trusted_path, path.partition("/")[2], content)

    def commit(self, path, text, *, trust=Trust.OWNER, at=AT, policy=None, reviewed=True):
        """Commit a file, so that the ledger knows it."""
        known = self.key(path).digest if self.file(path).exists() else None
        policy, asked = policy or self.place.policy, (by(trust=trust, at=at), constant(trust))
        terms = Terms(policy, self.place.roots, patience(), self.state, *asked, reviewed=reviewed)
        commit([change_set([Proposed(path, known, text.encode())], scopes=self.place.roots)], terms)

    def key(self, path):
        """Return the key of the entry at a path with its current content."""
        scope, _, rel = path.partition("/")
        digest = hashlib.sha256(self.file(path).read_bytes()).hexdigest()
        return EntryKey(root_key(self.state, self.place.roots[scope]), RelPath(rel), digest)

    def execute(self, statement, values=()):
        """Change a row of the catalog directly."""
        with self.state.catalog.transaction() as connection:
            connection.execute(statement, values)

    def injections(self):
        """Return the audit records of injections."""
        return [record.body for record in records(self.state) if record.kind == "injection"]

    @contextmanager
    def recaller(self, kind=Recaller, **more):
        place = self.place
        with closing(kind(place.policy, place.roots, place.state, clock=self.calendar, **more)) as made:
            made.asked, made.gates = [], []
            yield made


@contextmanager
def ground(base, policy=None, entries=(), kind=Ground, embedder=None):
    """Open a context under `base` with files of unknown origin, {logical path: text}."""
    roots = bind_all(make_roots(base))
    place = Place(
        policy or strict(require="none"), roots, State(base / "state", embedder=embedder), in_process=True
    )
    with closing(place):
        made = kind(place)
        made.put(dict(entries))
        yield made


class Stage:
    """A memory, a recaller with gates, and hosts that are closed with it."""

    def __init__(self, made, recaller, stack):
        self.made, self.recaller, self._stack, self.clock = made, recaller, stack, FakeClock(100.0)

    def closing(self, what):
        return self._stack.enter_context(what if hasattr(what, "__exit__") else closing(what))

    def session(self, **more):
        return self.closing(RecallSession(self.recaller, clock=self.clock, **more))

    def conversation(self, budgets=NO_TIERS, **more):
        return self.closing(Conversation(self.recaller, budgets=budgets, **more))

    def gate(self):
        """Add a gate before the next recall that has none."""
        self.recaller.gates.append(self.closing(Gate()))
        return self.recaller.gates[-1]


@contextmanager
def staged(base, entries=ENTRIES, policy=None, **terms):
    with nothing_left_behind(), ExitStack() as closing_first, ExitStack() as stack:
        made = closing_first.enter_context(ground(base, policy, entries))
        yield Stage(made, closing_first.enter_context(made.recaller(Slow, **terms)), stack)


def foreign(trust):
    """Return a policy that gives this trust to foreign files of the project."""
    policy, changed = strict(require="none"), {"user": {}, "project": {"trust": trust}}
    terms = tuple(replace(each, **changed[each.name]) for each in policy.scope_terms)
    return replace(policy, scope_terms=terms)


def paths(recalled):
    """Return the logical paths of the entries of a recall."""
    return [each.path for each in recalled.entries]


def settle(host, but=()):
    """Wait for the background threads of a host to end, except some."""
    prefetch = getattr(host, "session", host)
    for thread in list(getattr(prefetch, "prefetch", prefetch)._threads):
        if thread not in but:
            thread.join(WAIT)
            assert not thread.is_alive()


def telling(caplog):
    """Return a function that parses the events logged until now."""
    caplog.set_level(logging.INFO, logger="muniment")
    return lambda: [json.loads(each.getMessage()) for each in caplog.records if each.name == "muniment"]


@contextmanager
def nothing_left_behind():
    """Assert that the block leaves no new thread."""
    before = set(map(id, threading.enumerate()))
    yield
    assert [each.name for each in threading.enumerate() if id(each) not in before] == []


class EndlessSweep:
    """Sweeps that start with every second check of a root, and end only when cancelled.

    Attributes:
        begun: set when one runs.
        held: of each sweep, whether its root was still open at the end.
    """

    def __init__(self, monkeypatch):
        self.begun, self.held = threading.Event(), []
        monkeypatch.setattr(watching, "SWEEP_SECONDS", 0)
        monkeypatch.setattr(watching, "view_as_it_is", self._view)

    def _view(self, _state, root, _policy):
        self._root = root
        return self

    def stale(self):
        return {}

    def edited(self, patience):
        self.begun.set()
        try:
            while True:
                patience.check()
                time.sleep(0)
        finally:
            self.held.append(self._root.root.fd >= 0)
