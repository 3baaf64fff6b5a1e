"""`muniment doctor --model`: what a model's server can do, and what a run would use of it."""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from muniment.agent.openai import OpenAIModel, Probe, probe
from muniment.cli.model import ModelFlags, forget_key
from muniment.cli.report import EXIT_FAILED, configure_logging, print_document, print_failure, say
from muniment.content.gates import one_line, visible
from muniment.errors import Cancelled, MunimentError
from muniment.opening import open_model
from muniment.settings import Settings, read_settings

PROBE_SECONDS: Final = 60.0
"""Seconds for each request: what a model may need that its server has to load first."""


def examine_model(flags: ModelFlags, *, as_json: bool) -> int:
    """Probe the model that the flags or the configuration name; the exit code."""
    configure_logging()
    try:
        settings = read_settings(os.environ, **flags)
        with open_model(settings, os.environ) as model:
            forget_key()
            found = probe(model, PROBE_SECONDS) if isinstance(model, OpenAIModel) else None
    except MunimentError as error:
        return print_failure(error, as_json=as_json, what="not examined")
    except KeyboardInterrupt:
        return print_failure(Cancelled("by Ctrl-C"), as_json=as_json, what="not examined")
    advice = _advice(settings, found)
    if as_json:
        print_document(_document(settings, found, advice))
    else:
        _print(settings, found, advice)
    return 0 if found is None or found.works else EXIT_FAILED


def _advice(settings: Settings, found: Probe | None) -> list[str]:
    if found is None:
        return []
    advice: list[str] = []
    if found.will_use is None:
        advice.append("as it is now, no run can use this model")
    elif not found.works and any(each.verdict == "slow" for each in found.findings) and not found.better:
        others = "" if settings.protocol == "decide" else "; --protocol decide asks the least of it"
        few = f"{PROBE_SECONDS:.0f} s were too few for an answer"
        advice.append(f"the model was slow: {few}; try again once it is loaded{others}")
    elif found.better is not None:
        advice.append(
            f"the model does not act in the form {found.will_use}; run it with --protocol {found.better}"
        )
    elif not found.works:
        others = "" if settings.protocol == "decide" else ", or --protocol decide"
        advice.append(f"the model did not act in any form that was tried; a larger one may{others}")
    elif settings.protocol == "auto" and found.will_use != found.findings[0].form:
        advice.append(f"--protocol {found.will_use} spares each run a request that is refused")
    parts = urlsplit(settings.base_url or "")
    if parts.scheme == "http" and not _is_this_machine(parts.hostname or ""):
        has_key = settings.key_in_variable or settings.api_key_file is not None
        what = "the key and the memory" if has_key else "the memory"
        advice.append(f"{what} will travel unencrypted to {parts.hostname}; use https where you can")
    return advice


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _document(settings: Settings, found: Probe | None, advice: list[str]) -> dict[str, Any]:
    findings = () if found is None else found.findings
    return {
        "model": settings.model,
        "base_url": settings.base_url if found else None,
        "protocol": settings.protocol,
        "forms": [
            {
                "form": each.form,
                "verdict": each.verdict,
                "told": each.told,
                "seconds": round(each.seconds, 3),
                "tokens_per_second": each.tokens_per_second and round(each.tokens_per_second, 1),
            }
            for each in findings
        ],
        "will_use": None if found is None else found.will_use,
        "works": found is None or found.works,
        "advice": advice,
    }


def _print(settings: Settings, found: Probe | None, advice: list[str]) -> None:
    if found is None:
        say("rules: the embedded writer needs no server; name a language model with --model")
        return
    say(visible(one_line(f"{settings.model} at {settings.base_url}, protocol {settings.protocol}")))
    for each in found.findings:
        speed = f"{each.tokens_per_second:.1f} tokens/s  " if each.tokens_per_second else ""
        say(f"  {each.form:6}{each.verdict:9}{each.seconds:6.2f} s  {speed}{visible(each.told)}".rstrip())
    if found.will_use is not None:
        decides = " for its decision" if settings.protocol == "decide" else ""
        say(f"a run will use {found.will_use}{decides}")
    for line in advice:
        say(visible(line))
