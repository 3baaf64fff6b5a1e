"""Secrets named by the words around them: sets of three independent authors, and cases of each kind."""

import json
import random

import pytest

from kit.content.secret_values import make_text as draw
from kit.locations import FACTS
from muniment.content.secrets import find_secret, redact_secrets
from muniment.errors import RememberRefused

CLAUSES, NOTES, HANDOVERS = (
    json.loads((FACTS / f"secrets_in_{name}.json").read_text())["texts"]
    for name in ("clauses", "notes", "handovers")
)


def find(text):
    return find_secret(text.encode(), "")


def generate_id(seed):
    rng = random.Random(seed)
    return "-".join(draw(rng, "hex", size) for size in (8, 4, 4, 4, 12))


def generate_word(seed):
    rng = random.Random(seed)
    return f"{draw(rng, 'letters', 8)}{draw(rng, 'digits', 2)}"


@pytest.mark.threat("T-LEAK-15", control="clause_secrets")
def test_clause_set_is_detected_with_few_false_alarms():
    require_detected(CLAUSES, texts=420, languages=9)


@pytest.mark.threat("T-LEAK-15", control="note_secrets")
def test_note_set_is_detected_with_few_false_alarms():
    require_detected(NOTES, texts=320, languages=10)


@pytest.mark.threat("T-LEAK-15", control="clause_secrets")
def test_handover_set_is_detected_as_often_as_measured():
    """Measure the missed share on a set that was not used for tuning, except for two false alarms."""
    require_detected(HANDOVERS, texts=320, languages=11, missed_at_most=0.36)


