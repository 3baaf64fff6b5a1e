"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

import typer

from muniment.cli.suggestions import suggest_entries, suggest_scopes

ENTRY_HELP: Final = "An entry by its handle (k3f9q) or path, or by the handle of a change of it (t3k9f2)."
"""Help of an argument that is an entry."""

EntryArgument = Annotated[str, typer.Argument(help=ENTRY_HELP, autocompletion=suggest_entries)]


def create_scope_option(*, help: str) -> Any:  # noqa: A002  as in typer
    """Return the declaration of an option `--scope` with this help."""
    return typer.Option(help=help, autocompletion=suggest_scopes)


Workspace = Annotated[
    Path | None,
    typer.Option(help="A directory in the workspace.", show_default="the current repository"),
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
        help="Symbolic links inside roots: reject them, or follow them under the same root.",
        show_default="refuse",
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="rules (no network, no key), or the name of a language model on its server.",
        show_default="as configured, otherwise rules",
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
    typer.Option(
        metavar="FILE", help="File with the key of that server (default: the variable MUNIMENT_API_KEY)."
    ),
]
ProtocolName = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        metavar="auto|tools|json|text|decide",
        help="Request format of the model; auto: the best one that its server supports.",
        show_default="as configured, otherwise auto",
    ),
]
OnModelFailure = Annotated[
    str | None,
    typer.Option(
        metavar="rules|fail",
        help="If the model fails: fall back to the rules, or fail the task.",
        show_default="as configured, otherwise rules",
    ),
]
Expires = Annotated[
    str | None,
    typer.Option(
        metavar="DATE|30d",
        help="Last day on which the entry is visible: YYYY-MM-DD or a duration (30d).",
    ),
]
Ledger = Annotated[
    str,
    typer.Option(
        metavar="URL|FILE",
        help="The database: a URL without a password, or the path of a file that contains a URL.",
        show_default="the value of MUNIMENT_LEDGER",
    ),
]
NodeName = Annotated[
    str, typer.Option(metavar="NAME", help="With --ledger: the name of this node.", show_default="the host's")
]
Slots = Annotated[
    int, typer.Option(min=1, max=256, help="With --ledger: maximum homes to serve at the same time.")
]
Lease = Annotated[
    float, typer.Option(min=1, max=300, help="With --ledger: seconds until another node replaces a lost one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


Color = Annotated[
    str | None,
    typer.Option(
        metavar="auto|always|never", help="Print colours; auto: on a terminal, unless NO_COLOR is set."
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Also print details, such as the policy and the task.")
]


class MemoryFlags(TypedDict):
    """The options that select a memory, and those for the output format."""

    workspace: Workspace
    policy: PolicyName
    root: Roots
    color: Color
    json: Json


class ModelFlags(TypedDict):
    """The options that select a model; the value of an option that was not given is None."""

    model: ModelName
    base_url: BaseUrl
    api_key_file: ApiKeyFile
    protocol: ProtocolName


class _RootFlags(TypedDict):
    policy: PolicyName
    root: Roots
    symlinks: Symlinks


class RunFlags(_RootFlags, ModelFlags):
    """The options that override the configuration: policy, roots, links and model."""

    on_model_failure: OnModelFailure


class ToolName(StrEnum):
    """The coding tools that `muniment setup` supports."""

    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    CURSOR = "cursor"
    QWEN_CODE = "qwen-code"
    GEMINI_CLI = "gemini-cli"


class ShellName(StrEnum):
    """The shells that `muniment completion` supports."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
