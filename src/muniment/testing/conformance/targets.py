"""What the kit can be pointed at, and how each is named.

    muniment           a `Sandbox` with a worker
    anthropic          the local memory tool of the `anthropic` SDK, if that is installed
    mcp=COMMAND        a filesystem server of the Model Context Protocol over stdio
    command=COMMAND    any program that speaks the JSON lines of `muniment tool`

In a COMMAND `{user}`, `{project}` and `{state}` stand for directories of the case. For programs that read our
policies `{policy}` stands for a file with the one that it asks for, `{symlinks}` for `refuse` or `beneath`.
A command is split as a shell would, and started without one, in a throwaway directory: a word that names a
file here and now is made absolute.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from muniment.testing.conformance import claims
from muniment.testing.conformance.anthropic_memory import AnthropicSubject
from muniment.testing.conformance.claims import Claims
from muniment.testing.conformance.mcp import NAMES, McpSubject
from muniment.testing.conformance.outcome import Promises
from muniment.testing.corpus import Case, Stage, Subject
from muniment.testing.corpus.json_lines import JsonLinesSubject
from muniment.testing.corpus.stage import ROOTS
from muniment.testing.corpus.subjects import SandboxSubject, symlinks, write_policy

Sort = Literal["muniment", "anthropic", "mcp", "command"]

NAMELESS: Final = frozenset({"outside_changes", "dotfiles"})
"""Variants of the policy that ask nothing of a tool without policies."""

INDEX_CLASS: Final = "index-forgery"
"""Its cases write what is no attack on a tool without an index."""

POLICIES: Final = frozenset({"readonly", "limits", "quota"})


class UnknownTarget(ValueError):
    """A target is named in a way that is not understood."""


@dataclass(frozen=True, slots=True)
class Target:
    """A memory tool to be tried.

    Attributes:
        name: short, for the head of a column.
        spec: as it is named on the command line.
        sort: how it is spoken to.
        command: what starts it, split, with placeholders; empty where nothing is started.
        claims: its own threat model.
        tools: those of the corpus that it has.
        variants: of the policy that it can be given.
    """

    name: str
    spec: str
    sort: Sort
    command: tuple[str, ...]
    claims: Claims
    tools: frozenset[str]
    variants: frozenset[str]

    @property
    def promises(self) -> Promises:
        """What it is held to. An MCP server is given both roots as one, and spoken to with host paths."""
        return Promises(
            is_exact=self.sort == "muniment",
            separates_scopes=self.sort != "mcp",
            hides_paths=self.sort != "mcp",
            keeps_index=self.sort in {"muniment", "command"},
        )

    def lacks(self, case: Case) -> str | None:
        """What a case needs that the tool has not; None: nothing."""
        for call in (*case.get("first", ()), case["call"]):
            if call["tool"] in ALL_TOOLS - self.tools:
                return f"no {call['tool']}"
        if case["class"] == INDEX_CLASS and not self.promises.keeps_index:
            return "no index"
        missing = sorted(case.get("policy", {}).keys() - self.variants)
        return f"no policy for {missing[0]}" if missing else None

    def open(self, stage: Stage, case: Case) -> Subject:
        """Bind it to the roots of a stage; `OpenSubject`."""
        match self.sort:
            case "muniment":
                return SandboxSubject(stage, case, in_process=False)
            case "anthropic":
                return AnthropicSubject(stage, case)
            case "mcp":
                command = filled(self.command, stage, case)
                roots = () if command != self.command else (str(stage.scope(scope)) for scope in ROOTS)
                return McpSubject(stage, [*command, *roots])
            case "command":
                return JsonLinesSubject(stage, filled(self.command, stage, case))


ALL_TOOLS: Final = frozenset({"read_file", "grep", "ls", "write_file", "edit"})


def parse_target(spec: str) -> Target:
    """The target of a name.

    Raises:
        UnknownTarget: there is none; the message says which there are.
    """
    sort, _, text = spec.partition("=")
    match sort:
        case "muniment" if not text:
            return Target(
                sort, spec, sort, (), claims.MUNIMENT, ALL_TOOLS, NAMELESS | POLICIES | {"symlinks"}
            )
        case "anthropic" if not text:
            return Target(sort, spec, sort, (), claims.ANTHROPIC, ALL_TOOLS - {"grep"}, NAMELESS)
        case "mcp" if text.strip():
            tools = frozenset(NAMES)
            return Target("mcp", spec, sort, _split(text), claims.MCP_FILESYSTEM, tools, NAMELESS)
        case "command" if text.strip():
            variants = NAMELESS | (POLICIES if "{policy}" in text else set())
            variants |= {"symlinks"} if "{symlinks}" in text else set()
            return Target("command", spec, sort, _split(text), claims.UNKNOWN, ALL_TOOLS, variants)
        case _:
            raise UnknownTarget(
                f"{spec!r} is no target; there are muniment, anthropic, mcp=COMMAND and command=COMMAND"
            )


def filled(command: Sequence[str], stage: Stage, case: Case) -> tuple[str, ...]:
    """A command with its placeholders filled in; the policy is written only where one is asked for."""
    values = {scope: str(stage.scope(scope)) for scope in ROOTS}
    values |= {"state": str(stage.state), "symlinks": symlinks(case)}
    if any("{policy}" in word for word in command):
        values["policy"] = str(write_policy(stage, case, require="partial"))
    words = []
    for word in command:
        for name, value in values.items():
            word = word.replace(f"{{{name}}}", value)  # noqa: PLW2901 - one after the other
        words.append(word)
    return tuple(words)


def _split(text: str) -> tuple[str, ...]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UnknownTarget(f"{text!r} is no command: {error}") from None
    return tuple(str(Path(word).absolute()) if Path(word).is_file() else word for word in words)
