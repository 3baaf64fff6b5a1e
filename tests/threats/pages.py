"""Generate `threat-model/THREATS.md` and `COVERAGE.md` from the threats, the marks and the controls.

    PYTHONPATH=tests .venv/bin/python -m threats.pages

`tests/threats/test_catalogue.py` fails if a page is out of date.
"""

from collections import Counter
from itertools import groupby

from threats.catalogue import GROUPS, REPOSITORY, STRIDE, load_threats
from threats.marks import load_proofs
from threats.switches import load_controls

FOLDER = REPOSITORY / "threat-model"
COMMAND = "PYTHONPATH=tests .venv/bin/python -m threats.pages"
_STATUS = {"out_of_scope": "out of scope"}
_BOTH = ("handles", "fence")
_LAYER_TEXTS = {
    (): "",
    ("handles",): "Only layer 1, the handles, stops it.",
    ("fence",): "Only layer 2, the kernel fence, stops it.",
    _BOTH: "In the worker, layer 1 (handles) and layer 2 (the kernel fence) each stop it.",
}


def make_pages():
    """Return the expected text of every generated page."""
    return {
        FOLDER / "THREATS.md": "\n".join(_write_threats()) + "\n",
        FOLDER / "COVERAGE.md": "\n".join(_write_coverage()) + "\n",
    }


def _write_threats():
    found = load_threats()
    counted = Counter(threat.status for threat in found.values())
    proved = Counter(threat for threat, _ in {(proof.threat, proof.function) for proof in load_proofs()})
    yield f"""# Threats

Generated from `threats/*.toml` by `{COMMAND}`; changes made here are lost.
[README.md](README.md) defines the terms, [COVERAGE.md](COVERAGE.md) lists the proofs.
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
            count, status = proved[threat.id] or "", _format_status(threat)
            yield f"| {threat.id} | {_escape_cell(threat.title)} | {letters} | {status} | {count} |"
        for threat in listed:
            yield ""
            yield from _write_section(threat)


def _write_section(threat):
    yield f"### {threat.id}: {threat.title}\n\n{_join_lines(threat.story)}\n"
    yield f"- **State**: {_format_status(threat)}. Boundary: {threat.boundary}. At risk: {threat.asset}."
    for assumption in threat.assumptions:
        yield f"- **Assumed**: {assumption}"
    if threat.mitigations:
        yield f"- **Stopped by**: {', '.join(f'`{each}`' for each in threat.mitigations)}"
    if threat.layers and threat.status != "out_of_scope":
        yield f"- **Layers**: {_LAYER_TEXTS[threat.layers]}"
    yield f"- **Open**: {_join_lines(threat.residual)}"
    if threat.proofs:
        yield f"- **Proved by**: {', '.join(threat.proofs)}"
    if threat.skips:
        yield f"- **May be skipped**: {_join_lines(threat.skips)}"
    if threat.refs:
        yield f"- **See**: {', '.join(threat.refs)}"
    yield f"- **Review by**: {threat.review}"


def _write_coverage():
    marked = load_proofs()
    runs = {(proof.file, proof.function, proof.control) for proof in marked}
    functions, proved = len({(file, name) for file, name, _ in runs}), len({proof.threat for proof in marked})
    yield f"""# Coverage

Generated from the marks of the tests by `{COMMAND}`; edits of this file are lost.

{functions} test functions are proofs against {proved} threats. `pytest --red` runs each without
its control, {len(runs)} runs in all, and fails if one of them passes.

| threat | proof | fails without |
|---|---|---|"""
    for proof in marked:
        yield f"| {proof.threat} | [{proof.function}](../{proof.file}) | {proof.control} |"
    yield """
## Controls

Replacements that a red run applies; [tests/threats/without/](../tests/threats/without/) contains them.

| control | effect of switching it off |
|---|---|"""
    for control in sorted(load_controls().values(), key=lambda control: control.name):
        yield f"| {control.name} | {_escape_cell(control.effect)} |"


def _format_status(threat):
    return _STATUS.get(threat.status, threat.status)


def _join_lines(text):
    return " ".join(text.split())


def _escape_cell(text):
    return _join_lines(text).replace("|", r"\|")


if __name__ == "__main__":
    for path, text in make_pages().items():
        path.write_text(text)
