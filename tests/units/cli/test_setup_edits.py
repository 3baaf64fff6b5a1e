"""Text edits of settings files, including layouts that the fixtures of the `setup` command do not have."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment.errors import ConfigInvalid
from muniment.integrations.coding_tools.edits import Append, Cut, Json, Put, Toml, edit_text
from muniment.integrations.coding_tools.tools import TOOLS, Program

PROGRAM = Program(("/opt/it's here/muniment",))
HOME = Path("/home/me")
ENTRY = {"command": "x", "args": ["mcp"]}


def put_entry(text, *, comments=True):
    return edit_text(Json(comments=comments), text, Put(("mcpServers", "muniment"), ENTRY))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "mcpServers": {\n    "muniment": {\n'),
        ("{}", '{\n  "mcpServers": {\n    "muniment": {\n'),
        ('{"a":1}', '{"a":1, "mcpServers": {"muniment": {"command": "x", "args": ["mcp"]}}}'),
        ('{\n\t"a": 1\n}\n', '{\n\t"a": 1,\n\t"mcpServers": {\n\t\t"muniment": {\n\t\t\t"command"'),
        ('{\r\n    "a": 1\r\n}', '{\r\n    "a": 1,\r\n    "mcpServers": {\r\n        "muniment": {\r\n'),
        ('{\n  "a": 1 // one, "two"\n}', '{\n  "a": 1, // one, "two"\n  "mcpServers": {\n'),
        ('{\n  "a": 1 /* } */\n  // last\n}', '{\n  "a": 1, /* } */\n  // last\n  "mcpServers": {\n'),
        ('{ "a": 1 // x\n}', '{ "a": 1, // x\n'),
        ('{"mcpServers": {\n  "b": {}\n}}', '{"mcpServers": {\n  "b": {},\n  "muniment": {\n    "command"'),
        ('{\n  "mcpServers": {}\n}', '{\n  "mcpServers": {\n    "muniment": {\n      "command": "x"'),
        ('{"u": "http://x//y", "v": "/*"}', '{"u": "http://x//y", "v": "/*", "mcpServers": {'),
    ],
)
def test_json_entry_is_appended_in_existing_layout(before, after):
    assert put_entry(before).startswith(after)


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": 1,}', "{", "[]", "7", '{"a": NaN}', '{"a": "\n"}', "{" * 100_000, '{"a": 1} x', "{'a': 1}"),
        *('{"mcpServers": []}', '{"mcpServers": {}, "mcpServers": {"a": 1}}', '{"mcpServers": 7}'),
    ],
)
def test_unreadable_or_ambiguous_json_is_not_edited(text):
    with pytest.raises(ConfigInvalid):
        put_entry(text)


def test_comment_is_rejected_if_tool_allows_none():
    text = '{\n  // no\n  "a": 1\n}'
    assert put_entry(text).startswith('{\n  // no\n  "a": 1,')
    with pytest.raises(ConfigInvalid, match="in line 2"):
        put_entry(text, comments=False)


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
)
GROUPS = st.lists(
    st.fixed_dictionaries({"hooks": st.lists(st.fixed_dictionaries({"command": st.text()}))}), max_size=2
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "model": VALUES,
        "mcpServers": st.dictionaries(st.sampled_from(["a", "b", "é\u2028"]), VALUES, max_size=2),
        "hooks": st.dictionaries(
            st.sampled_from(["Stop", "UserPromptSubmit", "BeforeAgent"]), GROUPS, max_size=2
        ),
        'last "one"': VALUES,
    },
)
NOTES = [" // a, note }", " /* {\n // [ */", '\n// "x": 1,\n', ""]


@st.composite
def settings_texts(draw):
    """Draw a settings file in some layout, with comments after some of its lines."""
    layout = draw(
        st.sampled_from([{"indent": 2}, {"indent": "\t"}, {"indent": 4}, {}, {"separators": (",", ":")}])
    )
    text = json.dumps(draw(SETTINGS), ensure_ascii=False, **layout)
    if "indent" in layout:
        notes = draw(st.lists(st.sampled_from(NOTES), min_size=text.count("\n"), max_size=text.count("\n")))
        first, *lines = text.split("\n")
        text = first + "".join(f"{note}\n{line}" for note, line in zip(notes, lines, strict=True))
    text += draw(st.sampled_from(["", "\n", "\n\n// end\n"]) if "indent" in layout else st.just(""))
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


@given(text=settings_texts())
def test_json_setup_and_removal_restore_every_byte(text):
    (part,) = TOOLS["qwen-code"].parts({}, HOME)
    form, after = part.file_format, text
    before = form.parse(text)
    for edit in part.install(before, PROGRAM):
        after = edit_text(form, after, edit)
    found = form.parse(after)
    assert list(part.install(found, PROGRAM)) == [], "a second time changes nothing"
    assert {**found, "hooks": 0, "mcpServers": 0} == {**before, "hooks": 0, "mcpServers": 0}
    assert all(after.count(note) == text.count(note) for note in ("// a, note }", "/* {", '// "x": 1,'))
    for edit in part.remove(found, before):
        after = edit_text(form, after, edit)
    assert form.parse(after) == before
    assert list(form.parse(after)) == list(before)
    assert after == text


CODEX = """\
# Core
model = "m"              # my [default]
text = \"\"\"
[no.table]
# no comment
\"\"\"

