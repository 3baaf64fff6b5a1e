"""Support for macOS and Windows: replacements for system calls of Linux, and the message for users there.

Linux loads only this file of the package. On other systems, `kernel` gets its system calls from `calls`,
which uses `windows` on Windows. The checks of the kernel itself are the same code everywhere, so a link, a
mount or a redirected name is rejected in the same way. Standard library only.

Not guaranteed on macOS and Windows:

- A path is opened one component at a time. A process that may write in a root can move a directory between
  two steps.
  A bind mount or volume of the same device is not detected.
- The worker and the fence (`muniment.sandbox.fence`) do not exist. So every writer is unconfined, and may
  write only
  under a policy with `require = "none"`.
- A file is replaced by a check and a plain rename (`ReplaceMethod.PLAIN_RENAME`).

This code was not run on macOS or Windows: tests/surface/library/test_elsewhere.py simulates both, as
described in docs/platforms.md.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

IS_LINUX: Final = str(sys.platform) == "linux"  # `str`: the type checker would accept only Linux.
IS_WINDOWS: Final = str(sys.platform) == "win32"

SYSTEM: Final = {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)

NEEDS_LINUX: Final = (
    f"on {SYSTEM} Muniment cannot confine an agent, so it only reads memory here and does not write it: "
    'send facts to a daemon on Linux, or use a policy with require = "none" (docs/platforms.md)'
)
"""The message for code that wants to write on a system other than Linux, on one line."""


def is_in_own_folder(path: str | os.PathLike[str]) -> bool:
    r"""Return whether a path is in the folder of this user, such as `C:\Users\me`, after links are resolved.

    Windows has no readable owners and modes, so this check replaces them: only the user and administrators
    may access that folder, unless the user grants more rights. The check does not detect rights that were
    granted on a single file.
    """
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(Path.home()))
