"""The confinement of a worker against native code: the clean process that forks it, and its kernel fence.

Start with `layers` (the rights that a worker drops), then `zygote` (which forks it), `pool` (the broker's
end) and `wire` (their messages).

On systems other than Linux, importing any of these raises `PlatformUnsupported`.
"""

import sys

if sys.platform != "linux":
    from muniment.errors import PlatformUnsupported
    from muniment.portable import NEEDS_LINUX

    raise PlatformUnsupported(NEEDS_LINUX)
