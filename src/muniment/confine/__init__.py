"""The only code that opens memory files: roots, and the worker's process.

Start with `root` (what a handle promises), then `openat2` and `walk` (the two ways to keep it),
`binding` (where a handle comes from) and `writing` (the broker's side; never in a worker). Processes: `pool`
(where workers come from), `worker` (one of them, as the broker sees it), `zygote` (the other end).

Elsewhere than on Linux importing any of it is `PlatformUnsupported`: its parts name what other systems lack.
"""

import sys

from muniment.errors import PlatformUnsupported

if sys.platform != "linux":
    raise PlatformUnsupported(f"Muniment runs on Linux only so far, not on {sys.platform}")
