"""A memory of given entries over real files and a real ledger, recallers of it, and hosts that talk to it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import select
import threading
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

from kit.memories import make_roots, put, strict
from kit.store.ground import origin, patience
from muniment.confine.binding import bind_all
from muniment.errors import MunimentError
from muniment.jobs.place import Place
from muniment.names import RelPath, Trust
from muniment.recall.recaller import Recalled, Recaller
from muniment.recall.search import EntryKey
from muniment.store.audit import records
from muniment.store.commit import Terms, commit
from muniment.store.ledger import root_key
from muniment.store.state import State
from muniment.store.trust import constant
from muniment.tools.overlay import ChangeSet, Proposed

WAIT = 20.0
"""Seconds after which something that is waited for counts as never happening."""

CANARY = "canary-5e1f"


class Calendar:
    """The time of day, which moves only when told to."""

    def __init__(self):
        self.now = datetime(2026, 11, 22, 12, tzinfo=UTC)

    def __call__(self):
        return self.now

    def advance(self, days):
        self.now += timedelta(days=days)


class Gate:
    """Shut until it is opened; whoever waits at it gives up with its patience."""

    def __init__(self):
        self._fd = os.eventfd(0, os.EFD_CLOEXEC)
        self.reached = threading.Event()
        self.thread = None

    def open(self):
        os.eventfd_write(self._fd, 1)

    def wait(self, patience):
        self.thread = threading.current_thread()
        self.reached.set()
        patience.wait(self._fd, select.POLLIN)

    def close(self):
        os.close(self._fd)


class Slow(Recaller):
    """Recalls as ever, behind gates: `gates` are those of the next recalls in their order; None: none.

    `asked` keeps what it was asked: messages, and what was to be left out.
    """

    gates: list
    asked: list

    def recall(self, query, *, exclude=(), **more):
        self.asked.append((query, frozenset(exclude)))
        gate = self.gates.pop(0) if self.gates else None
        try:
            if gate is not None:
                gate.wait(more["patience"])
        except MunimentError as error:
            return Recalled(error=error)
        return super().recall(query, exclude=exclude, **more)


class Ground:
    """A place, and what stands in it."""

    def __init__(self, place, calendar):
        self.place, self.state, self.calendar = place, place.state, calendar

    def file(self, path):
        scope, _, rel = path.partition("/")
        return self.place.roots[scope].trusted_path / rel

    def put(self, path, text):
        """A file of unknown origin, made or replaced."""
        scope, _, rel = path.partition("/")
        file = self.file(path)
        if file.exists():
            file.unlink()  # Replaced, so that its directory shows it.
        return put(self.place.roots[scope].trusted_path, rel, text)

    def commit(self, path, text, *, trust=Trust.OWNER, at="2026-11-22T10:00:00.000Z", reviewed=True):
        """A file that the ledger knows."""
        file = self.file(path)
        before = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else None
        commit(
            [ChangeSet((Proposed(path, before, text.encode()),), (), ())],
            Terms(
                self.place.policy,
                self.place.roots,
                patience(),
                self.state,
                origin(trust=trust, at=at),
                constant(trust),
                reviewed=reviewed,
            ),
        )

    def key(self, path):
        """Of the entry at a path, as it is now."""
        scope, _, rel = path.partition("/")
        digest = hashlib.sha256(self.file(path).read_bytes()).hexdigest()
        return EntryKey(root_key(self.state, self.place.roots[scope]), RelPath(rel), digest)

    def injections(self):
        """The records of what was put before a model."""
        return [record.body for record in records(self.state) if record.kind == "injection"]

    @contextmanager
    def recaller(self, kind=Recaller, **more):
        place = self.place
        made = kind(place.policy, place.roots, place.state, clock=self.calendar, **more)
        with closing(made):
            made.asked, made.gates = [], []
            yield made


@contextmanager
def ground(base, policy=None, entries=()):
    """A place below `base` with files of unknown origin, {logical path: text}."""
    policy = policy or strict(require="none")
    roots = bind_all(make_roots(base))
    place = Place(policy, roots, State(base / "state"), in_process=True)
    with closing(place):
        made = Ground(place, Calendar())
        for path, text in dict(entries).items():
            made.put(path, text)
        yield made


def foreign(trust):
    """A policy by which files of the project that we did not write have that trust."""
    policy = strict(require="none")
    terms = tuple(
        each.model_copy(update={"trust": trust}) if each.name == "project" else each
        for each in policy.scope_terms
    )
    return policy.model_copy(update={"scope_terms": terms})


def entry(name, body, *, description="", keywords=()):
    """The text of an entry."""
    front = [f"name: {json.dumps(name)}"]
    front += [f"description: {json.dumps(description)}"] if description else []
    front += [f"keywords: {json.dumps(list(keywords))}"] if keywords else []
    return "\n".join(["---", *front, "---", "", body, ""])


def paths(recalled):
    """The logical paths of the entries of a recall."""
    return [each.path for each in recalled.entries]


def settle(session, but=()):
    """Wait until all that a session began has ended, but for some threads."""
    for thread in list(session.prefetch._threads):
        if thread not in but:
            thread.join(WAIT)
            assert not thread.is_alive()


def telling(caplog):
    """What the events told so far, parsed, by a function."""
    caplog.set_level(logging.INFO, logger="muniment")
    return lambda: [json.loads(each.getMessage()) for each in caplog.records if each.name == "muniment"]


@contextmanager
def nothing_left_behind():
    """No thread is there behind the block that was not before it."""
    before = set(map(id, threading.enumerate()))
    yield
    assert [each.name for each in threading.enumerate() if id(each) not in before] == []


def call(number, name="read_file"):
    """A tool call as a host of Chat Completions holds it."""
    return {"id": f"call-{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}


def calling(*numbers):
    """A message of the assistant with some calls."""
    return {"role": "assistant", "content": None, "tool_calls": [call(number) for number in numbers]}


def result(number, text="done"):
    """The result of a call."""
    return {"role": "tool", "tool_call_id": f"call-{number}", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}
