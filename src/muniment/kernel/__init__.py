"""What must be right: nothing outside the roots is opened, nothing unjudged lands, all of it or none.

Standard library only. `threat-model/REVIEW.md` says in which order to read it, and what each file promises.

Elsewhere than on Linux `portable.calls` stands in for `syscalls`, and what is promised is less: see there.
"""

import sys

if sys.platform != "linux":
    from muniment.portable.calls import stand_in

    stand_in()
