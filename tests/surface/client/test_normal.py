"""Every change of the memory has the shape that user interfaces of the contract know."""

from __future__ import annotations

import pytest

from muniment.client import normalize
from muniment.client.results import Event

MANAGED = {
    "scope": "managed",
    "source": "workspace_memory_remember",
    "taskId": "remember-1",
    "touchedScopes": ["user", "team"],
}
FILE = {"scope": "workspace", "filePath": "/w/AGENTS.md", "mode": "append", "bytesWritten": 12}


def test_a_managed_change_from_the_client_and_from_a_stream_are_the_same():
    expected = {"type": "workspace.memory.changed", **MANAGED}
    data = {**MANAGED, "later": 1}
    assert normalize(Event("a-1", "memory_changed", data)) == expected
    assert normalize({"id": 4, "v": 1, "type": "memory_changed", "data": data}) == expected


@pytest.mark.parametrize("scope", ["workspace", "global"])
def test_a_change_of_a_context_file_passes(scope):
    data = {**FILE, "scope": scope}
    assert normalize({"type": "memory_changed", "data": data}) == {"type": "workspace.memory.changed", **data}


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {**MANAGED, "scope": "else"},
        {**MANAGED, "source": ""},
        {**MANAGED, "taskId": 7},
        {**MANAGED, "touchedScopes": "user"},
        {**MANAGED, "touchedScopes": [1]},
        {**FILE, "scope": "managed"},
        {**FILE, "filePath": ""},
        {**FILE, "mode": "delete"},
        {**FILE, "bytesWritten": "12"},
        {**FILE, "bytesWritten": True},
    ],
)
def test_what_is_not_whole_is_none(data):
    assert normalize({"type": "memory_changed", "data": data}) is None
