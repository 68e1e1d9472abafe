"""Secrets are taken out of whatever leaves the process as text."""

import asyncio
import base64
import html
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from django.utils.html import escapejs
from hypothesis import given
from hypothesis import strategies as st

from nanohost.lib import known_secrets, redaction, secret_shapes
from nanohost.lib.known_secrets import KnownSecrets
from nanohost.lib.redaction import MASK, RedactedPieces, redact
from tests.support.counting import calls

pytestmark = pytest.mark.shapeless(reason="pure functions")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> KnownSecrets:
    """The secrets that are known here: none of other tests'."""
    monkeypatch.setattr(redaction, "known_secrets", KnownSecrets())
    return redaction.known_secrets


@pytest.fixture
def remember() -> Callable[..., None]:
    """Have secrets known: ``remember("a-secret", "another")``."""

    def add(*secrets: str) -> None:
        for number, secret in enumerate(secrets):
            redaction.remember(f"SECRET_{number}", secret)

    return add


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("key nh_ab12cd34_0123456789abcdef.", f"key {MASK}."),
        ("key=sk-proj-0123456789_abc", f"key={MASK}"),
        ("first line\nsk-0123456789", f"first line\n{MASK}"),
        ("my_sk-0123456789", f"my_{MASK}"),
        ("Authorization: Bearer abc.def-012", f"Authorization: Bearer {MASK}"),
        ("authorization: bearer abc.def-012", f"authorization: bearer {MASK}"),
        ("redis://:secret@broker:6379/0", f"redis://{MASK}@broker:6379/0"),
        ("postgres://user:pa!ss@db/x and http://a:b@c", f"postgres://{MASK}@db/x and http://{MASK}@c"),
    ],
)
def test_what_is_shaped_like_a_secret_is_taken_out(text, left):
    assert redact(text) == left


# Of each beginning in ``secret_shapes.WORDS``, words as their makers write them.
WORDS = {
    "nh_": ["nh_ab12cd34_0123456789abcdef"],
    "sk-": ["sk-ant-api03-AbCdEfGh_0123456789", "sk-01234567"],
    "sk_": ["sk_live_AbCdEfGh0123456789"],
    "rk_": ["rk_live_AbCdEfGh0123456789"],
    "pk_": ["pk_test_AbCdEfGh0123456789"],
    "gsk_": ["gsk_AbCdEfGh0123456789AbCdEfGh"],
    "csk-": ["csk-AbCdEfGh0123456789AbCdEfGh"],
    "xai-": ["xai-AbCdEfGh0123456789AbCdEfGh"],
    "nvapi-": ["nvapi-AbCdEfGh0123456789_AbCd-EfGh"],
    "pplx-": ["pplx-AbCdEfGh0123456789AbCdEfGh"],
    "r8_": ["r8_AbCdEfGh0123456789AbCdEfGh"],
    "hf_": ["hf_AbCdEfGh0123456789AbCdEfGh"],
    "tgp_v1_": ["tgp_v1_AbCdEfGh0123456789_AbCdEfGh"],
    "whsec_": ["whsec_AbCdEfGh0123456789AbCdEfGh"],
    "lin_api_": ["lin_api_AbCdEfGh0123456789AbCdEfGh"],
    "dop_v1_": ["dop_v1_0123456789abcdef0123456789abcdef"],
    "shpat_": ["shpat_0123456789abcdef0123456789abcdef"],
    "npm_": ["npm_AbCdEfGh0123456789AbCdEfGh"],
    "pypi-": ["pypi-AgEIcHlwaS5vcmcCJDAbCdEfGh0123456789"],
    "glpat-": ["glpat-AbCdEfGh0123456789ab"],
    "ya29.": ["ya29.AbCdEfGh0123456789AbCdEfGh"],
    "GOCSPX-": ["GOCSPX-AbCdEfGh0123456789_AbCdEfGh"],
    "AIza": ["AIzaSyAbCdEfGh0123456789AbCdEfGh0123456"],
    "ghp_": ["ghp_AbCdEfGh0123456789AbCdEfGh0123456789"],
    "gho_": ["gho_AbCdEfGh0123456789AbCdEfGh0123456789"],
    "ghu_": ["ghu_AbCdEfGh0123456789AbCdEfGh0123456789"],
    "ghs_": ["ghs_AbCdEfGh0123456789AbCdEfGh0123456789"],
    "ghr_": ["ghr_AbCdEfGh0123456789AbCdEfGh0123456789"],
    "github_pat_": ["github_pat_AbCdEfGh0123456789_AbCdEfGh"],
    "dckr_pat_": ["dckr_pat_AbCdEfGh0123456789_AbCdEf"],
    "hvs.": ["hvs.AbCdEfGh0123456789AbCdEfGh"],
    "hvb.": ["hvb.AbCdEfGh0123456789AbCdEfGh"],
    "ATATT3": ["ATATT3xFfGF0AbCdEfGh0123456789_AbCdEfGh=01234567"],
    "AGE-SECRET-KEY-": ["AGE-SECRET-KEY-1QQPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"],
    "xox": ["xoxb-012345678901-AbCdEfGh", "xoxp-012345678901-AbCdEfGh"],
    "xapp-": ["xapp-1-A012345678-0123456789-abcdef"],
    "AKIA": ["AKIAIOSFODNN7EXAMPLE"],
    "ASIA": ["ASIAIOSFODNN7EXAMPLE"],
    "SG.": ["SG.AbCdEfGh0123456789abcd.AbCdEfGh0123456789-AbCdEfGh_0123456789abcdefg"],
    "eyJ": [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxMjM0NTY3ODkwIn0.",
        "eyJhbGciOiJSU0EifQ.OKOawDo13gRp2ojaHV7LFpZcgV7T6DVZ.48V1_ALb6US04U3b.5eym8TW_c8SuK0lt.XFBoMYUZodetZdvT",
        "eyJhbGciOiJkaXIifQ..48V1_ALb6US04U3b.5eym8TW_c8SuK0ltJ3rpYIzOeDQz7TALvtu6UG9oMo4vpzs9tX_EFShS8iB7j6ji.XFBoMYUZodetZdvT",
    ],
}


def test_each_beginning_of_a_word_is_tried():
    assert WORDS.keys() == secret_shapes.WORDS.keys()


