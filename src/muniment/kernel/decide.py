"""Policies in their normal form, and the decision whether a policy allows a verb on a path.

    1. The path is not inside a declared scope, or is the scope itself: deny.
    2. A deny rule of any layer matches: deny.
    3. Every layer has an allow rule that matches: allow. Otherwise deny, with the rule `default`.

Contract:
    D1  `decide` returns a result for every verb and every `CanonicalPath`, and never raises.
    D2  The order of rules or layers does not change a decision. More deny rules or more layers never grant
        more.
    D3  A decision depends only on policy and request, so it is the same in broker and worker.
    N1  `Policy.text` contains everything that can change a decision or a limit, and the layer names and rule
        ids that records cite. It contains nothing else, so two policies with the same text differ only in
        name.
    N2  `parse` accepts exactly the texts that `Policy.text` can produce, and rejects everything else.
    N3  Every limit is present: each number is at least 1 and at most its named maximum.

Not guaranteed: that a pattern is valid in the pattern dialect, or cheap to match (see M4 below). The readers
of policy files check both, see `muniment.policy.pattern`. An invalid pattern also matches paths, but not
usefully.

Cost: building takes 0.03 ms for the shipped `strict`, the first decision 2 ms, each further one 3 µs.
Tested with attacks by tests/units/policy and tests/models/test_verdicts.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Final, Literal, TypeVar

from muniment.kernel.names import Digest, Enforcement, RelPath, Scope, Trust, Verb
from muniment.kernel.path import GRAMMAR_LAYER, CanonicalPath, fold
from muniment.kernel.refusal import PolicyInvalid, Refused

# -- policy ------------------------------------------------------------------------------------------
#
# The bounds of a run: layers of rules that must all agree, and options, each the strictest of all combined
# policies. Code that reads or narrows a policy creates these objects, so the patterns are checked already.
# Here they are sorted, and duplicates are removed.

MAX_TURNS: Final = 6  # model calls of a run: the maximum for a task under any policy
MAX_SECONDS: Final = 295  # of a run; the queue's limit of five minutes, less the time to end a run
MAX_COUNT: Final = 1_000_000  # tool calls of a run, files of a run or scope: more than any use needs
MAX_BYTES: Final = 1 << 32  # of any budget or quota; `MAX_FILE_BYTES` also limits a file
MAX_DAYS: Final = 36_500  # of a retention: a century; for longer, use `never`
NEVER: Final = "never"  # the retention of entries that do not expire

CommitMode = Literal["auto", "review"]
Days = int | Literal["never"]
Gate = Literal["active-markup", "ansi", "bidi", "control", "tag-chars", "zero-width"]
GATES: Final[tuple[Gate, ...]] = ("active-markup", "ansi", "bidi", "control", "tag-chars", "zero-width")


def _bounded_field(maximum: int, default: int) -> int:
    """Return a dataclass field for a number from 1 to `maximum`; `Policy` checks the number."""
    return field(default=default, metadata={"most": maximum})


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that one run may use. The defaults are the values of the shipped policy `strict`.

    Attributes:
        turns: model calls.
        seconds: wall clock, from the start of the run.
        tool_calls: calls of any tool, including rejected calls.
        read_bytes: bytes that the model receives.
        scan_bytes: bytes that `grep` may read.
        write_bytes: bytes that the run may propose.
        files_written: files that the run creates or changes.
    """

    turns: int = _bounded_field(MAX_TURNS, 6)
    seconds: int = _bounded_field(MAX_SECONDS, 295)
    tool_calls: int = _bounded_field(MAX_COUNT, 40)
    read_bytes: int = _bounded_field(MAX_BYTES, 1_048_576)
    scan_bytes: int = _bounded_field(MAX_BYTES, 67_108_864)
    write_bytes: int = _bounded_field(MAX_BYTES, 262_144)
    files_written: int = _bounded_field(MAX_COUNT, 8)


@dataclass(frozen=True, slots=True)
class ConfinementRequirement:
    """The confinement that a run requires, and the reaction to a path escape.

    Attributes:
        require: the weakest confinement with which a run may start.
        on_escape: `abort` ends the run without effect; `refuse` only reports the escape to the model.
    """

    require: Enforcement = Enforcement.PARTIAL
    on_escape: Literal["abort", "refuse"] = "abort"


