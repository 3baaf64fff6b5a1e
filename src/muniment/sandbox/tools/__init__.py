"""The five tools, and the worker that serves them.

Start reading at `workbench.py`, which executes a call; `service.py` and `remote.py` are the two ends
of the protocol that carries calls into a worker. Nothing here writes a file or knows a host path.
"""
