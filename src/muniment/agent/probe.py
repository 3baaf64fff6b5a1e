"""What a model's server can do, tried with one small request in each form.

The requests are made by the code that makes those of runs, and hold nothing of the memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Literal

from muniment.agent.answer import Answer, as_reply
from muniment.agent.chat import Form
from muniment.agent.complaint import Complaint
from muniment.agent.deciding import decision_in
from muniment.agent.model import Brief, Request, ScopeBrief, SystemMessage, UserMessage
from muniment.agent.openai import LADDERS, OpenAIModel
from muniment.agent.prompt import job_message, offered_tools
from muniment.confine.cancel import Cancel, Patience
from muniment.errors import DeadlineExceeded
from muniment.names import ContextMode, Scope

_BRIEF: Final = Brief(
    "The user prefers dark mode", (ScopeBrief(Scope("user"), writable=True),), ContextMode.WORKSPACE
)
_SYSTEM: Final = SystemMessage("You list files. Act, do not explain.")
_TASK: Final = UserMessage('List the scopes: use `ls` with the path "user".')

Verdict = Literal["yes", "ignored", "slow", "no"]
"""The model acted; the server answered, but the model did not act; no answer came in time, which says nothing
of what the model can do; the server refused."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one form.

    Attributes:
        told: why not, one line; empty if it did.
        seconds: from the request to the answer.
        tokens_per_second: of the answer, its waiting included; None where the server did not count.
    """

    form: Form
    verdict: Verdict
    told: str
    seconds: float
    tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What a server can do.

    Attributes:
        findings: one for each form that the model's protocol allows; only those up to the first complaint
            that no other form would change.
        will_use: what a run will use; None: nothing works.
        better: a form in which the model acts, where it would ignore the one that a run will use.
    """

    findings: tuple[Finding, ...]
    will_use: Form | None
    better: Form | None

    @property
    def works(self) -> bool:
        """Whether the model acts in the form that a run will use."""
        return any(each.form == self.will_use and each.verdict == "yes" for each in self.findings)


def probe(model: OpenAIModel, seconds: float, cancel: Cancel | None = None) -> Probe:
    """Try what `model` may use.

    Args:
        model: it stays the caller's.
        seconds: for each request.
        cancel: ends it early.

    Raises:
        Cancelled: it did.

    Cost: at most three requests of a few hundred tokens; for the protocol `decide` at most two.
    """
    findings: list[Finding] = []
    for form in LADDERS[model.protocol]:
        started = time.monotonic()
        verdict, told, is_final, tokens = _try(model, form, Patience(started + seconds, cancel))
        took = time.monotonic() - started
        findings.append(Finding(form, verdict, told, took, tokens / took if tokens else None))
        if is_final:
            break
    return Probe(
        tuple(findings),
        will_use := next((each.form for each in findings if each.verdict != "no"), None),
        _better(findings, will_use),
    )


def _better(findings: list[Finding], will_use: Form | None) -> Form | None:
    acts = [each.form for each in findings if each.verdict == "yes"]
    return None if not acts or will_use in acts else acts[0]


def _try(model: OpenAIModel, form: Form, patience: Patience) -> tuple[Verdict, str, bool, int]:
    """Verdict, reason, whether no other form would fare better, and the tokens of the answer."""
    decides = model.protocol == "decide"
    request = _question() if decides else _task()
    try:
        outcome = model.attempt(request, form, patience)
    except DeadlineExceeded:
        return "slow", "no answer in time; a model that is being loaded may need a second try", False, 0
    if isinstance(outcome, Complaint):
        return "no", outcome.told, outcome.kind in {"final", "busy"}, 0
    tokens = outcome.usage.output_tokens
    if _acted(outcome, request, form, decides=decides):
        return "yes", "", False, tokens
    return "ignored", "the server takes it, but the model did not act as it was asked", False, tokens


def _acted(answer: Answer, request: Request, form: Form, *, decides: bool) -> bool:
    if decides:
        return decision_in(answer.text, request.brief) is not None
    return [call.tool for call in as_reply(answer, request, form).calls] == ["ls"]


def _task() -> Request:
    tools = tuple(tool for tool in offered_tools(ContextMode.WORKSPACE) if tool.name == "ls")
    return Request(_BRIEF, (_SYSTEM, _TASK), tools, 0.0)


def _question() -> Request:
    return Request(_BRIEF, (_SYSTEM, job_message(_BRIEF, (), "probe")), (), 0.0)
