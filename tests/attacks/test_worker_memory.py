"""What a worker holds of the broker's memory: nothing, before any fence is up (`fence/zygote.py`, Z1)."""

import os
import secrets
import sys
from pathlib import Path

from kit.sandbox.probe import SERVICES, soon, source

sys.path.append(SERVICES)
from own_memory import UNREADABLE, mapped, regions


def of_worker(worker):
    while "end" not in (told := worker.receive(max_body=1 << 30, patience=soon()))[0]:
        yield told[0]["name"], told[1] if told[0]["read"] else None


def search(memory, key):
    """The names of all regions, of those that were not read, and of those that hold the key or half of it."""
    halves, names, unread, found = (key[:32].encode(), key[32:].encode()), set(), set(), set()
    for name, content in memory:
        names.add(name)
        (unread if content is None else found if any(half in content for half in halves) else set()).add(name)
    return names, unread, found


def test_no_key_of_the_broker_is_anywhere_in_a_worker_that_is_not_fenced_yet_or_in_the_zygote(monkeypatch):
    key = secrets.token_hex(32)
    monkeypatch.setenv("MUNIMENT_API_KEY", key)
    with source("memory_service:serve") as zygote, zygote.spawn({}, soon()) as worker:
        names, unread, found = search(of_worker(worker), key)
        assert found == set()
        assert {"[heap]", "[stack]", "anonymous"} <= names
        assert unread <= UNREADABLE
        if os.geteuid() == 0:  # Another process's memory is root's to read.
            extra = {name: Path(f"/proc/{zygote.pid}/{name}").read_bytes() for name in ("environ", "cmdline")}
            names, _, found = search([*extra.items(), *mapped(zygote.pid)], key)
            assert ("[stack]" in names, found) == (True, set())
    assert search(regions(), key)[2], "the same search finds it where it is"
