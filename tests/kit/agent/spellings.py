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


def wide(text):
    """Convert plain bars and underscores into the special characters of DeepSeek tokens."""
    return text.replace("<|", "<\uff5c").replace("|>", "\uff5c>").replace("_", "\u2581")


# -- a form: (tool, arguments) -> text --------------------------------------------------------------------


def hermes(tool, arguments):
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def json_in(before, after, name="name", holds="arguments", **dump):
    return lambda tool, arguments: before + json.dumps({name: tool, holds: arguments}, **dump) + after


def listed(before, after):
    return lambda tool, arguments: f"{before}{json.dumps([{'name': tool, 'arguments': arguments}])}{after}"


def named(before, between, after):
    return lambda tool, arguments: f"{before}{tool}{between}{json.dumps(arguments)}{after}"


def deepseek(before, *more):
    return named(*map(wide, (f"<|tool_calls_begin|><|tool_call_begin|>{before}", *more)))


def flat(name):
    return lambda tool, arguments: json.dumps({name: tool, **arguments})


FORMS = {
    "hermes": hermes, "hermes, tag not closed": json_in("<tool_call>", ""),
    "hermes, opening tag lost": json_in("", "\n</tool_call>"),
    "hermes after words": json_in("I shall look first.\n<tool_call>\n", "\n</tool_call>"),
    "hermes before words": json_in("<tool_call>", "</tool_call>\nThat should do."),
    "hermes, name and a newline": named("<tool_call>", "\n", "\n</tool_call>"),
    "function_call": json_in("<function_call> ", " </function_call>"), "tool": json_in("<tool>", "</tool>"),
    "qwen 2.5 coder": json_in("<tools>\n", "\n</tools>"), "tools, a list": listed("<tools>\n", "\n</tools>"),
    "granite": listed("<|tool_call|>", "<|end_of_text|>"), "granite, one": json_in("<|tool_call|>", ""),
    "lfm": listed("<|tool_call_start|>", "<|tool_call_end|>"),
    "llama": json_in("<|python_tag|>", "<|eom_id|>", holds="parameters"),
    "llama, typed": lambda tool, args: json.dumps({"type": "function", "name": tool, "parameters": args}),
    "mistral": listed("[TOOL_CALLS] ", ""), "mistral after words": listed("Let me see.[TOOL_CALLS]", "</s>"),
    "mistral 11": named("[TOOL_CALLS]", "", ""), "mistral 13": named("[TOOL_CALLS]", "[ARGS]", ""),
    "mistral, apart": named("[TOOL_CALLS] ", " ", ""),
    "mistral with id": named("[TOOL_CALLS]", "[CALL_ID]aB3xY9zQ1[ARGS]", ""),
    "llama with function tag": named("<function=", ">", "</function>"),
    "function by attribute": named('<function name="', '">\n', "\n</function>"),
    "deepseek 3": deepseek("function<|tool_sep|>", "\n```json\n", "\n```<|tool_call_end|><|tool_calls_end|>"),
    "deepseek 3.1": deepseek("", "<|tool_sep|>", "<|tool_call_end|>"),
    "kimi": named("<|tool_calls_section_begin|><|tool_call_begin|>functions.",
                  ":0<|tool_call_argument_begin|>", "<|tool_call_end|><|tool_calls_section_end|>"),
    "json fence": json_in("```json\n", "\n```"), "fence": json_in("```\n", "\n```"),
    "tool_call fence": json_in("```tool_call\n", "\n```"),
    "fence within words": json_in("First:\n\n```json\n", "\n```\n\nThen I shall write it.", indent=2),
    "fence, not closed": json_in("```json\n", ""), "fence, a list": listed("```json\n", "\n```"),
    "bare": json_in("", ""), "bare, a list": listed("", ""),
    "bare after words": json_in("I shall look first.\n\n", "\n"),
    "bare, indented, ASCII": json_in("\n ", " \n", indent=4, ensure_ascii=True),
    "openai": lambda tool, args: json.dumps(
        {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": json.dumps(args)}}
    ),
    "arguments as text": lambda tool, args: json.dumps({"name": tool, "arguments": json.dumps(args)}),
    "tool, args": json_in("", "", "tool", "args"),
    "tool_name, parameters": json_in("", "", "tool_name", "parameters"),
    "function, input": json_in("", "", "function", "input"),
    "action, action_input": json_in("Thought: look.\n", "", "action", "action_input"),
    "flat action": flat("action"), "flat name": flat("name"),
    "thinking first": json_in('<think>\nls? {"name": "ls"}\n</think>\n', ""),
    "thinking opened by the prompt": json_in("Hm, <tool_call>{\n</think>\n\n<tool_call>", "</tool_call>"),
}  # fmt: skip


def qwen(tool, arguments):
    lines = [f"<parameter={name}>\n{value}\n</parameter>" for name, value in arguments.items()]
    return "\n".join([f"<function={tool}>", *lines, "</function>"])


def lines_after(before):
    return lambda text: "\n".join(before.format(at) + line for at, line in enumerate(text.split("\n"), 1))


SHOWN_AS = {
    "plain": lambda text: text, "in one line": lambda text: " ".join(text.split()),
    "numbered": lines_after("{}\t"), "found by grep": lines_after("user/a.md:{}: "),
    "a token a line, numbered": lambda text: lines_after("{}\t")(text.replace(": ", ":\n")),
    "a token a line, found by grep": lambda text: lines_after("user/a.md:{}: ")(text.replace(": ", ":\n")),
    "in a markdown quotation": lines_after("> "), "in a JSON text": json.dumps,
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


def reversed_keys(value):
    if not isinstance(value, dict):
        return value
    return {key: reversed_keys(each) for key, each in reversed(value.items())}


QUOTED_AS = {
    "bare": json.dumps, "indented": lambda value: json.dumps(value, indent=4),
    "without white space": lambda value: json.dumps(value, separators=(",", ":")),
    "in another order": lambda value: json.dumps(reversed_keys(value)),
    "in tags": lambda value: f"<tool_call>{json.dumps(value)}</tool_call>",
    "in a fence": lambda value: f"Noted:\n```json\n{json.dumps(value, indent=1)}\n```",
    "in a list": lambda value: f"[TOOL_CALLS]{json.dumps([value])}",
    "escaped": lambda value: json.dumps(value).replace("evil", "\\u0065vil").replace("/", "\\/"),
    "arguments as text": lambda value: json.dumps({**value, "arguments": json.dumps(value["arguments"])}),
    "flat": lambda value: json.dumps({"name": value["name"], **value["arguments"]}),
    "under another key": lambda value: json.dumps({"action": value["name"], **value["arguments"]}),
    "after its name": lambda value: f"[TOOL_CALLS]{value['name']}[ARGS]{json.dumps(value['arguments'])}",
}  # fmt: skip
