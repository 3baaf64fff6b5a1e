"""If a system withholds a layer, or part of one, or only pretends: no run claims a missing layer.

`services/outer_filter.py` confines the zygote and its workers, as the filter of a container runtime does.
"""

import os

import pytest

from kit.memories import make_roots
from kit.raising import raised
from kit.sandbox.machine import needs_fence
from kit.sandbox.probe import SERVICES
from kit.sandbox.services.outer_filter import CASES
from muniment.errors import ConfinementUnavailable
from muniment.kernel.names import Enforcement
from muniment.sandbox.fence import pool
from muniment.sandbox.fence.evidence import DISPENSABLE
from muniment.sandbox.fence.pool import Zygote, import_directories
from muniment.sandbox.sandbox import Sandbox

pytestmark = needs_fence
NAMES = [name for name, case in CASES.items() if os.geteuid() == 0 or not case.needs_root]


@pytest.mark.sweep(2)
@pytest.mark.threat("T-FENCE-08", control="tested_layers")
@pytest.mark.threat("T-FENCE-08", control="reported_layers")
@pytest.mark.parametrize("name", NAMES)
def test_withheld_layer_is_reported_and_not_claimed(name, tmp_path, monkeypatch):
    missing = CASES[name].missing
    roots = make_roots(tmp_path)
    service = f"withholding_service:{name}"
    with Zygote(service, directories=(*import_directories(), SERVICES)) as zygote:
        monkeypatch.setattr(pool, "_SHARED", zygote)
        with Sandbox("strict", roots) as box:
            assert box.held.missing == missing
            if DISPENSABLE.issuperset(missing):
                assert box.enforcement is Enforcement.FULL
                return
            assert box.enforcement is Enforcement.PARTIAL
            assert box.call("ls", {"path": "user"}).verdict == "allow"
        caught = raised(ConfinementUnavailable, Sandbox, "hardened", roots)
    for layer in missing:
        assert layer in str(caught)
    assert "run 'muniment doctor' for the reason" in str(caught)
