"""Generate `threat-model/THREATS.md` and `COVERAGE.md` from the threats, the marks and the controls.

    PYTHONPATH=tests .venv/bin/python -m threats.pages

`tests/threats/test_catalogue.py` fails if a page differs from the generated one.
"""

from collections import Counter
from itertools import groupby

from threats.catalogue import GROUPS, REPOSITORY, STRIDE, threats
from threats.marks import proofs
from threats.switches import controls

FOLDER = REPOSITORY / "threat-model"
COMMAND = "PYTHONPATH=tests .venv/bin/python -m threats.pages"
_STATUS = {"out_of_scope": "out of scope"}
_BOTH = ("handles", "fence")
_RESTS = {
    (): "",
    ("handles",): "Only layer 1, the handles, stops it.",
    ("fence",): "Only layer 2, the kernel fence, stops it.",
    _BOTH: "In the worker, layer 1 (handles) and layer 2 (the kernel fence) each stop it.",
}


def pages():
    """Return the expected text of every generated page."""
    return {
        FOLDER / "THREATS.md": "\n".join(_threats()) + "\n",
        FOLDER / "COVERAGE.md": "\n".join(_coverage()) + "\n",
    }


def _threats():
    found = threats()
    counted = Counter(threat.status for threat in found.values())
    proved = Counter(threat for threat, _ in {(proof.threat, proof.function) for proof in proofs()})
    yield f"""# Threats

Generated from `threats/*.toml` by `{COMMAND}`; edits of this file are lost.
[README.md](README.md) explains the terms, [COVERAGE.md](COVERAGE.md) lists the proofs.
"""
    yield f"{len(found)} threats: " + ", ".join(
        f"{counted[status]} {_STATUS.get(status, status)}"
        for status in ("mitigated", "partial", "accepted", "out_of_scope")
    )
    for group, members in groupby(found.values(), key=lambda threat: threat.group):
        yield f"""
## {GROUPS[group]}

| id | threat | STRIDE | state | proofs |
|---|---|---|---|---|"""
        listed = list(members)
        for threat in listed:
            letters = ", ".join(STRIDE[each] for each in threat.stride)
            count = proved[threat.id] or ""
            yield f"| {threat.id} | {_cell(threat.title)} | {letters} | {_state(threat)} | {count} |"
        for threat in listed:
            yield ""
            yield from _section(threat)


def _section(threat):
    yield f"### {threat.id}: {threat.title}\n\n{_flat(threat.story)}\n"
    yield f"- **State**: {_state(threat)}. Boundary: {threat.boundary}. At risk: {threat.asset}."
    for assumption in threat.assumptions:
        yield f"- **Assumed**: {assumption}"
    if threat.mitigations:
        yield f"- **Stopped by**: {', '.join(f'`{each}`' for each in threat.mitigations)}"
    if threat.layers and threat.status != "out_of_scope":
        yield f"- **Layers**: {_RESTS[threat.layers]}"
    yield f"- **Open**: {_flat(threat.residual)}"
    if threat.proofs:
        yield f"- **Proved by**: {', '.join(threat.proofs)}"
    if threat.skips:
        yield f"- **May be skipped**: {_flat(threat.skips)}"
    if threat.refs:
        yield f"- **See**: {', '.join(threat.refs)}"
    yield f"- **Review by**: {threat.review}"


def _coverage():
    marked = proofs()
    runs = {(proof.file, proof.function, proof.control) for proof in marked}
    functions, proved = len({(file, name) for file, name, _ in runs}), len({proof.threat for proof in marked})
    yield f"""# Coverage

Generated from the marks of the tests by `{COMMAND}`; edits of this file are lost.

{functions} test functions prove {proved} threats. `pytest --red` runs each without the control
in the last column, {len(runs)} runs in total, and fails if one of them passes.

| threat | proof | fails without |
|---|---|---|"""
    for proof in marked:
        yield f"| {proof.threat} | [{proof.function}](../{proof.file}) | {proof.control} |"
    yield """
## Controls

A red run disables one control, with the code in [tests/threats/without/](../tests/threats/without/).

| control | effect of disabling it |
|---|---|"""
    for control in sorted(controls().values(), key=lambda control: control.name):
        yield f"| {control.name} | {_cell(control.what)} |"


def _state(threat):
    return _STATUS.get(threat.status, threat.status)


def _flat(text):
    return " ".join(text.split())


def _cell(text):
    return _flat(text).replace("|", r"\|")


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
