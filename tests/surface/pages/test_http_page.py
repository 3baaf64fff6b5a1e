"""The page about HTTP is what the daemon does now."""

from __future__ import annotations

from kit.daemon.page import COMMAND, PAGE, page
from muniment.daemon.contract import HTTP, RECALL, TASK
from muniment.daemon.http import document_of
from muniment.daemon.service import OPERATIONS


def test_it_is_up_to_date_and_tells_of_every_request_parameter_field_and_code():
    text = page()
    assert PAGE.read_text(encoding="utf-8") == text, f"run: {COMMAND}"
    for operation in OPERATIONS:
        assert f"### {operation.method} {operation.path}\n" in text
        assert all(f"`{parameter.name}`" in text for parameter in operation.parameters)
    for name, schema in document_of(OPERATIONS)["components"]["schemas"].items():
        section = text.split(f"### {name}\n")[1].split("\n#")[0]
        assert all(f"`{field}`" in section for field in schema.get("properties", ()))
    answers = ((code, told) for code, (_, told) in HTTP.items())
    for code, sentence in (*answers, *TASK.items(), *RECALL.items()):
        assert f"| `{code}` | {sentence} |" in text
