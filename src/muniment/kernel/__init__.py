"""The trusted core: it opens nothing outside the roots, and writes judged changes only, all of them or none.

Standard library only. `threat-model/REVIEW.md` lists the reading order and the promises of each file.

On systems other than Linux, `portable.calls` replaces `syscalls`, and the promises are weaker: see there.
"""

import sys

if sys.platform != "linux":
    from muniment.portable.calls import replace_syscalls

    replace_syscalls()
