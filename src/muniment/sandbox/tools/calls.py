"""Arguments and results of tool calls. The object that is judged is the one that is executed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final, Literal

from muniment.errors import (
    BadArguments,
    BadName,
    ContentRejected,
    PathEscape,
    Refusal,
    Refused,
    TooLarge,
    ToolError,
)
from muniment.kernel.names import MAX_FILE_BYTES, MAX_PATH_BYTES, Scope, Verb, Via
from muniment.kernel.path import CanonicalPath, canonicalise
from muniment.sandbox.tools.schemas import Schema, Schemas, find_problem

# -- arguments ---------------------------------------------------------------------------------------
#
# Closed classes of the arguments of the five tools.
#
# Unknown arguments, wrong types and missing ones are errors; nothing is coerced. Sizes are checked
# before anything is parsed or sent (`check_sizes`), so that a hostile call costs nothing.

MAX_PATTERN_CHARS: Final = 1000
"""Maximum characters of a grep pattern; RE2 compiles one of this size in well under a millisecond."""

DEFAULT_READ_LINES: Final = 400
MAX_READ_LINES: Final = 2000
"""Number of lines that one `read_file` returns by default, and at most."""

DEFAULT_MATCHES: Final = 100
MAX_MATCHES: Final = 500
"""Number of lines that one `grep` returns by default, and at most."""

MAX_ARGUMENTS: Final = 8
"""Maximum number of arguments of one call; no tool has more than five."""

MAX_NAME_CHARS: Final = 60
"""Maximum characters of the name of an argument."""

_PLAIN: Final = (str, int, float, bool, type(None))
_SHAPE: Final = "the arguments must be an object of a few strings, numbers and booleans"

_FIELD_CHARS: Final = {
    "path": MAX_PATH_BYTES,
    "pattern": MAX_PATTERN_CHARS,
    "content": MAX_FILE_BYTES,
    "old_string": MAX_FILE_BYTES,
    "new_string": MAX_FILE_BYTES,
}

_PATH_HELP: Final = "logical path: a scope, folders, a name that ends in .md"


@dataclass(frozen=True, slots=True)
class Arguments:
    """Base class of the arguments of one tool call. The metadata of an attribute is a part of its schema."""


@dataclass(frozen=True, slots=True)
class ReadFile(Arguments):
    """Read a memory file; answers with numbered lines."""

    path: str = field(metadata=Schema(description=_PATH_HELP))
    offset: int = field(default=0, metadata=Schema(description="lines to skip", minimum=0))
    limit: int = field(
        default=DEFAULT_READ_LINES,
        metadata=Schema(description="lines to show", maximum=MAX_READ_LINES, minimum=1),
    )


@dataclass(frozen=True, slots=True)
class Ls(Arguments):
    """List a scope or directory of the memory; an empty path lists the scopes."""

    path: str = field(metadata=Schema(description="scope or directory"))


@dataclass(frozen=True, slots=True)
class Grep(Arguments):
    """Search the memory with an RE2 pattern; answers with path:line: text."""

    pattern: str = field(metadata=Schema(description="RE2 pattern, matched line by line"))
    path: str = field(
        default="", metadata=Schema(description="scope, directory or file; empty for everything")
    )
    ignore_case: bool = False
    max_matches: int = field(default=DEFAULT_MATCHES, metadata=Schema(maximum=MAX_MATCHES, minimum=1))


@dataclass(frozen=True, slots=True)
class WriteFile(Arguments):
    """Create a memory file, or replace one that was read before."""

    path: str = field(metadata=Schema(description=_PATH_HELP))
    content: str = field(metadata=Schema(description="the whole file, markdown"))


@dataclass(frozen=True, slots=True)
class Edit(Arguments):
    """Replace a string in a memory file; it must occur once unless replace_all is true."""

    path: str = field(metadata=Schema(description=_PATH_HELP))
    old_string: str = field(metadata=Schema(minLength=1))
    new_string: str
    replace_all: bool = False


TOOLS: Final[Mapping[str, type[Arguments]]] = {
    "read_file": ReadFile,
    "grep": Grep,
    "ls": Ls,
    "write_file": WriteFile,
    "edit": Edit,
}

_JSON_TYPES: Final = {"str": "string", "int": "integer", "bool": "boolean"}


def _collect_schemas(model: type[Arguments]) -> dict[str, Schema]:
    """Return the schemas of the arguments, by name; their keywords are sorted."""
    schemas: dict[str, Any] = {}
    for each in fields(model):
        default = {} if each.default is MISSING else {"default": each.default}
        schemas[each.name] = {**default, **each.metadata, "type": _JSON_TYPES[str(each.type)]}
    return schemas


SCHEMAS: Final[Mapping[str, Schemas]] = {tool: _collect_schemas(model) for tool, model in TOOLS.items()}
"""The schemas of the arguments of each tool."""

VERBS: Final[Mapping[str, tuple[Verb, ...]]] = {
    "read_file": (Verb.READ,),
    "grep": (Verb.LIST, Verb.READ),
    "ls": (Verb.LIST,),
    "write_file": (Verb.CREATE, Verb.MODIFY),
    "edit": (Verb.MODIFY,),
}
"""Verbs that each tool needs. `write_file` needs `create` for a new file, otherwise `modify`."""

WRITING_TOOLS: Final = frozenset(
    tool for tool, verbs in VERBS.items() if {Verb.CREATE, Verb.MODIFY, Verb.DELETE}.intersection(verbs)
)


def get_tool_label(name: str) -> str:
    """Return the name of a tool, or `unknown` for any other text.

    The text of a model must not get into messages.
    """
    return name if name in TOOLS else "unknown"


def get_path_argument(arguments: object) -> str:
    """Return the argument `path` of unchecked arguments, for messages and records; "" if it is missing."""
    path = arguments.get("path") if isinstance(arguments, Mapping) else None
    return path if isinstance(path, str) else ""


def check_tool(tool: object) -> str:
    """Return `tool` if a tool has this name; otherwise raise `ToolError`."""
    if not isinstance(tool, str) or tool not in TOOLS:
        raise ToolError(f"unknown tool; use one of {', '.join(TOOLS)}", code="unknown_tool")
    return tool


def check_sizes(arguments: object) -> None:
    """Reject arguments that no tool accepts or that exceed a limit, before they are parsed or sent.

    Raises:
        BadArguments: the arguments are not an object of a few strings, numbers and booleans.
        BadName: `path` is longer than any path can be.
        TooLarge: another string exceeds its limit.
    """
    if not isinstance(arguments, Mapping) or len(arguments) > MAX_ARGUMENTS:
        raise BadArguments(_SHAPE)
    for name, value in arguments.items():
        if not (isinstance(name, str) and len(name) <= MAX_NAME_CHARS and isinstance(value, _PLAIN)):
            raise BadArguments(_SHAPE)
        limit = _FIELD_CHARS.get(name, MAX_PATTERN_CHARS)
        if isinstance(value, str) and len(value) > limit:
            if name == "path":
                raise BadName(f"the path is longer than {limit} bytes; use a short one")
            raise TooLarge(f"{name} is longer than {limit} characters; shorten it")


def parse(tool: str, arguments: object) -> Arguments:
    """Convert the arguments of a call to the object that its tool accepts.

    Raises:
        BadArguments: the tool does not accept the arguments; the message contains the first problem.
        BadName, TooLarge: a string is too long, as described in `check_sizes`.
    """
    check_sizes(arguments)
    problem = find_problem(SCHEMAS[tool], arguments)
    if problem is not None:
        raise BadArguments(f"{tool} {problem}")
    accepted: Any = arguments
    return TOOLS[tool](**accepted)


# -- outcome -----------------------------------------------------------------------------------------
#
# The results of tool calls.

ToolVerdict = Literal["allow", "deny", "error"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one tool call.

    Attributes:
        verdict: `allow`: executed; `deny`: outside the roots or not allowed; `error`: an ordinary mistake.
        code: stable code of the error; None if the call was allowed.
        text: text for the model; one line unless the call was allowed.
        rule: the policy rule or content gate that stopped the call, if one did.
        via: how the request would have left its root, if it would.
    """

    verdict: ToolVerdict
    code: str | None
    text: str
    rule: str | None = None
    via: Via | None = None


