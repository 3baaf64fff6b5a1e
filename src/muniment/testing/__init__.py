"""Public test support: scripted models and a clock that stands still until told otherwise."""
