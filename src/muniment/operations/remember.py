"""Remember: a fact goes in, a headless agent files it, the broker judges and commits.

1. The request is checked: content, scope, context mode; a secret in it ends it, or is taken out of it.
2. The run's policy is the operator's, met with `clean` if asked for and with "writes only in this
   scope" if one is given: a request can only narrow.
3. A run: a worker, a model, at most six turns (`agent/runner.py`).
4. `final_text` with changes is committed; every other end commits nothing (`_raise_unless_final`).
5. If what the run rested on changed meanwhile, the run is repeated once within the same budget.
6. What is committed, or was known already, holds the fact (`content/provenance.py`). Where what a model
   proposed does not, or would wait for review in the place of somebody's words, the rules file the fact
   verbatim. They also do so after any other end that the model caused, unless the operator wants that to be a
   failure (`Place.on_model_failure`): wrong paths and names, three refusals, a refused change set, no usable
   answer. A path that leads out (`operations/escapes.py`) fails the task. The result says so.

What happened is read from the committed change-set, never from the model's words: whatever a result, an error
or a record says is code's sentence. Only who asks for it is told the model's last words, as data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from muniment import events
from muniment.agent.chat import IndexExcerpt
from muniment.agent.filing import RuleWriter, read
from muniment.agent.model import Brief, Model, Related, ScopeBrief
from muniment.agent.runner import RUN_NAME, Observer, Runner, RunOutcome, Witness
from muniment.agent.updates import is_chatter, is_similar, supersedes
from muniment.cancelling import Cancel
from muniment.content.admission import own, quoted
from muniment.content.entry import ENDS_KEY, EXPIRY_KEY, Entry, parse, shortened
from muniment.content.expiry import End, find_end, local_day, read_expiry
from muniment.content.frontmatter import written
from muniment.content.gates import decode, encode, on_one_line
from muniment.content.markdown import fence_token
from muniment.content.provenance import (
    Whose,
    holds,
    missing_statements,
    names,
    separate_items,
    stands_in,
    whose,
)
from muniment.content.secrets import find_secret, redacted
from muniment.content.titles import slug, titles_of
from muniment.content.words import comparable, is_running, sayings
from muniment.errors import (
    Cancelled,
    InvalidContent,
    JobError,
    JobFailed,
    JobTimeout,
    MunimentError,
    PathEscape,
    Refusal,
    RememberNoUpdate,
    RememberPathEscape,
    RememberRefused,
    ToolError,
    WorkerLost,
)
from muniment.kernel.cancel import Patience
from muniment.kernel.change import ChangeSet, FileChange, digest
from muniment.kernel.decide import NO_GRANT, Judge, Policy
from muniment.kernel.names import INDEX_NAME, RelPath, Scope, Trust, Verb, joined
from muniment.kernel.path import FILE_SUFFIX, CanonicalPath
from muniment.names import ContextMode, Held
from muniment.operations.escapes import REQUEST_SCOPE, RunScopes, find_escape
from muniment.operations.job import (
    MODEL_ADVICE,
    Fruitless,
    Job,
    carry_out,
    model_failed,
    model_failure,
    once_more,
)
from muniment.operations.naming import name_of_replaced
from muniment.operations.place import Place
from muniment.operations.related import gone_by, linked_entries, related_to
from muniment.operations.request import check_content
from muniment.operations.visibility import ALREADY_KNOWN
from muniment.policy.load import load_policy
from muniment.policy.tables import meet, narrow_writes
from muniment.sandbox.sandbox import Sandbox
from muniment.sandbox.tools.calls import WRITING_TOOLS, Outcome, stopped
from muniment.store.audit import described
from muniment.store.commit import Commit
from muniment.store.index import excerpt, is_index_path
from muniment.store.ledger import SUPERSEDES, ChangeRow, CommitRow, Run
from muniment.store.trust import NO_RELATIONS, SEE, Ruling, by_words, stamp
from muniment.store.upkeep import expired_in, is_as_written, is_listable_in, trusted_less, trusts_shown
from muniment.types import RememberRequest, RememberResult, SimilarEntry
from muniment.types.results import superseded_by

# -- filing ------------------------------------------------------------------------------------------
#
# How what a remember proposed is committed: under which name, with which trust, stamped how.

KIND: Final = "remember"

FOLDER_WORDS: Final = 3
NAME_WORDS: Final = 12
"""Words that a run may give a new folder or file; more of them are a sentence."""

EXPIRY_CHARS: Final = 32
"""Characters of an invalid expiry that an error quotes."""

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


class _GivesWay(Exception):
    """A model came to nothing that holds the fact, and the rules follow it. The message says why."""


class _FactWords:
    """What a fact's own words make of a file: labels, names and relations; anything else gives way to code's.

    Args:
        task: says when the fact, or an item of a list of facts, ends.
        fact: where secrets are taken out instead of refused, without them.
        related: entries that are like it.

    Attributes:
        similar: entries that new ones are linked to, by path.
    """

    def __init__(self, task: _Remembering, fact: str, related: Sequence[Related]) -> None:
        self.fact = fact
        self._task, self._related = task, related
        self._items = {comparable(each): _FactWords(task, each, related) for each in separate_items(fact)}
        self._replaced: dict[str, CanonicalPath] = {}
        self.similar: dict[str, SimilarEntry] = {}
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
            _GivesWay, RememberRefused: it would be put into one that lasts, or take its place.
        """
        entry, old = parse(decode(after)), None if before is None else parse(before)
        by, ends = self._whose(after, None if old is None else old.body), self._task.end_of(entry.body)
        is_other = old is not None and not old.has_same_end(ends)
        if is_other and by is not Whose.SAME and (ends is not None or by is Whose.FACT):
            raise self._task.not_in_its_place()
        if old is not None and by is not Whose.FACT:
            kept = (before or b"").decode("utf-8", "replace")
            return encode((kept.removesuffix(old.body) or "---\n---\n") + entry.body)
        labels = {"name": entry.name, "description": entry.description}
        said = {key: label for key, label in labels.items() if label is not None and self._says(label)}
        if by is Whose.FACT:
            said = {"name": self._titles.name, "description": self._titles.description} | said
        lines = [f"{key}: {written(label)}" for key, label in said.items()]
        lines += [] if ends is None else [f"{EXPIRY_KEY if ends.is_explicit else ENDS_KEY}: {ends.day}"]
        lines += [f"type: {kind}" for kind in (entry.type or (old and old.type),) if kind]
        if words := [
            written(word)
            for word in entry.keywords[:KEYWORDS]
            if len(word) <= KEYWORD_CHARS and self._says(word)
        ]:
            lines.append(f"keywords: [{', '.join(words)}]")
        return encode("\n".join(["---", *lines, "---", entry.body]))

    def stamped(self, after: bytes, before: bytes | None, path: CanonicalPath, by: Run) -> bytes:
        """The final bytes of a file, with what it says instead of, or is about the same as.

        Raises:
            _GivesWay, RememberRefused: as `labelled`; or one fact would stand in several entries.
        """
        of = self.of(after)
        labelled = of.labelled(after, before)
        if before is None:
            return stamp(labelled, before, path, by, relations=self._links(labelled, path.scope))
        if of._whose(labelled, parse(before).body) is not Whose.FACT:  # noqa: SLF001
            return stamp(labelled, before, path, by, relations=NO_RELATIONS)
        if self._replaced.setdefault(of.fact, path) != path:
            raise self._task.not_in_its_place()  # What one fact says is no more than one entry's.
        return stamp(labelled, before, path, by, relations={SUPERSEDES: digest(before)})

    def _links(self, after: bytes, scope: Scope) -> Mapping[str, object]:
        """Return the links of a new entry to those of its scope that are about the same.

        One of another scope is only told as similar: a file of a project, which others may read, names
        nothing of the user's.
        """
        body = parse(after).body
        found = [each for each in self._related if is_similar(body, each.body)]
        self.similar |= {each.path.text: SimilarEntry(each.path.text, each.id) for each in found}
        names = [each.id or each.digest for each in found if each.path.scope == scope]
        return {SEE: names[0] if len(names) == 1 else names} if names else NO_RELATIONS

    def drops(self, after: bytes, before: bytes) -> bool:
        """Return whether a changed entry loses a statement in whose place the fact does not stand."""
        of, was = self.of(after), parse(before).body
        if of._whose(after, was) is not Whose.OTHERS:  # noqa: SLF001  of this class
            return False
        return any(not supersedes(of.fact, each) for each in missing_statements(_body(after), was))

    def shown(self) -> set[CanonicalPath]:
        """The entries that the model was shown before it was asked anything."""
        return {each.path for each in self._related if each.is_shown}

    def _whose(self, after: bytes, old: str | None) -> Whose:
        return whose(parse(after).body, self.fact, old, supersedes)

    def _says(self, label: str) -> bool:
        return stands_in(label, self.fact)

    def _names(self, name: str, most: int) -> bool:
        """Whether a name is of at most so many words of the fact, or code's with a number."""
        if name.startswith(self._stem) and _NUMBERED.fullmatch(name[len(self._stem) :]):
            return True
        words = _BETWEEN_WORDS.sub(" ", _COUNTED.sub("", name))
        return len(words.split()) <= most and names(words, self.fact)


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
        content = place.read(found)
    except (PathEscape, Refusal, ToolError):
        # It went since: nobody can say any more who it came from.
        return None if path.text in made else Trust.EXTERNAL
    return place.trust_at(found, content)


