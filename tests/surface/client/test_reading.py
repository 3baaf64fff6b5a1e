"""What the daemon says becomes values, and what it should not say becomes an error."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from functools import partial

from kit.client.scripted import RECALLED, REMEMBERED, task
from kit.raising import raised
from muniment import errors as library
from muniment.client import core, normalize, results
from muniment.client.core import event_of, recalled_of, task_of
from muniment.client.errors import BadAnswer, Problem, TaskFailed, told_as
from muniment.client.results import Event
from muniment.daemon import contract

REMOVED = {"topic": "preference", "summary": "Dark mode", "filePath": "user/editor.md"}
FORGOTTEN = {"summary": "x", "removedEntries": [REMOVED], "touchedTopics": [], "touchedScopes": ["user"]}
DREAMT = {"summary": "x", "touchedTopics": [], "touchedScopes": [], "dedupedEntries": 3, "rejected": 1}
TOLD = {"v": 1, "type": "task", "data": {"taskId": "dream-1"}, "originatorClientId": "web"}


def done(kind, good, **bad):
    return task("completed", kind, result=good | bad)


def test_what_is_no_task_no_event_and_no_recall_is_refused():
    assert task_of(done("forget", FORGOTTEN)).result.removed_entries[0].file_path == "user/editor.md"
    assert task_of(done("dream", DREAMT)).result.deduped_entries == 3
    assert event_of("a-1", TOLD) == Event("a-1", "task", {"taskId": "dream-1"}, "web")
    entry = RECALLED["entries"][0]
    wrong = {"entries": (None, {}, [1], [{}], [entry | {"id": 7}]), "text": (None, 7)}
    wrong |= {"tokens": (None, "7", True, 7.5), "abstained": (None, 0, "false"), "error": (7, {"code": "x"})}
    tasks = [None, [], "task", {}, *(task() | {"taskId": each} for each in (7, "undo-1"))]
    tasks += [*(task() | {"status": each} for each in ("sleeping", None)), task() | {"createdAt": None}]
    tasks += [task("completed"), task("completed", result=[]), task("completed", result={})]
    tasks += [done("remember", REMEMBERED, filesTouched=each) for each in ("user/a.md", [1])]
    tasks += [done("remember", REMEMBERED, summary=1), done("dream", DREAMT, dedupedEntries="3")]
    tasks += [done("dream", DREAMT, dedupedEntries=True), task("failed"), task("failed", error={})]
    tasks += [done("forget", FORGOTTEN, removedEntries=[each]) for each in (1, {})]
    tasks += [task("failed", error={"code": "x", "paths": "a.md"})]
    wrong_events = (("data", None), ("type", 1), ("originatorClientId", 1))
    events = (None, {}, *(TOLD | {name: each} for name, each in wrong_events))
    recalls = (None, [], {}, *(RECALLED | {name: each} for name in wrong for each in wrong[name]))
    one_event = partial(event_of, "a-1")
    for read, documents in ((task_of, tasks), (recalled_of, recalls), (one_event, events)):
        for document in documents:
            raised(BadAnswer, read, document)


def test_a_task_that_waits_for_the_owner_names_its_review():
    error = {"code": "pending_review", "message": "A sentence."}
    for told in ({"error": error | {"reviewId": "r1"}}, {"error": error, "reviewId": "r1"}):
        failed = task_of(task("failed", **told))
        assert raised(library.PendingReview, lambda failed=failed: failed.outcome).review_id == "r1"


# -- against the daemon's own models -------------------------------------------------------------------


def test_what_the_daemon_tells_the_owner_is_read_as_a_whole():
    samples = {"str": "text", "int": 7}
    denied = {"verdict": "deny", "rule": "R1", "layer": "strict", "reason": "why"}
    for name, values, read in (
        *(("ReviewShown", {}, core.review_of), ("Undone", {}, core.undone_of)),
        ("Decided", {"status": "approved", "task_id": "x-1"}, core.decided_of),
        ("Decided", {"status": "rejected", "task_id": None}, core.decided_of),
        ("ErasePlan", {"status": "preview"}, core.erased_of),
        ("EraseReceipt", {"status": "erased"}, core.erased_of),
        *(("AuditHead", {}, core.audit_head_of), ("Explained", denied, core.explained_of)),
    ):
        model, kind = getattr(contract, name), getattr(results, name)
        shape = model.model_fields
        types = {each: getattr(shape[each].annotation, "__name__", "") for each in shape}
        filled = {each: samples.get(of, ["one", "two"]) for each, of in types.items()} | values
        document = contract.as_wire(model.model_construct(**filled))
        found = read(document)
        names = {field.name for field in fields(kind)}
        assert (type(found), names >= set(types) - {"status"}) == (kind, True)
        for field in names:
            sent = document.get(contract.to_camel(field))
            assert getattr(found, field) == (tuple(sent) if isinstance(sent, list) else sent)


def test_a_result_has_the_fields_of_the_daemons_model():
    recalls = "Recalled", "RecalledEntry"
    for name in ("RememberResult", "ForgetResult", "DreamResult", "RemovedEntry", "TaskError", *recalls):
        model, found = getattr(contract, name), fields(getattr(results, name))
        assert {field.name for field in found} == set(model.model_fields)
        needed = {field.name for field in found if field.default is MISSING}
        assert needed <= {name for name, field in model.model_fields.items() if field.is_required()}


# -- changes of the memory, as user interfaces of the contract know them -------------------------------

MANAGED = {"scope": "managed", "source": "workspace_memory_remember", "taskId": "remember-1"}
MANAGED |= {"touchedScopes": ["user", "team"]}
FILE = {"scope": "workspace", "filePath": "/w/AGENTS.md", "mode": "append", "bytesWritten": 12}


def test_a_change_has_the_shape_that_user_interfaces_know_or_is_none():
    def changed(data):
        return normalize({"id": 4, "v": 1, "type": "memory_changed", "data": data})

    for data in (MANAGED, FILE, FILE | {"scope": "global"}):
        assert changed(data) == {"type": "workspace.memory.changed", **data}
    assert normalize(Event("a-1", "memory_changed", {**MANAGED, "later": 1})) == changed(MANAGED)
    for data in (
        *(None, {}, MANAGED | {"scope": "else"}, MANAGED | {"source": ""}, MANAGED | {"taskId": 7}),
        *(MANAGED | {"touchedScopes": "user"}, MANAGED | {"touchedScopes": [1]}),
        *(FILE | {"scope": "managed"}, FILE | {"filePath": ""}, FILE | {"mode": "delete"}),
        *(FILE | {"bytesWritten": "12"}, FILE | {"bytesWritten": True}),
    ):
        assert changed(data) is None, data


# -- errors --------------------------------------------------------------------------------------------

CLASSES = [
    each
    for each in vars(library).values()
    if inspect.isclass(each) and issubclass(each, library.MunimentError)
]


def test_what_the_daemon_says_by_a_code_of_the_library_is_caught_as_the_library_would_raise_it():
    seen = set()
    for code in library.CODES:
        raised_as = [
            each for each in CLASSES if code in (each.__dict__.get("codes") or (vars(each).get("code"),))
        ]
        problem = told_as(Problem, code)(code, "No.", status=409)
        failure = told_as(TaskFailed, code)(code, "No.", task_id="remember-1")
        for error in (problem, failure):
            found = [each for each in type(error).__bases__ if each in CLASSES]
            assert (error.code, found) == (code, raised_as)
            seen |= {each.__name__ for each in raised_as}
        assert (str(problem), str(failure)) == ("No.", "No. (remember-1)")
    assert seen >= {"QueueFull", "PendingReview", "UndoOverlap", "InvalidContent", "JobTimeout", "PathEscape"}
    assert type(told_as(Problem, "token_required")("token_required", "?", status=401)) is Problem


def test_who_catches_an_error_of_the_library_may_read_its_attributes_also_of_a_daemons():
    untold = {
        "PendingReview": "reasons",
        "AlreadyUndone": "by",
        "ReviewClosed": "decision",
        "PathEscape": "tool",
    }
    for name, attribute in untold.items():
        code = vars(vars(library)[name])["code"]
        assert not getattr(told_as(TaskFailed, code)(code, "No.", task_id="remember-1"), attribute)
