"""The client for threads is the one for asyncio, word for word."""

from __future__ import annotations

from kit.client.twin import COMMAND, SYNC, written


def test_the_client_for_threads_is_up_to_date():
    is_current = SYNC.read_text(encoding="utf-8") == written()
    assert is_current, f"client/sync.py is not what client/aio.py says; run: {COMMAND}"