@pytest.mark.parametrize("word", [pytest.param(word, id=word[:12]) for words in WORDS.values() for word in words])
def test_a_word_is_known_by_its_beginning(word):
    for form in ("{}", "key={}", "'{}'", '{{"key": "{}"}}', "a {}, b", "<{}>", "x\n{}\ny", "?key={}&x=1", "my_{}"):
        assert redact(form.format(word)) == form.format(MASK)
        assert not redaction.is_plain(form.format(word))
    assert redact(f"a{word}").endswith(word[3:])  # in the midst of a word it begins none


@pytest.mark.parametrize(
    "text",
    [
        "eyJhbGciOiJIUzI1NiJ9",  # base64 of some JSON, as the names of pages are
        "eyJhbGciOiJIUzI1NiJ9.eyJz.x",
        "eyJ-eyJ-eyJ-",
        "SG.1 and SG.2",
        "AKIA",
        "design=0123456789012345678",
        "sig=short",
        "signature=inspect_signature_2 --signature",
        *("pk_users_primary_key_constraint", "hf_hub_download_file_name", "npm_lifecycle_script_name"),
        *("sk-learn-contrib", "npm_config_registry_npm_config_cache_min", "hvs.created_by_the_vault"),
        *("basic training", "bearer certificates", "bearer authentication-and-authorization", "Basic authentication."),
        "mailto:AA0123456789012345678901234567890123",
    ],
)
def test_what_only_begins_like_a_secret_is_left(text):
    assert redact(text) == text


def test_a_token_behind_what_is_none_is_found():
    none, token = "eyJ-eyJaaaaaaaa", WORDS["eyJ"][0]
    assert redact(f"{none} {token}") == f"{none} {MASK}"
    assert redact(f"eyJhbGciOiJIUzI1NiJ9.short.{token}").endswith(MASK)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("https://x.blob.core.windows.net/c?sv=1&sig=AbC%2Bd0123456789012%3D&se=2", f"&sig={MASK}&se=2"),
        ("?sig=AbCd0123456789AbCd", f"?sig={MASK}"),
        ('{"url": "https://x/?se=2\\u0026sig=AbCd0123456789AbCd"}', f'sig={MASK}"}}'),
        ("<a href='?se=2&amp;sig=AbCd0123456789AbCd'>", f"sig={MASK}'>"),
        ("url=https%3A%2F%2Fx%2F%3Fse%3D2%26sig%3DAbCd0123456789AbCd", f"sig%3D{MASK}"),
    ],
)
def test_the_signature_in_a_url_is_taken_out(text, left):
    assert redact(text).endswith(left)


HEADERS = [
    "Cookie: session=abc123; csrftoken=def456",
    "Set-Cookie: session=abc123; Path=/; HttpOnly",
    "Authorization: Basic dXNlcjphYmMxMjM=",
    "Authorization: Bearer abc123abc123",
    "authorization=Token abc123abc123",
    "Proxy-Authorization: abc123",
    "X-Api-Key: abc123",
    '{"cookie": "session=abc123"}',
    '{"Authorization": "Bearer abc123 abc123"}',
    "{'x-api-key': 'abc123'}",
    '{"headers": "{\\"Authorization\\": \\"Bearer abc123\\"}"}',
    '{"password": "a\\"bc123abc123"}',
    "https://example.org/?api_key=abc123&x=1",
    "https://example.org/?x=1&access_token=abc123",
    "DB_PASSWORD=abc123",
    "client_secret: abc123",
    "apikey=abc123",
    "private_key: abc123",
    "pwd=abc123",
    "passwd=abc123",
    "passphrase: abc123",
    "secret_key=abc123",
    # What follows has the last word on these.
    '{"token": "abc123"}',
    '{"githubToken": "abc123x"}',
    '{"secret": "abc123"}',
    '{"webhookSecret": "abc123"}',
    '{"openaiApiKey": "abc123"}',
    '{"pass": "abc123"}',
    "{'smtp_pass': 'abc123'}",
    '{"text": "{\\"token\\": \\"abc123\\"}"}',
    "token=abc123",
    "token: abc123abc123",
    "https://example.org/?x=1&token=abc123&y=2",
    "X-CSRF-Token: abc123",
    "DB_PASS=abc123",
    "SMTP_PASS='abc123'",
    "GITHUB_TOKEN=abc123",
    "export NPM_TOKEN=abc123",
    "WEBHOOK_SECRET=abc123",
    "secret: abc123",
]


@pytest.mark.parametrize("text", [text for text in HEADERS if text.startswith('{"')])
def test_a_field_of_json_is_known_by_its_name(text):
    left = redaction.redact_json(text)
    assert not re.search("abc123|def456|dXNl", left)
    assert json.loads(left).keys() == json.loads(text).keys()


def test_a_variable_of_a_secret_is_taken_out_whatever_it_is():
    for name in ("DB_PASS", "GITHUB_TOKEN", "WEBHOOK_SECRET"):
        assert redact(f"{name}=letters") == f"{name}={MASK}"


# What we and others answer with, and what people write: none of it is a secret.
NONE_OF_THEM = [
    '{"usage": {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19, "cached_tokens": 0}}',
    '{"promptTokens": 12345678, "completionTokens": 7, "maxTokens": 4096, "max_tokens": 4096}',
    '{"token": 12, "secret": true, "pass": false, "token_count": 12345678}',
    '{"token": "12", "logprob": -0.1}',
    '{"token": "Hello", "token_type": "bearer0"}',
    '{"token": null, "secret": ""}',
    '{"next_page_token": "CAUQAA0123456789", "nextPageToken": "CAUQAA0123456789"}',
    '{"NextToken": "CAUQAA0123456789", "continuation_token": "CAUQAA0123456789"}',
    "max_token=4096, token: 12, tokens=19",
    "MAX_TOKENS=4096 MAX_TOKEN=4096 TOKENS=123456",
    "GITHUB_TOKEN=$GITHUB_TOKEN DB_PASS=${DB_PASS} NPM_TOKEN=<token>",
    "secret: no; pass: 12 of 13; PASS: tests/test_1234.py",
    "The secret: be patient. A token: something small.",
    "token = get_token(); secret=self.secret, token=token",
    '{"secretary": "Smith0123", "compass": "north0123", "tokenizer": "cl100k_base"}',
    '{"secret": {"name": "abc01234"}}',
    "secrets: passphrases, passports",
]


@pytest.mark.parametrize("text", NONE_OF_THEM)
def test_what_is_called_like_a_secret_and_is_none_is_left(text):
    assert redact(text) == text
    assert redaction.redact_json(text) == text


@pytest.mark.parametrize("text", HEADERS)
def test_a_field_that_carries_a_secret_is_known_by_its_name(text):
    left = redact(text)
    assert MASK in left
    assert not re.search("abc123|def456|dXNl", left)
    assert redact(left) == left


