"""The directories of one example of the state machine, the actions of a peer process, and an independent
check.

    BASE/user, BASE/project    the scope roots
    BASE/outside               all content and names contain the canary; must not be read or changed
    BASE/aside                 decoys, and files that a peer moved out of the roots

It shares no code with the subject: paths are walked by `lstat`, one name after the other.
"""

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from kit.strategies.trees import plant
from muniment.testing.race import exchange
from muniment.testing.witness import differences, photograph

CANARY = "canary-4c1f9e"
SCOPES = ("user", "project")
NAMES = ("note.md", "topic", "a.md", "deep", "b.md", "folder.md", "link.md", "link")
PLACES = (
    *("user/note.md", "user/topic/note.md", "user/topic", "user/a.md", "user/topic/a.md", "user/link.md"),
    *("user/link", "project/topic/b.md", "project/a.md", "user/link/note.md", "user/MEMORY.md"),
    *("project/topic", "user/topic/deep", "user/folder.md", "project/note.md", "user/folder.md/a.md"),
    *("project/out.md", "project/out/note.md", "project/topic/near.md"),
)
"""Few paths, so that calls, peers and trees meet."""

DECOYS = ("link-dir", "link-file", "link-scope", "link-gone", "hard", "hard-index", "fifo", "dir", "file")
THEIRS = b"theirs\n"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Deed:
    """An action of a peer: its `kind`, one or two paths, and possibly a decoy."""

    kind: str
    place: str
    other: str
    decoy: str


KINDS = (
    *("exchange", "exchange", "exchange", "move", "move", "second", "write", "write", "remove", "mkdir"),
    *("replace-root", "restore-root"),
)
deeds = st.builds(Deed, *(st.sampled_from(each) for each in (KINDS, PLACES, PLACES, DECOYS)))


