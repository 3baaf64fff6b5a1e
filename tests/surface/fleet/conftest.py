"""Two nodes in this process for the tests of a file, over the shared database of a process."""

import pytest

from kit.fleet.local_nodes import start_nodes


@pytest.fixture(scope="module")
def two_nodes(fleet, tmp_path_factory):
    with start_nodes(fleet, tmp_path_factory.mktemp("nodes")) as made:
        yield made
