"""The headless agent: a model drives five tools within a budget.

Start reading at `runner.py`; `model.py` is what anything that answers a turn must offer. Two things do:

- `filing.py`, the embedded writer: it decides by the words of `cues.toml` (`decision.py`) and files.
- `openai.py`, the adapter of language models: `chat.py` says what is sent, `answer.py` what the answer or a
  refusal means, and `decision.py` what a model may decide, where `filing.py` files.
"""
