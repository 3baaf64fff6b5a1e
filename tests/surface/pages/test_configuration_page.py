"""The pages about configuration, entries and systems say what the code does."""

import os
import re
import subprocess
import sys

from kit.memories import make_roots, put
from kit.shell import text_of
from muniment import portable, settings
from muniment.cli import options
from muniment.cli.terminal import LOG_VARIABLE
from muniment.content.entry import TYPES, parse, titled
from muniment.content.frontmatter import MAX_FRONT_MATTER_BYTES
from muniment.kernel.names import MAX_DEPTH, MAX_PATH_BYTES, MAX_SEGMENT_BYTES
from muniment.kernel.path import RESERVED_ASCII
from muniment.policy.load import load_policy

CONFIGURATION, ENTRIES, SYSTEMS = (
    text_of(f"docs/{name}.md") for name in ("configuration", "entry-format", "platforms")
)


def rows_of(text, heading):
    """The cells of the first table below a heading, without its head."""
    table = f"\n{text}".split(f"\n{heading}\n")[1].split("\n|", 1)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in table.split("\n")[2:]]


def block_of(text, language):
    return text.split(f"```{language}\n")[1].split("```")[0]


# -- configuration -------------------------------------------------------------------------------------


def test_the_page_names_every_key_variable_and_flag_of_the_code_and_no_other():
    rows = rows_of(CONFIGURATION, "## Settings")
    keys = [row[0].strip("`") for row in rows]
    assert sorted(keys) == sorted(settings._CONFIG_KEYS)
    variables = {row[0].strip("`"): row[1].strip("`") for row in rows if row[1]}
    assert variables == dict(settings._VARIABLES)
    named = set(re.findall(r"MUNIMENT_[A-Z_]+", CONFIGURATION))
    alone = {settings.HOME_VARIABLE, settings.KEY_VARIABLE, LOG_VARIABLE}
    assert named == {*variables.values(), *alone}
    flags = {row[2].strip("`").split(" ")[0] for row in rows if row[2]}
    assert flags == {f"--{name}" for name in words_of(options)}


def words_of(module):
    """The names of the options that commands share and that stand for a setting."""
    of = {"PolicyName": "policy", "Roots": "root", "Symlinks": "symlinks", "ModelName": "model"}
    of |= {"BaseUrl": "base-url", "ApiKeyFile": "api-key-file", "ProtocolName": "protocol"}
    of |= {"OnModelFailure": "on-model-failure"}
    others = {
        "Workspace",
        "PolicyArgument",
        "Ledger",
        "NodeName",
        "Slots",
        "Lease",
        "Expires",
        "Json",
        "ToolName",
        "ShellName",
        "MemoryFlags",
        "ModelFlags",
        "RunFlags",
    }
    shared = {name for name in vars(module) if name[0].isupper()} - {
        "Annotated",
        "Path",
        "StrEnum",
        "TypedDict",
    }
    assert shared == {*of, *others}, "an option that is new: does it stand for a setting?"
    return of.values()


