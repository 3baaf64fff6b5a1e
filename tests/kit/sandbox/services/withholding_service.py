"""The real service on a system that blocks a call: the function name is one of `outer_filter.CASES`."""

from outer_filter import CASES, install_filter

from muniment.kernel.root import choose_resolver
from muniment.sandbox.tools.service import serve, warm

__all__ = ["warm"]


def __getattr__(name):
    if name not in CASES:
        raise AttributeError(name)
    install_filter(name)
    assert (choose_resolver().name == "walk") == (name == "openat2_unknown")
    return serve
