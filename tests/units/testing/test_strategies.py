"""The strategies reach what they are there for: a generator that never hits is a fuzz of nothing."""

import io
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import Phase, given, settings
from hypothesis.strategies import data

from kit.strategies import calls, entries, frames, hostile_paths, policies, trees
from muniment.content.entry import parse
from muniment.errors import BadName, PathEscape, PolicyInvalid, Refused
from muniment.kernel.names import Scope, Via
from muniment.kernel.path import canonicalise
from muniment.policy.load import parse_policy
from muniment.sandbox.fence.wire import Channel, FrameViolation
from muniment.sandbox.tools.calls import TOOLS

SCOPES = (Scope("user"), Scope("project"))


class Enough(Exception):
    """All came up."""


def come_up(strategy, *wanted, told=None):
    """All that is wanted comes up: values of `told`, or else conditions. A property test draws fewer."""
    missing = list(wanted)

    @settings(max_examples=12_000, database=None, derandomize=True, phases=[Phase.generate])
    @given(data())
    def look(drawn):
        value = drawn.draw(strategy)
        found = None if told is None else told(value)
        missing[:] = [each for each in missing if not (each(value) if told is None else each == found)]
        if not missing:
            raise Enough

    with suppress(Enough):
        look()
    assert missing == []


def outcome(path):
    try:
        canonicalise(path, SCOPES)
    except PathEscape as escape:
        return escape.via
    except (BadName, Refused) as refusal:
        return refusal.code
    return "fine"


def test_unsafe_paths_come_to_everything_that_the_grammar_can_say():
    wanted = ("fine", "bad_name", "refused", Via.NUL, Via.DOTDOT, Via.ABSOLUTE)
    come_up(hostile_paths.unsafe_paths(), *wanted, told=outcome)


def nodes(tree):
    for node in tree.values():
        yield node
        if isinstance(node, dict):
            yield from nodes(node)


def holds(kind, is_so=lambda _: True):
    return lambda tree: any(isinstance(node, kind) and is_so(node) for node in nodes(tree))


def test_trees_hold_every_kind_of_node():
    links = ("{outside}", "{up}", "nowhere", "link")
    come_up(
        trees.trees(),
        *(holds(trees.File, lambda node, data=data: data in node.content) for data in (b"---", b"\xff")),
        *(holds(trees.Link, lambda node, to=to: node.target.startswith(to)) for to in links),
        holds(trees.HardLink, lambda node: "{outside}" in node.target),
        holds(trees.HardLink, lambda node: "{outside}" not in node.target),
        *map(holds, (trees.Fifo, trees.Socket)),
        holds(dict, lambda node: any(isinstance(inner, trees.Link) for inner in node.values())),
    )


@given(trees.trees())
def test_what_is_planted_is_the_tree_and_nothing_else(tree):
    with tempfile.TemporaryDirectory() as base:
        outside, top = Path(base) / "outside", Path(base) / "user"
        outside.mkdir()
        (outside / "secret.md").write_text("secret")
        trees.plant(tree, top, outside=outside)
        walked = [Path(where) / name for where, *both in os.walk(top) for names in both for name in names]
        found = {str(path.relative_to(top)): path.lstat().st_mode for path in walked}
        assert set(found) == set(trees.paths_in(tree))
        kinds = {trees.File: stat.S_ISREG, trees.HardLink: stat.S_ISREG, trees.Link: stat.S_ISLNK}
        kinds |= {trees.Fifo: stat.S_ISFIFO, trees.Socket: stat.S_ISSOCK, dict: stat.S_ISDIR}
        for path in trees.paths_in(tree):
            node = tree
            for name in Path(path).parts:
                node = node[name]
            assert kinds[type(node)](found[path]), path
        assert [path.name for path in outside.iterdir()] == ["secret.md"]
        assert sorted(path.name for path in Path(base).iterdir()) == ["outside", "user"]


def test_tool_calls_know_the_five_tools_and_their_arguments():
    wanted = ((tool, set(TOOLS[tool].model_fields)) for tool in TOOLS)
    come_up(calls.tool_calls(), *wanted, told=lambda call: (call[0], set(call[1])))


def received(stream):
    source = io.BytesIO(stream)
    try:
        return Channel(SimpleNamespace(recv=source.read)).receive(1 << 20)
    except FrameViolation as violation:
        return str(violation)
    except EOFError:
        return "end"


@given(frames.messages(), policies.policies())
def test_messages_are_whole_and_policies_load(message, policy):
    header, body = received(message)
    assert (type(header), type(body), code_of(policy)) == (dict, bytes, "loads")


def test_frames_break_every_rule_of_the_format_and_hold_messages_behind_one_another_and_long_bodies():
    rules = ("header: it has", "not a JSON object", "duplicate key", "NaN or infinity", "nested deeper")
    rules += ("announced size", "invalid piece", "end")
    come_up(frames.frames(), *(lambda stream, words=words: words in str(received(stream)) for words in rules))
    come_up(frames.frames(), lambda stream: len(stream) > 65_536 and not isinstance(received(stream), str))


def test_entry_texts_are_read_in_every_way():
    notes = ("not closed", "duplicate", "not `key: value`")
    come_up(
        entries.entry_texts().map(parse),
        lambda entry: entry.name is not None and entry.type is not None,
        lambda entry: entry.keywords != () and entry.muniment is None,
        lambda entry: entry.muniment is not None,
        *(lambda entry, words=words: any(words in note for note in entry.notes) for words in notes),
    )


def no_parent(name):
    raise PolicyInvalid("E120", name, "there is none")


def code_of(text):
    try:
        parse_policy(text, where="own", parents=no_parent)
    except PolicyInvalid as problem:
        return problem.rule
    return "loads"


@pytest.mark.slow
def test_near_policies_load_and_are_refused_for_most_reasons():
    codes = set()

    def told(text):
        codes.add(code_of(text))
        return "loads" in codes and len(codes) > 10

    come_up(policies.near_policies(), True, told=told)
