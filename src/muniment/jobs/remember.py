"""Remember: a fact goes in, a headless agent files it, the broker judges and commits.

1. The request is checked: content, scope, context mode; a secret in it ends it, or is taken out of it.
2. The run's policy is the operator's, met with `clean` if asked for and with "writes only in this
   scope" if one is given: a request can only narrow.
3. A run: a worker, a model, at most six turns (`agent/runner.py`).
4. `final_text` with changes is committed; every other end commits nothing (`_raise_unless_final`).
5. If what the run rested on changed meanwhile, the run is repeated once within the same budget.
6. What is committed, or was known already, holds the fact (`content/provenance.py`). Where what a model
   proposed does not, or would wait for review in the place of somebody's words, the rules file the fact
   verbatim. They do so as well where a model failed, unless the operator wants that to be a failure
   (`Place.on_model_failure`). The result says so.

What happened is read from the committed change-set, never from the model's words: whatever a result, an error
or a record says is code's sentence. Only who asks for it is told the model's last words, as data.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any, Final

from muniment import events
from muniment.agent.chat import IndexExcerpt
from muniment.agent.filing import RuleWriter, read
from muniment.agent.model import Brief, Budget, Model, Related, ScopeBrief
from muniment.agent.runner import RUN_NAME, Observer, Runner, RunOutcome, Witness
from muniment.agent.updates import is_chatter, takes_the_place
from muniment.cancelling import Cancel
from muniment.content.admission import own, quoted
from muniment.content.entry import EXPIRY_KEY, parse
from muniment.content.expiry import expiry_in, read_expiry
from muniment.content.frontmatter import written
from muniment.content.gates import decode, encode, on_one_line
from muniment.content.provenance import Whose, holds, names, separate_items, stands_in, whose
from muniment.content.secrets import find_secret, redacted
from muniment.content.titles import slug, titles_of
from muniment.content.words import comparable, is_running, sayings
from muniment.errors import (
    Cancelled,
    InvalidContextMode,
    InvalidExpiry,
    MunimentError,
    PathEscape,
    Refusal,
    RememberFailed,
    RememberNoUpdate,
    RememberPathEscape,
    RememberRefused,
    RememberScopeMismatch,
    RememberTimeout,
    StoreConflict,
    ToolError,
    WorkerLost,
)
from muniment.jobs.place import Place
from muniment.jobs.related import gone_by, related_to
from muniment.jobs.request import (
    RememberRequest,
    RememberResult,
    Status,
    as_job_error,
    check_content,
    check_task_id,
    done_before,
    id_of_task,
    put_on_record,
    spent,
    traced,
)
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, digest
from muniment.kernel.decide import Judge, Policy
from muniment.kernel.names import INDEX_NAME, RelPath, Scope, Trust, Verb, joined
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.names import ContextMode, Held
from muniment.policy.load import load_policy
from muniment.policy.tables import meet, narrow_writes
from muniment.sandbox import Sandbox
from muniment.store.audit import described, timestamp
from muniment.store.commit import Commit
from muniment.store.index import excerpt, is_index_path
from muniment.store.ledger import SUPERSEDES, ChangeRow, CommitRow, Run, root_key
from muniment.store.trust import NO_RELATIONS, SEE, Ruling, TrustRule, by_words, stamp, trust_at
from muniment.store.upkeep import expired_in, is_as_written, trusted_less, trusts_shown
from muniment.tools.calls import WRITING_TOOLS, Outcome, stopped

# -- filing ------------------------------------------------------------------------------------------
#
# How what a remember proposed is committed: under which name, with which trust, stamped how.

KIND: Final = "remember"

FOLDER_WORDS: Final = 3
NAME_WORDS: Final = 12
"""Words that a run may give a new folder or file; more of them are a sentence."""

KEYWORDS: Final = 12
KEYWORD_CHARS: Final = 40
"""Keywords of a run that are looked at, and how long they may be."""

_LONE_WORD: Final = re.compile(r"[^\W_](?:[^\W_A-Z]{0,14}|[A-Z]{0,14})")
_RUNNING_CHARS: Final = 4
"""Characters of a lone word in a script without spaces, where more of them are a sentence."""

CHATTER: Final = "nothing to keep: it is only thanks, a greeting, or a yes or no"

_NUMBERED: Final = re.compile(r"(?:-[0-9]{1,3}|-[0-9a-f]{8})?")
_WITH_DIGEST: Final = re.compile(r"-[0-9a-f]{8}")
_COUNTED: Final = re.compile(r"-[0-9]{1,2}\Z")
_BETWEEN_WORDS: Final = re.compile(r"[-_ .]+")


class NotTheirWords(Exception):
    """A run would put words of its own in the place of somebody's."""