@pytest.mark.parametrize("joint", ["", "-", "_"])
@pytest.mark.parametrize(
    "name",
    [
        *("access token", "refresh token", "id token", "auth token", "session token", "api token", "private token"),
        *(
            "security token",
            "vault token",
            "api key",
            "client secret",
            "secret key",
            "secret access key",
            "private key",
        ),
        *("password", "passwd", "passphrase", "pwd"),
    ],
)
def test_some_fields_carry_a_secret_whatever_it_looks_like(name, joint):
    assert redact(f"my {name.replace(' ', joint)}: letters") == f"my {name.replace(' ', joint)}: {MASK}"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "cookie",
            "set-cookie",
            "authorization",
            "proxy-authorization",
            "x-api-key",
            "x-auth-token",
            "x-goog-api-key",
        ),
        *("client-secret", "api-key", "access-token"),
    ],
)
def test_a_header_in_a_list_of_them_is_taken_out(name):
    for text in (f"[('{name}', 'letters'), ('accept', '*/*')]", f"[(b'{name.title()}', b'letters')]"):
        assert "letters" not in redact(text)
        assert redact(text.replace("')", "', 1)")) == text.replace("')", "', 1)")  # of more than two it is none


def test_credentials_without_their_header_are_taken_out():
    assert redact("curl sends Basic dXNlcjphYmMxMjM=, they say") == f"curl sends Basic {MASK}, they say"
    assert redact("curl sends Bearer abcdefg1, they say") == f"curl sends Bearer {MASK}, they say"


def test_what_stands_beside_a_secret_is_left():
    assert redact("https://example.org/?api_key=abc123&x=1") == f"https://example.org/?api_key={MASK}&x=1"
    assert redact('{"password": "abc123", "user": "me"}') == f'{{"password": "{MASK}", "user": "me"}}'
    assert json.loads(redact('{"a": {"cookie": "x=abc123"}, "b": 1}')) == {"a": {"cookie": MASK}, "b": 1}


SECRET = "Canary0123456789abcDEF0"

# What stands before a secret, and behind it: what is left of a text.
QUOTES = {
    "a list": ("set-cookie: ['", "']"),
    "a list of two": ('{"set-cookie": ["', f'", "id={SECRET}"]}}'),
    "a query's dictionary": ("<QueryDict: {'password': ['", "']}>"),
    "a URL": ("token=%22", "%22"),
    "JSON for HTML": ("token=\\u0022", "\\u0022"),
    "an f-string": ('password=f"', '"'),
    "HTML": ("&quot;password&quot;: &quot;", "&quot;"),
    "HTML, numbers": ("&#34;token&#34;:&#x27;", "&#x27;"),
    "XML": ("<password>", "</password>"),
    "XML, a prefix": ("<db:token>", "</db:token>"),
    "XML in JSON": ('{"a": "<dbPassword>', '<\\/dbPassword>"}'),
    "PHP": ('"password" => "', '"'),
    "PHP in HTML": ("&#39;token&#39; =&gt; &#39;", "&#39;"),
    "Go": ('password := "', '"'),
    "make": ("TOKEN := ", ""),
    "YAML": ("password: |\n  ", "\nuser: me"),
    "YAML, some lines": ("token: >-\n    ", f"\n    {SECRET}\n  user: me"),
    "YAML in JSON": ('{"a": "password: |\\n  ', '"}'),
}
OPTIONS = {
    "option": ("mysql --password ", " --user me"),
    "option of two words": ("x --db-password '", "'"),
    "option with a token": ("x --token ", ""),
    "option in a list": ("['x', '--api-key', '", "', '-v']"),
    "netrc": ("machine h login u password ", "\nmachine i"),
    "netrc of lines": ("machine h\n  login u\n  password ", "\n"),
    "netrc in JSON": ('{"a": "machine h\\n\\tlogin u\\n\\tpassword ', '\\n"}'),
}
FIELDS = {
    **{
        name: (f"{name}=", "")
        for name in (
            *("AccountKey", "SharedAccessKey", "ENCRYPTION_KEY", "MASTER_KEY", "access_key", "storageAccountKey"),
            *("shared_access_key", "sessionid", "JSESSIONID", "PHPSESSID", "ASP.NET_SessionId", "csrftoken"),
        )
    },
    **{name: (f"{name}: ", "\r\n") for name in ("Ocp-Apim-Subscription-Key", "x-functions-key")},
    "connection": ("Endpoint=sb://x/;SharedAccessKeyName=Root;SharedAccessKey=", ""),
}
URLS = {
    "signature": ("https://h/?X-Amz-Signature=", "&x=1"),
    "signature alone": ("https://h/?a=b&Signature=", ""),
    "signature in a URL's query": ("?url=https%3A%2F%2Fh%2F%3Fa%3Db%26Signature%3D", "&b=c"),
    "token": ("https://", "@github.com"),
    "slash in a password": ("postgres://u:p/", "@h"),
    "slash in a password, in JSON": ('{"a": "postgres:\\/\\/u:p\\/', '@h\\/d"}'),
    "Slack": ("https://hooks.slack.com/services/T0123ABCD/B0123ABCD/", ""),
    "Discord": ("https://discord.com/api/webhooks/0123456789/", "?wait=true"),
    "Telegram": ("https://api.telegram.org/bot123456:AAabcdefghi", "/getMe"),
    "bearer": ("Bearer%20", "&x=1"),
}
KEYS = {
    "PuTTY": ("Public-Lines: 1\nAAAA\nPrivate-Lines: 2\n", f"\n{SECRET}==\nPrivate-MAC: 00"),
    "PuTTY in JSON": ('{"a": "Private-Lines: 2\\r\\n', f'\\r\\n{SECRET}==\\r\\nPrivate-MAC: 00"}}'),
}
GROUPS = {"quotes": QUOTES, "options": OPTIONS, "fields": FIELDS, "URLs": URLS, "keys": KEYS}
EVERYWHERE = {f"{group}: {name}": each for group, table in GROUPS.items() for name, each in table.items()}


@pytest.mark.parametrize(("before", "behind"), EVERYWHERE.values(), ids=EVERYWHERE)
def test_a_secret_is_found_wherever_tools_write_it(before, behind):
    text = f"x {before}{SECRET}{behind}"
    left = redact(text)
    assert MASK in left
    assert SECRET not in left
    assert "0123456789abcDEF" not in left
    assert left.startswith("x ")
    assert left.endswith(behind.rpartition(SECRET)[2].lstrip("=\\rn\n"))
    assert redact(left) == left
    assert not redaction.is_plain(text)
    assert "0123456789abcDEF" not in redaction.redact_json(json.dumps({"a": [text]}))


