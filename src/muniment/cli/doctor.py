"""Implement `muniment doctor`: test the confinement of workers, or the server of a language model.

For the confinement, the command lists the layers that this system offers and those that are active. Then a
worker tries every action that the layers must stop. The exit code is 1 if the policy requires more layers
than are active, if an action succeeded that an active layer must stop, or if no action could be tried.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import typer

from muniment.cli.command import (
    Report,
    command,
    convert_temp_errors,
    load_settings,
    open_model_and_drop_key,
    require_fence,
)
from muniment.cli.options import ModelFlags, PolicyName
from muniment.cli.terminal import EXIT_FAILED, draw_tables
from muniment.content.gates import clean_foreign_line, escape_invisible
from muniment.kernel.names import Enforcement
from muniment.names import FenceLayer

if TYPE_CHECKING:
    from muniment.agent.openai import Probe
    from muniment.lab.attempts.offer import SystemSupport
    from muniment.lab.attempts.trial import AttemptFinding, Trial
    from muniment.settings import Settings


@command("not tested", interrupt_message="by Ctrl-C", precheck=require_fence)
def doctor(*, policy: PolicyName = None, flags: ModelFlags) -> Report:
    """Test the confinement of workers, or a model's server.

    With a model option, such as --model, it tests the server of that model; otherwise the confinement on this
    system.
    """
    if not any(flags.values()):
        report = _examine(policy)
        return Report(_create_fence_document(report), _format_examination(report), code=report.exit_code)
    if policy is not None:
        raise typer.BadParameter(
            "it is only for the confinement; remove it to test a model", param_hint="--policy"
        )
    return _report_model(flags)


# -- the fence ---------------------------------------------------------------------------------------

TRIAL_SECONDS: Final = 60.0
"""Maximum seconds for all forbidden actions together; normally they take half a second."""

_UNBOUND_ROOT: Final = "a limit on processes does not apply to root; seccomp kills a worker that starts one"


@dataclass(frozen=True, slots=True)
class _Examination:
    """The results of testing the confinement.

    Attributes:
        system: the layers that the system supports.
        trial: the results of the forbidden actions that a worker tried.
        policy: the name of the policy.
        required: the confinement that the policy requires.
    """

    system: SystemSupport
    trial: Trial
    policy: str
    required: Enforcement

    @property
    def is_met(self) -> bool:
        return self.trial.confinement.enforcement.satisfies(self.required)

    @property
    def failed_attempts(self) -> list[AttemptFinding]:
        return self.found("NOT_STOPPED")

    @property
    def untried_attempts(self) -> list[AttemptFinding]:
        return self.found("UNTRIED")

    def found(self, verdict: str) -> list[AttemptFinding]:
        """Return the tried actions with a certain verdict, such as "NOT_STOPPED"."""
        return [each for each in self.trial.findings if each.verdict.name == verdict]

    @property
    def exit_code(self) -> int:
        is_all_untried = len(self.untried_attempts) == len(self.trial.findings)
        return EXIT_FAILED if self.failed_attempts or is_all_untried or not self.is_met else 0

    def is_active(self, layer: FenceLayer) -> bool:
        return layer not in self.trial.confinement.missing

    def describe_offer(self, layer: FenceLayer) -> str:
        if layer is FenceLayer.LANDLOCK and self.system.landlock_abi:
            return f"ABI {self.system.landlock_abi}"
        return "yes" if self.system.supports(layer) else "no"

    def advice(self, layer: FenceLayer) -> str:
        """Return how to enable a layer; empty if the layer is active."""
        from muniment.lab.attempts.offer import suggest_remedy

        return (
            ""
            if self.is_active(layer)
            else suggest_remedy(layer, self.trial.reported.get(layer), self.system)
        )

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each known gap of the confinement, such as an action that no layer stops."""
        for each in self.found("OPEN"):
            yield f"a worker can {each.attempt.what}: {each.why}"
        for what in self.system.missing_landlock_features:
            yield f"Landlock ABI {self.system.landlock_abi} does not support {what}"
        if self.system.is_root and self.is_active(FenceLayer.LIMITS):
            yield _UNBOUND_ROOT

    def list_actions(self) -> Iterator[str]:
        """Yield what the user should do, without the advice for missing layers, which their rows contain."""
        if not self.is_met:
            yield (
                f"with the policy {self.policy} no task runs here: enable the MISSING layers or use a policy "
                f'that requires "{self.trial.confinement.enforcement}"'
            )
        if self.failed_attempts:
            yield "an attempt succeeded that must fail: report it as in SECURITY.md, with the --json output"
        if self.untried_attempts and len(self.untried_attempts) == len(self.trial.findings):
            yield "no attempt could be tried: the reasons are in brackets after each attempt"

    def summarize(self) -> str:
        confinement = self.trial.confinement
        missing = f" (missing: {', '.join(confinement.missing)})" if confinement.missing else ""
        met = "met" if self.is_met else "NOT met"
        line = (
            f"enforcement {confinement.enforcement}{missing}; "
            f"policy {self.policy} requires {self.required}: {met}"
        )
        tried = len(self.trial.findings)
        if self.failed_attempts:
            line += f"; {len(self.failed_attempts)} of {tried} attempts NOT stopped"
        if self.untried_attempts:
            line += f"; {len(self.untried_attempts)} of {tried} not tried"
        return line