def _filed(
    run: Run,
    words: _FactWords,
    box: Sandbox,
    place: Place,
    indexes: Collection[Scope],
    *,
    holds_up: bool,
    dry_run: bool,
    accept: Callable[[ChangeSet], None],
) -> Commit:
    """Commit what a run proposed, in the words of the fact as far as it can be told.

    Args:
        run: that proposed it.
        words: of what was to be remembered.
        box: where it was proposed.
        place: of the memory.
        indexes: the run was shown those of these scopes.
        holds_up: where a model's words would wait for review in the place of somebody's, let them wait;
            else this raises `NotTheirWords`.
        dry_run: write nothing.
        accept: as of `Sandbox.commit`.

    Raises:
        NotTheirWords: see above.
        Whatever `Sandbox.commit` does.
    """
    rule = by_words(words.fact, run.trust, _least_shown(place, box, words, indexes), takes_the_place)
    replaced: dict[str, CanonicalPath] = {}

    def stamped(after: bytes, before: bytes | None, path: CanonicalPath, by: Run) -> bytes:
        of = words.of(after)
        labelled = of.labelled(after, before)
        if before is not None and of.supersedes(labelled, before):
            if replaced.setdefault(of.fact, path) != path:
                raise NotTheirWords  # What one fact says is no more than one entry's.
            return stamp(labelled, before, path, by, relations={SUPERSEDES: digest(before)})
        near = None if before is not None else of.near(labelled, path.scope)
        return stamp(labelled, before, path, by, relations=NO_RELATIONS if near is None else {SEE: near})

    return box.commit(
        run,
        trust=rule if holds_up else _not_in_place_of_others(rule),
        stamp=stamped,
        rename=words.rename,
        dry_run=dry_run,
        accept=accept,
    )


