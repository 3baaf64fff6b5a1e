"""Fixtures: a directory tree and its root, opened by either resolver."""

import os

import pytest

from kit.kernel.trees import RESOLVERS, plant


@pytest.fixture
def trees(tmp_path):
    return plant(tmp_path)


@pytest.fixture(params=RESOLVERS)
def root(trees, request):
    made = trees.root(request.param)
    yield made
    os.close(made.fd)
