r"""Tool calls on a memory in a sandbox, controlled by three methods: `call`, `changes`, `commit`.

    with Sandbox(policy="strict", roots={"user": "/srv/memory/user"}) as box:
        box.call("write_file", {"path": "user/editor.md", "content": "Prefers dark mode.\n"})
        box.commit()

C1 A call or a commit reads, lists and writes nothing outside the bound roots.
C2 Nothing is written before `commit`, which writes everything or nothing.
C3 `enforcement` is the confinement that is really in force, as reported by the worker and the kernel. If a
   policy requires more, the worker is ended before it receives any data. With `require = "full"`, this is
   checked when the object is created.

Not guaranteed: C1 against native code in the worker under `partial`, and against any code under `none`.
Tested with attacks by `tests/attacks/`, also by the corpus.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from muniment.errors import (
    BudgetSpent,
    ConfinementUnavailable,
    InvalidScope,
    PathEscape,
    Refusal,
    RememberPathEscape,
    RememberRefused,
    ToolError,
)
from muniment.kernel.binding import BoundRoot
from muniment.kernel.cancel import Deadline
from muniment.kernel.change import ChangeSet, Claim
from muniment.kernel.decide import Policy, PolicyEvaluator
from muniment.kernel.names import Enforcement, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.kernel.root import Root
from muniment.names import IN_PROCESS, Confinement, ContextMode, Symlinks
from muniment.policy.files import LoadedPolicy
from muniment.policy.grammar import NO_LINKS, Links, parse_symlinks, resolve
from muniment.policy.ownership import bind_outside
from muniment.policy.platforms import require_writing
from muniment.policy.shipped import load_policy_files
from muniment.portable import IS_LINUX
from muniment.sandbox.tools.calls import (
    WRITING_TOOLS,
    Outcome,
    build_error_outcome,
    find_displayed_paths,
    get_path_argument,
)
from muniment.sandbox.tools.links import read_links
from muniment.sandbox.tools.overlay import NOTHING_INJECTED, InjectedDigests
from muniment.sandbox.tools.workbench import Workbench
from muniment.store.audit import timestamp
from muniment.store.commit import ChooseName, CommitOptions, CommitResult, Stamp, commit
from muniment.store.ledger import Run, build_changes
from muniment.store.naming import Rename
from muniment.store.state import State
from muniment.store.trust import TrustRule, build_constant_rule, generate_ulid
from muniment.types import Change

if TYPE_CHECKING:
    from muniment.sandbox.fence.pool import Worker
    from muniment.sandbox.tools.remote import RemoteExecutor, ToolExecutor

WAIT_SECONDS: Final = 60.0
"""Seconds that a call outside a run may take, or that a commit waits for the locks of its roots. A grep over
all bytes that a policy allows takes a few seconds."""


def check_budgets(change_set: ChangeSet, policy: Policy) -> None:
    """Reject a proposal with more files or bytes than a run may write.

    Bytes that code adds later do not count.

    Raises:
        BudgetSpent: the proposal has too many files or bytes.
    """
    if len(change_set.changes) > policy.limits.files_written:
        raise BudgetSpent("the change set has more files than a run may write")
    if sum(item.size for item in change_set.changes) > policy.limits.write_bytes:
        raise BudgetSpent("the change set has more bytes than a run may write")


def require_confinement(policy: Policy, confinement: Confinement) -> None:
    """Reject a run whose confinement is weaker than its policy requires.

    Raises:
        ConfinementUnavailable: the confinement is weaker; the message lists the missing layers and what to
            do.
    """
    required = policy.confinement.require
    if confinement.enforcement.satisfies(required):
        return
    if confinement.enforcement is Enforcement.NONE:
        remedy = 'run it in a worker, or use a policy with require = "none"'
    else:
        remedy = (
            f"the kernel does not enforce {', '.join(confinement.missing)}; "
            "run 'muniment doctor' for the reason, or use a policy with require = \"partial\""
        )
    raise ConfinementUnavailable(required, confinement.enforcement, remedy)


def check_enforcement(policy: Policy, *, in_process: bool) -> None:
    """Check the confinement of a run as far as it is known before a worker is started.

    Raises:
        ConfinementUnavailable: the tools would run in this process, and the policy requires a worker.
        PlatformUnsupported: this system has no worker, and the policy requires one.
    """
    if in_process:
        require_confinement(policy, IN_PROCESS)
    require_writing(policy)


class Sandbox:
    """The memory in some roots, which tools may read and change as a policy allows.

    Args:
        policy: a policy, a policy loaded with its files, the name of a policy, or the path of a policy file.
        roots: directory of each scope; the policy must declare every scope.
        symlinks: `"refuse"`: a path with a link is an escape. `"beneath"`: links are resolved, and the path
            is judged as written and as resolved. The links are read at the first call, and again at the first
            call after a commit. A link that is absolute or leaves its root is an escape in both cases.
        state: directory for ledger and catalog, outside the roots; None: a private temporary directory.
        in_process: run the tools in this process; the policy must have `require = "none"`. On systems other
            than Linux, the tools always run in this process.

    Raises:
        PolicyInvalid: the policy does not load, or one of its files is in a root.
        InvalidScope: a root is bound to a scope that the policy does not declare, or no root is given.
        ManagedMemoryUnavailable: a root cannot be used; the message contains the reason.
        ConfinementUnavailable: the policy requires a stronger confinement than this run would have.
        ConfigInvalid: `symlinks` is not one of the values above.
        PlatformUnsupported: this system has no worker, and the policy requires one.
    """

    def __init__(
        self,
        policy: Policy | LoadedPolicy | str | PathLike[str] = "strict",
        roots: Mapping[str, str | PathLike[str]] | None = None,
        *,
        symlinks: str = "refuse",
        state: str | PathLike[str] | None = None,
        in_process: bool = False,
    ) -> None:
        loaded_or_policy = (
            policy
            if isinstance(policy, Policy | LoadedPolicy)
            else load_policy_files(os.fspath(policy), None)
        )
        loaded = (
            loaded_or_policy
            if isinstance(loaded_or_policy, LoadedPolicy)
            else LoadedPolicy(loaded_or_policy, ())
        )
        effective = loaded.policy
        links = parse_symlinks(symlinks)
        disjoint_paths = (Path(state),) if state is not None else ()
        check_scopes(effective, roots or {})
        check_enforcement(effective, in_process=in_process)
        paths_by_scope = {Scope(name): Path(path) for name, path in (roots or {}).items()}
        bound = bind_outside(
            paths_by_scope, loaded.paths, loaded.hard_link_identities, disjoint_from=disjoint_paths
        )
        self._state_directory = None if state is None else Path(state)
        self._set_up(effective, bound, None, links, in_process=in_process)

    @classmethod
    def for_run(
        cls,
        policy: Policy,
        roots: Mapping[Scope, BoundRoot],
        state: State,
        *,
        in_process: bool,
        symlinks: Symlinks = Symlinks.REFUSE,
        context: ContextMode = ContextMode.WORKSPACE,
        deadline: Deadline | None = None,
        injected: InjectedDigests = NOTHING_INJECTED,
    ) -> Self:
        """Return the sandbox for the run of a job.

        The caller has opened the roots and the state, and closes them. In this sandbox, a file must be read
        before it may be replaced.

        Args:
            policy: the policy to judge by.
            roots: roots of the scopes.
            state: ledger and catalog.
            in_process: run the tools in this process; the policy must have `require = "none"`.
            symlinks: treatment of links under the roots.
            context: in a `clean` run, the worker gets no root.
            deadline: the deadline of the run; None: each call or commit has `WAIT_SECONDS`.
            injected: entries that are injected before the run begins, with their digests. The run may replace
                them without reading them first. Its proposal depends on them.

        Raises:
            ConfinementUnavailable: the policy requires a stronger confinement than this run would have.
        """
        check_enforcement(policy, in_process=in_process)
        sandbox = cls.__new__(cls)
        sandbox._set_up(  # noqa: SLF001  the other constructor
            policy, roots, state, symlinks, context, deadline, injected, in_process=in_process
        )
        return sandbox

    def _set_up(
        self,
        policy: Policy,
        roots: Mapping[Scope, BoundRoot],
        state: State | None,
        symlinks: Symlinks,
        context: ContextMode = ContextMode.WORKSPACE,
        deadline: Deadline | None = None,
        injected: InjectedDigests = NOTHING_INJECTED,
        *,
        in_process: bool,
    ) -> None:
        self._policy, self._roots, self._symlinks = policy, roots, symlinks
        self._is_clean, self._run_deadline = context is ContextMode.CLEAN, deadline
        self._is_job = state is not None
        self._state, self._owns_all = state, state is None
        self._in_process = in_process or not IS_LINUX
        self._injected = injected
        self._displayed_paths: set[CanonicalPath] = set()
        self._open_scopes = self._select_scopes()
        self._executor: ToolExecutor | None = None
        self._worker: Worker | None = None
        self._links: Mapping[Scope, Links] = NO_LINKS
        self._confinement: Confinement | None = IN_PROCESS if self._in_process else None
        self._escape: RememberPathEscape | None = None
        if policy.confinement.require is Enforcement.FULL:
            try:
                self._connect()
            except BaseException:
                self.close()
                raise

    @property
    def confinement(self) -> Confinement:
        """Return the confinement of the current or last worker. Start the first worker if needed.

        Raises:
            ConfinementUnavailable: the confinement is weaker than the policy requires.
            DeadlineExceeded, Cancelled, WorkerLost, ManagedMemoryUnavailable: as described in `call`.
        """
        if self._confinement is None:
            self._connect()
        assert self._confinement is not None  # noqa: S101 - for the type checker; a connection sets it
        return self._confinement

    @property
    def enforcement(self) -> Enforcement:
        """Return the degree of the confinement: `full`, `partial` or `none`.

        Raises:
            MunimentError: the errors of `confinement`.
        """
        return self.confinement.enforcement

    def call(self, tool: object, arguments: object) -> Outcome:
        """Execute one tool call on the pending writes of this sandbox. Nothing is written to disk.

        Raises:
            DeadlineExceeded, Cancelled: the wait ended. The pending writes are lost.
            WorkerLost: the worker died or broke its protocol. The pending writes are lost.
            ManagedMemoryUnavailable: a root has more links than can be resolved, see `read_links`.
        """
        try:
            for root in self._roots.values():
                root.verify()
        except PathEscape as error:
            outcome = build_error_outcome(error)
        else:
            outcome = self._connect().call(tool, arguments)
        self._record_escape(tool, arguments, outcome)
        self._displayed_paths |= find_displayed_paths(tool, arguments, outcome, tuple(self._roots))
        return outcome

    @property
    def displayed_paths(self) -> frozenset[CanonicalPath]:
        """Return the paths of the files whose text the calls have returned, with links not resolved."""
        return frozenset(self._displayed_paths)

    def resolve_links(self, path: CanonicalPath) -> CanonicalPath:
        """Return `path` with its links resolved, as they were when the run began.

        Raises:
            PathEscape, BadName: the resolved path is outside the root, or is not valid.
        """
        return resolve(path, self._links.get(path.scope, {})).path

    def changes(self) -> list[Change]:
        """Return the changes that a commit would write, in order of paths. Raises the errors of `call`."""
        return list(build_changes(self._read_change_set().changes))

    def commit(
        self,
        run: Run | None = None,
        *,
        trust: TrustRule | None = None,
        stamp: Stamp | None = None,
        rename: Rename | None = None,
        replaced: ChooseName | None = None,
        dry_run: bool = False,
        approve: Callable[[ChangeSet], None] = lambda _: None,
    ) -> CommitResult:
        """Judge the pending writes, commit them and rebuild the indexes of touched scopes.

        An empty change set writes nothing. After the commit the sandbox has no pending writes.

        Args:
            run: who commits, and why; None: the caller edits directly.
            trust: returns the trust of the new bytes; None: trust `owner`.
            stamp: completes the committed bytes; None: the proposed bytes are committed.
            rename: returns the path of a new file; None: the proposed path is used.
            replaced: returns the path of an entry whose text is replaced; None: no entry is renamed.
            dry_run: do everything except writing.
            approve: called with the change set before it is judged; may raise to reject it.

        Raises:
            RememberPathEscape: a writing tool tried to escape, or the judge found an escape.
            RememberRefused: the judge does not allow a change.
            PendingReview: the policy requires a review by the owner.
            StoreConflict: a file is no longer the one that the run read or replaces.
            StateTooNew, ManagedMemoryUnavailable: a root or the state cannot be used, with the reason.
            DeadlineExceeded, Cancelled, WorkerLost: as in `call`, before the first write.
        """
        if self._escape is not None:
            raise self._escape
        try:
            change_set = self._read_change_set()
            if not change_set.changes:
                self._disconnect()
                return CommitResult()
            check_budgets(change_set, self._policy)
            approve(change_set)
            common = (self._policy, self._roots, self._get_deadline(), self._open_state())
            options = CommitOptions(
                *common,
                run or self._build_edit_run(),
                trust or build_constant_rule(Trust.OWNER),
                stamp=stamp,
                rename=rename,
                rename_replaced=replaced,
                # A job whose policy lets it list nothing cannot know which names are in use.
                should_resolve_names=self._is_clean or (self._is_job and not self._open_scopes),
                dry_run=dry_run,
            )
            done = commit([change_set], options)
        except PathEscape as error:
            raise RememberPathEscape(error.via, error.requested, error.tool) from error
        except (Refusal, ToolError) as error:
            raise RememberRefused(f"the change set was rejected: {error}") from error
        self._disconnect()
        return done

    def close(self) -> None:
        """End the worker and drop uncommitted changes."""
        self._disconnect()
        if not self._owns_all:
            return
        for root in self._roots.values():
            root.close()
        if self._state is not None:
            self._state.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _get_deadline(self) -> Deadline:
        return self._run_deadline or Deadline(time.monotonic() + WAIT_SECONDS)

    def _open_state(self) -> State:
        if self._state is None:
            self._state = State(self._state_directory)
        return self._state

    def _build_edit_run(self) -> Run:
        """Return the ledger data for a direct edit by the caller."""
        task, now = f"edit-{generate_ulid()}", timestamp()
        return Run(task, now, Trust.OWNER, "caller", self._policy.label, "edit")

    def _read_change_set(self) -> ChangeSet:
        """Return the proposal of the run.

        It always depends on the injected entries, even if a worker does not claim them.
        """
        proposed = self._executor.change_set() if self._executor else ChangeSet()
        injected_claims = (Claim(path, seen) for path, seen in self._injected.items())
        return replace(proposed, claims=tuple(dict.fromkeys((*proposed.claims, *injected_claims))))

    def _connect(self) -> ToolExecutor:
        if self._executor is None:
            handles = {scope: self._roots[scope].root for scope in self._open_scopes}
            if self._symlinks is Symlinks.BENEATH:
                self._links = {scope: read_links(root) for scope, root in handles.items()}
            self._executor = (
                self._create_local_executor(handles)
                if self._in_process
                else self._create_remote_executor(handles)
            )
        return self._executor

    def _select_scopes(self) -> tuple[Scope, ...]:
        """Return the scopes in which the run may list, read or modify files; none in `clean` runs."""
        if self._is_clean:
            return ()
        judge = PolicyEvaluator(self._policy)
        verbs = (Verb.LIST, Verb.READ, Verb.MODIFY)
        return tuple(scope for scope in self._roots if any(judge.may_grant_in(verb, scope) for verb in verbs))

    def _create_local_executor(self, handles: Mapping[Scope, Root]) -> Workbench:
        return Workbench(
            self._policy,
            tuple(self._roots),
            handles,
            must_read=self._is_job,
            links=self._links,
            injected=self._injected,
        )

    def _create_remote_executor(self, handles: Mapping[Scope, Root]) -> RemoteExecutor:
        deadline = self._get_deadline()
        from muniment.sandbox.fence.pool import get_shared_zygote
        from muniment.sandbox.tools.remote import RemoteExecutor, receive_hello

        descriptors = {scope: root.fd for scope, root in handles.items()}
        self._worker = get_shared_zygote().spawn_worker(descriptors, deadline)
        try:
            confinement = receive_hello(self._worker, deadline)
            require_confinement(self._policy, confinement)
            self._confinement = confinement
            return RemoteExecutor(
                self._worker,
                self._policy,
                tuple(self._roots),
                must_read=self._is_job,
                get_deadline=self._get_deadline,
                links=self._links,
                injected=self._injected,
            )
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        self._executor = None
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _record_escape(self, tool: object, arguments: object, outcome: Outcome) -> None:
        """Record the first path escape by a writing tool, if the policy ends the run because of it."""
        if self._escape is not None or self._policy.confinement.on_escape != "abort":
            return
        if outcome.via is not None and isinstance(tool, str) and tool in WRITING_TOOLS:
            self._escape = RememberPathEscape(outcome.via, get_path_argument(arguments), tool)


def check_scopes(policy: Policy, roots: Mapping[str, object]) -> None:
    """Reject a run without roots, and a root for a scope that the policy does not declare.

    Raises:
        InvalidScope: no root is given, or the scope of a root is not declared.
    """
    if not roots:
        known = ", ".join(policy.scopes)
        raise InvalidScope(f"no root is bound; bind a directory to each scope that you need: {known}")
    for name in roots:
        if name not in policy.scopes:
            raise InvalidScope(f"unknown scope {name!r}; use one of {', '.join(policy.scopes)}")
