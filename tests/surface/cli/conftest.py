"""What a command that runs in this process leaves behind is taken back, or it would reach other tests."""

from __future__ import annotations

import json

import pytest

from kit.policy.files import SCOPES, write


@pytest.fixture
def said(capsys):
    """What a command printed: lines, or its document in ASCII."""

    def said(*, as_json=False):
        out, err = capsys.readouterr()
        if not as_json:
            return (out + err).splitlines()
        assert err == ""
        assert out.isascii()
        return json.loads(out)

    return said


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """No settings and no policies of whoever runs this."""
    monkeypatch.setenv("MUNIMENT_HOME", str(tmp_path / "home"))


@pytest.fixture
def own(tmp_path):
    """Writes `own.toml`; the path as text."""
    return lambda body, **more: write(tmp_path / "own.toml", body=SCOPES + body, **more)