class _FactWords:
    """What a fact's own words make of a file: labels, names and relations; anything else gives way to code's.

    Args:
        fact: where secrets are taken out instead of refused, without them.
        related: entries that are like it.
        ends: the day on which it is no longer told; of an item of a list of facts, by that. None: never.
    """

    def __init__(self, fact: str, related: Sequence[Related], ends: Callable[[str], date | None]) -> None:
        self.fact = fact
        self._related, self._ends = related, ends
        self._items = {comparable(each): _FactWords(each, related, ends) for each in separate_items(fact)}
        self._topic = read(fact).topic
        self._titles = titles_of(fact)
        self._stem = slug(self._titles.name, fact)

    def of(self, content: bytes) -> _FactWords:
        """Those of the fact in a list that a file says, else those of all."""
        return self._items.get(comparable(_body(content)), self)

    def rename(self, change: FileChange, listed: Callable[[str], Collection[str] | None]) -> RelPath:
        """Where a new file goes. One word of its path may be anybody's: it says nothing by itself."""
        return self.of(change.after or b"")._renamed(change.path, listed)  # noqa: SLF001  of this class

    def _renamed(self, path: CanonicalPath, listed: Callable[[str], Collection[str] | None]) -> RelPath:
        *folders, name = path.rel.split("/")
        stem, kept, spare = name.removesuffix(FILE_SUFFIX), "", 1
        if _WITH_DIGEST.fullmatch(stem.removeprefix(self._stem)):
            stem = self._stem  # A run cannot see which numbers are free.
        for folder in folders:
            if folder != self._topic and not self._names(folder, FOLDER_WORDS):
                spare -= 1
                if folder not in (listed(kept) or ()) and (spare < 0 or not _is_lone_word(folder)):
                    kept = self._topic
                    break
            kept = joined(kept, folder)
        if not self._names(stem, NAME_WORDS) and not (spare > 0 and _is_lone_word(_COUNTED.sub("", stem))):
            stem = self._stem
        return RelPath(joined(kept, stem + FILE_SUFFIX))

    def labelled(self, after: bytes, before: bytes | None) -> bytes:
        """A file with front matter that is the fact's; of one that it changes, with what that had.

        Words that are not the fact's get a title that is made of them, and are trusted like an agent's. When
        an entry ends people say: by a run it could only hide what they wanted to be told. So what ends is an
        entry of its own.

        Raises:
            NotTheirWords: it would be put into one that lasts, or take its place.
        """
        entry, old = parse(decode(after)), None if before is None else parse(before)
        by, ends = self._whose(after, None if old is None else old.body), self._ends(entry.body)
        is_other = old is not None and (old.expires and old.expires.date()) != ends
        if is_other and by is not Whose.SAME and (ends is not None or by is Whose.FACT):
            raise NotTheirWords
        if old is not None and by is not Whose.FACT:
            kept = (before or b"").decode("utf-8", "replace")
            return encode((kept.removesuffix(old.body) or "---\n---\n") + entry.body)
        labels = {"name": entry.name, "description": entry.description}
        said = {key: label for key, label in labels.items() if label is not None and self._says(label)}
        if by is Whose.FACT:
            said = {"name": self._titles.name, "description": self._titles.description} | said
        lines = [f"{key}: {written(label)}" for key, label in said.items()]
        lines += [] if ends is None else [f"{EXPIRY_KEY}: {ends}"]
        lines += [f"type: {kind}" for kind in (entry.type or (old and old.type),) if kind]
        if words := [
            written(word)
            for word in entry.keywords[:KEYWORDS]
            if len(word) <= KEYWORD_CHARS and self._says(word)
        ]:
            lines.append(f"keywords: [{', '.join(words)}]")
        return encode("\n".join(["---", *lines, "---", entry.body]))

    def supersedes(self, after: bytes, before: bytes) -> bool:
        """Whether a file says the fact instead of what it said."""
        return self._whose(after, parse(before).body) is Whose.FACT

    def near(self, after: bytes, scope: Scope) -> str | None:
        """The id of an entry of a scope that is about the same as a new one there; None: there is none."""
        body = parse(after).body
        ours = (each for each in self._related if each.id and each.path.scope == scope)
        return next((each.id for each in ours if takes_the_place(body, each.body)), None)

    def shown(self) -> set[CanonicalPath]:
        """The entries that the model was shown before it was asked anything."""
        return {each.path for each in self._related if each.is_shown}

    def _whose(self, after: bytes, old: str | None) -> Whose:
        return whose(parse(after).body, self.fact, old, takes_the_place)

    def _says(self, label: str) -> bool:
        return stands_in(label, self.fact)

    def _names(self, name: str, most: int) -> bool:
        """Whether a name is of at most so many words of the fact, or code's with a number."""
        if name.startswith(self._stem) and _NUMBERED.fullmatch(name[len(self._stem) :]):
            return True
        words = _BETWEEN_WORDS.sub(" ", _COUNTED.sub("", name))
        return len(words.split()) <= most and names(words, self.fact)


def _not_in_place_of_others(rule: TrustRule) -> TrustRule:
    def ruled(draft: FileChange, held: Trust | None) -> Ruling:
        ruling = rule(draft, held)
        if ruling.note is not None and held is not None and not ruling.trust.satisfies(held):
            raise NotTheirWords
        return ruling

    return ruled


def _is_lone_word(name: str) -> bool:
    is_short = len(name) <= _RUNNING_CHARS or not any(map(is_running, name.casefold()))
    return is_short and _LONE_WORD.fullmatch(name) is not None


