"""A context with concurrent changes: a stale proposal never overwrites a newer node."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muniment.recall.context_graph import ContextGraph, ContextNode, truncated

WAIT = 20.0
TEXTS = st.sampled_from(["a", "b", "c"])


def message(text):
    return {"role": "user", "content": text}


def node(name, *texts):
    return ContextNode(name, tuple(map(message, texts)))


def make_graph(text):
    """Make a graph from words; the id of each node is its text."""
    return ContextGraph(node(each, each) for each in text.split())


def join_texts(graph):
    """Return the texts of the nodes, one word per node."""
    return " ".join("+".join(each["content"] for each in node.messages) for node in graph.nodes())


def find_nodes(graph, text):
    """Return nodes of a graph by their ids."""
    return [{each.id: each for each in graph.nodes()}[name] for name in text.split()]


def change_node(name, text):
    return lambda nodes: [node(name, text) if each.id == name else each for each in nodes]


def remove_node(name):
    return lambda nodes: [each for each in nodes if each.id != name]


def test_duplicate_node_ids_are_rejected():
    graph, twice = make_graph("a b"), [node("a", "a"), node("b", "b"), node("a", "c")]
    for act in (ContextGraph, lambda nodes: graph.edit(lambda _: nodes)):
        with pytest.raises(ValueError, match="the same id"):
            act(twice)
    assert join_texts(graph) == "a b"


@pytest.mark.timeout(20)
def test_failed_or_reentrant_edit_changes_nothing():
    graph = make_graph("a b")

    def raise_error(nodes):
        yield nodes[1]
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        graph.edit(raise_error)
    appending, editing = (lambda: graph.append([message("x")])), (lambda: graph.edit(tuple))
    for act in (appending, editing, lambda: graph.propose(graph.snapshot(), [])):
        with pytest.raises(RuntimeError, match="must not change"):
            graph.edit(lambda nodes, act=act: (act(), nodes)[1])
    assert join_texts(graph) == "a b"
    graph.edit(lambda _: reversed(graph.nodes()))  # It may read the graph.
    assert join_texts(graph) == "b a"


# -- proposals


def test_stale_proposal_overwrites_nothing():
    for edit, left in (
        (change_node("b", "other"), "a other c d"),
        (remove_node("b"), "a c d"),
        (lambda nodes: (*nodes[:2], node("new", "new"), *nodes[2:]), "a b new c d"),
        (lambda nodes: (nodes[0], nodes[2], nodes[1], nodes[3]), "a c b d"),
        (lambda nodes: (nodes[0], node("other", "b"), *nodes[2:]), "a b c d"),
    ):
        graph = make_graph("a b c d")
        snapshot = graph.snapshot(find_nodes(graph, "b c"))
        graph.edit(edit)
        before, broken = graph.nodes(), graph.propose(snapshot, [[message("x")]])
        assert broken
        assert (set(broken) <= {"b", "c"}, graph.nodes(), join_texts(graph)) == (True, before, left)
    for claimed in ("c b", "a c", "a a"):  # These nodes were never adjacent.
        graph = make_graph("a b c")
        assert graph.propose(graph.snapshot(find_nodes(graph, claimed)), [[message("x")]])
        assert join_texts(graph) == "a b c"


def test_second_proposal_for_a_node_is_rejected():
    graph = make_graph("a b c")
    one, other = graph.snapshot(find_nodes(graph, "a b")), graph.snapshot(find_nodes(graph, "b c"))
    assert (graph.propose(one, [[message("x")]]), graph.propose(other, [[message("y")]])) == ((), ("b",))
    assert (graph.propose(one, [[message("z")]]), join_texts(graph)) == (("a", "b"), "x c")


def test_digest_depends_on_messages_not_on_field_order():
    for one, other in (
        ([message("a")], [message("b")]),
        ([message("a"), message("b")], [message("b"), message("a")]),
        ([message("a")], [{**message("a"), "role": "assistant"}]),
        ([message("\ud800")], [message("\ud801")]),
        ([], [{}]),
    ):
        assert ContextNode("n", tuple(one)).digest != ContextNode("n", tuple(other)).digest
    fields = message("a")
    assert ContextNode("n", (fields,)).digest == ContextNode("m", (dict(reversed(fields.items())),)).digest


# -- shortening


def tool_message(text):
    return {"role": "tool", "tool_call_id": "1", "content": text}


@given(st.text(max_size=200), st.integers(0, 150))
def test_only_tool_results_are_truncated_and_only_once(text, limit):
    """Otherwise each turn would make a pending proposal stale."""
    once = truncated(ContextNode("n", (tool_message(text),)), limit)
    assert (truncated(once, limit), len(once.messages[0]["content"]) <= limit) == (once, True)
    assert (len(text) > limit) == (once.messages[0]["content"] != text)
    parts = tool_message([{"type": "text", "text": "x" * 500}])
    unchanged = [message("x" * 500), tool_message("x" * 100), parts, {"role": "tool"}]
    found = truncated(ContextNode("n", (*unchanged, tool_message("x" * 60 + "y" * 500))), 100)
    assert (found.id, list(found.messages[:-1])) == ("n", unchanged)
    shortened = found.messages[-1]["content"]
    assert (len(shortened) <= 100, shortened[:60], "560 characters" in shortened) == (True, "x" * 60, True)
    assert found.messages[-1]["tool_call_id"] == "1"


# -- against a list


class Interleavings(RuleBasedStateMachine):
    """Any steps in any order, compared with a list of [id, texts]."""

    def __init__(self):
        super().__init__()
        self.graph, self.list, self.snapshots = ContextGraph(), [], []

    def list_nodes(self):
        return [[each.id, [one["content"] for one in each.messages]] for each in self.graph.nodes()]

    @initialize(count=st.integers(0, 5))
    def begin(self, count):
        for _ in range(count):
            self.append(["a"])

    @rule(texts=st.lists(TEXTS, max_size=2))
    def append(self, texts):
        made = self.graph.append(list(map(message, texts)))
        assert made.id not in {name for name, _ in self.list}
        self.list.append([made.id, texts])

    @precondition(lambda self: self.list)
    @rule(data=st.data(), text=TEXTS, is_in_place=st.booleans())
    def change(self, data, text, is_in_place):
        at = data.draw(st.integers(0, len(self.list) - 1))
        self.list[at][1] = [text for _ in self.list[at][1]] if is_in_place else [text]
        if not is_in_place:
            self.graph.edit(change_node(self.list[at][0], text))
        for each in self.graph.nodes()[at].messages:  # A host may continue to change a message.
            each["content"] = text

    @rule(data=st.data())
    def keep_some_in_another_order(self, data):
        order = data.draw(st.permutations(range(len(self.list))))[data.draw(st.integers(0, 2)) :]
        self.graph.edit(lambda nodes: [nodes[at] for at in order])
        self.list = [self.list[at] for at in order]

    @rule(data=st.data(), text=TEXTS, name=st.sampled_from(["n1", "n2", "n3", "n4", "z"]))
    def insert(self, data, text, name):
        if name in {each for each, _ in self.list}:
            return
        at = data.draw(st.integers(0, len(self.list)))
        self.graph.edit(lambda nodes: (*nodes[:at], node(name, text), *nodes[at:]))
        self.list.insert(at, [name, [text]])

    @rule(data=st.data(), is_all=st.booleans())
    def take(self, data, is_all):
        first, last = sorted(data.draw(st.integers(0, len(self.list))) for _ in range(2))
        if is_all or first == last:
            first, last, snapshot = 0, len(self.list), self.graph.snapshot()
        else:
            snapshot = self.graph.snapshot(self.graph.nodes()[first:last])
        self.snapshots.append((snapshot, copy.deepcopy(self.list[first:last])))

    @precondition(lambda self: self.snapshots)
    @rule(contents=st.lists(st.lists(TEXTS, max_size=2), max_size=2), back=st.integers(1, 3))
    def propose(self, contents, back):
        snapshot, claimed = self.snapshots[-min(back, len(self.snapshots))]
        starts = range(len(self.list) - len(claimed) + 1)
        matches = [at for at in starts if self.list[at : at + len(claimed)] == claimed]
        before = {name for name, _ in self.list}
        broken = self.graph.propose(snapshot, [list(map(message, texts)) for texts in contents])
        assert (bool(broken), set(broken) <= {name for name, _ in claimed}) == (not matches, True)
        if matches:
            at = matches[0] if claimed else len(self.list)
            new_nodes = self.list_nodes()[at : at + len(contents)]
            assert [texts for _, texts in new_nodes] == contents
            assert not {name for name, _ in new_nodes} & before
            self.list[at : at + len(claimed)] = new_nodes

    @invariant()
    def equals_the_list(self):
        assert (self.list_nodes(), len({name for name, _ in self.list})) == (self.list, len(self.list))


test_graph_equals_a_list_after_any_steps = Interleavings.TestCase


def test_concurrent_changes_lose_and_reorder_nothing():
    """Each proposal joins the messages that it claims, so all appended messages must exist in order."""
    graph, together, done = ContextGraph(), threading.Barrier(6), threading.Event()

    def write(writer):
        together.wait(WAIT)
        for number in range(100):
            graph.append([message(f"{writer}.{number}")])

    def merge():
        together.wait(WAIT)
        while not done.is_set():
            snapshot = graph.snapshot(graph.nodes()[-6:-2])
            if snapshot.nodes:
                graph.propose(snapshot, [[each for node in snapshot.nodes for each in node.messages]])
            graph.edit(tuple)

    with ThreadPoolExecutor(6) as pool:
        merging, writing = [pool.submit(merge) for _ in range(3)], [pool.submit(write, it) for it in range(3)]
        wait(writing, WAIT)
        done.set()
    assert [each.result() for each in (*merging, *writing)] == [None] * 6
    all_texts = [each["content"] for each in graph.messages()]
    for writer in range(3):
        own_texts = [each for each in all_texts if each.startswith(f"{writer}.")]
        assert own_texts == [f"{writer}.{number}" for number in range(100)]
    assert (len(all_texts), len({each.id for each in graph.nodes()})) == (300, len(graph.nodes()))
