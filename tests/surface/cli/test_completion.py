"""`muniment completion`: its scripts, run by their shells."""

import shlex
import shutil
import subprocess

import pytest

LINES = {
    "muniment unin": ["uninstall"],
    "muniment policy l": ["lint", "lock"],
    "muniment review a": ["approve"],
    "muniment remember --sym": ["--symlinks"],
    "muniment remember a fact --symlinks ": ["beneath", "refuse"],
    "muniment setup c": ["claude-code", "codex", "cursor"],
    "muniment setup codex --re": ["--remove"],
    "muniment completion ": ["bash", "fish", "zsh"],
    "muniment policy show --e": ["--effective"],
    "muniment show --e": [],
}


def bash(script, line):
    """Return a script that prints the completions of bash at the end of `line`."""
    arguments = shlex.split(line) + ([""] if line.endswith(" ") else [])
    quoted = " ".join(map(shlex.quote, arguments))
    call = f"COMP_WORDS=({quoted}); COMP_CWORD={len(arguments) - 1}; _muniment"
    return f"{script}\n{call}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""


def zsh(script, line):
    return f"autoload -U compinit; compinit -u -D\n{script}\nemulate sh\n{bash('', line)}"


def fish(script, line):
    return f"{script}\ncomplete -C {shlex.quote(line)}"


@pytest.mark.parametrize("shell", [bash, zsh, fish])
def test_completion_offers_commands_options_and_values(muniment, shell):
    program = shutil.which(shell.__name__)
    if program is None:
        pytest.skip(f"{shell.__name__} is not installed")
    script = muniment("completion", shell.__name__).stdout
    for line, wanted in LINES.items():
        flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell.__name__]
        done = subprocess.run(
            [program, *flags, "-c", shell(script, line)],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        offered = [each.split("\t")[0].strip() for each in done.stdout.splitlines()]
        if shell is zsh:  # The editor of zsh filters by prefix.
            offered = [each for each in offered if each.startswith(line.rpartition(" ")[2])]
        assert (sorted(filter(None, offered)), done.stderr) == (wanted, ""), line


def test_completion_rejects_unknown_shell(muniment):
    done = muniment("completion", "csh")
    assert (done.exit_code, "'bash', 'zsh', 'fish'" in done.stderr) == (2, True)