def build_allowed_outcome(text: str) -> Outcome:
    """Return the outcome of a call that was executed."""
    return Outcome("allow", None, text)


def build_error_outcome(error: PathEscape | Refusal | ToolError) -> Outcome:
    """Return the outcome of a call that raised `error`."""
    if isinstance(error, PathEscape):
        return Outcome("deny", error.code, str(error), via=error.via)
    verdict: ToolVerdict = "deny" if isinstance(error, Refusal) else "error"
    rule = error.rule if isinstance(error, Refused | ContentRejected) else None
    return Outcome(verdict, error.code, str(error), rule=rule)


# -- displayed paths ---------------------------------------------------------------------------------
#
# The files whose text a call has returned, read from its result by the broker.
#
# This determines the trust of a run's text, so the broker does not rely on the worker for it.

_HIT: Final = re.compile(r"([^:]+):[0-9]+: ")  # a path contains no colon


def find_displayed_paths(
    tool: object, arguments: object, outcome: Outcome, scopes: Collection[Scope]
) -> frozenset[CanonicalPath]:
    """Return the paths of the files whose text a call has returned.

    The paths are as the call or its result contains them, with links not resolved. If the call was not
    allowed, the result is empty.

    Args:
        tool: the called tool.
        arguments: the arguments of the call, unchecked.
        outcome: the result of the call.
        scopes: the scopes of the run.
    """
    if outcome.verdict != "allow":
        return frozenset()
    match tool:
        case "read_file" | "edit":
            unsafe_paths = [get_path_argument(arguments)]
        case "grep":
            unsafe_paths = [hit[1] for line in outcome.text.split("\n") if (hit := _HIT.match(line))]
        case _:
            return frozenset()
    found: set[CanonicalPath] = set()
    for unsafe_path in dict.fromkeys(unsafe_paths):
        try:
            found.add(canonicalise(unsafe_path, scopes))
        except (PathEscape, Refusal):
            continue  # The last lines of a grep describe the result, not a file.
    return frozenset(found)
