"""The generated pages are what the threats and marks say now."""

from __future__ import annotations

import pytest

from threats.pages import COMMAND, pages


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path):
    is_current = path.is_file() and path.read_text() == pages()[path]
    assert is_current, f"{path.name} is not what the threats and marks say; run: {COMMAND}"
