"""A catalog that several processes keep, and a memory that somebody mounts something in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import muniment
from kit.store.catalogued import catalogued
from kit.where import TESTS

PATH = [str(Path(muniment.__file__).parents[1]), str(TESTS)]

REFRESHES = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from muniment.confine.binding import bind
from muniment.names import Trust
from muniment.store.catalog import refresh
from muniment.store.rows import Assessed
from muniment.store.state import open_catalog
from kit.store.catalogued import KEY
catalog, root = open_catalog(Path({catalog!r})), bind("user", {top!r})
print("ready", flush=True)
for number in range(25):
    refresh(catalog, KEY, root, lambda *_: Assessed(Trust.OWNER), basis="first", sweep=number % 5 == 0)
"""


def test_processes_that_share_a_catalog_end_with_what_is_there(tmp_path):
    with catalogued(tmp_path) as root:
        root.put("t0/0.md")
        root.refresh()
        source = REFRESHES.format(path=PATH, catalog=str(root.catalog.path), top=str(root.top))
        command = [sys.executable, "-c", source]
        others = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        assert [other.stdout.readline() for other in others] == [b"ready\n"] * 2
        for number in range(80):
            root.put(f"t{number % 4}/{number % 10}.md", f"# {number}\n")
            if number % 9 == 0:
                (root.top / f"t{number % 4}").rename(root.top / f"moved{number}")
            if number % 5 == 0:
                root.refresh()
        for other in others:
            _, errors = other.communicate(timeout=50)
            assert (other.returncode, errors) == (0, b"")
        assert root.differences(root.refresh()) == {}


MOUNTS = """
import json, subprocess, sys
from pathlib import Path
sys.path[:0] = {path!r}
from kit.store.catalogued import catalogued, much_later

def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)

base = Path({base!r})
mount("-t", "tmpfs", "none", str(base))
told = []
with catalogued(base) as root:
    root.clock = much_later
    for rel in ("a.md", "one/b.md", "two/c.md"):
        root.put(rel)
    (base / "outside.md").write_text("canary")

    def tell(**options):
        view = root.refresh(**options)
        odd = {{item.path: item.reason for item in view.odd()}}
        told.append([[entry.rel for entry in view.entries()], odd, view.complete])

    tell()
    mount("-t", "tmpfs", "none", str(root.top / "one"))
    (root.top / "one/other.md").write_text("canary")
    tell()
    mount("--bind", str(base / "outside.md"), str(root.top / "two/c.md"))
    tell(sweep=True)
    subprocess.run(["umount", str(root.top / "one")], check=True)
    subprocess.run(["umount", str(root.top / "two/c.md")], check=True)
    tell(sweep=True)
    told.append("canary" in root.everything_stored())
print(json.dumps(told))
"""


def test_what_is_mounted_in_a_memory_is_no_part_of_it(tmp_path):
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare(1) to make a private namespace with")
    private = [unshare, "--user", "--map-root-user", "--mount", "--propagation", "private"]
    probe = subprocess.run(
        [*private, "mount", "-t", "tmpfs", "none", tmp_path], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip(f"this system gives no private mount namespace: {probe.stderr.strip()}")
    source = MOUNTS.format(path=PATH, base=str(tmp_path))
    done = subprocess.run(
        [*private, sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    outside = "leads outside the memory (mount)"
    assert json.loads(done.stdout) == [
        [["a.md", "one/b.md", "two/c.md"], {}, True],
        [["a.md", "two/c.md"], {"one": outside}, True],
        [["a.md"], {"one": outside, "two/c.md": outside}, True],
        [["a.md", "one/b.md", "two/c.md"], {}, True],
        False,
    ]
