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
from muniment.kernel.cancel import Patience
from muniment.kernel.names import Trust
from muniment.names import HOME_VARIABLE, MAX_RECALLED, ContextMode
from muniment.opening import chooser_of, find_place, open_model, recaller_of
from muniment.operations.place import Place
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
from muniment.types.arguments import check_optional_texts, check_texts, parse_trust, parse_whole_number

if TYPE_CHECKING:
    from muniment.recall.conversation import Compacting, Conversation
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
    """An open memory: a policy over bound roots. Threads may share one; close it when done.

    Build one with `open`. Elsewhere than on Linux it is read; a method that writes raises there
    `PlatformUnsupported`, unless the policy says `require = "none"`.

    Attributes:
        place: the policy and the bound roots.
    """

    def __init__(self, place: Place, model: Model, opened: ExitStack) -> None:
        self.place, self._model, self._opened = place, model, opened

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
        """File a fact.

        Args:
            content: the fact; trimmed, then 1 to 65 536 bytes of UTF-8 without NUL.
            scope: the one scope that may be written; None: the agent chooses.
            context: `workspace`, or `clean`: the agent sees nothing of the memory.
            trust: who the fact comes from: `owner`, `workspace`, `agent` or `external`.
            dry_run: judge and report, commit nothing.
            task_id: makes the same request, made twice, be carried out once; see `RememberRequest`.
            detail: the result's `detail` holds the model's last words, fenced as data.
            expires: the last day on which it is shown, or in how many days, such as `30d`; None: it is never
                hidden, whatever its words say ("until 2026-12-31").
            cancel: ends the run early.
            observe: told of every tool call.

        Raises:
            InvalidContent, InvalidScope: it cannot be carried out.
            RememberPathEscape: the agent tried to leave the memory; nothing was committed.
            JobError: the agent ended without effect.
            JobTimeout, JobFailed, Cancelled: so did the run.
            StoreConflict: someone else changed what the run rested on; where the policy retries, twice.
            PendingReview: the owner has to approve it first; nothing was committed.
            ManagedMemoryUnavailable: a root cannot be used, with the reason.
            BadArguments: an argument has the wrong type, or `trust` is another word.
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
        return _without_failure(self.try_remember(request, cancel=cancel, observe=observe))

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
            request: what to remember.
            cancel: ends the run early.
            observe: told of every tool call.
            witness: told of every message between model and run, as a transcript is. It must not raise.
        """
        from muniment.operations.remember import remember

        return remember(request, self.place, self._model, cancel=cancel, observe=observe, witness=witness)

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
        """Remove an entry by its path, or what a description means, be it an item of a list or a paragraph.

        Args:
            query: a path such as `user/editor.md`, or a description. A language model says what it means;
                without one all its words must be there, but for those that say nothing, such as `the`.
            scope: where alone to look; None: everywhere.
            dry_run: only say what would go, write nothing.
            digest: of the result of a dry run: if something else would go now, nothing is removed.
            task_id: as of `remember`.
            cancel: ends it early.

        Raises:
            InvalidContent, InvalidScope: the request cannot be carried out.
            JobFailed: more is meant than one forget may remove, or the model failed.
            JobError: what would go is not what the digest names.
            JobTimeout, Cancelled: it ended before anything was written.
            StoreConflict: someone else changed what was to be removed; where the policy retries, twice.
            PendingReview: the owner has to approve it first.
            ManagedMemoryUnavailable: a root or the state cannot be used. In all cases nothing was removed.
        """
        check_texts(query=query)
        check_optional_texts(scope=scope, digest=digest, task_id=task_id)
        request = ForgetRequest(query, scope=scope, dry_run=bool(dry_run), task_id=task_id, digest=digest)
        return _without_failure(self.try_forget(request, cancel=cancel))

    def try_forget(self, request: ForgetRequest, *, cancel: Cancel | None = None) -> ForgetResult:
        """Forget as `forget` does, and return a failure in the result's `error` instead of raising it."""
        from muniment.operations.forget import forget

        return forget(request, self.place, self._model, cancel=cancel)

    def dream(
        self,
        *,
        scope: str | None = None,
        dry_run: bool = False,
        attended: bool | None = True,
        task_id: str | None = None,
        cancel: Cancel | None = None,
    ) -> DreamResult:
        """Tidy the memory: merge what says the same, remove what has expired, count the rest.

        Args:
            scope: where alone; None: everywhere.
            dry_run: only say what would be done, write nothing.
            attended: False: nobody has asked for this dream, and what it would remove waits for the owner.
            task_id: as of `remember`.
            cancel: ends it early.

        Raises:
            InvalidScope, InvalidContent: the request cannot be carried out.
            JobFailed, JobTimeout, Cancelled: it ended before anything was written.
            StoreConflict: someone else kept changing what was to be merged.
            PendingReview: the owner has to approve it first.
            ManagedMemoryUnavailable: a root or the state cannot be used. In all cases nothing was changed.
        """
        check_optional_texts(scope=scope, task_id=task_id)
        request = DreamRequest(scope, dry_run=bool(dry_run), attended=attended is not False, task_id=task_id)
        return _without_failure(self.try_dream(request, cancel=cancel))

    def try_dream(self, request: DreamRequest, *, cancel: Cancel | None = None) -> DreamResult:
        """Tidy as `dream` does, and return a failure in the result's `error` instead of raising it."""
        from muniment.operations.dream import dream

        return dream(request, self.place, self._model, cancel=cancel)

    def recall(
        self,
        query: str,
        *,
        exclude: Iterable[str] | None = (),
        scope: str | None = None,
        limit: float | None = None,
        budget: float | None = None,
        choose: bool = False,
        patience: Patience | None = None,
    ) -> Recalled:
        """What helps with a message: entries, and a text of them to be put before a model.

        Do not raise if the memory fails: the result is empty then and has the `error`.

        Args:
            query: the message, or some words.
            exclude: ids of entries that were shown already; one that was changed since may come again.
            scope: where alone to look; None: everywhere.
            limit: entries at most, 1 to 20; None: 5.
            budget: tokens of the text at most, a token being three bytes; None: 2 000.
            choose: let the language model, if there is one, pick among what the search finds.
            patience: until when to look; None: however long it takes.

        Raises:
            BadArguments: an argument has the wrong type, or the limit is out of range.
        """
        check_texts(query=query)
        check_optional_texts(scope=scope)
        limit = MAX_ENTRIES if limit is None else limit
        budget = MAX_TOKENS if budget is None else budget
        most = parse_whole_number("limit", limit, least=1, most=MAX_RECALLED)
        tokens = parse_whole_number("budget", budget, least=0)
        if not query.strip():
            return Recalled(error=InvalidContent("the query is empty: say what to recall"))
        return self.recaller.recall(
            query,
            exclude=self.recaller.keys_of(exclude or ()),
            scopes=None if scope is None else [scope],
            limit=most,
            budget=tokens,
            choose=self._chooser() if choose else None,
            patience=patience,
            needs_entry=True,
        )

    def conversation(
        self,
        *,
        budgets: Budgets = Budgets(),  # noqa: B008  frozen
        compacting: Compacting | None = None,
        choose: bool = False,
        parent: Cancel | None = None,
        state: Mapping[str, Any] | None = None,
        repeat_after: int | None = None,
    ) -> Conversation:
        """The memory in a chat loop, see `recall.conversation`; close it before this.

        Args:
            budgets: how many tokens the memory may take.
            compacting: how to keep the history small; None: the host does it.
            choose: as of `recall`.
            parent: ends all that runs once cancelled.
            state: of an earlier run of the same conversation, from its `as_json`.
            repeat_after: tokens of the conversation behind which a memory that was told whole may be told
                again; None: 30 000.
        """
        from muniment.recall.conversation import Conversation
        from muniment.recall.session import REPEAT_AFTER

        return Conversation(
            self.recaller,
            budgets=budgets,
            compacting=compacting,
            choose=self._chooser() if choose else None,
            parent=parent,
            state=state,
            repeat_after=REPEAT_AFTER if repeat_after is None else repeat_after,
        )

    def subagent(self, enqueue: Enqueue | None = None) -> SubagentMemory:
        """The memory of some subagents, see `recall.subagent`.

        Args:
            enqueue: what hands in a fact to be remembered with trust `agent`, such as a daemon's client;
                None: they have no tool for that.
        """
        return SubagentMemory(self.recaller, tuple(self.place.roots), enqueue=enqueue)

    @cached_property
    def recaller(self) -> Recaller:
        """What recalls from this memory."""
        return self._opened.enter_context(closing(recaller_of(self.place)))

    def _chooser(self) -> Chooser | None:
        return chooser_of(self.place, self._model)

    def undo(self, task_id: str, *, cancel: Cancel | None = None) -> UndoResult:
        """Take back what a task did: its files are again what they were, byte for byte.

        Args:
            task_id: as results and `history` have it.
            cancel: ends it early.

        Raises:
            NotFound: no such task has changed this memory.
            UndoOverlap: its files were changed since; the error names them. Nothing was written.
            AlreadyUndone, Erased: there is nothing to take back, or nothing to take it from.
            InvalidScope: the task changed other directories.
            Refused, QuotaExceeded: the policy does not allow it.
            ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: nothing was written.
        """
        from muniment.operations.review import undo

        check_texts(task_id=task_id)
        return _without_failure(undo(task_id, self.place, cancel=cancel))

    def history(self, path: str | None = None) -> tuple[CommittedStep, ...]:
        """What was committed, the newest first; see `operations.review.history_of`."""
        from muniment.operations.review import history_of

        check_optional_texts(path=path)
        return history_of(self.place, path)

    def why(self, path: str) -> Origin:
        """Say where a file comes from, and if it still is what was committed: `operations.review.why_of`."""
        from muniment.operations.review import why_of

        check_texts(path=path)
        return why_of(self.place, path)

    def review(self, review_id: str) -> ReviewShown:
        """A change-set that waits, with the digest that `approve` takes; see `operations.review.show`."""
        from muniment.operations.review import show

        check_texts(review_id=review_id)
        return show(review_id, self.place)

    def approve(self, review_id: str, digest: str, *, cancel: Cancel | None = None) -> ReviewDecision:
        """Commit a waiting change-set that still is what `review` showed; see `operations.review.approve`."""
        from muniment.operations.review import approve

        check_texts(review_id=review_id, digest=digest)
        return approve(review_id, digest, self.place, cancel=cancel)

    def reject(self, review_id: str, *, cancel: Cancel | None = None) -> ReviewDecision:
        """Decide that a change-set is never committed; see `operations.review.reject`."""
        from muniment.operations.review import reject

        check_texts(review_id=review_id)
        return reject(review_id, self.place, cancel=cancel)

    def list(self, scope: str | None = None, *, limit: int | None = None, expired: bool = False) -> EntryList:
        """List the entries, sorted by path.

        Args:
            scope: the only scope to list; None: all.
            limit: the most entries to list; None: all.
            expired: list expired entries too.

        Raises:
            InvalidScope: no such scope is bound.
            ManagedMemoryUnavailable, PathEscape: a root or the state cannot be used.
            BadArguments: the limit is not a whole number from 1 on.
        """
        from muniment.operations.listing import list_entries

        check_optional_texts(scope=scope)
        most = None if limit is None else parse_whole_number("limit", limit, least=1)
        return list_entries(self.place, scope=scope, limit=most, expired=bool(expired))

    def show(self, path: str) -> EntryShown:
        """Show one entry: its text is data, and withheld from models if `withheld` is not None.

        Args:
            path: of the entry, such as `user/editor.md`, or its address (`muniment://…`).

        Raises:
            NotFound: no entry is there.
            PathEscape, Refusal, ToolError: not a path of the memory, or not a readable text.
            ManagedMemoryUnavailable: a root or the state cannot be used.
        """
        from muniment.operations.listing import show

        check_texts(path=path)
        return show(self.place, path)

    def edit(
        self,
        path: str,
        text: str,
        *,
        digest: str | None = None,
        dry_run: bool = False,
        cancel: Cancel | None = None,
    ) -> EditResult:
        """Give an entry another text, as its owner; its front matter stays. See `operations.edit.edit`.

        Args:
            path: of the entry, or its address.
            text: the new text, without front matter.
            digest: that `show` returned with the old text; None: replace whatever is there now.
            dry_run: judge and report, commit nothing.
            cancel: ends it early.

        Raises:
            InvalidContent: the text is empty; to remove an entry, use `forget`.
            NotFound: no entry is there.
            StoreConflict: the entry changed since `digest`.
            RememberRefused: a gate or the policy does not allow it.
            PendingReview: the policy requires a review of every change.
            PathEscape, Refusal, ToolError: not a path of the memory, or not a readable text.
            ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: nothing was written.
        """
        from muniment.operations.edit import edit

        check_texts(path=path, text=text)
        check_optional_texts(digest=digest)
        return edit(self.place, path, text, read_digest=digest, dry_run=bool(dry_run), cancel=cancel)

    def pin(self, path: str, *, dry_run: bool = False, cancel: Cancel | None = None) -> PinResult:
        """Pin an entry, so that no run changes it and recall looks at it first; unpin a pinned one.

        Args:
            path: of the entry, or its address; of a pinned one, the path in `pinned/`.
            dry_run: judge and report, commit nothing.
            cancel: ends it early.

        Raises:
            NotFound: no entry is there.
            RememberRefused: the policy does not allow it, the entry is withheld, or the new path is taken.
            PathEscape, Refusal, ToolError: not a path of the memory, or not a readable file.
            ManagedMemoryUnavailable, DeadlineExceeded, Cancelled, StoreConflict: nothing was written.
        """
        from muniment.operations.edit import pin

        check_texts(path=path)
        return pin(self.place, path, dry_run=bool(dry_run), cancel=cancel)

    def export(
        self,
        file: str | PathLike[str] | IO[bytes],
        *,
        scope: str | None = None,
        format: str | None = "tar",  # noqa: A002  as the command names it
    ) -> ExportResult:
        """Write every entry, with its origin, to one file that an import reads.

        Args:
            file: the path of a new file, which this user alone can read, or an open binary file.
            scope: the only scope to export; None: all.
            format: `tar` or `jsonl`.

        Raises:
            ConfigInvalid: unknown format, or the file exists or cannot be written.
            InvalidScope: no such scope is bound.
            ManagedMemoryUnavailable, PathEscape: a root or the state cannot be used.
        """
        from muniment.operations.exporting import export

        check_optional_texts(scope=scope, format=format)
        return export(self.place, file, scope=scope, format=format or "tar")

    def index(self, *, dry_run: bool = False, cancel: Cancel | None = None) -> IndexResult:
        """Write the indexes anew from the entries, and verify them; see `operations.owner.index`.

        Args:
            dry_run: only verify the indexes as they are.
            cancel: ends it early.

        Raises:
            ManagedMemoryUnavailable, StoreConflict, QuotaExceeded: an index cannot be written or verified.
            DeadlineExceeded, Cancelled: before the next index was written.
        """
        from muniment.operations.owner import index

        return index(self.place, dry_run=bool(dry_run), cancel=cancel)

    def explain(self, verb: str, path: str) -> Explained:
        """Explain the decision of the policy about a verb on a path; see `operations.owner.explain`.

        Args:
            verb: `list`, `read`, `create`, `modify` or `delete`.
            path: such as `user/editor.md`, or an address; no entry needs to be there.

        Raises:
            BadArguments: no such verb.
        """
        from muniment.operations.owner import explain

        check_texts(verb=verb, path=path)
        return explain(self.place, verb, path)

    def erase(
        self, target: str, *, dry_run: bool = False, cancel: Cancel | None = None
    ) -> ErasePlan | EraseResult:
        """Erase an entry, or the files that a task wrote, with the whole history, for good.

        Args:
            target: the path of an entry, its address, or the id of a task.
            dry_run: report what would be erased, and erase nothing.
            cancel: ends it early, before anything is erased.

        Raises:
            NotFound: nothing is known of it.
            PathEscape, Refusal, ToolError: not a path of a file that can be erased.
            InvalidScope: the task wrote to directories that are not bound here.
            StoreConflict, ManagedMemoryUnavailable, DeadlineExceeded, Cancelled: run it again.
        """
        from muniment.operations.owner import erase

        check_texts(target=target)
        return erase(self.place, target, dry_run=bool(dry_run), cancel=cancel)

    def reviews(self) -> tuple[Review, ...]:
        """List the change-sets that wait for the owner; see `operations.review.list_reviews`."""
        from muniment.operations.review import list_reviews

        return list_reviews(self.place)

    def close(self) -> None:
        """Give the roots back, and the language model if `open` built it."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _without_failure(result: R) -> R:
    """Return a result, or raise its error."""
    if result.error is not None:
        raise result.error
    return result


def _start_zygote() -> None:
    from muniment.sandbox.fence.pool import shared_zygote

    shared_zygote().start()


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
        workspace: a directory in it; it is the nearest ancestor with `.git`, else that itself. None: look for
            one from here; without `.git` there is no `project`. Worktrees share that of their clone.
        policy: name or path; default from the configuration, else `strict`.
        roots: directories to bind to scopes instead of the default ones.
        symlinks: links beneath the roots, `refuse` or `beneath`; default as configured, else `refuse`.
        model: `rules` (default), the name of a language model, or an object, which stays the caller's.
        base_url: where the language model answers, such as `http://127.0.0.1:8080/v1`.
        api_key_file: where its key stands, read once; default `$MUNIMENT_API_KEY`, which stays there.
        protocol: how to speak with it, one of `agent.model.PROTOCOLS`.
        on_model_failure: if the model fails, let the rules do the work (`rules`, default) or `fail` the task.
        home: instead of `$MUNIMENT_HOME`.
        in_process: run the tools in this process; the policy must say `require = "none"`.

    Raises:
        ConfigInvalid: a setting cannot be used.
        PolicyInvalid: the policy does not load.
        InvalidScope: a root is bound to a scope that the policy does not declare.
        ManagedMemoryUnavailable, StateTooNew: a root or the state directory cannot be used, with the reason.
        DeadlineExceeded: an interrupted commit cannot be taken back, since somebody holds its root's lock.
        ConfinementUnavailable: the policy requires more than this system offers.
    """
    named = model if model is None or isinstance(model, str) else None
    if named is not model and (base_url or api_key_file or protocol):
        raise ConfigInvalid("base_url, api_key_file and protocol go with a model's name, not with an object")
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
        place = opened.enter_context(closing(find_place(settings, workspace, in_process=in_process)))
        return Memory(place, model, opened.pop_all())
