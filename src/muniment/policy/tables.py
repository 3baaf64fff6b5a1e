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

`load` adds E100 and E12x (files and parents) and E401 (inline tests); `pattern` has E2xx.

A missing key never means more: absent `[limits]` keys and quota numbers are those of the shipped `strict`,
absent `[content]` or `reject` turns every gate on, absent `secrets` is `reject`, absent `instructions` and
`untrusted_sources` are `quarantine`, absent `[retention]` keeps what is untrusted for 14 days, absent
`[confinement]` is `partial` and `abort`, absent `[changes]` is `fail`, 5 entries and a fifth of a scope, and
a scope without `trust` is `external`. Only `commit` is `auto` where it is absent.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal

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

SCHEMA: Final = "muniment-policy/1"

MAX_RULES: Final = 256
"""Rules of a kind in one file, and patterns in one rule: keeps compiling below a second."""

MAX_PARENTS: Final = 8
"""Names in one `extends`."""


def _verb(text: str) -> str:
    if text != "*" and text not in set(Verb):
        raise PydanticCustomError("E109", "{text} is no verb; there are {verbs}", _words(text, Verb))
    return text


def _policy_name(name: str) -> str:
    if name in {REQUEST_LAYER, GRAMMAR_LAYER}:
        raise PydanticCustomError("E111", "{text} is a reserved name", {"text": repr(name)})
    return name


def _scope_name(name: str) -> Scope:
    if f"/{name}/" == PREFIX or segment_problem(name) is not None:
        raise PydanticCustomError("E111", "{text} is a reserved name", {"text": repr(name)})
    return Scope(name)


def _gate(value: object) -> object:
    if value not in GATES:
        raise PydanticCustomError("E104", "{text} is no gate; there are {verbs}", _words(str(value), GATES))
    return value


def _words(text: str, known: Any) -> dict[str, str]:
    return {"text": repr(printable(text)), "verbs": ", ".join(known)}


_Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}\z")]
_Name = Annotated[_Id, AfterValidator(_policy_name)]
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

    id: _Id
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
    """`[[test]]`: what the effective policy must answer, or it does not load."""

    verb: Annotated[Verb, Field(strict=False)]
    path: str
    expect: Literal["allow", "deny"]


class PolicyFile(Frozen):
    """One policy file. Rules are not compiled yet, parents not looked at."""

    schema_: Literal["muniment-policy/1"] = Field(alias="schema")
    name: _Name
    description: str = ""
    extends: Annotated[tuple[_Id, ...], Field(strict=False, max_length=MAX_PARENTS)] = ()
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

    @model_validator(mode="after")
    def _ids_are_unique(self) -> PolicyFile:
        for ids in ([rule.id for rule in (*self.allow, *self.deny)], [quota.id for quota in self.quota]):
            for name in ids:
                if ids.count(name) > 1:
                    raise PydanticCustomError("E107", "the id {name} is used twice", {"name": repr(name)})
        return self


def read_tables(data: dict[str, Any], where: str) -> PolicyFile:
    """The file as a value.

    Args:
        data: what `tomllib` returned.
        where: name of the policy or file, for messages.

    Raises:
        PolicyInvalid: for the first thing that is wrong, with a code from the list above.
    """
    try:
        return PolicyFile.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        raise _complaint(details, data, where) from None


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


def _complaint(details: list[ErrorDetails], data: dict[str, Any], where: str) -> PolicyInvalid:
    first, more = details[0], len(details) - 1
    code, problem = _code_and_problem(first)
    place = " ".join(filter(None, [where, _place(first["loc"], data)]))
    return PolicyInvalid(code, place, f"{problem} (and {more} more)" if more else problem)


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
