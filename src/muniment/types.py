"""What the daemon answers, jobs return, and the library, the command line and clients give: each answer once.

A member's meaning stands beside its type, for who reads this, for docs/http.md and for the OpenAPI document,
which pydantic makes of these classes. `document` writes an answer as it is sent, `read` reads it.

D1 A member is named in camelCase in a document. One whose default is None or empty is left out where it has
   no other value, and never null, as the types of the original contract have it; all others are always there.
D2 An answer that has more members than the contract, as those of jobs do, is written without them.
D3 What is read has every member that is always there, each of its type; what is not named here is ignored,
   since a newer daemon may say more. Of a closed set of words any word is read, likewise.

On the standard library and the words of the package; nothing happens on import.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from enum import EnumType
from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from muniment.kernel.names import Enforcement, Trust
from muniment.names import ContextMode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_KEPT: Final = 100
"""Entries that a forget leaves alone of which an answer tells."""

Kind = Literal["remember", "forget", "dream"]
Status = Literal["queued", "running", "completed", "failed", "cancelled"]


def camel(name: str) -> str:
    """The name of a member in a document."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def _as_described(schema: dict[str, Any], of: type[DataclassInstance]) -> None:
    """Have the schema of an answer say what its members mean, and which are left out (D1)."""
    told, always = get_type_hints(of, include_extras=True), schema.get("required", [])
    for each in fields(of):
        member = schema["properties"][_wire_name(each)]
        if get_origin(told[each.name]) is Annotated:
            member["description"] = told[each.name].__metadata__[0]
        if _may_be_left_out(each):
            always[:] = [name for name in always if name != _wire_name(each)]
            del member["default"]
            member |= next(iter(member.pop("anyOf", ())), {})  # The other one is null.


