"""(verb, path) → verdict.

    1. The path lies in a declared scope and names something in it; otherwise deny.
    2. A matching deny rule of any layer: deny.
    3. Every layer has an allow rule that matches: allow. Otherwise deny, rule `default`.

Contract:
    D1  `decide` answers for every verb and every `CanonicalPath`, also one that no grammar let through, and
        never raises.
    D2  Rules commute: neither their order nor that of layers changes a verdict. More deny rules or more
        layers never grant more.
    D3  A judge holds nothing but its policy; the same question has the same answer in broker and worker.

Cost: building takes about 2 ms for the shipped `strict`, deciding about 10 µs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Final, Literal

from pathspec import PathSpec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from muniment.errors import PolicyInvalid, Refused
from muniment.kernel.names import Digest, Enforcement, Scope, Trust, Verb
from muniment.kernel.path import GRAMMAR_LAYER, RESERVED_ASCII, CanonicalPath, fold, is_normalised

# -- model -------------------------------------------------------------------------------------------
#
# The effective policy of a run: a value that broker and worker hold alike.
#
# A `Policy` is what remains of one or more policy files: layers of rules that must all agree, and scalars
# that are already the strictest of all. It is built by `load` and narrowed by `meet`, never by hand, so its
# patterns have been checked. It crosses to the worker as JSON (`dump`, `parse_dump`).
#
# Contract:
#     P1  Frozen all the way down; equal policies have equal digests.
#     P2  `digest` covers everything that can change a verdict or a limit, with the rule ids and layer names
#         that records cite, and nothing else; order of files, rules, verbs and patterns is not in it.
#     P3  No limit is absent: every number is at least 1 and at most its named maximum.

MAX_TURNS: Final = 6
"""Model calls of a run; what a task may cost at most, whoever writes the policy."""

MAX_SECONDS: Final = 295
"""Seconds of a run; five minutes of the queue's backstop, less what ending a run takes."""

MAX_COUNT: Final = 1_000_000
"""Tool calls of a run, files of a run, files of a scope: beyond any use, and still a limit."""

MAX_BYTES: Final = 1 << 32
"""Bytes of any budget or quota. Single files stay below `MAX_FILE_BYTES` whatever a quota says."""

MAX_DAYS: Final = 36_500
"""Days of a retention: a century. What shall stay for longer says `never`."""

NEVER: Final = "never"
"""The retention of what does not expire."""

Gate = Literal["active-markup", "ansi", "bidi", "control", "tag-chars", "zero-width"]
GATES: Final[tuple[Gate, ...]] = ("active-markup", "ansi", "bidi", "control", "tag-chars", "zero-width")
"""The content gates that a policy can switch, sorted."""


def _term(value: object) -> object:
    """One complaint for both forms of a retention, and no `true` for 1."""
    if value == NEVER:
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        raise PydanticCustomError("E104", "should be 'never' or a whole number of days")
    if not 1 <= value <= MAX_DAYS:
        raise PydanticCustomError("E110", "should be from 1 to {most} days", {"most": MAX_DAYS})
    return value


Days = Annotated[int | Literal["never"], BeforeValidator(_term)]
"""How long something is kept: whole days, or `never` if it does not expire."""

Commit = Literal["auto", "review"]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Bytes = Annotated[int, Field(ge=1, le=MAX_BYTES)]


