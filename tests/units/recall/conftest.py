"""Common fixtures of the recall tests."""

from contextlib import closing

import pytest

from kit.recall.contexts import make_event_reader, open_bench, open_stage
from muniment.recall.stems import Stemmer


@pytest.fixture
def recall_stage(tmp_path):
    with open_stage(tmp_path) as stage:
        yield stage


@pytest.fixture
def recall_bench(tmp_path):
    with open_bench(tmp_path) as made:
        yield made


@pytest.fixture
def recaller(recall_bench):
    with recall_bench.open_recaller() as recaller:
        yield recaller


logged_events = pytest.fixture(make_event_reader)  # Returns the events logged until now.


@pytest.fixture(scope="module")
def stemmer():
    with closing(Stemmer()) as stemmer:
        yield stemmer
