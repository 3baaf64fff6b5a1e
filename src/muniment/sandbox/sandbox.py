r"""Roots, worker and overlay, controlled by three methods: `call`, `changes`, `commit`.

    with Sandbox(policy="strict", roots={"user": "/srv/memory/user"}) as box:
        box.call("write_file", {"path": "user/editor.md", "content": "Prefers dark mode.\n"})
        box.commit()

C1 A call or a commit reads, lists and writes nothing outside the bound roots.
C2 Nothing is written before `commit`, which writes everything or nothing.
C3 `enforcement` is the confinement that is really in force, as reported by the worker and the kernel. If a
   policy requires more, the worker is ended before it receives any data; with `require = "full"`, before
   this object exists.

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
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, Claim
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import Enforcement, Scope, Trust, Verb
from muniment.kernel.path import CanonicalPath
from muniment.kernel.root import Root
from muniment.names import IN_PROCESS, ContextMode, Held, Symlinks
from muniment.policy.grammar import NO_LINKS, Links, check_symlinks, resolve
from muniment.policy.load import Loaded, load_files
from muniment.policy.ownership import bind_outside
from muniment.policy.platforms import require_writing
from muniment.portable import IS_LINUX
from muniment.sandbox.tools.calls import WRITING_TOOLS, Outcome, path_of, paths_shown, stopped
from muniment.sandbox.tools.links import read_links
from muniment.sandbox.tools.overlay import NOTHING_SHOWN, Shown
from muniment.sandbox.tools.workbench import Workbench
from muniment.store.audit import timestamp
from muniment.store.commit import Commit, NewName, Stamp, Terms, commit
from muniment.store.ledger import Run, changes_of
from muniment.store.naming import Rename
from muniment.store.state import State
from muniment.store.trust import TrustRule, constant, new_ulid
from muniment.types import Change

if TYPE_CHECKING:
    from muniment.sandbox.fence.pool import Worker
    from muniment.sandbox.tools.remote import Bench, RemoteBench

WAIT_SECONDS: Final = 60.0
"""Seconds that a call outside a run may take, or that a commit waits for the locks of its roots. A grep over
all bytes that a policy allows takes a few."""


def check_budgets(change_set: ChangeSet, policy: Policy) -> None:
    """Check the size of a run's proposal; bytes that code adds later do not count.

    Raises:
        BudgetSpent: it has more files or bytes than a run may write.
    """
    if len(change_set.changes) > policy.limits.files_written:
        raise BudgetSpent("the change set has more files than a run may write")
    if sum(item.size for item in change_set.changes) > policy.limits.write_bytes:
        raise BudgetSpent("the change set has more bytes than a run may write")


def require(policy: Policy, held: Held) -> None:
    """Reject a run whose confinement is weaker than its policy requires.

    Raises:
        ConfinementUnavailable: it is; the message lists the missing layers and what to do.
    """
    required = policy.confinement.require
    if held.enforcement.satisfies(required):
        return
    if held.enforcement is Enforcement.NONE:
        remedy = 'run it in a worker, or use a policy with require = "none"'
    else:
        remedy = (
            f"the kernel does not enforce {', '.join(held.missing)}; run 'muniment doctor' for the reason, "
            'or use a policy with require = "partial"'
        )
    raise ConfinementUnavailable(required, held.enforcement, remedy)


def check_enforcement(policy: Policy, *, in_process: bool) -> None:
    """Check the confinement as far as it is known before a worker is started.

    Raises:
        ConfinementUnavailable: the tools would run in this process, and the policy requires a worker.
        PlatformUnsupported: this system has no worker, and the policy requires one.
    """
    if in_process:
        require(policy, IN_PROCESS)
    require_writing(policy)


class Sandbox:
    """The memory of some roots, judged by a policy.

    Args:
        policy: a policy, alone or with its files, the name of one, or the path of its file.
        roots: directory of each scope; the policy must declare every scope.
        symlinks: `"refuse"`: a path with a link is an escape; `"beneath"`: links are resolved, as they were
            at the first call or the first one after a commit, and the path is judged as written and as
            resolved. A link that is absolute or leaves its root is an escape in both cases.
        state: directory for ledger and catalog, outside the roots; None: a private temporary one.
        in_process: run the tools in this process; requires a policy with `require = "none"`. Always so on
            systems other than Linux.

    Raises:
        PolicyInvalid: the policy does not load, or one of its files is in a root.
        InvalidScope: a root is bound to a scope that the policy does not declare, or no root is given.
        ManagedMemoryUnavailable: a root cannot be used, with the reason.
        ConfinementUnavailable: the policy requires more than this run would have.
        ConfigInvalid: `symlinks` is not one of the values above.
        PlatformUnsupported: as `check_enforcement`.
    """

    def __init__(
        self,
        policy: Policy | Loaded | str | PathLike[str] = "strict",
        roots: Mapping[str, str | PathLike[str]] | None = None,
        *,
        symlinks: str = "refuse",
        state: str | PathLike[str] | None = None,
        in_process: bool = False,
    ) -> None:
        given = policy if isinstance(policy, Policy | Loaded) else load_files(os.fspath(policy))
        loaded = given if isinstance(given, Loaded) else Loaded(given, ())
        effective = loaded.policy
        links = check_symlinks(symlinks)
        apart = (Path(state),) if state is not None else ()
        check_scopes(effective, roots or {})
        check_enforcement(effective, in_process=in_process)
        named = {Scope(name): Path(path) for name, path in (roots or {}).items()}
        bound = bind_outside(named, loaded.paths, loaded.linked, apart_from=apart)
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
        patience: Patience | None = None,
        shown: Shown = NOTHING_SHOWN,
    ) -> Self:
        """Return the sandbox of a job's run over roots and a state that the caller has opened and closes.

        In this sandbox, a file must be read before it may be replaced.

        Args:
            policy: the policy to judge by.
            roots: roots of its scopes.
            state: ledger and catalog.
            in_process: as for the constructor.
            symlinks: treatment of links under the roots.
            context: in `clean` runs the worker gets no root.
            patience: the deadline of the run; None: each call or commit has `WAIT_SECONDS`.
            shown: entries that are injected before the run begins, with their digests. They count as read if
                the run replaces them, and its proposal depends on them.

        Raises:
            ConfinementUnavailable: as the constructor.
        """
        check_enforcement(policy, in_process=in_process)
        box = cls.__new__(cls)
        box._set_up(  # noqa: SLF001  the other constructor
            policy, roots, state, symlinks, context, patience, shown, in_process=in_process
        )
        return box

    def _set_up(
        self,
        policy: Policy,
        roots: Mapping[Scope, BoundRoot],
        state: State | None,
        symlinks: Symlinks,
        context: ContextMode = ContextMode.WORKSPACE,
        patience: Patience | None = None,
        shown: Shown = NOTHING_SHOWN,
        *,
        in_process: bool,
    ) -> None:
        self._policy, self._roots, self._symlinks = policy, roots, symlinks
        self._is_clean, self._run_patience = context is ContextMode.CLEAN, patience
        self._is_job = state is not None
        self._state, self._owns_all = state, state is None
        self._in_process = in_process or not IS_LINUX
        self._shown = shown
        self._seen: set[CanonicalPath] = set()
        self._open_scopes = self._scopes_to_open()
        self._bench: Bench | None = None
        self._worker: Worker | None = None
        self._links: Mapping[Scope, Links] = NO_LINKS
        self._held: Held | None = IN_PROCESS if self._in_process else None
        self._escape: RememberPathEscape | None = None
        if policy.confinement.require is Enforcement.FULL:
            try:
                self._connect()
            except BaseException:
                self.close()
                raise

    @property
    def held(self) -> Held:
        """Return the confinement of the current or last worker. Start a worker if needed.

        Raises:
            ConfinementUnavailable: less than the policy requires.
            DeadlineExceeded, Cancelled, WorkerLost, ManagedMemoryUnavailable: as `call`.
        """
        if self._held is None:
            self._connect()
        assert self._held is not None  # noqa: S101 - for the type checker; a connection sets it
        return self._held

    @property
    def enforcement(self) -> Enforcement:
        """Return the degree of the confinement; raise as `held`."""
        return self.held.enforcement

    def call(self, tool: object, arguments: object) -> Outcome:
        """Execute one tool call on the overlay; nothing is written.

        Raises:
            DeadlineExceeded, Cancelled: the wait ended; the overlay is lost.
            WorkerLost: the worker died or broke its protocol; the overlay is lost.
            ManagedMemoryUnavailable: a root has more links than can be resolved, see `read_links`.
        """
        try:
            for root in self._roots.values():
                root.verify()
        except PathEscape as error:
            outcome = stopped(error)
        else:
            outcome = self._connect().call(tool, arguments)
        self._note_escape(tool, arguments, outcome)
        self._seen |= paths_shown(tool, arguments, outcome, tuple(self._roots))
        return outcome

    @property
    def seen(self) -> frozenset[CanonicalPath]:
        """Return the paths of files whose text the calls have returned, as given, links not resolved."""
        return frozenset(self._seen)

    def without_links(self, path: CanonicalPath) -> CanonicalPath:
        """Return the path for reading and committing: without links, as they were when the run began.

        Raises:
            PathEscape, BadName: it is outside, or not a valid path; see `policy.grammar.resolve`.
        """
        return resolve(path, self._links.get(path.scope, {})).path

    def changes(self) -> list[Change]:
        """Return the changes that would be committed, in order of paths; raise as `call`."""
        return list(changes_of(self._change_set().changes))

    def commit(
        self,
        run: Run | None = None,
        *,
        trust: TrustRule | None = None,
        stamp: Stamp | None = None,
        rename: Rename | None = None,
        replaced: NewName | None = None,
        dry_run: bool = False,
        accept: Callable[[ChangeSet], None] = lambda _: None,
    ) -> Commit:
        """Judge the proposal, commit it and rebuild the indexes of touched scopes.

        An empty change set writes nothing. After the commit the overlay is empty again.

        Args:
            run: who commits, and why; None: the caller edits directly.
            trust: returns the trust of the new bytes; None: the owner's.
            stamp: completes the committed bytes; None keeps the proposed bytes.
            rename: returns the path of a new file; None: the proposed one.
            replaced: returns the path of an entry whose text is replaced; None: no entry is renamed.
            dry_run: do everything except writing.
            accept: called with the change set that is judged afterwards; may raise to reject it.

        Raises:
            RememberPathEscape: a writing tool tried to escape, or the judge found an escape.
            RememberRefused: the judge does not allow a change.
            PendingReview: the policy requires a review by the owner.
            StoreConflict: a file is no longer the one that the run read or replaces.
            StateTooNew, ManagedMemoryUnavailable: a root or the state cannot be used, with the reason.
            DeadlineExceeded, Cancelled, WorkerLost: as `call`, before the first write.
        """
        if self._escape is not None:
            raise self._escape
        try:
            change_set = self._change_set()
            if not change_set.changes:
                self._disconnect()
                return Commit()
            check_budgets(change_set, self._policy)
            accept(change_set)
            where = (self._policy, self._roots, self._patience(), self._opened_state())
            terms = Terms(
                *where,
                run or self._edit(),
                trust or constant(Trust.OWNER),
                stamp=stamp,
                rename=rename,
                replaced=replaced,
                # A job whose policy lets it list nothing cannot know which names are in use.
                settle_names=self._is_clean or (self._is_job and not self._open_scopes),
                dry_run=dry_run,
            )
            done = commit([change_set], terms)
        except PathEscape as error:
            raise RememberPathEscape(error.via, error.requested, error.tool) from error
        except (Refusal, ToolError) as error:
            raise RememberRefused(f"the change set was rejected: {error}") from error
        self._disconnect()
        return done

    def close(self) -> None:
        """End the worker; drop uncommitted changes."""
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

    def _patience(self) -> Patience:
        return self._run_patience or Patience(time.monotonic() + WAIT_SECONDS)

    def _opened_state(self) -> State:
        if self._state is None:
            self._state = State(self._state_directory)
        return self._state

    def _edit(self) -> Run:
        """Return the run of a direct edit by the caller."""
        task, now = f"edit-{new_ulid()}", timestamp()
        return Run(task, now, Trust.OWNER, "caller", self._policy.label, "edit")

    def _change_set(self) -> ChangeSet:
        """Return the proposal, which depends on the injected entries even if a worker does not claim them."""
        proposed = self._bench.change_set() if self._bench else ChangeSet()
        told = (Claim(path, seen) for path, seen in self._shown.items())
        return replace(proposed, claims=tuple(dict.fromkeys((*proposed.claims, *told))))

    def _connect(self) -> Bench:
        if self._bench is None:
            handles = {scope: self._roots[scope].root for scope in self._open_scopes}
            if self._symlinks is Symlinks.BENEATH:
                self._links = {scope: read_links(root) for scope, root in handles.items()}
            self._bench = self._in_this_process(handles) if self._in_process else self._in_worker(handles)
        return self._bench

    def _scopes_to_open(self) -> tuple[Scope, ...]:
        """Return the scopes in which the run may list, read or edit; none in `clean` runs."""
        if self._is_clean:
            return ()
        judge = Judge(self._policy)
        verbs = (Verb.LIST, Verb.READ, Verb.MODIFY)
        return tuple(scope for scope in self._roots if any(judge.reaches(verb, scope) for verb in verbs))

    def _in_this_process(self, handles: Mapping[Scope, Root]) -> Workbench:
        return Workbench(
            self._policy,
            tuple(self._roots),
            handles,
            must_read=self._is_job,
            links=self._links,
            shown=self._shown,
        )

    def _in_worker(self, handles: Mapping[Scope, Root]) -> RemoteBench:
        patience = self._patience()
        from muniment.sandbox.fence.pool import shared_zygote
        from muniment.sandbox.tools.remote import RemoteBench, greet

        descriptors = {scope: root.fd for scope, root in handles.items()}
        self._worker = shared_zygote().spawn(descriptors, patience)
        try:
            held = greet(self._worker, patience)
            require(self._policy, held)
            self._held = held
            return RemoteBench(
                self._worker,
                self._policy,
                tuple(self._roots),
                must_read=self._is_job,
                patience=self._patience,
                links=self._links,
                shown=self._shown,
            )
        except BaseException:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        self._bench = None
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _note_escape(self, tool: object, arguments: object, outcome: Outcome) -> None:
        """Record the first escape by a writing tool, if it ends the run."""
        if self._escape is not None or self._policy.confinement.on_escape != "abort":
            return
        if outcome.via is not None and isinstance(tool, str) and tool in WRITING_TOOLS:
            self._escape = RememberPathEscape(outcome.via, path_of(arguments), tool)


def check_scopes(policy: Policy, roots: Mapping[str, object]) -> None:
    """Reject roots of undeclared scopes, and a run without roots.

    Raises:
        InvalidScope: for the first such scope.
    """
    if not roots:
        known = ", ".join(policy.scopes)
        raise InvalidScope(f"no root is bound; bind a directory to each scope that you need: {known}")
    for name in roots:
        if name not in policy.scopes:
            raise InvalidScope(f"unknown scope {name!r}; use one of {', '.join(policy.scopes)}")
