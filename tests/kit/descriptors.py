"""A count of the descriptors of this process."""

import gc
import os
from contextlib import contextmanager


def open_descriptors():
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the quickest way, and often taken


@contextmanager
def nothing_left_open():
    """What is opened inside is closed in the end; earlier tests may have left something to be collected."""
    before = len(open_descriptors())
    yield
    if len(open_descriptors()) > before:
        gc.collect()
        assert len(open_descriptors()) <= before
