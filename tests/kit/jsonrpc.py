"""Ids that a JSON-RPC request must not have."""

INVALID_IDS = (
    *("1.5", "1.0", "-0.5", "1e2", "null", "NaN", "Infinity", "-Infinity"),
    *("true", "false", "{}", "[]", "[1]", '{"a": 1}'),
)
"""Invalid ids, as JSON text."""