class WireAnswer:
    """What is sent, and how pydantic describes it."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "extra": "forbid",
        "alias_generator": camel,
        "json_schema_serialization_defaults_required": True,
        "json_schema_extra": _as_described,
    }


@dataclass(frozen=True)
class _ToldApartBy:
    """Says by which member the classes of a union are told apart."""

    member: str

    def __get_pydantic_core_schema__(self, union: Any, make: Any) -> Any:
        from pydantic import Field as Described

        return make.generate_schema(Annotated[union, Described(discriminator=self.member)])


# -- what jobs did -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SupersededEntry(WireAnswer):
    """An entry that no longer holds: the fact stands in its place, under its path and id."""

    path: str
    id: Annotated[str, "Of its provenance; empty where it had none."]


@dataclass(frozen=True, slots=True)
class SimilarEntry(WireAnswer):
    """An entry about the same that stays: the new entry is linked to it."""

    path: str
    id: Annotated[str, "Of its provenance; empty if it has none."]


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberResult(WireAnswer):
    """What a remember did."""

    summary: str
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    enforcement: Enforcement | None = None
    decided_by: str = field(default_factory=str)
    trust: Annotated[
        Trust | None, "Of what was written; below the request's where a model used words of its own."
    ] = None
    superseded: Annotated[tuple[SupersededEntry, ...], "What no longer holds."] = field(default_factory=tuple)
    similar: Annotated[
        tuple[SimilarEntry, ...],
        "Entries about the same that stay, because the fact does not say that something changed.",
    ] = field(default_factory=tuple)
    notes: Annotated[tuple[str, ...], "What a person should know."] = field(default_factory=tuple)
    expires: Annotated[str | None, "The last day on which it is shown, as the request said."] = None
    ends: Annotated[
        str | None, "The last day on which it holds, by its own words; recall marks it as ended afterwards."
    ] = None


class _OfFile(WireAnswer):
    """Something in a file; it can be taken apart as the tuple of its members."""

    __slots__ = ()
    path: str

    @property
    def file_path(self) -> str:
        """The path, as clients of the contract know it."""
        return self.path

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, each.name) for each in fields(cast("Any", self)))

    def __getitem__(self, at: Any) -> Any:
        return tuple(self)[at]


@dataclass(frozen=True, slots=True, order=True)
class RemovedEntry(_OfFile):
    """An entry, or a part of one, that went; of a dry run, that would go."""

    topic: str
    summary: str
    path: str = field(metadata={"alias": "filePath"})
    line: Annotated[int | None, "Where in the file what goes begins; without it all of it goes."] = None
    text: Annotated[str | None, "The lines that go; without them all of the file."] = None


@dataclass(frozen=True, slots=True, order=True)
class KeptEntry(_OfFile):
    """An entry that was meant and stays."""

    path: str = field(metadata={"alias": "filePath"})
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetResult(WireAnswer):
    """What a forget did."""

    summary: str
    removed_entries: tuple[RemovedEntry, ...]
    touched_topics: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    kept: Annotated[
        tuple[KeptEntry, ...], "What was meant and stays, the first of it; told to the owner alone."
    ] = field(default_factory=tuple, metadata={"max_length": MAX_KEPT})
    near: Annotated[
        tuple[str, ...], "Where nothing was meant, paths of entries that share a word with the query."
    ] = field(default_factory=tuple)
    notes: Annotated[tuple[str, ...], "What a person should know."] = field(default_factory=tuple)
    digest: Annotated[str | None, "Of a dry run: names exactly what would go; absent: nothing would."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamResult(WireAnswer):
    """What a dream did."""

    summary: str
    touched_topics: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    deduped_entries: Annotated[int, "How many entries went because another one says the same."]
    rejected: Annotated[int, "How many groups were left alone, since they changed meanwhile."] = field(
        default_factory=int
    )
    ended_entries: Annotated[
        int | None,
        "How many entries no longer hold, as their words say; they stay until a person removes them.",
    ] = None


# -- tasks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskError(WireAnswer):
    """Why a task failed."""

    code: str
    message: str
    review_id: str | None = None
    paths: Annotated[
        tuple[str, ...], "What was changed meanwhile; or some of what would be too much to forget."
    ] = ()
    meant: Annotated[int | None, "How much that is, where it is more than may be forgotten."] = None
    limit: Annotated[int | None, "How much may be forgotten at once, where it is more."] = None
    reason: Annotated[str | None, "If a model failed: its name and why, on one line."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyTask(WireAnswer):
    """What is told of every task."""

    task_id: str
    status: Annotated[Status, "`cancelled` for whoever cancelled it; `failed` for everybody else."]
    created_at: str
    updated_at: str
    error: Annotated[TaskError | None, "Of a failed task alone."] = None
    review_id: Annotated[str | None, "Of a task that waits for the owner's approval."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberTask(AnyTask):
    """A task that remembers."""

    kind: Literal["remember"] = "remember"
    context_mode: ContextMode
    scope: str | None = None
    result: Annotated[RememberResult | None, "Of a completed task alone."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetTask(AnyTask):
    """A task that forgets."""

    kind: Literal["forget"] = "forget"
    scope: str | None = None
    result: Annotated[ForgetResult | None, "Of a completed task alone."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamTask(AnyTask):
    """A task that tidies."""

    kind: Literal["dream"] = "dream"
    result: Annotated[DreamResult | None, "Of a completed task alone."] = None


ToldTask = Annotated[RememberTask | ForgetTask | DreamTask, _ToldApartBy("kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList(WireAnswer):
    """Tasks, the newest first."""

    tasks: tuple[ToldTask, ...]
    next_cursor: Annotated[str | None, "For the next request, if there are more."] = None


# -- recalls -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledEntry(WireAnswer):
    """An entry that helps."""

    id: Annotated[str, "What `exclude` takes: its path, and a digest of what it says now."]
    path: str
    name: str
    trust: Annotated[Trust, "Whom it comes from."]
    at: Annotated[str, "When it was written."]
    text: Annotated[str, "What of it stands in the text of the answer."]
    ended: Annotated[str | None, "The last day on which it held, if that has passed."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled(WireAnswer):
    """What of the memory helps with a message."""

    entries: Annotated[tuple[RecalledEntry, ...], "The best first."]
    text: Annotated[
        str, "To be put before a model as it is: the entries, fenced as data. Empty without entries."
    ]
    tokens: Annotated[int, "Of the text, about."]
    abstained: Annotated[bool, "Nothing in the memory is about it but what was excluded."]
    error: Annotated[
        Literal["managed_memory_unavailable", "deadline", "recall_failed"] | None,
        "Why it is empty; without it nothing went wrong.",
    ] = None
    notes: Annotated[tuple[str, ...], "What the user should know."] = ()


# -- the owner's -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Review(WireAnswer):
    """A change-set that waits for the owner."""

    review_id: str
    kind: str
    at: str
    reasons: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewList(WireAnswer):
    """What waits in this workspace."""

    reviews: tuple[Review, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewShown(WireAnswer):
    """A review, as it would be approved now."""

    review_id: str
    text: str
    digest: Annotated[str, "What an approval names."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(WireAnswer):
    """What came of a decision about a review."""

    review_id: str
    status: Literal["approved", "rejected"]
    task_id: Annotated[str | None, "As which it was committed, where it was approved."] = None
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone(WireAnswer):
    """What an undo did."""

    task_id: Annotated[str, "Of the undo; undo that to have the changes again."]
    undone: str
    files_touched: tuple[str, ...]
    touched_scopes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasePlan(WireAnswer):
    """What an erasure would do; nothing was erased."""

    status: Literal["preview"]
    files: tuple[str, ...]
    versions: int
    others: tuple[str, ...]
    reviews: tuple[str, ...]
    records: int
    lane_tasks: int = field(default_factory=int)
    tasks: tuple[str, ...]
    copies: tuple[str, ...]
    not_covered: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseReceipt(WireAnswer):
    """What an erasure did. It holds no name and no text."""

    status: Literal["erased"]
    task_id: str
    at: str
    erased: tuple[str, ...]
    tasks: tuple[str, ...]
    files: int
    versions: int
    reviews: int
    records: int
    lane_tasks: int = field(default_factory=int)
    notes: tuple[str, ...]
    not_covered: str


Erasure = Annotated[ErasePlan | EraseReceipt, _ToldApartBy("status")]
"""What an erasure would do, or did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHead(WireAnswer):
    """The end of the chain of records, to be kept where nobody can change it with the ledger."""

    head: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(WireAnswer):
    """What the policy says to a verb on a path."""

    policy: str
    verdict: Literal["allow", "deny"]
    rule: str | None = None
    layer: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UiOpened(WireAnswer):
    """Where the page is, and how to sign in there."""

    url: Annotated[str, "Of a name that is drawn anew at each start, below `localhost`."]
    code: Annotated[str, "Signs in once. Put it behind `#`, or type it in; never into a query."] = field(
        repr=False
    )
    seconds: Annotated[int, "For how long the code works."]


