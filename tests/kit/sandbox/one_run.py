"""One complete run of a sandbox as the current user; prints its confinement and effects as JSON.

Run it as a program with an empty directory.
"""

import json
import os
import sys
from pathlib import Path

from muniment.sandbox.sandbox import Sandbox

CANARY = "canary-4d1e"
STATUS = ("Uid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")


def main(base):
    root, outside = base / "user", base / "outside"
    for directory in (root, outside):
        directory.mkdir(mode=0o700)
    (outside / "secret.md").write_text(CANARY)
    (root / "known.md").write_text("One line.\n")
    (root / "link.md").symlink_to(outside / "secret.md")
    with Sandbox("strict", {"user": root}) as box:
        answers = [
            box.call("ls", {"path": "user"}),
            *(box.call("read_file", {"path": path}) for path in ("user/known.md", "user/link.md")),
            box.call("grep", {"pattern": "canary|One"}),
            box.call("edit", {"path": "user/known.md", "old_string": "One", "new_string": "Another"}),
            box.call("write_file", {"path": "user/topic/new.md", "content": "New.\n"}),
        ]
        worker = box._worker.pid
        report = {"euid": os.geteuid(), "enforcement": box.enforcement}
        report |= {"missing": box.held.missing, "status": status_of(worker), "memory": open_memory(worker)}
        report |= {"codes": [each.code for each in answers], "texts": [each.text for each in answers]}
        report["committed"] = [change.path for change in box.commit().changes]
    report["files"] = {
        str(path.relative_to(root)): [path.stat().st_uid == os.geteuid(), oct(path.stat().st_mode & 0o777)]
        for path in sorted(root.rglob("*.md"))
        if not path.is_symlink()
    }
    report["known"] = (root / "known.md").read_text()
    sys.stdout.write(json.dumps(report))


def status_of(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {name: fields[name] for name in STATUS}


def open_memory(pid):
    """Try to open the memory of another process; return the error or "opened"."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except OSError as error:
        return type(error).__name__
    return "opened"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
