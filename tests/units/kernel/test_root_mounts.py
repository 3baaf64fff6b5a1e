"""Mounts under a root, created in a user and mount namespace of a child process, on tmpfs only."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import muniment
from threats.switches import source_for_children

CHILD = """
import json, os, subprocess, sys
from pathlib import Path
from muniment.kernel.syscalls import Openat2Resolver
from muniment.kernel.root import Root, WalkResolver
from muniment.errors import PathEscape
from muniment.kernel.path import CanonicalPath

base = Path(sys.argv[1])
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)

mount("-t", "tmpfs", "none", str(base))
for name in ("inside/other-device", "inside/same-device", "elsewhere"):
    (base / name).mkdir(parents=True)
(base / "inside/other-file.md").touch()
(base / "elsewhere/note.md").write_text("canary")
mount("-t", "tmpfs", "none", str(base / "inside/other-device"))
(base / "inside/other-device/note.md").write_text("canary")
mount("--bind", str(base / "inside/other-device/note.md"), str(base / "inside/other-file.md"))
mount("--bind", str(base / "elsewhere"), str(base / "inside/same-device"))

fd = os.open(base / "inside", os.O_PATH | os.O_DIRECTORY)
found = {}
for resolver in (Openat2Resolver(), WalkResolver()):
    root = Root("user", fd, resolver)
    operations = [(root.read_bytes, "other-file.md")]
    for folder in ("other-device", "same-device"):
        operations += [(act, folder) for act in (root.examine, root.list_directory)]
        operations.append((root.read_bytes, f"{folder}/note.md"))
    for act, rel in operations:
        try:
            result = act(CanonicalPath(root.scope, rel)) and "opened"
        except PathEscape as error:
            result = error.via
        found[f"{resolver.name} {act.__name__} {rel}"] = result
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def mount_results(tmp_path_factory):
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare(1) is not installed, so no private namespace can be created")
    private = [unshare, "--user", "--map-root-user", "--mount", "--propagation", "private"]
    base = tmp_path_factory.mktemp("mounts")
    options = {"capture_output": True, "text": True}
    probe = subprocess.run([*private, "mount", "-t", "tmpfs", "none", base], **options, check=False)
    if probe.returncode != 0:
        pytest.skip(f"this system gives no private mount namespace: {probe.stderr.strip()}")
    path = f"import sys; sys.path.insert(0, {str(Path(muniment.__file__).parents[1])!r})\n"
    source = path + source_for_children() + CHILD
    done = subprocess.run([*private, sys.executable, "-c", source, base], **options, check=True)
    assert list(base.iterdir()) == []
    return json.loads(done.stdout)


@pytest.mark.threat("T-PATH-12", control="walk_device")
@pytest.mark.threat("T-PATH-12", control="openat2_no_xdev")
def test_mounts_under_root_are_escapes_except_bind_for_walk(mount_results):
    assert len(mount_results) == 14
    for request, result in mount_results.items():
        # The documented limit of the walk.
        assert result == ("opened" if "walk" in request and "same-device" in request else "mount"), request
