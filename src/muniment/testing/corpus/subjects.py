"""Muniment as a subject of the corpus: `Sandbox`, with a worker and without, and the command line.

The only module here that knows Muniment. For another tool, write one like it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from muniment.errors import MunimentError
from muniment.sandbox import Sandbox
from muniment.testing.corpus.case import Case
from muniment.testing.corpus.json_lines import JsonLinesSubject
from muniment.testing.corpus.stage import ROOTS, Stage
from muniment.testing.corpus.subject import Answer, Committed, Subject

Mode = Literal["worker", "in-process", "tool"]
"""`Sandbox` with a worker, `Sandbox` without one, `muniment tool --commit` as a process of its own."""

_POLICY: Final = """
schema = "muniment-policy/1"
name = "corpus"

[scopes]
user = {{ trust = "owner" }}
project = {{ trust = "workspace" }}

[[allow]]
id = "see"
verbs = ["list", "read"]
paths = ["/user/**/*.md", "/project/**/*.md"]

[[allow]]
id = "write"
verbs = ["create", "modify"]
paths = {writable}
{hidden}
[[deny]]
id = "index"
verbs = ["create", "modify", "delete"]
paths = ["MEMORY.md"]

[confinement]
require = "{require}"
on_escape = "{on_escape}"

[limits]
{limits}

[[quota]]
id = "all"
paths = ["/**"]
{quota}

[content]
reject = []
"""

_HIDDEN: Final = """
[[deny]]
id = "hidden"
verbs = ["*"]
paths = [".*"]
"""

_LIMITS: Final = {
    "tool_calls": 1_000_000,
    "read_bytes": 1 << 32,
    "scan_bytes": 1 << 32,
    "write_bytes": 1 << 32,
    "files_written": 100_000,
}
_QUOTA: Final = {"max_file_bytes": 1 << 32, "max_files": 1_000_000, "max_total_bytes": 1 << 32}


def write_policy(stage: Stage, case: Case, *, require: str, on_escape: str = "refuse") -> Path:
    """The policy of the corpus, with the variant that the case asks for, as a file of its stage."""
    variant = case.get("policy", {})
    writable = [f"/{scope}/**/*.md" for scope in ROOTS if scope not in variant.get("readonly", ())]
    stage.policy.write_text(
        _POLICY.format(
            writable=json.dumps(writable),
            hidden="" if variant.get("dotfiles") == "allow" else _HIDDEN,
            require=require,
            on_escape=on_escape,
            limits=_settings(_LIMITS | variant.get("limits", {})),
            quota=_settings(_QUOTA | variant.get("quota", {})),
        )
    )
    return stage.policy


class SandboxSubject:
    """A `Sandbox` over the roots of a stage."""

    commits_often = True

    def __init__(self, stage: Stage, case: Case, *, in_process: bool, on_escape: str = "refuse") -> None:
        policy = write_policy(stage, case, require="none" if in_process else "partial", on_escape=on_escape)
        roots = {scope: stage.scope(scope) for scope in ROOTS}
        self._log = stage.log
        self.box = Sandbox(
            str(policy), roots, symlinks=symlinks(case), state=stage.state, in_process=in_process
        )
        self.call("ls", {"path": ""})  # Whoever answers this holds its roots: the worker runs.

    def call(self, tool: str, arguments: Any) -> Answer:
        """Make one call."""
        outcome = self.box.call(tool, arguments)
        return Answer(outcome.verdict, outcome.code, outcome.text, outcome)

    def commit(self) -> Committed:
        """Fetch the change-set and commit it."""
        said: list[object] = []
        try:
            said.append(self.box.changes())
            said.append(self.box.commit())
        except MunimentError as error:
            return Committed(error.code, (*said, error))
        return Committed(None, said)

    def close(self) -> str:
        """End the worker; what this process wrote on its standard streams."""
        self.box.close()
        sys.stdout.flush()
        sys.stderr.flush()
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class ToolSubject(JsonLinesSubject):
    """`muniment tool --commit` as a process of its own. Its commit is the end of its input."""

    def __init__(self, stage: Stage, case: Case) -> None:
        policy = write_policy(stage, case, require="partial")
        roots = [f"--root={scope}={stage.scope(scope)}" for scope in ROOTS]
        program = str(Path(sys.executable).with_name("muniment"))
        flags = [f"--policy={policy}", "--symlinks", symlinks(case), f"--state={stage.state}", "--commit"]
        super().__init__(stage, [program, "tool", *roots, *flags])


def open_subject(mode: str, stage: Stage, case: Case) -> Subject:
    """The subject of a `Mode` over a stage."""
    if mode == "tool":
        return ToolSubject(stage, case)
    return SandboxSubject(stage, case, in_process=mode == "in-process")


def symlinks(case: Case) -> str:
    """What `--symlinks` has to be for a case."""
    return "beneath" if case.get("policy", {}).get("symlinks") == "follow" else "refuse"


def _settings(values: Mapping[str, int]) -> str:
    return "\n".join(f"{name} = {value}" for name, value in values.items())