# -- remember ----------------------------------------------------------------------------------------


class _Remembering(Job[RememberResult]):
    """What stays the same over the attempts of one request.

    Attributes:
        ends: when the fact ends; None: never.
        held: what held the worker of the last run; None: it came to none.
        similar: entries that the new ones of the last run are linked to, by path.
    """

    kind = KIND

    def __init__(
        self, request: RememberRequest, place: Place, model: Model, observe: Observer, witness: Witness
    ) -> None:
        super().__init__(place, model.name, request.trust, request.task_id, is_dry=request.dry_run)
        self.request, self.model = request, model
        self.observe, self.witness = observe, witness
        self.content = ""
        self.ends: End | None = None
        self.held: Held | None = None
        self.similar: Mapping[str, SimilarEntry] = {}

    def check(self) -> str:
        """Step 1, but for what the policy says of it."""
        _refuse_secret(self.request, self.place)
        self.content = check_content(self.request.content)
        return self.place.state.keyed(self.content)

    def body(self) -> RememberResult:
        brief, policy = _prepare(self, self.content)
        if is_chatter(self.content):
            return replace(self.result(), status="completed", summary=CHATTER, unchanged=True)
        self.begin(policy.limits)
        return _carried_out(self, brief, policy)

    def result(self) -> RememberResult:
        """That of a task that wrote nothing so far."""
        turns, seconds, timeline = self.spent
        return RememberResult(
            task_id=self.id,
            status="dry_run" if self.is_dry else "completed",
            summary="",
            files_touched=(),
            touched_scopes=(),
            enforcement=self.held.enforcement if self.held else None,
            decided_by=self.decided_by,
            turns=turns,
            seconds=seconds,
            policy=self.place.policy.label,
            missing_layers=self.held.missing if self.held else (),
            timeline=timeline,
            notes=(*self.place.advice, *self.notes),
        )

    def again(self, done: CommitRow) -> RememberResult:
        paths = tuple(change.path for change in done.known if change.kind != "delete")
        entries = [entry for each in done.changes if (entry := _entry_after(each)) is not None]
        result = self.result()
        return replace(
            result,
            status="completed",
            summary=f"saved before by this task: {', '.join(paths) or 'what was erased since'}",
            repeated=True,
            files_touched=paths,
            touched_scopes=done.touched_scopes,
            changes=done.known,
            superseded=superseded_by(done.known),
            similar=linked_entries(self.place, done),
            trust=done.trust,
            notes=(*result.notes, *done.notes),
            expires=next((each.expires for each in entries if each.expires), None),
            ends=next((str(each.ends) for each in entries if each.ends), None),
        )

    def ended(self, status: Fruitless, error: MunimentError) -> RememberResult:
        return replace(self.result(), status=status, error=error)

    def as_error(self, problem: MunimentError) -> MunimentError:
        match problem:
            case PathEscape():
                requested = described(problem.requested, self.place.state, self.place.roots)
                return RememberPathEscape(problem.via, requested, problem.tool)
            case RememberRefused() if isinstance(problem.__cause__, Refusal | ToolError):
                told = _reason(stopped(problem.__cause__))
                return RememberRefused(f"the change-set was refused: {told}")
            case WorkerLost():
                return _failed(str(problem))
            case _:
                return super().as_error(problem)

    def of_event(self, result: RememberResult) -> dict[str, object]:
        escape = result.error if isinstance(result.error, PathEscape) else None
        return {
            "run": RUN_NAME,
            "via": None if escape is None else str(escape.via),
            "tool": None if escape is None else escape.tool,
            "touched_scopes": list(result.touched_scopes),
            "files": len(result.files_touched),
            "turns": result.turns,
            "seconds": round(result.seconds, 3),
            "policy": result.policy,
            "enforcement": result.enforcement,
            "missing_layers": list(result.missing_layers),
        }

    def require_fact(self, fact: str, texts: Collection[str]) -> None:
        """Step 6: raise where what was written or named does not hold `fact`; the rules may hold a part."""
        if not self.is_by_rules:
            if not holds(tuple(texts), fact):
                raise _GivesWay("what it wrote or named does not hold the fact")
            return
        items = set(map(comparable, separate_items(fact)))
        is_whole = any(text.strip() == fact.strip() for text in texts)
        if not is_whole and not items <= set().union(*map(sayings, texts)):
            raise _failed("a part of the list could not be filed; nothing was written")

    def blame_model(self, why: str) -> str:
        """Return the message of an error that names the model as the cause, and the way out."""
        if self.is_by_rules:
            return f"{why}; nothing was written"
        return f"{model_failure(self.model.name, why)}; nothing was written; {MODEL_ADVICE}"

    def came_to_nothing(self, error: MunimentError, why: str) -> Exception:
        """What to raise for a model that did."""
        is_final = self.is_by_rules or self.place.on_model_failure == "fail"
        return error if is_final else _GivesWay(why)

    def not_in_its_place(self) -> Exception:
        """What to raise where something would take an entry's place that may not."""
        if self.is_by_rules:
            return RememberRefused("refused: what ends is an entry of its own")
        return _GivesWay("it would have put its own words in the place of an entry")

    def end_of(self, text: str) -> End | None:
        """When a text ends: of a fact in a list of such by its own words, unless the caller said when."""
        content = redacted(self.content) if self.place.policy.content.secrets == "redact" else self.content
        if self.request.expires is None and comparable(text) in map(comparable, separate_items(content)):
            return _find_end(text.strip())
        return self.ends

    def lasts(self, content: bytes) -> bool:
        """Whether an entry is told as long as the fact, or what it says of a list of facts."""
        entry, items = parse(content), separate_items(self.content)
        said = [item for item in items if comparable(item) in sayings(entry.body)]
        return all(entry.lasts(self.end_of(each)) for each in said or [self.content])


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
    return carry_out(_Remembering(request, place, model, observe, witness), cancel)


