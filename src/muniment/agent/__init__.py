"""The headless agent: a model drives five tools within a budget.

Start reading at `runner.py`; `model.py` defines the interface of a model. There are two implementations:

- `filing.py`, the embedded writer: it decides by the words of `cues.toml` (`decision.py`) and writes the
  files.
- `openai.py`, the adapter of language models: `chat.py` builds requests, `response.py` interprets responses
  and errors, and `decision.py` defines what a model may decide if `filing.py` writes the files.
"""
