"""Policy files → the effective `Policy`, or `PolicyInvalid` and nothing runs.

    1. The file and all that it extends are read (`family`) and known completely (`tables`, E1xx).
    2. Every pattern is in the dialect (`pattern`, E2xx), every deny pattern fires (E201), and pathspec reads
       each as the kernel does (E204).
    3. A file's own policy is met with its parents': it can only narrow them.
    4. The file's inline tests hold against the result (E401).
    5. Where a `policy.lock` lies beside a file, it names the policy, with the digest that it has (`lock`).

Codes of this module: E125 no scope is declared, or none is left · E401 an inline test fails. Of a family, as
`family` says: E100, E102, E120 to E124. Of a lock: E130 another digest · E131 not named · E132 no lock.

What does not hold: nobody has signed a file (`policy.signatures` asks for that where a person wants it), and
whoever may write a folder may write its lock.
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
# The inline tests of a policy file: what `[[test]]` asks of the effective policy, and what it answers.
#
# A test names a verb, or `removal`, and a path as a model would write it, so the name grammar answers
# first. With `file_bytes`, `files` or `total_bytes` it asks about quotas too: whether the file may be
# written such that it has so many bytes, or its scope would hold so many files or bytes, as the quotas
# count them.


Act = Verb | Literal["removal"]
"""What a policy grants on a file: one of the verbs to the model, or its removal to code."""

REMOVAL: Final = "removal"
ACTS: Final[tuple[Act, ...]] = (*Verb, REMOVAL)


def act_of(check: CheckTable) -> Act:
    """What an inline test asks for."""
    return REMOVAL if check.verb == REMOVAL else Verb(check.verb)


def granting(act: Act) -> Verb:
    """The verb that allow rules name for the act."""
    return Verb.MODIFY if act == REMOVAL else Verb(act)


def denying(act: Act) -> frozenset[Verb]:
    """The verbs of which each, in a deny rule, forbids the act."""
    return frozenset({Verb.MODIFY, Verb.DELETE} if act == REMOVAL else {Verb(act)})


def verdict_on(act: Act, path: CanonicalPath, judge: Judge) -> Verdict:
    """Whether the policy grants the act on the file."""
    return judge.decide_removal(path) if act == REMOVAL else judge.decide(Verb(act), path)


def grants(act: Act, path: CanonicalPath, judge: Judge) -> bool:
    """The same, for filtering."""
    return isinstance(verdict_on(act, path, judge), Allow)


def failure(check: CheckTable, judge: Judge, policy: Policy) -> str | None:
    """How the policy fails an inline test, the name grammar included; None if it does not."""
    try:
        path = canonicalise(check.path, policy.scopes)
        require(act_of(check), path, judge)
    except (PathEscape, Refusal) as refusal:
        answer, told = "deny", str(refusal)
    else:
        over = _over_quota(check, judge, path)
        answer, told = ("deny", over) if over else ("allow", "every layer grants it")
    return None if answer == check.expect else f"expects {check.expect}, the policy says {answer}: {told}"


def require(act: Act, path: CanonicalPath, judge: Judge) -> None:
    """Raise unless the policy, and the name grammar, grant the act on the file.

    Raises:
        BadName, Refused: as a model would be told.
    """
    if act == Verb.CREATE:
        check_creatable(path)
    verdict = verdict_on(act, path, judge)
    if isinstance(verdict, Deny):
        raise Refused(verdict.reason, rule=verdict.rule, layer=verdict.layer)


def _over_quota(check: CheckTable, judge: Judge, path: CanonicalPath) -> str | None:
    """The first quota that is exceeded, in words; None if none is."""
    for quota in judge.quotas_for(path):
        for field in QUOTA_NUMBERS:
            asked, most = getattr(check, field.removeprefix("max_")), getattr(quota, field)
            if asked is not None and asked > most:
                return f"the quota {quota.id!r} has {field} = {most}"
    return None


# -- selftest ----------------------------------------------------------------------------------------
#
# Whether every deny rule of a policy fires: shown at load time by a path for each pattern and verb.
#
# A deny rule that does nothing is the commonest defect of policies, and the quietest. So for each pattern
# the shortest canonical path that it should match is sought by an automaton of our own, whatever the allow
# rules say, and put to the real decision for every verb of its rule. A pattern without such a path is
# silent as well. On these paths, and on one for each other pattern, pathspec is asked too.
#
# Cost: 0.6 ms a pattern, once for each digest in a process.

MAX_WORK: Final = 300_000
"""Steps for one pattern; a pattern of the greatest length takes a tenth."""

MAX_KNOWN: Final = 256
"""Digests of policies that passed and are kept in mind."""

_passed: dict[Digest, None] = {}


Kind = Literal["allow", "deny", "quota"]


@dataclass(frozen=True, slots=True)
class PatternDefect:
    """A pattern that does not do what it says.

    Attributes:
        kind: of the table in which it stands.
        rule: the id of the rule or quota.
        pattern: as it stands there.
        code: E201: of a deny rule, it does nothing; E204: pathspec reads it otherwise than the kernel.
        problem: in words, to stand after the pattern.
    """

    kind: Kind
    rule: str
    pattern: str
    code: str
    problem: str


def defects(policy: Policy) -> Iterator[PatternDefect]:
    """Every deny pattern of the policy that does not fire, and every pattern that is read in two ways.

    A policy that passed is not tried again.
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
    """The policy with nothing left of it but its deny rules."""
    everything = Rule(id="all", verbs=tuple(Verb), paths=("/**",))
    return replace(policy, layers=tuple(replace(layer, allow=(everything,)) for layer in policy.layers))