def _least_shown(
    place: Place, box: Sandbox, words: _FactWords, indexes: Collection[Scope]
) -> Callable[[], Trust | None]:
    """Asks for the least trust of all that a run was shown; None: nothing."""

    def least() -> Trust | None:
        made = {change.path for change in box.changes() if change.kind == "create"}
        seen = box.seen | words.shown()
        trusts = [trust for path in seen if (trust := _trust_at(place, box, path, made)) is not None]
        for scope in indexes:
            trusts += trusts_shown(place.state, place.roots[scope], place.policy)
        return trusts[0].capped(*trusts[1:]) if trusts else None

    return least


def _trust_at(place: Place, box: Sandbox, path: CanonicalPath, made: Collection[str]) -> Trust | None:
    """The trust of what stands at a path that was shown; None where the run had written that itself."""
    try:
        found = box.without_links(path)
        root = place.roots[found.scope]
        content = root.root.read_bytes(found)
    except (PathEscape, Refusal, ToolError):
        # It went since: nobody can say any more who it came from.
        return None if path.text in made else Trust.EXTERNAL
    return trust_at(place.state, root_key(place.state, root), found, content, place.policy)


# -- remember ----------------------------------------------------------------------------------------


class _Followed(Exception):
    """A model came to nothing that holds the fact, and the rules follow it. The message says why."""


@dataclass(slots=True)
class _RememberTask:
    """What stays the same over the attempts of one request."""

    request: RememberRequest
    place: Place
    model: Model
    observe: Observer
    witness: Witness
    cancel: Cancel
    id: str
    held: Held | None = None
    ends: date | None = None
    notes: list[str] = field(default_factory=list)
    decided_by: str = ""

    @property
    def is_by_rules(self) -> bool:
        return isinstance(self.model, RuleWriter)

    def require_fact(self, fact: str, texts: Collection[str]) -> None:
        """Step 6: raise where what was written or named does not hold `fact`; the rules may hold a part."""
        if not self.is_by_rules:
            if not holds(tuple(texts), fact):
                raise _Followed("what it wrote or named does not hold the fact")
            return
        items = set(map(comparable, separate_items(fact)))
        is_whole = any(text.strip() == fact.strip() for text in texts)
        if not is_whole and not items <= set().union(*map(sayings, texts)):
            raise RememberFailed("a part of the list could not be filed; nothing was written")

    def failed(self, error: MunimentError, why: str) -> Exception:
        """What to raise for a model that came to nothing."""
        is_final = self.is_by_rules or self.place.on_model_failure == "fail"
        return error if is_final else _Followed(why)

    def end_of(self, text: str) -> date | None:
        """When a text ends: of a fact in a list of such by its own words, unless the caller said when."""
        content = self.request.content
        content = redacted(content) if self.place.policy.content.secrets == "redact" else content
        if self.request.expires is None and comparable(text) in map(comparable, separate_items(content)):
            return expiry_in(text.strip(), datetime.now(UTC).date())
        return self.ends

    def lasts(self, content: bytes) -> bool:
        """Whether an entry is told as long as the fact, or what it says of a list of facts."""
        entry, items = parse(content), separate_items(self.request.content)
        said = [item for item in items if comparable(item) in sayings(entry.body)]
        return all(entry.lasts(self.end_of(each)) for each in said or [self.request.content])

    def not_in_its_place(self) -> Exception:
        """What to raise where something would take an entry's place that may not."""
        if self.is_by_rules:
            return RememberRefused("refused: what ends is an entry of its own")
        return _Followed("it would have put its own words in the place of an entry")

    def result(self, budget: Budget | None, **more: Any) -> RememberResult:
        more["notes"] = (*self.notes, *more.get("notes", ()))
        return RememberResult(
            task_id=self.id,
            enforcement=self.held.enforcement if self.held else None,
            missing_layers=self.held.missing if self.held else (),
            decided_by=self.decided_by or self.model.name,
            policy=self.place.policy.label,
            **spent(budget),
            **{"summary": "", "files_touched": (), "touched_scopes": (), **more},
        )


