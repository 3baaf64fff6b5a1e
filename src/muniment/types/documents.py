"""Convert results to the JSON documents that the daemon sends, and parse these documents in a client.

D1 Members of a document have camelCase names. A member whose default is None or `()` is optional: it is
   omitted if its value is the default, and is never null. All other members are always present.
D2 Members that never leave the process (`LOCAL`) are not part of the document.
D3 `parse_document` checks that every required member is present, and that each member has its type. Unknown
   members and unknown words of an enumeration are accepted, because a newer daemon may send them.
D4 In a document, an error is only its code. `parse_document` returns an error with the message that
   `errors.CODES` has for this code.
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
"""The metadata of a member that is never sent; pydantic also reads this metadata."""


REQUIRED: Final = {"needed": True}
"""The metadata of a member that every document contains, although the class has a default for it."""


def convert_to_camel_case(name: str) -> str:
    """Return a Python name in camelCase, as a document contains it: `task_id` becomes `taskId`."""
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))


def _describe_schema(schema: dict[str, Any], class_: type[DataclassInstance]) -> None:
    """Change the JSON schema of a response: add the descriptions of members, and mark optional members.

    Args:
        schema: the schema that pydantic generated; modified.
        class_: the class of the response.
    """
    hints, required_names = get_type_hints(class_, include_extras=True), schema.get("required", [])
    for each in _list_sent_fields(class_):
        member = schema["properties"][_choose_wire_name(each)]
        if get_origin(hints[each.name]) is Annotated:
            member["description"] = hints[each.name].__metadata__[0]
        if _is_optional(each):
            required_names[:] = [name for name in required_names if name != _choose_wire_name(each)]
            del member["default"]
            member |= next(iter(member.pop("anyOf", ())), {})  # The other option is null.


class WireDocument:
    """The base class of results that are sent as JSON documents; it contains the settings for pydantic."""

    __slots__ = ()
    noun: ClassVar[str] = "a response"
    """The name of this kind of result in error messages."""
    __pydantic_config__: ClassVar[Mapping[str, Any]] = {
        "extra": "forbid",
        "alias_generator": convert_to_camel_case,
        "json_schema_serialization_defaults_required": True,
        "json_schema_extra": _describe_schema,
    }


class OpaqueType:
    """A marker for a member that is never sent: pydantic then accepts any type for this member."""

    def __get_pydantic_core_schema__(self, _source: Any, make: Any) -> Any:
        return make.generate_schema(Any)


@dataclass(frozen=True)
class Discriminator:
    """A marker for a union of classes: the name of the member by which a document shows its class."""

    member: str

    def __get_pydantic_core_schema__(self, union: Any, make: Any) -> Any:
        from pydantic import Field as Described

        return make.generate_schema(Annotated[union, Described(discriminator=self.member)])


@dataclass(frozen=True)
class ErrorCodes:
    """A marker for a member that is an error: the codes that a document may contain for it."""

    codes: tuple[str, ...]

    def __get_pydantic_core_schema__(self, _source: Any, make: Any) -> Any:
        return make.generate_schema(Literal[self.codes] | None)


A = TypeVar("A", bound=WireDocument)


def create_document(result: WireDocument) -> dict[str, Any]:
    """Return a result as the JSON document to send, without local members and unset optional members."""
    kind: Any = type(result)
    values = ((each, getattr(result, each.name)) for each in _list_members(kind))
    return {
        each.wire: _convert_value(value)
        for each, value in values
        if not (each.is_optional and value == each.default)
    }


def select_members(result: object, names: str) -> dict[str, Any]:
    """Return the selected members of a result as JSON values for the command line.

    Args:
        result: the result.
        names: the Python names of the members, separated by spaces.
    """
    return {name: _as_json(getattr(result, name)) for name in names.split()}


def _as_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_json(each) for each in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return {each.name: _as_json(getattr(value, each.name)) for each in _list_sent_fields(value)}


def parse_document(kind: type[A], source: object, label: str) -> A:
    """Return the result that a JSON document contains; ignore unknown members.

    Args:
        kind: the class of the result.
        source: the parsed JSON value.
        label: the name of this kind of result, for messages.

    Raises:
        ValueError: the value is not such a result; the message has the reason.
    """
    if not isinstance(source, dict):
        raise ValueError(f"{label} is not an object")  # noqa: TRY004  as all of these
    found = {}
    class_: Any = kind
    for each in _list_members(class_):
        value = source.get(each.wire)
        if value is not None or each.is_required:
            found[each.name] = _parse_value(each.type, value, each.wire, label)
    return kind(**found)


_EMPTY_DEFAULTS: Final = (None, ())


class _WireMember(NamedTuple):
    """A member of a result.

    Attributes:
        name: the name in Python.
        wire: the name in a document.
        type: the type, without its description.
        default: the default value.
        is_required: every document must contain the member.
        is_optional: a document omits the member if its value is the default.
    """

    name: str
    wire: str
    type: Any
    default: Any
    is_required: bool
    is_optional: bool


@cache
def _list_members(kind: Hashable) -> tuple[_WireMember, ...]:
    class_: Any = kind
    types_of = get_type_hints(class_)
    return tuple(
        _WireMember(
            each.name,
            _choose_wire_name(each),
            types_of[each.name],
            each.default,
            "needed" in each.metadata or each.default is each.default_factory is MISSING,
            _is_optional(each),
        )
        for each in _list_sent_fields(class_)
    )


def _list_sent_fields(class_: Any) -> list[Field[Any]]:
    return [each for each in fields(class_) if "exclude" not in each.metadata]


def _is_optional(member: Field[Any]) -> bool:
    return member.default in _EMPTY_DEFAULTS


def _choose_wire_name(member: Field[Any]) -> str:
    name: str = member.metadata.get("alias") or convert_to_camel_case(member.name)
    return name


def _convert_value(value: Any) -> Any:
    if isinstance(value, MunimentError):
        return value.code
    if isinstance(value, WireDocument):
        return create_document(value)
    if isinstance(value, Mapping):
        return {name: _convert_value(each) for name, each in value.items()}
    return [_convert_value(each) for each in value] if isinstance(value, tuple | list) else value


def _parse_value(expected_type: Any, value: Any, name: str, label: str) -> Any:
    """Return the value of a member, converted to its type; raise `ValueError` if it has another type.

    Args:
        expected_type: the type of the member.
        value: the JSON value.
        name: the name of the member, for messages.
        label: the name of the result that contains the member, for messages.
    """
    expected_type = (
        get_args(expected_type)[0] if get_origin(expected_type) in {Union, UnionType} else expected_type
    )  # The other type is None, which is omitted.
    if value is None and get_origin(expected_type) is not tuple and expected_type not in {bool, int}:
        raise ValueError(f"{label} has no {name}")
    if get_origin(expected_type) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{name} of {label} is not a list")
        item = get_args(expected_type)[0]
        if issubclass(item, WireDocument):
            return tuple(parse_document(item, each, item.noun) for each in value)
        if not all(isinstance(each, str) for each in value):
            raise ValueError(f"{name} of {label} contains values that are not strings")
        return tuple(value)
    if isinstance(expected_type, type) and issubclass(expected_type, WireDocument):
        return parse_document(expected_type, value, expected_type.noun)
    kind, problem = _SIMPLE_TYPES.get(expected_type, (str, "is not a string"))
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name} of {label} {problem}")
    if expected_type is MunimentError:
        code = str(value)
        return MunimentError(CODES[code].sentence if code in CODES else code, code=code)
    choices: Any = expected_type if isinstance(expected_type, EnumType) else ()
    return next((each for each in choices if each == value), value)


_SIMPLE_TYPES: Final[Mapping[object, tuple[type, str]]] = {
    bool: (bool, "is neither true nor false"),
    int: (int, "is not a number"),
    Mapping[str, Any]: (dict, "is not an object"),
}
