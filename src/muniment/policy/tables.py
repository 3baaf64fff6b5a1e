"""What may stand in a policy file: one closed model a table, and what is said when something else does.

`read_tables` takes what `tomllib` made of a file. Nothing is guessed: every key is known, or the file does
not load; and no key is known that this version does not enforce.

    E101  unknown key, with the nearest known one
    E102  not TOML
    E103  missing key
    E104  wrong type, or not one of the values that are possible
    E105  another schema, or not a dumped policy
    E107  two rules or two quotas with one id
    E108  an empty list where at least one thing is needed, or more things than a policy may have
    E109  unknown verb, or `*` outside a deny rule
    E110  a number outside its bounds
    E111  a name or id that is reserved or not made of a-z, 0-9, `-` and `_`
    E127  a path in `extends` that is not relative to the file

`family` adds E100 and E120 to E124 (files and parents), `load` E125 and E401 (scopes, inline tests), `lock`
E130 to E132; `pattern` has E2xx. A policy inside a root is E126 (`confine.binding`), and signatures are
E140 to E143 (`signatures`).

A missing key never means more: absent `[limits]` keys and quota numbers are those of the shipped `strict`,
absent `[content]` or `reject` turns every gate on, absent `secrets` is `reject`, absent `instructions` and
`untrusted_sources` are `quarantine`, absent `[retention]` keeps what is untrusted for 14 days, absent
`[confinement]` is `partial` and `abort`, absent `[changes]` is `fail`, 5 entries and a fifth of a scope, and
a scope without `trust` is `external`. Only `commit` is `auto` where it is absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from muniment.errors import PolicyInvalid, printable
from muniment.names import Scope, Trust, Verb
from muniment.policy.decide import NO_GRANT, NOT_A_NAME, NOT_A_SCOPE
from muniment.policy.grammar import GRAMMAR_LAYER, PREFIX, segment_problem
from muniment.policy.meet import REQUEST_LAYER
from muniment.policy.model import (
    GATES,
    Changes,
    Commit,
    Confinement,
    Content,
    Frozen,
    Gate,
    Limits,
    Provenance,
    Quota,
    Retention,
)
from muniment.policy.places import line_at

SCHEMA: Final = "muniment-policy/1"

MAX_RULES: Final = 256
"""Rules of a kind in one file, and patterns in one rule: keeps compiling below a second."""

RESERVED_RULES: Final = frozenset({NO_GRANT, NOT_A_NAME, NOT_A_SCOPE})
"""What refusals cite where no rule of a policy decided, so that a record of one says which it was."""

MAX_PARENTS: Final = 8
"""Names and paths in one `extends`."""

MAX_PATH_CHARS: Final = 1_024
"""Characters of a path in `extends`."""

POLICY_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""What a policy may call itself; two names are reserved besides."""


def _verb(text: str) -> str:
    if text != "*" and text not in set(Verb):
        raise PydanticCustomError("E109", "{text} is no verb; there are {verbs}", _words(text, Verb))
    return text


def _policy_name(name: str) -> str:
    if name in {REQUEST_LAYER, GRAMMAR_LAYER}:
        raise PydanticCustomError("E111", "{text} is a reserved name", {"text": repr(name)})
    return name


def is_path(entry: str) -> bool:
    """Whether someone who names a policy so means a file, and not a name to look up."""
    return "/" in entry or entry.endswith(".toml")


def _parent(entry: str) -> str:
    name_or_path = {"text": repr(printable(entry))}
    if not is_path(entry) and POLICY_NAME.fullmatch(entry) is None:
        problem = "{text} is neither a name, made of a-z, 0-9, `-` and `_`, nor a path with `/` or `.toml`"
        raise PydanticCustomError("E111", problem, name_or_path)
    if not entry.isprintable() or len(entry) > MAX_PATH_CHARS:
        raise PydanticCustomError("E111", "{text} is too long, or does not print", name_or_path)
    if entry.startswith(("/", "~")):
        problem = "{text} is not relative; write the path from the folder of this file"
        raise PydanticCustomError("E127", problem, name_or_path)
    return entry if is_path(entry) else _policy_name(entry)


def _scope_name(name: str) -> Scope:
    if f"/{name}/" == PREFIX or segment_problem(name) is not None:
        raise PydanticCustomError("E111", "{text} is a reserved name", {"text": repr(name)})
    return Scope(name)