def _refuse_secret(request: RememberRequest, place: Place) -> None:
    """Refuse what was queued without its secret, unless the policy is content with the rest."""
    if request.secret is not None and (not request.content or place.policy.content.secrets != "redact"):
        raise RememberRefused("refused: the text holds what looks like a secret; leave it out")


def _prepare(task: _Remembering, fact: str) -> tuple[Brief, Policy]:
    """Step 1, but for the fact itself, and step 2."""
    request, place = task.request, task.place
    if request.context not in list(ContextMode):
        known = ", ".join(ContextMode)
        raise InvalidContent(
            f"there is no context mode {request.context!r}; there are {known}", code="invalid_context_mode"
        )
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


def _carried_out(task: _Remembering, brief: Brief, policy: Policy) -> RememberResult:
    """Step 6: by the model, or else by the rules."""
    try:
        return _as_items_or_one(task, brief, policy)
    except _GivesWay as failure:
        events.emit("remember_by_rules", task_id=task.id, model=task.model.name)
        why = on_one_line(str(failure))
        how = model_failure(task.model.name, why)
        task.notes.append(f"{how}; the rules filed the fact as it is; {MODEL_ADVICE}")
    task.model = RuleWriter()
    task.budget.renew(policy.limits)
    return _as_items_or_one(task, brief, policy)