[mcp_servers.docs]
args = [
  "-y",  # pinned ]
]

[[hooks.Stop]]
[[hooks.Stop.hooks]]
command = 'bell'

[hooks.state."/home/me/.codex/config.toml:stop:0:0"]
trusted_hash = "sha256:1"
# the end
"""


@pytest.mark.parametrize("text", ["", CODEX, CODEX.replace("\n", "\r\n"), "a = 1\n", "[mcp_servers]\n"])
def test_toml_tables_are_appended_and_removed_completely(text):
    (part,) = TOOLS["codex"].parts({}, HOME)
    after = text
    for edit in part.install(part.file_format.parse(text), PROGRAM):
        after = edit_text(part.file_format, after, edit)
    assert after.startswith(text)
    found = tomllib.loads(after)
    assert shlex.split(found["hooks"]["SessionStart"][0]["hooks"][0]["command"])[0] == PROGRAM.arguments[0]
    assert list(part.install(found, PROGRAM)) == []
    # Codex appends text below, and a person edits between.
    more = '\n[projects."/p"]\ntrust_level = "trusted"\n'
    for written, left in ((after, text), (after + more, text + more)):
        bare = written
        for edit in part.remove(tomllib.loads(written), {}):
            bare = edit_text(part.file_format, bare, edit)
        # A header without content is removed together with the table; an empty header has no meaning.
        assert bare == (left.removeprefix(text) if text == "[mcp_servers]\n" else left)


def test_toml_update_replaces_program_and_keeps_comments():
    text = (
        '[mcp_servers.muniment]\ncommand = "old"  # here\nargs = [\n  "mcp", # first\n]\n'
        'default_tools_approval_mode = "approve"\n'
    )
    new = edit_text(Toml(), text, Put(("mcp_servers", "muniment", "command"), "ne#w"))
    assert new == text.replace('"old"', '"ne#w"')
    new = edit_text(Toml(), new, Put(("mcp_servers", "muniment", "args"), ["-m", "muniment", "mcp"]))
    assert tomllib.loads(new)["mcp_servers"]["muniment"]["args"] == ["-m", "muniment", "mcp"]
    assert new.endswith('default_tools_approval_mode = "approve"\n')


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ('mcp_servers = { a = { command = "x" } }\n', Put(("mcp_servers", "muniment"), ENTRY)),
        ("hooks.Stop = []\n", Append(("hooks", "Stop"), {"hooks": [{"command": "x"}]})),
        ("mcp_servers.muniment.command = 'x'\n", Cut(("mcp_servers", "muniment"))),
        ("a = 1\nmcp_servers = 7\n", Put(("mcp_servers", "muniment"), ENTRY)),
        ("[mcp_servers]\n[mcp_servers]\n", Put(("mcp_servers", "muniment"), ENTRY)),
        ("[mcp_servers.muniment]\n", Put(("mcp_servers", "muniment"), ENTRY)),
        ("mcp_servers.muniment.args = []\n", Put(("mcp_servers", "muniment", "env"), {"A": "b"})),
        ("[[hooks.Stop]]\na=1\n[[hooks.X]]\n[[hooks.Stop]]\na=2\n", Put(("hooks", "Stop", 1, "a"), 3)),
        ("[[hooks.Stop]]\n[hooks.Stop]\n", Append(("hooks", "Stop"), {"a": 1})),
        ("x = " + "[" * 20_000, Put(("mcp_servers", "muniment"), ENTRY)),
        ("\ufeffa = 1\n", Put(("mcp_servers", "muniment"), ENTRY)),
        ("a = \n", Put(("mcp_servers", "muniment"), ENTRY)),
        ("a = 1\na = 2\n", Put(("mcp_servers", "muniment"), ENTRY)),
    ],
)
def test_toml_layout_that_cannot_be_edited_is_rejected(text, edit):
    with pytest.raises(ConfigInvalid):
        edit_text(Toml(), text, edit)


@pytest.mark.parametrize(
    ("text", "edit", "after"),
    [
        (
            "mcp_servers.muniment.command = 'x' # mine\n",
            Put(("mcp_servers", "muniment", "command"), "y"),
            'mcp_servers.muniment.command = "y" # mine\n',
        ),
        (
            'mcp_servers = { muniment = { command = "x" }, b = {} }\n',
            Put(("mcp_servers", "muniment", "command"), "y"),
            'mcp_servers = { muniment = { command = "y" }, b = {} }\n',
        ),
        (
            "a = 1\n",
            Put(("mcp_servers", "muniment"), {"command": "\x7f"}),
            'a = 1\n\n[mcp_servers.muniment]\ncommand = "\\u007f"\n',
        ),
        (
            "[mcp_servers.muniment]\r\nargs = []\r\n\r\n# mine\r\n[z]\r\n",
            Put(("mcp_servers", "muniment", "env"), {"A b": "c"}),
            '[mcp_servers.muniment]\r\nargs = []\r\nenv = {"A b" = "c"}\r\n\r\n# mine\r\n[z]\r\n',
        ),
        (
            "[mcp_servers.muniment]\na = 1\n\n[z]\n\n[mcp_servers.muniment.env] # ##\nb = 1\n# mine\n\n[y]\n",
            Cut(("mcp_servers",)),
            "\n[z]\n# mine\n\n[y]\n",
        ),
    ],
)
def test_toml_edit_keeps_comments_and_layout(text, edit, after):
    assert edit_text(Toml(), text, edit) == after


BLOCKS = (
    '[mcp_servers.docs]\ncommand = "d" # docs\n',
    '[mcp_servers.docs.env]\nK = "v"\n# tail\n',
    "[[hooks.Stop]]\n[[hooks.Stop.hooks]]\ncommand = 'bell'\n",
    "[[hooks.UserPromptSubmit]]\n  [[hooks.UserPromptSubmit.hooks]]\n  command = 'bell' # c\n",
    '[hooks.state."x:y"]\ntrusted = "1"\n',
    '[projects."/p"]\nt = """\n[x]\n# no\n"""\n',
    "[hooks]\n",
    "# c\n\n",
    "\n",
)


