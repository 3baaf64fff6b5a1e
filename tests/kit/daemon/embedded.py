"""A daemon on an event loop of a thread of this process, for what a test has to break or shorten in it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager

import httpx2

from kit.daemon.process import STOP_SECONDS, Asking
from muniment.agent.filing import RuleWriter
from muniment.daemon.service import Daemon, Options
from muniment.daemon.tokens import TOKEN_NAME
from muniment.settings import Settings


class Embedded(Asking):
    """A daemon that runs in `loop`.

    Attributes:
        core: what it does, see `muniment.daemon.core`.
    """

    def __init__(self, base, daemon, loop):
        self.home, self.work = base / "home", base / "work"
        self.daemon, self.loop, self.core = daemon, loop, daemon.core
        self.url, self.key = daemon.url, next(iter(daemon.core.workspaces))
        self.token = (self.home / "state" / TOKEN_NAME).read_text(encoding="ascii").strip()
        self.http = httpx2.Client(base_url=self.url, trust_env=False, timeout=60)

    def run(self, coroutine):
        """What a coroutine returns, run in the daemon's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(STOP_SECONDS)


@contextmanager
def embedded(base, model=None, *, policy="strict", **terms):
    """A daemon over `base/home` and `base/work` that runs; `terms` are those of `Options`."""
    (base / "work" / ".git").mkdir(parents=True, exist_ok=True)
    options = Options(Settings(base / "home", policy=str(policy)), (base / "work",), **terms)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        daemon = Daemon(options, model or RuleWriter())
        asyncio.run_coroutine_threadsafe(daemon.__aenter__(), loop).result(STOP_SECONDS)
        served = Embedded(base, daemon, loop)
        try:
            yield served
        finally:
            served.http.close()
            served.run(daemon.stop())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(STOP_SECONDS)
        loop.close()
