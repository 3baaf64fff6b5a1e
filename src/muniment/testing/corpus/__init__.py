"""Attacks and ordinary calls as data, and the interpreter that runs them against a memory tool.

    from muniment.testing.corpus import load_corpus, run_case

    corpus = load_corpus()
    for name, case in corpus.cases.items():
        for failure in run_case(case, directory / name, corpus.canary, open_subject):
            print(name, failure.kind, failure.text)

`open_subject` binds the tool under test to the directories of a `Stage` and returns a `Subject` with three
methods: `call`, `commit` and `close`. To test another tool, write only this adapter; `subjects` contains the
adapter for Muniment. `README.md` in this directory describes the format of a case.

`run_case` runs a case in this process, in throwaway directories. To detect hangs, crashes and reads of the
environment, run the cases in separate processes, with `driver` and `running`.

The checks of generated indexes need `markdown-it-py` (`pip install 'muniment[testing]'`). Everything else,
except `subjects`, needs only the standard library.
"""

from __future__ import annotations

from muniment.testing.corpus.judging import run_case
from muniment.testing.corpus.stage import (
    CallResult,
    Case,
    CaseOutcome,
    CommitOutcome,
    Corpus,
    Failure,
    FailureKind,
    OpenSubject,
    Stage,
    Subject,
    UnsupportedCall,
    load_corpus,
)

__all__ = [
    "CallResult",
    "Case",
    "CaseOutcome",
    "CommitOutcome",
    "Corpus",
    "Failure",
    "FailureKind",
    "OpenSubject",
    "Stage",
    "Subject",
    "UnsupportedCall",
    "load_corpus",
    "run_case",
]
