"""A count of the open descriptors of this process."""

import gc
import os
from contextlib import contextmanager


def list_descriptors():
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the fastest way, called often


@contextmanager
def assert_descriptors_closed():
    """Assert that everything opened inside is closed at the end; collect garbage of earlier tests first if
    needed.
    """
    before = len(list_descriptors())
    yield
    if len(list_descriptors()) > before:
        gc.collect()
        assert len(list_descriptors()) <= before