NO_SECRETS = [
    # Two things in a list, which are no pair in a list of them.
    *('["password","username"]', '["cookie","header"]', "f(('password', 'username'))", 'x in ("cookie", "header")'),
    '{"required": ["password", "username"], "properties": {"password": {"type": "string", "minLength": 8}}}',
    # What a value has to be, or that there is none.
    *('{"password":{"type":"string"}}', '{"password": {"anyOf": [{"type": "string"}], "default": null}}'),
    *("password: required", "password=False", "apikey: none", "password: str", "api_key: Optional[str] = None"),
    *('{"password": "required|min:8"}', '{"api_key": "none"}', '{"password": true}', "password:\n  type: string"),
    # Where one is put in.
    *("password=$DB_PASSWORD", 'password="${DB_PASSWORD}"', "password: {{ db_password }}", "password=%(password)s"),
    *("Authorization: Bearer $TOKEN", "Authorization: Bearer <token>", "api_key: ********", '"password" => $password'),
    # What code does.
    *("password = getpass.getpass()", 'password = os.environ["PASSWORD"]', "password=settings.DB_PASSWORD"),
    *('password: "{{ db_password }}"', 'password="{password}"', '{"password": "{{ db_password }}"}'),
    *("password := cfg.Password", "password => checkPassword(password)", "token = derive_a_token_from(key)"),
    # A folder.
    *("PWD=/home/x", '{"PWD": "/home/x", "OLDPWD": "/tmp"}', "OLDPWD=/tmp/a"),
    # Options, and what is written about them.
    *("--password is asked for", "--password PASSWORD", "--token <token>", "--password $DB_PASSWORD1", "--token --v1"),
    "give --password to authenticate-by-password, --token-file /run/token1",
    # Keys that let nobody in.
    *("primary_key=article_0123456789", '<a accesskey="s">', "SharedAccessKeyName=Root0123456789", "key: abc01234"),
    # Sessions are no cookies.
    *('{"sessionId": "0123456789abcdef"}', "session_id=0123456789abcdef"),
    # URLs with an @ in them, and what stands in pages.
    *("https://example.org:8080/@scope/package", "ssh://git@example.org/x", "https://me.at.home@example.org"),
    *(
        "git@github.com:a/b",
        "http://[::1]:80/@x",
        "<label>Password</label>",
        "<option value=password>Password</option>",
    ),
    "the machine that people login to has a password of its own",
]


@pytest.mark.parametrize("text", NO_SECRETS)
def test_what_stands_where_secrets_do_is_left_if_it_is_none(text):
    assert redact(text) == text
    assert redaction.redact_json(text) == text


def test_what_is_found_fast_is_what_would_be_found_everywhere():
    for text in (
        *HEADERS,
        *MORE_SPELLINGS,
        *NONE_OF_THEM,
        *NO_SECRETS,
        *(f"{a}{SECRET}{b}" for a, b in EVERYWHERE.values()),
    ):
        everywhere = [each.start() for each in secret_shapes.NAMED.finditer(text)]
        assert {*everywhere} <= {*redaction.likely_places(text.lower())}


@pytest.mark.parametrize("more", ["default", "example", "const", "enum"])
def test_a_schema_that_tells_a_value_is_no_schema(more):
    text = json.dumps({"password": {"type": "string", more: ["canary"]}})
    assert "canary" not in redaction.redact_json(text)


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("end", ["-----END {}PRIVATE KEY-----\nand so on", ""])
def test_a_private_key_is_taken_out_whole_also_when_its_end_is_cut_off(kind, end):
    key = f"-----BEGIN {kind}PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIE+abc/123==\nabc\n{end.format(kind)}"
    for text in (key, json.dumps(key)):
        left = redact(f"before {text}")
        assert left.startswith("before ")
        assert "MIIE" not in left
        assert "abc" not in left
        assert ("and so on" in left) == bool(end)


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ({"password": 123456, "user": "me"}, {"password": MASK, "user": "me"}),
        (
            {"headers": {"Authorization": "Bearer x", "Accept": "*/*"}},
            {"headers": {"Authorization": MASK, "Accept": "*/*"}},
        ),
        ({"X-DB-Password": ["a", "b"]}, {"X-DB-Password": MASK}),
        ({"text": "sk-0123456789"}, {"text": MASK}),
        ([["a://b:c@d"]], [[f"a://{MASK}@d"]]),
        ({"sk-0123456789": 1}, {MASK: 1}),
        ({"password": None, "cookies": "many"}, {"password": None, "cookies": "many"}),
        ({"pwd": "abc123", "PWD": "/home/x"}, {"pwd": MASK, "PWD": "/home/x"}),
        ({"password": "/home/x"}, {"password": MASK}),
        ([["Cookie", "sk-0123456789"], ["Accept", "*/*"]], [["Cookie", MASK], ["Accept", "*/*"]]),
        ([["Cookie", 12345678]], [["Cookie", MASK]]),
        ([["sk-0123456789 Cookie", "x"]], [[f"{MASK} Cookie", MASK]]),
    ],
)
def test_json_stays_json(value, left):
    assert json.loads(redaction.redact_json(json.dumps(value))) == left


LARGE_OBJECT = "{" + ",  ".join(f'"key {number}": 1' for number in range(300)) + "}"


@pytest.mark.parametrize(
    "text",
    [
        *('{"a":1,  "b": "x"}', "[]", "1", '"ü"', "no json", '{"a": 1', "[1,2]", LARGE_OBJECT),
        *('[["cookie"]]', '[["cookie","id","x"]]', '[[1,"cookie"]]'),
    ],
)
def test_json_without_a_secret_is_left_to_the_letter(text):
    assert redaction.redact_json(text) == text


def test_json_is_written_as_it_can_be_stored():
    assert redaction.redact_json('{"pwd": "abc123", "a": "ü"}') == f'{{"pwd": "{MASK}", "a": "ü"}}'
    assert redaction.redact_json('{"pwd": "abc123", "a": "ü\\ud800"}') == f'{{"pwd": "{MASK}", "a": "\\u00fc\\ud800"}}'


@pytest.mark.parametrize(
    ("name", "names_one"),
    [
        *(("password", True), ("githubToken", True), ("secret", True), ("x" * 100 + "_password", True)),
        *(
            ("user", False),
            ("max_token", False),
            ("", False),
            (12, False),
            (None, False),
            ("password of " + "x" * 64, False),
        ),
    ],
)
def test_a_name_tells_whether_a_field_may_carry_a_secret(name, names_one):
    assert redaction.names_a_secret(name) is names_one