# -- the daemon itself -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature(WireAnswer):
    """Something that this daemon can do."""

    since: Literal["v1"] = "v1"
    modes: tuple[ContextMode, ...] | None = None
    scopes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonLimits(WireAnswer):
    """What a request, a lane and a task may take."""

    content_bytes: int
    body_bytes: int
    pending_tasks: int
    pending_tidying_tasks: int
    kept_tasks: int
    wait_seconds: int
    task_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolVersions(WireAnswer):
    """Which versions of the contract are spoken."""

    current: Literal["v1"] = "v1"
    supported: tuple[str, ...] = field(default_factory=lambda: ("v1",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities(WireAnswer):
    """What this daemon can do in a workspace, and its limits."""

    v: Literal[1] = 1
    protocol_versions: ProtocolVersions = ProtocolVersions()
    mode: Annotated[Literal["http-bridge"], "Means nothing here; ask `features`."] = "http-bridge"
    version: str
    workspace: Annotated[str, "Its key, as in `/workspaces/{workspace}/memory/…`."]
    features: Annotated[tuple[str, ...], "The names of what it can do."]
    feature_details: Annotated[Mapping[str, Feature], "More about some of them."]
    transports: tuple[str, ...] = field(default_factory=lambda: ("rest",))
    model_services: Annotated[tuple[str, ...], "None: a client needs no model of the daemon."] = field(
        default_factory=tuple
    )
    limits: DaemonLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(WireAnswer):
    """Whether the daemon runs."""

    status: Literal["ok"] = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(WireAnswer):
    """That whoever answers knows a token."""

    proof: Annotated[str, "HMAC-SHA-256 by the token's key over the nonce and the address, hexadecimal."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness(WireAnswer):
    """That it accepts tasks of each workspace, by key."""

    status: Literal["ready"] = "ready"
    workspaces: tuple[str, ...]


# -- writing and reading -----------------------------------------------------------------------------

A = TypeVar("A", bound=WireAnswer)

_NOUNS: Final[Mapping[type, str]] = {
    **dict.fromkeys((RememberResult, ForgetResult, DreamResult), "a result"),
    SupersededEntry: "what was superseded",
    SimilarEntry: "a similar entry",
    RemovedEntry: "a removed entry",
    KeptEntry: "a kept entry",
    RecalledEntry: "a recalled entry",
    Review: "a review",
    TaskError: "an error",
}
"""What is wrong is told of a part of an answer by these."""


def document(answer: WireAnswer) -> dict[str, Any]:
    """An answer as the JSON document that is sent (D1, D2)."""
    homes = (__name__, "muniment.entry_types")
    kind = next(each for each in type(answer).__mro__ if each.__module__ in homes)
    told = ((each, getattr(answer, each.name)) for each in _members(kind))
    return {
        each.wire: _plain(value)
        for each, value in told
        if not (each.may_be_left_out and value == each.default)
    }


def members(result: object, names: str) -> dict[str, Any]:
    """Some members of a result, as the command line has them: under their own names."""
    return {name: _as_json(getattr(result, name)) for name in names.split()}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(each) for each in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def read(kind: type[A], said: object, what: str) -> A:
    """An answer of a kind from the value of a JSON document (D3).

    Args:
        kind: a class of the contract, or one below it.
        said: what is read.
        what: it should be, for messages.

    Raises:
        ValueError: it is something else, with the reason.
    """
    if not isinstance(said, dict):
        raise ValueError(f"{what} is no object")  # noqa: TRY004  as all of these
    found = {}
    of: Any = kind
    for each in _members(of):
        value = said.get(each.wire)
        if value is not None or each.is_needed:
            found[each.name] = _value(each.type, value, each.wire, what)
    return kind(**found)


_NOTHING: Final = (None, ())


class _AnswerMember(NamedTuple):
    """A member of an answer: its name here and in a document, and what is known of it."""

    name: str
    wire: str
    type: Any
    default: Any
    is_needed: bool
    may_be_left_out: bool


@cache
def _members(kind: Hashable) -> tuple[_AnswerMember, ...]:
    of: Any = kind
    types_of = get_type_hints(of)
    return tuple(
        _AnswerMember(
            each.name,
            _wire_name(each),
            types_of[each.name],
            each.default,
            each.default is each.default_factory is MISSING,
            _may_be_left_out(each),
        )
        for each in fields(of)
    )


def _may_be_left_out(member: Field[Any]) -> bool:
    return member.default in _NOTHING


def _wire_name(member: Field[Any]) -> str:
    name: str = member.metadata.get("alias") or camel(member.name)
    return name


def _plain(value: Any) -> Any:
    if isinstance(value, WireAnswer):
        return document(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _value(of: Any, value: object, name: str, what: str) -> Any:
    """A member from what was said of it, by its type."""
    of = (
        get_args(of)[0] if get_origin(of) in {Union, UnionType} else of
    )  # The other one is None, which is left out.
    if value is None and get_origin(of) is not tuple and of not in {bool, int}:
        raise ValueError(f"{what} has no {name}")
    if get_origin(of) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{name} of {what} is no list")
        item = get_args(of)[0]
        if isinstance(item, type) and issubclass(item, WireAnswer):
            return tuple(read(item, each, _NOUNS.get(item, "an item")) for each in value)
        if not all(isinstance(each, str) for each in value):
            raise ValueError(f"{name} of {what} holds something else than texts")
        return tuple(value)
    if of in _NOUNS:
        return read(of, value, _NOUNS[of])
    kind, otherwise = _PLAIN.get(of, (str, "is no text"))
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} of {what} {otherwise}")
    words: Any = of if isinstance(of, EnumType) else ()
    return next((each for each in words if each == value), value)


_PLAIN: Final[Mapping[object, tuple[type, str]]] = {
    bool: (bool, "is neither true nor false"),
    int: (int, "is no number"),
    Mapping[str, Any]: (dict, "is no object"),
}
