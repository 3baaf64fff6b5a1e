"""The valid content of a policy file: one model for each table, and the errors for invalid content.

`read_tables` gets the result of `tomllib`. It accepts only known keys, and this version enforces every known
key.

    E101  unknown key, with the nearest known one
    E102  not TOML
    E103  missing key
    E104  wrong type, or not one of the possible values
    E105  another schema, or a dumped policy that is not in its normal form
    E107  two rules or two quotas with one id
    E108  an empty list that needs an item, or more items than a policy may have
    E109  unknown verb, or `*` outside a deny rule
    E110  a number outside its bounds
    E111  a name or id that is reserved, or has characters other than a-z, 0-9, `-` and `_`
    E127  a path in `extends` that is not relative to the file

`family` adds E100 and E120 to E124 (files and parents) and E130 to E132 (locks), `load` E125 and E401
(scopes, inline tests); `pattern` has E2xx. A policy inside a root is E126 (`policy.ownership`), and
signatures are E140 to E143 (`policy.signatures`).

A missing key never grants more than a present one. Its default is:

- `[limits]` and the numbers of quotas: those of the shipped policy `strict`;
- `[content]`: `reject` has every gate, `secrets` is `reject`, `instructions` and `poison` are `quarantine`;
- `[provenance]`: `untrusted_sources` is `quarantine`;
- `[retention]`: untrusted entries are retained for 14 days;
- `[confinement]`: `require` is `partial`, and `on_escape` is `abort`;
- `[changes]`: `conflict` is `fail`; 5 entries per forget, and a fifth of a scope per dream;
- a scope: `trust` is `external`. The only exception: `commit` is `auto`, which is not the stricter value.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
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
from muniment.kernel.decide import (
    GATES,
    MAX_BYTES,
    MAX_COUNT,
    MAX_DAYS,
    MAX_SECONDS,
    MAX_TURNS,
    NEVER,
    NO_GRANT,
    NOT_A_NAME,
    NOT_A_SCOPE,
    Changes,
    CommitMode,
    ConfinementRequirement,
    Content,
    Days,
    Gate,
    Limits,
    Provenance,
    Quota,
    Retention,
)
from muniment.kernel.names import Enforcement, Scope, Trust, Verb
from muniment.kernel.path import GRAMMAR_LAYER, MEMORIES_PREFIX, find_segment_problem
from muniment.policy.combine import REQUEST_LAYER, SECTIONS
from muniment.policy.frozen import Frozen

# -- positions ---------------------------------------------------------------------------------------
#
# Positions in a policy file: `tomllib` returns values, this code returns their lines.
#
# A scan reads the text from key to key and value to value, and decodes only keys. Its result is used
# only if it contains exactly the keys, tables and elements that `tomllib` found; otherwise no item has a
# line. So a text that misleads the scan can only remove the line from a message.
#
#     P1  Lines count from 1. The line of a table is that of its header; keys and elements of lists have the
#         line of their beginning.
#     P2  Comments, and text in a string that looks like a table or key, are ignored.

Location = tuple[str | int, ...]
"""Keys and indexes from the top of a file to an item, as in pydantic: `("deny", 1, "paths", 0)`."""

_QUOTED: Final = r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'"
_PART: Final = rf"(?:{_QUOTED}|[A-Za-z0-9_-]+)"
_KEY: Final = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*")
_HEADER_OPENS: Final = re.compile(r"(?:\[\[?[ \t]*)?")
_HEADER_CLOSES: Final = re.compile(r"[ \t]*\]\]?")
_EQUALS: Final = re.compile(r"[ \t]*=[ \t]*")
_BLANK_LINES: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_LONG: Final = r'"""(?s:[^\\]|\\.)*?""""{0,2}' + r"|'''(?s:.)*?''''{0,2}"
"""A long string; one or two quotes before the three closing ones belong to it."""

_SCALAR: Final = re.compile(f"{_LONG}|{_QUOTED}" + r"|[^,\[\]{}#\r\n]+")
"""A string, or another single value: a number, a boolean or a date, which may contain a space."""


def find_line(
    text: str, kind: str, name: str | int | None = None, key: str | None = None, value: object = None
) -> int | None:
    """Return the line of a table, of a key in it, or of an element of the key's list.

    Args:
        text: a policy file.
        kind: a section, or a key at the top: `deny`, `limits`, `test`, `schema`.
        name: selects one of several tables: the id of a rule or quota, the number of a test from 1; None for
            a section that occurs once.
        key: a key in that table; None for the table itself.
        value: an element, if the value of `key` is a list; a key, if it is a table; None for `key` itself.

    Returns:
        None if the item is missing, the text is not TOML, or the scan does not support the text.
    """
    node, lines = _parse_with_lines(text)
    loc: Location = ()
    for step in (kind, name, key, value):
        if step is None:
            continue
        part = _find_part(node, step)
        if part is None:
            return None
        node, loc = node[part], (*loc, part)
    return lines.get(loc)


def find_nearest_line(text: str, loc: Location) -> int | None:
    """Return the line of the item at `loc`, or of the nearest item that contains it; None if unknown."""
    lines = find_lines(text)
    return next((lines[loc[:end]] for end in range(len(loc), 0, -1) if loc[:end] in lines), None)


def find_lines(text: str) -> Mapping[Location, int]:
    """Return the line of every table, key and list element; empty if the scan does not support the text."""
    return _parse_with_lines(text)[1]


@lru_cache(maxsize=16)
def _parse_with_lines(text: str) -> tuple[Any, dict[Location, int]]:
    """Return the content of a text from `tomllib`, and the line of each item in it.

    If the lines cannot be determined, they are empty; the content may then be empty too.
    """
    try:
        data = tomllib.loads(text)
        expected, scan = set(_iterate_locations(data, ())), _LineScanner(text)
        scan.scan_file()
    except (RecursionError, ValueError):  # From `tomllib`, and for TOML that the scan does not support.
        return {}, {}
    return data, scan.lines if set(scan.lines) == expected else {}


def _find_part(node: Any, step: object) -> Any:
    """Return the key or index of an item in a table or list, or None if it is missing.

    Args:
        node: the table or list.
        step: a key of the table; or an element of the list, or the id or number (from 1) of a table in it.
    """
    if isinstance(node, dict):
        return step if step in node else None
    if not isinstance(node, list):
        return None
    for index, each in enumerate(node):
        known = (each.get("id"), index + 1) if isinstance(each, dict) else (each,)
        if step in known:
            return index
    return None


class _LineScanner:
    """One pass over a text that `tomllib` has parsed, to find the line of each item.

    Attributes:
        lines: the line of each item.
    """

    def __init__(self, text: str) -> None:
        self.lines: dict[Location, int] = {}
        self._text, self._position = text, 0
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self._latest: dict[Location, int] = {}

    def scan_file(self) -> None:
        location: Location = ()
        while self._skip(_BLANK_LINES) < len(self._text):
            line, opening = self._get_line(), self._match(_HEADER_OPENS)
            if opening:
                location = self._scan_header(line, is_of_several=opening.startswith("[["))
            else:
                self._scan_pair(location)

    def _scan_header(self, line: int, *, is_of_several: bool) -> Location:
        """Scan a table header, and return the location of the table to which the keys below it belong.

        Args:
            line: the line of the header.
            is_of_several: whether the header has two brackets: `[[deny]]`.
        """
        location: Location = ()
        *around, last = self._scan_key()
        for part in around:
            location = (*location, part)
            self.lines.setdefault(location, line)
            if location in self._latest:  # `[a.b]` below `[[a]]` belongs to the latest `a`.
                location = (*location, self._latest[location])
        location = (*location, last)
        if is_of_several:
            self.lines.setdefault(location, line)
            self._latest[location] = self._latest.get(location, -1) + 1
            location = (*location, self._latest[location])
        self.lines[location] = line
        self._match(_HEADER_CLOSES)
        return location

    def _scan_pair(self, location: Location) -> None:
        line = self._get_line()
        for part in self._scan_key():
            location = (*location, part)
            self.lines.setdefault(location, line)
        self._match(_EQUALS)
        self._scan_value(location)

    def _scan_value(self, loc: Location) -> None:
        if self._accept("["):
            index = 0
            while self._has_next("]"):
                self.lines[*loc, index] = self._get_line()
                self._scan_value((*loc, index))
                index += 1
        elif self._accept("{"):
            while self._has_next("}"):
                self._scan_pair(loc)
        else:
            self._match(_SCALAR)

    def _has_next(self, end: str) -> bool:
        """Skip a comma or the end of a list or table; return whether another element follows."""
        self._skip(_BLANK_LINES)
        if self._accept(","):
            self._skip(_BLANK_LINES)
        return not self._accept(end)

    def _scan_key(self) -> tuple[str, ...]:
        found: Any = tomllib.loads(f"{self._match(_KEY)} = 0")
        parts: list[str] = []
        while isinstance(found, dict):
            ((part, found),) = found.items()
            parts.append(part)
        return tuple(parts)

    def _get_line(self) -> int:
        return bisect_right(self._newlines, self._position) + 1

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._position)
        if found is None:
            raise ValueError(pattern.pattern)
        self._position = found.end()
        return found[0]

    def _skip(self, pattern: re.Pattern[str]) -> int:
        self._match(pattern)
        return self._position

    def _accept(self, token: str) -> bool:
        is_present = self._text.startswith(token, self._position)
        self._position += len(token) if is_present else 0
        return is_present


def _iterate_locations(value: Any, loc: Location) -> Iterator[Location]:
    """Yield the location of every item in the result of `tomllib`."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, inner in inside:
        yield (*loc, part)
        yield from _iterate_locations(inner, (*loc, part))


