"""What a program opens before it can work: the model of its settings, and the place of a workspace."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path
from typing import Final

from muniment.agent.model import Model
from muniment.agent.rules import RuleWriter
from muniment.confine.binding import bind_all
from muniment.confine.cancel import Patience
from muniment.confine.requirement import check_enforcement
from muniment.credentials import read_api_key
from muniment.errors import ConfigInvalid
from muniment.jobs.request import Place
from muniment.policy.links import check_symlinks
from muniment.settings import RULES, Settings, default_roots, find_workspace
from muniment.signatures import load_configured
from muniment.store.state import State
from muniment.store.upkeep import recover_all

RECOVERY_SECONDS: Final = 60.0
"""Seconds that an open waits for the locks of roots in which a commit was interrupted."""


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
    settings: Settings,
    workspace: Path,
    *,
    in_process: bool = False,
    create: bool = True,
    state: State | None = None,
) -> Place:
    """The policy, state and bound roots of `settings` for the workspace around `workspace`; raises as `open`.

    What an interrupted commit left there is taken back first; the place's `notes` tell.

    Args:
        settings: what to run with.
        workspace: a directory in it.
        in_process: as `open`.
        create: make default directories that are missing; else their scopes are left out.
        state: shared with other places, and stays the caller's; None: that of `settings` is opened.
    """
    symlinks = check_symlinks(settings.symlinks)
    loaded = load_configured(settings)
    policy = loaded.policy
    check_enforcement(policy, in_process=in_process)
    paths = default_roots(settings, policy.scopes, find_workspace(workspace), create=create)
    with ExitStack() as opened:
        if state is None:
            has_state = create or settings.state.is_dir()
            state = opened.enter_context(State(settings.state if has_state else None))
        roots = bind_all(paths, apart_from=settings.apart, policy_files=loaded.paths)
        for root in roots.values():
            opened.callback(root.close)
        notes = recover_all(state, roots, policy, Patience(time.monotonic() + RECOVERY_SECONDS))
        opened.pop_all()
    return Place(policy, roots, state, symlinks=symlinks, in_process=in_process, notes=notes)
