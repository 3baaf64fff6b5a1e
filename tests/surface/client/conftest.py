"""Both shells."""

from __future__ import annotations

import pytest

from muniment.client import AsyncClient, Client


@pytest.fixture(params=[Client, AsyncClient])
def shell(request):
    return request.param