@dataclass(frozen=True, slots=True)
class Changes:
    """Limits on how much one task may change the memory.

    Attributes:
        conflict: reaction if the memory changed during a run: `fail`, or `retry` once.
        max_forget: number of entries that one unattended forget may remove.
        max_scope_share: share of the entries of a scope that one dream may change, above 0 and at most 1.
    """

    conflict: Literal["retry", "fail"] = "fail"
    max_forget: int = _bounded_field(MAX_COUNT, 5)
    max_scope_share: float = field(default=0.2, metadata={"most": 1})

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_scope_share", float(self.max_scope_share))


@dataclass(frozen=True, slots=True)
class Content:
    """Restrictions on the text of an entry, and the reaction if a text violates one.

    Attributes:
        reject: the enabled gates, sorted.
        secrets: `reject` rejects a text that contains a secret; `redact` removes the secret.
        instructions: `quarantine`: a change that gives instructions to an agent waits for its owner.
        poison: `quarantine`: a fact from an agent waits for its owner if agents could do harm because of it.
    """

    reject: tuple[Gate, ...] = GATES
    secrets: Literal["reject", "redact"] = "reject"
    instructions: Literal["allow", "quarantine"] = "quarantine"
    poison: Literal["allow", "quarantine"] = "quarantine"


@dataclass(frozen=True, slots=True)
class Provenance:
    """The treatment of a fact with trust `external`: it is accepted, waits for its owner, or is rejected."""

    untrusted_sources: Literal["allow", "quarantine", "reject"] = "quarantine"


@dataclass(frozen=True, slots=True)
class Retention:
    """The number of days until an entry expires, or `never`.

    Attributes:
        default: for entries with any trust above `external`.
        untrusted: for entries with trust `external`.
    """

    default: Days = field(default=NEVER, metadata={"most": MAX_DAYS})
    untrusted: Days = field(default=14, metadata={"most": MAX_DAYS})


@dataclass(frozen=True, slots=True)
class ScopeOptions:
    """The options of a scope.

    Attributes:
        name: name of the scope.
        trust: trust of files in the scope that Muniment did not write.
        commit: `auto`: changes are committed without review; `review`: every change waits for the owner.
    """

    name: Scope
    trust: Trust
    commit: CommitMode = "auto"


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """A rule of a policy: it allows or denies some verbs on the paths that match its patterns.

    Attributes:
        id: identifies the rule in its layer.
        verbs: the verbs, sorted.
        paths: the patterns, sorted.
    """

    id: str
    verbs: tuple[Verb, ...]
    paths: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "verbs", tuple(sorted({*self.verbs})))
        object.__setattr__(self, "paths", tuple(sorted({*self.paths})))


@dataclass(frozen=True, slots=True, order=True)
class Layer:
    """The rules of one policy file, sorted.

    A layer grants a request if one of its allow rules matches and none of its deny rules does. Rules without
    verbs or without patterns have no effect and are left out.
    """

    name: str
    allow: tuple[Rule, ...]
    deny: tuple[Rule, ...]

    def __post_init__(self) -> None:
        for kind, rules in (("allow", self.allow), ("deny", self.deny)):
            effective_rules = sorted({rule for rule in rules if rule.verbs and rule.paths})
            if len({rule.id for rule in effective_rules}) < len(effective_rules):
                raise PolicyInvalid("E107", f"{self.name} {kind}", "two rules have the same id; rename one")
            object.__setattr__(self, kind, tuple(effective_rules))


@dataclass(frozen=True, slots=True, order=True)
class Quota:
    """A limit on the files that match its patterns, for each scope separately.

    Attributes:
        id: identifies the quota.
        paths: patterns of exact files, as in allow rules.
        max_file_bytes: bytes of one such file.
        max_files: number of such files in one scope.
        max_total_bytes: bytes of all such files in one scope.
    """

    id: str
    paths: tuple[str, ...]
    max_file_bytes: int = _bounded_field(MAX_BYTES, 131_072)
    max_files: int = _bounded_field(MAX_COUNT, 20_000)
    max_total_bytes: int = _bounded_field(MAX_BYTES, 67_108_864)

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", tuple(sorted({*self.paths})))


