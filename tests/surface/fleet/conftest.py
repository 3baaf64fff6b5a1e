"""Two nodes in this process for the tests of a file, over the shared database of a process."""

import pytest

from kit.fleet.pair import nodes


@pytest.fixture(scope="module")
def two(fleet, tmp_path_factory):
    with nodes(fleet, tmp_path_factory.mktemp("nodes")) as made:
        yield made