def _as_items_or_one(task: _Remembering, brief: Brief, policy: Policy) -> RememberResult:
    """By the rules a list of facts is filed item by item, or whole where that cannot be."""
    try:
        return _attempts(task, brief, policy)
    except (JobFailed, RememberRefused, RememberNoUpdate):
        if not (task.is_by_rules and separate_items(brief.fact)):
            raise
        task.notes.append("the facts of the list could not be filed each by itself; they are one entry")
    task.budget.renew(policy.limits)
    return _attempts(task, replace(brief, is_one=True), policy)


def _attempts(task: _Remembering, brief: Brief, policy: Policy) -> RememberResult:
    """Step 5: at most one repeat, on a conflict, with what is left of the budget."""
    return once_more(policy, KIND, task.id, lambda: _attempt(task, brief, policy), budget=task.budget)


def _attempt(task: _Remembering, brief: Brief, policy: Policy) -> RememberResult:
    """Steps 3 and 4, once."""
    place, patience = task.place, Patience(task.budget.deadline, task.cancel)
    brief = replace(brief, related=related_to(brief, task.trust, place, policy, patience, task.end_of))
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
            task.budget,
            abort_on_escape=policy.confinement.on_escape == "abort",
            token=fence_token(),
            observe=task.observe,
            witness=task.witness,
        )
        indexes = _indexes(brief, place, policy, task.trust)
        outcome = runner.run(brief, indexes)
        task.decided_by = outcome.decided_by or task.model.name
        scopes = _run_scopes(task, brief, policy)
        _raise_unless_final(task, outcome, scopes)
        task.budget.check()
        try:
            return _judged(task, brief, box, outcome, [each.scope for each in indexes], scopes)
        except _GivesWay:
            _raise_escape(task, outcome, scopes)
            raise


