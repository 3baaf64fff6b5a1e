"""The broker's writes, without what is checked before and around them."""

from __future__ import annotations

import os

from threats.switches import Patches, control


class _Os:
    """`os`, with some calls made otherwise."""

    def __init__(self, real, **calls):
        self._real, self._calls = real, calls

    def __getattr__(self, name):
        return self._calls.get(name) or getattr(self._real, name)


@control()
def exclusive_staging(off: Patches) -> None:
    """A temporary file is opened whatever has its name, through links, too."""

    def opened(path, flags, *more, **terms):
        return os.open(path, flags & ~(os.O_EXCL | os.O_NOFOLLOW), *more, **terms)

    off.wrap("muniment.confine.writing:os", lambda real: _Os(real, open=opened))


@control()
def random_names(off: Patches) -> None:
    """Temporary files have a name that can be known beforehand."""
    off.everywhere("muniment.confine.writing:temporary_name", lambda _random: f".muniment-{'0' * 16}.tmp")


@control()
def new_inode(off: Patches) -> None:
    """A file is replaced by writing into it."""

    def replace(self, staged, name, claimed):
        from muniment.confine.writing import Landing, leaf

        self._require(name, claimed, name)
        fd = os.open(leaf(name), os.O_WRONLY | os.O_TRUNC, dir_fd=self.fd)
        try:
            os.write(fd, self.read(staged.temporary))
        finally:
            os.close(fd)
        self._unlink(staged.temporary)
        return Landing.ATOMIC

    off.put("muniment.confine.writing:Directory.replace", replace)


@control()
def replaced_links(off: Patches) -> None:
    """A generated file is written through the link that stands in its place."""

    def replace_link(self, staged, name):
        fd = os.open(name, os.O_WRONLY | os.O_TRUNC, dir_fd=self.fd)
        try:
            os.write(fd, self.read(staged.temporary))
        finally:
            os.close(fd)
        self._unlink(staged.temporary)

    off.put("muniment.confine.writing:Directory.replace_link", replace_link)


@control()
def claimed_file(off: Patches) -> None:
    """What stands at a name is replaced or removed unseen."""
    off.put("muniment.confine.writing:Directory._require", lambda *_: None)


@control()
def single_component(off: Patches) -> None:
    """A name in a directory may be a path."""
    off.everywhere("muniment.confine.writing:leaf", os.fsencode)


@control()
def private_modes(off: Patches) -> None:
    """Files and directories are made as the umask lets."""
    off.put("muniment.confine.writing:_FILE_MODE", 0o666)
    off.put("muniment.confine.writing:_MODE", 0o777)
    off.put("muniment.confine.binding:_PRIVATE", 0o777)


@control()
def judged_paths(off: Patches) -> None:
    """The judge takes the paths of a change-set as they come."""
    off.everywhere("muniment.store.judge:check_paths", lambda *_: None)


@control()
def judged_budgets(off: Patches) -> None:
    """The judge does not count what a change-set holds."""
    off.put("muniment.store.commit:check_budgets", lambda *_: None)


@control()
def judged_claims(off: Patches) -> None:
    """The broker believes what a run says that it read."""
    off.put("muniment.store.commit:settle", lambda parts, *_: (tuple(range(len(parts))), ()))


@control()
def judged_changes(off: Patches) -> None:
    """The broker believes that a change-set is what its policy grants."""
    off.put("muniment.store.commit:judge", lambda *_: None)


@control()
def locked_roots(off: Patches) -> None:
    """Nobody waits for another commit."""
    from contextlib import nullcontext

    off.put("muniment.confine.writing:_lock", lambda *_: nullcontext())


@control()
def taken_back(off: Patches) -> None:
    """What was written before a failure stays."""
    off.put("muniment.store.apply:_take_back", lambda *_: None)
