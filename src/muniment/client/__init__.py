"""The client of the daemon: typed results, typed errors, and retries that never duplicate a task.

    from muniment.client import Client

    with Client() as client:                      # the daemon of $MUNIMENT_HOME
        handle = client.remember("The user prefers dark mode in all editors")
        print(handle.wait(timeout=60).files_touched)

Start reading in `exchange`: it sends one request, and repeats it if that is necessary and safe. `core`
contains the requests, and `responses` converts the responses to values; `clients` turns the requests into
methods. `follower` keeps an event stream open over several connections. `discovery` finds the daemon,
`transport` connects threads and asyncio to it, and `errors` lists the exceptions. The tests in
`tests/surface/client` attack the client.
"""

from __future__ import annotations

from muniment.client import errors, results
from muniment.client.clients import AsyncClient, AsyncTaskHandle, Client, TaskHandle
from muniment.client.results import normalize

__all__ = ["AsyncClient", "AsyncTaskHandle", "Client", "TaskHandle", "errors", "normalize", "results"]