@traced(KIND)
def remember(
    request: RememberRequest,
    place: Place,
    model: Model,
    *,
    cancel: Cancel | None = None,
    observe: Observer = lambda _: None,
    witness: Witness = lambda _: None,
) -> RememberResult:
    """Carry out one request; what goes wrong is in the result's `error`, never raised.

    Args:
        request: what to remember, from an untrusted caller.
        place: the policy and the roots; they stay the caller's.
        model: what decides where the fact belongs.
        cancel: ends the run early; once the commit has begun to write it runs to its end.
        observe: told of every tool call.
        witness: told of every message between model and run. It must not raise.
    """
    with ExitStack() as stack:
        token = stack.enter_context(Cancel()) if cancel is None else cancel
        task = _RememberTask(
            request, place, model, observe, witness, token, id_of_task(KIND, request.task_id)
        )
        budget: Budget | None = None
        try:
            _refuse_secret(request, place)
            fact = check_content(request.content)
            check_task_id(task.id)
            done = None if request.dry_run else done_before(place, KIND, task.id, place.state.keyed(fact))
            if done is not None:
                return _again(task, done)
            brief, policy = _prepare(task, fact)
            if is_chatter(fact):
                return task.result(None, status="completed", summary=CHATTER, unchanged=True)
            budget = Budget(policy.limits, token, place.clock)
            result = _carried_out(task, brief, policy, budget)
        except MunimentError as error:
            status: Status = "cancelled" if isinstance(error, Cancelled) else "failed"
            result = task.result(budget, status=status, error=_as_job_error(error, place))
        if result.error is not None:
            put_on_record(
                place.state,
                KIND,
                task.id,
                result.error,
                decided_by=result.decided_by,
                policy=result.policy,
            )
    _log(result)
    return result


def _refuse_secret(request: RememberRequest, place: Place) -> None:
    """Refuse what was queued without its secret, unless the policy is content with the rest."""
    if request.secret is not None and (not request.content or place.policy.content.secrets != "redact"):
        raise RememberRefused("refused: the text holds what looks like a secret; leave it out")


def _prepare(task: _RememberTask, fact: str) -> tuple[Brief, Policy]:
    """Step 1, but for the fact itself, and step 2."""
    request, place = task.request, task.place
    if request.context not in list(ContextMode):
        known = ", ".join(ContextMode)
        raise InvalidContextMode(f"there is no context mode {request.context!r}; there are {known}")
    context = ContextMode(request.context)
    task.ends = _end_of(request, fact)
    policy, chosen = place.policy, place.chosen(request.scope)
    if request.scope is not None:
        policy = narrow_writes(policy, chosen[0])
    if context is ContextMode.CLEAN:
        policy = meet(policy, load_policy("clean"))
    judge = Judge(policy)
    scopes = tuple(
        ScopeBrief(scope, writable=judge.reaches(Verb.CREATE, scope))
        for scope in place.roots
        if scope in policy.scopes
    )
    return Brief(_without_secrets(fact, policy), scopes, context, ends=task.ends), policy


def _without_secrets(fact: str, policy: Policy) -> str:
    """What a model may be told of a fact: what it has not seen it puts into no name and no title."""
    if policy.content.secrets == "redact":
        fact = redacted(fact)
    if (found := find_secret(fact.encode(), "")) is not None:
        what = f"line {found.line} holds what looks like a secret ({found.rule}); leave it out"
        raise RememberRefused(f"refused: {what}")
    return fact


def _carried_out(task: _RememberTask, brief: Brief, policy: Policy, budget: Budget) -> RememberResult:
    """Step 6: by the model, or else by the rules."""
    try:
        return _as_items_or_one(task, brief, policy, budget)
    except _Followed as failure:
        events.emit("remember_by_rules", task_id=task.id, model=task.model.name)
        why = on_one_line(str(failure))
        task.notes.append(f"the model {task.model.name} failed: {why}; the rules filed the fact as it is")
    task.model = RuleWriter()
    budget.renew(policy.limits)
    return _as_items_or_one(task, brief, policy, budget)