def _examine(policy: str | None) -> _Examination:
    from muniment.lab.attempts.offer import inspect_system
    from muniment.lab.attempts.trial import run_trial
    from muniment.settings import load_configured_policy

    effective = load_configured_policy(load_settings({"policy": policy})).policy
    system = inspect_system()
    with convert_temp_errors():
        trial = run_trial(time.monotonic() + TRIAL_SECONDS)
    return _Examination(system, trial, effective.name, effective.confinement.require)


def _create_fence_document(report: _Examination) -> dict[str, Any]:
    system = report.system
    return {
        "system": {
            "kernel": system.kernel,
            "machine": system.machine,
            "resolver": system.resolver,
            "landlock_abi": system.landlock_abi,
            "landlock_lacks": list(system.missing_landlock_features),
            "seccomp": system.seccomp,
            "mdwe": system.mdwe,
            "root": system.is_root,
            "proc": system.has_proc,
        },
        "layers": [
            {
                "layer": layer,
                "offered": system.supports(layer),
                "holds": report.is_active(layer),
                "advice": report.advice(layer) or None,
            }
            for layer in FenceLayer
        ],
        "attempts": [
            {
                "name": each.attempt.name,
                "what": each.attempt.what,
                "expected": each.attempt.expected,
                "outcome": each.outcome,
                "verdict": each.verdict,
                "why": each.why,
                "stopped_by": sorted(each.attempt.stopped_by),
            }
            for each in report.trial.findings
        ],
        "open": list(report.notes()),
        "enforcement": report.trial.confinement.enforcement,
        "missing_layers": list(report.trial.confinement.missing),
        "policy": report.policy,
        "requires": report.required,
        "met": report.is_met,
    }


def _format_system(system: SystemSupport) -> str:
    who = "root" if system.is_root else "an ordinary user"
    proc = "" if system.has_proc else ", without /proc"
    return f"Linux {system.kernel}, {system.machine}, as {who}; files are opened by {system.resolver}{proc}"


def _create_layer_rows(report: _Examination) -> Iterator[Sequence[str]]:
    for layer in FenceLayer:
        state = "active" if report.is_active(layer) else "MISSING"
        yield layer, report.describe_offer(layer), state, report.advice(layer)


_VERDICTS: Final = {"NOT_STOPPED": "NOT stopped", "UNTRIED": "not tried"}


def _create_finding_rows(report: _Examination) -> Iterator[Sequence[str]]:
    for each in report.trial.findings:
        verdict = _VERDICTS.get(each.verdict.name, each.verdict.name.lower())
        what = f"{each.attempt.what} ({each.why})" if each.why else each.attempt.what
        yield verdict, clean_foreign_line(each.outcome), clean_foreign_line(what)


def _format_examination(report: _Examination) -> Iterator[str]:
    if sys.stdout.isatty():
        _draw_tables(report)
    else:
        yield escape_invisible(_format_system(report.system))
        for layer, offered, state, advice in _create_layer_rows(report):
            yield f"  {layer:14}offered {offered:7}{state:9}{advice}".rstrip()
        yield "tried in temporary workers:"
        for verdict, outcome, what in _create_finding_rows(report):
            yield f"  {verdict:12}{outcome:21}{what}"
    for note in report.notes():
        yield f"open: {note}"
    for what in report.list_actions():
        yield escape_invisible(f"to do: {what}")
    yield escape_invisible(report.summarize())


