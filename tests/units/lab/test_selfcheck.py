"""The self-check for reviewers: all promises pass, and a broken one is reported."""

import subprocess
import sys

from muniment.lab import selfcheck


def test_selfcheck_runs_without_packages_and_passes(tmp_path):
    source = selfcheck.__file__.rpartition("/muniment/")[0]
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {source!r})\n" + RUN]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=50)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["passed"] * len(selfcheck.CHECKS) == ["passed"] * 5


RUN = """
import runpy
try:
    runpy.run_module("muniment.lab.selfcheck", run_name="__main__")
finally:
    assert not {"pydantic", "structlog", "pathspec", "openai"} & set(sys.modules)
"""


def test_selfcheck_reports_broken_promise(monkeypatch, capsys):
    monkeypatch.setattr("muniment.kernel.judge.PolicyEvaluator.require_removal", lambda *_: None)
    assert selfcheck.main() == 1
    assert capsys.readouterr().out.count("FAILED") == 1
