"""Helpers to confine one thread: the kernel restricts threads, so a test can continue after the fence."""

from concurrent.futures import ThreadPoolExecutor


def in_a_thread_of_its_own(act):
    """Run `act()` in a new thread; return its result or raise its error."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(20)


def refused(act):
    """Return the errno with which the kernel denies a call."""
    try:
        act()
    except OSError as error:
        return error.errno
    return "done"
