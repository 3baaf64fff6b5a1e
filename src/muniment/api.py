"""The library for programs in Python: `open` a memory, then store facts with `Memory.remember`.

import muniment

with muniment.open(workspace=".") as memory:
    result = memory.remember("The user prefers dark mode in all editors")
    print(result.files_touched)
"""

from __future__ import annotations

import math
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
from muniment.settings import read_settings
from muniment.types import DreamRequest, ForgetRequest, Recalled, RememberRequest
from muniment.types.arguments import check_optional_texts, check_texts, parse_integer, parse_trust

if TYPE_CHECKING:
    from muniment.recall.context import Budgets
    from muniment.recall.conversation import CompactionOptions, Conversation
    from muniment.recall.recaller import Chooser, Recaller
    from muniment.recall.subagent import Enqueue, SubagentMemory
    from muniment.types import (
        CommittedStep,
        DreamResult,
        EditResult,
        EntryList,
        EntryShown,
        ErasePlan,
        EraseResult,
        Explained,
        ExportResult,
        ForgetResult,
        IndexResult,
        Origin,
        PinResult,
        RememberResult,
        Review,
        ReviewDecision,
        ReviewShown,
        UndoResult,
    )

R = TypeVar("R", "RememberResult", "ForgetResult", "DreamResult", "UndoResult")