# The numbers of a quota. An inline test uses the same name without `max_`.
QUOTA_NUMBERS: Final = ("max_file_bytes", "max_files", "max_total_bytes")


@dataclass(frozen=True, slots=True)
class Policy:
    """All bounds of a run. A request is granted only if *every* layer grants it, in a declared scope.

    Attributes:
        name: for people; not part of the normal form.
        scope_options: the declared scopes; their order has no meaning.
        layers: at least one; without duplicates.
        quotas: at least one. Every quota that matches a path applies to that path.
        text: the normal form (N1 in the module docstring).
    """

    name: str
    scope_options: tuple[ScopeOptions, ...] = field(compare=False)
    layers: tuple[Layer, ...] = field(compare=False)
    quotas: tuple[Quota, ...] = field(compare=False)
    limits: Limits = field(default=Limits(), compare=False)
    confinement: ConfinementRequirement = field(default=ConfinementRequirement(), compare=False)
    changes: Changes = field(default=Changes(), compare=False)
    content: Content = field(default=Content(), compare=False)
    provenance: Provenance = field(default=Provenance(), compare=False)
    retention: Retention = field(default=Retention(), compare=False)
    text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.layers or not self.quotas or len({*self.scopes}) < len(self.scope_options):
            raise PolicyInvalid("E108", self.name, "needs a layer and a quota, and each scope only once")
        object.__setattr__(self, "layers", tuple(sorted({*self.layers})))
        object.__setattr__(self, "quotas", tuple(sorted({*self.quotas})))
        rows = {*_iterate_rows(self)}
        if not all(part.isprintable() for fact in rows for part in fact):
            raise PolicyInvalid("E111", self.name, "a name or pattern contains a non-printable character")
        object.__setattr__(self, "text", "\n".join([NORMAL_FORM_HEADER, *sorted(map("\t".join, rows)), ""]))

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Return the names of the declared scopes."""
        return tuple(options.name for options in self.scope_options)

    def get_trust(self, scope: Scope) -> Trust:
        """Return the trust of files in `scope` that Muniment did not write.

        The files of an undeclared scope have trust `external`.
        """
        return next((each.trust for each in self.scope_options if each.name == scope), Trust.EXTERNAL)

    def get_commit_mode(self, scope: Scope) -> CommitMode:
        """Return whether changes in `scope` wait for review (`review`) or not (`auto`).

        Changes in an undeclared scope wait for review.
        """
        return next((each.commit for each in self.scope_options if each.name == scope), "review")

    @property
    def digest(self) -> Digest:
        """Return the SHA-256 of the normal form."""
        return Digest(hashlib.sha256(self.text.encode()).hexdigest())

    @property
    def label(self) -> str:
        """Return the name and the beginning of the digest, for people, such as `strict@1b2c3d4e`."""
        return f"{self.name}@{self.digest[:8]}"


# -- normal form -------------------------------------------------------------------------------------
#
# One line per value, its parts separated by tabs. The lines are sorted; the first one identifies this form:
#
#     scope    user    trust    owner
#     layer    strict    1
#     layer    strict    1    deny    pinned    create    MEMORY.md
#     quota    all    1    paths    /**
#     limits    turns    6
#     content    reject    ansi
#
# A layer also has a line of its name and number, since without rules it grants nothing. Layers with the same
# name, and quotas with the same id, are numbered from 1 in sorted order.

NORMAL_FORM_HEADER: Final = "muniment-policy-form/1"  # another meaning of the lines needs another number

_SECTIONS: Final = ("limits", "confinement", "changes", "content", "provenance", "retention")
_Section = ScopeOptions | Quota | Limits | ConfinementRequirement | Changes | Content | Provenance | Retention
_Text = TypeVar("_Text", bound=str)


def _iterate_rows(policy: Policy) -> Iterator[tuple[str, ...]]:
    for scope in policy.scope_options:
        yield from _iterate_fields(scope, "scope", scope.name)
    for name, layers in groupby(policy.layers, attrgetter("name")):
        for number, layer in enumerate(layers, 1):
            yield "layer", name, str(number)
            for kind, rules in (("allow", layer.allow), ("deny", layer.deny)):
                for rule in rules:
                    prefix = ("layer", name, str(number), kind, rule.id)
                    yield from ((*prefix, verb, path) for verb in rule.verbs for path in rule.paths)
    for name, quotas in groupby(policy.quotas, attrgetter("id")):
        for number, quota in enumerate(quotas, 1):
            yield from _iterate_fields(quota, "quota", name, str(number))
    for section in _SECTIONS:
        yield from _iterate_fields(getattr(policy, section), section)


def _iterate_fields(part: _Section, *prefix: str) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the normal form for the fields of `part`.

    Args:
        part: a part of a policy, such as `Limits` or a `Quota`.
        prefix: the first parts of each line; they already contain the name or id of `part`.
    """
    for item in fields(part):
        value: object = getattr(part, item.name)
        if isinstance(value, int | float) and not 0 < value <= item.metadata["most"]:
            raise PolicyInvalid("E110", f"{prefix[0]}.{item.name}", f"{value} is out of bounds")
        values = value if isinstance(value, tuple) else (value,)
        yield from ((*prefix, item.name, str(each)) for each in values if item.name not in {"name", "id"})


