"""Results as JSON documents: `document` writes the one that is sent, `read` reads it.

D1 A member is named in camelCase in a document. One whose default is None or empty is left out if it has
   no other value, and never null, as the types of the original contract have it; all others are always there.
D2 Members that never leave the process (`LOCAL`) are left out.
D3 A result that was read has every member that is always there, each of its type; a member that its class
   does not have is ignored, since a newer daemon may send more. Of a closed set of words any word is read,
   likewise.
D4 An error is its code in a document; one that was read has the sentence of that code.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
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
    get_args,
    get_origin,
    get_type_hints,
)

from muniment.errors import CODES, MunimentError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


LOCAL: Final = {"exclude": True}
"""The metadata of a member that never leaves the process (D2); pydantic reads it likewise."""


NEEDED: Final = {"needed": True}
"""The metadata of a member that every document has, though it has a default here."""


def camel(name: str) -> str:
    """The name of a member in a document."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def _as_described(schema: dict[str, Any], of: type[DataclassInstance]) -> None:
    """Have the schema of an answer say what its members mean, and which are left out (D1)."""
    told, always = get_type_hints(of, include_extras=True), schema.get("required", [])
    for each in _sent_fields(of):
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
    noun: ClassVar[str] = "an answer"
    """Names it in a message about it."""
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "extra": "forbid",
        "alias_generator": camel,
        "json_schema_serialization_defaults_required": True,
        "json_schema_extra": _as_described,
    }


class OpaqueType:
    """Has pydantic describe no type of a member that never leaves the process."""

    def __get_pydantic_core_schema__(self, _source: Any, make: Any) -> Any:
        return make.generate_schema(Any)


@dataclass(frozen=True)
class ToldApartBy:
    """Says by which member the classes of a union are told apart."""

    member: str

    def __get_pydantic_core_schema__(self, union: Any, make: Any) -> Any:
        from pydantic import Field as Described

        return make.generate_schema(Annotated[union, Described(discriminator=self.member)])


@dataclass(frozen=True)
class CodeOf:
    """Describes an error that a document has as its code alone, with the codes of a member."""

    codes: tuple[str, ...]

    def __get_pydantic_core_schema__(self, _source: Any, make: Any) -> Any:
        return make.generate_schema(Literal[self.codes] | None)


A = TypeVar("A", bound=WireAnswer)


def document(answer: WireAnswer) -> dict[str, Any]:
    """Return an answer as the JSON document that is sent (D1, D2)."""
    kind: Any = type(answer)
    values = ((each, getattr(answer, each.name)) for each in _members(kind))
    return {
        each.wire: _plain(value)
        for each, value in values
        if not (each.may_be_left_out and value == each.default)
    }


def members(result: object, names: str) -> dict[str, Any]:
    """Some members of a result, as the command line has them: under their own names."""
    return {name: _as_json(getattr(result, name)) for name in names.split()}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(each) for each in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return {each.name: _as_json(getattr(value, each.name)) for each in _sent_fields(value)}


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
            "needed" in each.metadata or each.default is each.default_factory is MISSING,
            _may_be_left_out(each),
        )
        for each in _sent_fields(of)
    )


def _sent_fields(of: Any) -> list[Field[Any]]:
    return [each for each in fields(of) if "exclude" not in each.metadata]


def _may_be_left_out(member: Field[Any]) -> bool:
    return member.default in _NOTHING


def _wire_name(member: Field[Any]) -> str:
    name: str = member.metadata.get("alias") or camel(member.name)
    return name


def _plain(value: Any) -> Any:
    if isinstance(value, MunimentError):
        return value.code
    if isinstance(value, WireAnswer):
        return document(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _value(of: Any, value: Any, name: str, what: str) -> Any:
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
        if issubclass(item, WireAnswer):
            return tuple(read(item, each, item.noun) for each in value)
        if not all(isinstance(each, str) for each in value):
            raise ValueError(f"{name} of {what} holds something else than texts")
        return tuple(value)
    if isinstance(of, type) and issubclass(of, WireAnswer):
        return read(of, value, of.noun)
    kind, otherwise = _PLAIN.get(of, (str, "is no text"))
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} of {what} {otherwise}")
    if of is MunimentError:
        code = str(value)
        return MunimentError(CODES[code].sentence if code in CODES else code, code=code)
    words: Any = of if isinstance(of, EnumType) else ()
    return next((each for each in words if each == value), value)


_PLAIN: Final[Mapping[object, tuple[type, str]]] = {
    bool: (bool, "is neither true nor false"),
    int: (int, "is no number"),
    Mapping[str, Any]: (dict, "is no object"),
}