class Frozen(BaseModel):
    """A value that refuses unknown keys, other types and change."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Limits(Frozen):
    """What one run may use up. A missing number is the one of the shipped `strict`.

    Attributes:
        turns: model calls.
        seconds: wall clock, from the start of the run.
        tool_calls: calls of any tool, refused ones too.
        read_bytes: bytes shown to the model.
        scan_bytes: bytes that grep may read.
        write_bytes: bytes proposed.
        files_written: files created or changed.
    """

    turns: Annotated[int, Field(ge=1, le=MAX_TURNS)] = 6
    seconds: Annotated[int, Field(ge=1, le=MAX_SECONDS)] = 295
    tool_calls: Count = 40
    read_bytes: Bytes = 1_048_576
    scan_bytes: Bytes = 67_108_864
    write_bytes: Bytes = 262_144
    files_written: Count = 8


class Confinement(Frozen):
    """What must hold the worker, and what an escape does to the run.

    Attributes:
        require: the least enforcement with which a run may start.
        on_escape: `abort` ends the run without effect; `refuse` only tells the model.
    """

    require: Annotated[Enforcement, Field(strict=False)] = Enforcement.PARTIAL
    on_escape: Literal["abort", "refuse"] = "abort"


class Changes(Frozen):
    """How far one task may change the memory.

    Attributes:
        conflict: what happens when the memory changed under a run: `fail`, or `retry` once.
        max_forget: entries that one unattended forget may remove.
        max_scope_share: how much of a scope's entries one dream may change, above 0 to 1.
    """

    conflict: Literal["retry", "fail"] = "fail"
    max_forget: Count = 5
    max_scope_share: Annotated[float, Field(gt=0, le=1)] = 0.2


class Content(Frozen):
    """What text an entry may not hold, and what becomes of it.

    Attributes:
        reject: the gates that are on, sorted.
        secrets: `reject` refuses text that holds a secret; `redact` takes the secret out of it.
        instructions: whether a change that addresses an agent waits for its owner (`quarantine`).
    """

    reject: tuple[Gate, ...] = GATES
    secrets: Literal["reject", "redact"] = "reject"
    instructions: Literal["allow", "quarantine"] = "quarantine"


class Provenance(Frozen):
    """What becomes of a fact whose trust is `external`: it is taken, waits for the owner, or is refused."""

    untrusted_sources: Literal["allow", "quarantine", "reject"] = "quarantine"


class Retention(Frozen):
    """How long entries are kept.

    Attributes:
        default: entries of any trust above `external`.
        untrusted: entries of trust `external`.
    """

    default: Days = NEVER
    untrusted: Days = 14


class ScopeTerms(Frozen):
    """The terms of a scope.

    Attributes:
        trust: of files there that Muniment did not write.
        commit: `auto`, or `review` if every change waits for the owner.
    """

    name: Scope
    trust: Trust
    commit: Commit = "auto"


class Rule(Frozen):
    """Verbs on patterns. Verbs and patterns are sorted and without repetition."""

    id: str
    verbs: tuple[Verb, ...]
    paths: tuple[str, ...]


class Layer(Frozen):
    """The rules of one policy file, sorted by id. It grants what some allow and no deny matches."""

    name: str
    allow: tuple[Rule, ...]
    deny: tuple[Rule, ...]


class Quota(Frozen):
    """A bound on the files of each scope that its patterns match, exact files as in allow rules.

    Attributes:
        max_file_bytes: of one such file.
        max_files: how many there may be in one scope.
        max_total_bytes: of all of them in one scope.
    """

    id: str
    paths: tuple[str, ...]
    max_file_bytes: Bytes = 131_072
    max_files: Count = 20_000
    max_total_bytes: Bytes = 67_108_864


QUOTA_NUMBERS: Final = ("max_file_bytes", "max_files", "max_total_bytes")
"""What a quota bounds. An inline test asks by the same name without `max_`."""


class Policy(Frozen):
    """Everything that bounds a run. Grants what *every* layer grants, in declared scopes.

    Attributes:
        name: for people; not part of the digest.
        scope_terms: the declared scopes, in the order of the file.
        layers: sorted by content; no two are the same.
        quotas: every one that matches a path applies to it.
    """

    name: str
    scope_terms: tuple[ScopeTerms, ...]
    layers: Annotated[tuple[Layer, ...], Field(min_length=1)]
    quotas: Annotated[tuple[Quota, ...], Field(min_length=1)]
    limits: Limits
    confinement: Confinement
    changes: Changes
    content: Content
    provenance: Provenance
    retention: Retention

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The names of the declared scopes, in the order of the file."""
        return tuple(terms.name for terms in self.scope_terms)

    def trust_of(self, scope: Scope) -> Trust:
        """The trust of files in `scope` that Muniment did not write; the lowest there is for any other."""
        return next((terms.trust for terms in self.scope_terms if terms.name == scope), Trust.EXTERNAL)

    def commit_of(self, scope: Scope) -> Commit:
        """Whether changes of `scope` wait for review; those of a scope that is not declared do."""
        return next((terms.commit for terms in self.scope_terms if terms.name == scope), "review")

    @property
    def digest(self) -> Digest:
        """SHA-256 of the canonical JSON of the content (P2); about 0.1 ms each time."""
        content = self.model_dump(mode="json", exclude={"name"})
        content["scope_terms"].sort(key=lambda terms: terms["name"])
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return Digest(hashlib.sha256(canonical.encode()).hexdigest())

    @property
    def label(self) -> str:
        """Name and the beginning of the digest, for people: `strict@1b2c3d4e`."""
        return f"{self.name}@{self.digest[:8]}"


