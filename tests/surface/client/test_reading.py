"""Documents of the daemon become values, and invalid ones raise an error."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields, is_dataclass, replace
from functools import partial
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pytest

from kit.catching import catch_error
from kit.client.scripted import RECALLED, REMEMBERED, make_task
from muniment import errors as library
from muniment import types as contract
from muniment.client import normalize
from muniment.client.errors import BadAnswer, Problem, TaskFailed, choose_error_class
from muniment.client.responses import read_event, read_response, read_task
from muniment.client.results import Event
from muniment.kernel.names import Enforcement, Trust
from muniment.names import ContextMode
from muniment.types import Recalled
from muniment.types.documents import LOCAL, create_document, parse_document

REMOVED = {"topic": "preference", "summary": "Dark mode", "filePath": "user/editor.md"}
FORGET_RESULT = {"summary": "x", "removedEntries": [REMOVED], "touchedTopics": [], "touchedScopes": ["user"]}
DREAM_RESULT = {"summary": "x", "touchedTopics": [], "touchedScopes": [], "dedupedEntries": 3, "rejected": 1}
EVENT_DOCUMENT = {"v": 1, "type": "task", "data": {"taskId": "dream-1"}, "originatorClientId": "web"}


KEPT_ENTRY = contract.RetainedEntry("user/a.md", "it is protected")


def completed_task(kind, good, **bad):
    return make_task("completed", kind, result=good | bad)


def test_malformed_task_event_and_recall_are_rejected():
    removed = read_task(completed_task("forget", FORGET_RESULT)).result.removed_entries[0]
    assert removed.file_path == removed.path == "user/editor.md"
    assert read_task(completed_task("dream", DREAM_RESULT)).result.deduped_entries == 3
    assert read_event("a-1", EVENT_DOCUMENT) == Event("a-1", "task", {"taskId": "dream-1"}, "web")
    entry = RECALLED["entries"][0]
    invalid = {"entries": (None, {}, [1], [{}], [entry | {"id": 7}]), "text": (None, 7)}
    invalid |= {
        "tokens": (None, "7", True, 7.5),
        "abstained": (None, 0, "false"),
        "error": (7, {"code": "x"}),
    }
    tasks = [None, [], "task", {}, *(make_task() | {"taskId": each} for each in (7, "undo-1"))]
    tasks += [
        *(make_task() | {"status": each} for each in ("sleeping", None)),
        make_task() | {"createdAt": None},
    ]
    tasks += [make_task("completed"), make_task("completed", result=[]), make_task("completed", result={})]
    tasks += [completed_task("remember", REMEMBERED, filesTouched=each) for each in ("user/a.md", [1])]
    tasks += [
        completed_task("remember", REMEMBERED, summary=1),
        completed_task("dream", DREAM_RESULT, dedupedEntries="3"),
    ]
    tasks += [
        completed_task("dream", DREAM_RESULT, dedupedEntries=True),
        make_task("failed"),
        make_task("failed", error={}),
    ]
    tasks += [completed_task("forget", FORGET_RESULT, removedEntries=[each]) for each in (1, {})]
    tasks += [make_task("failed", error={"code": "x", "paths": "a.md"})]
    wrong_events = (("data", None), ("type", 1), ("originatorClientId", 1))
    events = (None, {}, *(EVENT_DOCUMENT | {name: each} for name, each in wrong_events))
    recalls = (None, [], {}, *(RECALLED | {name: each} for name in invalid for each in invalid[name]))
    read_first, read_recall = partial(read_event, "a-1"), partial(read_response, Recalled, what="a recall")
    for reader, documents in ((read_task, tasks), (read_recall, recalls), (read_first, events)):
        for each in documents:
            catch_error(BadAnswer, reader, each)


def test_task_with_pending_review_names_it():
    error = {"code": "pending_review", "message": "A sentence."}
    for members in ({"error": error | {"reviewId": "r1"}}, {"error": error, "reviewId": "r1"}):
        failed = read_task(make_task("failed", **members))
        assert catch_error(library.PendingReview, lambda failed=failed: failed.outcome).review_id == "r1"


# -- the contract --------------------------------------------------------------------------------------

SAMPLES = {"str": "text", "int": 7, "bool": True, "float": 7.5, "Trust": Trust.AGENT}
SAMPLES["MunimentError"] = library.MunimentError("late", code="deadline")
SAMPLES |= {"Enforcement": Enforcement.FULL, "ContextMode": ContextMode.CLEAN}


READ = [
    "AuditHead",
    "DreamResult",
    "ErasePlan",
    "EraseResult",
    "Explained",
    "ForgetResult",
    "RetainedEntry",
    "Recalled",
    "RecalledEntry",
    "RememberResult",
    "RemovedEntry",
    "Review",
    "ReviewDecision",
    "ReviewShown",
    "SimilarEntry",
    "SupersededEntry",
    "TaskError",
    "UiOpened",
    "UndoResult",
]
"""The documents that clients parse."""


def sample(annotation):
    """Return an example value of a type of the contract."""
    if get_origin(annotation) in {Union, UnionType}:
        annotation = get_args(annotation)[0]
    match get_origin(annotation):
        case None if is_dataclass(annotation):
            types = get_type_hints(annotation)
            sent = [each.name for each in fields(annotation) if each.metadata != LOCAL]
            return annotation(**{name: sample(types[name]) for name in sent})
        case None:
            return SAMPLES[annotation.__name__]
        case origin if origin is Literal:
            return get_args(annotation)[0]
        case _:
            return (sample(get_args(annotation)[0]),) * 2


def test_contract_documents_roundtrip():
    classes = {getattr(contract, name) for name in READ}
    for document_class in classes:
        value = sample(document_class)
        parsed = parse_document(document_class, json.loads(json.dumps(create_document(value))), "it")
        assert create_document(parsed) == create_document(value), document_class
        if document_class is Recalled:  # Two errors are never equal.
            parsed, value = replace(parsed, error=None), replace(value, error=None)
        assert parsed == value, document_class
    failed = {"reviewId": "r1", "paths": ["user/a.md"], "meant": 9, "limit": 3}
    error = {"code": "forget_failed", "message": "Too much."}
    assert create_document(parse_document(contract.TaskError, error | failed, "it")) == error | failed
    assert create_document(contract.TaskError(**error)) == error  # Members without a value are omitted.
    with pytest.raises(BadAnswer, match=r"^a superseded entry has no path$"):
        read_task(completed_task("remember", REMEMBERED, superseded=[{}]))


def test_unknown_members_are_ignored_and_new_words_accepted():
    newer = REMEMBERED | {"enforcement": "armoured", "later": {"x": 1}}
    assert read_task(completed_task("remember", newer, later=[])).result.enforcement == "armoured"
    assert read_task(completed_task("remember", REMEMBERED)).result.enforcement is Enforcement.FULL
    older = {name: value for name, value in REMEMBERED.items() if name not in {"decidedBy", "enforcement"}}
    result = read_task(completed_task("remember", older)).result
    assert (result.decided_by, result.enforcement, result.notes, result.superseded) == ("", None, (), ())


def test_local_members_are_neither_sent_nor_read():
    in_process = {"task_id": "t", "seconds": 0.5, "counts": contract.Counts(merged=1), "kept": (KEPT_ENTRY,)}
    sent = {"summary": "x", "touchedTopics": [], "touchedScopes": [], "dedupedEntries": 1, "rejected": 0}
    result = contract.DreamResult(
        summary="x", touched_topics=(), touched_scopes=(), deduped_entries=1, **in_process
    )
    assert create_document(result) == sent
    assert (
        parse_document(contract.DreamResult, sent | {"task_id": "t", "taskId": "t"}, "a result").task_id == ""
    )
    superseded = contract.SupersededEntry("user/a.md", "01", previous_text="The user likes tea.")
    assert create_document(superseded) == {"path": "user/a.md", "id": "01"}


def test_local_members_are_documented_as_empty_over_http():
    for kind in contract.RememberResult, contract.ForgetResult, contract.DreamResult:
        described = get_type_hints(kind, include_extras=True)
        local = {each.name for each in fields(kind) if each.metadata == LOCAL}
        for name in local - {"task_id", "status", "preview", "error"}:
            assert "over HTTP" in described[name].__metadata__[0], (kind, name)


# -- changes of the memory in the format of user interfaces --------------------------------------------

MANAGED = {"scope": "managed", "source": "workspace_memory_remember", "taskId": "remember-1"}
MANAGED |= {"touchedScopes": ["user", "team"]}
FILE = {"scope": "workspace", "filePath": "/w/AGENTS.md", "mode": "append", "bytesWritten": 12}


def test_memory_change_is_normalized_or_none():
    def normalize_data(data):
        return normalize({"id": 4, "v": 1, "type": "memory_changed", "data": data})

    for data in (MANAGED, FILE, FILE | {"scope": "global"}):
        assert normalize_data(data) == {"type": "workspace.memory.changed", **data}
    assert normalize(Event("a-1", "memory_changed", {**MANAGED, "later": 1})) == normalize_data(MANAGED)
    for data in (
        *(None, {}, MANAGED | {"scope": "else"}, MANAGED | {"source": ""}, MANAGED | {"taskId": 7}),
        *(MANAGED | {"touchedScopes": "user"}, MANAGED | {"touchedScopes": [1]}),
        *(FILE | {"scope": "managed"}, FILE | {"filePath": ""}, FILE | {"mode": "delete"}),
        *(FILE | {"bytesWritten": "12"}, FILE | {"bytesWritten": True}),
    ):
        assert normalize_data(data) is None, data


# -- errors --------------------------------------------------------------------------------------------

CLASSES = [
    each
    for each in vars(library).values()
    if inspect.isclass(each) and issubclass(each, library.MunimentError)
]


def test_error_codes_map_to_library_classes():
    seen = set()
    for code in library.CODES:
        raised_as = [
            each for each in CLASSES if code in (each.__dict__.get("codes") or (vars(each).get("code"),))
        ]
        problem = choose_error_class(Problem, code)(code, "No.", status=409)
        failure = choose_error_class(TaskFailed, code)(code, "No.", task_id="remember-1")
        for error in (problem, failure):
            found = [each for each in type(error).__bases__ if each in CLASSES]
            assert (error.code, found) == (code, raised_as)
            seen |= {each.__name__ for each in raised_as}
        assert (str(problem), str(failure)) == ("No.", "No. (remember-1)")
    assert seen >= {"QueueFull", "PendingReview", "UndoOverlap", "InvalidContent", "JobTimeout", "PathEscape"}
    assert type(choose_error_class(Problem, "token_required")("token_required", "?", status=401)) is Problem


def test_daemon_errors_have_library_attributes():
    seen = set()
    for each in CLASSES:
        _, _, attributes = (each.__doc__ or "").partition("Attributes:")
        names = re.findall(r"^ +(\w+)(?:, \w+)?: ", attributes, re.MULTILINE)
        for code in {*each.__dict__.get("codes", ()), each.__dict__.get("code")} & library.CODES.keys():
            problem = choose_error_class(Problem, code)(code, "No.", status=409)
            failure = choose_error_class(TaskFailed, code)(code, "No.", task_id="remember-1")
            assert [name for name in names if not hasattr(problem, name) or not hasattr(failure, name)] == []
            seen |= set(names)
    assert seen >= {
        "reasons",
        "review_id",
        "paths",
        "by",
        "via",
        "requested",
        "reason",
        "rule",
        "task_id",
        "meant",
    }


def test_client_only_codes_are_not_taken_from_daemon():
    for code in ("unreachable", "daemon_unproven", "wait_timeout", "bad_answer", "client_closed", "x" * 99):
        assert type(choose_error_class(Problem, code)(code, "?", status=409)) is Problem
