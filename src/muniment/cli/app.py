"""The commands and their options. Bodies load what they need, so that `--help` stays quick."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated

import typer

from muniment.cli.fleet_app import Lease, Ledger, NodeName, Slots, fleet_app
from muniment.cli.mcp_app import mcp
from muniment.cli.moving_app import add_moving
from muniment.cli.options import (
    ApiKeyFile,
    BaseUrl,
    Expires,
    Json,
    ModelName,
    OnModelFailure,
    PolicyName,
    ProtocolName,
    Roots,
    Symlinks,
    Workspace,
    where_of,
)
from muniment.cli.policy_app import policy_app
from muniment.cli.projects_app import init, projects_app
from muniment.cli.setup_app import setup_app
from muniment.cli.ui_app import ui
from muniment.names import __version__

# -- conformance app ---------------------------------------------------------------------------------
#
# `muniment conformance` and its options. The body is loaded when it runs.


def conformance(
    target: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="What is under test: muniment, anthropic, mcp=COMMAND or command=COMMAND.",
        ),
    ] = "muniment",
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help="Another tool to set beside it. May be repeated."),
    ] = None,
    attack_class: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="CLASS", help="Only the cases of a class. May be repeated."),
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only, or also, this case. May be repeated.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, metavar="N", help="Cases at a time.", show_default="the processors, at most 4"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Attack a memory tool with the shipped corpus, in throwaway directories, and tell what held.

    A COMMAND speaks the JSON lines of `muniment tool`, or the Model Context Protocol. In it {user}, {project}
    and {state} stand for directories. Exit 1 if anything escaped, leaked, hung or crashed.
    """
    from muniment.cli.conformance import ConformanceArguments, Misused, conform

    try:
        code = conform(
            ConformanceArguments(target, peer or [], attack_class or [], case or [], jobs, json=json)
        )
    except Misused as error:
        raise typer.BadParameter(str(error), param_hint=error.option) from None
    raise typer.Exit(code)


# -- recall app --------------------------------------------------------------------------------------
#
# The command that recalls, and its options. Its bodies load what they need.


