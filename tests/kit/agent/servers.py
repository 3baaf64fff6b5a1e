"""Requests for an `OpenAIModel`, and short retry pauses."""

from contextlib import closing, contextmanager
from dataclasses import replace

import openai  # noqa: F401  loading takes 0.6 s once, which no deadline of a test should include
import pytest

from kit.agent.snapshots import request
from muniment.agent import openai as adapter
from muniment.agent.openai import OpenAIModel
from muniment.testing.chat_server import ChatServer

KEY = "sk-canary-7d1f0c55"


def asked(seconds=20.0, **more):
    """Return the first request of a run with this many seconds left."""
    return replace(request(**more), seconds_left=seconds)


def form_of(sent):
    """Return the protocol of a sent request: tools, json or text."""
    if "tools" in sent.body:
        return "tools"
    return "json" if "response_format" in sent.body else "text"


@contextmanager
def serving(answer, protocol="auto", *, key=KEY, certificate=None):
    """Run a server with this answer; yield it and a model that uses it."""
    with (
        ChatServer(answer, certificate=certificate) as server,
        closing(OpenAIModel("scripted", base_url=server.base_url, api_key=key, protocol=protocol)) as model,
    ):
        yield server, model


@pytest.fixture
def hasty(monkeypatch):
    """Shorten the pauses between retries."""
    monkeypatch.setattr(adapter, "PAUSES", (0.01, 0.02))
