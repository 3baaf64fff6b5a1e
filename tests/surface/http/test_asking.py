"""What a body asks for, without a daemon: fields that nobody knows are not looked at one by one."""

from __future__ import annotations

import pytest

from muniment.daemon import contract, http
from muniment.daemon.contract import HttpProblem

MANY = {f"k{number}": None for number in range(50_000)}


@pytest.mark.parametrize("document", [MANY, {"content": "x", "source": MANY}])
def test_a_flood_of_fields_never_comes_to_the_model(document, monkeypatch):
    seen = []
    validate = contract.RememberBody.model_validate
    monkeypatch.setattr(
        contract.RememberBody, "model_validate", lambda sent: (seen.append(sent), validate(sent))[1]
    )
    with pytest.raises(HttpProblem, match="invalid_request"):
        http.parsed(contract.RememberBody, document)
    assert seen in ([{}], [{"content": "x", "source": {}}])
