r"""Roots, worker and overlay behind three methods: `call`, `changes`, `commit`.

    with Sandbox(policy="strict", roots={"user": "/srv/memory/user"}) as box:
        box.call("write_file", {"path": "user/editor.md", "content": "Prefers dark mode.\n"})
        box.commit()

C1 Nothing outside the bound roots is read, listed or written by a call or a commit.
C2 Nothing at all is written before `commit`, and then everything or nothing.
C3 `enforcement` says what really holds the worker, as it and the kernel say. Where a policy requires more,
   the worker is ended before it is told anything; with `require = "full"`, before this object exists.

Not promised: C1 against native code in the worker under `partial`, and against anything under `none`.
Attacked by `tests/attacks/`, also by the corpus.
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
"""Seconds that a call outside a run may take, or a commit wait for the locks of its roots; a grep over all
that a policy lets it scan takes a few."""


def check_budgets(change_set: ChangeSet, policy: Policy) -> None:
    """Check the size of what a run proposes; what code adds to it later does not count.

    Raises:
        BudgetSpent: it holds more files or bytes than a run may write.
    """
    if len(change_set.changes) > policy.limits.files_written:
        raise BudgetSpent("the change-set holds more files than a run may write")
    if sum(item.size for item in change_set.changes) > policy.limits.write_bytes:
        raise BudgetSpent("the change-set holds more bytes than a run may write")


def require(policy: Policy, held: Held) -> None:
    """Refuse a run that is held less than its policy requires.

    Raises:
        ConfinementUnavailable: it is; the message names what is missing and what to do.
    """
    required = policy.confinement.require
    if held.enforcement.satisfies(required):
        return
    if held.enforcement is Enforcement.NONE:
        remedy = 'run it in a worker, or use a policy that says require = "none"'
    else:
        remedy = (
            f"the kernel does not hold {', '.join(held.missing)}; 'muniment doctor' says why, "
            'or use a policy that requires "partial"'
        )
    raise ConfinementUnavailable(required, held.enforcement, remedy)


def check_enforcement(policy: Policy, *, in_process: bool) -> None:
    """`require`, as far as it is known before a worker is started.

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
        roots: directory of each scope; every scope must be declared by the policy.
        symlinks: `"refuse"`: a path that meets a link is an escape; `"beneath"`: it is resolved, as the links
            are when the first call or the first after a commit is made, and judged as written and as
            resolved. A link that is absolute or leaves its root is an escape either way.
        state: directory for ledger and catalog, apart from the roots; None: a private temporary one.
        in_process: run the tools in this process; the policy must say `require = "none"`. Elsewhere than on
            Linux they do in any case.

    Raises:
        PolicyInvalid: the policy does not load, or a file of it lies in a root.
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
        """The sandbox of a job's run over roots and a state that the caller has opened and keeps.

        A file must be read there before it may be replaced.

        Args:
            policy: judges it.
            roots: of its scopes.
            state: ledger and catalog.
            in_process: as of the constructor.
            symlinks: what becomes of links beneath the roots.
            context: in `clean` runs the worker gets no root.
            patience: when every wait of the run ends; None: each call or commit has `WAIT_SECONDS`.
            shown: entries that the run goes by before it begins, with their digests. They count as read where
                it replaces them, and what it proposes rests on them.

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
        """What holds the worker of this sandbox, or held the last one. Starts one if there was none.

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
        """`held`, in one word; raises as that."""
        return self.held.enforcement

    def call(self, tool: object, arguments: object) -> Outcome:
        """Carry out one tool call against the overlay; nothing is written.

        Raises:
            DeadlineExceeded, Cancelled: the wait ended; the overlay is lost.
            WorkerLost: the worker died or broke its protocol; the overlay is lost.
            ManagedMemoryUnavailable: a root holds more links than are resolved, see `read_links`.
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
        """Paths of which the calls so far showed any text; as they were named, links and all."""
        return frozenset(self._seen)

    def without_links(self, path: CanonicalPath) -> CanonicalPath:
        """The name under which `path` is read and committed, by the links that the run began with.

        Raises:
            PathEscape, BadName: it leads outside, or to no name; see `policy.grammar.resolve`.
        """
        return resolve(path, self._links.get(path.scope, {})).path

    def changes(self) -> list[Change]:
        """What would be committed, in order of paths; raises as `call`."""
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
        """Judge what was proposed, commit it and rebuild the indexes of touched scopes.

        An empty change-set writes nothing. Afterwards the overlay is empty again.

        Args:
            run: who commits, and why; None: the caller himself, who edits.
            trust: says how far the new bytes are trusted; None: as the owner's.
            stamp: completes what is committed; None keeps the proposed bytes.
            rename: says where a new file goes instead; None: where it was proposed.
            replaced: says where an entry goes whose text is replaced; None: each stays.
            dry_run: do everything except writing.
            accept: is shown the very change-set that is judged then, and raises what it likes.

        Raises:
            RememberPathEscape: a writing tool tried to escape, or the judge found an escape.
            RememberRefused: the judge does not allow a change.
            PendingReview: the policy wants the owner to look at it first.
            StoreConflict: a file is no longer what the run read or replaces.
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
                # A job whose policy shows it nothing cannot know what is taken.
                settle_names=self._is_clean or (self._is_job and not self._open_scopes),
                dry_run=dry_run,
            )
            done = commit([change_set], terms)
        except PathEscape as error:
            raise RememberPathEscape(error.via, error.requested, error.tool) from error
        except (Refusal, ToolError) as error:
            raise RememberRefused(f"the change-set was refused: {error}") from error
        self._disconnect()
        return done

    def close(self) -> None:
        """End the worker; drop what was not committed."""
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
        """What a caller who commits for himself does."""
        task, now = f"edit-{new_ulid()}", timestamp()
        return Run(task, now, Trust.OWNER, "caller", self._policy.label, "edit")

    def _change_set(self) -> ChangeSet:
        """What is proposed; it rests on what was shown whatever a worker says of that."""
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
        """The scopes in which the run may list, read or edit, whose roots it holds; none in `clean` runs."""
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
        """Remember the first escape by a writing tool, where it ends the run."""
        if self._escape is not None or self._policy.confinement.on_escape != "abort":
            return
        if outcome.via is not None and isinstance(tool, str) and tool in WRITING_TOOLS:
            self._escape = RememberPathEscape(outcome.via, path_of(arguments), tool)


def check_scopes(policy: Policy, roots: Mapping[str, object]) -> None:
    """Refuse roots that the policy does not know, and a run without any.

    Raises:
        InvalidScope: for the first such scope.
    """
    if not roots:
        known = ", ".join(policy.scopes)
        raise InvalidScope(f"no root is bound; bind a directory to each scope you need of {known}")
    for name in roots:
        if name not in policy.scopes:
            raise InvalidScope(f"the policy declares no scope {name!r}; it has {', '.join(policy.scopes)}")