# -- tables ------------------------------------------------------------------------------------------

SCHEMA: Final = "muniment-policy/1"

MAX_RULES: Final = 256
"""Maximum number of rules of a kind in one file, and of patterns in one rule.

It limits the time to compile a policy to less than a second.
"""

RESERVED_RULES: Final = frozenset({NO_GRANT, NOT_A_NAME, NOT_A_SCOPE})
"""Rule ids for denials that no rule of a policy decided; a policy cannot use them."""

MAX_PARENTS: Final = 8
"""Maximum number of names and paths in one `extends`."""

MAX_PATH_CHARS: Final = 1_024
"""Maximum length of a path in `extends`."""

POLICY_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""The valid names of a policy; two of these names are reserved."""


def _validate_verb(text: str) -> str:
    if text != "*" and text not in set(Verb):
        raise PydanticCustomError(
            "E109", "unknown verb {text}; use one of {verbs}", _build_message_values(text, Verb)
        )
    return text


def _validate_policy_name(name: str) -> str:
    if name in {REQUEST_LAYER, GRAMMAR_LAYER}:
        raise PydanticCustomError("E111", "{text} is a reserved name; use another one", {"text": repr(name)})
    return name


def is_path(entry: str) -> bool:
    """Return whether a policy is given by the path of a file, and not by a name to look up."""
    return "/" in entry or entry.endswith(".toml")


def _validate_parent(entry: str) -> str:
    name_or_path = {"text": repr(printable(entry))}
    if not is_path(entry) and POLICY_NAME.fullmatch(entry) is None:
        problem = "{text} is neither a name of a-z, 0-9, `-` and `_`, nor a path with `/` or `.toml`"
        raise PydanticCustomError("E111", problem, name_or_path)
    if not entry.isprintable() or len(entry) > MAX_PATH_CHARS:
        raise PydanticCustomError(
            "E111",
            "{text} is too long or not printable; use a shorter path of printable characters",
            name_or_path,
        )
    if entry.startswith(("/", "~")):
        problem = "{text} is not relative; write the path from the folder of this file"
        raise PydanticCustomError("E127", problem, name_or_path)
    return entry if is_path(entry) else _validate_policy_name(entry)


def _validate_scope_name(name: str) -> Scope:
    if f"/{name}/" == MEMORIES_PREFIX or find_segment_problem(name) is not None:
        raise PydanticCustomError("E111", "{text} is a reserved name; use another one", {"text": repr(name)})
    return Scope(name)


def _validate_rule_id(name: str) -> str:
    if name in RESERVED_RULES:
        raise PydanticCustomError("E111", "{text} is a reserved id; use another one", {"text": repr(name)})
    return name


def _validate_gate(value: object) -> object:
    if value not in GATES:
        raise PydanticCustomError(
            "E104", "unknown gate {text}; use one of {verbs}", _build_message_values(str(value), GATES)
        )
    return value


def _validate_retention(value: object) -> object:
    """Return a valid retention, or raise one error for both of its forms: `never` and a number of days.

    The value `true` is rejected, although Python accepts it as the number 1.
    """
    if value == NEVER:
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        raise PydanticCustomError("E104", "should be 'never' or a whole number of days")
    if not 1 <= value <= MAX_DAYS:
        raise PydanticCustomError("E110", "should be from 1 to {most} days", {"most": MAX_DAYS})
    return value


def _build_message_values(text: str, known: Any) -> dict[str, str]:
    return {"text": repr(printable(text)), "verbs": ", ".join(known)}


_Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}\z")]
_Parent = Annotated[str, AfterValidator(_validate_parent)]
_Name = Annotated[_Id, AfterValidator(_validate_policy_name)]
_RuleId = Annotated[_Id, AfterValidator(_validate_rule_id)]
_Scope = Annotated[_Id, AfterValidator(_validate_scope_name)]
_Gate = Annotated[Gate, BeforeValidator(_validate_gate)]
_Verbs = Annotated[
    tuple[Annotated[str, AfterValidator(_validate_verb)], ...],
    Field(strict=False, min_length=1, max_length=6),
]
_Paths = Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=MAX_RULES)]
_Trust = Annotated[Trust, Field(strict=False)]
_Days = Annotated[Days, BeforeValidator(_validate_retention)]
_Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
_Bytes = Annotated[int, Field(ge=1, le=MAX_BYTES)]

# The defaults of missing keys.
_LIMITS, _CONFINEMENT, _CHANGES, _CONTENT = Limits(), ConfinementRequirement(), Changes(), Content()
_PROVENANCE, _RETENTION, _QUOTA = Provenance(), Retention(), Quota("", ())


class ScopeTable(Frozen):
    """A scope in `[scopes]`: `name = { trust = …, commit = … }`."""

    trust: _Trust = Trust.EXTERNAL
    commit: CommitMode = "auto"


class RuleTable(Frozen):
    """A rule in `[[deny]]`: here `*` means every verb."""

    id: _RuleId
    verbs: _Verbs
    paths: _Paths
    why: str = ""


class AllowTable(RuleTable):
    """A rule in `[[allow]]`: verbs are listed explicitly, so that a later version cannot grant more."""

    @model_validator(mode="after")
    def _require_listed_verbs(self) -> AllowTable:
        if "*" in self.verbs:
            raise PydanticCustomError("E109", "`*` is allowed in deny rules only; list the verbs")
        return self


class QuotaTable(Frozen):
    """A quota in `[[quota]]`."""

    id: _Id
    paths: _Paths
    max_file_bytes: _Bytes = _QUOTA.max_file_bytes
    max_files: _Count = _QUOTA.max_files
    max_total_bytes: _Bytes = _QUOTA.max_total_bytes


def build_quota(table: QuotaTable) -> Quota:
    """Return the quota that a `[[quota]]` table describes."""
    return Quota(**dict(table))


class LimitsTable(Frozen):
    """The table `[limits]`: the resources that one run may use."""

    turns: Annotated[int, Field(ge=1, le=MAX_TURNS)] = _LIMITS.turns
    seconds: Annotated[int, Field(ge=1, le=MAX_SECONDS)] = _LIMITS.seconds
    tool_calls: _Count = _LIMITS.tool_calls
    read_bytes: _Bytes = _LIMITS.read_bytes
    scan_bytes: _Bytes = _LIMITS.scan_bytes
    write_bytes: _Bytes = _LIMITS.write_bytes
    files_written: _Count = _LIMITS.files_written


class ConfinementTable(Frozen):
    """The table `[confinement]`: the confinement that a run requires."""

    require: Annotated[Enforcement, Field(strict=False)] = _CONFINEMENT.require
    on_escape: Literal["abort", "refuse"] = _CONFINEMENT.on_escape


class ChangesTable(Frozen):
    """The table `[changes]`: limits on how much one task may change."""

    conflict: Literal["retry", "fail"] = _CHANGES.conflict
    max_forget: _Count = _CHANGES.max_forget
    max_scope_share: Annotated[float, Field(gt=0, le=1)] = _CHANGES.max_scope_share


class ContentTable(Frozen):
    """The table `[content]`: restrictions on entries. Only `reject = []` switches all gates off."""

    reject: Annotated[tuple[_Gate, ...], Field(strict=False)] = _CONTENT.reject
    secrets: Literal["reject", "redact"] = _CONTENT.secrets
    instructions: Literal["allow", "quarantine"] = _CONTENT.instructions
    poison: Literal["allow", "quarantine"] = _CONTENT.poison


class ProvenanceTable(Frozen):
    """The table `[provenance]`: the treatment of facts from untrusted sources."""

    untrusted_sources: Literal["allow", "quarantine", "reject"] = _PROVENANCE.untrusted_sources


class RetentionTable(Frozen):
    """The table `[retention]`: the lifetime of entries."""

    default: _Days = _RETENTION.default
    untrusted: _Days = _RETENTION.untrusted


class CheckTable(Frozen):
    """An inline test in `[[test]]`: a decision that the effective policy must make, or it does not load.

    Attributes:
        verb: the verb of the request; `removal` is a removal by code.
        path: the path of the request, as a model would write it.
        expect: the expected decision.
        file_bytes: if given, the file would have that many bytes.
        files: if given, the scope would contain that many files, as each quota counts them.
        total_bytes: if given, these files would have that many bytes together.
    """

    verb: Literal["list", "read", "create", "modify", "delete", "removal"]
    path: str
    expect: Literal["allow", "deny"]
    file_bytes: Annotated[int, Field(ge=1)] | None = None
    files: Annotated[int, Field(ge=1)] | None = None
    total_bytes: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _check_sizes(self) -> CheckTable:
        sizes = (self.file_bytes, self.files, self.total_bytes)
        if self.verb not in {Verb.CREATE, Verb.MODIFY} and any(size is not None for size in sizes):
            problem = "file_bytes, files and total_bytes are for create and modify; {verb} writes nothing"
            raise PydanticCustomError("E104", problem, {"verb": self.verb})
        return self


class PolicyFile(Frozen):
    """The content of one policy file, before rules are compiled and parents are read."""

    schema_: Literal["muniment-policy/1"] = Field(alias="schema")
    name: _Name
    description: str = ""
    extends: Annotated[tuple[_Parent, ...], Field(strict=False, max_length=MAX_PARENTS)] = ()
    scopes: Annotated[dict[_Scope, ScopeTable], Field(min_length=1, max_length=MAX_RULES)] | None = None
    allow: Annotated[tuple[AllowTable, ...], Field(strict=False, max_length=MAX_RULES)] = ()
    deny: Annotated[tuple[RuleTable, ...], Field(strict=False, max_length=MAX_RULES)] = ()
    quota: Annotated[tuple[QuotaTable, ...], Field(strict=False, max_length=MAX_RULES)] = ()
    confinement: ConfinementTable = ConfinementTable()
    limits: LimitsTable = LimitsTable()
    changes: ChangesTable = ChangesTable()
    content: ContentTable = ContentTable()
    provenance: ProvenanceTable = ProvenanceTable()
    retention: RetentionTable = RetentionTable()
    test: Annotated[tuple[CheckTable, ...], Field(strict=False, max_length=MAX_RULES)] = ()


def read_tables(data: dict[str, Any], where: str, text: str = "") -> PolicyFile:
    """Return the validated content of one policy file.

    Args:
        data: the result of `tomllib`.
        where: name of the policy or file, for messages.
        text: the text that `tomllib` parsed, for line numbers of errors.

    Raises:
        PolicyInvalid: the content is invalid; the error is about the first problem, with a code from the
            module docstring.
    """
    file, found = _validate_file(data, where, text)
    if found:
        first, more = found[0], len(found) - 1
        problem = f"{first.problem} (and {more} more)" if more else first.problem
        raise PolicyInvalid(first.rule, first.where, problem, first.line)
    return cast("PolicyFile", file)


def find_errors(data: dict[str, Any], where: str, text: str = "") -> list[PolicyInvalid]:
    """Return all errors in the content of one policy file, without its parents.

    The arguments are those of `read_tables`, which raises the first of these errors.
    """
    return _validate_file(data, where, text)[1]


def _validate_file(
    data: dict[str, Any], where: str, text: str
) -> tuple[PolicyFile | None, list[PolicyInvalid]]:
    try:
        file = PolicyFile.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        return None, [_build_error(detail, data, where, text) for detail in _drop_follow_up_errors(details)]
    return file, [
        PolicyInvalid(
            "E107",
            f"{where} {loc[0]}[{name}]",
            "the id is used twice; rename one",
            find_nearest_line(text, loc),
        )
        for loc, name in _find_repeated_ids(file)
    ]


def _drop_follow_up_errors(details: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Yield all errors except those about lists that are too short only because their items are invalid."""
    for detail in details:
        loc = detail["loc"]
        inside = any(len(each["loc"]) > len(loc) and each["loc"][: len(loc)] == loc for each in details)
        if detail["type"] != "too_short" or not inside:
            yield detail