def _judged(
    task: _Remembering,
    brief: Brief,
    box: Sandbox,
    outcome: RunOutcome,
    indexes: Collection[Scope],
    scopes: RunScopes,
) -> RememberResult:
    """Commit what a finished run proposed, or return what else became of it."""
    done = _filed_or_refused(task, brief, box, outcome, indexes)
    if (earlier := task.repeated(done)) is not None:
        return earlier
    if not done.changes:
        known = _known_entries(task, box, outcome)
        if known:
            task.require_fact(brief.fact, known.values())
        return _without_changes(task, outcome, known, scopes)
    return _committed(task, outcome, done)


def _filed_or_refused(
    task: _Remembering, brief: Brief, box: Sandbox, outcome: RunOutcome, indexes: Collection[Scope]
) -> Commit:
    """Commit as `_filed`; a proposal that is refused is a failure of the model that made it."""
    try:
        return _filed(task, brief, box, outcome, indexes)
    except RememberRefused as refused:
        if not isinstance(refused.__cause__, Refusal | ToolError):
            raise
        failure = task.came_to_nothing(refused, _reason(stopped(refused.__cause__)))
        if failure is refused:
            raise
        raise failure from None


def _filed(
    task: _Remembering, brief: Brief, box: Sandbox, outcome: RunOutcome, indexes: Collection[Scope]
) -> Commit:
    """Commit what a run proposed that was shown some indexes, in the words of the fact as far as it can be.

    Raises:
        _GivesWay: it does not hold the fact, or words of a model would wait for review in the place of
            somebody's though the rules could file the fact.
        Whatever `Sandbox.commit` does.
    """
    words = _FactWords(task, brief.fact, brief.related)
    task.similar = words.similar
    rule = by_words(brief.fact, task.trust, _least_shown(task.place, box, words, indexes), supersedes)
    waits = task.is_by_rules or task.place.on_model_failure == "fail"

    def ruled(draft: FileChange, held: Trust | None) -> Ruling:
        ruling = rule(draft, held)
        if not waits and ruling.note is not None and held is not None and not ruling.trust.satisfies(held):
            raise task.not_in_its_place()
        is_shown = held is not None and not (ruling.by or ruling.trust).satisfies(held)  # In a review.
        is_change = draft.before is not None and draft.after is not None and not is_shown
        if is_change and words.drops(draft.after or b"", draft.before or b""):
            raise task.not_in_its_place()
        return ruling

    def accept(proposed: ChangeSet) -> None:
        written = {each.path.text: _body(each.after or b"") for each in proposed.changes}
        task.require_fact(brief.fact, (_known_entries(task, box, outcome) | written).values())

    return box.commit(
        task.run(),
        trust=ruled,
        stamp=words.stamped,
        rename=words.rename,
        replaced=name_of_replaced,
        dry_run=task.is_dry,
        accept=accept,
    )


