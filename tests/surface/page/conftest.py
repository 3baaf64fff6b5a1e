"""One browser for all tests of a file: each finds it in a new tab that knows nothing of the others.

It ends with the file: other tests look at all processes below this one, and a browser's come and go.
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
