"""Policy files → the effective `Policy`, or `PolicyInvalid` and nothing runs.

    1. The file and all that it extends are read (`family`) and known completely (`tables`, E1xx).
    2. Every pattern is in the dialect (`pattern`, E2xx), and every deny pattern fires (`selftest`, E201).
    3. A file's own policy is met with its parents': it can only narrow them.
    4. The file's inline tests hold against the result (E401).
    5. Where a `policy.lock` lies beside a file, it names the policy, with the digest that it has (`lock`).

Codes of this module: E125 no scope is declared, or none is left · E401 an inline test fails. Of a family, as
`family` says: E100, E102, E120 to E124. Of a lock: E130 another digest · E131 not named · E132 no lock.

What does not hold: nobody has signed a file (`signatures` asks for that where a person wants it), and whoever
may write a folder may write its lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Final

from muniment.errors import PathEscape, PolicyInvalid, Refusal, printable
from muniment.kernel.names import Digest, Scope, Verb
from muniment.kernel.path import CanonicalPath, canonicalise, fold
from muniment.policy.automaton import FoundPath, Patterns, Steps, Undecided, plain_letters_for, shortest
from muniment.policy.decide import (
    QUOTA_NUMBERS,
    REMOVAL,
    Act,
    Content,
    DenyPatterns,
    Judge,
    Layer,
    Policy,
    Quota,
    Rule,
    ScopeTerms,
    check_pattern,
    is_anchored,
)
from muniment.policy.family import Lookup, Member, PolicyText, hold_to_locks, read_family, read_texts
from muniment.policy.grammar import check_creatable
from muniment.policy.tables import CheckTable, PolicyFile, RuleTable, line_at, meet, sorted_quotas

# -- checks ------------------------------------------------------------------------------------------
#
# The inline tests of a policy file: what `[[test]]` asks of the effective policy, and what it answers.
#
# A test names a verb, or `removal`, and a path as a model would write it, so the name grammar answers
# first. With `file_bytes`, `files` or `total_bytes` it asks about quotas too: whether the file may be
# written such that it has so many bytes, or its scope would hold so many files or bytes, as the quotas
# count them.


def act_of(check: CheckTable) -> Act:
    """What an inline test asks for."""
    return REMOVAL if check.verb == REMOVAL else Verb(check.verb)


def failure(check: CheckTable, judge: Judge, policy: Policy) -> str | None:
    """How the policy fails an inline test, the name grammar included; None if it does not."""
    try:
        path = canonicalise(check.path, policy.scopes)
        _require(act_of(check), judge, path)
    except (PathEscape, Refusal) as refusal:
        answer, told = "deny", str(refusal)
    else:
        over = _over_quota(check, judge, path)
        answer, told = ("deny", over) if over else ("allow", "every layer grants it")
    return None if answer == check.expect else f"expects {check.expect}, the policy says {answer}: {told}"


def _require(act: Act, judge: Judge, path: CanonicalPath) -> None:
    if act == REMOVAL:
        judge.require_removal(path)
        return
    if act == Verb.CREATE:
        check_creatable(path)
    judge.require(Verb(act), path)


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
# silent as well.
#
# Cost: 0.4 ms a pattern, once for each digest in a process.

MAX_WORK: Final = 300_000
"""Steps for one pattern; a pattern of the greatest length takes a tenth."""

MAX_KNOWN: Final = 256
"""Digests of policies that passed and are kept in mind."""

_passed: dict[Digest, None] = {}


@dataclass(frozen=True, slots=True)
class Silent:
    """A deny pattern that does nothing.

    Attributes:
        layer: the name of the file.
        rule: the id of the rule.
        pattern: as it stands there.
        verb: for which it does not fire; None if it matches no path at all.
        path: the one that it should deny; None if there is none.
    """

    layer: str
    rule: str
    pattern: str
    verb: Verb | None
    path: CanonicalPath | None


def silent_denies(policy: Policy) -> Iterator[Silent]:
    """Every deny pattern of the policy that does not fire; a policy that passed is not tried again."""
    digest = policy.digest
    if digest in _passed:
        return
    judge, fires = Judge(_granting_all(policy)), True
    for layer in policy.layers:
        for rule in layer.deny:
            for found in _silent(rule, layer.name, judge, policy.scopes):
                fires = False
                yield found
    if fires:
        _passed[digest] = None
        if len(_passed) > MAX_KNOWN:
            del _passed[next(iter(_passed))]


def _granting_all(policy: Policy) -> Policy:
    """The policy with nothing left of it but its deny rules."""
    everything = Rule(id="all", verbs=tuple(sorted(Verb)), paths=("/**",))
    layers = tuple(layer.model_copy(update={"allow": (everything,)}) for layer in policy.layers)
    return policy.model_copy(update={"layers": layers})


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


def _silent(rule: Rule, layer: str, judge: Judge, scopes: tuple[Scope, ...]) -> Iterator[Silent]:
    for pattern in rule.paths:
        path = shortest_match(pattern, scopes)
        if path is None:
            yield Silent(layer, rule.id, pattern, None, None)
            continue
        for verb in rule.verbs:
            if judge.allows(verb, path):
                yield Silent(layer, rule.id, pattern, verb, path)
                break


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


def pattern_problems(
    file: PolicyFile, scopes: Collection[Scope], where: str, text: str = ""
) -> Iterator[PolicyInvalid]:
    """Every pattern of a file that is outside the dialect, in the order of the file.

    Args:
        file: the file.
        scopes: those that it declares, or inherits.
        where: name or path of the file, for messages.
        text: its content, so that a problem knows its line.
    """
    for kind in ("allow", "deny", "quota"):
        for index, table in enumerate(getattr(file, kind)):
            for number, pattern in enumerate(table.paths):
                try:
                    place = f"{where} {kind}[{table.id}]"
                    check_pattern(pattern, deny=kind == "deny", scopes=scopes, where=place)
                except PolicyInvalid as problem:
                    problem.line = line_at(text, (kind, index, "paths", number))
                    yield problem


def wrong_patterns(member: Member) -> list[PolicyInvalid]:
    """Every complaint about patterns of a file: outside the dialect, or, if none is, silent.

    Raises:
        PolicyInvalid: one of its parents does not load, or there is no scope.
    """
    file, built = member.file, dict[str, Policy]()
    scope_terms = _scope_terms(file, [_effective(parent, built, tested=True) for parent in member.parents])
    scopes = [terms.name for terms in scope_terms]
    found = list(pattern_problems(file.tables, scopes, file.where, file.text))
    return found or list(silent_problems(file, _own(file, scope_terms)))


def _effective(member: Member, built: dict[str, Policy], *, tested: bool) -> Policy:
    """The effective policy of a member; `built` has those of its ancestors by name, and then its own."""
    file = member.file
    if file.name in built:
        return built[file.name]
    parents = [_effective(parent, built, tested=True) for parent in member.parents]
    own = _own(file, _scope_terms(file, parents))
    for problem in silent_problems(file, own):
        raise problem
    policy = reduce(meet, parents, own).model_copy(update={"name": file.name})
    if not policy.scopes:
        raise _no_scope(file, "it and its parents")
    for problem in failed_tests(file, policy) if tested else ():
        raise problem
    built[file.name] = policy
    return policy


def silent_problems(file: PolicyText, own: Policy) -> Iterator[PolicyInvalid]:
    """Every deny pattern of a file that does not fire, by what the file says by itself."""
    for silent in silent_denies(own):
        index = next(at for at, rule in enumerate(file.tables.deny) if rule.id == silent.rule)
        number = file.tables.deny[index].paths.index(silent.pattern)
        line = line_at(file.text, ("deny", index, "paths", number))
        problem = (
            f"pattern {silent.pattern!r} matches no path that the name grammar allows, so it denies nothing"
        )
        if silent.path is not None:
            problem = f"pattern {silent.pattern!r} does not keep {silent.path.text} from {silent.verb}"
        yield PolicyInvalid("E201", f"{file.where} deny[{silent.rule}]", problem, line)


def failed_tests(file: PolicyText, policy: Policy) -> Iterator[PolicyInvalid]:
    """Every inline test of a file that its effective policy fails."""
    judge = Judge(policy)
    for number, check in enumerate(file.tables.test, start=1):
        if told := failure(check, judge, policy):
            line = line_at(file.text, ("test", number - 1))
            yield PolicyInvalid("E401", f"{file.where} test {number}", told, line)


def _scope_terms(file: PolicyText, parents: list[Policy]) -> tuple[ScopeTerms, ...]:
    if file.tables.scopes is not None:
        return tuple(
            ScopeTerms(name=Scope(name), trust=terms.trust, commit=terms.commit)
            for name, terms in file.tables.scopes.items()
        )
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
    for problem in pattern_problems(file, scopes, text.where, text.text):
        raise problem
    quotas = [Quota(**{**dict(table), "paths": _sorted(table.paths)}) for table in file.quota]
    return Policy(
        name=file.name,
        scope_terms=scope_terms,
        layers=(Layer(name=file.name, allow=_rules(file.allow), deny=_rules(file.deny)),),
        quotas=sorted_quotas([*quotas, *_missing_quotas(quotas, scopes)]),
        limits=file.limits,
        confinement=file.confinement,
        changes=file.changes,
        content=Content(**{**dict(file.content), "reject": _sorted(file.content.reject)}),
        provenance=file.provenance,
        retention=file.retention,
    )


def _rules(tables: Iterable[RuleTable]) -> tuple[Rule, ...]:
    rules = [Rule(id=table.id, verbs=_verbs(table), paths=_sorted(table.paths)) for table in tables]
    return tuple(sorted(rules, key=lambda rule: rule.id))


def _verbs(table: RuleTable) -> tuple[Verb, ...]:
    return tuple(sorted(Verb)) if "*" in table.verbs else tuple(sorted({Verb(verb) for verb in table.verbs}))


def _sorted(texts: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(set(texts)))


def _missing_quotas(quotas: list[Quota], scopes: tuple[Scope, ...]) -> list[Quota]:
    """The built-in ceiling `default` for scopes that no quota covers as a whole."""
    patterns = {pattern for quota in quotas for pattern in quota.paths}
    whole = {"/**", "/**/*.md", "/*/**", "/*/**/*.md"}
    bare = [s for s in scopes if not patterns & {*whole, f"/{s}/**", f"/{s}/**/*.md"}]
    return [Quota(id="default", paths=tuple(sorted(f"/{scope}/**" for scope in bare)))] if bare else []
