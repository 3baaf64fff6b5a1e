"""One browser for all tests of a process: each finds it in a new tab that knows nothing of the others."""

from __future__ import annotations

import pytest

from kit.browser import afresh, browser


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def chromium(_chromium):
    afresh(_chromium)
    return _chromium