def _run_scopes(task: _Remembering, brief: Brief, policy: Policy) -> RunScopes:
    """Return the scopes of a run; one without a directory counts as open unless the request excludes it."""
    roots = task.place.roots
    absent = () if task.request.scope else (scope for scope in policy.scopes if scope not in roots)
    folders = [str(roots[scope].trusted_path) for scope in brief.writable]
    return RunScopes.of({*brief.writable, *absent}, policy.scopes, folders)


def _raise_unless_final(task: _Remembering, outcome: RunOutcome, scopes: RunScopes) -> None:
    """The table of how a run ended and what becomes of it; only `final_text` goes on."""
    if outcome.ended_by not in {"final_text", "deadline", "cancelled", "worker_lost"}:
        _raise_escape(task, outcome, scopes)
    match outcome.ended_by:
        case "final_text":
            return
        case "escape":
            error = outcome.escape or _failed("the agent tried to escape")
            raise task.came_to_nothing(error, "it gave an invalid path")
        case "refusals":
            why = "it was refused three times"
            raise task.came_to_nothing(RememberRefused(task.blame_model(why)), why)
        case "deadline":
            raise JobTimeout("the time of the task ran out; nothing was written", code="remember_timeout")
        case "cancelled":
            raise Cancelled("nothing was written")
        case "turns":
            why = "it used up its turns without finishing"
            told = task.blame_model(why)
            raise task.came_to_nothing(JobFailed(told, code="remember_failed", reason=told), why)
        case "model_error":
            why = own(outcome.detail, "the model failed")
            raise task.came_to_nothing(model_failed(KIND, task.model.name, why), why)
        case "worker_lost":
            raise _failed(f"{own(outcome.detail, 'the worker was lost')}; nothing was written")


def _raise_escape(task: _Remembering, outcome: RunOutcome, scopes: RunScopes) -> None:
    """Raise if a run that commits nothing tried to leave the memory; the rules do not store the fact then.

    `operations.escapes` says which paths lead out. A call that only reads counts if refusals ended the run.

    Raises:
        PathEscape: a write leads out.
        RememberRefused: refusals ended the run, and a read leads out or a write leads to another scope.
        JobError: a write leads to another scope than that of the request.
    """
    writes = [each for each in outcome.denied if each.tool in WRITING_TOOLS]
    if (escape := find_escape(writes, scopes)) is not None:
        raise escape
    is_elsewhere = any(each.outcome.rule == REQUEST_SCOPE for each in writes)
    if outcome.ended_by == "refusals" and (is_elsewhere or find_escape(outcome.denied, scopes)):
        raise RememberRefused(task.blame_model("it was refused three times"))
    if is_elsewhere:
        raise JobError(
            f"the agent found no place for this in scope {task.request.scope!r}; try without a scope",
            code="remember_scope_mismatch",
        )


