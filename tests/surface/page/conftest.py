"""One browser for all tests of a file: each test gets a new tab without data of the others.

It ends with the file, because other tests inspect all descendants of this process.
"""

from __future__ import annotations

import pytest

from kit.browser import open_clean_tab, start_browser


@pytest.fixture(scope="module")
def _chromium(tmp_path_factory):
    with start_browser(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def chromium(_chromium):
    open_clean_tab(_chromium)
    return _chromium
