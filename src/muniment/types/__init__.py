"""The types of requests and results, for the library, the client and the HTTP API.

A name is loaded when it is first used, because the classes take 30 ms to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muniment.types.daemon import (
        Capabilities,
        DaemonLimits,
        Feature,
        Health,
        Hello,
        ProtocolVersions,
        Readiness,
    )
    from muniment.types.entries import (
        EditResult,
        EntryList,
        EntryShown,
        ExportResult,
        IndexResult,
        ListedEntry,
        PinResult,
        SkippedFile,
    )
    from muniment.types.history import CommittedStep, HistoryList, Origin, TrustedText
    from muniment.types.owner import (
        AuditHead,
        ErasePlan,
        EraseResult,
        Erasure,
        Explained,
        Review,
        ReviewDecision,
        ReviewList,
        ReviewShown,
        UiOpened,
        UndoResult,
    )
    from muniment.types.recalled import Recalled, RecalledEntry
    from muniment.types.requests import DreamRequest, EntryPart, ForgetRequest, RememberRequest
    from muniment.types.results import (
        MAX_RETAINED,
        Counts,
        DreamResult,
        ForgetResult,
        Kind,
        RememberResult,
        RemovedEntry,
        RetainedEntry,
        SimilarEntry,
        Status,
        TidyStep,
    )
    from muniment.types.runs import Change, SupersededEntry, Turn, Usage
    from muniment.types.tasks import (
        AnyTask,
        DreamTask,
        ForgetTask,
        PublicTask,
        RememberTask,
        TaskError,
        TaskList,
    )

__all__ = [
    "MAX_RETAINED",
    "AnyTask",
    "AuditHead",
    "Capabilities",
    "Change",
    "CommittedStep",
    "Counts",
    "DaemonLimits",
    "DreamRequest",
    "DreamResult",
    "DreamTask",
    "EditResult",
    "EntryList",
    "EntryPart",
    "EntryShown",
    "ErasePlan",
    "EraseResult",
    "Erasure",
    "Explained",
    "ExportResult",
    "Feature",
    "ForgetRequest",
    "ForgetResult",
    "ForgetTask",
    "Health",
    "Hello",
    "HistoryList",
    "IndexResult",
    "Kind",
    "ListedEntry",
    "Origin",
    "PinResult",
    "ProtocolVersions",
    "PublicTask",
    "Readiness",
    "Recalled",
    "RecalledEntry",
    "RememberRequest",
    "RememberResult",
    "RememberTask",
    "RemovedEntry",
    "RetainedEntry",
    "Review",
    "ReviewDecision",
    "ReviewList",
    "ReviewShown",
    "SimilarEntry",
    "SkippedFile",
    "Status",
    "SupersededEntry",
    "TaskError",
    "TaskList",
    "TidyStep",
    "TrustedText",
    "Turn",
    "UiOpened",
    "UndoResult",
    "Usage",
]

_MODULES = {
    "daemon": "Capabilities DaemonLimits Feature Health Hello ProtocolVersions Readiness",
    "entries": "EditResult EntryList EntryShown ExportResult IndexResult ListedEntry PinResult SkippedFile",
    "history": "CommittedStep HistoryList Origin TrustedText",
    "owner": "AuditHead ErasePlan EraseResult Erasure Explained Review ReviewDecision ReviewList "
    "ReviewShown UiOpened UndoResult",
    "recalled": "Recalled RecalledEntry",
    "requests": "DreamRequest EntryPart ForgetRequest RememberRequest",
    "runs": "Change SupersededEntry Turn Usage",
    "tasks": "AnyTask DreamTask ForgetTask PublicTask RememberTask TaskError TaskList",
}
"""The names that each module defines; a name that is missing here is in `results`."""

_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'muniment.types' has no attribute {name!r}")
    return getattr(import_module(f"muniment.types.{_HOMES.get(name, 'results')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
