"""After a task is reported as completed, every node finds its result."""

import pytest


def check_recall_at_other_node(home, number):
    """Remember a fact at one node, and recall it at the other one after completion."""
    writes, reads = home.nodes[number % 2], home.nodes[(number + 1) % 2]
    done = writes.run_task("remember", {"content": f"The user keeps box {number} in cellar nr-{number:04}."})
    assert done["status"] == "completed", done
    found = reads.recall_texts(f"where is box {number}, nr-{number:04}?")
    assert any(f"nr-{number:04}" in text for text in found), (number, found)


def test_completed_task_is_recalled_at_other_node(two_nodes):
    home = two_nodes.create_home()
    for number in range(6):
        check_recall_at_other_node(home, number)


@pytest.mark.slow
def test_completed_task_is_recalled_at_other_node_1000_times(two_nodes):
    for _ in range(50):
        home = two_nodes.create_home()
        for number in range(20):
            check_recall_at_other_node(home, number)
