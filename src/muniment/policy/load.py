"""Load policy files into the effective `Policy`, or raise `PolicyInvalid` and run nothing.

    1. The file and all files that it extends are read (`family`) and fully validated (`tables`, E1xx).
    2. Every pattern is in the dialect (`pattern`, E2xx), every deny pattern has an effect (E201), and
       pathspec reads each one as the kernel does (E204).
    3. A file's rules are combined with its parents' by `meet`: a file can only narrow them.
    4. The file's inline tests pass on the result (E401).
    5. If a `policy.lock` is in the folder of a file, it lists the policy, with its current digest (`family`).

Codes of this module: E125 no scope is declared or left · E401 an inline test fails. Of a family, see
`family`: E100, E102, E120 to E124. Of a lock: E130 another digest · E131 not listed · E132 invalid lock.

Not guaranteed: a file need not be signed (`policy.signatures` requires it if the user configures that), and a
process that may write a folder may write its lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Final, Literal

from muniment.errors import PathEscape, PolicyInvalid, Refusal, Refused, printable
from muniment.kernel.decide import (
    QUOTA_NUMBERS,
    Allow,
    Changes,
    Confinement,
    Content,
    Deny,
    DenyPatterns,
    Judge,
    Layer,
    Limits,
    Policy,
    Provenance,
    Quota,
    Retention,
    Rule,
    ScopeTerms,
    Verdict,
    is_anchored,
)
from muniment.kernel.names import Digest, Scope, Verb
from muniment.kernel.path import CanonicalPath, canonicalise, fold
from muniment.policy.automaton import FoundPath, Patterns, Steps, Undecided, plain_letters_for, shortest
from muniment.policy.family import Lookup, Member, PolicyText, hold_to_locks, read_family, read_texts
from muniment.policy.grammar import check_creatable
from muniment.policy.pattern import check_pattern, disagreement
from muniment.policy.tables import CheckTable, RuleTable, line_at, meet, quota_of

# -- checks ------------------------------------------------------------------------------------------
#
# The inline tests of a policy file: the `[[test]]` requests and the decisions of the effective policy.
#
# A test contains a verb, or `removal`, and a path as a model would write it, so the name grammar is checked
# first. With `file_bytes`, `files` or `total_bytes` it also checks quotas: whether the file may be written so
# that it has that many bytes, or its scope that many files or bytes, as the quotas count them.


Act = Verb | Literal["removal"]
"""An action that a policy grants on a file: one of the verbs to the model, or its removal to code."""

REMOVAL: Final = "removal"
ACTS: Final[tuple[Act, ...]] = (*Verb, REMOVAL)


def act_of(check: CheckTable) -> Act:
    """Return the act of an inline test."""
    return REMOVAL if check.verb == REMOVAL else Verb(check.verb)


def granting(act: Act) -> Verb:
    """Return the verb of the allow rules that grant the act."""
    return Verb.MODIFY if act == REMOVAL else Verb(act)


def denying(act: Act) -> frozenset[Verb]:
    """Return the verbs each of which denies the act if it is in a deny rule."""
    return frozenset({Verb.MODIFY, Verb.DELETE} if act == REMOVAL else {Verb(act)})


def verdict_on(act: Act, path: CanonicalPath, judge: Judge) -> Verdict:
    """Decide whether the policy grants the act on the file."""
    return judge.decide_removal(path) if act == REMOVAL else judge.decide(Verb(act), path)


def grants(act: Act, path: CanonicalPath, judge: Judge) -> bool:
    """Return whether the policy grants the act on the file, for filtering."""
    return isinstance(verdict_on(act, path, judge), Allow)


def failure(check: CheckTable, judge: Judge, policy: Policy) -> str | None:
    """Return how the policy fails an inline test, name grammar included; None if it passes."""
    try:
        path = canonicalise(check.path, policy.scopes)
        require(act_of(check), path, judge)
    except (PathEscape, Refusal) as refusal:
        answer, told = "deny", str(refusal)
    else:
        over = _over_quota(check, judge, path)
        answer, told = ("deny", over) if over else ("allow", "every layer grants it")
    return None if answer == check.expect else f"expects {check.expect}, the policy returns {answer}: {told}"


def require(act: Act, path: CanonicalPath, judge: Judge) -> None:
    """Raise unless the policy and the name grammar grant the act on the file.

    Raises:
        BadName, Refused: with the message for a model.
    """
    if act == Verb.CREATE:
        check_creatable(path)
    verdict = verdict_on(act, path, judge)
    if isinstance(verdict, Deny):
        raise Refused(verdict.reason, rule=verdict.rule, layer=verdict.layer)


def _over_quota(check: CheckTable, judge: Judge, path: CanonicalPath) -> str | None:
    """Return a message for the first exceeded quota; None if every quota fits."""
    for quota in judge.quotas_for(path):
        for field in QUOTA_NUMBERS:
            asked, most = getattr(check, field.removeprefix("max_")), getattr(quota, field)
            if asked is not None and asked > most:
                return f"the quota {quota.id!r} has {field} = {most}"
    return None


# -- selftest ----------------------------------------------------------------------------------------
#
# Check that every deny rule of a policy has an effect: at load time, by a path for each pattern and verb.
#
# A deny rule without effect is the most common defect of policies, and the least visible. So an automaton
# searches the shortest canonical path that each pattern should match, regardless of the allow rules, and the
# real decision is made on it for every verb of its rule. A pattern without such a path also has no effect.
# These paths, and one for each other pattern, are also checked with pathspec.
#
# Cost: 0.6 ms per pattern, once for each digest in a process.

MAX_WORK: Final = 300_000
"""Steps for one pattern; a pattern of maximum length takes a tenth."""

MAX_KNOWN: Final = 256
"""Cached digests of policies that passed."""

_passed: dict[Digest, None] = {}


Kind = Literal["allow", "deny", "quota"]


@dataclass(frozen=True, slots=True)
class PatternDefect:
    """A pattern that does not have its intended effect.

    Attributes:
        kind: kind of its table.
        rule: the id of the rule or quota.
        pattern: the pattern as written there.
        code: E201: in a deny rule, it has no effect; E204: pathspec reads it differently from the kernel.
        problem: text that follows the pattern in a message.
    """

    kind: Kind
    rule: str
    pattern: str
    code: str
    problem: str


def defects(policy: Policy) -> Iterator[PatternDefect]:
    """Yield every deny pattern of the policy without effect, and every pattern with two readings.

    A policy that passed is not checked again.
    """
    digest = policy.digest
    if digest in _passed:
        return
    judge, is_fine = Judge(_granting_all(policy)), True
    others: list[tuple[Kind, Rule | Quota]] = [
        *(("allow", rule) for layer in policy.layers for rule in layer.allow),
        *(("quota", quota) for quota in policy.quotas),
    ]
    for found in chain(
        *(_of_deny(rule, judge, policy.scopes) for layer in policy.layers for rule in layer.deny),
        *(_of_other(kind, each, policy.scopes) for kind, each in others),
    ):
        is_fine = False
        yield found
    if is_fine:
        _passed[digest] = None
        if len(_passed) > MAX_KNOWN:
            del _passed[next(iter(_passed))]


def _granting_all(policy: Policy) -> Policy:
    """Return the policy with its deny rules, but with an allow rule for everything."""
    everything = Rule(id="all", verbs=tuple(Verb), paths=("/**",))
    return replace(policy, layers=tuple(replace(layer, allow=(everything,)) for layer in policy.layers))


def shortest_match(pattern: str, scopes: tuple[Scope, ...]) -> CanonicalPath | None:
    """Return the shortest canonical path that a deny pattern matches; None if the search finds none.

    If the search exceeds its budget, as for `*-` before twenty `?`, the path is built from the pattern's
    literals.
    """
    letters, budget = plain_letters_for(pattern), Steps(MAX_WORK)
    matcher = DenyPatterns((pattern,))
    outcome = shortest(
        Patterns.tree([pattern], letters, budget),
        letters,
        scopes,
        budget,
        lambda path: matcher.match(path.text, fold(path.text)),
    )
    if isinstance(outcome, FoundPath):
        return outcome.path
    samples = (_sample(pattern, scope) for scope in scopes if isinstance(outcome, Undecided))
    return next((path for path in samples if path and matcher.match(path.text, fold(path.text))), None)


def _sample(pattern: str, scope: Scope) -> CanonicalPath | None:
    """Return a path in `scope` with `-` for each `*` and `?` of the pattern, and without its `**`."""
    segments = pattern.removeprefix("/").removesuffix("/").split("/")
    below = segments[1:] if is_anchored(pattern) and segments[0] != "**" else segments
    names = [name.replace("*", "-").replace("?", "-") for name in below if name != "**"]
    inside = ["-"] if not names or pattern.endswith(("/", "/**")) else []
    try:
        return canonicalise("/".join([scope, *names, *inside]), (scope,))
    except (PathEscape, Refusal):
        return None


def _of_deny(rule: Rule, judge: Judge, scopes: tuple[Scope, ...]) -> Iterator[PatternDefect]:
    for pattern in rule.paths:
        path = shortest_match(pattern, scopes)
        if path is None:
            problem = "matches no path that the name grammar allows; correct or remove it"
            yield PatternDefect("deny", rule.id, pattern, "E201", problem)
            continue
        verb = next((verb for verb in rule.verbs if judge.allows(verb, path)), None)
        if verb is not None:
            problem = f"does not deny {path.text} for {verb}"
            yield PatternDefect("deny", rule.id, pattern, "E201", problem)
        yield from _disputed("deny", rule, pattern, path)


def _of_other(kind: Kind, rule: Rule | Quota, scopes: tuple[Scope, ...]) -> Iterator[PatternDefect]:
    for pattern in rule.paths:
        samples = (_sample(pattern, scope) for scope in scopes)
        path = next((each for each in samples if each is not None), None)
        if path is not None:
            yield from _disputed(kind, rule, pattern, path)


def _disputed(kind: Kind, rule: Rule | Quota, pattern: str, path: CanonicalPath) -> Iterator[PatternDefect]:
    if (text := disagreement(pattern, path, deny=kind == "deny")) is not None:
        problem = f"has another meaning for pathspec, for {text}; write it in another way"
        yield PatternDefect(kind, rule.id, pattern, "E204", problem)


# -- load --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy and its files.

    Attributes:
        policy: the effective one; each layer has the name of its file.
        files: the file itself, then its ancestors, each once.
        locks: the lock files that its files were checked against.
    """

    policy: Policy
    files: tuple[PolicyText, ...]
    locks: tuple[Path, ...] = ()

    @property
    def own(self) -> Layer:
        """Return the rules of the file itself."""
        return next(layer for layer in self.policy.layers if layer.name == self.files[0].name)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return every file that affected the result, locks included, by its given path and its real path."""
        named = [file.path for file in self.files if file.path is not None]
        real = [file.folder / file.path.name for file in self.files if file.path and file.folder]
        return (*dict.fromkeys((*named, *real)), *self.locks)

    @property
    def linked(self) -> frozenset[tuple[int, int]]:
        """Return device and inode of the files with further names, as they were read."""
        return frozenset(file.linked for file in self.files if file.linked is not None)


def load_policy(name_or_path: str, *, policies_dir: Path | None = None) -> Policy:
    """Load a policy with all that it extends; see `load_files`."""
    return load_files(name_or_path, policies_dir=policies_dir).policy


def load_files(
    name_or_path: str,
    *,
    policies_dir: Path | None = None,
    unlocked: Path | None = None,
    tested: bool = True,
) -> Loaded:
    """Load a policy with all that it extends, and return it with its files.

    Args:
        name_or_path: a path if it contains a `/` or ends in `.toml`; otherwise the name of a shipped policy
            or of one in `policies_dir`.
        policies_dir: folder of the user's policies; None: no folder.
        unlocked: a folder whose lock is ignored, while it is edited; never for a run.
        tested: run the inline tests of the file; False for callers that count failures; never for a run.

    Raises:
        PolicyInvalid: for the first problem.
    """
    member = read_family(name_or_path, policies_dir)
    built: dict[str, Policy] = {}
    policy = _effective(member, built, tested=tested)
    files = member.everybody()
    locks = hold_to_locks([(file, built[file.name].digest) for file in files], unlocked)
    return Loaded(policy, files, locks)


def parse_policy(text: str, *, where: str, parents: Lookup) -> Policy:
    """Return the effective policy of a file's text.

    Args:
        text: the file, as TOML.
        where: name or path of the file, for messages.
        parents: returns the text of each policy in `extends`, all of them by name.

    Raises:
        PolicyInvalid: for the first problem, with `where` and its position.
    """
    return _effective(read_texts(text, where, parents), {}, tested=True)


def _outside_dialect(file: PolicyText, scopes: Collection[Scope]) -> Iterator[PolicyInvalid]:
    """Yield an error for every pattern of a file outside the dialect, for these scopes, in its order."""
    for kind in ("allow", "deny", "quota"):
        for index, table in enumerate(getattr(file.tables, kind)):
            for number, pattern in enumerate(table.paths):
                try:
                    place = f"{file.where} {kind}[{table.id}]"
                    check_pattern(pattern, deny=kind == "deny", scopes=scopes, where=place)
                except PolicyInvalid as problem:
                    problem.line = line_at(file.text, (kind, index, "paths", number))
                    yield problem


def wrong_patterns(member: Member) -> list[PolicyInvalid]:
    """Return the errors of the patterns of a file.

    They are the patterns outside the dialect. If all are inside, they are the patterns without effect.

    Raises:
        PolicyInvalid: one of its parents does not load, or no scope is declared.
    """
    file, built = member.file, dict[str, Policy]()
    scope_terms = _scope_terms(file, [_effective(parent, built, tested=True) for parent in member.parents])
    scopes = [terms.name for terms in scope_terms]
    return list(_outside_dialect(file, scopes)) or list(_defective(file, _own(file, scope_terms)))


def _effective(member: Member, built: dict[str, Policy], *, tested: bool) -> Policy:
    """Return the effective policy of a member; `built` caches those of its ancestors and its own by name."""
    file = member.file
    if file.name in built:
        return built[file.name]
    parents = [_effective(parent, built, tested=True) for parent in member.parents]
    own = _own(file, _scope_terms(file, parents))
    for problem in _defective(file, own):
        raise problem
    policy = replace(reduce(meet, parents, own), name=file.name)
    if not policy.scopes:
        raise _no_scope(file, "it and its parents")
    for problem in failed_tests(file, policy) if tested else ():
        raise problem
    built[file.name] = policy
    return policy


def _defective(file: PolicyText, own: Policy) -> Iterator[PolicyInvalid]:
    """Yield an error for every pattern of a file without its intended effect, judged by the file alone."""
    for defect in defects(own):
        tables = getattr(file.tables, defect.kind)
        index = next(at for at, table in enumerate(tables) if table.id == defect.rule)
        line = line_at(file.text, (defect.kind, index, "paths", tables[index].paths.index(defect.pattern)))
        place, problem = f"{defect.kind}[{defect.rule}]", f"pattern {defect.pattern!r} {defect.problem}"
        yield PolicyInvalid(defect.code, f"{file.where} {place}", problem, line)


def failed_tests(file: PolicyText, policy: Policy) -> Iterator[PolicyInvalid]:
    """Yield an error for every inline test of a file that its effective policy fails."""
    judge = Judge(policy)
    for number, check in enumerate(file.tables.test, start=1):
        if told := failure(check, judge, policy):
            line = line_at(file.text, ("test", number - 1))
            yield PolicyInvalid("E401", f"{file.where} test {number}", told, line)


def _scope_terms(file: PolicyText, parents: list[Policy]) -> tuple[ScopeTerms, ...]:
    if file.tables.scopes is not None:
        return tuple(ScopeTerms(Scope(name), **dict(terms)) for name, terms in file.tables.scopes.items())
    if not parents:
        raise PolicyInvalid("E125", file.where, "declares no [scopes] and extends no policy with any")
    shared = reduce(meet, parents).scope_terms
    if not shared:
        raise _no_scope(file, "its parents")
    return shared


def _no_scope(file: PolicyText, who: str) -> PolicyInvalid:
    problem = f"no scope is left: {who} share none ({', '.join(map(printable, file.tables.extends))})"
    line = line_at(file.text, ("scopes",)) or line_at(file.text, ("extends",))
    return PolicyInvalid("E125", file.where, problem, line)


def _own(text: PolicyText, scope_terms: tuple[ScopeTerms, ...]) -> Policy:
    """Return the policy of the file alone, its patterns checked."""
    file, scopes = text.tables, tuple(terms.name for terms in scope_terms)
    for problem in _outside_dialect(text, scopes):
        raise problem
    quotas = [quota_of(table) for table in file.quota]
    return Policy(
        name=file.name,
        scope_terms=scope_terms,
        layers=(Layer(name=file.name, allow=_rules(file.allow), deny=_rules(file.deny)),),
        quotas=(*quotas, *_missing_quotas(quotas, scopes)),
        limits=Limits(**dict(file.limits)),
        confinement=Confinement(**dict(file.confinement)),
        changes=Changes(**dict(file.changes)),
        content=Content(**{**dict(file.content), "reject": tuple(sorted({*file.content.reject}))}),
        provenance=Provenance(**dict(file.provenance)),
        retention=Retention(**dict(file.retention)),
    )


def _rules(tables: Iterable[RuleTable]) -> tuple[Rule, ...]:
    return tuple(Rule(id=table.id, verbs=_verbs(table), paths=table.paths) for table in tables)


def _verbs(table: RuleTable) -> tuple[Verb, ...]:
    return tuple(Verb) if "*" in table.verbs else tuple(Verb(verb) for verb in table.verbs)


def _missing_quotas(quotas: list[Quota], scopes: tuple[Scope, ...]) -> list[Quota]:
    """Return the built-in quota `default` for scopes that no quota covers completely."""
    patterns = {pattern for quota in quotas for pattern in quota.paths}
    whole = {"/**", "/**/*.md", "/*/**", "/*/**/*.md"}
    bare = [s for s in scopes if not patterns & {*whole, f"/{s}/**", f"/{s}/**/*.md"}]
    return [Quota(id="default", paths=tuple(f"/{scope}/**" for scope in bare))] if bare else []