@pytest.mark.parametrize("text", ['{"a": "sk-0123456789"', "[" * 9000 + '"sk-0123456789"'])
def test_what_is_no_json_is_text(text):
    assert MASK in redaction.redact_json(text)


def test_what_people_write_to_each_other_loses_only_this_hosts_own_secrets(remember):
    remember("the-secret-value")
    said = "use postgres://user:password@localhost/db and sk-0123456789"
    assert redaction.redact_known(f"{said}, the-secret-value") == f"{said}, {MASK}"


@pytest.mark.parametrize(
    "text",
    [
        "the disk-usage-report of the task-management",
        "http://127.0.0.1:8000/api/v1/conversations",
        "a bearer of news",
        "mail to someone@example.org: at 10:30",
        "nh_short",
        "Cookies are baked at 180 degrees.",
        "the password is asked for twice",
        "basic needs of many people",
        "a token of 5 bytes, tokens: 7, max_tokens=100",
        "2026-11-21T10:30:00Z, a-b-c-d-e-f-0123456789-0123456789",
        "550e8400-e29b-41d4-a716-446655440000",
        "sk-learn",
        "",
    ],
)
def test_what_is_none_is_left(text):
    assert redact(text) == text


@pytest.mark.parametrize(
    "secret",
    [
        *("plainsecret", "with \"quotes\" \\ and 'more'", "schlüssel-wörter", "  blanks around ", "a/b+c&d=e f<g>"),
        "schlüssel & \"wörter\" <'x'>",
    ],
)
def test_a_secret_is_taken_out_however_it_is_spelt(remember, secret):
    assert redact(f"it is {secret}") == f"it is {secret}"
    remember(secret)
    secret = secret.strip()
    raw = secret.encode()
    for spelling in (
        *(secret, json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret), repr(raw)),
        *(quote(secret), quote(secret, safe=""), html.escape(secret), html.escape(secret, quote=False)),
        *(html.escape(secret).replace("&#x27;", mark) for mark in ("&#39;", "&apos;")),
        *(raw.hex(), raw.hex().upper()),
    ):
        left = redact(f"it is {spelling}, they say")
        assert re.fullmatch(r"it is b?[\"']?\[redacted][\"']?, they say", left)
    said = f"it is {secret}, they say"
    for whole in (json.dumps(said), json.dumps(said, ensure_ascii=False), repr(said), repr(said.encode())):
        assert f"it is {MASK}, they say" in redact(whole)


# As others than Python write it: PHP, Go, .NET, templates of browsers; and what is written within a text twice.
OTHERS_WRITE = {
    "a slash in JSON of PHP's": lambda secret: json.dumps(secret).replace("/", r"\/"),
    "signs of HTML in JSON of Go's": lambda secret: in_json(secret, "<>&", "{:04x}"),
    "signs in JSON of .NET's": lambda secret: re.sub(
        r"\\u....", lambda found: rf"\u{found[0][2:].upper()}", in_json(secret, "<>&'+`", "{:04x}")
    ).replace(r"\"", r"\u0022"),
    "signs in a script of Django's": lambda secret: in_json(secret, "<>&", "{:04X}"),
    "a URL in small digits": lambda secret: re.sub("%..", lambda found: found[0].lower(), quote(secret, safe="")),
    "a URL of JavaScript's": lambda secret: quote(secret, safe="!*'()"),
    "a URL in a URL": lambda secret: quote(quote(secret, safe=""), safe=""),
    "JSON in JSON": lambda secret: json.dumps(json.dumps(secret))[3:-3],
    "letters of JSON in JSON": lambda secret: json.dumps(json.dumps(secret, ensure_ascii=False), ensure_ascii=False)[
        3:-3
    ],
    "a repr in a repr": lambda secret: repr(repr(secret)),
    "a repr in JSON": lambda secret: json.dumps(repr(secret))[2:-2],
    "signs in a page of others": lambda secret: html.escape(secret).translate(
        {ord(sign): f"&#x{ord(sign):X};" for sign in "/=`"} | {ord("'"): "&#39;"}
    ),
    "an apostrophe in a page of PHP's": lambda secret: html.escape(secret).replace("&#x27;", "&#039;"),
    "signs in a page of .NET's": lambda secret: in_page(secret, lambda letter: letter in "+"),
    "more signs in a page of .NET's": lambda secret: in_page(secret, lambda letter: letter in "+`"),
    "letters in a page of .NET's": lambda secret: in_page(secret, lambda letter: letter == "+" or ord(letter) > 126),
    "all signs in a page of .NET's": lambda secret: in_page(secret, lambda letter: letter in "+`" or ord(letter) > 126),
    "a text in a script of Django's": escapejs,
    "a text in a script of Django's, in JSON": lambda secret: json.dumps(escapejs(secret))[1:-1],
    "signs in JSON of Gson's": lambda secret: in_json(secret, "<>&='", "{:04x}", ensure_ascii=False),
    "signs in JSON of Gson's, in JSON": lambda secret: json.dumps(
        in_json(secret, "<>&='", "{:04x}", ensure_ascii=False), ensure_ascii=False
    )[1:-1],
}


def in_json(secret: str, signs: str, digits: str, *, ensure_ascii: bool = True) -> str:
    text = json.dumps(secret, ensure_ascii=ensure_ascii)[1:-1]
    return text.translate({ord(sign): rf"\u{digits.format(ord(sign))}" for sign in signs})


def in_page(secret: str, is_sign: Callable[[str], bool]) -> str:
    return "".join(f"&#x{ord(letter):X};" if is_sign(letter) else letter for letter in html.escape(secret))


@pytest.mark.parametrize("writer", OTHERS_WRITE)
@pytest.mark.parametrize(
    "secret",
    [
        *("plain-canary-0123", "ca/na+ry=<0123>&`x", "ca(na)'ry!*0123", 'schl\u00fcssel "w\u00f6rter" \\0123'),
        *("ca-na;ry='0123'+\"`<x>&", "ca\tna\x1fry-0123"),
    ],
)
def test_a_secret_is_taken_out_as_others_write_it(remember, writer, secret):
    remember(secret)
    left = redact(f"it is {OTHERS_WRITE[writer](secret)}, they say")
    assert "0123" not in left, left


