"""The library: `open` a memory, `remember` facts in it.

import muniment

with muniment.open(workspace=".") as memory:
    result = memory.remember("The user prefers dark mode in all editors")
    print(result.files_touched)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from os import PathLike
from pathlib import Path
from typing import Self

from muniment.agent.model import Model
from muniment.agent.rules import RuleWriter
from muniment.agent.runner import Observer, Witness
from muniment.confine.binding import bind_all, create_private_directory
from muniment.confine.cancel import Cancel
from muniment.confine.pool import shared_zygote
from muniment.credentials import read_api_key
from muniment.errors import ConfigInvalid
from muniment.jobs.remember import remember
from muniment.jobs.request import Place, RememberRequest, RememberResult
from muniment.names import ContextMode
from muniment.policy.load import load_policy
from muniment.sandbox import check_enforcement, check_symlinks
from muniment.settings import HOME_VARIABLE, RULES, Settings, default_roots, find_workspace, read_settings


class Memory:
    """An open memory: a policy over bound roots. Threads may share one; close it when done.

    Build one with `open`.

    Attributes:
        place: the policy and the bound roots.
    """

    def __init__(self, place: Place, model: Model, opened: ExitStack) -> None:
        self.place, self._model, self._opened = place, model, opened

    def remember(
        self,
        content: str,
        *,
        scope: str | None = None,
        context: str = ContextMode.WORKSPACE,
        dry_run: bool = False,
        cancel: Cancel | None = None,
        observe: Observer = lambda _: None,
    ) -> RememberResult:
        """File a fact.

        Args:
            content: the fact; trimmed, then 1 to 65 536 bytes of UTF-8 without NUL.
            scope: the one scope that may be written; None: the agent chooses.
            context: `workspace`, or `clean`: the agent sees nothing of the memory.
            dry_run: judge and report, commit nothing.
            cancel: ends the run early.
            observe: told of every tool call.

        Raises:
            InvalidContent, InvalidScope, InvalidContextMode: the request cannot be carried out.
            RememberPathEscape: the agent tried to leave the memory; nothing was committed.
            RememberRefused, RememberNoUpdate, RememberScopeMismatch: the agent ended without effect.
            RememberTimeout, RememberFailed, Cancelled: so did the run.
            StoreConflict: someone else changed what the run rested on; where the policy retries, twice.
            ManagedMemoryUnavailable: a root cannot be used, with the reason.
        """
        result = self.attempt(
            RememberRequest(content, scope, context, dry_run=dry_run), cancel=cancel, observe=observe
        )
        if result.error is not None:
            raise result.error
        return result

    def attempt(
        self,
        request: RememberRequest,
        *,
        cancel: Cancel | None = None,
        observe: Observer = lambda _: None,
        witness: Witness = lambda _: None,
    ) -> RememberResult:
        """As `remember`, with failure told in the result's `error` instead of raised.

        Args:
            request: what to remember.
            cancel: ends the run early.
            observe: told of every tool call.
            witness: told of every message between model and run, as a transcript is. It must not raise.
        """
        return remember(request, self.place, self._model, cancel=cancel, observe=observe, witness=witness)

    def close(self) -> None:
        """Give the roots back, and the language model if `open` built it."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def open(  # noqa: A001, PLR0913  the library's name for it; used as muniment.open, by keyword
    workspace: str | PathLike[str] = ".",
    *,
    policy: str | PathLike[str] | None = None,
    roots: Mapping[str, str | PathLike[str]] | None = None,
    symlinks: str | None = None,
    model: Model | str | None = None,
    base_url: str | None = None,
    api_key_file: str | PathLike[str] | None = None,
    protocol: str | None = None,
    home: str | PathLike[str] | None = None,
    in_process: bool = False,
) -> Memory:
    """Open the memory of a workspace.

    Args:
        workspace: a directory in it; the workspace is its nearest ancestor with `.git`, else itself.
        policy: name or path; default from the configuration, else `strict`.
        roots: directories to bind to scopes instead of the default ones.
        symlinks: what becomes of links beneath the roots, `refuse` or `beneath`, as with `Sandbox`. Default
            from the configuration, else `refuse`.
        model: what files the facts: `rules`, the name of a language model, or an object, which stays the
            caller's. Default from the configuration, else `rules`, the embedded writer.
        base_url: where the language model answers, such as `http://127.0.0.1:8080/v1`.
        api_key_file: what its key is read from, once, before this returns; default `$MUNIMENT_API_KEY`,
            which stays in the environment.
        protocol: how to speak with it, one of `agent.model.PROTOCOLS`.
        home: instead of `$MUNIMENT_HOME`.
        in_process: run the tools in this process; the policy must say `require = "none"`.

    Raises:
        ConfigInvalid: a setting cannot be used.
        PolicyInvalid: the policy does not load.
        InvalidScope: a root is bound to a scope that the policy does not declare.
        ManagedMemoryUnavailable: a root or the state directory cannot be used, with the reason.
        ConfinementUnavailable: the policy requires more than this system offers.
    """
    named = model if model is None or isinstance(model, str) else None
    if named is not model and (base_url or api_key_file or protocol):
        raise ConfigInvalid("base_url, api_key_file and protocol go with a model's name, not with an object")
    if not in_process:
        shared_zygote().start()
    environment = dict(os.environ) if home is None else {**os.environ, HOME_VARIABLE: os.fspath(home)}
    settings = read_settings(
        environment,
        policy=None if policy is None else os.fspath(policy),
        roots={scope: Path(path) for scope, path in (roots or {}).items()},
        symlinks=symlinks,
        model=named,
        base_url=base_url,
        api_key_file=api_key_file,
        protocol=protocol,
    )
    with ExitStack() as opened:
        if model is None or isinstance(model, str):
            model = opened.enter_context(open_model(settings, environment))
        place = opened.enter_context(closing(find_place(settings, Path(workspace), in_process=in_process)))
        return Memory(place, model, opened.pop_all())


