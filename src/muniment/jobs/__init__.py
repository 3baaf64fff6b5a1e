"""The composed procedures. `remember.py` is the one there is so far."""