@pytest.mark.parametrize(
    "secret", ["plainsecret", "schlüssel-wörter", "canary-0123456789-0123456789-0123456789", "??>>~~~~ÿÿÿÿ"]
)
@pytest.mark.parametrize("before", ["", "u", "us", "user:", "in the midst of a text: "])
@pytest.mark.parametrize("behind", ["", ".", "..", ", and more"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_is_taken_out_of_base64_wherever_it_stands_in_it(remember, secret, before, behind, encode):
    """What is left of it is less than a character at each end."""
    remember(secret)
    written = encode(f"{before}{secret}{behind}".encode()).decode()
    first, end = -(-len(before) * 8 // 6), len(f"{before}{secret}".encode()) * 8 // 6
    assert redact(f"data: {written}") == f"data: {written[:first]}{MASK}{written[end:]}"
    unpadded = redact(written.rstrip("="))
    assert unpadded.count(MASK) == 1


@pytest.mark.parametrize("length", [12, 20, 57, 58, 100, 200])
@pytest.mark.parametrize("written", [str, lambda lines: json.dumps(lines), lambda lines: repr(lines)])
def test_a_secret_is_taken_out_of_base64_in_lines_wherever_it_stands_in_them(remember, length, written):
    """As ``base64.encodebytes`` and the command ``base64`` write it."""
    secret = "".join(chr(ord("a") + number * 7 % 26) for number in range(length))
    remember(secret)
    for place in range(60):
        encoded = base64.encodebytes(f"{'.' * place}{secret}, and more{'.' * 60}".encode()).decode()
        whole = base64.b64encode(f"{'.' * place}{secret}, and more{'.' * 60}".encode()).decode()
        first, end = -(-place * 8 // 6), (place + length) * 8 // 6
        left = redact(written(encoded)).replace("\\n", "\n").strip("\"'").replace("\n", "")
        assert left == f"{whole[:first]}{MASK}{whole[end:]}"


@pytest.mark.parametrize("length", [6, 40, 400, 4000])
def test_a_secret_has_a_bounded_number_of_spellings(length):
    signs = "a<\u00fc\"'`+=/-;&\\ "
    assert len(known_secrets.spellings((signs * length)[:length])) < 400


def test_a_secret_that_is_part_of_another_leaves_nothing_of_it(remember):
    remember("secret-value", "a-secret-value-and-more")
    assert redact("it is a-secret-value-and-more.") == f"it is {MASK}."
    assert redact("secret-value, a-secret-value-and-more.") == f"{MASK}, {MASK}."


def test_of_secrets_that_overlap_nothing_is_left(remember):
    remember("abcdefgh", "efghijkl", "zzzzzzzz")
    assert redact("it is abcdefghijkl.") == f"it is {MASK}."
    assert redact("abcdefghabcdefgh") == MASK + MASK
    assert redact("zzzzzzzz, abcdefghijkl, zzzzzzzzz") == f"{MASK}, {MASK}, {MASK}"


def test_a_value_too_short_for_a_secret_is_left(remember):
    remember("at", "a cat", "a bat!")
    assert redact("What a cat") == "What a cat"
    assert redact("What a bat!") == f"What {MASK}"


@given(st.text(), st.text())
def test_a_secret_is_taken_out_wherever_it_stands(before, after):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(redaction, "known_secrets", KnownSecrets())
        redaction.remember("KEY", "the-secret-value")
        assert "the-secret-value" not in redact(f"{before}the-secret-value{after}")


@pytest.mark.parametrize("before", ["\n", "\t", "\r", "\x00", '"', "ü", "‘"])
@pytest.mark.parametrize("secret", ["sk-0123456789canary", "cookie: id=canary", "password=canary", "X-Api-Key: canary"])
def test_a_secret_at_the_beginning_of_a_line_is_known_in_json_too(before, secret):
    """A tool's result is often JSON, and the page within it has many lines."""
    text = f"the page:{before}{secret}"
    for written in (json.dumps({"text": text}), json.dumps([json.dumps(text)]), repr(text), quote(text)):
        if "canary" in written:
            assert "canary" not in redact(written)


@pytest.mark.parametrize(
    "text",
    [
        '{"password": "canary", "password": ""}',
        '{"a": "sk-0123456789canary", "a": "x"}',
        '[{"a": {"sk-0123456789canary": 1}, "a": 2}]',
        '{"headers": [["Cookie", "id=canary"], ["Accept", "*/*"]]}',
    ],
)
def test_json_hides_no_secret_behind_a_second_key_or_in_a_list_of_headers(text):
    left = redaction.redact_json(text)
    assert "canary" not in left
    assert isinstance(json.loads(left), (dict, list))


MORE_SPELLINGS = [
    "Authorization: ApiKey canary-0123",
    "Authorization: Negotiate canary-0123",
    "Authorization: Bearer\tcanary-0123",
    "Authorization: Bearer: canary-0123",
    'Authorization: Digest username="x", response="canary-0123"',
    "Authorization: AWS4-HMAC-SHA256 Credential=x/y, SignedHeaders=host, Signature=canary-0123",
    'Cookie: a="b c"; id=canary-0123',
    "Cookie: a=b; id='canary-0123'",
    "Cookie: a=b&c=canary-0123",
    "Set-Cookie: a=b; Path=/, id=canary-0123",
    "[('cookie', 'id=canary-0123'), ('accept', '*/*')]",
    "[(b'authorization', b'canary-0123')]",
    "{b'cookie': b'id=canary-0123'}",
    '{"text": "[[\\"Cookie\\", \\"id=canary-0123\\"]]"}',
    "Bearer  canary-0123",
    "Bearer\ncanary-0123",
    "http://user:a@canary-0123@example.org/",
    r'{"url": "http:\/\/user:canary-0123@example.org\/"}',
    "AWS_SECRET_ACCESS_KEY=canary-0123",
    "PGPASSWORD=canary-0123",
    '{"dbPassword": "canary-0123"}',
    '{"api_token": "canary-0123"}',
    "Private-Token: canary-0123",
    "X-Vault-Token: canary-0123",
    "nvapi-canary0123456789_AbCd",
    "csk-canary0123456789AbCdEfGh",
]


@pytest.mark.parametrize("text", MORE_SPELLINGS)
def test_a_credential_is_taken_out_whole_however_it_is_written(text):
    left = redact(f"before {text}")
    assert "canary" not in left
    assert left.startswith("before ")
    assert redact(left) == left
    assert "canary" not in redaction.redact_json(text)


@pytest.mark.parametrize(
    "text",
    [
        '["milk", "cookie", "eggs"]',
        '["cookie", "milk", "eggs"]',
        "two cookies, a cookie, and a password",
        "http://example.org:8080/a?b=c and me@example.org",
        "he passwords nobody; max_token: 1234",
    ],
)
def test_what_only_sounds_like_a_credential_is_left(text):
    assert redact(text) == text


def test_a_known_secret_is_taken_out_of_urls_too(remember):
    remember("pass+word/ü canary")
    for written in (quote("pass+word/ü canary"), quote("pass+word/ü canary", safe=""), "pass%2Bword%2F%C3%BC+canary"):
        assert redact(f"GET /?x={written}&y=1") == f"GET /?x={MASK}&y=1"


def test_a_secret_that_arrives_in_pieces_is_never_shown_in_part(remember):
    secret = "canary-of-the-model-0123456789"
    remember(secret)
    said = f"My key is {secret}. Not canary-of-the-mill, nor can"
    for size in range(1, len(said) + 1):
        pieces, shown = RedactedPieces(), []
        for at in range(0, len(said), size):
            shown.append(pieces.add(said[at : at + size]))
            assert not any(len(piece) > 3 and piece in secret for piece in shown[-1].split())
        shown.append(pieces.end())
        assert "".join(shown) == "My key is [redacted]. Not canary-of-the-mill, nor can"


def test_pieces_in_which_no_secret_begins_are_shown_at_once(remember):
    remember("zq-secret-of-the-model")
    pieces = RedactedPieces()
    assert [pieces.add(piece) for piece in ("Hello", ", wor", "ld")] == ["Hello", ", wor", "ld"]
    assert pieces.end() == ""


def test_pieces_end_as_the_whole_does(remember):
    """Of secrets that begin alike, or overlap, the longer one may be cut off by the end."""
    remember("abcdefgh", "abcdefgh-and-more", "ghijklmn", "aaaaaaaa", "xx-abcdefgh-yy")
    for said in (
        "abcdefgh",
        "abcdefgh-and",
        "x abcdefghijklmn y",
        "abcdefgh-and-more",
        "abcdefghabcdefgh",
        "a" * 30,
        "b" + "a" * 7,
        *("xx-abcdefgh-yy", "xx-abcdefgh-zz"),
    ):
        for size in range(1, len(said) + 1):
            pieces = RedactedPieces()
            shown = [pieces.add(said[at : at + size]) for at in range(0, len(said), size)]
            assert "".join([*shown, pieces.end()]) == redaction.redact_known(said)


@given(
    st.lists(st.text("abc", min_size=6, max_size=40), max_size=30), st.text("abcd", max_size=300), st.integers(0, 30)
)
def test_known_secrets_are_found_however_many_they_are(secrets, text, before):
    """Short ones are looked for one by one, others by pieces: both find what plain searching does, of those that were
    known before somebody looked, and of those that came later."""
    known = KnownSecrets()
    for number, secret in enumerate(secrets):
        if number >= before:
            known.spellings()
        known.add(str(number), secret)
    held = known.spellings()
    spelt = {each for secret in secrets for each in known_secrets.spellings(secret)}
    marked = set()
    for spelling in spelt:
        for at in range(len(text)):
            if text.startswith(spelling, at):
                marked |= set(range(at, at + len(spelling)))
    assert {at for begin, end in held.spans(text) for at in range(begin, end)} == marked
    assert held.are_in(text) == bool(marked)
    tails = [at for at in range(len(text)) if any(each.startswith(text[at:]) for each in spelt)]
    tails = [at for at in tails if len(text) - at < held.longest]
    assert held.begun(text) == min(tails, default=len(text))


def test_one_more_secret_costs_the_same_however_many_are_known():
    def of_one_more(count):
        known = KnownSecrets()
        for number in range(count):
            known.add(str(number), f"{number:04}-of-many-secrets-of-webhooks")
        known.spellings()

        def one_more():
            known.add("another", "another-of-many-secrets-of-webhooks")
            known.spellings()

        return calls(one_more)

    assert of_one_more(200) <= 1.2 * of_one_more(10)


def test_what_is_known_is_found_while_others_come(known):
    first, ended = "first-of-the-canaries-0123", threading.Event()
    known.add("first", first)

    def misses():
        missed = 0
        while not ended.is_set():
            missed += not known.spellings().are_in(f"it is {first}.")
        return missed

    with ThreadPoolExecutor(2) as threads:
        looking = [threads.submit(misses) for _ in range(2)]
        try:
            for number in range(100):
                secret = f"{number:03}-of-many-" * (1 + number % 3)
                known.add(secret, secret)
                assert known.spellings().are_in(f"it is {secret}.")
        finally:
            ended.set()
    assert [each.result() for each in looking] == [0, 0]


def test_of_a_name_the_latest_eight_are_known(known):
    for number in range(9):
        redact("so that they are looked for")
        redaction.remember("TOKEN", f"canary-number-{number}")
    assert redact("canary-number-0, canary-number-1, canary-number-8") == f"canary-number-0, {MASK}, {MASK}"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"a": "{\\"password\\": \\"abc123\\"}"}', f'{{"a": "{{\\"password\\": \\"{MASK}\\"}}"}}'),
        ("&quot;password&quot;: &quot;abc123&quot;", f"&quot;password&quot;: &quot;{MASK}&quot;"),
        ("password: |\n  abc123\nuser: me", f"password: |\n  {MASK}\nuser: me"),
        ("password='abc123' user=me", f"password='{MASK}' user=me"),
        ("password=abc123", f"password={MASK}"),
    ],
)
def test_what_opens_a_value_is_left(text, left):
    assert redact(text) == left


def test_of_many_secrets_each_is_found_wherever_it_stands(known):
    """A text is looked at for every eighth or sixteenth character."""
    secrets = [f"{length:02}{'abcdefgh' * 5}"[:length] for length in range(6, 41)] + ["p" * 20, "q" * 40, "xy" * 16]
    for secret in secrets:
        known.add(secret, secret)
    for secret in secrets:
        for place in range(17):
            begins = "." * place
            assert redaction.redact_known(f"{begins}{secret}.") == f"{begins}{MASK}."
            assert known.spellings().are_in(f"{begins}{secret}")
            assert not known.spellings().are_in(f"{begins}{secret[:-1]}.")


def test_what_begins_like_a_secret_and_is_none_is_shown_at_once(remember):
    remember("zz-secret")
    for said in ("zz-se", "zz-secre"):
        assert RedactedPieces().add(said) == ""
    for said in ("zz-sea", "zz-sey", "zz-secrey"):
        assert RedactedPieces().add(said) == said


def test_the_longest_spelling_is_held_back_until_it_is_whole(remember):
    remember("zz-secret")
    longest = max(known_secrets.spellings("zz-secret"), key=len)
    pieces = RedactedPieces()
    assert [pieces.add(piece) for piece in (f"it is {longest[:-1]}", longest[-1], ".")] == ["it is ", MASK, "."]


def test_a_file_of_a_secret_is_known_from_when_it_is_there_and_as_it_changes(known, monkeypatch, tmp_path):
    monkeypatch.setattr(known_secrets, "LOOK_SECONDS", 0)
    file: Path = tmp_path / "token"
    redaction.remember_file("TOKEN", file)
    assert redact("first-canary") == "first-canary"
    file.write_text("first-canary\n")
    assert redact("first-canary") == MASK
    file.write_text("the-second-canary")
    assert redact("first-canary, the-second-canary") == f"{MASK}, {MASK}"
    file.unlink()
    assert redact("the-second-canary") == MASK


def test_files_of_secrets_are_looked_at_after_a_while(known, monkeypatch, tmp_path):
    monkeypatch.setattr(known_secrets, "LOOK_SECONDS", 1000)
    file: Path = tmp_path / "token"
    file.write_text("first-canary")
    redaction.remember_file("TOKEN", file)
    file.write_text("the-second-canary")
    assert redact("first-canary, the-second-canary") == f"{MASK}, the-second-canary"


def test_a_file_that_is_not_there_hides_no_other_and_another_takes_its_place(known, tmp_path):
    for number, name in enumerate("bca"):
        file: Path = tmp_path / name
        file.write_text(f"canary-{name}")
        redaction.remember_file("GONE", tmp_path / "gone")
        redaction.remember_file("TOKEN", file)
        assert redact(f"canary-{name}") == MASK, number


def test_a_file_that_changes_for_years_fills_no_memory(known):
    for number in range(1000):
        known.add("TOKEN", f"canary-{number:06}")
    assert redact("canary-000999") == MASK
    assert redact("canary-000001") == "canary-000001"


@pytest.mark.parametrize(
    "text", ["a" * 490 + " sk-0123456789abcdef", "a" * 495 + " http://me:secret@example.org", "pwd=abcd " * 100]
)
def test_no_half_of_a_secret_is_left_where_a_text_is_cut(text):
    left = redaction.redact_head(text, 500)
    assert len(left) <= 500
    assert not re.search("sk-|me:|abcd", left)
    assert redaction.redact_head("short", 500) == "short"


def test_so_it_is_where_masks_are_shorter_than_secrets():
    """What is read beyond the cut comes to stand before it."""
    for before in range(204):
        left = redaction.redact_head("a" * before + f" sk-{'0123456789' * 20}" * 100, 500)
        assert "sk" not in left
        assert left.startswith("a" * before)


@pytest.mark.parametrize("length", [1, 499, 500, 501, 700, 2547, 2548, 2549, 5000])
def test_what_is_kept_of_a_text_is_as_long_as_it_may_be(length):
    assert redaction.redact_head("a" * length, 500) == ("a" * length if length <= 500 else "a" * 499 + "…")


def test_a_mask_that_is_longer_than_its_secret_makes_no_text_too_long():
    assert redaction.redact_head("a" * 490 + " pwd=abcd", 500) == "a" * 490 + " pwd=[red…"


def test_what_is_beyond_the_cut_is_not_read_and_so_not_shown():
    secret, beyond = "sk-" + "0123456789" * 20, 500 + 2048
    whole = f"{secret} " + "a" * (beyond - len(secret) - 1)
    assert redaction.redact_head(whole, 500) == f"{MASK} " + "a" * 488 + "…"
    assert redaction.redact_head(whole + "a", 500) == f"{MASK} " + "a" * (beyond - len(secret) - 1 - 2048) + "…"
    assert redaction.redact_head("a" * 480 + f" {secret} " + "a" * 5000, 500) == "a" * 480 + f" {MASK}…"


def test_json_is_read_as_such_unless_it_is_long():
    """An escaped name is one to who reads it as JSON."""

    def text(length):
        begins, ends = '{"pass\\u0077ord": "canary", "a": "', '"}'
        return begins + "a" * (length - len(begins) - len(ends)) + ends

    for length in (100, 500, 2547, 2548):
        assert "canary" not in redaction.redact_json_head(text(length), 500)
    assert "canary" in redaction.redact_json_head(text(2549), 500)


@pytest.mark.parametrize(
    ("page", "left"),
    [
        ("strong words", f"{MASK} words"),
        ("<strong>word</strong>", None),
        ("a <strong>word</strong>", None),
        ("<p>so strong, strong</p>", f"<p>so {MASK}, {MASK}</p>"),
        ('<b class="strong strong">strong</b>', f'<b class="strong strong">{MASK}</b>'),
        ('<a title="strong" href="strong">strong<i>strong', f'<a title="{MASK}" href="strong">{MASK}<i>{MASK}'),
        ('<img alt="so strong, strong" id="strong">', f'<img alt="so {MASK}, {MASK}" id="strong">'),
        ('<b aria-label="strong" data-title="strong">', f'<b aria-label="{MASK}" data-title="strong">'),
    ],
)
def test_a_page_loses_known_secrets_where_people_read_and_none_of_its_tags(remember, page, left):
    remember("strong")
    assert redaction.redact_known_html(page) == (left or page)
    assert redaction.redact_known_html("<p>weak</p>") == "<p>weak</p>"


def test_a_large_text_is_read_in_a_thread_and_a_small_one_at_once(monkeypatch):
    def thread_of(length: int) -> int:
        read_in: list[int] = []
        known = KnownSecrets()
        monkeypatch.setattr(
            known, "spellings", lambda: read_in.append(threading.get_ident()) or KnownSecrets.spellings(known)
        )
        monkeypatch.setattr(redaction, "known_secrets", known)
        assert asyncio.run(redaction.redact_known_aside("x" * length)) == "x" * length
        return read_in[0]

    assert thread_of(1) == thread_of(redaction.LARGE) == threading.get_ident()
    assert thread_of(redaction.LARGE + 1) != threading.get_ident()


def test_one_letter_alone_is_longer_in_small_letters():
    """Where a word stands in a text in small letters, it stands in the text."""
    assert [each for each in map(chr, range(0x110000)) if len(each.lower()) != 1] == ["İ"]
    assert redact("İ password: abc123, eyJ") == f"İ password: {MASK}, eyJ"
