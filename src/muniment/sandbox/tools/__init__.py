"""The tools `read_file`, `grep`, `ls`, `write_file` and `edit`, and the worker that serves them.

Start reading at `workbench.py`, which executes a call. `service.py` and `remote.py` are the two ends of the
protocol that sends calls to a worker. No module here writes a file or knows a path of the host.
"""
