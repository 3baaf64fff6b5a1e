"""The real service on a kernel without `openat2`, as old ones and the filters of old containers are."""

import errno
import os

from outer_filter import Withheld, stand_around

from muniment.confine.root import choose_resolver
from muniment.confine.syscalls import NUMBERS
from muniment.tools import service

stand_around(Withheld(NUMBERS[os.uname().machine]["openat2"], errno.ENOSYS, ()))
warm = service.warm


def serve(sock, roots, missing):
    """As the service does, on the walk."""
    if choose_resolver().name != "walk":
        os._exit(98)
    service.serve(sock, roots, missing)
