"""A count of the open descriptors of this process."""

import gc
import os
from contextlib import contextmanager


def open_descriptors():
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the fastest way, called often


@contextmanager
def nothing_left_open():
    """Assert that everything opened inside is closed at the end; collect garbage of earlier tests first if
    needed.
    """
    before = len(open_descriptors())
    yield
    if len(open_descriptors()) > before:
        gc.collect()
        assert len(open_descriptors()) <= before
