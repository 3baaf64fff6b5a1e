"""Messages of a Chat Completions host."""


def make_call_message(*numbers, text=None):
    """Build an assistant message with calls."""
    ids = [f"call-{each}" for each in numbers]
    tool_calls = [
        {"id": each, "type": "function", "function": {"name": "ls", "arguments": "{}"}} for each in ids
    ]
    return {"role": "assistant", "content": text, "tool_calls": tool_calls}


def make_result_message(number, text="done"):
    """Build the result of a call."""
    return {"role": "tool", "tool_call_id": f"call-{number}", "content": text}


def make_user_message(text):
    return {"role": "user", "content": text}


def make_assistant_message(text):
    return {"role": "assistant", "content": text}
