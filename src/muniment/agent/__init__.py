"""The agent: in a run, a model changes the memory with five tools, within a budget and without a user.

Start reading at `runner.py`, which contains the loop of a run; `model.py` defines the interface of a model.
There are two implementations of a model:

- `filing.py`, the built-in rules: they decide by the phrases of `cues.toml` (`decision.py`), and write the
  files.
- `openai.py`, the adapter of language models. `chat.py` builds requests; `response.py` interprets responses,
  and
  `complaint.py` errors. A language model may also only decide, and `filing.py` writes the files.
"""
