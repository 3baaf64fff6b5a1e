"""The confinement of a worker against native code: the clean process that forks it, and its kernel fence.

Start with `layers` (the rights that a worker drops), then `zygote` (the process that forks workers), `pool`
(the broker's end) and `wire` (the messages between both).

On systems other than Linux, importing any module of this package raises `PlatformUnsupported`.
"""

import sys

if sys.platform != "linux":
    from muniment.errors import PlatformUnsupported
    from muniment.portable import NEEDS_LINUX

    raise PlatformUnsupported(NEEDS_LINUX)
