"""A service that cannot be imported."""

raise RuntimeError("broken on purpose")
