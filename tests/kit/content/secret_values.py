"""Fill the placeholders in the examples of `secrets.toml` from a seed, so that no secret is written down."""

import base64
import json
import random
import re
import string
import textwrap

A62 = string.ascii_letters + string.digits
ALPHABETS = {
    "letters": string.ascii_letters,
    "low": string.ascii_lowercase + string.digits,
    "hex": "0123456789abcdef",
    "up32": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
    "digits": "123456789",
    "bech": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
    **{kind: A62 + more for kind, more in (("a62", ""), ("url", "-_"), ("b64", "+/"))},
}
HOLE = re.compile(r"\{([a-z0-9]+):([A-Z0-9]+)\}")


def filled(example, seed):
    """Return the example with values that depend on the seed."""
    rng = random.Random(f"{seed}{example}")
    return HOLE.sub(lambda hole: value(rng, hole[1], hole[2]), example)


def value(rng, kind, size):
    if kind == "jwt":
        parts = [{"alg": size, "typ": "JWT"}, {"sub": text(rng, "digits", 10), "exp": 1_900_000_000}]
        encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        return ".".join([*encoded, text(rng, "url", 43)])
    if kind == "pem":
        return "\n".join(textwrap.wrap(text(rng, "b64", int(size)), 64))
    if kind == "basic":
        return base64.b64encode(f"deploy:{text(rng, 'a62', int(size))}".encode()).decode()
    return text(rng, kind, int(size))


def text(rng, kind, count):
    return "".join(rng.choices(ALPHABETS[kind], k=count))