def _as_items_or_one(task: _RememberTask, brief: Brief, policy: Policy, budget: Budget) -> RememberResult:
    """By the rules a list of facts is filed item by item, or whole where that cannot be."""
    try:
        return _attempts(task, brief, policy, budget)
    except (RememberFailed, RememberRefused, RememberNoUpdate):
        if not (task.is_by_rules and separate_items(brief.fact)):
            raise
        task.notes.append("the facts of the list could not be filed each by itself; they are one entry")
    budget.renew(policy.limits)
    return _attempts(task, replace(brief, is_one=True), policy, budget)


def _attempts(task: _RememberTask, brief: Brief, policy: Policy, budget: Budget) -> RememberResult:
    """Step 5: at most one repeat, on a conflict, with what is left of the budget."""
    try:
        return _attempt(task, brief, policy, budget)
    except StoreConflict as conflict:
        if policy.changes.conflict != "retry" or budget.turns_left == 0:
            raise
        events.emit("remember_repeated", task_id=task.id)
        try:
            return _attempt(task, brief, policy, budget)
        except (RememberNoUpdate, RememberFailed) as error:
            raise conflict from error  # What was left of the budget did not suffice for a second run.


def _attempt(task: _RememberTask, brief: Brief, policy: Policy, budget: Budget) -> RememberResult:
    """Steps 3 and 4, once."""
    place, patience = task.place, Patience(budget.deadline, task.cancel)
    related = related_to(brief, task.request.trust, place, policy, patience, task.end_of)
    brief = replace(brief, related=related)
    with Sandbox.for_run(
        policy,
        place.roots,
        place.state,
        in_process=place.in_process,
        symlinks=place.symlinks,
        context=brief.context,
        patience=patience,
        shown=gone_by(brief.related),
    ) as box:
        task.held = box.held  # Before the model is asked anything.
        runner = Runner(
            task.model,
            box.call,
            budget,
            abort_on_escape=policy.confinement.on_escape == "abort",
            token=secrets.token_hex(8),
            observe=task.observe,
            witness=task.witness,
        )
        indexes = _indexes(brief, place, policy, task.request.trust)
        outcome = runner.run(brief, indexes)
        task.decided_by = outcome.decided_by or task.model.name
        _raise_unless_final(task, outcome)
        budget.check()
        fact = check_content(task.request.content)  # As it came, secrets and all: a repeat is known by it.
        now = timestamp()
        who = (task.id, now, task.request.trust, task.decided_by, place.policy.label, KIND)
        run = Run(*who, fact=place.state.keyed(fact))

        def accept(proposed: ChangeSet) -> None:
            written = {each.path.text: _body(each.after or b"") for each in proposed.changes}
            task.require_fact(brief.fact, (_known_entries(task, box, outcome) | written).values())

        try:
            done = _filed(
                run,
                _FactWords(brief.fact, brief.related, task.end_of),
                box,
                place,
                tuple(each.scope for each in indexes),
                holds_up=task.is_by_rules or place.on_model_failure == "fail",
                dry_run=task.request.dry_run,
                accept=accept,
            )
        except NotTheirWords as error:
            raise task.not_in_its_place() from error
        if done.repeated and (other := done_before(place, KIND, task.id, run.fact)) is not None:
            return _again(task, other)  # An attempt that had been given up was quicker.
        if not done.changes:
            known = _known_entries(task, box, outcome)
            if known:
                task.require_fact(brief.fact, known.values())
            return _without_changes(task, budget, outcome, known)
        return _committed(task, budget, outcome, done)


def _raise_unless_final(task: _RememberTask, outcome: RunOutcome) -> None:
    """The table of how a run ended and what becomes of it; only `final_text` goes on."""
    match outcome.ended_by:
        case "final_text":
            return
        case "escape":
            raise outcome.escape or RememberFailed("the agent tried to escape")
        case "refusals":
            raise RememberRefused("the agent was refused three times; nothing was written")
        case "deadline":
            raise RememberTimeout("the time of the task ran out; nothing was written")
        case "cancelled":
            raise Cancelled("nothing was written")
        case "turns":
            error = RememberFailed("the agent used up its turns without finishing; nothing was written")
            raise task.failed(error, "it used up its turns")
        case "model_error":
            why = own(outcome.detail, "the model failed")
            raise task.failed(RememberFailed(f"{why}; nothing was written"), why)
        case "worker_lost":
            raise RememberFailed(f"{own(outcome.detail, 'the worker was lost')}; nothing was written")


