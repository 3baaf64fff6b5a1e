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
from muniment.testing.race import exchange_names
from muniment.testing.snapshots import compare_snapshots, take_snapshot

CANARY = "canary-4c1f9e"
SCOPES = ("user", "project")
NAMES = ("note.md", "topic", "a.md", "deep", "b.md", "folder.md", "link.md", "link")
PATHS = (
    *("user/note.md", "user/topic/note.md", "user/topic", "user/a.md", "user/topic/a.md", "user/link.md"),
    *("user/link", "project/topic/b.md", "project/a.md", "user/link/note.md", "user/MEMORY.md"),
    *("project/topic", "user/topic/deep", "user/folder.md", "project/note.md", "user/folder.md/a.md"),
    *("project/out.md", "project/out/note.md", "project/topic/near.md"),
)
"""Few paths, so that calls, peers and trees meet."""

DECOYS = ("link-dir", "link-file", "link-scope", "link-gone", "hard", "hard-index", "fifo", "dir", "file")
PEER_CONTENT = b"theirs\n"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class PeerAction:
    """An action of a peer: its `kind`, one or two paths, and possibly a decoy."""

    kind: str
    path: str
    other_path: str
    decoy: str


KINDS = (
    *("exchange", "exchange", "exchange", "move", "move", "second", "write", "write", "remove", "mkdir"),
    *("replace-root", "restore-root"),
)
peer_actions = st.builds(PeerAction, *(st.sampled_from(each) for each in (KINDS, PATHS, PATHS, DECOYS)))


