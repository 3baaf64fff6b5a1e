"""Fixtures: a directory tree and its root, opened by either resolver."""

import os

import pytest

from kit.kernel.trees import RESOLVERS, create_trees


@pytest.fixture
def trees(tmp_path):
    return create_trees(tmp_path)


@pytest.fixture(params=RESOLVERS)
def root(trees, request):
    made = trees.open_root(request.param)
    yield made
    os.close(made.fd)