class _RowTree(dict[str, "_RowTree"]):
    """Lines of the normal form as a tree: each part of a line leads to the parts that come after it."""

    def __missing__(self, _part: str) -> _RowTree:
        return _RowTree()

    def get_value(self, key: str) -> str:
        """Return the value of the field `key`; raise `ValueError` unless it has exactly one value."""
        return self.choose_value(key, self[key])

    def choose_value(self, key: str, known: Iterable[_Text]) -> _Text:
        """Return the value of the field `key`; raise `ValueError` unless it is exactly one of `known`."""
        (value,) = (each for each in known if each in self[key])
        return value

    def iterate_rules(self, kind: str) -> Iterator[Rule]:
        """Yield the rules of a kind, `allow` or `deny`."""
        for name, found in self[kind].items():
            yield Rule(name, tuple(map(Verb, found)), tuple(chain.from_iterable(found.values())))


def parse(text: str, name: str) -> Policy:
    """Return the policy whose normal form is `text`.

    Args:
        text: the normal form; it is accepted only if the policy produces exactly the same text again.
        name: the name that the policy gets.

    Raises:
        PolicyInvalid: `text` is not a policy in its normal form (`E105`).
    """
    found = _RowTree()
    for line in text.split("\n"):
        node = found
        for part in line.split("\t"):
            node = node.setdefault(part, _RowTree())
    with suppress(PolicyInvalid, ValueError):
        policy = _read(found, name)
        if policy.text == text:
            return policy
    raise PolicyInvalid("E105", name, "is not a policy in its normal form")


def _read(found: _RowTree, name: str) -> Policy:
    limits, confinement, changes, content, provenance, retention = (found[each] for each in _SECTIONS)
    choose, get = _RowTree.choose_value, _RowTree.get_value
    scopes = (
        ScopeOptions(Scope(scope), choose(node, "trust", Trust), choose(node, "commit", ("auto", "review")))
        for scope, node in found["scope"].items()
    )
    layers = (
        Layer(layer, tuple(node.iterate_rules("allow")), tuple(node.iterate_rules("deny")))
        for layer, numbered in found["layer"].items()
        for node in numbered.values()
    )
    quotas = (
        Quota(quota, tuple(node["paths"]), *(int(get(node, each)) for each in QUOTA_NUMBERS))
        for quota, numbered in found["quota"].items()
        for node in numbered.values()
    )
    gates = tuple(gate for gate in GATES if gate in content["reject"])
    options: tuple[Literal["allow", "quarantine"], ...] = ("allow", "quarantine")
    on_escape: Literal["abort", "refuse"] = choose(confinement, "on_escape", ("abort", "refuse"))
    secrets: Literal["reject", "redact"] = choose(content, "secrets", ("reject", "redact"))
    share, days = float(get(changes, "max_scope_share")), map(retention.get_value, ("default", "untrusted"))
    return Policy(
        *(name, tuple(scopes), tuple(layers), tuple(quotas)),
        Limits(*(int(get(limits, each.name)) for each in fields(Limits))),
        ConfinementRequirement(choose(confinement, "require", Enforcement), on_escape),
        Changes(choose(changes, "conflict", ("retry", "fail")), int(get(changes, "max_forget")), share),
        Content(gates, secrets, *(choose(content, each, options) for each in ("instructions", "poison"))),
        Provenance(choose(provenance, "untrusted_sources", ("allow", "quarantine", "reject"))),
        Retention(*(NEVER if each == NEVER else int(each) for each in days)),
    )


