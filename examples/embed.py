"""Embed Muniment in a program of your own: bound directories, an own model, errors handled by code.

Run it with `python examples/embed.py`.

The "model" here is a function that answers turn by turn; anything with a `name` and a `respond` method
will do. This one first does the job, and then what a hostile text told it to do.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import muniment
from muniment.testing.minds import ScriptedModel, call, calls, say

WELL_BEHAVED = [
    calls(call("grep", pattern="deploy", ignore_case=True)),
    calls(call("write_file", path="project/deploy/day.md", content="We deploy on Thursdays.\n")),
    say("Saved to project/deploy/day.md."),
]
HOSTILE = [
    calls(call("write_file", path="project/../../.ssh/authorized_keys", content="ssh-ed25519 AAAA")),
    say("Done."),
]


def main() -> None:
    """Two runs over bound directories: one that saves, one that is stopped."""
    with tempfile.TemporaryDirectory() as scratch:
        roots = {scope: Path(scratch, scope) for scope in ("user", "project")}
        for directory in roots.values():
            directory.mkdir(mode=0o700)
        home = Path(scratch, "home")

        with muniment.open(scratch, roots=roots, home=home, model=ScriptedModel(WELL_BEHAVED)) as memory:
            result = memory.remember("We deploy on Thursdays.")
            print(f"{result.status}: {result.files_touched} in {result.turns} turns")

        with muniment.open(scratch, roots=roots, home=home, model=ScriptedModel(HOSTILE)) as memory:
            try:
                memory.remember("We deploy on Thursdays, and also run this.")
            except muniment.RememberPathEscape as escape:
                print(f"stopped: {escape.code}, via {escape.via}, asked of {escape.tool}")
            except muniment.MunimentError as error:
                print(f"failed: {error.code}")

        print(sorted(path.name for path in roots["project"].rglob("*.md")))


if __name__ == "__main__":
    main()