def _without_changes(
    task: _RememberTask, budget: Budget, outcome: RunOutcome, known: Collection[str]
) -> RememberResult:
    """The agent finished and proposed nothing: known already, refused, or idle."""
    if known:
        summary = f"already known: {', '.join(sorted(known))}"
        if task.request.expires is not None:
            task.notes.append(
                "it was known already, and was given no end by this: forget it first, or write one into it"
            )
        said = _detail(task, outcome)
        return task.result(budget, status="completed", summary=summary, unchanged=True, detail=said)
    refused = [
        decision.outcome
        for decision in outcome.decisions
        if decision.tool in WRITING_TOOLS and _was_refused(decision.outcome)
    ]
    if refused and all(each.rule == "request-scope" for each in refused):
        raise RememberScopeMismatch(
            f"the agent found no place for this in scope {task.request.scope!r}; try without a scope"
        )
    if refused:
        raise RememberRefused(f"refused: {_reason(refused[-1])}")
    advice = "" if task.is_by_rules else "; try --protocol json or decide, or a larger model"
    error = RememberNoUpdate(f"the agent proposed no change; nothing was written{advice}")
    raise task.failed(error, "it proposed no change")


def _end_of(request: RememberRequest, fact: str) -> date | None:
    """When a fact ends: as the caller says, or else its words; nobody else has a say."""
    today = datetime.now(UTC).date()
    if request.expires is None:
        return expiry_in(fact, today)
    try:
        return read_expiry(request.expires, today)
    except ValueError:
        raise InvalidExpiry(
            "it is to end on no day to come, such as 2026-12-31, nor in a number of days, such as 30d"
        ) from None


def _committed(task: _RememberTask, budget: Budget, outcome: RunOutcome, done: Commit) -> RememberResult:
    paths = tuple(change.path for change in done.changes)
    return task.result(
        budget,
        status="dry_run" if task.request.dry_run else "completed",
        summary=f"{'would save' if task.request.dry_run else 'saved'} {', '.join(paths)}",
        files_touched=() if task.request.dry_run else paths,
        touched_scopes=() if task.request.dry_run else done.touched_scopes,
        trust=done.trust,
        changes=done.changes,
        notes=done.notes,
        detail=_detail(task, outcome),
        expires=None if task.ends is None else str(task.ends),
    )


def _detail(task: _RememberTask, outcome: RunOutcome) -> str | None:
    """The model's last words as data, where they were asked for."""
    return quoted(outcome.final_text, secrets.token_hex(8)) if task.request.detail else None


def _reason(outcome: Outcome) -> str:
    """Why a call was stopped, in words of ours: what a refusal quotes of a path is the model's."""
    match outcome.code:
        case "refused":
            return f"the policy does not allow it (rule {outcome.rule!r})"
        case "bad_name":
            return "the agent chose a name that no entry may have"
        case "path_escape":
            return f"the agent asked for what lies outside the memory ({outcome.via})"
        case _:
            return own(outcome.text, f"gate {outcome.rule!r}")


def _was_refused(outcome: Outcome) -> bool:
    return outcome.verdict == "deny" or outcome.code == "content_rejected"


def _body(content: bytes) -> str:
    """The text of an entry; empty where it is none."""
    try:
        return parse(decode(content)).body
    except ToolError:
        return ""  # The gates say so.


def _known_entries(task: _RememberTask, box: Sandbox, outcome: RunOutcome) -> dict[str, str]:
    """The entries that the agent read and that its last words name: text by names without links.

    No others than whoever asks may rely on: trusted as far as he is, and not to end before the fact does.
    """
    place, known = task.place, dict[str, str]()
    for shown in outcome.read:
        try:
            path = box.without_links(shown)
            is_named = not is_index_path(path.rel) and (
                shown.text in outcome.final_text or path.text in outcome.final_text
            )
            if is_named:
                root = place.roots[path.scope]
                content = root.root.read_bytes(path)
                trust = trust_at(place.state, root_key(place.state, root), path, content, place.policy)
                if trust.satisfies(task.request.trust) and task.lasts(content):
                    known[path.text] = _body(content)
        except (PathEscape, Refusal, ToolError):
            continue
    return known


