"""The library: `open` a memory, `remember` facts in it.

import muniment

with muniment.open(workspace=".") as memory:
    result = memory.remember("The user prefers dark mode in all editors")
    print(result.files_touched)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from datetime import date
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

from muniment.agent.model import Model
from muniment.agent.runner import Observer, Witness
from muniment.cancelling import Cancel
from muniment.errors import ConfigInvalid, InvalidContent
from muniment.kernel.cancel import Deadline
from muniment.kernel.names import Trust
from muniment.names import HOME_VARIABLE, MAX_RECALLED, ContextMode
from muniment.opening import create_chooser, create_recaller, open_context, open_model
from muniment.operations.job_context import JobContext
from muniment.portable import IS_LINUX
from muniment.recall.context import Budgets
from muniment.recall.recaller import MAX_ENTRIES, MAX_TOKENS, Chooser, Recaller
from muniment.recall.subagent import Enqueue, SubagentMemory
from muniment.settings import read_settings
from muniment.types import (
    CommittedStep,
    DreamRequest,
    DreamResult,
    ForgetRequest,
    ForgetResult,
    Origin,
    Recalled,
    RememberRequest,
    RememberResult,
    ReviewDecision,
    ReviewShown,
    UndoResult,
)
from muniment.types.arguments import check_optional_texts, check_texts, parse_integer, parse_trust

if TYPE_CHECKING:
    from muniment.recall.conversation import CompactionOptions, Conversation
    from muniment.types import (
        EditResult,
        EntryList,
        EntryShown,
        ErasePlan,
        EraseResult,
        Explained,
        ExportResult,
        IndexResult,
        PinResult,
        Review,
    )

R = TypeVar("R", RememberResult, ForgetResult, DreamResult, UndoResult)


class Memory:
    """An open memory: a policy over bound roots. Threads may share one; close it after use.

    Create one with `open`. On systems other than Linux it is read-only: a method that writes raises
    `PlatformUnsupported`, unless the policy sets `require = "none"`.

    Attributes:
        context: the policy and the bound roots.
    """

    def __init__(self, context: JobContext, model: Model, opened: ExitStack) -> None:
        self.context, self._model, self._opened = context, model, opened

    def remember(  # noqa: PLR0913  by keyword
        self,
        content: str,
        *,
        scope: str | None = None,
        context: str | None = ContextMode.WORKSPACE,
        trust: Trust | str | None = Trust.OWNER,
        dry_run: bool = False,
        task_id: str | None = None,
        detail: bool = False,
        expires: str | date | None = None,
        cancel: Cancel | None = None,
        observe: Observer = lambda _: None,
    ) -> RememberResult:
        """Store a fact.

        Args:
            content: the fact; trimmed, then 1 to 65 536 bytes of UTF-8 without NUL.
            scope: the only scope that may be written; None: the agent chooses.
            context: `workspace`, or `clean`: the agent sees nothing of the memory.
            trust: who the fact comes from: `owner`, `workspace`, `agent` or `external`.
            dry_run: judge and report, commit nothing.
            task_id: if the same request is made twice with it, it is carried out once; see `RememberRequest`.
            detail: include the model's last text in the result's `detail`, fenced as data.
            expires: the last day on which the fact is shown, or a number of days such as `30d`; None: it is
                never hidden, even if its text contains a date ("until 2026-12-31").
            cancel: ends the run early.
            observe: called for every tool call.

        Raises:
            InvalidContent, InvalidScope: the request is invalid.
            RememberPathEscape: the agent tried to leave the memory; nothing was committed.
            JobError: the agent ended without effect.
            JobTimeout, JobFailed, Cancelled: the run ended without effect.
            StoreConflict: another process changed entries that the run relied on; after two retries, if the
                policy retries.
            PendingReview: the owner must approve the change first; nothing was committed.
            ManagedMemoryUnavailable: a root cannot be used, with the reason.
            BadArguments: an argument has the wrong type, or `trust` is unknown.
        """
        check_texts(content=content)
        check_optional_texts(scope=scope, context=context, task_id=task_id)
        request = RememberRequest(
            content,
            scope,
            context or ContextMode.WORKSPACE,
            trust=parse_trust(trust),
            dry_run=bool(dry_run),
            task_id=task_id,
            detail=detail,
            expires=None if expires is None else str(expires),
        )
        return _raise_failure(self.try_remember(request, cancel=cancel, observe=observe))

    def try_remember(
        self,
        request: RememberRequest,
        *,
        cancel: Cancel | None = None,
        observe: Observer = lambda _: None,
        witness: Witness = lambda _: None,
    ) -> RememberResult:
        """Remember as `remember` does, and return a failure in the result's `error` instead of raising it.

        Args:
            request: the request.
            cancel: ends the run early.
            observe: called for every tool call.
            witness: called for every message between model and run, as for a transcript. It must not raise.
        """
        from muniment.operations.remember import remember

        return remember(request, self.context, self._model, cancel=cancel, observe=observe, witness=witness)

    def forget(
        self,
        query: str,
        *,
        scope: str | None = None,
        dry_run: bool = False,
        digest: str | None = None,
        task_id: str | None = None,
        cancel: Cancel | None = None,
    ) -> ForgetResult:
        """Remove an entry by its path, or the entry, list item or paragraph that a description means.

        Args:
            query: a path such as `user/editor.md`, or a description. A language model finds what it means.
                Without one, all its words must match, except common ones such as `the`.
            scope: the only scope to search; None: all.
            dry_run: only report what would be removed, write nothing.
            digest: of the result of a dry run: if the result would differ now, nothing is removed.
            task_id: as for `remember`.
            cancel: ends it early.

        Raises:
            InvalidContent, InvalidScope: the request is invalid.
            JobFailed: more matches than one forget may remove, or the model failed.
            JobError: the result would differ from the digest.
            JobTimeout, Cancelled: it ended before anything was written.
            StoreConflict: another process changed the entries to remove; after two retries, if the policy
                retries.
            PendingReview: the owner must approve the change first.
            ManagedMemoryUnavailable: a root or the state cannot be used. In all cases nothing was removed.
        """
        check_texts(query=query)
        check_optional_texts(scope=scope, digest=digest, task_id=task_id)
        request = ForgetRequest(query, scope=scope, dry_run=bool(dry_run), task_id=task_id, digest=digest)
        return _raise_failure(self.try_forget(request, cancel=cancel))

    def try_forget(self, request: ForgetRequest, *, cancel: Cancel | None = None) -> ForgetResult:
        """Forget as `forget` does, and return a failure in the result's `error` instead of raising it."""
        from muniment.operations.forget import forget

        return forget(request, self.context, self._model, cancel=cancel)

    def dream(
        self,
        *,
        scope: str | None = None,
        dry_run: bool = False,
        attended: bool | None = True,
        task_id: str | None = None,
        cancel: Cancel | None = None,
    ) -> DreamResult:
        """Tidy the memory: merge duplicates, remove expired entries, count the rest.

        Args:
            scope: the only scope to tidy; None: all.
            dry_run: only report what would be done, write nothing.
            attended: False: no user requested this dream, and its removals wait for the owner.
            task_id: as for `remember`.
            cancel: ends it early.

        Raises:
            InvalidScope, InvalidContent: the request is invalid.
            JobFailed, JobTimeout, Cancelled: it ended before anything was written.
            StoreConflict: another process kept changing the entries to merge.
            PendingReview: the owner must approve the change first.
            ManagedMemoryUnavailable: a root or the state cannot be used. In all cases nothing was changed.
        """
        check_optional_texts(scope=scope, task_id=task_id)
        request = DreamRequest(scope, dry_run=bool(dry_run), attended=attended is not False, task_id=task_id)
        return _raise_failure(self.try_dream(request, cancel=cancel))

    def try_dream(self, request: DreamRequest, *, cancel: Cancel | None = None) -> DreamResult:
        """Tidy as `dream` does, and return a failure in the result's `error` instead of raising it."""
        from muniment.operations.dream import dream

        return dream(request, self.context, self._model, cancel=cancel)

    def recall(
        self,
        query: str,
        *,
        exclude: Iterable[str] | None = (),
        scope: str | None = None,
        limit: float | None = None,
        budget: float | None = None,
        choose: bool = False,
        deadline: Deadline | None = None,
    ) -> Recalled:
        """Return entries that help with a message, and a text of them to put before a model.

        Do not raise if the memory fails: the result is empty then and has the `error`.

        Args:
            query: the message, or some words.
            exclude: ids of entries that were already shown; an entry that changed since may be returned
                again.
            scope: the only scope to search; None: all.
            limit: maximum number of entries, 1 to 20; None: 5.
            budget: maximum tokens of the text, a token being three bytes; None: 2 000.
            choose: let the language model, if there is one, choose among the results of the search.
            deadline: limit of the search; None: no limit.

        Raises:
            BadArguments: an argument has the wrong type, or the limit is out of range.
        """
        check_texts(query=query)
        check_optional_texts(scope=scope)
        limit = MAX_ENTRIES if limit is None else limit
        budget = MAX_TOKENS if budget is None else budget
        max_entries = parse_integer("limit", limit, minimum=1, maximum=MAX_RECALLED)
        tokens = parse_integer("budget", budget, minimum=0)
        if not query.strip():
            return Recalled(error=InvalidContent("the query is empty: describe what to recall"))
        return self.recaller.recall(
            query,
            exclude=self.recaller.read_keys(exclude or ()),
            scopes=None if scope is None else [scope],
            limit=max_entries,
            budget=tokens,
            choose=self._create_chooser() if choose else None,
            deadline=deadline,
            needs_entry=True,
        )

    def conversation(
        self,
        *,
        budgets: Budgets = Budgets(),  # noqa: B008  frozen
        compacting: CompactionOptions | None = None,
        choose: bool = False,
        parent: Cancel | None = None,
        state: Mapping[str, Any] | None = None,
        repeat_after: int | None = None,
    ) -> Conversation:
        """Return the memory for a chat loop, see `recall.conversation`; close it before this memory.

        Args:
            budgets: how many tokens the memory may use.
            compacting: how to keep the history small; None: the host does it.
            choose: as for `recall`.
            parent: ends all running work when cancelled.
            state: of an earlier run of the same conversation, from its `as_json`.
            repeat_after: tokens of the conversation after which a complete entry may be injected again; None:
                30 000.
        """
        from muniment.recall.conversation import Conversation
        from muniment.recall.session import REPEAT_AFTER

        return Conversation(
            self.recaller,
            budgets=budgets,
            compacting=compacting,
            choose=self._create_chooser() if choose else None,
            parent=parent,
            state=state,
            repeat_after=REPEAT_AFTER if repeat_after is None else repeat_after,
        )

    def subagent(self, enqueue: Enqueue | None = None) -> SubagentMemory:
        """Return the memory for subagents, see `recall.subagent`.

        Args:
            enqueue: submits a fact to be remembered with trust `agent`, such as a method of a daemon's
                client;
                None: subagents have no tool for that.
        """
        return SubagentMemory(self.recaller, tuple(self.context.roots), enqueue=enqueue)

    @cached_property
    def recaller(self) -> Recaller:
        """Return the recaller of this memory."""
        return self._opened.enter_context(closing(create_recaller(self.context)))

    def _create_chooser(self) -> Chooser | None:
        return create_chooser(self.context, self._model)

    def undo(self, task_id: str, *, cancel: Cancel | None = None) -> UndoResult:
        """Undo the changes of a task: its files have their earlier content again, byte for byte.

        Args:
            task_id: from a result or `history`.
            cancel: ends it early.

        Raises:
            NotFound: no such task has changed this memory.
            UndoOverlap: its files were changed since; the error lists them. Nothing was written.
            AlreadyUndone, Erased: the task is already undone, or its data was erased.
            InvalidScope: the task changed other directories.
            Refused, QuotaExceeded: the policy does not allow it.
            ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: nothing was written.
        """
        from muniment.operations.review import undo_task

        check_texts(task_id=task_id)
        return _raise_failure(undo_task(task_id, self.context, cancel=cancel))

    def history(self, path: str | None = None) -> tuple[CommittedStep, ...]:
        """Return the committed steps, the newest first; see `operations.review.load_history`."""
        from muniment.operations.review import load_history

        check_optional_texts(path=path)
        return load_history(self.context, path)

    def why(self, path: str) -> Origin:
        """Return the origin of a file, and whether it changed since; see `operations.review.load_origin`."""
        from muniment.operations.review import load_origin

        check_texts(path=path)
        return load_origin(self.context, path)

    def review(self, review_id: str) -> ReviewShown:
        """Return a pending review, with the digest that `approve_review` needs.

        See `operations.review.show_review`.
        """
        from muniment.operations.review import show_review

        check_texts(review_id=review_id)
        return show_review(review_id, self.context)

    def approve(self, review_id: str, digest: str, *, cancel: Cancel | None = None) -> ReviewDecision:
        """Commit a pending change set that `review` returned; see `operations.review.approve_review`."""
        from muniment.operations.review import approve_review

        check_texts(review_id=review_id, digest=digest)
        return approve_review(review_id, digest, self.context, cancel=cancel)

    def reject(self, review_id: str, *, cancel: Cancel | None = None) -> ReviewDecision:
        """Reject a pending change set; it is never committed. See `operations.review.reject_review`."""
        from muniment.operations.review import reject_review

        check_texts(review_id=review_id)
        return reject_review(review_id, self.context, cancel=cancel)

    def list(self, scope: str | None = None, *, limit: int | None = None, expired: bool = False) -> EntryList:
        """List the entries, sorted by path.

        Args:
            scope: the only scope to list; None: all.
            limit: the maximum number of entries; None: all.
            expired: list expired entries also.

        Raises:
            InvalidScope: no such scope is bound.
            ManagedMemoryUnavailable, PathEscape: a root or the state cannot be used.
            BadArguments: the limit is not a positive integer.
        """
        from muniment.operations.listing import list_entries

        check_optional_texts(scope=scope)
        max_entries = None if limit is None else parse_integer("limit", limit, minimum=1)
        return list_entries(self.context, scope=scope, limit=max_entries, expired=bool(expired))

    def show(self, path: str) -> EntryShown:
        """Show one entry: its text is data, and withheld from models if `withheld` is not None.

        Args:
            path: of the entry, such as `user/editor.md`, or its address (`muniment://…`).

        Raises:
            NotFound: the path has no entry.
            PathEscape, Refusal, ToolError: not a path of the memory, or not a readable text.
            ManagedMemoryUnavailable: a root or the state cannot be used.
        """
        from muniment.operations.listing import show_entry

        check_texts(path=path)
        return show_entry(self.context, path)

    def edit(
        self,
        path: str,
        text: str,
        *,
        digest: str | None = None,
        dry_run: bool = False,
        cancel: Cancel | None = None,
    ) -> EditResult:
        """Replace the text of an entry, as its owner; its front matter stays.

        See `operations.edit.edit_entry`.

        Args:
            path: of the entry, or its address.
            text: the new text, without front matter.
            digest: that `show_entry` returned with the old text; None: replace any current text.
            dry_run: judge and report, commit nothing.
            cancel: ends it early.

        Raises:
            InvalidContent: the text is empty; to remove an entry, use `forget`.
            NotFound: the path has no entry.
            StoreConflict: the entry changed since `digest`.
            RememberRefused: a gate or the policy does not allow it.
            PendingReview: the policy requires a review of every change.
            PathEscape, Refusal, ToolError: not a path of the memory, or not a readable text.
            ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: nothing was written.
        """
        from muniment.operations.edit import edit_entry

        check_texts(path=path, text=text)
        check_optional_texts(digest=digest)
        return edit_entry(self.context, path, text, read_digest=digest, dry_run=bool(dry_run), cancel=cancel)

    def pin(self, path: str, *, dry_run: bool = False, cancel: Cancel | None = None) -> PinResult:
        """Pin an entry, so that no run changes it and recall prefers it; unpin a pinned one.

        Args:
            path: of the entry, or its address; for a pinned one, the path in `pinned/`.
            dry_run: judge and report, commit nothing.
            cancel: ends it early.

        Raises:
            NotFound: the path has no entry.
            RememberRefused: the policy does not allow it, the entry is withheld, or the new path exists.
            PathEscape, Refusal, ToolError: not a path of the memory, or not a readable file.
            ManagedMemoryUnavailable, DeadlineExceeded, Cancelled, StoreConflict: nothing was written.
        """
        from muniment.operations.edit import toggle_pin

        check_texts(path=path)
        return toggle_pin(self.context, path, dry_run=bool(dry_run), cancel=cancel)

    def export(
        self,
        file: str | PathLike[str] | IO[bytes],
        *,
        scope: str | None = None,
        format: str | None = "tar",  # noqa: A002  as the command names it
    ) -> ExportResult:
        """Write every entry, with its origin, to one file that an import can read.

        Args:
            file: the path of a new file, which only this user can read, or an open binary file.
            scope: the only scope to export; None: all.
            format: `tar` or `jsonl`.

        Raises:
            ConfigInvalid: unknown format, or the file exists or cannot be written.
            InvalidScope: no such scope is bound.
            ManagedMemoryUnavailable, PathEscape: a root or the state cannot be used.
        """
        from muniment.operations.exporting import export

        check_optional_texts(scope=scope, format=format)
        return export(self.context, file, scope=scope, format=format or "tar")

    def index(self, *, dry_run: bool = False, cancel: Cancel | None = None) -> IndexResult:
        """Rebuild the indexes from the entries, and verify them; see `operations.owner.rebuild_indexes`.

        Args:
            dry_run: only verify the current indexes.
            cancel: ends it early.

        Raises:
            ManagedMemoryUnavailable, StoreConflict, QuotaExceeded: an index cannot be written or verified.
            DeadlineExceeded, Cancelled: before the next index was written.
        """
        from muniment.operations.owner import rebuild_indexes

        return rebuild_indexes(self.context, dry_run=bool(dry_run), cancel=cancel)

    def explain(self, verb: str, path: str) -> Explained:
        """Explain the decision of the policy about a verb on a path; see `operations.owner.explain`.

        Args:
            verb: `list`, `read`, `create`, `modify` or `delete`.
            path: such as `user/editor.md`, or an address; the entry need not exist.

        Raises:
            BadArguments: no such verb.
        """
        from muniment.operations.owner import explain

        check_texts(verb=verb, path=path)
        return explain(self.context, verb, path)

    def erase(
        self, target: str, *, dry_run: bool = False, cancel: Cancel | None = None
    ) -> ErasePlan | EraseResult:
        """Erase an entry, or the files that a task wrote, with the complete history, permanently.

        Args:
            target: the path of an entry, its address, or the id of a task.
            dry_run: report what would be erased, and erase nothing.
            cancel: ends it early, before anything is erased.

        Raises:
            NotFound: the target is unknown.
            PathEscape, Refusal, ToolError: not a path of a file that can be erased.
            InvalidScope: the task wrote to directories that are not bound here.
            StoreConflict, ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: run it again.
        """
        from muniment.operations.owner import erase

        check_texts(target=target)
        return erase(self.context, target, dry_run=bool(dry_run), cancel=cancel)

    def reviews(self) -> tuple[Review, ...]:
        """List the change sets that wait for the owner; see `operations.review.list_reviews`."""
        from muniment.operations.review import list_reviews

        return list_reviews(self.context)

    def close(self) -> None:
        """Close the roots, and the language model if `open` created it."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _raise_failure(result: R) -> R:
    """Return a result, or raise its error."""
    if result.error is not None:
        raise result.error
    return result


def _start_zygote() -> None:
    from muniment.sandbox.fence.pool import get_shared_zygote

    get_shared_zygote().start()


def open(  # noqa: A001, PLR0913  the library's name for it; used as muniment.open, by keyword
    workspace: str | PathLike[str] | None = None,
    *,
    policy: str | PathLike[str] | None = None,
    roots: Mapping[str, str | PathLike[str]] | None = None,
    symlinks: str | None = None,
    model: Model | str | None = None,
    base_url: str | None = None,
    api_key_file: str | PathLike[str] | None = None,
    protocol: str | None = None,
    on_model_failure: str | None = None,
    home: str | PathLike[str] | None = None,
    in_process: bool = False,
) -> Memory:
    """Open the memory of a workspace.

    Args:
        workspace: a directory in it; the workspace is the nearest ancestor with `.git`, otherwise the
            directory. None: search from the current directory; without `.git` the scope
            `project` is not bound. Worktrees share the memory of their clone.
        policy: name or path; default from the configuration, otherwise `strict`.
        roots: directories to bind to scopes instead of the default ones.
        symlinks: treatment of links under the roots; default from the configuration, otherwise `refuse`.
        model: `rules` (default), the name of a language model, or an object, which the caller closes.
        base_url: the address of the model's server, such as `http://127.0.0.1:8080/v1`.
        api_key_file: the file with its key, read once; default: the value of `$MUNIMENT_API_KEY`.
        protocol: of its server, one of `agent.model.PROTOCOLS`.
        on_model_failure: if the model fails, let the rules do the work (`rules`, default) or `fail` the task.
        home: instead of `$MUNIMENT_HOME`.
        in_process: run the tools in this process; the policy must set `require = "none"`.

    Raises:
        ConfigInvalid, PolicyInvalid: a setting is invalid; the policy does not load.
        InvalidScope: a root is bound to a scope that the policy does not declare.
        ManagedMemoryUnavailable, StateTooNew: a root or the state directory cannot be used, with the reason.
        DeadlineExceeded: an interrupted commit cannot be rolled back, because another process locks its root.
        ConfinementUnavailable: the policy requires more than this system offers.
    """
    named = model if model is None or isinstance(model, str) else None
    if named is not model and (base_url or api_key_file or protocol):
        raise ConfigInvalid("base_url, api_key_file and protocol need the name of a model, not an object")
    if IS_LINUX and not in_process:
        _start_zygote()
    environment = dict(os.environ) if home is None else {**os.environ, HOME_VARIABLE: os.fspath(home)}
    settings = read_settings(
        environment,
        policy=None if policy is None else os.fspath(policy),
        roots={scope: Path(path) for scope, path in (roots or {}).items()},
        symlinks=symlinks,
        model=named,
        base_url=base_url,
        api_key_file=api_key_file,
        protocol=protocol,
        on_model_failure=on_model_failure,
    )
    with ExitStack() as opened:
        if model is None or isinstance(model, str):
            model = opened.enter_context(open_model(settings, environment))
        context = opened.enter_context(closing(open_context(settings, workspace, in_process=in_process)))
        return Memory(context, model, opened.pop_all())