def _draw_tables(report: _Examination) -> None:
    layers = [(row, "bold red" if row[2] == "MISSING" else None) for row in _create_layer_rows(report)]
    styles = {"NOT_STOPPED": "bold red", "OPEN": "yellow", "UNTRIED": "dim"}
    verdicts = [styles.get(each.verdict.name) for each in report.trial.findings]
    draw_tables(
        [
            (("layer", "offered", "a worker", "what to do"), layers),
            (
                ("verdict", "outcome", "a worker tried to"),
                zip(_create_finding_rows(report), verdicts, strict=True),
            ),
        ],
        above=escape_invisible(_format_system(report.system)),
    )


# -- doctor model ------------------------------------------------------------------------------------
#
# `muniment doctor --model`: the features of a model's server, and those that a run would use.

PROBE_SECONDS: Final = 60.0
"""Maximum seconds for each request; this includes the time in which a server loads the model."""


def _report_model(flags: ModelFlags) -> Report:
    """Test the server of the language model that the options or the configuration name."""
    from muniment.agent.openai import OpenAIModel, probe_server

    settings = load_settings(flags)
    with open_model_and_drop_key(settings) as model:
        found = probe_server(model, PROBE_SECONDS) if isinstance(model, OpenAIModel) else None
    advice = _create_advice(settings, found)
    return Report(
        _create_model_document(settings, found, advice),
        _format_model(settings, found, advice),
        code=0 if found is None or found.is_working else EXIT_FAILED,
    )


def _create_advice(settings: Settings, found: Probe | None) -> list[str]:
    if found is None:
        return []
    advice: list[str] = []
    if found.will_use is None:
        advice.append("with these settings, no run can use this model")
    elif (
        not found.is_working
        and any(each.verdict == "slow" for each in found.findings)
        and not found.better_form
    ):
        others = "" if settings.protocol == "decide" else "; --protocol decide needs the least output"
        few = f"no response within {PROBE_SECONDS:.0f} s"
        advice.append(f"the model was slow: {few}; try again after it is loaded{others}")
    elif found.better_form is not None:
        advice.append(
            f"the model ignores the form {found.will_use}; run it with --protocol {found.better_form}"
        )
    elif not found.is_working:
        others = "" if settings.protocol == "decide" else ", or --protocol decide"
        advice.append(f"the model ignored every form that was tried; use a larger model{others}")
    elif settings.protocol == "auto" and found.will_use != found.findings[0].form:
        advice.append(f"--protocol {found.will_use} saves each run one rejected request")
    parts = urlsplit(settings.base_url or "")
    if parts.scheme == "http" and not _is_local_host(parts.hostname or ""):
        has_key = settings.key_in_variable or settings.api_key_file is not None
        what = "the key and the memory" if has_key else "the memory"
        advice.append(f"{what} will be sent unencrypted to {parts.hostname}; use https where you can")
    return advice


def _is_local_host(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _create_model_document(settings: Settings, found: Probe | None, advice: list[str]) -> dict[str, Any]:
    findings = () if found is None else found.findings
    return {
        "model": settings.model,
        "base_url": settings.base_url if found else None,
        "protocol": settings.protocol,
        "forms": [
            {
                "form": each.form,
                "verdict": each.verdict,
                "told": each.problem,
                "seconds": round(each.seconds, 3),
                "tokens_per_second": each.tokens_per_second and round(each.tokens_per_second, 1),
            }
            for each in findings
        ],
        "will_use": None if found is None else found.will_use,
        "works": found is None or found.is_working,
        "advice": advice,
    }


def _format_model(settings: Settings, found: Probe | None, advice: list[str]) -> Iterator[str]:
    if found is None:
        yield "rules: the built-in rules need no server; to test a language model, use --model NAME"
        return
    yield clean_foreign_line(f"{settings.model} at {settings.base_url}, protocol {settings.protocol}")
    for each in found.findings:
        speed = f"{each.tokens_per_second:.1f} tokens/s  " if each.tokens_per_second else ""
        problem = escape_invisible(each.problem)
        yield f"  {each.form:6}{each.verdict:9}{each.seconds:6.2f} s  {speed}{problem}".rstrip()
    if found.will_use is not None:
        decides = " for its decision" if settings.protocol == "decide" else ""
        yield f"a run will use {found.will_use}{decides}"
    for line in advice:
        yield escape_invisible(line)
