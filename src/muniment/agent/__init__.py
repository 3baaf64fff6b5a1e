"""The headless agent: a model drives five tools within a budget.

Start reading at `runner.py`; `model.py` is what anything that answers a turn must offer.
"""
