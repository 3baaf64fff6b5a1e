"""Common fixtures of the recall tests."""

from contextlib import closing

import pytest

from kit.recall.places import ground, staged, telling
from muniment.recall.stems import Stemmer


@pytest.fixture
def stage(tmp_path):
    with staged(tmp_path) as stage:
        yield stage


@pytest.fixture
def made(tmp_path):
    with ground(tmp_path) as made:
        yield made


@pytest.fixture
def recaller(made):
    with made.recaller() as recaller:
        yield recaller


told = pytest.fixture(telling)  # Returns the events logged until now.


@pytest.fixture(scope="module")
def stemmer():
    with closing(Stemmer()) as stemmer:
        yield stemmer