def _without_changes(
    task: _Remembering, outcome: RunOutcome, known: Collection[str], scopes: RunScopes
) -> RememberResult:
    """The agent finished and proposed nothing: known already, refused, or idle."""
    if known:
        summary = f"{ALREADY_KNOWN}: {', '.join(sorted(known))}"
        if task.request.expires is not None:
            task.notes.append(
                "it was known already, and was given no end by this: forget it first, or write one into it"
            )
        said = _detail(task, outcome)
        return replace(task.result(), status="completed", summary=summary, unchanged=True, detail=said)
    _raise_escape(task, outcome, scopes)
    refused = [
        decision.outcome
        for decision in outcome.decisions
        if decision.tool in WRITING_TOOLS and _was_refused(decision.outcome)
    ]
    if refused:
        paths = [each.path for each in outcome.denied if each.outcome is refused[-1]]
        is_named_wrong = bool(paths) and refused[-1].rule == NO_GRANT and not paths[0].endswith(FILE_SUFFIX)
        why = "it named a file without .md at the end" if is_named_wrong else _reason(refused[-1])
        raise task.came_to_nothing(RememberRefused(f"refused: {task.blame_model(why)}"), why)
    why = "it proposed no change"
    raise task.came_to_nothing(RememberNoUpdate(task.blame_model(why)), why)


def _end_of(request: RememberRequest, fact: str) -> End | None:
    """Return when a fact ends: as the caller says, or else its words; nobody else has a say."""
    if request.expires is None:
        return _find_end(fact)
    try:
        return End(read_expiry(request.expires, local_day()), is_explicit=True)
    except ValueError:
        raise InvalidContent(
            f"invalid expiry {shortened(on_one_line(request.expires), EXPIRY_CHARS)!r}: "
            "use today or a later day (2026-12-31), or a number of days (30d)",
            code="invalid_expires",
        ) from None


def _find_end(text: str) -> End | None:
    """Return when a text says that it ends, if it does."""
    day = find_end(text, local_day())
    return None if day is None else End(day)


def _committed(task: _Remembering, outcome: RunOutcome, done: Commit) -> RememberResult:
    paths = tuple(change.path for change in done.changes if change.kind != "delete")
    result, ends = task.result(), task.ends
    return replace(
        result,
        summary=f"{'would save' if task.is_dry else 'saved'} {', '.join(paths)}",
        files_touched=() if task.is_dry else paths,
        touched_scopes=() if task.is_dry else done.touched_scopes,
        trust=done.trust,
        similar=tuple(each for _, each in sorted(task.similar.items())),
        changes=done.changes,
        superseded=superseded_by(done.changes),
        notes=(*result.notes, *done.notes),
        detail=_detail(task, outcome),
        expires=str(ends.day) if ends is not None and ends.is_explicit else None,
        ends=str(ends.day) if ends is not None and not ends.is_explicit else None,
    )


def _detail(task: _Remembering, outcome: RunOutcome) -> str | None:
    """The model's last words as data, where they were asked for."""
    return quoted(outcome.final_text, fence_token()) if task.request.detail else None


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


def _known_entries(task: _Remembering, box: Sandbox, outcome: RunOutcome) -> dict[str, str]:
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
                content = place.read(path)
                if place.trust_at(path, content).satisfies(task.trust) and task.lasts(content):
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
        for scope in brief.writable
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
    # Nobody may have written the index since something expired, was withheld or went.
    over = expired_in(place.state, root) if reader is Trust.OWNER else frozenset()
    is_listable = is_listable_in(place.state, root)

    def shows(rel: RelPath) -> bool:
        path = CanonicalPath(scope, rel)
        is_current = rel not in over if reader is Trust.OWNER else is_listable(rel)
        return is_current and judge.allows(Verb.LIST, path) and judge.allows(Verb.READ, path)

    try:
        index = place.read(CanonicalPath(scope, RelPath(INDEX_NAME)))
    except (PathEscape, ToolError):
        return None  # Without an index the agent still has its tools; the next commit writes one.
    # Of another's making it may say anything, and nobody could tell how far to trust that.
    if not shows(RelPath(INDEX_NAME)) or not is_as_written(place.state, root, index):
        return None
    return excerpt(index, shows, trusted_less(place.state, root, reader))


def _failed(message: str) -> JobFailed:
    return JobFailed(message, code="remember_failed")


def _entry_after(row: ChangeRow) -> Entry | None:
    return None if row.change.after is None else parse(row.change.after)
