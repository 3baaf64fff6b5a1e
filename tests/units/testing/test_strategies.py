"""The strategies reach what they are there for: a generator that never hits is a fuzz of nothing."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import Phase, given, settings

from muniment.confine.wire import Channel, FrameViolation
from muniment.content.entry import parse
from muniment.content.frontmatter import locate
from muniment.errors import BadName, PathEscape, PolicyInvalid, Refused
from muniment.names import Scope, Via
from muniment.policy.grammar import canonicalise
from muniment.policy.load import parse_policy
from muniment.testing.strategies import (
    Fifo,
    File,
    HardLink,
    Link,
    Socket,
    any_calls,
    call_sequences,
    entry_texts,
    frames,
    logical_paths,
    messages,
    near_policies,
    paths_in,
    plant,
    policies,
    tool_calls,
    trees,
    unsafe_paths,
)
from muniment.tools.calls import TOOLS

SCOPES = (Scope("user"), Scope("project"))
DRAWS = 1_200
"""Within which everything below comes up; a property test draws fewer at a time, and others every time."""


@functools.cache
def drawn(strategy):
    """What a strategy draws; the same each time."""
    found = []
    draws = DRAWS if strategy in {unsafe_paths, linked_paths, frames} else DRAWS // 3  # The others take time.

    @settings(max_examples=draws, database=None, derandomize=True, phases=[Phase.generate])
    @given(strategy())
    def collect(value):
        found.append(value)

    collect()
    return found


def comes_up(strategy, condition):
    assert any(map(condition, drawn(strategy)))


def told(path):
    try:
        canonicalise(path, SCOPES)
    except PathEscape as escape:
        return escape.via
    except (BadName, Refused) as refusal:
        return refusal.code
    return "fine"


@pytest.mark.sweep(1)
@pytest.mark.parametrize("outcome", ["fine", "bad_name", "refused", Via.NUL, Via.DOTDOT, Via.ABSOLUTE])
def test_unsafe_paths_come_to_everything_that_the_grammar_can_say(outcome):
    comes_up(unsafe_paths, lambda path: told(path) == outcome)


def linked_paths():
    return unsafe_paths(["link.md", "a.md"])


def nodes(tree):
    for node in tree.values():
        yield node
        if isinstance(node, dict):
            yield from nodes(node)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "kind",
    [
        lambda node: isinstance(node, File) and node.content.startswith(b"---"),
        lambda node: isinstance(node, File) and b"\xff" in node.content,
        lambda node: isinstance(node, Link) and node.target.startswith("{outside}"),
        lambda node: isinstance(node, Link) and node.target.startswith("{up}"),
        lambda node: isinstance(node, Link) and node.target == "nowhere",
        lambda node: isinstance(node, Link) and node.target == "link",
        lambda node: isinstance(node, HardLink) and "{outside}" in node.target,
        lambda node: isinstance(node, HardLink) and "{outside}" not in node.target,
        lambda node: isinstance(node, Fifo),
        lambda node: isinstance(node, Socket),
        lambda node: isinstance(node, dict) and any(isinstance(inner, Link) for inner in node.values()),
    ],
)
def test_trees_hold_every_kind_of_node(kind):
    comes_up(trees, lambda tree: any(map(kind, nodes(tree))))


@given(trees())
def test_what_is_planted_is_the_tree_and_nothing_else(tree):
    with tempfile.TemporaryDirectory() as base:
        outside = Path(base) / "outside"
        outside.mkdir()
        (outside / "secret.md").write_text("secret")
        plant(tree, Path(base) / "user", outside=outside)
        found = {}
        for where, names, files in os.walk(Path(base) / "user"):
            for name in (*names, *files):
                path = Path(where) / name
                found[str(path.relative_to(Path(base) / "user"))] = path.lstat().st_mode
        assert set(found) == set(paths_in(tree))
        kinds = {File: stat.S_ISREG, HardLink: stat.S_ISREG, Link: stat.S_ISLNK, Fifo: stat.S_ISFIFO}
        kinds |= {Socket: stat.S_ISSOCK, dict: stat.S_ISDIR}
        for path in paths_in(tree):
            node = tree
            for name in Path(path).parts:
                node = node[name]
            assert kinds[type(node)](found[path]), path
        assert [path.name for path in outside.iterdir()] == ["secret.md"]
        assert sorted(path.name for path in Path(base).iterdir()) == ["outside", "user"]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("tool", TOOLS)
def test_tool_calls_know_the_five_tools_and_their_arguments(tool):
    fields = set(TOOLS[tool].model_fields)
    comes_up(tool_calls, lambda call: call[0] == tool and set(call[1]) == fields)


def fits(call):
    tool, arguments = call
    if not (isinstance(tool, str) and tool in TOOLS and isinstance(arguments, dict)):
        return False
    fields = TOOLS[tool].model_fields
    return set(arguments) <= set(fields) and all(
        name in arguments for name, field in fields.items() if field.is_required()
    )


@given(tool_calls())
def test_tool_calls_have_the_right_shape(call):
    assert fits(call)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "has",
    [
        lambda call: not isinstance(call[0], str),
        lambda call: call[0] not in TOOLS if isinstance(call[0], str) else False,
        lambda call: not isinstance(call[1], dict),
        lambda call: isinstance(call[1], dict) and call[0] == "edit" and len(call[1]) == 2,
        lambda call: isinstance(call[1], dict) and "follow" in call[1],
        lambda call: isinstance(call[1], dict) and isinstance(call[1].get("path"), list),
        fits,
    ],
)
def test_any_calls_are_wrong_in_every_way(has):
    comes_up(any_calls, has)


def plain_sequences():
    return call_sequences(logical_paths())


@pytest.mark.slow
def test_call_sequences_write_a_file_and_read_it_again():
    def meets(calls):
        written = {
            arguments["path"]
            for tool, arguments in calls
            if tool == "write_file" and "." in arguments["path"]
        }
        read = {arguments["path"] for tool, arguments in calls if tool == "read_file"}
        return bool(written & read)

    comes_up(plain_sequences, meets)


class Feed:
    """A socket's receiving half over given bytes."""

    def __init__(self, data):
        self.data = data

    def recv(self, size):
        piece, self.data = self.data[:size], self.data[size:]
        return piece