class Ground:
    """Directories with `tree` in both scopes, and a snapshot of the outside."""

    def __init__(self, tree):
        self.base = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self.outside, self.aside = self.base / "outside", self.base / "aside"
        for directory in (self.outside, self.outside / "topic", self.outside / f"{CANARY}-dir", self.aside):
            directory.mkdir(mode=0o700)
        for name in ("secret.md", "note.md", "a.md", "topic/note.md", f"{CANARY}.md", f"{CANARY}-dir/a.md"):
            (self.outside / name).write_text(f"{CANARY} {name}\n")
        self._make_decoys()
        for scope in SCOPES:
            plant(tree, self.base / scope, outside=self.outside)
            (self.base / scope).chmod(0o700)
            self._make_ordinary(self.base / scope)
        self.roots = {scope: identity(self.base / scope) for scope in SCOPES}
        self._outside = {path.lstat().st_ino for path in self.outside.rglob("*")}
        self._before = photograph({"outside": self.outside})

    def close(self):
        shutil.rmtree(self.base)

    def _make_decoys(self):
        (self.aside / "link-dir").symlink_to(self.outside)
        (self.aside / "link-file").symlink_to(self.outside / "secret.md")
        (self.aside / "link-scope").symlink_to("../project")
        (self.aside / "link-gone").symlink_to(self.outside / "new.md")
        for name in ("hard", "hard-index"):
            (self.aside / name).hardlink_to(self.outside / "secret.md")
        os.mkfifo(self.aside / "fifo", 0o600)
        (self.aside / "dir").mkdir(mode=0o700)
        (self.aside / "file").write_bytes(THEIRS)

    def _make_ordinary(self, root):
        """Create entries that most trees lack, if their names are free."""
        for name in ("topic", "topic/deep"):
            with contextlib.suppress(OSError):
                (root / name).mkdir(mode=0o700)
        for place in ("note.md", "topic/note.md"):
            if self.is_reached(f"{root.name}/{place}") and not os.path.lexists(root / place):
                (root / place).write_text("text\na text\n")
        if root.name == "project":
            (root / "out").symlink_to(self.outside)
            (root / "out.md").symlink_to(self.outside / "secret.md")
            if self.is_reached("project/topic/near.md") and not os.path.lexists(root / "topic" / "near.md"):
                (root / "topic" / "near.md").symlink_to("note.md")

    # -- actions of a peer -------------------------------------------------------------------------------

    def do(self, deed):
        """Perform an action as far as the tree allows; never through a link."""
        place, other, decoy = self.base / deed.place, self.base / deed.other, self.aside / deed.decoy
        with contextlib.suppress(OSError):
            if deed.kind.endswith("-root"):
                self._change_root(deed)
            elif self.is_reached(deed.place) and self.is_reached(deed.other):
                match deed.kind:
                    case "exchange" if os.path.lexists(place):
                        exchange(str(place), str(decoy))
                    case "exchange":
                        decoy.rename(place)
                    case "move":
                        place.rename(other)
                    case "second":
                        os.link(place, other, follow_symlinks=False)
                    case "write" if self.plain_file(place) is not None or not os.path.lexists(place):
                        place.write_bytes(THEIRS)
                    case "remove":
                        place.rename(self.aside / f"removed-{len(list(self.aside.iterdir()))}")
                    case "mkdir":
                        place.mkdir(mode=0o700)

    def _change_root(self, deed):
        scope = deed.place.partition("/")[0]
        root, away = self.base / scope, self.aside / f"root-{scope}"
        if deed.kind == "restore-root" and away.exists():
            root.rename(self.aside / f"false-root-{len(list(self.aside.iterdir()))}")
            away.rename(root)
        elif deed.kind == "replace-root" and not away.exists():
            root.rename(away)
            if deed.decoy.startswith("link"):
                root.symlink_to(self.outside)
            else:
                root.mkdir(mode=0o700)

    # -- the independent check ---------------------------------------------------------------------------

    def is_reached(self, place):
        """Return whether all parents of a path are real directories."""
        path = self.base
        for name in place.split("/")[:-1]:
            path /= name
            if not (os.path.lexists(path) and stat.S_ISDIR(path.lstat().st_mode)):
                return False
        return True

    def root(self, scope):
        """Return the current path of the bound root of a scope."""
        for path in (self.base / scope, *self.aside.iterdir()):
            if os.path.lexists(path) and identity(path) == self.roots[scope]:
                return path
        return None

    def plain_file(self, path):
        """Return the bytes of a regular file with one name, or None for anything else."""
        try:
            found = path.lstat()
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_size > MAX_BYTES:
            return None
        return path.read_bytes()

    def read(self, logical):
        """Return the bytes at `scope/rel` if it is a regular file under directories of the bound root."""
        scope, _, rel = logical.partition("/")
        path = self.root(scope) if scope in SCOPES else None
        for name in rel.split("/") if path else ():
            if not name or not os.path.lexists(path) or not stat.S_ISDIR(path.lstat().st_mode):
                return None
            path /= name
        return self.plain_file(path) if path else None

    def inventory(self):
        """Return every name in the roots and aside with its kind; for files also inode, time and bytes."""
        found = {}
        for top in (*SCOPES, "aside"):
            if os.path.lexists(self.base / top):
                found[top] = seen(self.base / top, self._outside)
            for where, names, files in os.walk(self.base / top) if found.get(top) == ("directory",) else ():
                for name in (*names, *files):
                    path = Path(where) / name
                    found[str(path.relative_to(self.base))] = seen(path, self._outside)
        return found

    def contents(self):
        """Count how often each text is in a file of the roots or aside; a file with two names counts once."""
        files = {state[1]: state[3] for state in self.inventory().values() if state[0] == "file"}
        return Counter(files.values())

    def places_of(self, texts, *, apart_from):
        """Return the files that contain one of some texts, except those aside or under paths that a peer
        changed.
        """
        files = {name: state[3] for name, state in self.inventory().items() if state[0] == "file"}
        found = [name for name, text in files.items() if text in texts]
        return [name for name in found if not name.startswith(("aside/", *apart_from))]

    def trespasses(self):
        """Return what changed or was read outside. Indexes may have replaced a hard link."""
        after = photograph({"outside": self.outside})
        before, self._before = self._before, after
        return [line for line in differences(before, after) if not line.endswith("secret.md' changed: links")]

    def resolved(self, logical):
        """Return the canonical target of `scope/rel` when `remember_links` was called; None: outside or a
        loop.
        """
        scope, _, rel = logical.partition("/")
        root = os.path.realpath(self.shadow / scope)
        try:
            Path(root, rel).stat()
        except OSError as error:
            if error.errno == errno.ELOOP:  # `realpath` resolves loops to something.
                return None
        real = os.path.realpath(f"{root}/{rel}")
        if real == root:
            return scope
        if not real.startswith(f"{root}/"):
            return None
        slash = "/" if _leads_to_folders(Path(root, rel)) and not Path(real).is_dir() else ""
        return f"{scope}/{os.path.relpath(real, root)}{slash}"

    def remember_links(self):
        """Copy the directories and links of the bound roots, without files."""
        self.shadow = self.base / "shadow"
        shutil.rmtree(self.shadow, ignore_errors=True)
        for scope in SCOPES:
            root = self.root(scope)
            (self.shadow / scope).mkdir(parents=True)
            for where, names, files in os.walk(root or ""):
                for name in (*names, *files):
                    path = Path(where) / name
                    copy = self.shadow / scope / path.relative_to(root)
                    if path.is_symlink():
                        copy.symlink_to(os.readlink(path))  # noqa: PTH115  as below
                    elif path.is_dir():
                        copy.mkdir()


def _leads_to_folders(path):
    """Return whether a link target ends with a slash, so that it requires a directory; `realpath` drops the
    slash.
    """
    while path.is_symlink():
        target = os.readlink(path)  # noqa: PTH115  `Path.readlink` drops that slash
        if target.endswith("/"):
            return True
        path = path.parent / target
    return False


def identity(path):
    found = path.lstat()
    return found.st_dev, found.st_ino


def seen(path, without):
    """Describe a name; do not read files whose inode is in `without`."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return "link", os.fspath(path.readlink())
    if stat.S_ISDIR(found.st_mode):
        return ("directory",)
    if stat.S_ISREG(found.st_mode):
        content = b"" if found.st_ino in without else path.read_bytes()
        return "file", found.st_ino, found.st_mtime_ns, content
    return "special", found.st_ino
