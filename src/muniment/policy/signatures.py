"""Signed policies: `ssh-keygen` checks that a configured signer has signed a policy.

    1. The signed text is one line with the name of a policy and its digest (`build_statement`). The digest is
       that of the effective policy: it covers every parent, but not comments. The signature of `X.toml` is in
       the same folder, in `X.toml.sig`.
    2. If `policy_signers` is set, every policy that is not shipped needs a signature by one of these signers
       before any run starts (`settings.load_configured_policy`). If it is not set, signatures are not
       checked.
    3. ssh-keygen is run without a shell and with almost no environment. It reads copies of the signers and
       the signature that this process created and that no other process can change. Their size is limited. A
       policy is accepted only if ssh-keygen confirms the signature within `VERIFY_SECONDS`.

Codes of this module: E140 not signed by a signer · E141 no signature · E142 cannot be checked: no ssh-keygen,
no signers, or it failed · E143 a shipped policy needs no signature.

Not guaranteed: a signature has no date. A user who may write the folder can restore an older file with its
signature; a `policy.lock` under version control shows that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from muniment.errors import ConfigInvalid, PolicyInvalid, printable
from muniment.kernel.decide import Policy
from muniment.policy.files import LoadedPolicy, PolicyText, read_text
from muniment.policy.ownership import check_owner_and_mode

NAMESPACE: Final = "muniment-policy"
"""The purpose that ssh-keygen includes in a signature, so that signatures for other purposes are invalid
here."""

SUFFIX: Final = ".sig"

VERIFY_SECONDS: Final = 10.0
"""Timeout of one check by ssh-keygen, in seconds; it takes 5 ms."""

SIGN_SECONDS: Final = 120.0
"""Timeout of a signature, in seconds: the user may have to type a passphrase, or touch a token."""

_SIGN_VARIABLES: Final = ("PATH", "SSH_AUTH_SOCK", "SSH_ASKPASS", "DISPLAY", "TERM")
"""Environment variables that ssh-keygen gets for signing; for verifying it needs none."""


def build_statement(policy: Policy) -> bytes:
    """Return the text that a signer of a policy signs: one line with its name and digest."""
    return f"{NAMESPACE}/1 {policy.name} {policy.digest}\n".encode()


def get_signature_path(file: PolicyText) -> Path:
    """Return the path of the signature for a policy file.

    Raises:
        PolicyInvalid: the policy is part of the program and needs no signature (E143).
    """
    if file.path is None or file.is_shipped:
        raise PolicyInvalid("E143", file.where, "it is part of the program and needs no signature")
    return file.path.with_name(file.path.name + SUFFIX)


def verify_policy(loaded: LoadedPolicy, signers: Path) -> str:
    """Check the signature of a policy that is not shipped, and return its signer.

    Args:
        loaded: the policy with its files.
        signers: a file of allowed signers, see ssh-keygen(1).

    Raises:
        PolicyInvalid: E140 to E143, as in the module docstring.
    """
    file = loaded.files[0]
    path = get_signature_path(file)
    try:
        read = read_text(path)
    except PolicyInvalid as error:
        raise PolicyInvalid("E140", file.where, f"{error.where} {error.problem}") from None
    if read is None:
        problem = f"has no signature {printable(str(path))}; a signer must run: muniment policy sign"
        raise PolicyInvalid("E141", file.where, problem)
    return verify(build_statement(loaded.policy), read[0].encode(), signers, where=file.where)


def verify(statement: bytes, signature: bytes, signers: Path, *, where: str) -> str:
    """Check the signature of a statement, and return the name of its signer as listed in `signers`.

    Args:
        statement: text from `build_statement`.
        signature: result of `sign`.
        signers: a file of allowed signers, see ssh-keygen(1).
        where: name of the signed file, for messages.

    Raises:
        PolicyInvalid: no listed signer has signed this text (E140), or the signature cannot be checked
            (E142).
    """
    allowed = _read_signers(signers)
    with tempfile.TemporaryDirectory(prefix="muniment-") as directory:
        allowed_copy, signature_copy = Path(directory, "signers"), Path(directory, "signature")
        for path, content in ((allowed_copy, allowed), (signature_copy, signature)):
            path.write_bytes(content)
        files = ["-f", str(allowed_copy), "-s", str(signature_copy)]
        found = _run_ssh_keygen(["-Y", "find-principals", *files], b"", VERIFY_SECONDS, {})
        for identity in found.stdout.decode(errors="replace").splitlines() if found.returncode == 0 else ():
            command = ["-Y", "verify", "-n", NAMESPACE, "-I", identity, *files]
            if _run_ssh_keygen(command, statement, VERIFY_SECONDS, {}).returncode == 0:
                return identity
    problem = f"its signature is invalid for this policy, or not by a signer in {printable(str(signers))}"
    raise PolicyInvalid("E140", where, f"{problem}; review the changes, then have it signed again")


def sign(statement: bytes, key: Path) -> bytes:
    """Return the signature of `statement` in text form (armoured).

    Args:
        statement: text from `build_statement`.
        key: a private key, or a public one whose private key is in an agent. ssh-keygen prompts on the
            terminal if it needs input.

    Raises:
        PolicyInvalid: ssh-keygen is missing or does not sign (E142).
    """
    environment = {name: os.environ[name] for name in _SIGN_VARIABLES if name in os.environ}
    command = ["-Y", "sign", "-n", NAMESPACE, "-f", str(key.absolute())]
    process = _run_ssh_keygen(command, statement, SIGN_SECONDS, environment)
    if process.returncode != 0 or not process.stdout:
        raise PolicyInvalid(
            "E142", printable(str(key)), f"ssh-keygen does not sign: {_get_last_line(process)}"
        )
    return process.stdout


def _read_signers(path: Path) -> bytes:
    displayed_path = printable(str(path))
    try:
        read = read_text(path)
    except PolicyInvalid as error:
        raise PolicyInvalid("E142", displayed_path, f"the file of policy signers {error.problem}") from None
    if read is None:
        raise PolicyInvalid(
            "E142", displayed_path, "the file of policy signers was not found; create it, see ssh-keygen(1)"
        )
    try:
        check_owner_and_mode(path, read.status)
    except ConfigInvalid as error:
        raise PolicyInvalid("E142", displayed_path, str(error)) from None
    return read.text.encode()


def _run_ssh_keygen(
    arguments: list[str], stdin: bytes, seconds: float, environment: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise PolicyInvalid(
            "E142", "ssh-keygen", "is not installed; install OpenSSH to sign and verify policies"
        )
    try:
        return subprocess.run(  # noqa: S603  a program of this machine, and no argument that begins as an option
            [program, *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            timeout=seconds,
            env={**environment, "LC_ALL": "C"},
        )
    except (OSError, ValueError) as error:
        problem = f"cannot be run: {error}"
    except subprocess.TimeoutExpired:
        problem = f"did not respond within {seconds:.0f} s; retry"
    raise PolicyInvalid("E142", program, problem)


def _get_last_line(process: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line that ssh-keygen printed, or its exit code if it printed none."""
    lines = process.stderr.decode(errors="replace").strip().splitlines()
    return printable(lines[-1]) if lines else f"it ended with {process.returncode}"
