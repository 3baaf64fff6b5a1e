"""One browser for all tests of a file: each test gets a new tab without data of the others.

It ends with the file, because other tests inspect all descendants of this process.
"""

from __future__ import annotations

import pytest

from kit.browser import afresh, browser


@pytest.fixture(scope="module")
def _chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def chromium(_chromium):
    afresh(_chromium)
    return _chromium
