"""What no request of JSON-RPC may have."""

INVALID_IDS = (
    *("1.5", "1.0", "-0.5", "1e2", "null", "NaN", "Infinity", "-Infinity"),
    *("true", "false", "{}", "[]", "[1]", '{"a": 1}'),
)
"""Invalid ids, as they stand in a message."""
