"""Systems that are not Linux: what stands in there for its system calls, and what a person there is told.

Nothing of this is loaded on Linux but this file. Elsewhere `kernel` has its calls from `calls`, which on
Windows are made of paths (`windows`); the rules above them are the same code, so a link, a mount or a name
that leads elsewhere is refused alike. Standard library only.

Does not hold, on either:

- A path is walked a component at a time. Who may write in a root can move a directory between two steps, and
  a bind mount or volume of the same device is not seen.
- There is no worker and no fence (`muniment.sandbox.fence`): whoever writes does so unfenced, and only
  under a policy that says `require = "none"`.
- A file is replaced by a look and a plain rename (`Landing.PLAIN_RENAME`).

None of it was run on macOS or Windows: tests/surface/library/test_elsewhere.py fakes both, docs/platforms.md
says how.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

IS_LINUX: Final = str(sys.platform) == "linux"  # `str`: for the type checker there is Linux alone.
IS_WINDOWS: Final = str(sys.platform) == "win32"

SYSTEM: Final = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)

NEEDS_LINUX: Final = (
    f"on {SYSTEM} nothing fences what an agent does, so Muniment reads here but does not write: "
    'send facts to a daemon on Linux, or use a policy with require = "none" (docs/platforms.md)'
)
"""What who writes is told, on one line."""


def is_in_own_folder(path: str | os.PathLike[str]) -> bool:
    r"""Whether a path leads, links resolved, into the folder of this user, such as `C:\Users\me`.

    Where a system has neither owners nor modes that can be asked, this is what is asked instead: Windows lets
    nobody else but administrators into it unless the user says so. It says nothing of a file inside that
    somebody was given rights to.
    """
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(Path.home()))
