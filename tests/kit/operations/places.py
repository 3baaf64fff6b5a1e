"""Job contexts over throwaway roots, and their content."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kit.memories import make_roots, put, strict
from kit.store.ground import Claim, Proposed, by, change_set, patience
from muniment.agent.filing import RuleWriter
from muniment.kernel.binding import bind_all
from muniment.kernel.change import digest
from muniment.kernel.decide import Changes
from muniment.kernel.names import Trust
from muniment.operations.dream import dream
from muniment.operations.forget import forget
from muniment.operations.place import Place
from muniment.operations.remember import remember
from muniment.store.audit import timestamp
from muniment.store.commit import Terms, commit
from muniment.store.state import State
from muniment.store.trust import constant
from muniment.testing.minds import ScriptedModel, call, calls, say
from muniment.types import DreamRequest, ForgetRequest, RememberRequest


@pytest.fixture
def any_words(monkeypatch):
    """Accept any written text as the fact: for tests of the controls after T-RUN-14."""
    monkeypatch.setattr("muniment.operations.remember_job.holds", lambda *_: True)


@pytest.fixture
def some(request):
    """Return every n-th of many rows, or all rows with `--slow`."""
    return lambda rows, step: list(rows) if request.config.getoption("--slow") else list(rows)[::step]


@pytest.fixture
def logged(caplog):
    """Return the messages that Muniment has logged."""
    logger = logging.getLogger("muniment")
    propagates, logger.propagate = logger.propagate, True
    caplog.set_level(logging.INFO, "muniment")
    yield lambda: [record.getMessage() for record in caplog.records if record.name == "muniment"]
    logger.propagate = propagates


@contextlib.contextmanager
def opened(roots, policy=None, *, in_process=True, on_model_failure="fail", **terms):
    """Open a context over roots, by default in this process. A failed model is not replaced by the rules."""
    policy = policy or strict(require="none")
    terms |= {"in_process": in_process, "on_model_failure": on_model_failure}
    place = Place(policy, bind_all(roots), State(None), **terms)
    try:
        yield place
    finally:
        place.close()


@contextlib.contextmanager
def made(base, policy=None, **terms):
    """Open a context over new roots under `base`; see `opened`."""
    with opened(make_roots(base), policy, **terms) as place:
        yield place


@pytest.fixture
def place(tmp_path):
    """Open a context in `tmp_path`, in this process."""
    with made(tmp_path) as place:
        yield place


def roomy(share=1.0, *, conflict="retry", **more):
    """Return a policy under which a dream may change everything, or a share of it."""
    policy = strict(require="none", **more)
    return replace(policy, changes=Changes(conflict=conflict, max_scope_share=share))


def user(place):
    return place.roots["user"].trusted_path


def base(place):
    return user(place).parent


def lay(place, files):
    """Write texts or bytes to logical paths."""
    for path, content in files.items():
        put(base(place), path, content)


def memory(place):
    """Return every entry with its bytes, without generated files."""
    return {
        f"{name}/{rel}": path.read_bytes()
        for name, root in place.roots.items()
        for path in root.trusted_path.rglob("*.md")
        if (rel := path.relative_to(root.trusted_path)).name != "MEMORY.md" and rel.parts[0] != "index"
    }


def done(result):
    assert result.error is None, result.error
    return result


def remembering(place, fact, model=None, *, cancel=None, observe=None, **terms):
    given = {} if observe is None else {"observe": observe}
    return remember(RememberRequest(fact, **terms), place, model or RuleWriter(), cancel=cancel, **given)


def forgetting(place, query, model=None, *, cancel=None, **terms):
    return forget(ForgetRequest(query, **terms), place, model or RuleWriter(), cancel=cancel)


def dreaming(place, model=None, *, cancel=None, **terms):
    return dream(DreamRequest(**terms), place, model or RuleWriter(), cancel=cancel)


def committed(place, files, *, trust=Trust.OWNER, at=None, removals=(), **of):
    """Commit texts by path; a pair (old, new) replaces a text; `at` sets the time."""
    pairs = {path: given if isinstance(given, tuple) else (None, given) for path, given in files.items()}
    bytes_of = {path: (old and digest(old.encode()), new.encode()) for path, (old, new) in pairs.items()}
    changes = (Proposed(path, *each) for path, each in bytes_of.items())
    gone = (Claim(path, digest(text.encode())) for path, text in removals)
    at = at or timestamp(datetime.now(UTC))
    made_by = by(trust=trust, at=at, **of)
    terms = Terms(place.policy, place.roots, patience(), place.state, made_by, constant(trust), reviewed=True)
    return commit([change_set(changes, (), gone, place.roots)], terms)


def raising(error):
    """Return a step of a model that raises an error."""

    def respond(*_args, **_kwargs):
        raise error

    return respond


def write(path="user/a.md", content="a fact\n"):
    return call("write_file", path=path, content=content)


def saving(path="user/a.md", content="a fact\n", words="Saved."):
    """Return a model that writes this entry and replies with this text."""
    return ScriptedModel([calls(write(path, content)), say(words)])
