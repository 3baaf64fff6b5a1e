"""Requests to put to an `OpenAIModel`, and patience scaled down."""

from contextlib import closing, contextmanager
from dataclasses import replace

import openai  # noqa: F401  it takes 0.6 s to load, once, and no deadline of a test is about that
import pytest

from kit.agent.snapshots import request
from muniment.agent import openai as adapter
from muniment.agent.openai import OpenAIModel
from muniment.testing.chat_server import ChatServer

KEY = "sk-canary-7d1f0c55"


def asked(seconds=20.0, **more):
    """The first request of a run, with so many seconds left."""
    return replace(request(**more), seconds_left=seconds)


def form_of(sent):
    """The form in which a request was put."""
    if "tools" in sent.body:
        return "tools"
    return "json" if "response_format" in sent.body else "text"


@contextmanager
def serving(answer, protocol="auto", *, key=KEY, certificate=None):
    """A model behind a server that answers so."""
    with (
        ChatServer(answer, certificate=certificate) as server,
        closing(OpenAIModel("scripted", base_url=server.base_url, api_key=key, protocol=protocol)) as model,
    ):
        yield server, model


@pytest.fixture
def hasty(monkeypatch):
    """Pauses between tries that need no waiting for."""
    monkeypatch.setattr(adapter, "PAUSES", (0.01, 0.02))
