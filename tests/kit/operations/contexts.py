"""Job contexts over throwaway roots, and their content."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kit.memories import make_roots, make_strict_policy, write_file
from kit.store.bench import Claim, ProposedFile, make_change_set, make_deadline, make_run
from muniment.agent.filing import RuleWriter
from muniment.kernel.binding import bind_all
from muniment.kernel.change import digest
from muniment.kernel.decide import Changes
from muniment.kernel.names import Trust
from muniment.operations.dream import dream
from muniment.operations.forget import forget
from muniment.operations.job_context import JobContext
from muniment.operations.remember import remember
from muniment.store.audit import timestamp
from muniment.store.commit import CommitOptions, commit
from muniment.store.state import State
from muniment.store.trust import build_constant_rule
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text
from muniment.types import DreamRequest, ForgetRequest, RememberRequest


@pytest.fixture
def skip_fact_check(monkeypatch):
    """Accept any written text as the fact: for tests of the controls after T-RUN-14."""
    monkeypatch.setattr("muniment.operations.remember_job.contains_fact", lambda *_: True)


@pytest.fixture
def sample_rows(request):
    """Return every n-th of many rows, or all rows with `--slow`."""
    return lambda rows, step: list(rows) if request.config.getoption("--slow") else list(rows)[::step]


@pytest.fixture
def read_log(caplog):
    """Return the messages that Muniment has logged."""
    logger = logging.getLogger("muniment")
    propagates, logger.propagate = logger.propagate, True
    caplog.set_level(logging.INFO, "muniment")
    yield lambda: [record.getMessage() for record in caplog.records if record.name == "muniment"]
    logger.propagate = propagates


@contextlib.contextmanager
def open_context(roots, policy=None, *, in_process=True, on_model_failure="fail", **options):
    """Open a context over roots, by default in this process. A failed model is not replaced by the rules."""
    policy = policy or make_strict_policy(require="none")
    options |= {"in_process": in_process, "on_model_failure": on_model_failure}
    context = JobContext(policy, bind_all(roots), State(None), **options)
    try:
        yield context
    finally:
        context.close()


@contextlib.contextmanager
def create_context(base, policy=None, **options):
    """Open a context over new roots under `base`; see `open_context`."""
    with open_context(make_roots(base), policy, **options) as context:
        yield context


@pytest.fixture
def context(tmp_path):
    """Open a context in `tmp_path`, in this process."""
    with create_context(tmp_path) as context:
        yield context


def make_permissive_policy(share=1.0, *, conflict="retry", **more):
    """Return a policy under which a dream may change everything, or a share of it."""
    policy = make_strict_policy(require="none", **more)
    return replace(policy, changes=Changes(conflict=conflict, max_scope_share=share))


def get_user_root(context):
    return context.roots["user"].trusted_path


def get_base(context):
    return get_user_root(context).parent


def write_files(context, files):
    """Write texts or bytes to logical paths."""
    for path, content in files.items():
        write_file(get_base(context), path, content)


def read_entries(context):
    """Return every entry with its bytes, without generated files."""
    return {
        f"{name}/{rel}": path.read_bytes()
        for name, root in context.roots.items()
        for path in root.trusted_path.rglob("*.md")
        if (rel := path.relative_to(root.trusted_path)).name != "MEMORY.md" and rel.parts[0] != "index"
    }


def assert_succeeded(result):
    assert result.error is None, result.error
    return result


def run_remember(context, /, fact, model=None, *, cancel=None, observe=None, **options):
    observers = {} if observe is None else {"observe": observe}
    return remember(
        RememberRequest(fact, **options), context, model or RuleWriter(), cancel=cancel, **observers
    )


def run_forget(context, /, query, model=None, *, cancel=None, **options):
    return forget(ForgetRequest(query, **options), context, model or RuleWriter(), cancel=cancel)


def run_dream(context, model=None, *, cancel=None, **options):
    return dream(DreamRequest(**options), context, model or RuleWriter(), cancel=cancel)


def commit_texts(context, files, *, trust=Trust.OWNER, at=None, removals=(), **run_fields):
    """Commit texts by path; a pair (old, new) replaces a text; `at` sets the time."""
    pairs = {
        path: content if isinstance(content, tuple) else (None, content) for path, content in files.items()
    }
    encoded = {path: (old and digest(old.encode()), new.encode()) for path, (old, new) in pairs.items()}
    changes = (ProposedFile(path, *each) for path, each in encoded.items())
    removed = (Claim(path, digest(text.encode())) for path, text in removals)
    at = at or timestamp(datetime.now(UTC))
    run = make_run(trust=trust, at=at, **run_fields)
    options = CommitOptions(
        context.policy,
        context.roots,
        make_deadline(),
        context.state,
        run,
        build_constant_rule(trust),
        is_reviewed=True,
    )
    return commit([make_change_set(changes, (), removed, context.roots)], options)


def make_raising_step(error):
    """Return a step of a model that raises an error."""

    def respond(*_args, **_kwargs):
        raise error

    return respond


def make_write_call(path="user/a.md", content="a fact\n"):
    return make_call("write_file", path=path, content=content)


def make_saving_model(path="user/a.md", content="a fact\n", summary="Saved."):
    """Return a model that writes this entry and replies with this text."""
    return ScriptedModel([reply_with_calls(make_write_call(path, content)), reply_with_text(summary)])