def _indexes(brief: Brief, place: Place, policy: Policy, reader: Trust) -> tuple[IndexExcerpt, ...]:
    """The indexes that the run is shown: ours, of scopes that it may write, without what it may not read."""
    if brief.context is ContextMode.CLEAN:
        return ()
    return tuple(
        IndexExcerpt(scope, policy.trust_of(scope), shown)
        for scope in (each.name for each in brief.scopes if each.writable)
        if (shown := shown_index(place, policy, scope, reader)) is not None
    )


def shown_index(place: Place, policy: Policy, scope: Scope, reader: Trust) -> str | None:
    """The index of a scope as a model may see it; None: there is none, or none that we wrote.

    Args:
        place: where.
        policy: says what may be seen.
        scope: one of the place's roots.
        reader: trust of whoever is shown it; of entries below that no words of others are.

    Raises:
        ManagedMemoryUnavailable: the catalog cannot be read.
    """
    judge, root = Judge(policy), place.roots[scope]
    over = expired_in(place.state, root)  # Nobody may have written the index since.

    def shows(rel: RelPath) -> bool:
        path = CanonicalPath(scope, rel)
        return rel not in over and judge.allows(Verb.LIST, path) and judge.allows(Verb.READ, path)

    try:
        index = root.root.read_bytes(CanonicalPath(scope, RelPath(INDEX_NAME)))
    except (PathEscape, ToolError):
        return None  # Without an index the agent still has its tools; the next commit writes one.
    # Of another's making it may say anything, and nobody could tell how far to trust that.
    if not shows(RelPath(INDEX_NAME)) or not is_as_written(place.state, root, index):
        return None
    return excerpt(index, shows, trusted_less(place.state, root, reader))


def _as_job_error(error: MunimentError, place: Place) -> MunimentError:
    """The error that a caller sees for one that escaped a step."""
    match error:
        case PathEscape():
            requested = described(error.requested, place.state, place.roots)
            return RememberPathEscape(error.via, requested, error.tool)
        case RememberRefused() if isinstance(error.__cause__, Refusal | ToolError):
            return RememberRefused(f"the change-set was refused: {_reason(stopped(error.__cause__))}")
        case WorkerLost():
            return RememberFailed(str(error))
        case _:
            return as_job_error(error, RememberFailed, RememberTimeout)


def _again(task: _RememberTask, done: CommitRow) -> RememberResult:
    """The result of a task that committed already, as far as the ledger knows it."""
    paths = tuple(change.path for change in done.known)
    return task.result(
        None,
        status="completed",
        summary=f"saved before by this task: {', '.join(paths) or 'what was erased since'}",
        repeated=True,
        files_touched=paths,
        touched_scopes=done.touched_scopes,
        changes=done.known,
        trust=done.trust,
        notes=done.notes,
        expires=next((str(end.date()) for end in map(_expiry_of, done.changes) if end is not None), None),
    )


def _expiry_of(row: ChangeRow) -> datetime | None:
    return None if row.change.after is None else parse(row.change.after).expires


def _log(result: RememberResult) -> None:
    escape = result.error if isinstance(result.error, PathEscape) else None
    events.emit(
        "remember_ended",
        run=RUN_NAME,
        task_id=result.task_id,
        status=result.status,
        code=None if result.error is None else result.error.code,
        via=None if escape is None else str(escape.via),
        tool=None if escape is None else escape.tool,
        touched_scopes=list(result.touched_scopes),
        files=len(result.files_touched),
        turns=result.turns,
        seconds=round(result.seconds, 3),
        policy=result.policy,
        enforcement=result.enforcement,
        missing_layers=list(result.missing_layers),
    )