def _rule_id(name: str) -> str:
    if name in RESERVED_RULES:
        raise PydanticCustomError("E111", "{text} is a reserved id", {"text": repr(name)})
    return name


def _gate(value: object) -> object:
    if value not in GATES:
        raise PydanticCustomError("E104", "{text} is no gate; there are {verbs}", _words(str(value), GATES))
    return value


def _words(text: str, known: Any) -> dict[str, str]:
    return {"text": repr(printable(text)), "verbs": ", ".join(known)}


_Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}\z")]
_Parent = Annotated[str, AfterValidator(_parent)]
_Name = Annotated[_Id, AfterValidator(_policy_name)]
_RuleId = Annotated[_Id, AfterValidator(_rule_id)]
_Scope = Annotated[_Id, AfterValidator(_scope_name)]
_Gate = Annotated[Gate, BeforeValidator(_gate)]
_Verbs = Annotated[
    tuple[Annotated[str, AfterValidator(_verb)], ...], Field(strict=False, min_length=1, max_length=6)
]
_Paths = Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=MAX_RULES)]
_Trust = Annotated[Trust, Field(strict=False)]


class ScopeTable(Frozen):
    """`[scopes]`: `name = { trust = …, commit = … }`."""

    trust: _Trust = Trust.EXTERNAL
    commit: Commit = "auto"


class RuleTable(Frozen):
    """`[[deny]]`: here `*` stands for every verb."""

    id: _RuleId
    verbs: _Verbs
    paths: _Paths
    why: str = ""


class AllowTable(RuleTable):
    """`[[allow]]`: verbs are spelt out, so that a later version cannot grant more than was reviewed."""

    @model_validator(mode="after")
    def _spelt_out(self) -> AllowTable:
        if "*" in self.verbs:
            raise PydanticCustomError("E109", "`*` may stand in deny rules only; name the verbs")
        return self


class QuotaTable(Quota):
    """`[[quota]]`."""

    id: _Id
    paths: _Paths


class ContentTable(Content):
    """`[content]`: only an explicit `reject = []` switches the gates off."""

    reject: Annotated[tuple[_Gate, ...], Field(strict=False)] = GATES


class CheckTable(Frozen):
    """`[[test]]`: what the effective policy must answer, or it does not load.

    Attributes:
        verb: what is asked; `removal` is what code may take away.
        file_bytes: with it, the file would have so many bytes.
        files: with it, the scope would hold so many files, as each quota counts them.
        total_bytes: with it, they would have so many bytes together.
    """

    verb: Literal["list", "read", "create", "modify", "delete", "removal"]
    path: str
    expect: Literal["allow", "deny"]
    file_bytes: Annotated[int, Field(ge=1)] | None = None
    files: Annotated[int, Field(ge=1)] | None = None
    total_bytes: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _size_of_what_is_written(self) -> CheckTable:
        sizes = (self.file_bytes, self.files, self.total_bytes)
        if self.verb not in {Verb.CREATE, Verb.MODIFY} and any(size is not None for size in sizes):
            problem = "file_bytes, files and total_bytes are for create and modify; {verb} writes nothing"
            raise PydanticCustomError("E104", problem, {"verb": self.verb})
        return self


class PolicyFile(Frozen):
    """One policy file. Rules are not compiled yet, parents not looked at."""

    schema_: Literal["muniment-policy/1"] = Field(alias="schema")
    name: _Name
    description: str = ""
    extends: Annotated[tuple[_Parent, ...], Field(strict=False, max_length=MAX_PARENTS)] = ()
    scopes: Annotated[dict[_Scope, ScopeTable], Field(min_length=1, max_length=MAX_RULES)] | None = None
    allow: Annotated[tuple[AllowTable, ...], Field(strict=False, max_length=MAX_RULES)] = ()
    deny: Annotated[tuple[RuleTable, ...], Field(strict=False, max_length=MAX_RULES)] = ()
    quota: Annotated[tuple[QuotaTable, ...], Field(strict=False, max_length=MAX_RULES)] = ()
    confinement: Confinement = Confinement()
    limits: Limits = Limits()
    changes: Changes = Changes()
    content: ContentTable = ContentTable()
    provenance: Provenance = Provenance()
    retention: Retention = Retention()
    test: Annotated[tuple[CheckTable, ...], Field(strict=False, max_length=MAX_RULES)] = ()