def dump(policy: Policy) -> str:
    """The effective policy as JSON, for `parse_dump` in another process."""
    return policy.model_dump_json()


def parse_dump(text: str) -> Policy:
    """The policy that `dump` wrote; equal to it, digest included.

    Raises:
        PolicyInvalid: it is no such JSON; E105.
    """
    try:
        return Policy.model_validate_json(text)
    except ValidationError as error:
        problem = f"not a dumped policy ({error.error_count()} errors)"
        raise PolicyInvalid("E105", "dump", problem) from None


# -- pattern -----------------------------------------------------------------------------------------
#
# The dialect of `paths` in a policy, and its two matchers: exact files for allow, trees for deny.
#
# The dialect is the part of gitignore whose meaning nobody has to look up: literals, `*` and `?` inside one
# segment, `**` as a whole segment, a trailing `/` in deny patterns only. `check_pattern` refuses the rest:
#
#     E202  too long, or more wildcards than stay cheap to match
#     E203  outside the subset: `!`, `[`, `\`, `#`, `**` beside other characters, an empty segment, …
#     E205  an allow or quota pattern without a leading `/`
#     E206  an anchored pattern whose first segment can be no declared scope
#
# Contract:
#     M1  An allow pattern matches whole canonical file paths, exactly as written: `/user/*.md` does not
#     match
#         `user/a.md/evil.sh`. A trailing `/**` means every file below.
#     M2  A deny pattern matches a file, or every path below a directory of that name. It is compared as
#         written and folded on both sides, so that folding can only deny more. With a `?` it is also
#         compared
#         with the case of single characters folded: `A?` denies `aß`, though that folds to three
#         characters.
#     M3  Matching is by pathspec's own expressions, with the backend pinned: what else is installed changes
#         no verdict (T-POL-08). tests/units/policy/test_pathspec_facts.py holds pathspec to what is relied on
#         here.
#     M4  Cost: at most `MAX_TREE_WILDCARDS` and one ambiguous segment bound the backtracking (T-POL-07).

MAX_PATTERN_CHARS: Final = 512
"""Characters of one pattern; half of the longest path, since a pattern is shorter than what it matches."""

MAX_TREE_WILDCARDS: Final = 2
"""`**` segments of one pattern."""

MAX_STARS: Final = 2
"""`*` in one segment; only one segment of a pattern may have more than one."""

_FORBIDDEN: Final = RESERVED_ASCII - frozenset("*?/")
_EVERY_FILE: Final = "/*/**/*"


def check_pattern(pattern: str, *, deny: bool, scopes: Collection[Scope], where: str) -> None:
    """Refuse a pattern that is outside the dialect. Whether it fires is for `selftest` to say.

    Args:
        pattern: the text as it stands in the policy.
        deny: whether it stands in a deny rule; other patterns must be anchored and name files.
        scopes: the scopes that the policy declares.
        where: policy and rule, for the message.

    Raises:
        PolicyInvalid: see the codes above.
    """
    problem = (
        _outside_subset(pattern, deny=deny)
        or _too_costly(pattern)
        or _unanchored(pattern, deny=deny)
        or _unknown_scope(pattern, scopes)
    )
    if problem is not None:
        code, text = problem
        raise PolicyInvalid(code, where, f"pattern {pattern!r} {text}")


class AllowPatterns:
    """Patterns that match exact files (M1)."""

    __slots__ = ("_first_segments", "_regexes")

    def __init__(self, patterns: Iterable[str]) -> None:
        anchored = tuple(patterns)
        self._regexes = tuple(_compile(exact_form(pattern)) for pattern in anchored)
        self._first_segments = tuple(pattern.split("/")[1] for pattern in anchored)

    def match(self, path: CanonicalPath) -> bool:
        """Whether one of the patterns is this very file; never for a scope itself."""
        text = path.text
        return bool(path.rel) and any(regex.fullmatch(text) is not None for regex in self._regexes)

    def reach(self, scope: Scope) -> bool:
        """Whether a pattern may match some file of the scope. True may be too much, False never is."""
        return any(fnmatchcase(scope, first) for first in self._first_segments)


