"""The types of requests and results, for the library, the client and the HTTP API.

A name is loaded when it is first used, because the classes take 30 ms to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muniment.types.entries import (
        CommittedStep,
        EditResult,
        EntryList,
        EntryShown,
        ExportResult,
        HistoryList,
        IndexResult,
        ListedEntry,
        Origin,
        PinResult,
        Recalled,
        RecalledEntry,
        SkippedFile,
        TrustedText,
    )
    from muniment.types.requests import (
        DreamRequest,
        ForgetRequest,
        RememberRequest,
    )
    from muniment.types.results import (
        MAX_RETAINED,
        AnyTask,
        AuditHead,
        Capabilities,
        Counts,
        DaemonLimits,
        DreamResult,
        DreamTask,
        ErasePlan,
        EraseResult,
        Erasure,
        Explained,
        Feature,
        ForgetResult,
        ForgetTask,
        Health,
        Hello,
        Kind,
        ProtocolVersions,
        PublicTask,
        Readiness,
        RememberResult,
        RememberTask,
        RemovedEntry,
        RetainedEntry,
        Review,
        ReviewDecision,
        ReviewList,
        ReviewShown,
        SimilarEntry,
        Status,
        TaskError,
        TaskList,
        UiOpened,
        UndoResult,
    )
    from muniment.types.runs import (
        Change,
        SupersededEntry,
        Turn,
        Usage,
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
    "TrustedText",
    "Turn",
    "UiOpened",
    "UndoResult",
    "Usage",
]

_HOMES = {
    "Change": "runs",
    "CommittedStep": "entries",
    "DreamRequest": "requests",
    "EditResult": "entries",
    "EntryList": "entries",
    "EntryShown": "entries",
    "ExportResult": "entries",
    "ForgetRequest": "requests",
    "HistoryList": "entries",
    "IndexResult": "entries",
    "ListedEntry": "entries",
    "Origin": "entries",
    "PinResult": "entries",
    "Recalled": "entries",
    "RecalledEntry": "entries",
    "RememberRequest": "requests",
    "SkippedFile": "entries",
    "SupersededEntry": "runs",
    "TrustedText": "entries",
    "Turn": "runs",
    "Usage": "runs",
}
"""The module that defines each name; a name that is missing here is in `results`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'muniment.types' has no attribute {name!r}")
    return getattr(import_module(f"muniment.types.{_HOMES.get(name, 'results')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
