"""The pages about configuration, entries and systems agree with the code."""

import os
import re
import subprocess
import sys

from kit.memories import make_roots, write_file
from kit.shell import read_page
from muniment import portable, settings
from muniment.cli import options
from muniment.cli.terminal import LOG_VARIABLE
from muniment.content.entry import TYPES, parse, read_titles
from muniment.content.frontmatter import MAX_FRONT_MATTER_BYTES
from muniment.kernel.names import MAX_DEPTH, MAX_PATH_BYTES, MAX_SEGMENT_BYTES
from muniment.kernel.path import RESERVED_ASCII
from muniment.policy.load import load_policy

CONFIGURATION, ENTRIES, SYSTEMS = (
    read_page(f"docs/{name}.md") for name in ("configuration", "entry-format", "platforms")
)


def read_rows(text, heading):
    """Return the cells of the first table under a heading, without its head."""
    table = f"\n{text}".split(f"\n{heading}\n")[1].split("\n|", 1)[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in table.split("\n")[2:]]


def read_block(text, language):
    return text.split(f"```{language}\n")[1].split("```")[0]


# -- configuration -------------------------------------------------------------------------------------


def test_page_names_exactly_the_keys_variables_and_flags():
    rows = read_rows(CONFIGURATION, "## Settings")
    keys = [row[0].strip("`") for row in rows]
    assert sorted(keys) == sorted(settings._CONFIG_KEYS)
    variables = {row[0].strip("`"): row[1].strip("`") for row in rows if row[1]}
    assert variables == dict(settings._VARIABLES)
    named = set(re.findall(r"MUNIMENT_[A-Z_]+", CONFIGURATION))
    others = {settings.HOME_VARIABLE, settings.KEY_VARIABLE, LOG_VARIABLE}
    assert named == {*variables.values(), *others}
    flags = {row[2].strip("`").split(" ")[0] for row in rows if row[2]}
    assert flags == {f"--{name}" for name in list_option_names(options)}


def list_option_names(module):
    """Return the names of the shared options that have a setting."""
    setting_options = {"PolicyName": "policy", "Roots": "root", "Symlinks": "symlinks", "ModelName": "model"}
    setting_options |= {"BaseUrl": "base-url", "ApiKeyFile": "api-key-file", "ProtocolName": "protocol"}
    setting_options |= {"OnModelFailure": "on-model-failure"}
    others = {
        *("Workspace", "PolicyArgument", "EntryArgument", "Ledger", "NodeName", "Slots", "Lease", "Expires"),
        *("Color", "Verbose", "Json", "ToolName", "ShellName", "MemoryFlags", "ModelFlags", "RunFlags"),
    }
    imported = {"Annotated", "Any", "Final", "Path", "StrEnum", "TypedDict"}
    shared = {name for name in vars(module) if name[0].isupper() and not name.isupper()} - imported
    assert shared == {*setting_options, *others}, "new option: add it to the settings or to the others"
    return setting_options.values()


def test_example_is_valid_and_defaults_match_table(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    default = settings.read_settings({"MUNIMENT_HOME": str(home)})
    for key, _, _, documented, _ in read_rows(CONFIGURATION, "## Settings"):
        found = getattr(default, key.strip("`"))
        assert documented in {"none", "see below"} if not found else documented == f"`{found}`", key
    (home / "config.toml").write_text(read_block(CONFIGURATION, "toml"))
    found = settings.read_settings({"MUNIMENT_HOME": str(home), "HOME": str(tmp_path)})
    assert (found.model, found.roots["user"].parts[-2:]) == ("qwen3-4b", ("notes", "memory"))


RULES = """
import builtins, json, socket, subprocess, sys

def refused(*_, **__):
    raise AssertionError("the rules did it")

import muniment
with muniment.open(workspace=".", home=sys.argv[1]) as memory:
    memory.remember("The user prefers tabs")  # Starts the worker and its fence.
    socket.socket.connect = subprocess.Popen.__init__ = refused
    done = [memory.remember(fact) for fact in sys.argv[2:]]
    loaded = [name for name in ("openai", "httpx2", "ssl") if name in sys.modules]
    print(json.dumps([[each.files_touched, each.status] for each in done] + [loaded]))
"""


def test_rules_open_no_connection_and_store_fact_verbatim(tmp_path):
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


def test_entry_example_is_parsed_as_documented_and_recalled(tmp_path, open_memory):
    text = read_block(ENTRIES, "markdown")
    entry = parse(text)
    assert (entry.notes, entry.type, entry.keywords) == ((), "project", ("postgres", "pgbouncer"))
    assert entry.expires == "2026-12-31"
    assert read_titles(entry, "x.md").name == entry.name == "Staging database"
    bare = parse("# Heading\n\nThe first line.\n")
    assert (read_titles(bare, "x.md").name, read_titles(bare, "x.md").description) == (
        "Heading",
        "The first line.",
    )
    roots = make_roots(tmp_path)
    write_file(roots["project"], "deploy/staging.md", text.replace("expires: 2026-12-31\n", ""))
    (found,) = open_memory(roots=roots).recall("which postgres does staging run on").entries
    assert found.path == "project/deploy/staging.md"


def test_documented_keys_and_limits_match_code():
    keys = [row[0].strip("`") for row in read_rows(ENTRIES, "## Front matter")]
    assert keys == ["name", "description", "type", "keywords", "expires", "ends", "muniment"]
    row = next(row for row in read_rows(ENTRIES, "## Front matter") if row[0] == "`type`")
    assert re.findall(r"`([a-z]+)`", row[1]) == list(TYPES)
    limits = dict(read_rows(ENTRIES, "## Names, folders, limits"))
    sizes = (MAX_SEGMENT_BYTES, MAX_PATH_BYTES, MAX_FRONT_MATTER_BYTES)
    assert re.findall("[0-9][0-9 ]*", limits["lengths"]) == [f"{size:,} ".replace(",", " ") for size in sizes]
    assert f"up to {MAX_DEPTH - 2} folders" in limits["file"]
    (quota,) = load_policy("strict").quotas
    assert f"{quota.max_file_bytes:,}".replace(",", " ") in limits["size"]
    characters = limits["name"].split("<code>")[1].split("</code>")[0]
    for name, char in (("lt", "<"), ("gt", ">"), ("#124", "|")):
        characters = characters.replace(f"&{name};", char)
    assert set(characters.replace(" ", "")) == RESERVED_ASCII - {"/"}


# -- systems -------------------------------------------------------------------------------------------


def test_unfenced_policy_of_page_is_strict_and_message_matches(tmp_path):
    environment = {"PATH": os.defpath, "MUNIMENT_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    line = [sys.executable, "-c", read_block(SYSTEMS, "python")]
    subprocess.run(line, env=environment, check=True, timeout=60)
    folder = tmp_path / "home" / "policies"
    folder.chmod(0o700)
    unfenced, strict = load_policy("unfenced", policies_dir=folder), load_policy("strict")
    assert (unfenced.confinement.require, unfenced.limits, unfenced.quotas) == (
        "none",
        strict.limits,
        strict.quotas,
    )
    message = portable.NEEDS_LINUX.replace("on Linux Muniment", "on macOS Muniment", 1)
    assert f"not saved: {message} [platform_unsupported]\n" in SYSTEMS
