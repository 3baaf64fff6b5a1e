"""Embed Muniment in your program: bound directories, your model, errors handled by code.

Run this program with `python examples/embed.py`.

The two "models" in this program are scripts that respond turn by turn. Any object with a `name` and a
`respond` method can be a model. The first model stores the fact, the second one follows the instructions of a
hostile text.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import muniment
from muniment.testing.scripted_models import ScriptedModel, make_call, reply_with_calls, reply_with_text

WELL_BEHAVED = [
    reply_with_calls(make_call("grep", pattern="deploy", ignore_case=True)),
    reply_with_calls(
        make_call("write_file", path="project/deploy/day.md", content="We deploy on Thursdays.\n")
    ),
    reply_with_text("Saved to project/deploy/day.md."),
]
HOSTILE = [
    reply_with_calls(
        make_call("write_file", path="project/../../.ssh/authorized_keys", content="ssh-ed25519 AAAA")
    ),
    reply_with_text("Done."),
]


def main() -> None:
    """Remember two facts in given directories: the first is stored, the second task is stopped."""
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
                print(f"stopped: {escape.code}, via {escape.via}, in {escape.tool}")
            except muniment.MunimentError as error:
                print(f"failed: {error.code}")

        print(sorted(path.name for path in roots["project"].rglob("*.md")))


if __name__ == "__main__":
    main()