def shortest_match(pattern: str, scopes: tuple[Scope, ...]) -> CanonicalPath | None:
    """The shortest canonical path that a deny pattern matches; None if there is none, or none is found.

    Where the search gives up, as on `*-` before twenty `?`, it is a path made of the pattern's literals.
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
    """The path below `scope` that has `-` for each `*` and `?` of the pattern, and nothing for `**`."""
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
            problem = "matches no path that the name grammar allows, so it denies nothing"
            yield PatternDefect("deny", rule.id, pattern, "E201", problem)
            continue
        verb = next((verb for verb in rule.verbs if judge.allows(verb, path)), None)
        if verb is not None:
            problem = f"does not keep {path.text} from {verb}"
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
        problem = f"means something else to pathspec, for {text}; write it in another way"
        yield PatternDefect(kind, rule.id, pattern, "E204", problem)


# -- load --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy and where it comes from.

    Attributes:
        policy: the effective one; a layer of it has the name of its file.
        files: the file itself, then its ancestors, each once.
        locks: the lock files that its files were held to.
    """

    policy: Policy
    files: tuple[PolicyText, ...]
    locks: tuple[Path, ...] = ()

    @property
    def own(self) -> Layer:
        """The rules of the file itself."""
        return next(layer for layer in self.policy.layers if layer.name == self.files[0].name)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file that had a say, locks included, as it was named and where it really stood."""
        named = [file.path for file in self.files if file.path is not None]
        real = [file.folder / file.path.name for file in self.files if file.path and file.folder]
        return (*dict.fromkeys((*named, *real)), *self.locks)

    @property
    def linked(self) -> frozenset[tuple[int, int]]:
        """Device and inode of those that have further names, as they were read."""
        return frozenset(file.linked for file in self.files if file.linked is not None)


def load_policy(name_or_path: str, *, policies_dir: Path | None = None) -> Policy:
    """Load a policy with all it extends; see `load_files`."""
    return load_files(name_or_path, policies_dir=policies_dir).policy


def load_files(
    name_or_path: str,
    *,
    policies_dir: Path | None = None,
    unlocked: Path | None = None,
    tested: bool = True,
) -> Loaded:
    """Load a policy with all it extends, and keep the files.

    Args:
        name_or_path: a path if it holds a `/` or ends in `.toml`; otherwise the name of a shipped policy
            or of one in `policies_dir`.
        policies_dir: where a person keeps policies; None for nowhere.
        unlocked: a folder whose lock does not count, for those who edit there; never for a run.
        tested: hold the file to its inline tests; without, for those who count failures; never for a run.

    Raises:
        PolicyInvalid: for the first thing that is wrong.
    """
    member = read_family(name_or_path, policies_dir)
    built: dict[str, Policy] = {}
    policy = _effective(member, built, tested=tested)
    files = member.everybody()
    locks = hold_to_locks([(file, built[file.name].digest) for file in files], unlocked)
    return Loaded(policy, files, locks)


def parse_policy(text: str, *, where: str, parents: Lookup) -> Policy:
    """The effective policy of a file's text.

    Args:
        text: the file, as TOML.
        where: name or path of the file, for messages.
        parents: gives the text of each policy in `extends`, all of them by name.

    Raises:
        PolicyInvalid: for the first thing that is wrong, `where` and place included.
    """
    return _effective(read_texts(text, where, parents), {}, tested=True)


def _outside_dialect(file: PolicyText, scopes: Collection[Scope]) -> Iterator[PolicyInvalid]:
    """Every pattern that is outside the dialect, of a file with these scopes, in its order."""
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
    """Every complaint about patterns of a file: outside the dialect, or, if none is, silent.

    Raises:
        PolicyInvalid: one of its parents does not load, or there is no scope.
    """
    file, built = member.file, dict[str, Policy]()
    scope_terms = _scope_terms(file, [_effective(parent, built, tested=True) for parent in member.parents])
    scopes = [terms.name for terms in scope_terms]
    return list(_outside_dialect(file, scopes)) or list(_defective(file, _own(file, scope_terms)))


def _effective(member: Member, built: dict[str, Policy], *, tested: bool) -> Policy:
    """The effective policy of a member; `built` has those of its ancestors by name, and then its own."""
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
    """Every pattern of a file that does not do what it says, by what the file says by itself."""
    for defect in defects(own):
        tables = getattr(file.tables, defect.kind)
        index = next(at for at, table in enumerate(tables) if table.id == defect.rule)
        line = line_at(file.text, (defect.kind, index, "paths", tables[index].paths.index(defect.pattern)))
        place, problem = f"{defect.kind}[{defect.rule}]", f"pattern {defect.pattern!r} {defect.problem}"
        yield PolicyInvalid(defect.code, f"{file.where} {place}", problem, line)


def failed_tests(file: PolicyText, policy: Policy) -> Iterator[PolicyInvalid]:
    """Every inline test of a file that its effective policy fails."""
    judge = Judge(policy)
    for number, check in enumerate(file.tables.test, start=1):
        if told := failure(check, judge, policy):
            line = line_at(file.text, ("test", number - 1))
            yield PolicyInvalid("E401", f"{file.where} test {number}", told, line)


def _scope_terms(file: PolicyText, parents: list[Policy]) -> tuple[ScopeTerms, ...]:
    if file.tables.scopes is not None:
        return tuple(ScopeTerms(Scope(name), **dict(terms)) for name, terms in file.tables.scopes.items())
    if not parents:
        raise PolicyInvalid("E125", file.where, "declares no [scopes] and extends nothing that does")
    shared = reduce(meet, parents).scope_terms
    if not shared:
        raise _no_scope(file, "its parents")
    return shared


def _no_scope(file: PolicyText, who: str) -> PolicyInvalid:
    problem = f"no scope is left: {who} share none ({', '.join(map(printable, file.tables.extends))})"
    line = line_at(file.text, ("scopes",)) or line_at(file.text, ("extends",))
    return PolicyInvalid("E125", file.where, problem, line)


def _own(text: PolicyText, scope_terms: tuple[ScopeTerms, ...]) -> Policy:
    """What the file says by itself, its patterns checked."""
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
    """The built-in ceiling `default` for scopes that no quota covers as a whole."""
    patterns = {pattern for quota in quotas for pattern in quota.paths}
    whole = {"/**", "/**/*.md", "/*/**", "/*/**/*.md"}
    bare = [s for s in scopes if not patterns & {*whole, f"/{s}/**", f"/{s}/**/*.md"}]
    return [Quota(id="default", paths=tuple(f"/{scope}/**" for scope in bare))] if bare else []