# -- patterns ----------------------------------------------------------------------------------------
#
# The two matchers of patterns: exact files for allow rules and quotas, trees for deny rules.
#
#     M1  An allow pattern matches complete canonical file paths, exactly as written: `/user/*.md` does not
#         match `user/a.md/evil.sh`. A trailing `/**` means every file below.
#     M2  A deny pattern matches a file, or every path below a directory of that name. It is compared as
#         written and folded on both sides, so that folding can only deny more. With a `?` it is also compared
#         with the case of single characters folded: `A?` denies `aß`, though that folds to three characters.
#     M3  A pattern is translated here, part by part, to one expression of `re`: installed packages change no
#         decision (T-POL-08). pathspec gives a second opinion when a policy loads (`muniment.policy`).
#     M4  Cost: a pattern has few `**` and at most one ambiguous segment, which bounds the backtracking
#         (T-POL-07).

_ANY_FOLDERS: Final = "(?:.+/)?"


class AllowPatterns:
    """Patterns that match complete file paths exactly, for allow rules and quotas."""

    __slots__ = ("_files", "_first_segments")

    def __init__(self, patterns: Iterable[str]) -> None:
        anchored = tuple(patterns)
        self._files = anchored
        self._first_segments = tuple(each.removeprefix("/").partition("/")[0] for each in anchored)

    def match(self, path: CanonicalPath) -> bool:
        """Return whether one of the patterns matches exactly the file `path`; False if `path` is a scope."""
        return bool(path.rel) and _compile_patterns(self._files, tree=False).fullmatch(path.text) is not None

    def may_match_in(self, scope: Scope) -> bool:
        """Return whether a pattern may match a file in `scope`. False is certain, True is not."""
        return _compile_patterns(self._first_segments, tree=False).fullmatch(scope) is not None


class DenyPatterns:
    """Patterns that match a file or a complete directory tree, without regard to case."""

    __slots__ = ("_folded", "_single", "_written")

    def __init__(self, patterns: Iterable[str]) -> None:
        self._written = tuple(patterns)
        self._folded = tuple(map(fold, self._written))
        self._single = tuple(fold_single(pattern) for pattern in self._written if "?" in pattern)

    def match(self, text: str, folded: str) -> bool:
        """Return whether one of the patterns matches the path or a directory above it.

        Args:
            text: a canonical path; with a `/` at its end, a directory.
            folded: `fold(text)`, which the caller computes once for all rules.
        """
        if _compile_patterns(self._folded, tree=True).match(folded) is not None:
            return True
        # `a?b` denies `aßb` as written, but not its folding `assb`, so the written form is also compared.
        if folded != text and _compile_patterns(self._written, tree=True).match(text) is not None:
            return True
        found = self._single and _compile_patterns(self._single, tree=True).match(fold_single(text))
        return bool(found)


@lru_cache(maxsize=64)
def fold_single(text: str) -> str:
    """Return `text` with the case of each character folded, if the result is one character. Cached.

    Otherwise the character in lower case is used, or the character itself.
    """
    if text.isascii():
        return text.lower()
    forms = ((char.casefold(), char.lower(), char) for char in text)
    return "".join(next(form for form in each if len(form) == 1) for each in forms)


