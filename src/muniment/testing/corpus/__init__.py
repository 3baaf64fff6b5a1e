"""Attacks and ordinary calls as data, and what executes them against a memory tool.

    from muniment.testing.corpus import load_corpus, run_case

    corpus = load_corpus()
    for name, case in corpus.cases.items():
        for failure in run_case(case, directory / name, corpus.canary, open_subject):
            print(name, failure.kind, failure.text)

`open_subject` binds the tool under test to the directories of a `Stage` and returns a `Subject`: three
methods, `call`, `commit` and `close`. Only that has to be written to point the corpus at another tool;
`subjects` does it for Muniment. The format is described in `README.md` beside this file.

A case runs in this process, in throwaway directories. Hangs, crashes and what a tool steals from its
environment are seen only where cases run in a process of their own: `driver` and `running`.

The checks of generated indexes need `markdown-it-py` (`pip install 'muniment[testing]'`); nothing else here
needs more than the standard library, but for `subjects`.
"""

from __future__ import annotations

from muniment.testing.corpus.judging import run_case
from muniment.testing.corpus.stage import (
    Answer,
    Case,
    CaseOutcome,
    Committed,
    Corpus,
    Failure,
    Inexpressible,
    Kind,
    OpenSubject,
    Stage,
    Subject,
    load_corpus,
)

__all__ = [
    "Answer",
    "Case",
    "CaseOutcome",
    "Committed",
    "Corpus",
    "Failure",
    "Inexpressible",
    "Kind",
    "OpenSubject",
    "Stage",
    "Subject",
    "load_corpus",
    "run_case",
]
