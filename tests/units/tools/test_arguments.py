"""The closed models: what does not fit is answered in one line, and never with what was sent."""

from __future__ import annotations

import pytest

from kit.tools.benches import make_bench
from muniment.errors import ToolError
from muniment.names import MAX_FILE_BYTES, Verb
from muniment.tools.calls import (
    MAX_PATTERN_CHARS,
    TOOLS,
    VERBS,
    WRITING_TOOLS,
    check_sizes,
    check_tool,
    parse,
)

GOOD = {
    "read_file": {"path": "user/a.md"},
    "ls": {"path": ""},
    "grep": {"pattern": "x"},
    "write_file": {"path": "user/a.md", "content": "x"},
    "edit": {"path": "user/a.md", "old_string": "a", "new_string": "b"},
}


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.threat("T-POL-05", control="mapped_tools")
def test_every_tool_declares_what_it_needs_of_a_policy():
    assert set(VERBS) == set(TOOLS) == set(GOOD)
    assert all(verbs for verbs in VERBS.values())
    writing = {tool for tool, verbs in VERBS.items() if set(verbs) & {Verb.CREATE, Verb.MODIFY, Verb.DELETE}}
    assert writing == WRITING_TOOLS == {"write_file", "edit"}


def test_every_tool_but_grep_needs_its_path():
    for tool, model in TOOLS.items():
        assert model.model_fields["path"].is_required() == (tool != "grep")


@pytest.mark.parametrize("tool", GOOD)
@pytest.mark.parametrize("bad", [None, [], "path", 1, True, {}, {"path": None}, {"path": nested(50)}])
def test_what_is_no_object_of_the_right_shape_is_bad_arguments(tmp_path, tool, bad):
    outcome = make_bench(tmp_path).workbench.call(tool, bad)
    assert (outcome.verdict, outcome.code) == ("error", "bad_arguments")
    assert "\n" not in outcome.text
    assert len(outcome.text) < 300


@pytest.mark.threat("T-RUN-03", control="closed_arguments")
@pytest.mark.parametrize("tool", GOOD)
def test_an_unknown_argument_is_refused_by_name(tool):
    with pytest.raises(ToolError, match=r"has no argument 'pa\\nth'; it takes ") as caught:
        parse(tool, {**GOOD[tool], "pa\nth": "secret"})
    assert "secret" not in str(caught.value)


@pytest.mark.threat("T-RUN-03", control="closed_arguments")
@pytest.mark.parametrize(
    ("tool", "name", "value"),
    [
        ("read_file", "offset", -1),
        ("read_file", "offset", "1"),
        ("read_file", "offset", 10**30),
        ("read_file", "limit", 0),
        ("read_file", "limit", 2001),
        ("read_file", "limit", True),
        ("grep", "max_matches", 0),
        ("grep", "max_matches", 501),
        ("grep", "ignore_case", "yes"),
        ("grep", "ignore_case", 1),
        ("edit", "replace_all", 1),
        ("edit", "old_string", ""),
    ],
)
def test_numbers_and_switches_are_strict_and_bounded(tmp_path, tool, name, value):
    outcome = make_bench(tmp_path).workbench.call(tool, {**GOOD[tool], name: value})
    if value == 10**30:
        assert outcome.code in {"bad_arguments", "not_found"}
    else:
        assert outcome.code == "bad_arguments"
        assert f"{tool} {name}: " in outcome.text


@pytest.mark.threat("T-RUN-07", control="known_tools")
@pytest.mark.parametrize(
    "tool", ["", "bash", "READ_FILE", "read_file ", "__init__", None, 1, [], {}, ("ls",)]
)
def test_what_is_none_of_the_five_is_no_tool(tmp_path, tool):
    outcome = make_bench(tmp_path).workbench.call(tool, {})
    assert (outcome.verdict, outcome.code) == ("error", "unknown_tool")
    assert outcome.text == "no such tool; the tools are read_file, grep, ls, write_file, edit"
    assert check_tool("ls") == "ls"


@pytest.mark.threat("T-RUN-03", control="argument_sizes")
@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("pattern", MAX_PATTERN_CHARS),
        ("content", MAX_FILE_BYTES),
        ("old_string", MAX_FILE_BYTES),
        ("new_string", MAX_FILE_BYTES),
    ],
)
def test_a_string_above_its_limit_is_too_large_before_anything_looks_at_it(name, limit):
    check_sizes({name: "x" * limit})
    with pytest.raises(ToolError, match=f"{name} is longer than {limit}"):
        check_sizes({name: "x" * (limit + 1)})
