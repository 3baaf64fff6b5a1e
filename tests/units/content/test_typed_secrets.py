"""Typed secrets generated from a seed in six languages, and sentences about passwords without secrets."""

import json
import random
import string
from collections import Counter
from functools import partial
from importlib.resources import files
from types import SimpleNamespace

import pytest

import muniment
from kit.locations import FACTS
from muniment.agent.filing import RuleWriter
from muniment.content.secrets import find_secret, redact_secrets
from muniment.errors import RememberRefused

SENTENCES = json.loads((FACTS / "typed_secrets.json").read_text())
NAMES, PHRASE_WORDS = SENTENCES["names"], SENTENCES["words"]


def find(text, rel="topic/a.md"):
    return find_secret(text.encode(), rel)


def generate_password(rng):
    name, other, number = rng.choice(NAMES), rng.choice(NAMES), rng.randrange(10, 9999)
    letters, low = string.ascii_letters, string.ascii_lowercase
    drawn = [(letters + string.digits, 10, "7x"), (low, 8, number), (letters + "!#%&+?", 9, "3?k")]
    candidates = [
        f"{name.lower()}{number}!",
        f"{number}{name}",
        f"{name}-{other}-{number}",
        f"{name}{number}",
    ]
    candidates += [f"{name[:2]}@{name[2:]}{number}", f"{name}#{other}!"]
    random_passwords = ("".join(rng.choices(some, k=count)) + str(end) for some, count, end in drawn)
    return rng.choice([*candidates, *random_passwords])


def generate_card(rng):
    digits = rng.choice(["4", "51", "55", "37", "6011", "3530"])
    digits += "".join(rng.choices(string.digits, k=(14 if digits == "37" else 15) - len(digits)))
    sums = [int(each) * (2 - at % 2) for at, each in enumerate(reversed(digits))]
    digits += str(-sum(each // 10 + each % 10 for each in sums) % 10)
    cut = rng.choice(["", " ", "-"])
    return cut.join(digits[at : at + 4] for at in range(0, len(digits), 4))


def generate_values(rng):
    strong, some = generate_password(rng), " ".join(rng.sample(PHRASE_WORDS, 4))
    numbers = " ".join(str(rng.randrange(1000, 9999)) for _ in range(4))
    return {
        **dict.fromkeys("ps", strong),
        "w": some,
        "n": rng.choice([strong, numbers]),
        "q": rng.choice([strong, rng.choice(NAMES).lower(), " ".join(rng.sample(PHRASE_WORDS, 3))]),
        "c": "".join(rng.choices(string.digits, k=rng.choice([4, 4, 5, 6]))),
        "card": generate_card(rng),
    }


def iterate_sentences(seeds):
    """Generate (language, sentence, secret) of every template, for several seeds."""
    for language, templates in SENTENCES["said"].items():
        for template in templates:
            for seed in seeds:
                rng = random.Random(f"{seed}{template}")
                hole = template[template.index("{") + 1 : template.index("}")]
                secret = generate_values(rng)[hole]
                yield language, template.replace(f"{{{hole}}}", secret), secret


def test_number_next_to_card_number_does_not_hide_it():
    for seed in range(30):
        number = generate_card(random.Random(seed))
        for text in (f"{number} 12/28", f"{number} 737", f"room 2345 {number}", f"2024 {number} 12 28, 123"):
            assert (found := find(text)) is not None, text
            assert found.rule == "payment-card"
            assert number not in redact_secrets(text)
    readings = " ".join(f"4{at % 10}" for at in range(200))
    for text in (
        readings,
        "4111-1111-1111-1111-12",
        "4111111111111111-a",
        "41111111111111111",
        "4111 1111 1111 1111x",
    ):
        assert find(text) is None


def test_typed_secrets_are_found_and_redacted_completely():
    missed, counted = Counter(), Counter()
    for language, text, secret in iterate_sentences(seeds=range(3)):
        counted[language] += 1
        missed[language] += find(text) is None
        clean = redact_secrets(text) if find(text) else ""
        parts = [part for part in secret.split() if len(part) > 3]
        assert (find(clean), [part for part in parts if part in clean]) == (None, []), (text, clean)
    assert (len(counted), counted.total() >= 100) == (6, True)
    assert all(missed[language] <= 0.05 * counted[language] for language in counted), missed
    assert find("x", "topic/the-wifi-password-is-tulip22.md").rule == "typed-password"


def test_sentences_about_passwords_cause_few_false_alarms():
    sentences = [text for texts in SENTENCES["about"].values() for text in texts]
    alarms = [text for text in sentences if find(text) is not None]
    assert len(sentences) >= 200
    assert len(alarms) <= 0.01 * len(sentences), alarms


TYPED = "Remember that the wifi password is tulip22"


@pytest.mark.threat("T-LEAK-15", control="typed_secrets")
def test_typed_secret_is_rejected_or_redacted_before_model(tmp_path):
    (tmp_path / "workspace").mkdir()
    policy, home = tmp_path / "redacting.toml", tmp_path / "home"
    text = files("muniment.policies").joinpath("strict.toml").read_text()
    text = text.replace('secrets = "reject"', 'secrets = "redact"')
    policy.write_text(text.replace('name = "strict"', 'name = "redacting"'))
    rules, requests = RuleWriter(), []

    def respond(request):
        requests.append(request)
        return rules.respond(request)

    open_memory = partial(muniment.open, tmp_path / "workspace", home=home)
    model = SimpleNamespace(name="scripted", respond=respond)
    with (
        open_memory(model=model) as memory,
        pytest.raises(RememberRefused, match=r"secret \(typed-password\)"),
    ):
        memory.remember(TYPED)
    assert requests == []
    with open_memory(policy=str(policy), model=model) as memory:
        assert memory.remember(TYPED, task_id="once").files_touched
        assert memory.remember(TYPED, task_id="once").repeated
    written = [path for path in home.rglob("*") if path.is_file()]
    assert (len(requests) > 0, "tulip" in repr(requests)) == (True, False)
    assert not [path for path in written if b"tulip" in path.read_bytes() or "tulip" in str(path)]
