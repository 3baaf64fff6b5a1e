"""A node that adds the memory to the messages of a thread, which `add_messages` of LangGraph merges."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from muniment.integrations.langgraph import create_memory_node

RULE = "Always answer in British English"
FACT = "On 2026-03-01 the staging database moved to Postgres 16"
QUESTION = "which postgres does the staging database run?"


class Thread:
    """A thread with one node, whose updates are merged as by `add_messages` with `REMOVE_ALL_MESSAGES`."""

    def __init__(self, node, *messages):
        self.node, self.messages = node, list(messages)

    def run(self, *new):
        self.messages += new
        if update := self.node({"messages": self.messages})["messages"]:
            first, *rest = update
            assert (first.type, first.id) == ("remove", "__remove_all__")
            assert len({each.id for each in rest}) == len(rest)
            self.messages = rest
        return [each.id for each in self.messages]


@pytest.fixture
def opened(open_memory):
    memory = open_memory()
    memory.remember(RULE, scope="user")
    memory.remember(FACT, scope="user")
    return memory


def test_standing_context_is_added_in_front_once(opened):
    thread = Thread(create_memory_node(opened), SystemMessage("Be brief.", id="s"))
    assert thread.run(HumanMessage("Hello", id="1")) == ["s", "muniment-standing", "1"]
    standing = thread.messages[1]
    assert isinstance(standing, HumanMessage)
    assert f"\n- {RULE}" in standing.content
    resumed = Thread(create_memory_node(opened), *thread.messages)
    assert resumed.run() == ["s", "muniment-standing", "1"]
    more = [AIMessage("Hi", id="2"), HumanMessage("And now?", id="3")]
    assert resumed.run(*more) == ["s", "muniment-standing", "1", "2", "3"]
    assert resumed.messages[1] == standing


def test_removed_standing_context_returns_with_next_turn(opened):
    thread = Thread(create_memory_node(opened))
    thread.run(HumanMessage("Hello", id="1"))
    thread.messages = [HumanMessage("Summary: they greeted each other.", id="summary")]
    assert thread.run(HumanMessage("Go on", id="2")) == ["muniment-standing", "summary", "2"]


def test_entries_of_a_turn_come_once_and_before_its_message(opened):
    thread = Thread(create_memory_node(opened, budget=0))
    assert thread.run(HumanMessage(QUESTION, id="1")) == ["muniment-recall-1", "1"]
    assert FACT in thread.messages[0].content
    assert "<<memory " in thread.messages[0].content
    assert thread.run() == ["muniment-recall-1", "1"]
    assert thread.run(AIMessage("16", id="2")) == ["muniment-recall-1", "1", "2"]
    question = HumanMessage([{"type": "text", "text": QUESTION}], id="3")
    assert thread.run(question) == ["muniment-recall-1", "1", "2", "3"], "they were injected before"
    thread.messages = thread.messages[2:]
    assert thread.run(HumanMessage(QUESTION, id="4"))[-2:] == ["muniment-recall-4", "4"]


def test_empty_memory_or_thread_adds_nothing(open_memory):
    memory = open_memory()
    assert Thread(create_memory_node(memory)).run(HumanMessage("Hello", id="1")) == ["1"]
    assert create_memory_node(memory)({"messages": []}) == {"messages": []}


def test_unreadable_memory_adds_nothing(opened):
    node = create_memory_node(opened)
    root = opened.context.roots["user"].trusted_path
    root.rename(root.with_name("moved"))
    assert opened.standing_context().error is not None
    assert Thread(node).run(HumanMessage(QUESTION, id="1")) == ["1"]
