"""Recall at a place: its recaller, and a language model that picks among what the search finds.

Attacked in tests/recall/test_recalling.py.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

from muniment import events
from muniment.agent.filing import RuleWriter
from muniment.agent.model import Budget, Model, ModelError
from muniment.agent.runner import MAX_OPTIONS, Asker
from muniment.confine.cancel import Cancel, Patience
from muniment.errors import MunimentError
from muniment.jobs.place import Place
from muniment.recall.recaller import Chooser, Recaller

_TOKEN_BYTES: Final = 8


def recaller_of(place: Place) -> Recaller:
    """What recalls from a place; close it before the place."""
    return Recaller(place.policy, place.roots, place.state)


def chooser_of(place: Place, model: Model) -> Chooser | None:
    """What lets `model` pick; None: the embedded rules pick nothing.

    Each question is one turn, and ends with the seconds that the policy gives a run, or with the patience. It
    is about `MAX_OPTIONS` entries at most. Whatever goes wrong while the patience lasts is no answer.
    """
    if isinstance(model, RuleWriter):
        return None

    def choose(message: str, about: Sequence[str], limit: int, patience: Patience) -> Sequence[int] | None:
        with Cancel() if patience.cancel is None else nullcontext(patience.cancel) as cancel:
            budget = Budget(place.policy.limits, cancel, place.clock)
            left = patience.deadline - time.monotonic()  # The clock of the place may be another one.
            budget.deadline = min(budget.deadline, place.clock() + left)
            asker = Asker(model, budget, secrets.token_hex(_TOKEN_BYTES))
            try:
                return asker.which_help(message, about[:MAX_OPTIONS], limit)
            except (ModelError, MunimentError) as error:
                patience.check()
                events.emit("recall_model_failed", problem=type(error).__name__)
                return None

    return choose
