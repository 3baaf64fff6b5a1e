"""Load a policy file and all files that it extends into the effective `Policy`, or raise `PolicyInvalid`.

    1. The file and all files that it extends are read (`family`) and fully validated (`tables`, E1xx).
    2. Every pattern is in the dialect (`pattern`, E2xx), every deny pattern has an effect (E201), and
       pathspec reads each pattern as the kernel does (E204).
    3. A file's rules are combined with its parents' by `meet`: a file can only narrow them.
    4. The file's inline tests pass on the result (E401).
    5. If the folder of a file contains a `policy.lock`, this lock lists the policy with its current digest
       (`family`).

Codes of this module: E125 no scope is declared or left · E401 an inline test fails. Of a family, see
`files` and `family`: E100, E102, E120 to E124. Of a lock: E130 another digest · E131 not listed · E132
invalid lock.

Not guaranteed: a file need not be signed (`policy.signatures` requires it if the user configures that), and a
process that may write a folder may also write its lock.
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
    ConfinementRequirement,
    Content,
    Deny,
    DenyPatterns,
    Layer,
    Limits,
    Policy,
    PolicyDecision,
    PolicyEvaluator,
    Provenance,
    Quota,
    Retention,
    Rule,
    ScopeOptions,
    is_anchored,
)
from muniment.kernel.names import Digest, Scope, Verb
from muniment.kernel.path import CanonicalPath, canonicalise, fold
from muniment.policy.automaton import (
    FoundPath,
    Patterns,
    StepBudget,
    Undecided,
    build_tree_letters,
    find_shortest_path,
)
from muniment.policy.combine import meet
from muniment.policy.family import FamilyMember, Lookup, check_locks, read_family, read_text_family
from muniment.policy.files import LoadedPolicy, PolicyText
from muniment.policy.grammar import check_creatable
from muniment.policy.pattern import check_pattern, find_disagreement
from muniment.policy.tables import CheckTable, RuleTable, build_quota, find_nearest_line

# -- checks ------------------------------------------------------------------------------------------
#
# The inline tests of a policy file: the `[[test]]` requests and the decisions of the effective policy.
#
# A test contains a verb, or `removal`, and a path as a model would write it, so the name grammar is checked
# first. With `file_bytes`, `files` or `total_bytes` it also checks quotas: whether the file may be written so
# that it has that many bytes, or its scope that many files or bytes, as the quotas count them.


Act = Verb | Literal["removal"]
"""An action on a file that a policy can grant: a verb to the model, or `removal`, its removal by code."""

REMOVAL: Final = "removal"
ACTS: Final[tuple[Act, ...]] = (*Verb, REMOVAL)


def get_act(check: CheckTable) -> Act:
    """Return the act that an inline test is about."""
    return REMOVAL if check.verb == REMOVAL else Verb(check.verb)


def get_granting_verb(act: Act) -> Verb:
    """Return the verb that an allow rule must contain to grant an act."""
    return Verb.MODIFY if act == REMOVAL else Verb(act)


def get_denying_verbs(act: Act) -> frozenset[Verb]:
    """Return the verbs that deny an act; one of them in a deny rule is enough."""
    return frozenset({Verb.MODIFY, Verb.DELETE} if act == REMOVAL else {Verb(act)})


def decide_act(act: Act, path: CanonicalPath, judge: PolicyEvaluator) -> PolicyDecision:
    """Return the decision of the policy about an act on a file."""
    return judge.decide_removal(path) if act == REMOVAL else judge.decide(Verb(act), path)


def is_granted(act: Act, path: CanonicalPath, judge: PolicyEvaluator) -> bool:
    """Return whether the policy grants an act on a file."""
    return isinstance(decide_act(act, path, judge), Allow)


def find_failure(check: CheckTable, judge: PolicyEvaluator, policy: Policy) -> str | None:
    """Return how an inline test fails under the policy and the name grammar, or None if it passes."""
    try:
        path = canonicalise(check.path, policy.scopes)
        require_act(get_act(check), path, judge)
    except (PathEscape, Refusal) as refusal:
        actual, reason = "deny", str(refusal)
    else:
        quota_problem = _find_exceeded_quota(check, judge, path)
        actual, reason = ("deny", quota_problem) if quota_problem else ("allow", "every layer grants it")
    return (
        None if actual == check.expect else f"expects {check.expect}, the policy returns {actual}: {reason}"
    )


def require_act(act: Act, path: CanonicalPath, judge: PolicyEvaluator) -> None:
    """Raise unless the policy and the name grammar grant an act on a file.

    Raises:
        BadName, Refused: the name grammar or the policy denies the act; a model may see the message.
    """
    if act == Verb.CREATE:
        check_creatable(path)
    decision = decide_act(act, path, judge)
    if isinstance(decision, Deny):
        raise Refused(decision.reason, rule=decision.rule, layer=decision.layer)


def _find_exceeded_quota(check: CheckTable, judge: PolicyEvaluator, path: CanonicalPath) -> str | None:
    """Return a message about the first quota that an inline test exceeds, or None if it exceeds none."""
    for quota in judge.quotas_for(path):
        for field in QUOTA_NUMBERS:
            requested, maximum = getattr(check, field.removeprefix("max_")), getattr(quota, field)
            if requested is not None and requested > maximum:
                return f"the quota {quota.id!r} has {field} = {maximum}"
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
"""Maximum number of steps for one pattern; a pattern of maximum length takes a tenth of them."""

MAX_CACHED_DIGESTS: Final = 256
"""Maximum number of cached digests of policies that passed the check."""

_passed_digests: dict[Digest, None] = {}


Kind = Literal["allow", "deny", "quota"]


@dataclass(frozen=True, slots=True)
class PatternDefect:
    """A pattern that does not have its intended effect.

    Attributes:
        kind: the table of the pattern: `allow`, `deny` or `quota`.
        rule: the id of the rule or quota.
        pattern: the pattern as written in the rule or quota.
        code: E201: a deny pattern has no effect. E204: pathspec reads a pattern differently from the kernel.
        problem: the text that follows the pattern in a message.
    """

    kind: Kind
    rule: str
    pattern: str
    code: str
    problem: str


def find_defects(policy: Policy) -> Iterator[PatternDefect]:
    """Yield the deny patterns without effect, and all patterns that pathspec reads differently.

    A policy that passed is not checked again.
    """
    digest = policy.digest
    if digest in _passed_digests:
        return
    judge, is_fine = PolicyEvaluator(_build_granting_policy(policy)), True
    others: list[tuple[Kind, Rule | Quota]] = [
        *(("allow", rule) for layer in policy.layers for rule in layer.allow),
        *(("quota", quota) for quota in policy.quotas),
    ]
    for found in chain(
        *(_find_deny_defects(rule, judge, policy.scopes) for layer in policy.layers for rule in layer.deny),
        *(_find_other_defects(kind, each, policy.scopes) for kind, each in others),
    ):
        is_fine = False
        yield found
    if is_fine:
        _passed_digests[digest] = None
        if len(_passed_digests) > MAX_CACHED_DIGESTS:
            del _passed_digests[next(iter(_passed_digests))]


def _build_granting_policy(policy: Policy) -> Policy:
    """Return the policy with its deny rules, but with an allow rule for everything."""
    everything = Rule(id="all", verbs=tuple(Verb), paths=("/**",))
    return replace(policy, layers=tuple(replace(layer, allow=(everything,)) for layer in policy.layers))


def find_shortest_match(pattern: str, scopes: tuple[Scope, ...]) -> CanonicalPath | None:
    """Return the shortest canonical path that a deny pattern matches, or None if the search finds none.

    If the search exceeds its budget, as for `*-` before twenty `?`, a path is built from the pattern's
    literals; it may be longer.
    """
    letters, budget = build_tree_letters(pattern), StepBudget(MAX_WORK)
    matcher = DenyPatterns((pattern,))
    outcome = find_shortest_path(
        Patterns.tree([pattern], letters, budget),
        letters,
        scopes,
        budget,
        lambda path: matcher.match(path.text, fold(path.text)),
    )
    if isinstance(outcome, FoundPath):
        return outcome.path
    samples = (_build_sample(pattern, scope) for scope in scopes if isinstance(outcome, Undecided))
    return next((path for path in samples if path and matcher.match(path.text, fold(path.text))), None)


def _build_sample(pattern: str, scope: Scope) -> CanonicalPath | None:
    """Return a path in `scope` that is built from a pattern, or None if it is not canonical.

    It has `-` for each `*` and `?` of the pattern, and no segment for `**`.
    """
    segments = pattern.removeprefix("/").removesuffix("/").split("/")
    below = segments[1:] if is_anchored(pattern) and segments[0] != "**" else segments
    names = [name.replace("*", "-").replace("?", "-") for name in below if name != "**"]
    inside = ["-"] if not names or pattern.endswith(("/", "/**")) else []
    try:
        return canonicalise("/".join([scope, *names, *inside]), (scope,))
    except (PathEscape, Refusal):
        return None


def _find_deny_defects(
    rule: Rule, judge: PolicyEvaluator, scopes: tuple[Scope, ...]
) -> Iterator[PatternDefect]:
    for pattern in rule.paths:
        path = find_shortest_match(pattern, scopes)
        if path is None:
            problem = "matches no path that the name grammar allows; correct or remove it"
            yield PatternDefect("deny", rule.id, pattern, "E201", problem)
            continue
        verb = next((verb for verb in rule.verbs if judge.allows(verb, path)), None)
        if verb is not None:
            problem = f"does not deny {path.text} for {verb}"
            yield PatternDefect("deny", rule.id, pattern, "E201", problem)
        yield from _find_disagreement("deny", rule, pattern, path)


def _find_other_defects(kind: Kind, rule: Rule | Quota, scopes: tuple[Scope, ...]) -> Iterator[PatternDefect]:
    for pattern in rule.paths:
        samples = (_build_sample(pattern, scope) for scope in scopes)
        path = next((each for each in samples if each is not None), None)
        if path is not None:
            yield from _find_disagreement(kind, rule, pattern, path)


def _find_disagreement(
    kind: Kind, rule: Rule | Quota, pattern: str, path: CanonicalPath
) -> Iterator[PatternDefect]:
    if (text := find_disagreement(pattern, path, deny=kind == "deny")) is not None:
        problem = f"has another meaning for pathspec, for example for {text}; write it in another way"
        yield PatternDefect(kind, rule.id, pattern, "E204", problem)


# -- load --------------------------------------------------------------------------------------------


def load_policy(name_or_path: str, *, policies_dir: Path | None = None) -> Policy:
    """Return the effective policy of a file and of all files that it extends; see `load_files`."""
    return load_files(name_or_path, policies_dir=policies_dir).policy


def load_files(
    name_or_path: str,
    *,
    policies_dir: Path | None = None,
    unlocked: Path | None = None,
    run_tests: bool = True,
) -> LoadedPolicy:
    """Load a policy file and all files that it extends, and return the effective policy with these files.

    Args:
        name_or_path: a path if it contains a `/` or ends in `.toml`; otherwise the name of a shipped policy
            or of one in `policies_dir`.
        policies_dir: the folder of the user's policies; None: no folder.
        unlocked: a folder whose lock is ignored, while it is edited; never for a run.
        run_tests: run the inline tests of the file; False for callers that count failures; never for a run.

    Raises:
        PolicyInvalid: the policy is invalid; the error is about the first problem.
    """
    member = read_family(name_or_path, policies_dir)
    policies_by_name: dict[str, Policy] = {}
    policy = _build_effective(member, policies_by_name, run_tests=run_tests)
    files = member.list_files()
    locks = check_locks([(file, policies_by_name[file.name].digest) for file in files], unlocked)
    return LoadedPolicy(policy, files, locks)


def parse_policy(text: str, *, where: str, parents: Lookup) -> Policy:
    """Return the effective policy for the text of a policy file.

    Args:
        text: the file, as TOML.
        where: the name or path of the file, for messages.
        parents: returns the text of a policy in `extends`; the text must refer to all of them by name.

    Raises:
        PolicyInvalid: the policy is invalid; the error has the position of the first problem.
    """
    return _build_effective(read_text_family(text, where, parents), {}, run_tests=True)


def _check_dialect(file: PolicyText, scopes: Collection[Scope]) -> Iterator[PolicyInvalid]:
    """Yield an error for each pattern of a file that is outside the dialect, in the order of the file.

    Args:
        file: the policy file.
        scopes: the scopes that patterns may begin with.
    """
    for kind in ("allow", "deny", "quota"):
        for index, table in enumerate(getattr(file.tables, kind)):
            for number, pattern in enumerate(table.paths):
                try:
                    position = f"{file.where} {kind}[{table.id}]"
                    check_pattern(pattern, deny=kind == "deny", scopes=scopes, where=position)
                except PolicyInvalid as problem:
                    problem.line = find_nearest_line(file.text, (kind, index, "paths", number))
                    yield problem


def find_pattern_errors(member: FamilyMember) -> list[PolicyInvalid]:
    """Return the errors in the patterns of a file.

    If patterns are outside the dialect, only these are reported. Otherwise patterns without their intended
    effect are reported.

    Raises:
        PolicyInvalid: one of its parents does not load, or no scope is declared.
    """
    file, policies_by_name = member.file, dict[str, Policy]()
    scope_options = _build_scope_options(
        file, [_build_effective(parent, policies_by_name, run_tests=True) for parent in member.parents]
    )
    scopes = [options.name for options in scope_options]
    return list(_check_dialect(file, scopes)) or list(
        _find_pattern_defects(file, _build_own_policy(file, scope_options))
    )


def _build_effective(member: FamilyMember, policies_by_name: dict[str, Policy], *, run_tests: bool) -> Policy:
    """Return the effective policy of a file with its parents.

    Args:
        member: the file with its parents.
        policies_by_name: a cache of this policy and of those of its ancestors.
        run_tests: whether to run the inline tests of the file.
    """
    file = member.file
    if file.name in policies_by_name:
        return policies_by_name[file.name]
    parents = [_build_effective(parent, policies_by_name, run_tests=True) for parent in member.parents]
    own = _build_own_policy(file, _build_scope_options(file, parents))
    for problem in _find_pattern_defects(file, own):
        raise problem
    policy = replace(reduce(meet, parents, own), name=file.name)
    if not policy.scopes:
        raise _build_no_scope_error(file, "it and its parents")
    for problem in find_failed_tests(file, policy) if run_tests else ():
        raise problem
    policies_by_name[file.name] = policy
    return policy


def _find_pattern_defects(file: PolicyText, own: Policy) -> Iterator[PolicyInvalid]:
    """Yield an error for each pattern of a file without its intended effect.

    Args:
        file: the policy file.
        own: the policy of this file without its parents.
    """
    for defect in find_defects(own):
        tables = getattr(file.tables, defect.kind)
        index = next(at for at, table in enumerate(tables) if table.id == defect.rule)
        line = find_nearest_line(
            file.text, (defect.kind, index, "paths", tables[index].paths.index(defect.pattern))
        )
        position, problem = f"{defect.kind}[{defect.rule}]", f"pattern {defect.pattern!r} {defect.problem}"
        yield PolicyInvalid(defect.code, f"{file.where} {position}", problem, line)


def find_failed_tests(file: PolicyText, policy: Policy) -> Iterator[PolicyInvalid]:
    """Yield an error for each inline test of a file that its effective policy fails."""
    judge = PolicyEvaluator(policy)
    for number, check in enumerate(file.tables.test, start=1):
        if reason := find_failure(check, judge, policy):
            line = find_nearest_line(file.text, ("test", number - 1))
            yield PolicyInvalid("E401", f"{file.where} test {number}", reason, line)


def _build_scope_options(file: PolicyText, parents: list[Policy]) -> tuple[ScopeOptions, ...]:
    if file.tables.scopes is not None:
        return tuple(
            ScopeOptions(Scope(name), **dict(options)) for name, options in file.tables.scopes.items()
        )
    if not parents:
        raise PolicyInvalid(
            "E125", file.where, "declares no [scopes] and extends no policy that does; add [scopes]"
        )
    shared = reduce(meet, parents).scope_options
    if not shared:
        raise _build_no_scope_error(file, "its parents")
    return shared


def _build_no_scope_error(file: PolicyText, who: str) -> PolicyInvalid:
    problem = (
        f"no scope is left: {who} have none in common ({', '.join(map(printable, file.tables.extends))})"
    )
    line = find_nearest_line(file.text, ("scopes",)) or find_nearest_line(file.text, ("extends",))
    return PolicyInvalid("E125", file.where, problem, line)


def _build_own_policy(text: PolicyText, scope_options: tuple[ScopeOptions, ...]) -> Policy:
    """Return the policy of a file without its parents, after a check of its patterns."""
    file, scopes = text.tables, tuple(options.name for options in scope_options)
    for problem in _check_dialect(text, scopes):
        raise problem
    quotas = [build_quota(table) for table in file.quota]
    return Policy(
        name=file.name,
        scope_options=scope_options,
        layers=(Layer(name=file.name, allow=_build_rules(file.allow), deny=_build_rules(file.deny)),),
        quotas=(*quotas, *_build_missing_quotas(quotas, scopes)),
        limits=Limits(**dict(file.limits)),
        confinement=ConfinementRequirement(**dict(file.confinement)),
        changes=Changes(**dict(file.changes)),
        content=Content(**{**dict(file.content), "reject": tuple(sorted({*file.content.reject}))}),
        provenance=Provenance(**dict(file.provenance)),
        retention=Retention(**dict(file.retention)),
    )


def _build_rules(tables: Iterable[RuleTable]) -> tuple[Rule, ...]:
    return tuple(Rule(id=table.id, verbs=_expand_verbs(table), paths=table.paths) for table in tables)


def _expand_verbs(table: RuleTable) -> tuple[Verb, ...]:
    return tuple(Verb) if "*" in table.verbs else tuple(Verb(verb) for verb in table.verbs)


def _build_missing_quotas(quotas: list[Quota], scopes: tuple[Scope, ...]) -> list[Quota]:
    """Return the built-in quota `default` for the scopes that no quota covers completely, if any."""
    patterns = {pattern for quota in quotas for pattern in quota.paths}
    complete_patterns = {"/**", "/**/*.md", "/*/**", "/*/**/*.md"}
    uncovered_scopes = [s for s in scopes if not patterns & {*complete_patterns, f"/{s}/**", f"/{s}/**/*.md"}]
    return (
        [Quota(id="default", paths=tuple(f"/{scope}/**" for scope in uncovered_scopes))]
        if uncovered_scopes
        else []
    )
