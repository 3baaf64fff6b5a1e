"""What nearly every test of the store begins with."""

from __future__ import annotations

import pytest

from kit.store.ground import laid_out


@pytest.fixture
def ground(tmp_path):
    with laid_out(tmp_path) as made:
        yield made
