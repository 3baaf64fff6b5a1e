"""A context that several change at once: a stale proposal never overwrites what is newer."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muniment.recall.context_graph import ContextGraph, ContextNode, truncated

WAIT = 20.0
TEXTS = some.sampled_from(["a", "b", "c"])


def message(text):
    return {"role": "user", "content": text}


def node(name, *texts):
    return ContextNode(name, tuple(map(message, texts)))


def graph_of(text):
    """`a b` as a graph of nodes whose ids are their texts."""
    return ContextGraph(node(each, each) for each in text.split())


def shown(graph):
    """The texts, a word a node."""
    return " ".join("+".join(each["content"] for each in node.messages) for node in graph.nodes())


def named(graph, text):
    """Some nodes of a graph, by their ids."""
    return [{each.id: each for each in graph.nodes()}[name] for name in text.split()]


def changed(name, text):
    return lambda nodes: [node(name, text) if each.id == name else each for each in nodes]


def without(name):
    return lambda nodes: [each for each in nodes if each.id != name]


def test_two_nodes_of_one_id_are_nobodys_context_and_change_nothing():
    graph, twice = graph_of("a b"), [node("a", "a"), node("b", "b"), node("a", "c")]
    for act in (ContextGraph, lambda nodes: graph.edit(lambda _: nodes)):
        with pytest.raises(ValueError, match="the same id"):
            act(twice)
    assert shown(graph) == "a b"


@pytest.mark.timeout(20)
def test_an_edit_that_raises_or_changes_the_graph_by_other_means_changes_nothing_and_leaves_it_to_others():
    graph = graph_of("a b")

    def breaking(nodes):
        yield nodes[1]
        raise KeyError("broken")

    with pytest.raises(KeyError, match="broken"):
        graph.edit(breaking)
    appending, editing = (lambda: graph.append([message("x")])), (lambda: graph.edit(tuple))
    for act in (appending, editing, lambda: graph.propose(graph.snapshot(), [])):
        with pytest.raises(RuntimeError, match="must not change"):
            graph.edit(lambda nodes, act=act: (act(), nodes)[1])
    assert shown(graph) == "a b"
    graph.edit(lambda _: reversed(graph.nodes()))  # It may read the graph.
    assert shown(graph) == "b a"


# -- proposals


def test_a_stale_proposal_overwrites_nothing():
    for edit, left in (
        (changed("b", "other"), "a other c d"),
        (without("b"), "a c d"),
        (lambda nodes: (*nodes[:2], node("new", "new"), *nodes[2:]), "a b new c d"),
        (lambda nodes: (nodes[0], nodes[2], nodes[1], nodes[3]), "a c b d"),
        (lambda nodes: (nodes[0], node("other", "b"), *nodes[2:]), "a b c d"),
    ):
        graph = graph_of("a b c d")
        snapshot = graph.snapshot(named(graph, "b c"))
        graph.edit(edit)
        before, broken = graph.nodes(), graph.propose(snapshot, [[message("x")]])
        assert broken
        assert (set(broken) <= {"b", "c"}, graph.nodes(), shown(graph)) == (True, before, left)
    for claimed in ("c b", "a c", "a a"):  # They never stood side by side.
        graph = graph_of("a b c")
        assert graph.propose(graph.snapshot(named(graph, claimed)), [[message("x")]])
        assert shown(graph) == "a b c"


def test_of_two_proposals_for_one_node_the_second_is_rejected_by_the_names_of_what_is_gone():
    graph = graph_of("a b c")
    one, other = graph.snapshot(named(graph, "a b")), graph.snapshot(named(graph, "b c"))
    assert (graph.propose(one, [[message("x")]]), graph.propose(other, [[message("y")]])) == ((), ("b",))
    assert (graph.propose(one, [[message("z")]]), shown(graph)) == (("a", "b"), "x c")


def test_other_messages_have_another_digest_whatever_the_order_of_fields():
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


def tool(text):
    return {"role": "tool", "tool_call_id": "1", "content": text}


@given(some.text(max_size=200), some.integers(0, 150))
def test_results_of_tools_are_shortened_once_and_nothing_else(text, limit):
    """Or each turn would make a pending proposal stale."""
    once = truncated(ContextNode("n", (tool(text),)), limit)
    assert (truncated(once, limit), len(once.messages[0]["content"]) <= limit) == (once, True)
    assert (len(text) > limit) == (once.messages[0]["content"] != text)
    parts = tool([{"type": "text", "text": "x" * 500}])
    kept = [message("x" * 500), tool("x" * 100), parts, {"role": "tool"}]
    found = truncated(ContextNode("n", (*kept, tool("x" * 60 + "y" * 500))), 100)
    assert (found.id, list(found.messages[:-1])) == ("n", kept)
    shortened = found.messages[-1]["content"]
    assert (len(shortened) <= 100, shortened[:60], "560 characters" in shortened) == (True, "x" * 60, True)
    assert found.messages[-1]["tool_call_id"] == "1"


# -- against a list


class Interleavings(RuleBasedStateMachine):
    """Everything that may happen, in any order, against a list of [id, texts] that knows nothing else."""

    def __init__(self):
        super().__init__()
        self.graph, self.list, self.snapshots = ContextGraph(), [], []

    def as_listed(self):
        return [[each.id, [one["content"] for one in each.messages]] for each in self.graph.nodes()]

    @initialize(count=some.integers(0, 5))
    def begin(self, count):
        for _ in range(count):
            self.append(["a"])

    @rule(texts=some.lists(TEXTS, max_size=2))
    def append(self, texts):
        made = self.graph.append(list(map(message, texts)))
        assert made.id not in {name for name, _ in self.list}
        self.list.append([made.id, texts])

    @precondition(lambda self: self.list)
    @rule(data=some.data(), text=TEXTS, is_in_place=some.booleans())
    def change(self, data, text, is_in_place):
        at = data.draw(some.integers(0, len(self.list) - 1))
        self.list[at][1] = [text for _ in self.list[at][1]] if is_in_place else [text]
        if not is_in_place:
            self.graph.edit(changed(self.list[at][0], text))
        for each in self.graph.nodes()[at].messages:  # As a host does that goes on writing to one.
            each["content"] = text

    @rule(data=some.data())
    def leave_some_in_another_order(self, data):
        order = data.draw(some.permutations(range(len(self.list))))[data.draw(some.integers(0, 2)) :]
        self.graph.edit(lambda nodes: [nodes[at] for at in order])
        self.list = [self.list[at] for at in order]

    @rule(data=some.data(), text=TEXTS, name=some.sampled_from(["n1", "n2", "n3", "n4", "z"]))
    def insert(self, data, text, name):
        if name in {each for each, _ in self.list}:
            return
        at = data.draw(some.integers(0, len(self.list)))
        self.graph.edit(lambda nodes: (*nodes[:at], node(name, text), *nodes[at:]))
        self.list.insert(at, [name, [text]])

    @rule(data=some.data(), is_all=some.booleans())
    def take(self, data, is_all):
        first, last = sorted(data.draw(some.integers(0, len(self.list))) for _ in range(2))
        if is_all or first == last:
            first, last, snapshot = 0, len(self.list), self.graph.snapshot()
        else:
            snapshot = self.graph.snapshot(self.graph.nodes()[first:last])
        self.snapshots.append((snapshot, copy.deepcopy(self.list[first:last])))

    @precondition(lambda self: self.snapshots)
    @rule(contents=some.lists(some.lists(TEXTS, max_size=2), max_size=2), back=some.integers(1, 3))
    def propose(self, contents, back):
        snapshot, claimed = self.snapshots[-min(back, len(self.snapshots))]
        starts = range(len(self.list) - len(claimed) + 1)
        places = [at for at in starts if self.list[at : at + len(claimed)] == claimed]
        before = {name for name, _ in self.list}
        broken = self.graph.propose(snapshot, [list(map(message, texts)) for texts in contents])
        assert (bool(broken), set(broken) <= {name for name, _ in claimed}) == (not places, True)
        if places:
            at = places[0] if claimed else len(self.list)
            coming = self.as_listed()[at : at + len(contents)]
            assert [texts for _, texts in coming] == contents
            assert not {name for name, _ in coming} & before
            self.list[at : at + len(claimed)] = coming

    @invariant()
    def is_as_the_list(self):
        assert (self.as_listed(), len({name for name, _ in self.list})) == (self.list, len(self.list))


test_whatever_happens_in_whatever_order_the_graph_is_as_the_list = Interleavings.TestCase


def test_threads_that_append_and_replace_at_once_lose_nothing_and_turn_nothing_round():
    """Each proposal is the sum of what it claims; so all that was ever appended stands there, in order."""
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
    told = [each["content"] for each in graph.messages()]
    for writer in range(3):
        mine = [each for each in told if each.startswith(f"{writer}.")]
        assert mine == [f"{writer}.{number}" for number in range(100)]
    assert (len(told), len({each.id for each in graph.nodes()})) == (300, len(graph.nodes()))