def test_the_example_is_read_and_every_default_of_the_table_holds(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    default = settings.read_settings({"MUNIMENT_HOME": str(home)})
    for key, _, _, said, _ in rows_of(CONFIGURATION, "## Settings"):
        found = getattr(default, key.strip("`"))
        assert said in {"none", "see below"} if not found else said == f"`{found}`", key
    (home / "config.toml").write_text(block_of(CONFIGURATION, "toml"))
    found = settings.read_settings({"MUNIMENT_HOME": str(home), "HOME": str(tmp_path)})
    assert (found.model, found.roots["user"].parts[-2:]) == ("qwen3-4b", ("notes", "memory"))


RULES = """
import builtins, json, socket, subprocess, sys

def refused(*_, **__):
    raise AssertionError("the rules did it")

import muniment
with muniment.open(workspace=".", home=sys.argv[1]) as memory:
    memory.remember("The user prefers tabs")  # Starts the worker; what it takes to be fenced is done.
    socket.socket.connect = subprocess.Popen.__init__ = refused
    done = [memory.remember(fact) for fact in sys.argv[2:]]
    loaded = [name for name in ("openai", "httpx2", "ssl") if name in sys.modules]
    print(json.dumps([[each.files_touched, each.status] for each in done] + [loaded]))
"""


def test_the_rules_open_no_connection_start_nothing_and_write_a_fact_word_for_word(tmp_path):
    facts = ["Staging runs on Postgres 16 behind pgbouncer", "The user prefers dark mode in all editors"]
    (tmp_path / "work" / ".git").mkdir(parents=True)
    line = [sys.executable, "-c", RULES, str(tmp_path / "home"), *facts]
    done = subprocess.run(
        line, cwd=tmp_path / "work", capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("[]]"), "neither a client nor TLS is loaded"
    bodies = {parse(path.read_bytes()).body.strip() for path in (tmp_path / "home").rglob("*.md")}
    assert set(facts) <= bodies


# -- entries -------------------------------------------------------------------------------------------


def test_the_example_of_an_entry_is_parsed_as_the_page_says_and_found(tmp_path, memory):
    text = block_of(ENTRIES, "markdown")
    entry = parse(text)
    assert (entry.notes, entry.type, entry.keywords) == ((), "project", ("postgres", "pgbouncer"))
    assert entry.expires == "2026-12-31"
    assert titled(entry, "x.md").name == entry.name == "Staging database"
    bare = parse("# Heading\n\nThe first line.\n")
    assert (titled(bare, "x.md").name, titled(bare, "x.md").description) == ("Heading", "The first line.")
    roots = make_roots(tmp_path)
    put(roots["project"], "deploy/staging.md", text.replace("expires: 2026-12-31\n", ""))
    (found,) = memory(roots=roots).recall("which postgres does staging run on").entries
    assert found.path == "project/deploy/staging.md"


def test_the_keys_limits_and_reserved_characters_are_those_of_the_code():
    keys = [row[0].strip("`") for row in rows_of(ENTRIES, "## Front matter")]
    assert keys == ["name", "description", "type", "keywords", "expires", "ends", "muniment"]
    row = next(row for row in rows_of(ENTRIES, "## Front matter") if row[0] == "`type`")
    assert re.findall(r"`([a-z]+)`", row[1]) == list(TYPES)
    limits = dict(rows_of(ENTRIES, "## Names, folders, limits"))
    sizes = (MAX_SEGMENT_BYTES, MAX_PATH_BYTES, MAX_FRONT_MATTER_BYTES)
    assert re.findall("[0-9][0-9 ]*", limits["lengths"]) == [f"{size:,} ".replace(",", " ") for size in sizes]
    assert f"up to {MAX_DEPTH - 2} folders" in limits["file"]
    (quota,) = load_policy("strict").quotas
    assert f"{quota.max_file_bytes:,}".replace(",", " ") in limits["size"]
    shown = limits["name"].split("<code>")[1].split("</code>")[0]
    for name, char in (("lt", "<"), ("gt", ">"), ("#124", "|")):
        shown = shown.replace(f"&{name};", char)
    assert set(shown.replace(" ", "")) == RESERVED_ASCII - {"/"}


# -- systems -------------------------------------------------------------------------------------------


def test_the_policy_of_the_page_is_strict_without_a_fence_and_the_line_is_the_one_that_is_said(tmp_path):
    environment = {"PATH": os.defpath, "MUNIMENT_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    line = [sys.executable, "-c", block_of(SYSTEMS, "python")]
    subprocess.run(line, env=environment, check=True, timeout=60)
    folder = tmp_path / "home" / "policies"
    folder.chmod(0o700)
    made, strict = load_policy("unfenced", policies_dir=folder), load_policy("strict")
    assert (made.confinement.require, made.limits, made.quotas) == ("none", strict.limits, strict.quotas)
    said = portable.NEEDS_LINUX.replace("on Linux", "on macOS", 1)
    assert f"not saved: {said} [platform_unsupported]\n" in SYSTEMS