def require_detected(cases, *, texts, languages, missed_at_most=0.03):
    each_text = {each["text"].replace("¦", ""): each["secret"] for each in cases}
    missed = [text for text, is_secret in each_text.items() if is_secret and find(text) is None]
    alarms = [text for text, is_secret in each_text.items() if not is_secret and find(text) is not None]
    secrets = sum(each_text.values())
    assert (len(each_text), len({each["lang"] for each in cases})) == (texts, languages)
    assert len(missed) <= missed_at_most * secrets, missed
    assert len(alarms) <= 0.01 * (len(each_text) - secrets), alarms


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
COMMAND_PASSWORDS = """
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

NOTES_OF_KINDS = r"""
use Tangerine88 for the NAS login
log in with kim and Pelican-774
user is kim, pw is Pelican774
U: kim P: Pelican774
user: kim\npass: Pelican774
username: kim\npassword: rosengarten
Kennw.: Pelican774
Kw: Pelican774
mdp Pelican774
clave: Pelican774
contra: Pelican774
hasło Pelican774
ww: Pelican774
wachtw. Pelican774
senha do roteador: pelicano
пароль от роутера: kalina77
路由器密码:pelican774
ルーターのパスワード:pelican774
PIN 4471
PUK: 12345679
CVV 331
TAN 884213
SSID: Home, key: rosengarten
SSID: Home / PW: rosengarten
Alarm off: 4711
Alarm aus: 4711
alarma off 4711#
Server=db1;Database=x;Uid=app;Pwd=Pelican774;
Driver={ODBC Driver 17};Server=a;UID=sa;PWD=pelicanrose
jdbc:sqlserver://h:1433;user=sa;password=Pelican774
apiVersion: v1\nkind: Secret\nstringData:\n  password: Pelican774
environment:\n  - POSTGRES_PASSWORD=rosengarten
environment:\n  MYSQL_ROOT_PASSWORD: rosengarten
[db]\npassword = "rosengarten77"
{"user":"kim","pass":"rosengarten77"}
mongosh -u kim -p Pelican774
ldapsearch -D cn=admin,dc=x -w Pelican774 -b dc=x
smb://kim:Pelican774@nas/share
machine api.acme.dev login kim password Pelican774
db1:5432:shop:kim:Pelican774
Recovery codes: 8f3k-22lp, 9d2m-77ka, 1s8d-66pq
mother's maiden name for the bank: answer Kowalski
Sicherheitsfrage: Mädchenname der Mutter, Antwort: Schwabmüller
card PIN is 8841
Visa 4970 1083 5526 7741 exp 03/27 CVV 615
My seed phrase: orbit cactus mirror happy giraffe barrel pupil desk cliff cloud vast ribbon
EPP code for example.org domain: xK9-pQ2z!LmR4
auth code for the domain transfer is 7Hd!k29sLpQx
Parcel locker code: 883421
Kod odbioru paczkomat 447182
Abholcode Packstation 8834
one-time code 884213
Der Code vom Fahrradkeller ist 4711
Fahrradschloss 4711
Bike lock: 4711
The gate is 4711#
Zum Entsperren vom Tablet 2580 tippen
Voor het alarm typ je 4711
| Service | User | Password |\n|---|---|---|\n| NAS | kim | Pelican-774 |
| NAS | admin | Pelican-774 |
host\tuser\tpwd\nnas\tkim\tpelican774
Dienst,Benutzer,Kennwort\nNAS,kim,rosengarten
Vault PW: Pelican774!
Our Netflix login is kim@mail.org with Pelican-774
Netflix kim@mail.org / Pelican774
Netflix: kim@mail.org, Pelican774
I set the router admin to Pelican_774 yesterday
iCloud hab ich zurückgesetzt auf Pelikan_774
Ho cambiato la password di Gmail, adesso è Pelicano774
Zmieniłem w Allegro na Pelikan_774
J'ai réinitialisé PayPal, c'est maintenant Pelican#774
Pelican774 ist das Passwort für die Dropbox
El pin del móvil es 4471 y el de la SIM 8821
ssh kim@nas (pw Pelican774)
ssh kim@nas, Pelican774 as password
sudo password on the laptop - Pelican774
the pass for the zip is "blue whale 7"
zip is encrypted with Pelican774
PDF Passwort: geb010184
Schranke: Code 4711, dann #
digicode 48B26 côté cour
Portail 7319B, puis cour à gauche, code 44A2
Le code wifi: tilleuls2024
Código de la alarma 9911, coacción 9912
Tresor: 17-34-08
Safe: 4 right 17, 3 left 34, 2 right 08
сейф: 17 вправо, 34 влево, 8 вправо
カード番号 4970-1083-5526-7741 暗証番号 4471
银行卡密码 447182
微信支付密码是 447182
Госуслуги: логин 89161234567, пароль Kalina-77
VPN PSK: pelikan-rosen-garten
PSK pelikanrosen77
Signal PIN 884213
TeamViewer 884 213 551 pw x8kf02
AnyDesk 884213551, Passwort pelikan22
Alarm: 4711
Key box code next to the door 4711
"""
ORDINARY_NOTES = r"""
The bike lock cost 1299
The public key of the backup host is ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJmK2q ops@backup
The box opens from 0900 to 1700
Emergency code 911 opens doors
Password manager is 1Password8
Password reset link goes to support2
root/Server01 is the host path
The API token test uses fixture 6ba7b810-9dad-11d1-80b4-00c04fd430c8
The key of the table is 6ba7b810-9dad-11d1-80b4-00c04fd430c8
passwort = "HIER_EINTRAGEN"  # Beispieldatei
Tag list words: apple river stone cloud paper glass metal water fire earth wind
The twelve words of the tag list are documented in the wiki
wifi 20office 20plan
The password is in 1Password under NAS
The PIN is on the back of the card holder
The safe is in the cellar
The key is under the mat
The wifi password hangs on the fridge
Das Passwort steht im Tresor
Le mot de passe est dans Bitwarden
The alarm rings at 0630
The gate opens at 1015
The safe weighs 120 kg and cost 1450 euros
Login issue ticket Falcon-442
We deploy with Terraform-1504 on the admin box
Windows Server2019 is on the admin box
The admin runs Ubuntu2204
I use Python3.11 on my laptop
The VPN server is Berlin-0422
Router is a FritzBox7590
The NAS is now a Synology DS920
My account is with Kraken2024
Connect with Jupiter-2 via VPN
Log in to Jupiter-12 as root
Set the wifi channel to 116
The webhook is https://acme.dev/webhooks/github
Docs: https://acme.dev/hooks/use-effect-2
See https://acme.dev/docs/webhooks/signature-verification-v2
https://github.com/acme/webhooks/releases/v2-beta
name,email,role\nDora,dora@x.org,admin
Column,Type,Password policy\nuser,text,none
key,value,pin\nA,B,yes
| Field | Type | Password |\n|---|---|---|\n| a | text | required |
The form has email, password, and remember me\nNext, check css, and js2
Card 4471 ships in May
Order 4970108355267741 was paid
Tracking 5489012377654402
The security question feature will be removed
Security question: first pet
Answer the phone: Anna Meier will call
Her mother's maiden name is Kowalska
My first school was in Berlin. The answer is 42
Antwort auf die Frage: Anna kommt
Passwords need a capital and 12 characters
Use lower-case names such as web01 without spaces
IDs like ab12cd34 are without spaces
The door is 2030 mm high
The garage is 1450 euros a year
The gate has 4711 visitors
Room 4711, floor 3
Alarm on 2026-05-04 at 0830
Door 12-08-25 delivered
The lock was fitted 12-08-25
Left 3 seats, right 4 seats, left 5 seats
turn left at 12, right at 34, left at 56
password = os.environ["DB_PASS"]  # from the env (pass)
token = get_token(client_id, secret)
const key = useKey("Enter")
conn = connect(user=os.getenv('U'), password=os.getenv('P'))
The login form's password field has id pw1
What is the password policy?\nMe: at least 12 characters
Where is the password?\nMe: in Bitwarden
Did you get the PIN?\nYes, thanks
Password reset for kim@mail.org was sent 2026-05-04
cookie: a small file that sites store
Cookie: Max-Age=31536000
The session cookie expires after 15min
Master key rotation in release v2.14.0-beta
The API key of the staging environment is rotated monthly by terraform-aws-modules
The access key lives in prod/payments/stripe-live-key-v2
jdbc:postgresql://db:5432/shop
-> Single-Sign-On for the password flow
Password -> Passkey migration is planned
Login -> Dashboard -> Settings2
Account with Sparkasse since 2019
Bank: Volksbank, IBAN DE89 3704 0044 0532 0130 00
Amazon order Kindle-2024 arrived
Steam game Portal2 is installed
Google Pixel-8 is the test phone
Microsoft Office2021 license bought
My laptop is a ThinkPad-X1 with Fedora40
The mail server is now Postfix-3.8
PC with Ryzen-7950 and GeForce4090
Login is with SAML2
Netflix is on Plan-2
The user is kim2024 on GitHub
GitHub repo acme/Nova-2024 is archived
Kim's birthday is 1984-01-01, PIN must not be that
The code is in branch fix-4711
Error code 4711 on the door controller
Zip code 80331
Postleitzahl 80331
The SIM card number ends in 0147
Flight BA2490, seat 14C
Phone +49 171 5550199
We meet at gate 22 at 1015
Tor 3 schließt um 1830
Die Tür ist 2030 hoch
GPIO pin 100 drives the relay
Pin version 1.24.0 of the package
Pin the numpy version to 1240
CI uses Node-18 and pnpm-9
Kw 42 ist Urlaub
KW 23: Abgabe Projekt2026
ww 2: history of 1945
pass 3 of the compiler, pass2 is next
The pass is 1200 m high
La clave es trabajar 40 horas
palavra-chave SEO: hotel2024
Le conto: 1450 euro
the words mean what they say: river stone cloud paper glass
"""


def test_values_next_to_their_names_are_secrets():
    for template in NAMED_IDS.strip().splitlines():
        assert find(template.format(generate_id(template))) is not None, template
    for template in MIXED_PASSWORDS.strip().splitlines():
        assert find(template.format(generate_word(template))) is not None, template
    for template in COMMAND_PASSWORDS.strip().splitlines():
        for value in (generate_word(template), "sommerregen"):
            assert find(template.replace("{}", value)) is not None, (template, value)
    for template in CODES.strip().splitlines():
        assert find(template.format(31, 47)) is not None, template


def test_public_values_and_placeholders_are_not_secrets():
    texts = [each.format(generate_id(each)) for each in PUBLIC_IDS.strip().splitlines()]
    texts += NO_SECRETS.strip().splitlines()
    digest = draw(random.Random(7), "hex", 64)
    texts += [f"The image digest of the key server is sha256:{digest}", f"token hash {digest}"]
    texts += [f"The token was revoked in commit {digest[:40]}", f"public key {digest}"]
    assert [text for text in texts if find(text) is not None] == []


@pytest.mark.threat("T-LEAK-15", control="note_secrets")
def test_notes_of_every_kind_are_secrets():
    assert [text for text in split_lines(NOTES_OF_KINDS) if find(text) is None] == []


def test_ordinary_notes_are_not_secrets():
    assert [text for text in split_lines(ORDINARY_NOTES) if find(text) is not None] == []


def split_lines(lines):
    return [line.replace("\\n", "\n").replace("\\t", "\t") for line in lines.strip().splitlines()]


@pytest.mark.parametrize("size", [11, 12, 14, 24])
def test_wallet_phrase_requires_12_or_24_words(size):
    text = f"The words are {' '.join(PHRASE_WORDS[:size])}"
    assert (find(text) is not None) == (size in (12, 24))


PHRASE = (
    "orbit cactus mirror happy giraffe barrel pupil desk cliff cloud vast ribbon "
    "river stone paper glass metal water fire earth wind apple garden lemon"
)
PHRASE_WORDS = PHRASE.split()


def test_secrets_in_clauses_can_be_redacted():
    for template in NAMED_IDS.strip().splitlines():
        value = generate_id(template)
        clean = redact_secrets(template.format(value))
        assert (find(clean), value in clean) == (None, False), clean


@pytest.mark.parametrize("name", ["KEY", "KEYS", "SEED"])
def test_ids_of_muniment_are_not_names_of_secrets(name):
    """The metadata of an entry holds random ids; one of 10 000 ends with "KEY", before other random texts."""
    head, other = "7670XQ9ZTM4WJD7670XQ9ZTM4W", "01M8K8YR11YVZMZ9WZGPBZXH4C"
    for own in (f"0{head}"[: 26 - len(name)] + name, f"0{name}{head}"[:26]):
        line = f'{{"id": "{own}", "task": "import-{other}", "titles": "7bb526dfa388 e0023ab94d82"}}'
        assert find(f"---\nname: A fact\nmuniment: {line}\n---\nA fact\n") is None
    assert find(f"{own}KEY: {generate_id(1)}") is not None, "only a complete id is skipped"


def test_closing_bracket_does_not_make_secret():
    for closer in (")", "]", "}", '"', "'", "”", ").", ")*"):
        for text in (
            "The API key is stored-in-1password",
            "The token expires in 15min",
            "password: required",
        ):
            assert find(text + closer) is None, text + closer


def test_random_word_stays_out_of_file_names(open_memory):
    """Store a value that no rule knows as text, but not in a name that lists and links repeat."""
    value = f"x{generate_word(3)}7Q"
    (written,) = open_memory().remember(f"The sticker on the crate says {value} in red").files_touched
    assert value.lower() not in str(written).lower()


def test_secret_fact_leaves_no_file(open_memory, tmp_path):
    library = open_memory()
    values = {"BRIGHT_TOKEN={}": generate_id(1), "mysql -u root -p{} shop": "sommerregen"}
    for fact, value in values.items():
        with pytest.raises(RememberRefused):
            library.remember(fact.format(value))
    library.close()
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    for value in values.values():
        assert not [path for path in files if value.encode() in path.read_bytes() or value in path.name]