@given(
    blocks=st.lists(st.sampled_from(BLOCKS), unique=True),
    below=st.sampled_from(["", '\n# mine\n[projects."/z"]\nt = 1\n']),
    end=st.sampled_from(["\n", "\r\n"]),
    homes=st.tuples(*[st.sampled_from([None, "/my home"])] * 2),
)
def test_toml_setup_and_removal_restore_every_byte(blocks, below, end, homes):
    text, below = ("a = 1 # x\n" + "".join(blocks)).replace("\n", end), below.replace("\n", end)
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    (part,) = TOOLS["codex"].parts({}, HOME)
    after = text
    for word, home in zip(("/old/muniment", "/new/muniment"), homes, strict=True):
        for edit in part.install(part.file_format.parse(after), Program((word,), home)):
            after = edit_text(part.file_format, after, edit)
    assert after.startswith(text)
    after += below
    for edit in part.remove(part.file_format.parse(after), {}):
        after = edit_text(part.file_format, after, edit)
    left = text + below
    if "[hooks]" in text and "hooks" not in tomllib.loads(text.replace(f"[hooks]{end}", "")):
        # An empty header is removed together with the content below it.
        left = left.replace(f"[hooks]{end}", "")
        after = after.replace(f"[hooks]{end}", "")
        assert after.split() == left.split()
    else:
        assert after == left


def test_text_to_paste_equals_installed_text():
    for tool in TOOLS.values():
        for part in tool.parts({}, HOME):
            text = part.render_entries(PROGRAM)
            assert list(part.install(part.file_format.parse(text), PROGRAM)) == []
            assert not re.search(r"[ \t]\n", text)
