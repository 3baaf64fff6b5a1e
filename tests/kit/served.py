"""A stub of the model adapter, for tests of code that selects, authenticates and closes it."""

from __future__ import annotations

import sys
from types import ModuleType

from muniment.testing.minds import ScriptedModel

URL = "http://127.0.0.1:1/v1"


def serve(monkeypatch, *steps):
    """Install a stub that follows a script; return the created models, in order."""
    opened = []

    class Served(ScriptedModel):
        def __init__(self, name, *, base_url, api_key=None, protocol="auto"):
            super().__init__(steps, name)
            self.base_url, self.api_key, self.protocol = base_url, api_key, protocol
            self.closed = 0
            opened.append(self)

        def close(self):
            self.closed += 1

    module = ModuleType("muniment.agent.openai")
    module.OpenAIModel = Served
    monkeypatch.setitem(sys.modules, "muniment.agent.openai", module)
    return opened