class DenyPatterns:
    """Patterns that match a file or a whole tree, by any spelling (M2)."""

    __slots__ = ("_as_written", "_folded", "_same_length")

    def __init__(self, patterns: Iterable[str]) -> None:
        as_written = tuple(patterns)
        self._as_written = tuple(_compile(tree_form(pattern)) for pattern in as_written)
        self._folded = tuple(_compile(tree_form(fold(pattern))) for pattern in as_written)
        single = (pattern for pattern in as_written if "?" in pattern)
        self._same_length = tuple(_compile(tree_form(fold_single(pattern))) for pattern in single)

    def match(self, text: str, folded: str) -> bool:
        """Whether one of the patterns covers the path.

        Args:
            text: a canonical path; with a `/` at its end, the directory of that name.
            folded: `fold(text)`, which the caller computes once for all rules.
        """
        if any(regex.search(folded) is not None for regex in self._folded):
            return True
        # `a?b` denies `aßb` as written, but not its folding `assb`: so the written form counts as well.
        if folded != text and any(regex.search(text) is not None for regex in self._as_written):
            return True
        if not self._same_length:
            return False
        same_length = fold_single(text)
        return any(regex.search(same_length) is not None for regex in self._same_length)


@lru_cache(maxsize=64)
def fold_single(text: str) -> str:
    """`text` with the case of each character folded where that gives one character, kept for other rules."""
    if text.isascii():
        return text.lower()
    forms = ((char.casefold(), char.lower(), char) for char in text)
    return "".join(next(form for form in each if len(form) == 1) for each in forms)


@lru_cache(maxsize=4096)
def _compile(pattern: str) -> re.Pattern[str]:
    """What pathspec makes of one pattern; kept, since rules and verbs share patterns.

    Raises:
        PolicyInvalid: pathspec would drop or negate it; E203.
    """
    compiled = PathSpec.from_lines("gitignore", [pattern], backend="simple").patterns
    regex = getattr(compiled[0], "regex", None) if len(compiled) == 1 and compiled[0].include else None
    if not isinstance(regex, re.Pattern):
        raise PolicyInvalid("E203", "pattern", f"pathspec would ignore {pattern!r}")
    return regex


def exact_form(pattern: str) -> str:
    """`pattern` such that a full match of its expression is a file.

    pathspec compiles `/**` and `/**/*` to `.`, which says "anything" only to a search. Every canonical
    file has a scope before it, so the longer form means the same.
    """
    files = f"{pattern}/*" if pattern.endswith("/**") else pattern
    return _EVERY_FILE if files == "/**/*" else files


def tree_form(pattern: str) -> str:
    """`pattern` such that a hit of its expression is a file or anything below a directory.

    pathspec compiles a last segment `*`, and only that, so that it does not match deeper: `/user/*` would
    leave out `user/a/b.md`. Everything directly below and all below that is everything below.
    """
    return f"{pattern}*" if pattern.endswith("/*") else pattern


def _outside_subset(pattern: str, *, deny: bool) -> tuple[str, str] | None:
    if found := sorted(_FORBIDDEN.intersection(pattern)):
        return "E203", f"holds {found[0]!r}; only literals, `*`, `?` and `**` are understood"
    body = pattern.removeprefix("/")
    segments = (body.removesuffix("/") if deny else body).split("/")
    if "" in segments:
        return "E203", "has an empty segment" if deny else "has an empty segment or ends in `/`"
    if any("**" in segment and segment != "**" for segment in segments):
        return "E203", "has `**` beside other characters; it stands for whole segments only"
    if ("**", "**") in pairwise(segments):
        return "E203", "repeats `**`; one is enough"
    if pattern.endswith("**/"):
        return "E203", "ends in `**/`, which pathspec reads as `**`; write that"
    if pattern != pattern.strip() or not pattern.isprintable():
        return "E203", "begins or ends with white space, or holds something that does not print"
    if not is_normalised("NFKC", pattern):
        return "E203", "is not in normal form (NFKC), as every name is"
    return None


