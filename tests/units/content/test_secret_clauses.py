"""Secrets that words in their clause name: the set of an independent author, and cases of each kind."""

import json
import random

import pytest

from kit.content.secret_values import text as drawn
from kit.where import FACTS
from muniment.content.secrets import find_secret, redacted
from muniment.errors import RememberRefused

TEXTS = json.loads((FACTS / "secrets_in_clauses.json").read_text())["texts"]


def find(text):
    return find_secret(text.encode(), "")


def generated_id(seed):
    rng = random.Random(seed)
    return "-".join(drawn(rng, "hex", size) for size in (8, 4, 4, 4, 12))


def generated_word(seed):
    rng = random.Random(seed)
    return f"{drawn(rng, 'letters', 8)}{drawn(rng, 'digits', 2)}"


@pytest.mark.threat("T-LEAK-15", control="clause_secrets")
def test_clause_set_is_caught_with_hardly_any_alarm():
    texts = {each["text"].replace("¦", ""): each["secret"] for each in TEXTS}
    missed = [text for text, is_secret in texts.items() if is_secret and find(text) is None]
    alarms = [text for text, is_secret in texts.items() if not is_secret and find(text) is not None]
    secrets = sum(texts.values())
    assert (len(texts), len({each["lang"] for each in TEXTS})) == (420, 9)
    assert len(missed) <= 0.03 * secrets, missed
    assert len(alarms) <= 0.01 * (len(texts) - secrets), alarms


NAMED_IDS = """
The Bright Data API token is {}
BRIGHT_TOKEN={}
vault set BRIGHT_TOKEN {}
{{"api_key": "{}"}}
{} is the API token of Bright Data
Unser Token für die Wetter-API: {}
Le jeton de l'API est {}
Il token del bot è {}
A chave da API é {}
de sleutel van de API is {}
klucz API to {}
токен бота: {}
API密钥是{}
APIキーは{}です
API 키는 {}
(the client secret of Tellwise is {})
"""
PUBLIC_IDS = """
The tenant id is {}
Ticket {} is about the API token
primary key: {}
The KMS key id is {}
arn:aws:kms:eu-west-1:123456789012:key/{}
Session {} has no token
The token check failed in request {}
"""
GIVEN_PASSWORDS = """
postgres://shop:{}@db.internal:5432/shop
redis://:{}@cache:6379/0
curl -u admin:{} https://nas.local/api
curl -s --user 'admin:{}' https://nas.local/api
PGPASSWORD={} psql -h db
MYSQL_PWD='{}' mysql shop
mysql -u root -p{} shop
mysqldump --password={} shop
sshpass -p {} ssh root@nas
redis-cli -h cache -a {} ping
docker login -u bot -p {} ghcr.io
WIFI:S:Home;T:WPA;P:{};;
ALTER USER shop WITH PASSWORD '{}';
Server=db;User Id=sa;Password={};
<password>{}</password>
"""
MIXED_PASSWORDS = """
Basic auth for the NAS is admin / {}
Zugang zum Router: admin / {}
Identifiants du NAS : admin / {}
NAS 登录:admin / {}
Wifi: SSID Home, key {}
WLAN: SSID Garten, Schlüssel {}
Our database password for prod ({}) must not leave the team
J'ai changé le mot de passe de l'imprimante en {}
Moje hasło do Allegro zmieniłam na {}
requests.get(url, auth=('ada', '{}'))
db3:5432:shop:billing:{}
"""
CODES = """
The combination of the safe is {}-17-{}
Code für die Haustür {}{}
Le digicode de l'immeuble, c'est {}{}
Il cancello si apre con il codice {}{}
Código do portão: {}{}#
De code van de garage is {}{}
Kod do domofonu: {}{}
код от сейфа: {}{}
保险箱密码 {}{}
玄関の暗証番号は{}{}です
현관 비밀번호는 {}{}
Der Tresor im Büro geht mit {}{} auf
The gate opens with {}{}#
{}{} is the code for the front door
"""
NO_SECRETS = """
PRs fixed this week: #2763/#2774/#2780/#2782/#2790
IBAN of the club is DE89 3704 0044 0532 0130 00
My phone number is +49 170 555 01 99
postgres://postgres:postgres@localhost:5432/shop
postgres://USER:PASSWORD@HOST:5432/DB
postgres://shop:${DB_PASSWORD}@db.internal:5432/shop
curl -u "$USER:$PASSWORD" https://nas.local
mysql -u root -p shop
sshpass -p "$PASS" ssh root@nas
PGPASSWORD=$(pass show db) psql
docker login -u bot --password-stdin ghcr.io
The error code of the door sensor is 4711
Gate 4711 opens at 10:15
The zip code of the garage is 80331
The door code has to be six digits
Recovery codes are in 1Password
The alarm code was changed in 2024
Login with user admin on port 8443
admin / editor / viewer roles
SSID Home uses WPA3, band 5GHz
The wifi password is printed (back of the router)
The API key is stored-in-1password)
The token is refreshed every 15min) by cron
The password is "required" in the form
"""


def test_values_beside_their_names_are_secrets():
    for template in NAMED_IDS.strip().splitlines():
        assert find(template.format(generated_id(template))) is not None, template
    for template in MIXED_PASSWORDS.strip().splitlines():
        assert find(template.format(generated_word(template))) is not None, template
    for template in GIVEN_PASSWORDS.strip().splitlines():
        for value in (generated_word(template), "sommerregen"):
            assert find(template.replace("{}", value)) is not None, (template, value)
    for template in CODES.strip().splitlines():
        assert find(template.format(31, 47)) is not None, template


def test_public_values_and_placeholders_are_no_secrets():
    texts = [each.format(generated_id(each)) for each in PUBLIC_IDS.strip().splitlines()]
    texts += NO_SECRETS.strip().splitlines()
    digest = drawn(random.Random(7), "hex", 64)
    texts += [f"The image digest of the key server is sha256:{digest}", f"token hash {digest}"]
    texts += [f"The token was revoked in commit {digest[:40]}", f"public key {digest}"]
    assert [text for text in texts if find(text) is not None] == []


def test_secrets_in_clauses_can_be_redacted():
    for template in NAMED_IDS.strip().splitlines():
        value = generated_id(template)
        clean = redacted(template.format(value))
        assert (find(clean), value in clean) == (None, False), clean


def test_closing_bracket_makes_no_secret():
    for closer in (")", "]", "}", '"', "'", "”", ").", ")*"):
        for text in (
            "The API key is stored-in-1password",
            "The token expires in 15min",
            "password: required",
        ):
            assert find(text + closer) is None, text + closer


def test_random_word_stays_out_of_file_names(memory):
    """A value that no rule knows is stored as text, but not as a name that lists and links repeat."""
    value = f"x{generated_word(3)}7Q"
    (written,) = memory().remember(f"The sticker on the crate says {value} in red").files_touched
    assert value.lower() not in str(written).lower()


def test_secret_fact_leaves_no_file(memory, tmp_path):
    library = memory()
    values = {"BRIGHT_TOKEN={}": generated_id(1), "mysql -u root -p{} shop": "sommerregen"}
    for fact, value in values.items():
        with pytest.raises(RememberRefused):
            library.remember(fact.format(value))
    library.close()
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    for value in values.values():
        assert not [path for path in files if value.encode() in path.read_bytes() or value in path.name]