class FuzzDirectories:
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
        self.roots = {scope: read_identity(self.base / scope) for scope in SCOPES}
        self._outside = {path.lstat().st_ino for path in self.outside.rglob("*")}
        self._before = take_snapshot({"outside": self.outside})

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
        (self.aside / "file").write_bytes(PEER_CONTENT)

    def _make_ordinary(self, root):
        """Create entries that most trees lack, if their names are free."""
        for name in ("topic", "topic/deep"):
            with contextlib.suppress(OSError):
                (root / name).mkdir(mode=0o700)
        for rel in ("note.md", "topic/note.md"):
            if self.has_real_parents(f"{root.name}/{rel}") and not os.path.lexists(root / rel):
                (root / rel).write_text("text\na text\n")
        if root.name == "project":
            (root / "out").symlink_to(self.outside)
            (root / "out.md").symlink_to(self.outside / "secret.md")
            if self.has_real_parents("project/topic/near.md") and not os.path.lexists(
                root / "topic" / "near.md"
            ):
                (root / "topic" / "near.md").symlink_to("note.md")

    # -- actions of a peer -------------------------------------------------------------------------------

    def act(self, action):
        """Perform an action as far as the tree allows; never through a link."""
        path, other_path, decoy = (
            self.base / action.path,
            self.base / action.other_path,
            self.aside / action.decoy,
        )
        with contextlib.suppress(OSError):
            if action.kind.endswith("-root"):
                self._change_root(action)
            elif self.has_real_parents(action.path) and self.has_real_parents(action.other_path):
                match action.kind:
                    case "exchange" if os.path.lexists(path):
                        exchange_names(str(path), str(decoy))
                    case "exchange":
                        decoy.rename(path)
                    case "move":
                        path.rename(other_path)
                    case "second":
                        os.link(path, other_path, follow_symlinks=False)
                    case "write" if self.read_plain_file(path) is not None or not os.path.lexists(path):
                        path.write_bytes(PEER_CONTENT)
                    case "remove":
                        path.rename(self.aside / f"removed-{len(list(self.aside.iterdir()))}")
                    case "mkdir":
                        path.mkdir(mode=0o700)

    def _change_root(self, action):
        scope = action.path.partition("/")[0]
        root, away = self.base / scope, self.aside / f"root-{scope}"
        if action.kind == "restore-root" and away.exists():
            root.rename(self.aside / f"false-root-{len(list(self.aside.iterdir()))}")
            away.rename(root)
        elif action.kind == "replace-root" and not away.exists():
            root.rename(away)
            if action.decoy.startswith("link"):
                root.symlink_to(self.outside)
            else:
                root.mkdir(mode=0o700)

    # -- the independent check ---------------------------------------------------------------------------

    def has_real_parents(self, logical):
        """Return whether all parents of a path are real directories."""
        path = self.base
        for name in logical.split("/")[:-1]:
            path /= name
            if not (os.path.lexists(path) and stat.S_ISDIR(path.lstat().st_mode)):
                return False
        return True

    def find_root(self, scope):
        """Return the current path of the bound root of a scope."""
        for path in (self.base / scope, *self.aside.iterdir()):
            if os.path.lexists(path) and read_identity(path) == self.roots[scope]:
                return path
        return None

    def read_plain_file(self, path):
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
        path = self.find_root(scope) if scope in SCOPES else None
        for name in rel.split("/") if path else ():
            if not name or not os.path.lexists(path) or not stat.S_ISDIR(path.lstat().st_mode):
                return None
            path /= name
        return self.read_plain_file(path) if path else None

    def inventory(self):
        """Return every name in the roots and aside with its kind; for files also inode, time and bytes."""
        found = {}
        for top in (*SCOPES, "aside"):
            if os.path.lexists(self.base / top):
                found[top] = describe_path(self.base / top, self._outside)
            for where, names, files in os.walk(self.base / top) if found.get(top) == ("directory",) else ():
                for name in (*names, *files):
                    path = Path(where) / name
                    found[str(path.relative_to(self.base))] = describe_path(path, self._outside)
        return found

    def count_contents(self):
        """Count how often each text is in a file of the roots or aside; a file with two names counts once."""
        files = {state[1]: state[3] for state in self.inventory().values() if state[0] == "file"}
        return Counter(files.values())

    def find_files_with(self, texts, *, excluded):
        """Return the files that contain one of some texts, except those aside or under paths that a peer
        changed.
        """
        files = {name: state[3] for name, state in self.inventory().items() if state[0] == "file"}
        found = [name for name, text in files.items() if text in texts]
        return [name for name in found if not name.startswith(("aside/", *excluded))]

    def find_outside_changes(self):
        """Return what changed or was read outside. Indexes may have replaced a hard link."""
        after = take_snapshot({"outside": self.outside})
        before, self._before = self._before, after
        return [
            line
            for line in compare_snapshots(before, after)
            if not line.endswith("secret.md' changed: links")
        ]

    def resolve(self, logical):
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
        slash = "/" if _requires_directory(Path(root, rel)) and not Path(real).is_dir() else ""
        return f"{scope}/{os.path.relpath(real, root)}{slash}"

    def remember_links(self):
        """Copy the directories and links of the bound roots, without files."""
        self.shadow = self.base / "shadow"
        shutil.rmtree(self.shadow, ignore_errors=True)
        for scope in SCOPES:
            root = self.find_root(scope)
            (self.shadow / scope).mkdir(parents=True)
            for where, names, files in os.walk(root or ""):
                for name in (*names, *files):
                    path = Path(where) / name
                    copy = self.shadow / scope / path.relative_to(root)
                    if path.is_symlink():
                        copy.symlink_to(os.readlink(path))  # noqa: PTH115  as below
                    elif path.is_dir():
                        copy.mkdir()


def _requires_directory(path):
    """Return whether a link target ends with a slash, so that it requires a directory; `realpath` drops the
    slash.
    """
    while path.is_symlink():
        target = os.readlink(path)  # noqa: PTH115  `Path.readlink` drops that slash
        if target.endswith("/"):
            return True
        path = path.parent / target
    return False


def read_identity(path):
    found = path.lstat()
    return found.st_dev, found.st_ino


def describe_path(path, unread_inodes):
    """Describe a name; do not read files whose inode is in `unread_inodes`."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return "link", os.fspath(path.readlink())
    if stat.S_ISDIR(found.st_mode):
        return ("directory",)
    if stat.S_ISREG(found.st_mode):
        content = b"" if found.st_ino in unread_inodes else path.read_bytes()
        return "file", found.st_ino, found.st_mtime_ns, content
    return "special", found.st_ino
