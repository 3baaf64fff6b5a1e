"""Open the model, the policy, the roots and the state that the settings of a program name."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muniment import events
from muniment.cancelling import Cancel
from muniment.errors import ConfigInvalid, ManagedMemoryUnavailable, MunimentError, RollbackFailed
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.decide import Policy
from muniment.kernel.names import Scope, Trust
from muniment.operations.job_context import JobContext
from muniment.policy.grammar import parse_symlinks
from muniment.policy.ownership import bind_outside
from muniment.policy.platforms import may_write
from muniment.settings import (
    RULES,
    STANDING_TOKENS,
    Settings,
    find_default_roots,
    load_configured_policy,
    read_api_key,
)
from muniment.store.ledger import move_root
from muniment.store.recovery import recover_roots
from muniment.store.state import LEDGER_NAME, State, is_writable
from muniment.workspaces.projects import (
    Binding,
    find_project,
    list_advice,
    list_notes,
    record_binding,
    require_memory_in_checkout,
)

if TYPE_CHECKING:
    from muniment.agent.model import Model
    from muniment.recall.recaller import Chooser, Recaller
    from muniment.store.rows import Embedder

PROJECT: Final = Scope("project")

RECOVERY_SECONDS: Final = 60.0
"""Seconds that opening a memory waits for the locks of roots in which a commit was interrupted."""


def open_model(settings: Settings, environment: Mapping[str, str]) -> AbstractContextManager[Model]:
    """Return a context manager with the model that `settings` name: the rules or a language model.

    Args:
        settings: as `read_settings` read them from the same environment.
        environment: the variables, such as `os.environ`; they may contain the key of the model's server.

    Raises:
        ConfigInvalid: a language model has no usable base URL or key, see `read_api_key`.

    Cost: reading the key. The first turn connects to the server and imports `openai` (0.6 s, once).
    """
    if settings.model == RULES:
        from muniment.agent.filing import RuleWriter

        return nullcontext(RuleWriter())
    if not settings.base_url:
        raise ConfigInvalid(
            f"the model {settings.model!r} needs a server; give its address: "
            "--base-url URL, such as http://127.0.0.1:8080/v1"
        )
    key = read_api_key(settings, environment)
    from muniment.agent.openai import OpenAIModel

    return closing(
        OpenAIModel(settings.model, base_url=settings.base_url, api_key=key, protocol=settings.protocol)
    )


def open_context(
    settings: Settings,
    workspace: str | PathLike[str] | None,
    *,
    in_process: bool = False,
    create: bool = True,
    is_reader: bool = False,
    state: State | None = None,
) -> JobContext:
    """Open the policy, the roots and the state for a workspace; raises the errors of `muniment.open`.

    Roll back commits that were interrupted in the roots; `notes` of the result report this.

    Args:
        settings: the settings of the program.
        workspace: a directory of the workspace, given by the user; None: the current directory. If it is
            None, a project memory is created only in a repository (ADR 0032).
        in_process: as for `muniment.open`.
        create: create missing default directories; otherwise omit their scopes.
        is_reader: if `create` is False, still create the state directory, so that later reads are fast. If
            that fails, use a temporary one and add a note. A state directory that is not writable is copied.
            If this program may not write (`policy.platforms`), `create` is False and `is_reader` is True.
        state: an open state that several contexts share, which the caller closes; None: that of `settings`.
    """
    symlinks = parse_symlinks(settings.symlinks)
    loaded = load_configured_policy(settings)
    policy = loaded.policy
    if in_process:
        _check_in_process(policy)
    is_read_only = state is None and settings.state.is_dir() and not is_writable(settings.state)
    if is_read_only or not may_write(policy):
        create, is_reader = False, True
    paths, project, is_recorded = _resolve_paths(settings, policy, workspace, create=create)
    with ExitStack() as resources:
        roots = bind_outside(
            paths, loaded.paths, loaded.hard_link_identities, disjoint_from=settings.protected_paths
        )
        for root in roots.values():
            resources.callback(root.close)
        notes = () if project is None else tuple(list_notes(settings.home, project, was_recorded=is_recorded))
        advice = () if project is None else tuple(list_advice(settings.home, project))
        if state is None:
            state, more = _open_state(settings, is_needed=create, is_cached=is_reader and bool(roots))
            notes += more
            resources.callback(state.close)
        if project is not None and PROJECT in roots:
            _check_and_move_history(project, roots[PROJECT], state)
        notes += _recover_roots(state, roots, policy)
        resources.pop_all()
    return JobContext(
        policy,
        roots,
        state,
        symlinks=symlinks,
        in_process=in_process,
        notes=notes,
        advice=advice,
        on_model_failure=settings.on_model_failure,
        standing_tokens=settings.standing_tokens if settings.standing == "on" else 0,
    )


def _check_in_process(policy: Policy) -> None:
    """Raise `ConfinementUnavailable` if the policy requires confined workers. Reading needs no sandbox."""
    from muniment.sandbox.sandbox import check_enforcement

    check_enforcement(policy, in_process=True)


def _recover_roots(state: State, roots: Mapping[Scope, BoundRoot], policy: Policy) -> tuple[str, ...]:
    """Roll back interrupted commits in the roots, and return notes about it for the user.

    If a rollback fails, the note is the error. The memory can still be read, and each later commit first
    tries the rollback again.
    """
    try:
        return tuple(recover_roots(state, roots, policy, Deadline(time.monotonic() + RECOVERY_SECONDS)))
    except RollbackFailed as error:
        return (str(error),)


def _resolve_paths(
    settings: Settings, policy: Policy, workspace: str | PathLike[str] | None, *, create: bool
) -> tuple[dict[Scope, Path], Binding | None, bool]:
    """Return the directories for the scopes, and the project that the workspace belongs to.

    Returns:
        The directory of each scope.
        The project; None if the scope `project` is not declared or has a directory in the settings.
        Whether the project is recorded in the list of projects.
    """
    is_default = "project" in policy.scopes and "project" not in settings.roots
    found = find_project(settings.home, Path(workspace or ""))
    is_project = workspace is not None or found.checkout.is_repository
    is_recorded = create and is_default and (is_project or "user" not in policy.scopes)
    found = record_binding(settings.home, found) if is_recorded else found
    if is_default:
        _require_inside(found, policy)
    memory = found.build_memory_path(settings.home)
    paths = find_default_roots(settings, policy.scopes, memory, create=create, is_project=is_project)
    return paths, found if is_default else None, is_recorded


def _require_inside(found: Binding, policy: Policy) -> None:
    """Check the location and the trust of a memory that is stored inside a repository.

    Raises:
        ConfigInvalid: the path of the memory leaves the repository, or text that others wrote would have the
            trust `owner`.
    """
    if found.inside is None:
        return
    require_memory_in_checkout(found, Path(os.path.realpath(found.checkout.path / found.inside)))
    if policy.get_trust(PROJECT) is Trust.OWNER:
        raise ConfigInvalid(
            f"the policy {policy.name} gives owner trust to project files that Muniment did not write, "
            f'and a git pull writes files in {found.inside}; set trust = "workspace" in the policy, or '
            "store the memory at home: muniment init --home"
        )


def _check_and_move_history(found: Binding, root: BoundRoot, state: State) -> None:
    """Check the root of a memory inside a repository, and move its history if the repository was moved.

    Raises:
        ConfigInvalid: the path of the root leaves the repository.
        ManagedMemoryUnavailable: the ledger cannot be written.
    """
    if found.inside is None:
        return
    require_memory_in_checkout(found, root.trusted_path)
    for previous_path in found.previous_paths:
        move_root(state, Path(previous_path, found.inside), root)


def create_embedder(settings: Settings) -> Embedder | None:
    """Return an object that computes vectors with the embedding model of `settings`; None without a model.

    Raises:
        ConfigInvalid: the model cannot be used, see `recall.semantic_search.StaticModel`.
    """
    if settings.embeddings is None:
        return None
    from muniment.recall.semantic_search import StaticModel

    return StaticModel(settings.embeddings)


def open_state(settings: Settings) -> State:
    """Open the state directory of `settings` for the lifetime of a program; close it after use.

    Raises:
        ConfigInvalid: the embedding model cannot be used.
        StateTooNew, ManagedMemoryUnavailable: the state directory cannot be used, see `State`.
    """
    return State(settings.state, embedder=create_embedder(settings))


def _open_state(settings: Settings, *, is_needed: bool, is_cached: bool) -> tuple[State, tuple[str, ...]]:
    """Open the state directory, or a temporary one for a program that only reads.

    Args:
        settings: with the path of the state directory.
        is_needed: the program writes history, so a temporary directory is not sufficient.
        is_cached: the program only reads, but a new state directory makes later reads faster.

    Returns:
        The state, and notes for the user.
    """
    directory, embedder = settings.state, create_embedder(settings)
    if not (is_needed or is_cached or directory.is_dir()):
        return State(None, embedder=embedder), ()
    if not is_needed and directory.is_dir() and not is_writable(directory):
        return State(directory, embedder=embedder, is_read_only=True), ()
    try:
        return State(directory, embedder=embedder), ()
    except ManagedMemoryUnavailable as error:
        if is_needed or _may_have_history(directory):
            raise
        return State(None, embedder=embedder), (
            f"{error}; therefore each command reads the whole memory, which is slower",
        )


def _may_have_history(directory: Path) -> bool:
    """Return whether a state directory may contain a ledger.

    If a ledger exists but is not used, a reader may give texts a trust that is too high.
    """
    try:
        (directory / LEDGER_NAME).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # The ledger may exist.
    return True


# -- recall --------------------------------------------------------------------------------------------


def create_recaller(context: JobContext) -> Recaller:
    """Return an object that searches an open memory; close it before the memory."""
    from muniment.recall.recaller import Recaller

    return Recaller(
        context.policy,
        context.roots,
        context.state,
        notes=context.advice,
        standing_tokens=context.standing_tokens or STANDING_TOKENS,
    )


def create_chooser(context: JobContext, model: Model) -> Chooser | None:
    """Return a function that lets `model` choose the helpful entries; None if the model is the rules.

    Each call of the function is one turn of the model, about at most `agent.questions.MAX_OPTIONS` entries.
    The turn ends at `deadline`, or when the time that the policy allows for a run is over. If the model
    fails before `deadline`, the function returns None.
    """
    from muniment.agent.filing import RuleWriter

    if isinstance(model, RuleWriter):
        return None
    from muniment.agent.model import Budget, ModelError
    from muniment.agent.questions import MAX_OPTIONS, ModelQuery

    def choose(message: str, about: Sequence[str], limit: int, deadline: Deadline) -> Sequence[int] | None:
        with Cancel() if deadline.cancel is None else nullcontext(deadline.cancel) as cancel:
            budget = Budget(context.policy.limits, cancel, context.clock)
            remaining = deadline.expires_at - time.monotonic()  # The clock of `context` may be another one.
            budget.deadline = min(budget.deadline, context.clock() + remaining)
            query = ModelQuery(model, budget)
            try:
                return query.choose_helpful(message, about[:MAX_OPTIONS], limit)
            except (ModelError, MunimentError) as error:
                deadline.check()
                events.emit("recall_model_failed", problem=type(error).__name__)
                return None

    return choose
