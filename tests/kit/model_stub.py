"""A stub of the model adapter, for tests of code that selects, authenticates and closes it."""

from __future__ import annotations

import sys
from types import ModuleType

from muniment.testing.scripted_models import ScriptedModel

URL = "http://127.0.0.1:1/v1"


def install_model_stub(monkeypatch, *steps):
    """Install a stub that follows a script; return the created models, in order."""
    opened = []

    class StubModel(ScriptedModel):
        def __init__(self, name, *, base_url, api_key=None, protocol="auto"):
            super().__init__(steps, name)
            self.base_url, self.api_key, self.protocol = base_url, api_key, protocol
            self.closed = 0
            opened.append(self)

        def close(self):
            self.closed += 1

    module = ModuleType("muniment.agent.openai")
    module.OpenAIModel = StubModel
    monkeypatch.setitem(sys.modules, "muniment.agent.openai", module)
    return opened