def received(stream):
    try:
        return Channel(Feed(stream)).receive(1 << 20)
    except FrameViolation as violation:
        return str(violation)
    except EOFError:
        return "end"


@given(messages())
def test_messages_are_whole_and_good(message):
    header, body = received(message)
    assert isinstance(header, dict)
    assert isinstance(body, bytes)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    "words",
    [
        "a header of",
        "no JSON object",
        "no JSON",
        "a key twice",
        "a number that is none",
        "nested deeper",
        "announced size",
        "a piece of",
        "end",
    ],
)
def test_frames_break_every_rule_of_the_format(words):
    comes_up(frames, lambda stream: words in str(received(stream)))


def test_frames_hold_messages_behind_one_another_and_long_bodies():
    comes_up(frames, lambda stream: len(stream) > 65_536 and not isinstance(received(stream), str))


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "has",
    [
        lambda entry: entry.name is not None and entry.type is not None,
        lambda entry: entry.keywords != (),
        lambda entry: entry.muniment is not None,
        lambda entry: any("not closed" in note for note in entry.notes),
        lambda entry: any("second" in note for note in entry.notes),
        lambda entry: any("not understood" in note for note in entry.notes),
    ],
)
def test_entry_texts_are_read_in_every_way(has):
    comes_up(entry_texts, lambda text: has(parse(text)))


@pytest.mark.slow
def test_entry_texts_are_yaml_and_are_not():
    def is_yaml(text):
        front = locate(text)
        if front is None or not front.fields:
            return None
        try:
            yaml.safe_load(text[text.index("\n") : front.close] if "\n" in text else "")
        except (yaml.YAMLError, ValueError):
            return False
        return True

    for wanted in (True, False):
        comes_up(entry_texts, lambda text, wanted=wanted: is_yaml(text) is wanted)


@functools.cache
def code_of(text):
    try:
        parse_policy(text, where="own", parents=no_parent)
    except PolicyInvalid as problem:
        return problem.rule
    return "loads"


def no_parent(name):
    raise PolicyInvalid("E120", name, "there is none")


@given(policies())
def test_policies_load(text):
    assert code_of(text) == "loads"


@pytest.mark.slow
def test_near_policies_load_and_are_refused_for_most_reasons():
    codes = set(map(code_of, drawn(near_policies)))
    assert "loads" in codes
    assert len(codes) > 10, sorted(codes)