def recall(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    words: Annotated[
        list[str] | None, typer.Argument(help="A message, or some words of what is meant.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Entries at most.")] = 5,
    budget: Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Tokens of the text at most.")] = 2_000,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="An entry that was shown, by its id in --json. May be repeated."),
    ] = None,
    scope: Annotated[str | None, typer.Option(help="The one scope to look in.")] = None,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    hook: Annotated[
        bool,
        typer.Option(
            "--hook",
            help="Answer a coding tool's JSON event on standard input with what helps with its prompt.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Recall what helps with a message.

    With --hook the exit code is 0 and an answer is there within 5 seconds, whatever goes wrong.
    """
    from muniment.cli.recall import RecallArguments, answer_hook, run_recall

    where = where_of(workspace, policy, root, json=json)
    asked = RecallArguments(" ".join(words or []), limit, budget, tuple(exclude or ()), scope)
    if hook:
        if words or json:
            raise typer.BadParameter("it reads what is asked from standard input", param_hint="--hook")
        raise typer.Exit(answer_hook(where, asked))
    if not asked.query.strip():
        raise typer.BadParameter("say what to recall", param_hint="WORDS")
    raise typer.Exit(run_recall(where, asked))


# -- tidying app -------------------------------------------------------------------------------------
#
# The commands that take things out of the memory, and their options. Bodies load what they need.


def forget(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    words: Annotated[list[str], typer.Argument(help="The path of an entry, or what is meant in words.")],
    scope: Annotated[str | None, typer.Option(help="The one scope to look in.")] = None,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it is only shown what would go.")] = False,
    json: Json = False,
) -> None:
    """Forget an entry, or what these words describe; `undo` brings it back until it is erased."""
    from muniment.cli.terminal import ModelFlags
    from muniment.cli.tidying import run_forget
    from muniment.jobs.request import ForgetRequest

    flags = ModelFlags(model=model, base_url=base_url, api_key_file=api_key_file, protocol=protocol)
    where = where_of(workspace, policy, root, json=json)
    raise typer.Exit(run_forget(where, flags, ForgetRequest(" ".join(words), scope, yes=yes)))


def dream(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    scope: Annotated[str | None, typer.Option(help="The one scope to tidy.")] = None,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it is only shown what would be.")] = False,
    json: Json = False,
) -> None:
    """Tidy the memory: merge what says the same, remove what has expired, count the rest."""
    from muniment.cli.terminal import ModelFlags
    from muniment.cli.tidying import run_dream
    from muniment.jobs.request import DreamRequest

    flags = ModelFlags(model=model, base_url=base_url, api_key_file=api_key_file, protocol=protocol)
    where = where_of(workspace, policy, root, json=json)
    raise typer.Exit(run_dream(where, flags, DreamRequest(scope, yes=yes)))


# -- daemon app --------------------------------------------------------------------------------------
#
# The commands of the daemon, and their options. Bodies load what they need.

token_app = typer.Typer(help="The tokens with which clients call the daemon.", no_args_is_help=True)

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Of the token, such as editor.")]
AllowHosts = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A name by which other machines call. May be repeated."),
]
AllowOrigins = Annotated[
    list[str] | None,
    typer.Option(metavar="ORIGIN", help="Of web pages that may call with a token. May be repeated."),
]


def serve(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    workspace: Annotated[
        list[Path] | None,
        typer.Option(help="A directory in a workspace to serve. May be repeated.", show_default="this one"),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0: any that is free.")] = 0,
    socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The Unix socket, on which processes of this user need no token.",
            show_default="daemon.sock in the home",
        ),
    ] = None,
    allow_host: AllowHosts = None,
    allow_origin: AllowOrigins = None,
    policy: PolicyName = None,
    root: Roots = None,
    symlinks: Symlinks = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    on_model_failure: OnModelFailure = None,
    grace: Annotated[
        float, typer.Option(min=0, max=300, help="Seconds that a running task is given when stopped.")
    ] = 10.0,
    ledger: Ledger = "",
    node: NodeName = "",
    slots: Slots = 8,
    lease: Lease = 15.0,
    json: Json = False,
) -> None:
    """Serve workspaces over HTTP until SIGTERM or Ctrl-C; the log goes to standard error."""
    gc.disable()  # Until it serves: what is loaded stays, and looking through it takes a tenth of the start.
    from muniment.cli.daemon import ServeArguments
    from muniment.cli.daemon import serve as run
    from muniment.cli.terminal import ModelFlags

    flags = ModelFlags(
        model=model,
        base_url=base_url,
        api_key_file=api_key_file,
        protocol=protocol,
        on_model_failure=on_model_failure,
    )
    listen = (host, port, socket, allow_host or (), allow_origin or ())
    memory = (policy, root or (), symlinks, grace)
    asked = ServeArguments(workspace or [], flags, *listen, *memory, ledger, node, slots, lease, json=json)
    raise typer.Exit(run(asked))


def acp(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    symlinks: Symlinks = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    on_model_failure: OnModelFailure = None,
) -> None:
    """Answer a host that speaks the Agent Client Protocol, on standard input and output, until its end.

    Extension methods: qwen/control/workspace/memory/remember, remember/availability, forget and dream.
    """
    from muniment.cli.daemon import HostArguments
    from muniment.cli.daemon import serve_host as run
    from muniment.cli.terminal import ModelFlags

    flags = ModelFlags(
        model=model,
        base_url=base_url,
        api_key_file=api_key_file,
        protocol=protocol,
        on_model_failure=on_model_failure,
    )
    raise typer.Exit(run(HostArguments(workspace or Path(), policy, root or [], symlinks, flags)))


@token_app.command("add")
def token_add(
    name: TokenName,
    client_id: Annotated[
        list[str] | None, typer.Option("--client-id", metavar="ID", help="An id that it may give.")
    ] = None,
    trust: Annotated[
        str, typer.Option(metavar="owner|workspace|agent|external", help="Of the facts that come with it.")
    ] = "agent",
    json: Json = False,
) -> None:
    """Make a token and print it; it is shown this once."""
    from muniment.cli.daemon import add_token

    raise typer.Exit(add_token(name, client_id or [], trust, as_json=json))


@token_app.command("list")
def token_list(json: Json = False) -> None:
    """List whose tokens there are."""
    from muniment.cli.daemon import list_tokens

    raise typer.Exit(list_tokens(as_json=json))


@token_app.command("revoke")
def token_revoke(name: TokenName, json: Json = False) -> None:
    """Make a token invalid, from the next request on."""
    from muniment.cli.daemon import revoke_token

    raise typer.Exit(revoke_token(name, as_json=json))


# -- ledger app --------------------------------------------------------------------------------------
#
# The commands about what became of the memory, and their options. Bodies load what they need.

review_app = typer.Typer(
    help="Decide about changes that wait for their owner: list, show, approve, reject.", no_args_is_help=True
)
audit_app = typer.Typer(help="Check the chain of records for edits, removals and cuts.", no_args_is_help=True)

ReviewId = Annotated[str, typer.Argument(metavar="ID", help="As `review list` shows it, such as r3k9x2m.")]


def history(
    path: Annotated[str, typer.Argument(help="An entry, folder or scope; everything if empty.")] = "",
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """List what was committed, the newest first."""
    from muniment.cli.ledger import show_history

    raise typer.Exit(show_history(where_of(workspace, policy, root, json=json), path))


def why(
    path: Annotated[str, typer.Argument(help="An entry, such as user/editor/dark-mode.md.")],
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Say where an entry comes from, and whether it was edited by hand since."""
    from muniment.cli.ledger import show_why

    raise typer.Exit(show_why(where_of(workspace, policy, root, json=json), path))


def edit(
    path: Annotated[str, typer.Argument(help="An entry, such as user/editor/dark-mode.md.")],
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Open an entry in your editor, and commit it as yours when you close it."""
    from muniment.cli.edit import edit_entry

    raise typer.Exit(edit_entry(where_of(workspace, policy, root, json=json), path))


def undo(
    task: Annotated[str, typer.Argument(help="The id of a task, as `history` shows it.")],
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Take back what a task did; refused where its files were changed since."""
    from muniment.cli.ledger import undo_task

    raise typer.Exit(undo_task(where_of(workspace, policy, root, json=json), task))


def erase(
    target: Annotated[
        str, typer.Argument(help="An entry, or the id of a task: then every file that it wrote.")
    ] = "",
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    yes: Annotated[bool, typer.Option("--yes", help="Erase; else it is only shown what would go.")] = False,
    verify: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Look for pieces of the text in this file (- for standard input) instead."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Erase an entry with its whole history, for good; or, with --verify, look for what is left of a text."""
    from muniment.cli.ledger import erase_target, look_for

    if bool(target) == (verify is not None) or (verify is not None and yes):
        raise typer.BadParameter("name what to erase, or a text to look for with --verify FILE")
    where = where_of(workspace, policy, root, json=json)
    raise typer.Exit(look_for(where, verify) if verify is not None else erase_target(where, target, yes=yes))


@review_app.command("list")
def review_list(
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """List what waits."""
    from muniment.cli.ledger import list_reviews

    raise typer.Exit(list_reviews(where_of(workspace, policy, root, json=json)))


@review_app.command("show")
def review_show(
    review_id: ReviewId,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Show what waits: the whole text, with everything invisible made visible, and its digest."""
    from muniment.cli.ledger import show_review

    raise typer.Exit(show_review(where_of(workspace, policy, root, json=json), review_id))


@review_app.command("approve")
def review_approve(
    review_id: ReviewId,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    digest: Annotated[
        str | None,
        typer.Option(metavar="DIGEST", help="Approve exactly what `review show` showed with this."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve whatever it is now, unseen.")] = False,
    json: Json = False,
) -> None:
    """Commit what waits; on a terminal it is shown first, and you are asked."""
    from muniment.cli.ledger import approve_review
    from muniment.cli.terminal import is_asked_on_terminal

    if not (digest or yes or is_asked_on_terminal()):
        raise typer.BadParameter("without a terminal it takes --digest, as `review show` shows it, or --yes")
    where = where_of(workspace, policy, root, json=json)
    raise typer.Exit(approve_review(where, review_id, digest, yes=yes))


@review_app.command("reject")
def review_reject(
    review_id: ReviewId,
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Decide that what waits is never committed."""
    from muniment.cli.ledger import reject_review

    raise typer.Exit(reject_review(where_of(workspace, policy, root, json=json), review_id))


@audit_app.command("verify")
def audit_verify(
    head_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds a head that `audit head` printed earlier, kept elsewhere."),
    ] = None,
    json: Json = False,
) -> None:
    """Check the whole chain; exit 1 if anything was edited, removed or cut."""
    from muniment.cli.ledger import verify_chain

    raise typer.Exit(verify_chain(head_file, as_json=json))


@audit_app.command("head")
def audit_head(json: Json = False) -> None:
    """Print the end of the chain, to be kept where nobody can change it with the ledger."""
    from muniment.cli.ledger import print_head

    raise typer.Exit(print_head(as_json=json))


@audit_app.command("show")
def audit_show(
    task: Annotated[str | None, typer.Option(help="Only the records of this task.")] = None,
    json: Json = False,
) -> None:
    """Print the records."""
    from muniment.cli.ledger import show_records

    raise typer.Exit(show_records(task, as_json=json))


# -- app ---------------------------------------------------------------------------------------------

app = typer.Typer(
    name="muniment",
    help="Long-term memory for AI agents as plain markdown.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
index_app = typer.Typer(help="Rebuild or verify the generated index of each scope.", no_args_is_help=True)
app.add_typer(index_app, name="index")
app.add_typer(review_app, name="review")
app.add_typer(audit_app, name="audit")
app.add_typer(policy_app, name="policy")
app.add_typer(token_app, name="token")
app.add_typer(setup_app)
app.add_typer(projects_app, name="projects")
app.add_typer(fleet_app, name="fleet")


@app.callback(invoke_without_command=True)
def _program(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"muniment {__version__}")
        raise typer.Exit


@app.command()
def remember(  # noqa: PLR0913, PLR0917  every argument is an option of the command
    fact: Annotated[str, typer.Argument(help="The fact, or - to read it from standard input.")],
    scope: Annotated[str | None, typer.Option(help="The one scope that may be written.")] = None,
    workspace: Workspace = None,
    context: Annotated[
        str, typer.Option(metavar="workspace|clean", help="clean: the agent sees nothing of the memory.")
    ] = "workspace",
    policy: PolicyName = None,
    root: Roots = None,
    symlinks: Symlinks = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    on_model_failure: OnModelFailure = None,
    task_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Your name for this task: asked again with it, nothing is done twice."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Judge and report; commit nothing.")] = False,
    transcript: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what was said between model and run to a new file."),
    ] = None,
    detail: Annotated[bool, typer.Option("--detail", help="Print the model's last words, as data.")] = False,
    expires: Expires = None,
    json: Json = False,
) -> None:
    """Remember a fact."""
    from muniment.cli.remember import RememberArguments, run_remember
    from muniment.cli.terminal import ModelFlags

    flags = ModelFlags(
        model=model,
        base_url=base_url,
        api_key_file=api_key_file,
        protocol=protocol,
        on_model_failure=on_model_failure,
    )
    asked = RememberArguments(
        fact,
        scope,
        context,
        workspace,
        policy,
        root or [],
        symlinks,
        flags,
        transcript,
        task_id,
        dry_run=dry_run,
        detail=detail,
        expires=expires,
        json=json,
    )
    raise typer.Exit(run_remember(asked))


@app.command("ls")
def list_entries(
    path: Annotated[str, typer.Argument(help="Scope or directory; all scopes if empty.")] = "",
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """List the entries, with whatever cannot be read or named."""
    from muniment.cli.inspect import list_memory

    raise typer.Exit(list_memory(where_of(workspace, policy, root, json=json), path))


@app.command()
def show(
    path: Annotated[
        str,
        typer.Argument(
            help="An entry, such as user/editor/dark-mode.md, or ENTRY@TASK: as that task left it."
        ),
    ],
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Print an entry."""
    from muniment.cli.inspect import show_entry

    raise typer.Exit(show_entry(where_of(workspace, policy, root, json=json), path))


@index_app.command("rebuild")
def index_rebuild(
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Write the index of every scope anew from its entries."""
    from muniment.cli.inspect import rebuild_indexes

    raise typer.Exit(rebuild_indexes(where_of(workspace, policy, root, json=json)))


@index_app.command("verify")
def index_verify(
    workspace: Workspace = None,
    policy: PolicyName = None,
    root: Roots = None,
    json: Json = False,
) -> None:
    """Compare every index with its entries; exit 1 if one differs."""
    from muniment.cli.inspect import verify_indexes

    raise typer.Exit(verify_indexes(where_of(workspace, policy, root, json=json)))


@app.command()
def doctor(
    policy: PolicyName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api_key_file: ApiKeyFile = None,
    protocol: ProtocolName = None,
    json: Json = False,
) -> None:
    """Try what the kernel fence holds here, or, with --model, what a model's server can do."""
    if not (model or base_url or api_key_file or protocol):
        from muniment.cli.doctor import examine

        raise typer.Exit(examine(policy, as_json=json))
    if policy is not None:
        raise typer.BadParameter("it is for the fence; examine a model without it", param_hint="--policy")
    from muniment.cli.doctor import examine_model
    from muniment.cli.terminal import ModelFlags

    flags = ModelFlags(model=model, base_url=base_url, api_key_file=api_key_file, protocol=protocol)
    raise typer.Exit(examine_model(flags, as_json=json))


@app.command()
def tool(
    root: Roots = None,
    policy: PolicyName = None,
    symlinks: Symlinks = None,
    state: Annotated[Path | None, typer.Option(help="Directory for what Muniment keeps.")] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help='Without a worker; the policy must say require = "none".')
    ] = False,
    commit: Annotated[bool, typer.Option("--commit", help="Commit at the end of input.")] = False,
) -> None:
    """Answer tool calls given as JSON lines.

    Each line of standard input is an object with "tool" and "args"; each answer is one with
    "verdict", "code" and "text". Directories are bound with --root; the default ones are not used.
    """
    from muniment.cli.remember import serve

    raise typer.Exit(
        serve(
            policy or "strict", root or [], symlinks or "refuse", state, in_process=in_process, commit=commit
        )
    )


for command in (
    recall,
    forget,
    dream,
    history,
    why,
    edit,
    undo,
    erase,
    serve,
    ui,
    acp,
    mcp,
    conformance,
    init,
):
    app.command()(command)
add_moving(app)
