"""The trusted core of Muniment: it opens, judges and writes every memory file.

It opens nothing outside the roots. It writes only judged changes: all changes of a set, or none.

It uses only the standard library. `threat-model/REVIEW.md` lists the reading order and the promises of each
file.

On systems other than Linux, `portable.calls` replaces `syscalls`. The promises are weaker there, as
`portable.calls` describes.
"""

import sys

if sys.platform != "linux":
    from muniment.portable.calls import replace_syscalls

    replace_syscalls()
