"""The effective policy of a run: a value that broker and worker hold alike.

A `Policy` is what remains of one or more policy files: layers of rules that must all agree, and scalars
that are already the strictest of all. It is built by `load` and narrowed by `meet`, never by hand, so its
patterns have been checked. It crosses to the worker as JSON (`dump`, `parse_dump`).

Contract:
    P1  Frozen all the way down; equal policies have equal digests.
    P2  `digest` covers everything that can change a verdict or a limit, with the rule ids and layer names
        that records cite, and nothing else; order of files, rules, verbs and patterns is not in it.
    P3  No limit is absent: every number is at least 1 and at most its named maximum.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from muniment.errors import PolicyInvalid
from muniment.names import Digest, Enforcement, Scope, Trust, Verb

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
