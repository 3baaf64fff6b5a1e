"""The library: `open` a memory, `remember` facts in it.

import muniment

with muniment.open(workspace=".") as memory:
    result = memory.remember("The user prefers dark mode in all editors")
    print(result.files_touched)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Self

from muniment.agent.model import Model
from muniment.agent.rules import RuleWriter
from muniment.agent.runner import Observer
from muniment.confine.binding import bind_all, create_private_directory
from muniment.confine.cancel import Cancel
from muniment.confine.pool import shared_zygote
from muniment.errors import PlatformUnsupported
from muniment.jobs.remember import remember
from muniment.jobs.request import Place, RememberRequest, RememberResult
from muniment.names import ContextMode
from muniment.policy.load import load_policy
from muniment.sandbox import check_enforcement, check_symlinks
from muniment.settings import HOME_VARIABLE, Settings, default_roots, find_workspace, read_settings


class Memory:
    """An open memory: a policy over bound roots. Threads may share one; close it when done.

    Build one with `open`.

    Attributes:
        place: the policy and the bound roots.
    """

    def __init__(self, place: Place, model: Model) -> None:
        self.place, self._model = place, model

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
    ) -> RememberResult:
        """As `remember`, with failure told in the result's `error` instead of raised."""
        return remember(request, self.place, self._model, cancel=cancel, observe=observe)

    def close(self) -> None:
        """Give the roots back."""
        self.place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def open(  # noqa: A001  the library's name for it; used as muniment.open
    workspace: str | PathLike[str] = ".",
    *,
    policy: str | PathLike[str] | None = None,
    roots: Mapping[str, str | PathLike[str]] | None = None,
    symlinks: str | None = None,
    model: Model | None = None,
    home: str | PathLike[str] | None = None,
    in_process: bool = False,
) -> Memory:
    """Open the memory of a workspace.

    Args:
        workspace: a directory in it; the workspace is its nearest ancestor with `.git`, else itself.
        policy: name or path; default from the configuration, else `strict`.
        roots: directories to bind to scopes instead of the default ones.
        symlinks: `refuse`.
        model: what files the facts; default: the embedded rule writer.
        home: instead of `$MUNIMENT_HOME`.
        in_process: run the tools in this process; the policy must say `require = "none"`.

    Raises:
        PlatformUnsupported: this is not Linux.
        ConfigInvalid: a setting cannot be used.
        PolicyInvalid: the policy does not load.
        InvalidScope: a root is bound to a scope that the policy does not declare.
        ManagedMemoryUnavailable: a root or the state directory cannot be used, with the reason.
        ConfinementUnavailable: the policy requires more than this system offers.
    """
    _require_linux()
    if not in_process:
        shared_zygote().start()
    environment = dict(os.environ) if home is None else {**os.environ, HOME_VARIABLE: os.fspath(home)}
    bound = {scope: Path(path) for scope, path in (roots or {}).items()}
    named = None if policy is None else os.fspath(policy)
    settings = read_settings(environment, policy=named, roots=bound, symlinks=symlinks)
    return Memory(find_place(settings, Path(workspace), in_process=in_process), model or RuleWriter())


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
    _require_linux()
    check_symlinks(settings.symlinks)
    policy = load_policy(settings.policy, policies_dir=settings.policies)
    check_enforcement(policy, in_process=in_process)
    paths = default_roots(settings, policy.scopes, find_workspace(workspace), create=create)
    if create:
        create_private_directory(settings.state)
    return Place(policy, bind_all(paths, apart_from=settings.apart), in_process=in_process)


def _require_linux() -> None:
    if sys.platform != "linux":
        raise PlatformUnsupported(f"Muniment runs on Linux only so far, not on {sys.platform}")