def _too_costly(pattern: str) -> tuple[str, str] | None:
    if len(pattern) > MAX_PATTERN_CHARS:
        return "E202", f"is longer than {MAX_PATTERN_CHARS} characters"
    segments = pattern.split("/")
    if segments.count("**") > MAX_TREE_WILDCARDS:
        return "E202", f"has more than {MAX_TREE_WILDCARDS} `**`"
    stars = [segment.count("*") for segment in segments if segment != "**"]
    if max(stars, default=0) > MAX_STARS or sum(count > 1 for count in stars) > 1:
        return "E202", f"has more than {MAX_STARS} `*` in a segment, or several such segments"
    return None


def _unanchored(pattern: str, *, deny: bool) -> tuple[str, str] | None:
    if deny or pattern.startswith("/"):
        return None
    return "E205", f"is not anchored; write {'/' + pattern!r} or begin with a scope"


def is_anchored(pattern: str) -> bool:
    """Whether gitignore ties it to the top: a slash stands anywhere but at the end."""
    return "/" in pattern.removesuffix("/")


def _unknown_scope(pattern: str, scopes: Collection[Scope]) -> tuple[str, str] | None:
    first = pattern.removeprefix("/").partition("/")[0]
    if not is_anchored(pattern) or any(fnmatchcase(scope, first) for scope in scopes):
        return None
    return "E206", f"begins with {first!r}, which is no scope; the scopes are {', '.join(scopes)}"


# -- decide ------------------------------------------------------------------------------------------

Act = Verb | Literal["removal"]
"""What a policy grants on a file: one of the verbs to the model, or its removal to code."""

REMOVAL: Final = "removal"
ACTS: Final[tuple[Act, ...]] = (*Verb, REMOVAL)

NO_GRANT: Final = "default"
"""The rule that denies what nothing grants."""

NOT_A_SCOPE: Final = "scopes"
NOT_A_NAME: Final = "name"
"""What refuses before any rule of a policy is asked. No rule may have one of these three as its id."""

MAX_SHOWN_PATTERNS: Final = 4
"""Allow patterns that a refusal names, so that the model can choose another path and the line stays short."""


@dataclass(frozen=True, slots=True)
class Allow:
    """Every layer grants the request and no rule denies it."""


@dataclass(frozen=True, slots=True)
class Deny:
    """The request is denied.

    Attributes:
        rule: id of the deny rule, or `default` where nothing grants it, or `scopes`.
        layer: the name of the layer that decided.
        reason: one line for the model, with what to do instead.
    """

    rule: str
    layer: str
    reason: str


Verdict = Allow | Deny

_ALLOW: Final = Allow()


@dataclass(frozen=True, slots=True)
class _DenyRule:
    id: str
    layer: str
    patterns: DenyPatterns


@dataclass(frozen=True, slots=True)
class _Grants:
    """What one layer grants for one verb."""

    layer: str
    patterns: AllowPatterns
    shown: str


