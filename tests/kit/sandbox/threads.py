"""The kernel restricts one thread: so a test can be fenced in and come back to tell."""

from concurrent.futures import ThreadPoolExecutor


def in_a_thread_of_its_own(act):
    """What `act()` returns, or raises, in a thread that ends with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(20)


def refused(act):
    """The errno of what the kernel refuses."""
    try:
        act()
    except OSError as error:
        return error.errno
    return "done"
