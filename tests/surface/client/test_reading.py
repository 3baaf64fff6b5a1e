"""What the daemon says becomes values, and what it should not say becomes an error."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from kit.client.scripted import RECALLED, REMEMBERED, task
from muniment.client import errors, results
from muniment.client.core import (
    audit_head_of,
    decided_of,
    erased_of,
    event_of,
    explained_of,
    recalled_of,
    review_of,
    task_of,
    undone_of,
)
from muniment.client.errors import BadAnswer
from muniment.client.results import DreamResult, Event, ForgetResult, RememberResult, RemovedEntry
from muniment.daemon import contract

FORGOTTEN = {
    "summary": "Removed 1.",
    "removedEntries": [{"topic": "preference", "summary": "Dark mode", "filePath": "user/editor.md"}],
    "touchedTopics": ["preference"],
    "touchedScopes": ["user"],
}
DREAMT = {
    "summary": "Merged.",
    "touchedTopics": [],
    "touchedScopes": [],
    "dedupedEntries": 3,
    "rejected": 1,
}


def failed(code="remember_no_update", **more):
    return task("failed", error={"code": code, "message": "A sentence.", **more})


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "task",
        {},
        task() | {"taskId": 7},
        task() | {"taskId": "undo-1"},
        task() | {"status": "sleeping"},
        task() | {"status": None},
        task() | {"createdAt": None},
        task("completed"),
        task("completed", result=[]),
        task("completed", result={}),
        task("completed", result=REMEMBERED | {"filesTouched": "user/a.md"}),
        task("completed", result=REMEMBERED | {"filesTouched": [1]}),
        task("completed", result=REMEMBERED | {"summary": 1}),
        task("completed", "forget", result=FORGOTTEN | {"removedEntries": [1]}),
        task("completed", "forget", result=FORGOTTEN | {"removedEntries": [{}]}),
        task("completed", "dream", result=DREAMT | {"dedupedEntries": "3"}),
        task("completed", "dream", result=DREAMT | {"dedupedEntries": True}),
        task("failed"),
        task("failed", error={}),
        task("failed", error={"code": "x", "paths": "user/a.md"}),
    ],
)
def test_a_task_that_is_none_is_refused(document):
    with pytest.raises(BadAnswer):
        task_of(document)


def test_a_task_that_waits_for_the_owner_names_its_review():
    for document in (failed("pending_review", reviewId="r1"), failed("pending_review") | {"reviewId": "r1"}):
        with pytest.raises(errors.PendingReview) as caught:
            task_of(document).outcome  # noqa: B018  a property that raises
        assert caught.value.review_id == "r1"


def test_an_event_is_read():
    told = {"v": 1, "type": "task", "data": {"taskId": "dream-1"}, "originatorClientId": "web"}
    assert event_of("a-1", told) == Event("a-1", "task", {"taskId": "dream-1"}, "web")
    for broken in (None, {}, told | {"data": None}, told | {"type": 1}, told | {"originatorClientId": 1}):
        with pytest.raises(BadAnswer):
            event_of("a-1", broken)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        *(
            RECALLED | {"entries": value}
            for value in (None, {}, [1], [{}], [RECALLED["entries"][0] | {"id": 7}])
        ),
        *(RECALLED | {"text": value} for value in (None, 7)),
        *(RECALLED | {"tokens": value} for value in (None, "7", True, 7.5)),
        *(RECALLED | {"abstained": value} for value in (None, 0, "false")),
        *(RECALLED | {"error": value} for value in (7, {"code": "deadline"})),
    ],
)
def test_a_recall_that_is_none_is_refused(document):
    with pytest.raises(BadAnswer):
        recalled_of(document)


# -- against the daemon's own models -------------------------------------------------------------------


def wire(model, **values):
    """What the daemon sends for a model whose fields hold something of their type."""
    samples = {"str": "text", "int": 7, "list[str]": ["one", "two"]}
    made = {
        name: values.get(name, samples.get(getattr(field.annotation, "__name__", ""), ["one", "two"]))
        for name, field in model.model_fields.items()
    }
    return contract.as_wire(model.model_construct(**made))


@pytest.mark.parametrize(
    ("model", "values", "read", "kind"),
    [
        (contract.ReviewShown, {}, review_of, results.ReviewShown),
        (contract.Decided, {"status": "approved", "task_id": "x-1"}, decided_of, results.Decided),
        (contract.Decided, {"status": "rejected", "task_id": None}, decided_of, results.Decided),
        (contract.Undone, {}, undone_of, results.Undone),
        (contract.ErasePlan, {"status": "preview"}, erased_of, results.ErasePlan),
        (contract.EraseReceipt, {"status": "erased"}, erased_of, results.EraseReceipt),
        (contract.AuditHead, {}, audit_head_of, results.AuditHead),
        (
            contract.Explained,
            {"verdict": "deny", "rule": "R1", "layer": "strict", "reason": "why"},
            explained_of,
            results.Explained,
        ),
    ],
)
def test_what_the_daemon_tells_the_owner_is_read_as_a_whole(model, values, read, kind):
    document = wire(model, **values)
    found = read(document)
    assert type(found) is kind
    names = {field.name for field in fields(kind)}
    assert names >= set(model.model_fields) - {"status"}
    for name in names:
        sent = document[contract.to_camel(name)]
        assert getattr(found, name) == (tuple(sent) if isinstance(sent, list) else sent)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (contract.RememberResult, RememberResult),
        (contract.ForgetResult, ForgetResult),
        (contract.DreamResult, DreamResult),
        (contract.RemovedEntry, RemovedEntry),
        (contract.TaskError, results.TaskError),
        (contract.Recalled, results.Recalled),
        (contract.RecalledEntry, results.RecalledEntry),
    ],
)
def test_a_result_has_the_fields_of_the_daemons_model(model, kind):
    assert {field.name for field in fields(kind)} == set(model.model_fields)
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    assert needed <= {name for name, field in model.model_fields.items() if field.is_required()}


UNTYPED = {
    "foreign_origin",
    "not_found",
    "method_not_allowed",
    "request_timeout",
    "body_too_large",
    "unsupported_media_type",
    "misdirected_request",
    "remember_failed",
    "forget_failed",
    "dream_failed",
    "internal_error",
}
"""Codes that a client of this library does not meet, or can do nothing about: `Problem` itself."""


def test_every_code_of_the_daemon_has_a_class_or_is_listed():
    assert set(contract.HTTP) - set(errors.PROBLEMS) == UNTYPED
    assert set(errors.PROBLEMS) <= set(contract.HTTP)
    assert set(contract.TASK) <= set(errors.FAILURES)
    assert set(errors.FAILURES) <= {*contract.TASK, *contract.HTTP}
