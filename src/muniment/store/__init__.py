"""The broker's side of memory: a change-set is judged, committed and indexed.

Start reading at `commit.py`, whose numbered steps name the other modules. Never imported by a worker.
"""
