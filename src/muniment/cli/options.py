"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypedDict

import typer

Workspace = Annotated[
    Path | None,
    typer.Option(help="A directory in the workspace.", show_default="the repository around this one"),
]
PolicyArgument = Annotated[str, typer.Argument(metavar="POLICY", help="Name or path of a policy.")]
PolicyName = Annotated[str | None, typer.Option("--policy", help="Name or path of a policy.")]
Roots = Annotated[
    list[str] | None,
    typer.Option("--root", metavar="SCOPE=DIR", help="Bind a directory to a scope. May be repeated."),
]
Symlinks = Annotated[
    str | None,
    typer.Option(
        metavar="refuse|beneath",
        help="Links inside roots: refuse them, or resolve those that stay beneath their root.",
        show_default="refuse",
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="rules (no network, no key), or a language model by the name that its server has for it.",
        show_default="as configured, else rules",
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="The model's OpenAI-compatible server, such as http://127.0.0.1:8080/v1."
    ),
]
ApiKeyFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Holds the key of that server; else MUNIMENT_API_KEY."),
]
ProtocolName = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        metavar="auto|tools|json|text|decide",
        help="How to speak with the model; auto: as well as its server can.",
        show_default="as configured, else auto",
    ),
]
OnModelFailure = Annotated[
    str | None,
    typer.Option(
        metavar="rules|fail",
        help="If the model fails: let the rules do the work, or fail the task.",
        show_default="as configured, else rules",
    ),
]
Expires = Annotated[
    str | None, typer.Option(metavar="DATE|30d", help="The last day on which it is shown; then it is hidden.")
]
Ledger = Annotated[
    str,
    typer.Option(
        metavar="URL|FILE",
        help="The database: a URL without a password, or the path of a file that holds one.",
        show_default="what MUNIMENT_LEDGER says",
    ),
]
NodeName = Annotated[
    str, typer.Option(metavar="NAME", help="With --ledger: the name of this node.", show_default="the host's")
]
Slots = Annotated[
    int, typer.Option(min=1, max=256, help="With --ledger: homes that have their turn at once.")
]
Lease = Annotated[
    float, typer.Option(min=1, max=300, help="With --ledger: seconds until others go on for a lost node.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


class MemoryFlags(TypedDict):
    """Which memory a command means, and who is told of it."""

    workspace: Workspace
    policy: PolicyName
    root: Roots
    json: Json


class ModelFlags(TypedDict):
    """What a command line says of its model; None where it does not."""

    model: ModelName
    base_url: BaseUrl
    api_key_file: ApiKeyFile
    protocol: ProtocolName


class _RootFlags(TypedDict):
    policy: PolicyName
    root: Roots
    symlinks: Symlinks


class RunFlags(_RootFlags, ModelFlags):
    """What a command line says in the place of the configuration."""

    on_model_failure: OnModelFailure


class ToolName(StrEnum):
    """The coding tools that are set up."""

    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    CURSOR = "cursor"
    QWEN_CODE = "qwen-code"
    GEMINI_CLI = "gemini-cli"


class ShellName(StrEnum):
    """The shells that complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