class Judge:
    """Answers for one policy. Compiles its patterns once."""

    __slots__ = ("_denies", "_grants", "_quotas", "_scopes")

    def __init__(self, policy: Policy) -> None:
        self._scopes = frozenset(policy.scopes)
        self._denies = {verb: _deny_rules(policy, verb) for verb in Verb}
        self._grants = {verb: _grants(policy, verb) for verb in Verb}
        self._quotas = tuple((AllowPatterns(quota.paths), quota) for quota in policy.quotas)

    def decide(self, verb: Verb, path: CanonicalPath) -> Verdict:
        """Whether the policy grants `verb` on the file `path`. A scope itself is no file."""
        if (denied := self._outside(path)) is not None:
            return denied
        if (rule := self._denying(verb, path.text)) is not None:
            return _denied(rule, verb, path)
        for grants in self._grants[verb]:
            if not grants.patterns.match(path):
                return _not_granted(grants, verb, path)
        return _ALLOW

    def decide_directory(self, path: CanonicalPath) -> Verdict:
        """Whether `ls` and `grep` may look into the directory or scope `path`.

        They may if every layer grants `list` on something in its scope and no deny covers the directory.
        What is in it is decided file by file.
        """
        if (denied := self._outside(path)) is not None:
            return denied
        if (rule := self._denying(Verb.LIST, f"{path.text}/")) is not None:
            return _denied(rule, Verb.LIST, path)
        for grants in self._grants[Verb.LIST]:
            if not grants.patterns.reach(path.scope):
                return _not_granted(grants, Verb.LIST, path)
        return _ALLOW

    def allows(self, verb: Verb, path: CanonicalPath) -> bool:
        """`decide`, for filtering what is shown."""
        return isinstance(self.decide(verb, path), Allow)

    def covered(self, path: CanonicalPath) -> bool:
        """Whether a deny on `list` covers the whole directory."""
        return self._outside(path) is not None or self._denying(Verb.LIST, f"{path.text}/") is not None

    def reaches(self, verb: Verb, scope: Scope) -> bool:
        """Whether `verb` may be granted on something in the scope; False is certain, True is not."""
        covered = scope not in self._scopes or self._denying(verb, f"{scope}/") is not None
        return not covered and all(grants.patterns.reach(scope) for grants in self._grants[verb])

    def require(self, verb: Verb, path: CanonicalPath) -> None:
        """Raise unless `decide` allows.

        Raises:
            Refused: with the rule, the layer, and one line for the model.
        """
        _raise_if_denied(self.decide(verb, path))

    def decide_removal(self, path: CanonicalPath) -> Verdict:
        """Whether code may remove the file: `modify` is granted on it, and no deny covers `delete`."""
        verdict = self.decide(Verb.MODIFY, path)
        if isinstance(verdict, Allow) and (rule := self._denying(Verb.DELETE, path.text)) is not None:
            return _denied(rule, Verb.DELETE, path)
        return verdict

    def require_removal(self, path: CanonicalPath) -> None:
        """Raise unless `decide_removal` allows.

        Raises:
            Refused: as `require`.
        """
        _raise_if_denied(self.decide_removal(path))

    def grants(self, act: Act, path: CanonicalPath) -> bool:
        """Whether the policy grants the act on the file."""
        verdict = self.decide_removal(path) if act == REMOVAL else self.decide(Verb(act), path)
        return isinstance(verdict, Allow)

    def require_directory(self, path: CanonicalPath) -> None:
        """Raise unless `decide_directory` allows.

        Raises:
            Refused: as `require`.
        """
        _raise_if_denied(self.decide_directory(path))

    def quotas_for(self, path: CanonicalPath) -> tuple[Quota, ...]:
        """Every quota that counts the file; at least one for any `.md` file of a declared scope."""
        return tuple(quota for patterns, quota in self._quotas if patterns.match(path))

    def _outside(self, path: CanonicalPath) -> Deny | None:
        if path.scope not in self._scopes:
            return Deny(NOT_A_SCOPE, GRAMMAR_LAYER, f"{path.text} is in no part of this memory")
        if not path.text.isprintable():  # No canonical path is; and `.` in a deny pattern stops at a newline.
            return Deny(
                NOT_A_NAME, GRAMMAR_LAYER, "the name holds characters that do not print; leave them out"
            )
        return None

    def _denying(self, verb: Verb, text: str) -> _DenyRule | None:
        folded = fold(text)
        for rule in self._denies[verb]:
            if rule.patterns.match(text, folded):
                return rule
        return None


def _deny_rules(policy: Policy, verb: Verb) -> tuple[_DenyRule, ...]:
    return tuple(
        _DenyRule(rule.id, layer.name, DenyPatterns(rule.paths))
        for layer in policy.layers
        for rule in layer.deny
        if verb in rule.verbs
    )


def _grants(policy: Policy, verb: Verb) -> tuple[_Grants, ...]:
    return tuple(
        _Grants(layer.name, AllowPatterns(paths), _shown(paths))
        for layer in policy.layers
        for paths in [[path for rule in layer.allow if verb in rule.verbs for path in rule.paths]]
    )


def _shown(paths: list[str]) -> str:
    more = ", …" if len(paths) > MAX_SHOWN_PATTERNS else ""
    return ", ".join(paths[:MAX_SHOWN_PATTERNS]) + more


def _denied(rule: _DenyRule, verb: Verb, path: CanonicalPath) -> Deny:
    reason = f"the rule {rule.id!r} forbids to {verb} {path.text}; use another name or folder"
    return Deny(rule.id, rule.layer, reason)


def _not_granted(grants: _Grants, verb: Verb, path: CanonicalPath) -> Deny:
    instead = f"only {grants.shown}" if grants.shown else "nothing at all; go on without it"
    return Deny(
        NO_GRANT, grants.layer, f"not allowed to {verb} {path.text}; this memory lets you {verb} {instead}"
    )


def _raise_if_denied(verdict: Verdict) -> None:
    if isinstance(verdict, Deny):
        raise Refused(verdict.reason, rule=verdict.rule, layer=verdict.layer)
