"""Results as JSON documents: `document` creates the document to send, `read` parses it.

D1 Members of a document have camelCase names. A member whose default is None or empty is omitted if it has no
   other value. It is never null, as in the types of the original contract. All other members are always
   present.
D2 Members that never leave the process (`LOCAL`) are omitted.
D3 A parsed result has every member that is always present, each of its type. Unknown members are ignored,
   since a newer daemon may send more. For the same reason unknown words of an enumeration are accepted.
D4 An error is its code in a document; a parsed error has the sentence of that code.
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
"""The metadata of a member that never leaves the process (D2); pydantic also reads it."""


NEEDED: Final = {"needed": True}
"""The metadata of a member that every document contains, although it has a default here."""


def camel(name: str) -> str:
    """Return the name of a member in a document."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def _as_described(schema: dict[str, Any], of: type[DataclassInstance]) -> None:
    """Add the descriptions of members to the schema of a response, and mark optional members (D1)."""
    told, always = get_type_hints(of, include_extras=True), schema.get("required", [])
    for each in _sent_fields(of):
        member = schema["properties"][_wire_name(each)]
        if get_origin(told[each.name]) is Annotated:
            member["description"] = told[each.name].__metadata__[0]
        if _may_be_left_out(each):
            always[:] = [name for name in always if name != _wire_name(each)]
            del member["default"]
            member |= next(iter(member.pop("anyOf", ())), {})  # The other option is null.


class WireAnswer:
    """A class of results that are sent, with its settings for pydantic."""

    __slots__ = ()
    noun: ClassVar[str] = "a response"
    """The name of the type in a message."""
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "extra": "forbid",
        "alias_generator": camel,
        "json_schema_serialization_defaults_required": True,
        "json_schema_extra": _as_described,
    }


class OpaqueType:
    """A marker: pydantic does not describe the type of a member that never leaves the process."""

    def __get_pydantic_core_schema__(self, _source: Any, make: Any) -> Any:
        return make.generate_schema(Any)


@dataclass(frozen=True)
class ToldApartBy:
    """A marker with the member that distinguishes the classes of a union."""

    member: str

    def __get_pydantic_core_schema__(self, union: Any, make: Any) -> Any:
        from pydantic import Field as Described

        return make.generate_schema(Annotated[union, Described(discriminator=self.member)])


@dataclass(frozen=True)
class CodeOf:
    """A marker for an error that is only its code in a document, with the possible codes."""

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
    """Return some members of a result for the command line, with their Python names."""
    return {name: _as_json(getattr(result, name)) for name in names.split()}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(each) for each in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return {each.name: _as_json(getattr(value, each.name)) for each in _sent_fields(value)}


def read(kind: type[A], said: object, what: str) -> A:
    """Parse the value of a JSON document as an answer of a class (D3).

    Args:
        kind: a class of the contract, or a subclass.
        said: the value.
        what: the name of the expected type, for messages.

    Raises:
        ValueError: invalid value, with the reason.
    """
    if not isinstance(said, dict):
        raise ValueError(f"{what} is not an object")  # noqa: TRY004  as all of these
    found = {}
    of: Any = kind
    for each in _members(of):
        value = said.get(each.wire)
        if value is not None or each.is_needed:
            found[each.name] = _value(each.type, value, each.wire, what)
    return kind(**found)


_NOTHING: Final = (None, ())


class _AnswerMember(NamedTuple):
    """A member of a response: its names here and in a document, and its properties."""

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
    """Return the value of a member, checked by its type."""
    of = (
        get_args(of)[0] if get_origin(of) in {Union, UnionType} else of
    )  # The other type is None, which is omitted.
    if value is None and get_origin(of) is not tuple and of not in {bool, int}:
        raise ValueError(f"{what} has no {name}")
    if get_origin(of) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{name} of {what} is not a list")
        item = get_args(of)[0]
        if issubclass(item, WireAnswer):
            return tuple(read(item, each, item.noun) for each in value)
        if not all(isinstance(each, str) for each in value):
            raise ValueError(f"{name} of {what} contains values that are not strings")
        return tuple(value)
    if isinstance(of, type) and issubclass(of, WireAnswer):
        return read(of, value, of.noun)
    kind, otherwise = _PLAIN.get(of, (str, "is not a string"))
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} of {what} {otherwise}")
    if of is MunimentError:
        code = str(value)
        return MunimentError(CODES[code].sentence if code in CODES else code, code=code)
    words: Any = of if isinstance(of, EnumType) else ()
    return next((each for each in words if each == value), value)


_PLAIN: Final[Mapping[object, tuple[type, str]]] = {
    bool: (bool, "is neither true nor false"),
    int: (int, "is not a number"),
    Mapping[str, Any]: (dict, "is not an object"),
}
