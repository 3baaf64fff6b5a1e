"""What a reviewer runs after reading: every promise holds, and one that is broken is told."""

import subprocess
import sys

from muniment.lab import selfcheck


def test_it_runs_without_any_package_and_tells_each_promise(tmp_path):
    source = selfcheck.__file__.rpartition("/muniment/")[0]
    told = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {source!r})\n" + RUN]
    done = subprocess.run(told, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=50)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["passed"] * len(selfcheck.PROMISES) == ["passed"] * 5


RUN = """
import runpy
try:
    runpy.run_module("muniment.lab.selfcheck", run_name="__main__")
finally:
    assert not {"pydantic", "structlog", "pathspec", "openai"} & set(sys.modules)
"""


def test_a_promise_that_does_not_hold_is_told(monkeypatch, capsys):
    monkeypatch.setattr("muniment.kernel.judge.Judge.require_removal", lambda *_: None)
    assert selfcheck.main() == 1
    assert capsys.readouterr().out.count("FAILED") == 1
