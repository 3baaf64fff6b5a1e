"""The client of the daemon: typed results, typed errors, retries that double nothing.

    from muniment.client import Client

    with Client() as client:                      # the daemon of $MUNIMENT_HOME
        handle = client.remember("The user prefers dark mode in all editors")
        print(handle.wait(timeout=60).files_touched)

Start reading in `exchange`: what is sent, and when again. `core` has the requests, `clients` makes methods of
them; `finding` says where the daemon is, `transport` how it is spoken to by threads and by asyncio, `errors`
what may be raised. Attacked by `tests/surface/client`.
"""

from __future__ import annotations

from muniment.client import errors, results
from muniment.client.clients import AsyncClient, AsyncTaskHandle, Client, TaskHandle
from muniment.client.results import normalize

__all__ = ["AsyncClient", "AsyncTaskHandle", "Client", "TaskHandle", "errors", "normalize", "results"]