def open_model(settings: Settings, environment: Mapping[str, str]) -> AbstractContextManager[Model]:
    """The model of `settings`; a language model is closed at the end of the context.

    Args:
        settings: as `read_settings` read them from the same environment.
        environment: such as `os.environ`, which may hold the key; not changed.

    Raises:
        ConfigInvalid: a language model has no usable base URL or key, see `read_api_key`.

    Cost: none but to read the key. The first turn connects, and imports `openai` (0.6 s, once).
    """
    if settings.model == RULES:
        return nullcontext(RuleWriter())
    if not settings.base_url:
        raise ConfigInvalid(
            f"the model {settings.model!r} needs a server; say where one answers: "
            "--base-url URL, such as http://127.0.0.1:8080/v1"
        )
    key = read_api_key(settings, environment)
    from muniment.agent.openai import OpenAIModel

    return closing(
        OpenAIModel(settings.model, base_url=settings.base_url, api_key=key, protocol=settings.protocol)
    )


def find_place(
    settings: Settings, workspace: Path, *, in_process: bool = False, create: bool = True
) -> Place:
    """The policy and the bound roots of `settings` for the workspace around `workspace`; raises as `open`.

    Args:
        settings: what to run with.
        workspace: a directory in it.
        in_process: as `open`.
        create: make default directories that are missing; else their scopes are left out.
    """
    symlinks = check_symlinks(settings.symlinks)
    policy = load_policy(settings.policy, policies_dir=settings.policies)
    check_enforcement(policy, in_process=in_process)
    paths = default_roots(settings, policy.scopes, find_workspace(workspace), create=create)
    if create:
        create_private_directory(settings.state)
    roots = bind_all(paths, apart_from=settings.apart)
    return Place(policy, roots, symlinks=symlinks, in_process=in_process)
