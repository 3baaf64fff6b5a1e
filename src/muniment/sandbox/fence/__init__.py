"""What holds a worker once code that is not ours runs in it: the clean process it comes from, and its fence.

Start with `layers` (what a worker gives up), then `zygote` (where it is forked), `pool` (the broker's end)
and `wire` (what they say to each other).

Elsewhere than on Linux importing any of it is `PlatformUnsupported`.
"""

import sys

if sys.platform != "linux":
    from muniment.errors import PlatformUnsupported
    from muniment.portable import NEEDS_LINUX

    raise PlatformUnsupported(NEEDS_LINUX)