def read_tables(data: dict[str, Any], where: str, text: str = "") -> PolicyFile:
    """The file as a value.

    Args:
        data: what `tomllib` returned.
        where: name of the policy or file, for messages.
        text: what `tomllib` read, so that a complaint knows its line.

    Raises:
        PolicyInvalid: for the first thing that is wrong, with a code from the list above.
    """
    file, found = _examined(data, where, text)
    if found:
        first, more = found[0], len(found) - 1
        problem = f"{first.problem} (and {more} more)" if more else first.problem
        raise PolicyInvalid(first.rule, first.where, problem, first.line)
    return cast("PolicyFile", file)


def complaints(data: dict[str, Any], where: str, text: str = "") -> list[PolicyInvalid]:
    """All that is wrong with a file by itself; `read_tables` raises the first. Arguments as there."""
    return _examined(data, where, text)[1]


def _examined(data: dict[str, Any], where: str, text: str) -> tuple[PolicyFile | None, list[PolicyInvalid]]:
    try:
        file = PolicyFile.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        return None, [_complaint(detail, data, where, text) for detail in _told_once(details)]
    return file, [
        PolicyInvalid("E107", f"{where} {loc[0]}[{name}]", "the id is used twice", line_at(text, loc))
        for loc, name in _repeated(file)
    ]


def _told_once(details: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """All but lists that are too short only because what stands in them is wrong."""
    for detail in details:
        loc = detail["loc"]
        inside = any(len(each["loc"]) > len(loc) and each["loc"][: len(loc)] == loc for each in details)
        if detail["type"] != "too_short" or not inside:
            yield detail


def _repeated(file: PolicyFile) -> Iterator[tuple[tuple[str, int], str]]:
    """Place and id of each table that bears the id of an earlier one; rules share their ids."""
    for kinds in (("allow", "deny"), ("quota",)):
        seen: set[str] = set()
        for kind in kinds:
            for index, table in enumerate(getattr(file, kind)):
                if table.id in seen:
                    yield (kind, index), table.id
                seen.add(table.id)


_MODELS: Final[dict[str, type[Frozen]]] = {
    "scopes": ScopeTable,
    "allow": AllowTable,
    "deny": RuleTable,
    "quota": QuotaTable,
    "confinement": Confinement,
    "limits": Limits,
    "changes": Changes,
    "content": ContentTable,
    "provenance": Provenance,
    "retention": Retention,
    "test": CheckTable,
}
_CODES: Final = {
    "missing": "E103",
    "too_short": "E108",
    "too_long": "E108",
    "greater_than": "E110",
    "greater_than_equal": "E110",
    "less_than_equal": "E110",
    "string_pattern_mismatch": "E111",
}


def _complaint(detail: ErrorDetails, data: dict[str, Any], where: str, text: str) -> PolicyInvalid:
    code, problem = _code_and_problem(detail)
    place = " ".join(filter(None, [where, _place(detail["loc"], data)]))
    return PolicyInvalid(code, place, problem, line_at(text, detail["loc"]))


def _code_and_problem(detail: ErrorDetails) -> tuple[str, str]:
    kind, keys = detail["type"], tuple(part for part in detail["loc"] if isinstance(part, str))
    if kind == "extra_forbidden":
        return _unknown_key(keys)
    if keys == ("schema",):
        return _CODES.get(kind, "E105"), f"has to be {SCHEMA!r}"
    problem = detail["msg"].replace("Input should", "should", 1)
    return (kind if kind.startswith("E") else _CODES.get(kind, "E104")), problem


def _unknown_key(keys: tuple[str, ...]) -> tuple[str, str]:
    model = _MODELS[keys[0]] if len(keys) > 1 else PolicyFile
    known = [field.alias or name for name, field in model.model_fields.items()]
    near = get_close_matches(keys[-1], known, n=1)
    return "E101", f"unknown key; did you mean {near[0]!r}?" if near else "unknown key"


def _place(loc: tuple[int | str, ...], data: Any) -> str:
    """Where in the file, with rules called by their ids: `allow[write-topics].verbs`."""
    text, here = "", data
    for part in loc:
        here = _inside(here, part)
        if isinstance(part, str):
            text += f".{printable(part)}"
        else:
            text += f"[{printable(str(here.get('id', part))) if isinstance(here, dict) else part}]"
    return text.removeprefix(".")


def _inside(value: Any, part: int | str) -> Any:
    try:
        return value[part]
    except (KeyError, IndexError, TypeError):  # The place of something missing, or of a key.
        return None
