"""`muniment completion`: its scripts, in the shells that they are for."""

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
    """What bash offers at the end of a line, by what it calls."""
    given = shlex.split(line) + ([""] if line.endswith(" ") else [])
    words = " ".join(map(shlex.quote, given))
    call = f"COMP_WORDS=({words}); COMP_CWORD={len(given) - 1}; _muniment"
    return f"{script}\n{call}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""


def zsh(script, line):
    return f"autoload -U compinit; compinit -u -D\n{script}\nemulate sh\n{bash('', line)}"


def fish(script, line):
    return f"{script}\ncomplete -C {shlex.quote(line)}"


@pytest.mark.parametrize("shell", [bash, zsh, fish])
def test_completion_offers_commands_options_and_values(muniment, shell):
    program = shutil.which(shell.__name__)
    if program is None:
        pytest.skip(f"there is no {shell.__name__} here")
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
        if shell is zsh:  # Its editor leaves out what does not begin so.
            offered = [each for each in offered if each.startswith(line.rpartition(" ")[2])]
        assert (sorted(filter(None, offered)), done.stderr) == (wanted, ""), line


def test_completion_rejects_unknown_shell(muniment):
    done = muniment("completion", "csh")
    assert (done.exit_code, "'bash', 'zsh', 'fish'" in done.stderr) == (2, True)