class Memory:
    """An open memory. Create it with `open`, and close it after use. Threads may share it.

    On systems other than Linux, a memory is read-only: a method that writes raises `PlatformUnsupported`,
    unless the policy sets `require = "none"`.

    Attributes:
        context: the policy, the scopes with their directories, and the state.
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
            context: `workspace`: the agent may read the memory; `clean`: the agent sees nothing of it.
            trust: who the fact comes from: `owner`, `workspace`, `agent` or `external`.
            dry_run: check and return the change, but write nothing.
            task_id: an id chosen by the caller. If the same request with the same id is repeated, the fact is
                stored only once; see `RememberRequest`.
            detail: include the last text of the model in the result's `detail`, marked as data.
            expires: the last day on which the fact is shown, or a number of days such as `30d`. None: the
                fact is never hidden, even if its text contains a date ("until 2026-12-31").
            cancel: a token; setting it ends the run early.
            observe: called with the decision for each tool call.

        Raises:
            InvalidContent, InvalidScope: the request is invalid.
            RememberPathEscape: the agent tried to use a path outside the memory; nothing was committed.
            JobError: the agent proposed no change, or a change that was rejected; nothing was written.
            JobTimeout, JobFailed, Cancelled: the run ended early; nothing was written.
            StoreConflict: another process changed entries that the run relied on. If the policy allows
                retries, two retries had the same result.
            PendingReview: the owner must approve the change first; nothing was committed.
            ManagedMemoryUnavailable: a directory of the memory cannot be used; the message has the reason.
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
        """Store a fact like `remember`, but return a failure in the result's `error` instead of raising it.

        Args:
            request: the fact and the options.
            cancel: a token; setting it ends the run early.
            observe: called with the decision for each tool call.
            witness: called with each message between the model and the run, for example to write a
                transcript. It must not raise.
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
        """Remove the entry at a path, or the entry, list item or paragraph that matches a description.

        If this method raises an error, nothing was removed.

        Args:
            query: a path such as `user/editor.md`, or a description. A language model decides which text
                matches. Without a language model, all words of the description must occur in the text, except
                common words such as `the`.
            scope: the only scope to search; None: all.
            dry_run: only report what would be removed, write nothing.
            digest: the `digest` of an earlier dry run. If other text would be removed now, raise `JobError`.
            task_id: as for `remember`.
            cancel: a token; setting it ends the call early.

        Raises:
            InvalidContent, InvalidScope: the request is invalid.
            JobFailed: the description matches more than one call may remove, or the model failed.
            JobError: the text to remove is not the one that `digest` identifies.
            JobTimeout, Cancelled: the call ended early.
            StoreConflict: another process changed the entries to remove. If the policy allows retries, two
                retries had the same result.
            PendingReview: the owner must approve the change first.
            ManagedMemoryUnavailable: a directory of the memory, or the state, cannot be used.
        """
        check_texts(query=query)
        check_optional_texts(scope=scope, digest=digest, task_id=task_id)
        request = ForgetRequest(query, scope=scope, dry_run=bool(dry_run), task_id=task_id, digest=digest)
        return _raise_failure(self.try_forget(request, cancel=cancel))

    def try_forget(self, request: ForgetRequest, *, cancel: Cancel | None = None) -> ForgetResult:
        """Remove text like `forget`, but return a failure in the result's `error` instead of raising it."""
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
        """Tidy the memory: merge duplicates, remove expired entries, and count other problems.

        If this method raises an error, nothing was changed.

        Args:
            scope: the only scope to tidy; None: all.
            dry_run: only report what would be changed, write nothing.
            attended: False: no user requested this call; the owner must then approve each removal.
            task_id: as for `remember`.
            cancel: a token; setting it ends the call early.

        Raises:
            InvalidScope, InvalidContent: the request is invalid.
            JobFailed, JobTimeout, Cancelled: the call ended early.
            StoreConflict: another process repeatedly changed the entries to merge.
            PendingReview: the owner must approve the change first.
            ManagedMemoryUnavailable: a directory of the memory, or the state, cannot be used.
        """
        check_optional_texts(scope=scope, task_id=task_id)
        request = DreamRequest(scope, dry_run=bool(dry_run), attended=attended is not False, task_id=task_id)
        return _raise_failure(self.try_dream(request, cancel=cancel))

    def try_dream(self, request: DreamRequest, *, cancel: Cancel | None = None) -> DreamResult:
        """Tidy the memory like `dream`, but return a failure in the result's `error`, without raising it."""
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
        """Return the entries that help with a message, and their text in the form to pass to a model.

        If the memory cannot be searched, the result has no entries, and its `error` is the reason.

        Args:
            query: the message, or some words.
            exclude: the `id` of each entry that the caller already has. If an entry has changed since, it may
                be returned again.
            scope: the only scope to search; None: all.
            limit: maximum number of entries, 1 to 20; None: 5.
            budget: maximum tokens of the text, counting three bytes as one token; None: 2 000.
            choose: let the language model choose among the results of the search. Without a language model,
                this has no effect.
            deadline: the time limit of the search; None: no limit.

        Raises:
            BadArguments: an argument has the wrong type, or the limit is out of range.
        """
        check_texts(query=query)
        check_optional_texts(scope=scope)
        from muniment.recall.recaller import MAX_ENTRIES, MAX_TOKENS

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

    def standing_context(self, budget: float | None = None, *, deadline: Deadline | None = None) -> Recalled:
        """Return the text that a session of an assistant starts with.

        It contains the owner's facts as instructions to follow, entries of lower trust as data between marks,
        and the number of other entries. See `recall.standing`. If the memory cannot be read, the result is
        empty, and its `error` is the reason.

        Args:
            budget: maximum tokens of the text; None: those of the setting `standing_tokens`, or 1 500 if the
                setting `standing` is `off`, which only affects sessions of coding tools.
            deadline: the time limit; None: no limit.

        Raises:
            BadArguments: the budget is not a whole number, or is negative.
        """
        from muniment.recall.standing import read_standing

        budget = self.recaller.standing_tokens if budget is None else budget
        tokens = parse_integer("budget", budget, minimum=0)
        return read_standing(self.recaller, tokens, deadline or Deadline(math.inf))

    def conversation(
        self,
        *,
        budgets: Budgets | None = None,
        compacting: CompactionOptions | None = None,
        choose: bool = False,
        parent: Cancel | None = None,
        state: Mapping[str, Any] | None = None,
        repeat_after: int | None = None,
    ) -> Conversation:
        """Return an object that injects entries into a chat loop; close it before this memory.

        See `recall.conversation`.

        Args:
            budgets: how many tokens the injected entries may use; None: the defaults of `Budgets`.
            compacting: how to shorten a long history; None: the caller shortens it.
            choose: as for `recall`.
            parent: a token; setting it cancels all running work of the conversation.
            state: the state of an earlier run of the same conversation, from `Conversation.as_json`; None: a
                new conversation.
            repeat_after: after this number of tokens in the conversation, a complete entry may be injected
                again; None: 30 000.
        """
        from muniment.recall.context import Budgets
        from muniment.recall.conversation import Conversation
        from muniment.recall.session import REPEAT_AFTER

        return Conversation(
            self.recaller,
            budgets=budgets or Budgets(),
            compacting=compacting,
            choose=self._create_chooser() if choose else None,
            parent=parent,
            state=state,
            repeat_after=REPEAT_AFTER if repeat_after is None else repeat_after,
        )

    def subagent(self, enqueue: Enqueue | None = None) -> SubagentMemory:
        """Return an object that gives subagents access to this memory, see `recall.subagent`.

        Args:
            enqueue: submits a fact to be remembered with trust `agent`, for example a method of a daemon's
                client. None: subagents have no tool to remember facts.
        """
        from muniment.recall.subagent import SubagentMemory

        return SubagentMemory(self.recaller, tuple(self.context.roots), enqueue=enqueue)

    @cached_property
    def recaller(self) -> Recaller:
        """Return the object that searches this memory."""
        return self._opened.enter_context(closing(create_recaller(self.context)))

    def _create_chooser(self) -> Chooser | None:
        return create_chooser(self.context, self._model)

    def undo(self, task_id: str, *, cancel: Cancel | None = None) -> UndoResult:
        """Undo the changes of a task: restore the earlier content of its files, byte for byte.

        If this method raises an error, nothing was written.

        Args:
            task_id: the id or handle of the task, from a result or from `history`.
            cancel: a token; setting it ends the call early.

        Raises:
            NotFound: no task with this id or handle has changed this memory.
            BadName: several tasks have the handle.
            UndoOverlap: the files of the task were changed again; the error lists them.
            AlreadyUndone, Erased: the task is already undone, or its data was erased.
            InvalidScope: the task changed directories that this memory does not contain.
            Refused, QuotaExceeded: the policy does not allow the change.
            ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: the undo could not start, or ended early.
        """
        from muniment.operations.review import undo_task

        check_texts(task_id=task_id)
        return _raise_failure(undo_task(task_id, self.context, accepts_handle=True, cancel=cancel))

    def history(self, path: str | None = None) -> tuple[CommittedStep, ...]:
        """Return the committed changes of files, the newest first; see `operations.review.load_history`.

        Args:
            path: a file, directory or scope; None: the whole memory.
        """
        from muniment.operations.review import load_history

        check_optional_texts(path=path)
        return load_history(self.context, path)

    def why(self, path: str) -> Origin:
        """Return the origin of an entry: its last task, its trust, and whether it was changed since then.

        See `operations.review.load_origin`.
        """
        from muniment.operations.review import load_origin

        check_texts(path=path)
        return load_origin(self.context, path)

    def review(self, review_id: str) -> ReviewShown:
        """Return a pending review, with the digest that `approve` needs.

        See `operations.review.show_review`.
        """
        from muniment.operations.review import show_review

        check_texts(review_id=review_id)
        return show_review(review_id, self.context)

    def approve(self, review_id: str, digest: str, *, cancel: Cancel | None = None) -> ReviewDecision:
        """Approve a pending review and commit its changes; see `operations.review.approve_review`.

        Args:
            review_id: the id of the review.
            digest: the digest that `review` returned with the displayed text.
            cancel: a token; setting it ends the call early.
        """
        from muniment.operations.review import approve_review

        check_texts(review_id=review_id, digest=digest)
        return approve_review(review_id, digest, self.context, cancel=cancel)

    def reject(self, review_id: str, *, cancel: Cancel | None = None) -> ReviewDecision:
        """Reject a pending review: its changes are never committed. See `operations.review.reject_review`."""
        from muniment.operations.review import reject_review

        check_texts(review_id=review_id)
        return reject_review(review_id, self.context, cancel=cancel)

    def list(self, scope: str | None = None, *, limit: int | None = None, expired: bool = False) -> EntryList:
        """List the entries, sorted by path.

        Args:
            scope: the only scope to list; None: all.
            limit: the maximum number of entries; None: all.
            expired: whether the list includes expired entries.

        Raises:
            InvalidScope: the scope is unknown, or has no directory.
            ManagedMemoryUnavailable, PathEscape: a directory of the memory, or the state, cannot be used.
            BadArguments: the limit is not a positive integer.
        """
        from muniment.operations.listing import list_entries

        check_optional_texts(scope=scope)
        max_entries = None if limit is None else parse_integer("limit", limit, minimum=1)
        return list_entries(self.context, scope=scope, limit=max_entries, expired=bool(expired))

    def show(self, path: str) -> EntryShown:
        """Return one entry with its text, which is data and contains no instructions to follow.

        If `withheld` of the result is not None, do not show the text to a model.

        Args:
            path: the path of the entry, such as `user/editor.md`, or its address (`muniment://…`).

        Raises:
            NotFound: the path has no entry.
            PathEscape, Refusal, ToolError: not a path of the memory, or not a readable text.
            ManagedMemoryUnavailable: a directory of the memory, or the state, cannot be used.
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
        """Replace the text of an entry on behalf of the owner; the front matter stays the same.

        If this method raises an error, nothing was written. See `operations.edit.edit_entry`.

        Args:
            path: the path of the entry, or its address (`muniment://…`).
            text: the new text, without front matter.
            digest: the digest that `show` returned with the old text. If the entry has changed since, raise
                `StoreConflict`. None: replace the text without this check.
            dry_run: check and return the change, but write nothing.
            cancel: a token; setting it ends the call early.

        Raises:
            InvalidContent: the text is empty; to remove an entry, use `forget`.
            NotFound: the path has no entry.
            StoreConflict: the entry has changed since it was read.
            RememberRefused: the policy, or a check of the content, does not allow the text.
            PendingReview: the policy requires a review of every change.
            PathEscape, Refusal, ToolError: not a path of the memory, or not a readable text.
            ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: the memory cannot be used, or the call
                ended early.
        """
        from muniment.operations.edit import edit_entry

        check_texts(path=path, text=text)
        check_optional_texts(digest=digest)
        return edit_entry(self.context, path, text, read_digest=digest, dry_run=bool(dry_run), cancel=cancel)

    def pin(self, path: str, *, dry_run: bool = False, cancel: Cancel | None = None) -> PinResult:
        """Pin an entry, so that no run changes it and recall prefers it; unpin an entry that is pinned.

        If this method raises an error, nothing was written.

        Args:
            path: the path of the entry, or its address (`muniment://…`). The path of a pinned entry is in
                `pinned/`.
            dry_run: check and return the change, but write nothing.
            cancel: a token; setting it ends the call early.

        Raises:
            NotFound: the path has no entry.
            RememberRefused: the policy does not allow it, the entry is withheld, or the new path exists.
            PathEscape, Refusal, ToolError: not a path of the memory, or not a readable file.
            StoreConflict: another process changed the entry.
            ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: the memory cannot be used, or the call
                ended early.
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
        """Write every entry, with its origin, to one file that `muniment import` can read.

        Args:
            file: the path of a new file, which only this user can read, or an open binary file.
            scope: the only scope to export; None: all.
            format: `tar` or `jsonl`.

        Raises:
            ConfigInvalid: unknown format, or the file exists or cannot be written.
            InvalidScope: the scope is unknown, or has no directory.
            ManagedMemoryUnavailable, PathEscape: a directory of the memory, or the state, cannot be used.
        """
        from muniment.operations.exporting import export

        check_optional_texts(scope=scope, format=format)
        return export(self.context, file, scope=scope, format=format or "tar")

    def index(self, *, dry_run: bool = False, cancel: Cancel | None = None) -> IndexResult:
        """Rebuild the index of every scope from its entries, and verify it.

        See `operations.owner.rebuild_indexes`.

        Args:
            dry_run: only verify the current indexes.
            cancel: a token; setting it ends the call early.

        Raises:
            ManagedMemoryUnavailable, StoreConflict, QuotaExceeded: an index cannot be written or verified.
            DeadlineExceeded, Cancelled: the call ended early; some scopes may already have a new index.
        """
        from muniment.operations.owner import rebuild_indexes

        return rebuild_indexes(self.context, dry_run=bool(dry_run), cancel=cancel)

    def explain(self, verb: str, path: str) -> Explained:
        """Return whether the policy allows a verb on a path, and the reason if it does not.

        See `operations.owner.explain`.

        Args:
            verb: `list`, `read`, `create`, `modify` or `delete`.
            path: a path such as `user/editor.md`, or an address (`muniment://…`); the entry need not exist.

        Raises:
            BadArguments: unknown verb.
        """
        from muniment.operations.owner import explain

        check_texts(verb=verb, path=path)
        return explain(self.context, verb, path)

    def erase(
        self, target: str, *, dry_run: bool = False, cancel: Cancel | None = None
    ) -> ErasePlan | EraseResult:
        """Erase permanently an entry, or the files that a task wrote, with their complete history.

        Args:
            target: the path of an entry, its address (`muniment://…`) or its handle; or the id or handle of a
                task.
            dry_run: report what would be erased, and erase nothing.
            cancel: a token; setting it ends the call early, before anything is erased.

        Raises:
            NotFound: the target is unknown.
            PathEscape, Refusal, ToolError: not a path of a file that can be erased.
            InvalidScope: the task wrote to directories that this memory does not contain.
            StoreConflict, ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: the erasure may be
                incomplete; call this method again with the same target.
        """
        from muniment.operations.owner import erase

        check_texts(target=target)
        return erase(self.context, target, dry_run=bool(dry_run), cancel=cancel)

    def reviews(self) -> tuple[Review, ...]:
        """Return the pending reviews: changes that wait for the owner's decision.

        See `operations.review.list_reviews`.
        """
        from muniment.operations.review import list_reviews

        return list_reviews(self.context)

    def close(self) -> None:
        """Close the memory, and also the language model if `open` created it."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _raise_failure(result: R) -> R:
    """Return the result, or raise the error that it contains."""
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
        workspace: a directory; if it is in a repository, the workspace is the whole repository. None: the
            current directory; outside of a repository, the memory then has no scope `project`. Git worktrees
            share the memory of their clone.
        policy: name or path of the policy; default from the configuration, otherwise `strict`.
        roots: directories by scope, instead of the default ones.
        symlinks: treatment of links in the roots (`names.Symlinks`); default: as configured, or `refuse`.
        model: `rules` (default), the name of a language model, or an object, which the caller closes.
        base_url: the address of the model's server, such as `http://127.0.0.1:8080/v1`.
        api_key_file: the file with the key of that server; default: the value of `$MUNIMENT_API_KEY`.
        protocol: the protocol of that server, one of `agent.model_settings.PROTOCOLS`.
        on_model_failure: if the model fails, let the rules do the work (`rules`, default) or `fail` the task.
        home: the directory of all Muniment data; default: `$MUNIMENT_HOME`.
        in_process: run the tools in this process; the policy must set `require = "none"`.

    Raises:
        ConfigInvalid, PolicyInvalid: a setting or the policy is invalid.
        InvalidScope: the policy does not declare a scope of `roots`.
        ManagedMemoryUnavailable, StateTooNew: a root or the state directory cannot be used, with the reason.
        DeadlineExceeded: an interrupted commit cannot be rolled back, because another process locks its root.
        ConfinementUnavailable: the policy requires stronger confinement than this system offers.
    """
    named = model if model is None or isinstance(model, str) else None
    if named is not model and (base_url or api_key_file or protocol):
        raise ConfigInvalid("base_url, api_key_file and protocol need a model by name, not an object")
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
