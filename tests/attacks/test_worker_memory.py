"""A worker contains no secret of the broker's memory, even before any fence is up (`fence/zygote.py`, Z1)."""

import os
import secrets
import sys
from pathlib import Path

from kit.sandbox.probe import SERVICES, make_deadline, make_zygote

sys.path.append(SERVICES)
from own_memory import UNREADABLE, read_own_regions
from own_memory import read_regions as read_process_regions


def read_regions(worker):
    while "end" not in (message := worker.receive(max_body=1 << 30, deadline=make_deadline()))[0]:
        yield message[0]["name"], message[1] if message[0]["read"] else None


def search(memory, key):
    """Return the names of all regions, of unread ones, and of those that contain the key or half of it."""
    halves, names, unread, found = (key[:32].encode(), key[32:].encode()), set(), set(), set()
    for name, content in memory:
        names.add(name)
        (unread if content is None else found if any(half in content for half in halves) else set()).add(name)
    return names, unread, found


def test_worker_and_zygote_contain_no_broker_key(monkeypatch):
    key = secrets.token_hex(32)
    monkeypatch.setenv("MUNIMENT_API_KEY", key)
    with make_zygote("memory_service:serve") as zygote, zygote.spawn_worker({}, make_deadline()) as worker:
        names, unread, found = search(read_regions(worker), key)
        assert found == set()
        assert {"[heap]", "[stack]", "anonymous"} <= names
        assert unread <= UNREADABLE
        if os.geteuid() == 0:  # Root may read the memory of another process.
            extra = {name: Path(f"/proc/{zygote.pid}/{name}").read_bytes() for name in ("environ", "cmdline")}
            names, _, found = search([*extra.items(), *read_process_regions(zygote.pid)], key)
            assert ("[stack]" in names, found) == (True, set())
    assert search(read_own_regions(), key)[2], "the same search must find the key here"
