"""Run `muniment` with a fixed time and fixed random bytes, so that two captures print the same.

The interpreter of any checkout runs this file: it imports only the standard library. Ids, handles and
timestamps then depend only on `CAPTURE_TIME` (seconds since 1970) and `CAPTURE_SEED`. Durations are real.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
import time

_TRUE_DATETIME = dt.datetime
_now = [0.0]


class _InstanceCheck(type):
    def __instancecheck__(cls, each):
        return isinstance(each, _TRUE_DATETIME)


class _FixedDatetime(_TRUE_DATETIME, metaclass=_InstanceCheck):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(_now[0], tz)


def set_time(seconds):
    """Set the time that `time` and `datetime` return in this process."""
    _now[0] = seconds


def fix_time_and_random_bytes():
    """Replace the clock and the source of random bytes of this process."""
    set_time(float(os.environ["CAPTURE_TIME"]))
    source = random.Random(os.environ["CAPTURE_SEED"])
    os.urandom = random._urandom = source.randbytes
    time.time = lambda: _now[0]
    time.time_ns = lambda: int(_now[0] * 1_000_000_000)
    dt.datetime = _FixedDatetime


if __name__ == "__main__":
    fix_time_and_random_bytes()
    sys.argv[0] = "muniment"
    from muniment.cli.entry import main

    main()
