"""Read and check the threat files in `threat-model/threats/`.

One TOML file per threat, named by its id. A threat is `mitigated` only if its mitigations are in the code and
proofs test them; the gate (`gate.py`) checks this in every run.
"""

import importlib
import tomllib
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

REPOSITORY: Final = Path(__file__).parents[2]
FOLDER: Final = REPOSITORY / "threat-model" / "threats"

Stride = Literal["spoofing", "tampering", "repudiation", "disclosure", "denial", "elevation"]
STRIDE: Final = dict(zip(get_args(Stride), "STRIDE", strict=True))

GROUPS: Final = {
    "PATH": "Path confinement", "FENCE": "Native code in the worker", "POL": "Policy",
    "RUN": "Runner and model", "LEAK": "Disclosure", "MEM": "Memory and context poisoning",
    "API": "Daemon and API", "FLT": "Fleet", "IDX": "Index and concurrency", "SUP": "Supply chain",
    "LOG": "Records", "HUM": "People",
}  # fmt: skip
"""The groups of ids and their titles, in the order of the pages."""

Status = Literal["mitigated", "partial", "accepted", "out_of_scope"]
Layer = Literal["handles", "fence"]

Boundary = Literal[
    "text to path", "path to file", "worker to kernel", "worker to broker", "broker to disk",
    "server to runner", "author to policy", "memory to reader", "client to daemon", "node to database",
    "registry to install", "record to person",
]  # fmt: skip
Asset = Literal[
    "files outside the memory", "the memory", "facts of another scope", "another home's memory", "the index",
    "the key of a model's server", "data that a run sends", "the broker", "the policy",
    "the readers of memory", "the audit records",
]  # fmt: skip
Kind = Literal["table", "property", "race", "process", "fault", "canary", "cost", "golden"]
"""How a proof works: a table of cases; hypothesis; a racing process; real processes; injected system errors;
a secret that must not appear anywhere; a time limit; reviewed output.
"""

_Line = Annotated[str, StringConstraints(min_length=1, pattern=r"^\S[^\n]*\S$")]
_Text = Annotated[str, StringConstraints(min_length=1)]
_Reference = Annotated[
    str, StringConstraints(pattern=r"^((ASI|LLM)(0[1-9]|10)|CWE-\d+|AML\.(T\d{4}(\.\d{3})?|CS\d{4}|M\d{4}))$")
]
_Import = Annotated[str, StringConstraints(pattern=r"^muniment(\.\w+)*:\w+(\.\w+)*$")]


class Threat(BaseModel):
    """One threat; `threat-model/README.md` explains the fields.

    Attributes:
        layers: the independent layers that stop a confinement threat: `handles` (layer 1), `fence` (layer 2).
        residual: the remaining risk.
        skips: the reason why a proof may be skipped on some systems; empty: it may not.
        review: the day by which the threat must be reviewed again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: Annotated[str, StringConstraints(pattern=rf"^T-({'|'.join(GROUPS)})-\d\d$")]
    title: _Line
    stride: Annotated[tuple[Stride, ...], Field(strict=False, min_length=1)]
    refs: Annotated[tuple[_Reference, ...], Field(strict=False)]
    boundary: Boundary
    asset: Asset
    story: _Text
    assumptions: Annotated[tuple[_Line, ...], Field(strict=False)]
    mitigations: Annotated[tuple[_Import, ...], Field(strict=False)]
    status: Status
    layers: Annotated[tuple[Layer, ...], Field(strict=False)] = ()
    residual: _Text
    proofs: Annotated[tuple[Kind, ...], Field(strict=False)]
    skips: str = ""
    review: date

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.status in {"mitigated", "partial"} and not self.mitigations:
            raise ValueError(f"{self.status} without a mitigation")
        if self.status == "mitigated" and not self.proofs:
            raise ValueError("mitigated without a proof")
        if self.status == "out_of_scope" and (self.mitigations or self.proofs):
            raise ValueError("out of scope, but with mitigations or proofs")
        if (self.group in {"PATH", "FENCE"}) != bool(self.layers):
            raise ValueError("only confinement threats have layers, and they must have some")
        return self

    @property
    def group(self) -> str:
        """The group of the id."""
        return self.id.split("-")[1]


def read_threat(path: Path) -> Threat:
    """Read the threat of one file.

    Raises:
        ValueError: the file is not a threat, or its name is not the id.
    """
    threat = Threat.model_validate(tomllib.loads(path.read_text()))
    if path.name != f"{threat.id}.toml":
        raise ValueError(f"{path.name} contains {threat.id}")
    return threat


@cache
def load_threats() -> dict[str, Threat]:
    """Load all threats by id, in the order of the pages."""
    found = (read_threat(path) for path in FOLDER.iterdir())
    groups = list(GROUPS)
    ordered = sorted(found, key=lambda threat: (groups.index(threat.group), threat.id))
    return {threat.id: threat for threat in ordered}


def resolve(mitigation: str) -> Any:
    """Import the object that a mitigation names.

    Raises:
        ImportError, AttributeError: not found.
    """
    module, _, attributes = mitigation.partition(":")
    found: Any = importlib.import_module(module)
    for name in attributes.split("."):
        found = getattr(found, name)
    return found
