"""Messages of a Chat Completions host."""


def calling(*numbers, text=None):
    """Build an assistant message with calls."""
    ids = [f"call-{each}" for each in numbers]
    called = [{"id": each, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": text, "tool_calls": called}


def result(number, text="done"):
    """Build the result of a call."""
    return {"role": "tool", "tool_call_id": f"call-{number}", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}
