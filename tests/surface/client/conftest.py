"""Fixture that runs each test with both clients."""

from __future__ import annotations

import pytest

from muniment.client import AsyncClient, Client

shell = pytest.fixture(params=[Client, AsyncClient])(lambda request: request.param)