@lru_cache(maxsize=4096)
def _compile_patterns(patterns: tuple[str, ...], *, tree: bool) -> re.Pattern[str]:
    """Return an expression that matches if one of `patterns` does; without patterns it never matches. Cached.

    Args:
        patterns: the patterns.
        tree: True for deny patterns, which match trees; False for allow patterns.
    """
    translate = _translate_tree_pattern if tree else _translate_file_pattern
    return re.compile("|".join(map(translate, patterns)) if patterns else "(?!)", re.DOTALL)


def _translate_file_pattern(pattern: str) -> str:
    *folders, last = pattern.removeprefix("/").split("/")
    end = f"{_ANY_FOLDERS}[^/]+" if last == "**" else _translate_segment(last)
    return _translate_folders(folders) + end


def _translate_tree_pattern(pattern: str) -> str:
    *folders, last = pattern.removeprefix("/").removesuffix("/").split("/")
    begin = _translate_folders(folders) if is_anchored(pattern) else _ANY_FOLDERS
    if pattern.endswith("/"):
        return f"{begin}{_translate_segment(last)}/"
    return begin if last in {"*", "**"} else rf"{begin}{_translate_segment(last)}(?:/|\Z)"


def _translate_folders(segments: Iterable[str]) -> str:
    return "".join(_ANY_FOLDERS if each == "**" else f"{_translate_segment(each)}/" for each in segments)


def _translate_segment(segment: str) -> str:
    translated = re.escape(segment).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    return "[^/]+" if segment == "*" else translated


def is_anchored(pattern: str) -> bool:
    """Return whether a pattern applies only from the top, as in gitignore: it has a slash before its end."""
    return "/" in pattern.removesuffix("/")


# -- decide ------------------------------------------------------------------------------------------

NO_GRANT: Final = "default"  # `Deny.rule` if no rule grants the request
# `Deny.rule` if the path is not in a declared scope; checked before the rules of the policy
NOT_A_SCOPE: Final = "scopes"
# `Deny.rule` if the name is not valid; a rule of a policy must not use one of these three ids
NOT_A_NAME: Final = "name"

# A denial lists at most this many allow patterns, so that the model can choose another path from one short
# line.
MAX_LISTED_PATTERNS: Final = 4


@dataclass(frozen=True, slots=True)
class Allow:
    """The request is allowed: every layer grants it and no rule denies it."""


@dataclass(frozen=True, slots=True)
class Deny:
    """The request is denied.

    Attributes:
        rule: id of the deny rule; `default` if no rule grants the request; `scopes` or `name` if the path is
            invalid.
        layer: the name of the layer that denied the request.
        reason: one line for the model that states what to do instead.
    """

    rule: str
    layer: str
    reason: str


PolicyDecision = Allow | Deny
_IsGranted = Callable[[AllowPatterns], bool]


