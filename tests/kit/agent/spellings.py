"""Encodings of calls by models, and ways in which a text with a call may be displayed or quoted.

Written from the chat templates of the models, independently of the parser under test.
"""

import json

from hypothesis import strategies as st

TOOLS = ("read_file", "grep", "ls", "write_file", "edit")

texts = st.text(max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
"""Any JSON value."""
arguments = st.fixed_dictionaries(
    {"path": texts},
    optional={"content": texts, "limit": st.integers(), "replace_all": st.booleans(), "old_string": texts},
)


def to_deepseek_token(text):
    """Convert plain bars and underscores into the special characters of DeepSeek tokens."""
    return text.replace("<|", "<\uff5c").replace("|>", "\uff5c>").replace("_", "\u2581")


# -- a form: (tool, arguments) -> text --------------------------------------------------------------------


def encode_hermes(tool, arguments):
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def format_json(before, after, name="name", arguments_key="arguments", **dump):
    return lambda tool, arguments: before + json.dumps({name: tool, arguments_key: arguments}, **dump) + after


def format_list(before, after):
    return lambda tool, arguments: f"{before}{json.dumps([{'name': tool, 'arguments': arguments}])}{after}"


def format_named(before, between, after):
    return lambda tool, arguments: f"{before}{tool}{between}{json.dumps(arguments)}{after}"


def format_deepseek(before, *more):
    return format_named(*map(to_deepseek_token, (f"<|tool_calls_begin|><|tool_call_begin|>{before}", *more)))


def format_flat(name):
    return lambda tool, arguments: json.dumps({name: tool, **arguments})


FORMS = {
    "hermes": encode_hermes, "hermes, tag not closed": format_json("<tool_call>", ""),
    "hermes, opening tag lost": format_json("", "\n</tool_call>"),
    "hermes after words": format_json("I shall look first.\n<tool_call>\n", "\n</tool_call>"),
    "hermes before words": format_json("<tool_call>", "</tool_call>\nThat should do."),
    "hermes, name and a newline": format_named("<tool_call>", "\n", "\n</tool_call>"),
    "function_call": format_json("<function_call> ", " </function_call>"),
    "tool": format_json("<tool>", "</tool>"),
    "qwen 2.5 coder": format_json("<tools>\n", "\n</tools>"),
    "tools, a list": format_list("<tools>\n", "\n</tools>"),
    "granite": format_list("<|tool_call|>", "<|end_of_text|>"),
    "granite, one": format_json("<|tool_call|>", ""),
    "lfm": format_list("<|tool_call_start|>", "<|tool_call_end|>"),
    "llama": format_json("<|python_tag|>", "<|eom_id|>", arguments_key="parameters"),
    "llama, typed": lambda tool, args: json.dumps({"type": "function", "name": tool, "parameters": args}),
    "mistral": format_list("[TOOL_CALLS] ", ""),
    "mistral after words": format_list("Let me see.[TOOL_CALLS]", "</s>"),
    "mistral 11": format_named("[TOOL_CALLS]", "", ""),
    "mistral 13": format_named("[TOOL_CALLS]", "[ARGS]", ""),
    "mistral, apart": format_named("[TOOL_CALLS] ", " ", ""),
    "mistral with id": format_named("[TOOL_CALLS]", "[CALL_ID]aB3xY9zQ1[ARGS]", ""),
    "llama with function tag": format_named("<function=", ">", "</function>"),
    "function by attribute": format_named('<function name="', '">\n', "\n</function>"),
    "deepseek 3": format_deepseek(
        "function<|tool_sep|>", "\n```json\n", "\n```<|tool_call_end|><|tool_calls_end|>"),
    "deepseek 3.1": format_deepseek("", "<|tool_sep|>", "<|tool_call_end|>"),
    "kimi": format_named("<|tool_calls_section_begin|><|tool_call_begin|>functions.",
                  ":0<|tool_call_argument_begin|>", "<|tool_call_end|><|tool_calls_section_end|>"),
    "json fence": format_json("```json\n", "\n```"), "fence": format_json("```\n", "\n```"),
    "tool_call fence": format_json("```tool_call\n", "\n```"),
    "fence within words": format_json("First:\n\n```json\n", "\n```\n\nThen I shall write it.", indent=2),
    "fence, not closed": format_json("```json\n", ""), "fence, a list": format_list("```json\n", "\n```"),
    "bare": format_json("", ""), "bare, a list": format_list("", ""),
    "bare after words": format_json("I shall look first.\n\n", "\n"),
    "bare, indented, ASCII": format_json("\n ", " \n", indent=4, ensure_ascii=True),
    "openai": lambda tool, args: json.dumps(
        {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": json.dumps(args)}}
    ),
    "arguments as text": lambda tool, args: json.dumps({"name": tool, "arguments": json.dumps(args)}),
    "tool, args": format_json("", "", "tool", "args"),
    "tool_name, parameters": format_json("", "", "tool_name", "parameters"),
    "function, input": format_json("", "", "function", "input"),
    "action, action_input": format_json("Thought: look.\n", "", "action", "action_input"),
    "flat action": format_flat("action"), "flat name": format_flat("name"),
    "thinking first": format_json('<think>\nls? {"name": "ls"}\n</think>\n', ""),
    "thinking opened by the prompt": format_json("Hm, <tool_call>{\n</think>\n\n<tool_call>", "</tool_call>"),
}  # fmt: skip


def encode_qwen(tool, arguments):
    lines = [f"<parameter={name}>\n{value}\n</parameter>" for name, value in arguments.items()]
    return "\n".join([f"<function={tool}>", *lines, "</function>"])


def prefix_lines(before):
    return lambda text: "\n".join(before.format(at) + line for at, line in enumerate(text.split("\n"), 1))


DISPLAY_FORMS = {
    "plain": lambda text: text, "in one line": lambda text: " ".join(text.split()),
    "numbered": prefix_lines("{}\t"), "found by grep": prefix_lines("user/a.md:{}: "),
    "a token a line, numbered": lambda text: prefix_lines("{}\t")(text.replace(": ", ":\n")),
    "a token a line, found by grep": lambda text: prefix_lines("user/a.md:{}: ")(text.replace(": ", ":\n")),
    "in a markdown quotation": prefix_lines("> "), "in a JSON text": json.dumps,
    "in a JSON text in a JSON text": lambda text: json.dumps(json.dumps(text)),
    "as code points": lambda text: "".join(f"\\u{ord(char):04x}" for char in text if ord(char) < 0x10000),
    "as HTML": lambda text: text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;"),
    "in single quotes": lambda text: text.replace('"', "'"),
    "in typographic quotes": lambda text: text.replace('"', "\u201d"),
    "with wide letters": lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
    "with invisible characters": "\u200b".join, "with invisible letters": "\u3164".join,
    "in italics": lambda text: text.replace('"', '_"_'), "in other case": str.upper,
    "with escaped underscores": lambda text: text.replace("_", "\\_"),
}  # fmt: skip


def reverse_keys(value):
    if not isinstance(value, dict):
        return value
    return {key: reverse_keys(each) for key, each in reversed(value.items())}


QUOTATION_FORMS = {
    "bare": json.dumps, "indented": lambda value: json.dumps(value, indent=4),
    "without white space": lambda value: json.dumps(value, separators=(",", ":")),
    "in another order": lambda value: json.dumps(reverse_keys(value)),
    "in tags": lambda value: f"<tool_call>{json.dumps(value)}</tool_call>",
    "in a fence": lambda value: f"Noted:\n```json\n{json.dumps(value, indent=1)}\n```",
    "in a list": lambda value: f"[TOOL_CALLS]{json.dumps([value])}",
    "escaped": lambda value: json.dumps(value).replace("evil", "\\u0065vil").replace("/", "\\/"),
    "arguments as text": lambda value: json.dumps({**value, "arguments": json.dumps(value["arguments"])}),
    "flat": lambda value: json.dumps({"name": value["name"], **value["arguments"]}),
    "under another key": lambda value: json.dumps({"action": value["name"], **value["arguments"]}),
    "after its name": lambda value: f"[TOOL_CALLS]{value['name']}[ARGS]{json.dumps(value['arguments'])}",
}  # fmt: skip
