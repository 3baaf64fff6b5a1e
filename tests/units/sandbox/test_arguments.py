"""The closed argument models: invalid arguments get a one-line error that never repeats the input."""

import itertools
from functools import reduce

import pytest

from kit.catching import catch_error
from kit.sandbox.benches import make_bench
from muniment.errors import ToolError
from muniment.kernel.names import MAX_FILE_BYTES, Verb
from muniment.sandbox.tools.calls import (
    MAX_PATTERN_CHARS,
    SCHEMAS,
    TOOLS,
    VERBS,
    WRITING_TOOLS,
    check_sizes,
    parse,
)

GOOD = {
    "read_file": {"path": "user/a.md"},
    "ls": {"path": ""},
    "grep": {"pattern": "x"},
    "write_file": {"path": "user/a.md", "content": "x"},
    "edit": {"path": "user/a.md", "old_string": "a", "new_string": "b"},
}


@pytest.mark.threat("T-POL-05", control="mapped_tools")
def test_every_tool_declares_its_verbs_and_required_path():
    assert set(VERBS) == set(TOOLS) == set(GOOD)
    assert all(verbs for verbs in VERBS.values())
    writing = {tool for tool, verbs in VERBS.items() if set(verbs) & {Verb.CREATE, Verb.MODIFY, Verb.DELETE}}
    assert writing == WRITING_TOOLS == {"write_file", "edit"}
    for tool, schemas in SCHEMAS.items():
        assert ("default" in schemas["path"]) == (tool == "grep")


def test_arguments_of_the_wrong_shape_are_bad_arguments(tmp_path):
    call, nested = make_bench(tmp_path).workbench.call, reduce(lambda inner, _: [inner], range(50), [])
    odd = (None, [], "path", 1, True, {}, {"path": None}, {"path": nested})
    for tool, bad in itertools.product(GOOD, odd):
        outcome = call(tool, bad)
        assert (outcome.verdict, outcome.code) == ("error", "bad_arguments"), (tool, bad)
        assert "\n" not in outcome.text
        assert len(outcome.text) < 300


BOUNDED = {
    "read_file": {"offset": [-1, "1"], "limit": [0, 2001, True]},
    "grep": {"max_matches": [0, 501], "ignore_case": ["yes", 1]},
    "edit": {"replace_all": [1], "old_string": [""]},
}


@pytest.mark.threat("T-RUN-03", control="closed_arguments")
def test_unknown_argument_and_value_out_of_bounds_are_rejected(tmp_path):
    for tool, good in GOOD.items():
        message = str(catch_error(ToolError, parse, tool, {**good, "pa\nth": "secret"}))
        assert r"has no argument 'pa\nth'; it accepts " in message
        assert "secret" not in message
    call = make_bench(tmp_path).workbench.call
    for tool, arguments in BOUNDED.items():
        for name, value in ((name, value) for name, values in arguments.items() for value in values):
            outcome = call(tool, {**GOOD[tool], name: value})
            assert outcome.code == "bad_arguments", (tool, name, value)
            assert f"{tool} {name}: " in outcome.text
    assert call("read_file", {**GOOD["read_file"], "offset": 10**30}).code in {"bad_arguments", "not_found"}


MESSAGES = (
    ("ls", {}, "ls needs the argument 'path'; it accepts path"),
    ("ls", {"path": None}, "ls path: input should be a valid string"),
    ("ls", {"path": "", "PATH": ""}, "ls has no argument 'PATH'; it accepts path"),
    ("read_file", {"offset": -1}, "read_file needs the argument 'path'; it accepts path, offset, limit"),
    ("read_file", {"path": "a", "offset": 1.0}, "read_file offset: input should be a valid integer"),
    (
        "read_file",
        {"path": "a", "offset": -1},
        "read_file offset: input should be greater than or equal to 0",
    ),
    (
        "read_file",
        {"path": "a", "limit": 2001},
        "read_file limit: input should be less than or equal to 2000",
    ),
    ("grep", {"pattern": "", "ignore_case": None}, "grep ignore_case: input should be a valid boolean"),
    ("edit", GOOD["edit"] | {"old_string": ""}, "edit old_string: string should have at least 1 character"),
    (
        "edit",
        GOOD["edit"] | {"old_string": "\ud800"},
        "edit old_string: input should be a valid string, unable to parse raw data as a unicode string",
    ),
)


@pytest.mark.parametrize(("tool", "arguments", "message"), MESSAGES)
def test_invalid_argument_message_states_first_problem(tool, arguments, message):
    assert str(catch_error(ToolError, parse, tool, arguments)) == message


@pytest.mark.threat("T-RUN-07", control="known_tools")
def test_unknown_tool_is_an_error(tmp_path):
    call = make_bench(tmp_path).workbench.call
    for tool in ("", "bash", "READ_FILE", "read_file ", "__init__", None, 1, [], {}, ("ls",)):
        outcome = call(tool, {})
        assert (outcome.verdict, outcome.code) == ("error", "unknown_tool"), tool
        assert outcome.text == "unknown tool; use one of read_file, grep, ls, write_file, edit"


@pytest.mark.threat("T-RUN-03", control="argument_sizes")
def test_too_long_string_is_rejected_before_it_is_read():
    limits = dict.fromkeys(("content", "old_string", "new_string"), MAX_FILE_BYTES)
    for name, limit in {"pattern": MAX_PATTERN_CHARS, **limits}.items():
        check_sizes({name: "x" * limit})
        catch_error(ToolError, check_sizes, {name: "x" * (limit + 1)}, match=f"{name} is longer than {limit}")