class PolicyEvaluator:
    """Decides whether one policy allows a request. Patterns are compiled when they are first used."""

    __slots__ = ("_deny_rules", "_grants", "_quotas", "_scopes")

    def __init__(self, policy: Policy) -> None:
        self._scopes = frozenset(policy.scopes)
        self._deny_rules = {verb: _collect_deny_rules(policy, verb) for verb in Verb}
        self._grants = {verb: tuple(_iterate_grants(policy, verb)) for verb in Verb}
        self._quotas = tuple((AllowPatterns(quota.paths), quota) for quota in policy.quotas)

    def decide(self, verb: Verb, path: CanonicalPath) -> PolicyDecision:
        """Decide whether the policy allows `verb` on the file `path`. A scope is always denied."""
        return self._evaluate(verb, path, path.text, lambda patterns: patterns.match(path))

    def decide_directory(self, path: CanonicalPath) -> PolicyDecision:
        """Decide whether `ls` and `grep` may read the directory or scope `path`.

        They may if every layer grants `list` on some path in the scope and no deny rule covers the directory.
        Each file in the directory is decided separately.
        """
        return self._evaluate(Verb.LIST, path, f"{path.text}/", lambda each: each.may_match_in(path.scope))

    def decide_removal(self, path: CanonicalPath) -> PolicyDecision:
        """Decide whether code may remove the file `path`.

        The policy must grant `modify` on the file, and no deny rule may cover `delete`.
        """
        found = self.decide(Verb.MODIFY, path)
        return found if isinstance(found, Deny) else self._find_denial(Verb.DELETE, path, path.text) or found

    def allows(self, verb: Verb, path: CanonicalPath) -> bool:
        """Return whether the policy allows `verb` on the file `path`."""
        return isinstance(self.decide(verb, path), Allow)

    def is_directory_denied(self, path: CanonicalPath) -> bool:
        """Return whether listing is denied for the directory `path` with everything in it."""
        return (self._check_scope(path) or self._find_denial(Verb.LIST, path, f"{path.text}/")) is not None

    def may_grant_in(self, verb: Verb, scope: Scope) -> bool:
        """Return whether the policy may grant `verb` on a path in `scope`. False is certain, True is not."""
        path = CanonicalPath(scope, RelPath(""))
        denied = self._check_scope(path) or self._find_denial(verb, path, f"{scope}/")
        return denied is None and all(patterns.may_match_in(scope) for _, patterns, _ in self._grants[verb])

    def require(self, verb: Verb, path: CanonicalPath) -> None:
        """Raise an error unless the policy allows `verb` on the file `path`.

        Raises:
            Refused: the request is denied; contains the rule, the layer, and one line for the model.
        """
        _raise_if_denied(self.decide(verb, path))

    def require_removal(self, path: CanonicalPath) -> None:
        """Raise an error unless the policy lets code remove the file `path`, as `decide_removal` decides.

        Raises:
            Refused: the removal is denied; contains the rule, the layer, and one line for the model.
        """
        _raise_if_denied(self.decide_removal(path))

    def quotas_for(self, path: CanonicalPath) -> tuple[Quota, ...]:
        """Return every quota that counts the file `path`; at least one for `.md` files of declared scopes."""
        return tuple(quota for patterns, quota in self._quotas if patterns.match(path))

    def _evaluate(self, verb: Verb, path: CanonicalPath, text: str, is_granted: _IsGranted) -> PolicyDecision:
        if (denied := self._check_scope(path) or self._find_denial(verb, path, text)) is not None:
            return denied
        for layer, patterns, paths in self._grants[verb]:
            if not is_granted(patterns):
                some = ", ".join(paths[:MAX_LISTED_PATTERNS]) + (", …" if paths[MAX_LISTED_PATTERNS:] else "")
                instead = f"only {some}" if some else "nothing; continue without it"
                reason = f"not allowed to {verb} {path.text}; this memory lets you {verb} {instead}"
                return Deny(NO_GRANT, layer.name, reason)
        return Allow()

    def _check_scope(self, path: CanonicalPath) -> Deny | None:
        if path.scope not in self._scopes:
            return Deny(NOT_A_SCOPE, GRAMMAR_LAYER, f"{path.text} is not in any scope of this memory")
        if not path.text.isprintable():  # A canonical path is always printable.
            reason = "the name contains non-printable characters; leave them out"
            return Deny(NOT_A_NAME, GRAMMAR_LAYER, reason)
        return None

    def _find_denial(self, verb: Verb, path: CanonicalPath, text: str) -> Deny | None:
        folded = fold(text)
        for layer, rule, patterns in self._deny_rules[verb]:
            if patterns.match(text, folded):
                why = f"the rule {rule.id!r} does not let you {verb} {path.text}; use another name or folder"
                return Deny(rule.id, layer.name, why)
        return None


def _collect_deny_rules(policy: Policy, verb: Verb) -> list[tuple[Layer, Rule, DenyPatterns]]:
    rules = ((layer, rule) for layer in policy.layers for rule in layer.deny if verb in rule.verbs)
    return [(layer, rule, DenyPatterns(rule.paths)) for layer, rule in rules]


def _iterate_grants(policy: Policy, verb: Verb) -> Iterator[tuple[Layer, AllowPatterns, tuple[str, ...]]]:
    for layer in policy.layers:
        paths = tuple(path for rule in layer.allow if verb in rule.verbs for path in rule.paths)
        yield layer, AllowPatterns(paths), paths


def _raise_if_denied(decision: PolicyDecision) -> None:
    if isinstance(decision, Deny):
        raise Refused(decision.reason, rule=decision.rule, layer=decision.layer)
