"""Integrations without the packages that they need, and a memory that does not load these packages."""

import importlib
import sys

import pytest

from kit.raising import raised
from kit.shell import printed

NEEDS = {
    "anthropic": ("anthropic", "anthropic.tools"),
    "openai_agents": ("agents",),
    "langgraph": ("langgraph", "langgraph.store", "langgraph.store.base"),
}


@pytest.mark.parametrize("name", NEEDS)
def test_adapter_without_extra_names_package_to_install(name, monkeypatch):
    module = f"muniment.integrations.{name}"
    for absent in NEEDS[name]:
        monkeypatch.setitem(sys.modules, absent, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    error = raised(ImportError, importlib.import_module, module)
    assert str(error).endswith(f": pip install 'muniment[{name.replace('_', '-')}]'")
    assert str(error).isprintable()
    assert error.__suppress_context__


@pytest.mark.slow
def test_opening_memory_loads_no_adapter_packages(tmp_path):
    code = (
        "import sys, muniment.operations.entries, muniment.integrations.telling\n"
        "import muniment.integrations.values\n"
        "print(sorted({'anthropic', 'agents', 'openai', 'langgraph', 'anyio'} & set(sys.modules)))"
    )
    assert printed(sys.executable, "-c", code, home=tmp_path) == "[]\n"
