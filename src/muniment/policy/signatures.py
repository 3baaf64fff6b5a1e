"""Signed policies: what a person configures to hear from someone else is asked of `ssh-keygen`.

    1. What is signed is a line that names a policy and its digest (`statement`): that of the effective one,
       so every parent is covered, and comments are not. The signature of `X.toml` lies beside it, in
       `X.toml.sig`.
    2. Where `policy_signers` is set, a policy that did not come with the program needs a signature by one of
       them before anything runs (`settings.load_configured`). Otherwise nobody asks.
    3. ssh-keygen is run without a shell and with almost no environment. It reads copies that this process
       made of bounded regular files, which nobody else changes meanwhile. What it answers within
       `VERIFY_SECONDS` counts; whatever else happens is a refusal.

Codes of this module: E140 no signer has signed this · E141 no signature · E142 nobody could tell: no
ssh-keygen, no signers, or it failed · E143 a shipped policy needs no signature.

What does not hold: a signature has no date. Someone who may write the folder can put back an older file with
the signature that it had; a `policy.lock` under version control shows that.
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
from muniment.policy.family import PolicyText, read_text
from muniment.policy.load import Loaded
from muniment.policy.ownership import check_ours

NAMESPACE: Final = "muniment-policy"
"""What ssh-keygen binds into a signature, so that one made for something else says nothing here."""

SUFFIX: Final = ".sig"

VERIFY_SECONDS: Final = 10.0
"""Seconds for one question to ssh-keygen; it takes 5 ms."""

SIGN_SECONDS: Final = 120.0
"""Seconds for a signature: someone may have to type a passphrase, or to touch a token."""

_KEPT: Final = ("PATH", "SSH_AUTH_SOCK", "SSH_ASKPASS", "DISPLAY", "TERM")
"""What ssh-keygen may know of the environment in order to sign; to verify it needs none of it."""


def statement(policy: Policy) -> bytes:
    """What is signed of a policy."""
    return f"{NAMESPACE}/1 {policy.name} {policy.digest}\n".encode()


def signature_path(file: PolicyText) -> Path:
    """Where the signature of a policy file lies.

    Raises:
        PolicyInvalid: the file is a shipped one; E143.
    """
    if file.path is None or file.is_shipped:
        raise PolicyInvalid("E143", file.where, "it comes with the program and needs no signature")
    return file.path.with_name(file.path.name + SUFFIX)


def verify_policy(loaded: Loaded, signers: Path) -> str:
    """Who has signed a policy that is not shipped, one of `signers`.

    Raises:
        PolicyInvalid: E140 to E143.
    """
    file = loaded.files[0]
    path = signature_path(file)
    try:
        read = read_text(path)
    except PolicyInvalid as error:
        raise PolicyInvalid("E140", file.where, f"{error.where} {error.problem}") from None
    if read is None:
        problem = f"has no signature {printable(str(path))}; run: muniment policy sign, by one of the signers"
        raise PolicyInvalid("E141", file.where, problem)
    return verify(statement(loaded.policy), read[0].encode(), signers, where=file.where)


def verify(signed: bytes, signature: bytes, signers: Path, *, where: str) -> str:
    """Who has signed `signed`, as `signers` calls them.

    Args:
        signed: as `statement` made it.
        signature: as `sign` made it.
        signers: a file of allowed signers, see ssh-keygen(1).
        where: what was signed, for messages.

    Raises:
        PolicyInvalid: nobody of them has, or for something else, E140; or nobody could tell, E142.
    """
    allowed = _signers(signers)
    with tempfile.TemporaryDirectory(prefix="muniment-") as directory:
        allowed_copy, signature_copy = Path(directory, "signers"), Path(directory, "signature")
        for path, content in ((allowed_copy, allowed), (signature_copy, signature)):
            path.write_bytes(content)
        files = ["-f", str(allowed_copy), "-s", str(signature_copy)]
        found = _run(["-Y", "find-principals", *files], b"", VERIFY_SECONDS, {})
        for identity in found.stdout.decode(errors="replace").splitlines() if found.returncode == 0 else ():
            command = ["-Y", "verify", "-n", NAMESPACE, "-I", identity, *files]
            if _run(command, signed, VERIFY_SECONDS, {}).returncode == 0:
                return identity
    problem = f"its signature is not one of this policy by a signer in {printable(str(signers))}"
    raise PolicyInvalid("E140", where, f"{problem}; look at what changed, then have it signed anew")


def sign(signed: bytes, key: Path) -> bytes:
    """The signature of `signed`, armoured.

    Args:
        signed: as `statement` makes it.
        key: a private key, or a public one whose private key an agent holds. ssh-keygen asks on the terminal
            for what it needs.

    Raises:
        PolicyInvalid: ssh-keygen is missing or does not sign; E142.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    command = ["-Y", "sign", "-n", NAMESPACE, "-f", str(key.absolute())]
    done = _run(command, signed, SIGN_SECONDS, kept)
    if done.returncode != 0 or not done.stdout:
        raise PolicyInvalid("E142", printable(str(key)), f"ssh-keygen does not sign: {_said(done)}")
    return done.stdout


def _signers(path: Path) -> bytes:
    shown = printable(str(path))
    try:
        read = read_text(path)
    except PolicyInvalid as error:
        raise PolicyInvalid("E142", shown, f"the file of policy signers {error.problem}") from None
    if read is None:
        raise PolicyInvalid("E142", shown, "there is no such file of policy signers; see ssh-keygen(1)")
    try:
        check_ours(path, read.status)
    except ConfigInvalid as error:
        raise PolicyInvalid("E142", shown, str(error)) from None
    return read.text.encode()


def _run(
    arguments: list[str], given: bytes, seconds: float, environment: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise PolicyInvalid(
            "E142", "ssh-keygen", "is not installed; install OpenSSH, which policies are signed with"
        )
    try:
        return subprocess.run(  # noqa: S603  a program of this machine, and no argument that begins as an option
            [program, *arguments],
            input=given,
            capture_output=True,
            check=False,
            timeout=seconds,
            env={**environment, "LC_ALL": "C"},
        )
    except (OSError, ValueError) as error:
        problem = f"cannot be run: {error}"
    except subprocess.TimeoutExpired:
        problem = f"did not answer within {seconds:.0f} seconds"
    raise PolicyInvalid("E142", program, problem)


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    """The last line that ssh-keygen said."""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return printable(lines[-1]) if lines else f"it ended with {done.returncode}"