def _find_repeated_ids(file: PolicyFile) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield location and id of each table whose id an earlier table has; all rules share one set of ids."""
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
    "test": CheckTable,
    **{section: type(PolicyFile.model_fields[section].default) for section in SECTIONS},
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


def _build_error(detail: ErrorDetails, data: dict[str, Any], where: str, text: str) -> PolicyInvalid:
    code, problem = _code_and_problem(detail)
    position = " ".join(filter(None, [where, _format_position(detail["loc"], data)]))
    return PolicyInvalid(code, position, problem, find_nearest_line(text, detail["loc"]))


def _code_and_problem(detail: ErrorDetails) -> tuple[str, str]:
    kind, keys = detail["type"], tuple(part for part in detail["loc"] if isinstance(part, str))
    if kind == "extra_forbidden":
        return _unknown_key(keys)
    if keys == ("schema",):
        return _CODES.get(kind, "E105"), f"must be {SCHEMA!r}"
    problem = detail["msg"].replace("Input should", "should", 1)
    return (kind if kind.startswith("E") else _CODES.get(kind, "E104")), problem


def _unknown_key(keys: tuple[str, ...]) -> tuple[str, str]:
    model = _MODELS[keys[0]] if len(keys) > 1 else PolicyFile
    known = [field.alias or name for name, field in model.model_fields.items()]
    near = get_close_matches(keys[-1], known, n=1)
    return "E101", f"unknown key; did you mean {near[0]!r}?" if near else "unknown key"


def _format_position(loc: tuple[int | str, ...], data: Any) -> str:
    """Return the position of an item in the file, with rules by their ids: `allow[write-topics].verbs`."""
    text, node = "", data
    for part in loc:
        node = _get_part(node, part)
        if isinstance(part, str):
            text += f".{printable(part)}"
        else:
            text += f"[{printable(str(node.get('id', part))) if isinstance(node, dict) else part}]"
    return text.removeprefix(".")


def _get_part(value: Any, part: int | str) -> Any:
    try:
        return value[part]
    except (KeyError, IndexError, TypeError):  # The position of a missing item, or of a key.
        return None
