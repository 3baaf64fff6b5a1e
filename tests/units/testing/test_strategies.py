"""The strategies reach all intended cases: a generator that never hits tests nothing."""

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
from muniment.sandbox.tools.calls import SCHEMAS

SCOPES = (Scope("user"), Scope("project"))


class AllFound(Exception):
    """All wanted values were drawn."""


def check_reachable(strategy, *wanted, classify=None):
    """Require that all wanted values or conditions are drawn; `classify` maps a draw to a value."""
    missing = list(wanted)

    @settings(max_examples=12_000, database=None, derandomize=True, phases=[Phase.generate])
    @given(data())
    def draw_value(drawn):
        value = drawn.draw(strategy)
        found = None if classify is None else classify(value)
        missing[:] = [each for each in missing if not (each(value) if classify is None else each == found)]
        if not missing:
            raise AllFound

    with suppress(AllFound):
        draw_value()
    assert missing == []


def classify_path(path):
    try:
        canonicalise(path, SCOPES)
    except PathEscape as escape:
        return escape.via
    except (BadName, Refused) as refusal:
        return refusal.code
    return "fine"


def test_unsafe_paths_reach_every_result_of_the_grammar():
    wanted = ("fine", "bad_name", "refused", Via.NUL, Via.DOTDOT, Via.ABSOLUTE)
    check_reachable(hostile_paths.unsafe_paths(), *wanted, classify=classify_path)


def iterate_nodes(tree):
    for node in tree.values():
        yield node
        if isinstance(node, dict):
            yield from iterate_nodes(node)


def make_condition(kind, is_so=lambda _: True):
    return lambda tree: any(isinstance(node, kind) and is_so(node) for node in iterate_nodes(tree))


def test_trees_contain_every_kind_of_node():
    links = ("{outside}", "{up}", "nowhere", "link")
    check_reachable(
        trees.trees(),
        *(
            make_condition(trees.File, lambda node, data=data: data in node.content)
            for data in (b"---", b"\xff")
        ),
        *(make_condition(trees.Link, lambda node, to=to: node.target.startswith(to)) for to in links),
        make_condition(trees.HardLink, lambda node: "{outside}" in node.target),
        make_condition(trees.HardLink, lambda node: "{outside}" not in node.target),
        *map(make_condition, (trees.Fifo, trees.Socket)),
        make_condition(dict, lambda node: any(isinstance(inner, trees.Link) for inner in node.values())),
    )


@given(trees.trees())
def test_planted_files_equal_the_tree(tree):
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


def test_tool_calls_cover_the_five_tools_and_their_arguments():
    wanted = ((tool, set(schemas)) for tool, schemas in SCHEMAS.items())
    check_reachable(calls.tool_calls(), *wanted, classify=lambda call: (call[0], set(call[1])))


def receive(stream):
    source = io.BytesIO(stream)
    try:
        return Channel(SimpleNamespace(recv=source.read)).receive(1 << 20)
    except FrameViolation as violation:
        return str(violation)
    except EOFError:
        return "end"


@given(frames.messages(), policies.policies())
def test_messages_are_complete_and_policies_load(message, policy):
    header, body = receive(message)
    assert (type(header), type(body), load_code(policy)) == (dict, bytes, "loads")


def test_frames_break_every_rule_of_the_format():
    rules = ("header: it has", "not a JSON object", "duplicate key", "NaN or infinity", "nested deeper")
    rules += ("announced size", "invalid piece", "end")
    check_reachable(
        frames.frames(), *(lambda stream, words=words: words in str(receive(stream)) for words in rules)
    )
    check_reachable(
        frames.frames(), lambda stream: len(stream) > 65_536 and not isinstance(receive(stream), str)
    )


def test_entry_texts_are_read_in_every_way():
    notes = ("not closed", "duplicate", "not `key: value`")
    check_reachable(
        entries.entry_texts().map(parse),
        lambda entry: entry.name is not None and entry.type is not None,
        lambda entry: entry.keywords != () and entry.muniment is None,
        lambda entry: entry.muniment is not None,
        *(lambda entry, words=words: any(words in note for note in entry.notes) for words in notes),
    )


def reject_parent(name):
    raise PolicyInvalid("E120", name, "there is none")


def load_code(text):
    try:
        parse_policy(text, where="own", parents=reject_parent)
    except PolicyInvalid as problem:
        return problem.rule
    return "loads"


@pytest.mark.slow
def test_near_policies_load_and_fail_for_most_reasons():
    codes = set()

    def has_enough_codes(text):
        codes.add(load_code(text))
        return "loads" in codes and len(codes) > 10

    check_reachable(policies.near_policies(), True, classify=has_enough_codes)
