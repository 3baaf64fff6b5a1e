"""Hypothesis strategies for whatever an attacker may choose, and a way to put a drawn tree on the disk.

    @given(unsafe_paths())
    def test_no_path_leaves_the_memory(unsafe_path): ...

    @given(trees(), st.lists(tool_calls()))
    def test_no_tree_lets_a_call_out(tree, calls):
        plant(tree, tmp / "user", outside=tmp / "outside")

Each strategy draws mostly what is almost right, since what is plainly wrong is refused early; each also draws
what is right, and shrinks towards it. `tests/testing/test_strategies.py` shows that every one reaches what
it is there for. They know the words of Muniment (scopes `user` and `project`, paths, five tools), and import
none of the code that they are used against.

Needs `hypothesis`, which the extra `testing` brings.
"""

from __future__ import annotations

from muniment.testing.strategies.calls import any_calls, call_sequences, tool_calls
from muniment.testing.strategies.entries import entry_texts
from muniment.testing.strategies.frames import frame, frames, messages
from muniment.testing.strategies.paths import logical_paths, unsafe_paths
from muniment.testing.strategies.policies import near_policies, policies
from muniment.testing.strategies.trees import (
    Fifo,
    File,
    HardLink,
    Link,
    Node,
    Socket,
    Tree,
    paths_in,
    plant,
    trees,
)

__all__ = [
    "Fifo",
    "File",
    "HardLink",
    "Link",
    "Node",
    "Socket",
    "Tree",
    "any_calls",
    "call_sequences",
    "entry_texts",
    "frame",
    "frames",
    "logical_paths",
    "messages",
    "near_policies",
    "paths_in",
    "plant",
    "policies",
    "tool_calls",
    "trees",
    "unsafe_paths",
]
