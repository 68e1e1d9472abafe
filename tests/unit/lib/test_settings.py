"""The settings: what the environment says, or one line about what makes no sense."""

import os
import pwd
import re

import pytest
from django.core.exceptions import ImproperlyConfigured

from agent.llm.providers import PROVIDERS
from nanohost.lib import env, redaction
from tests.support.sources import READ_ELSEWHERE, SETTINGS, read_settings, readers

pytestmark = pytest.mark.shapeless(reason="it reads the environment, of both shapes")

NONSENSE = {
    "integer": ["abc", "-1", "1.5", "1e3"],
    "seconds": ["abc", "nan", "inf", "0", "-1"],
    "share": ["abc", "nan", "-0.1", "1.1", "50%"],
    "boolean": ["maybe", "2"],
    "cron": ["abc", "9 * *", "7 0 9 * * *", "0 25 * * *", "* * * * * * *"],
    "choice": ["nonsense"],
    "address": ["nonsense", "http://", "ftp://host/", "//host"],
    "path": ["~nobody-of-that-name/var"],
    "time_zone": ["Mars/Base", "Europe", "../etc/passwd"],
    "currency": ["usd", "DOLLAR", "€"],
    "string": ["\udcff"],  # how a byte that is not UTF-8 arrives
    "secret": ["\udcff"],
    "key": ["two words", "über", "\udcff"],
    "server": ["nonsense", "http://host/name", "//host/name", "\udcff"],
    "words": ["\udcff"],
    "patterns": ["\udcff"],
    "folders": ["relative", "/a, b", "~nobody-of-that-name/a", "\udcff"],
    "addresses_by_name": [
        "nonsense",
        "nobody=http://host",
        "vllm=ftp://host",
        "vllm=http://host:0",
        "vllm=http://[",
        "\udcff",
    ],
    "headers": [
        "nonsense",
        "[]",
        '{"nobody": {}}',
        '{"groq": []}',
        '{"groq": {"Host": "x"}}',
        '{"groq": {"X": 1}}',
        '{"groq": {"X": "a\\nb"}}',
        "[" * 100_000,
        "\udcff",
    ],
    "objects": ["nonsense", "[]", '{"clock": 1}', '{"clock": {"timeout": NaN}}', "[" * 100_000, "\udcff"],
    "origins": ["chat.example.org", "https://chat.example.org/", "https://Chat.example", "https://a, null", "\udcff"],
    "pairs": ["admin", "=admin", "group=boss", "group=", "a=admin, b", "\udcff"],
    "addresses": ["anna", "anna@", "anna@example.org, bert", "a b@example.org", "\udcff"],
}


SETTABLE = {reader.name for reader in readers()} | set(READ_ELSEWHERE)
VARIABLES = SETTABLE | {f"{name}_FILE" for name in SETTABLE}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path, own_secrets):
    """An environment in which nothing is set; ``environment(PORT="1")`` sets something."""
    for variable in VARIABLES & os.environ.keys():
        monkeypatch.delenv(variable)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))

    def put(**values):
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("name", "value"), [(reader.name, value) for reader in readers() for value in NONSENSE[reader.kind]]
)
def test_nonsense_is_refused_in_one_line_that_names_the_setting(environment, name, value):
    environment(**{name: value})
    with pytest.raises(ImproperlyConfigured) as refusal:
        read_settings()
    assert str(refusal.value).startswith(name)
    assert "\n" not in str(refusal.value)


def test_the_home_directory_and_links_in_folders_and_patterns(environment, monkeypatch, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    environment(HOME=str(tmp_path / "link"), DATA_DIR=str(tmp_path / "data"))
    environment(WORKSPACE_WRITE_FOLDERS="~/notes, /srv/a/", WORKSPACE_PROTECTED_PATHS="policy/**, ~/notes/*.md, /")
    read = read_settings()
    assert read["WORKSPACE_WRITE_FOLDERS"] == [f"{tmp_path}/link/notes", "/srv/a"]
    by_each_name = [f"{tmp_path}/link/notes/*.md", f"{tmp_path}/home/notes/*.md"]
    assert read["WORKSPACE_PROTECTED_PATHS"] == ["policy/**", *by_each_name, "/"]
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(ImproperlyConfigured, match="is in no home directory"):
        env.patterns("WORKSPACE_PROTECTED_PATHS")


# What is made, if nobody has set it.
MADE = ("SECRET_KEY", "WEBHOOK_KEY")


@pytest.mark.parametrize("name", [reader.name for reader in readers() if reader.name != "DATA_DIR"])
def test_blank_is_unset(environment, name):
    unset = read_settings()
    environment(**{name: "  "})
    if name in unset and name not in MADE:
        assert read_settings()[name] == unset[name]


@pytest.mark.parametrize(
    ("values", "provider"),
    [
        ({}, "mock"),
        ({"OPENAI_API_KEY": "sk-abcdefgh"}, "auto"),
        ({"DEEPSEEK_API_KEY": "sk-abcdefgh"}, "auto"),
        ({"LLM_BASE_URL": "http://127.0.0.1:1/v1"}, "auto"),
        ({"LLM_BASE_URLS": "vllm=http://127.0.0.1:1/v1"}, "auto"),
        ({"OPENAI_API_KEY": "sk-abcdefgh", "LLM_PROVIDER": "openai"}, "openai"),
        ({"OPENAI_API_KEY": "sk-abcdefgh", "LLM_PROVIDER": "mock"}, "mock"),
    ],
)
def test_the_provider_follows_from_a_key_or_an_address(environment, values, provider):
    environment(**values)
    assert read_settings()["LLM_PROVIDER"] == provider


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"LLM_PROVIDER": "openai"}, "OPENAI_API_KEY"),
        ({"LLM_PROVIDER": "groq", "OPENAI_API_KEY": "sk-abcdefgh"}, "GROQ_API_KEY"),
        ({"LLM_PROVIDER": "auto"}, "needs the key of a provider"),
        ({"LLM_MODELS": "a, b"}, "LLM_MODEL_DEFAULT"),
        ({"PERMISSIONS_GRANTED": "NET_HTTP, SHELL"}, "SHELL is not one of"),
        ({"PERMISSIONS_GRANTED": "net_http"}, "net_http is not one of"),
        ({"OIDC_ISSUER": "https://id.example.org", "OIDC_CLIENT_ID": "host"}, "OIDC_ROLES"),
        ({"OIDC_ISSUER": "https://id.example.org", "OIDC_ROLES": "*=chat"}, "OIDC_CLIENT_ID"),
        ({"OIDC_ISSUER": "http://id.example.org", "OIDC_CLIENT_ID": "host", "OIDC_ROLES": "*=chat"}, "without TLS"),
        ({"OIDC_PRIVATE_CIDRS": "8.8.8.0/24"}, "OIDC_PRIVATE_CIDRS"),
        ({"WORKSPACE_WRITE_FOLDERS": "/srv/a/b, /srv/a"}, "/srv/a/b is /srv/a, or lies in it"),
        ({"WORKSPACE_WRITE_FOLDERS": "/srv/a", "ATTACHMENTS_DIR": "/srv/a/files"}, "would reach ATTACHMENTS_DIR"),
        ({"WORKSPACE_WRITE_FOLDERS": "/srv/a", "NANOHOST_SKILLS": "/srv/a/skills"}, "would write skills"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(environment, values, named):
    environment(**values)
    with pytest.raises(ImproperlyConfigured, match=named):
        read_settings()


def test_lists_are_separated_by_commas(environment):
    environment(TOOLS_ALLOWED=" time , ,fetch,")
    assert read_settings()["TOOLS_ALLOWED"] == ["time", "fetch"]


def test_a_group_may_have_the_sign_that_its_role_stands_behind(environment):
    environment(OIDC_ROLES="cn=bosses=admin, *=chat")
    assert read_settings()["OIDC_ROLES"] == [("cn=bosses", "admin"), ("*", "chat")]


def test_the_host_it_listens_on_may_be_asked_for(environment):
    environment(HOST="fd00::1")
    assert "[fd00::1]" in read_settings()["ALLOWED_HOSTS"]


def test_the_secret_key_is_the_one_kept(environment, tmp_path):
    kept = tmp_path / "secret_key"
    kept.write_text("kept for good\n")
    assert read_settings()["SECRET_KEY"] == "kept for good"
    kept.write_text("")  # a start that was killed in between
    assert len(read_settings()["SECRET_KEY"]) > 40
    kept.write_bytes(b"\xff" * 40)  # which the start refuses
    assert len(read_settings()["SECRET_KEY"]) > 40
    environment(SECRET_KEY="from the environment")
    assert read_settings()["SECRET_KEY"] == "from the environment"


def test_without_a_key_of_webhooks_it_is_made_of_the_secret_key_and_in_production_there_is_none(environment):
    environment(SECRET_KEY="one")
    made = read_settings()["WEBHOOK_KEY"]
    assert (read_settings()["WEBHOOK_KEY"], len(made)) == (made, 64)
    environment(SECRET_KEY="another")
    assert read_settings()["WEBHOOK_KEY"] != made
    environment(**{name: SECRETS[name] for name in ("DATABASE_URL", "REDIS_URL")})
    assert read_settings()["WEBHOOK_KEY"] == ""


# --- secrets from files ------------------------------------------------------------------------------------------

# Each with a value it takes; the two addresses go together.
SECRETS = {
    "SECRET_KEY": "kept/by:some@store",
    "WEBHOOK_KEY": "kept/by:another@store",
    "EMAIL_HOST_PASSWORD": "the word of the mail server",
    "OIDC_CLIENT_SECRET": "the word of the host at its provider",
    **{row.key: f"sk-0123456789-{row.name}" for row in PROVIDERS.values()},
    "ZHIPUAI_API_KEY": "sk-0123456789-also-of-zhipu",
    "ATTACHMENTS_BUCKET_KEY": "the word of the bucket",
    "METRICS_TOKEN": "scrape-0123456789",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant-key=collect-0123456789",
    "DATABASE_URL": "postgresql://user:pass-word@db.example/name",
    "REDIS_URL": "rediss://:pass-word@redis.example:6380/0",
}
WITH = {"DATABASE_URL": {"REDIS_URL": "redis://h/0"}, "REDIS_URL": {"DATABASE_URL": "postgres://h/n"}}


@pytest.fixture
def secret_file(tmp_path):
    """Writes a file that a variable may name: ``secret_file(b"content")`` returns its name."""

    def write(content):
        (tmp_path / "secret").write_bytes(content)
        return str(tmp_path / "secret")

    return write


def refusal():
    """The one line in which the settings are refused."""
    with pytest.raises(ImproperlyConfigured) as refused:
        read_settings()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_those_are_all_the_secrets_of_the_settings():
    assert {reader.name for reader in readers() if reader.kind in ("secret", "key", "server")} == set(SECRETS)


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_secret_may_stand_in_a_file_with_or_without_a_line_end(environment, secret_file, name, end):
    environment(**{f"{name}_FILE": secret_file(f"{SECRETS[name]}{end}".encode()), **WITH.get(name, {})})
    assert read_settings()[name] == SECRETS[name]


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("blank", [b"", b" \n"])
def test_a_blank_file_is_unset(environment, secret_file, name, blank):
    unset = read_settings()
    environment(**{f"{name}_FILE": secret_file(blank)})
    assert read_settings()[name] == unset[name] or name in MADE


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_set_twice_is_refused_and_not_shown(environment, secret_file, name):
    environment(**{name: SECRETS[name], f"{name}_FILE": secret_file(b"another-value"), **WITH.get(name, {})})
    assert refusal() == f"{name} and {name}_FILE are both set; set one."


@pytest.mark.parametrize("name", [*SECRETS, *READ_ELSEWHERE])
@pytest.mark.parametrize("content", [None, "a folder", b"a-value\xff", b"a-value\x00"])
def test_a_file_that_cannot_be_read_is_refused_and_not_shown(environment, secret_file, tmp_path, name, content):
    named = {None: str(tmp_path / "missing"), "a folder": str(tmp_path)}.get(content) or secret_file(content)
    environment(**{f"{name}_FILE": named})
    with pytest.raises(ImproperlyConfigured) as refused:
        env.secret(name)
    says = "No such file or directory" if content is None else "Is a directory" if content == "a folder" else "no text"
    assert str(refused.value).startswith(f"{name}_FILE='{named}' cannot be read: ")
    assert says in str(refused.value)
    assert "a-value" not in str(refused.value)


@pytest.mark.parametrize("name", READ_ELSEWHERE)
def test_what_is_read_at_the_start_alone_may_stand_in_a_file_too(environment, secret_file, name):
    environment(**{f"{name}_FILE": secret_file(b"a-value\n")})
    assert env.secret(name) == "a-value"


def test_a_key_in_a_file_that_cannot_travel_is_refused_and_not_shown(environment, secret_file):
    environment(OPENAI_API_KEY_FILE=secret_file(b"two words\n"))
    assert refusal() == "OPENAI_API_KEY is not valid: expected printable ASCII without blanks."


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_from_a_file_is_kept_out_of_logs(environment, secret_file, own_secrets, name):
    value = re.sub("[a-z]*:pass-word@", "", SECRETS[name])  # nothing but the file tells that this is secret
    assert value in redaction.redact(f"it is {value}.") or value.startswith("sk-")
    environment(**{f"{name}_FILE": secret_file(value.encode()), **WITH.get(name, {})})
    read_settings()
    assert value not in redaction.redact(f"it is {value}.")


@pytest.mark.parametrize("name", ["DATABASE_URL", "REDIS_URL"])
@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize(
    ("of_server", "alone"),
    [
        ("user:canary-0123@host/0", ["canary-0123"]),
        (":can%61ry%2f01%2B23@host/0", ["canary/01+23", "can%61ry%2f01%2B23"]),
        ("host/0?password=canary%2D0123&user=me", ["canary-0123", "canary%2D0123"]),
        ("user:canary:01@23@host/0", ["canary:01@23"]),
    ],
)
def test_the_password_of_a_server_is_kept_out_of_logs_also_by_itself(
    environment, secret_file, own_secrets, name, is_file, of_server, alone
):
    scheme = SECRETS[name].partition(":")[0]
    url = f"{scheme}://{of_server}"
    environment(**{f"{name}_FILE": secret_file(url.encode())} if is_file else {name: url}, **WITH[name])
    read_settings()
    for each in alone:
        assert redaction.redact(f"it is {each}.") == f"it is {redaction.MASK}."


@pytest.mark.parametrize(
    "of_server", ["user:short@host/0", "user@host/0", "user:@host/0", "host/0?password=short", "keeper:keeper@host/0"]
)
def test_a_password_too_short_for_a_secret_is_none_and_so_is_the_rest_of_the_address(
    environment, own_secrets, of_server
):
    environment(DATABASE_URL=f"postgresql://{of_server}", REDIS_URL="redis://redis-host/0")
    read_settings()
    assert (
        redaction.redact("the user of host and redis-host, short, keeper")
        == "the user of host and redis-host, short, keeper"
    )


def test_one_key_may_have_another_name(environment):
    environment(ZHIPUAI_API_KEY="sk-of-zhipu")
    assert read_settings()["ZAI_API_KEY"] == "sk-of-zhipu"
    environment(ZAI_API_KEY="sk-of-zai")
    assert read_settings()["ZAI_API_KEY"] == "sk-of-zai"


# --- what an import has kept -------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path):
    """The folder of what an import has kept."""
    (tmp_path / "secrets").mkdir()
    return tmp_path / "secrets"


def test_files_of_the_data_folder_stand_for_keys_that_are_not_set(environment, kept, own_secrets):
    (kept / "groq_api_key").write_text("sk-kept-0123456789\n")
    (kept / "llm_base_urls").write_text("groq=http://kept/v1\nvllm=http://kept/v2\n")
    (kept / "llm_headers").write_text('{"groq": {"X-Own": "canary-of-a-header"}}')
    read = read_settings()
    assert (read["GROQ_API_KEY"], read["LLM_PROVIDER"]) == ("sk-kept-0123456789", "auto")
    assert read["LLM_BASE_URLS"] == {"groq": "http://kept/v1", "vllm": "http://kept/v2"}
    assert read["LLM_HEADERS"] == {"groq": {"X-Own": "canary-of-a-header"}}
    assert "canary" not in redaction.redact("it is canary-of-a-header")
    environment(GROQ_API_KEY="sk-set", LLM_BASE_URLS="groq=http://set/v1", LLM_HEADERS="{}")
    read = read_settings()
    assert (read["GROQ_API_KEY"], read["LLM_HEADERS"]) == ("sk-set", {})
    assert read["LLM_BASE_URLS"] == {"groq": "http://set/v1", "vllm": "http://kept/v2"}


def test_they_stand_for_nothing_else_and_not_in_production_or_where_tools_run(environment, kept):
    for name in ("secret_key", "email_host_password", "groq_api_key"):
        (kept / name).write_text("kept-0123456789")
    read = read_settings()
    assert (read["EMAIL_HOST_PASSWORD"], read["GROQ_API_KEY"]) == ("", "kept-0123456789")
    environment(NANOHOST_TOOL_PROCESS="1")
    assert read_settings()["GROQ_API_KEY"] == ""
    environment(NANOHOST_TOOL_PROCESS="", **{name: SECRETS[name] for name in ("DATABASE_URL", "REDIS_URL")})
    assert read_settings()["GROQ_API_KEY"] == ""


def test_a_kept_file_that_makes_no_sense_is_refused_and_not_shown(environment, kept):
    (kept / "groq_api_key").write_bytes(b"a-value\xff")
    assert "groq_api_key cannot be read: it holds no text" in refusal()
    assert "a-value" not in refusal()
    (kept / "groq_api_key").write_text("two words")
    assert refusal() == "GROQ_API_KEY is not valid: expected printable ASCII without blanks."


def test_a_header_is_told_of_without_its_value(environment):
    environment(LLM_HEADERS='{"groq": {"X-Own": "canary\\u0000"}}')
    assert refusal() == "LLM_HEADERS is not valid: the value of X-Own is no printable ASCII text."


# --- servers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("database", "redis"),
    [
        ("postgresql://user:pass-word@db.example:5433/name", "redis://redis.example"),
        ("postgres://[::1]/name", "rediss://:pass-word@[::1]:6380/3"),
        ("postgresql:///name?host=/run/postgresql", "redis://redis.example/0"),
    ],
)
def test_with_servers_it_is_the_production_shape(environment, database, redis):
    environment(DATABASE_URL=database, REDIS_URL=redis)
    read = read_settings()
    assert read["PRODUCTION"]
    assert read["DATABASES"]["default"]["ENGINE"] == "nanohost.lib.postgresql"
    assert read["CELERY_BROKER_URL"] == redis


@pytest.mark.parametrize("name", ["DATABASE_URL", "REDIS_URL"])
@pytest.mark.parametrize("url", ["mysql://{}@host/name", "//{}@host/name", "{}@host", "redis:{}@", "postgresql://{}@"])
@pytest.mark.parametrize("in_file", [False, True])
def test_an_address_that_makes_no_sense_is_refused_without_its_password(environment, secret_file, name, url, in_file):
    url = url.format("user:pass-word")
    environment(**({f"{name}_FILE": secret_file(url.encode())} if in_file else {name: url}), **WITH[name])
    said = refusal()
    assert said.startswith(f"{name} is not valid: expected {'postgresql' if name == 'DATABASE_URL' else 'redis'}://")
    assert "pass-word" not in said


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1"])
def test_a_port_that_is_none_is_refused(environment, port):
    environment(DATABASE_URL=f"postgresql://user:pass-word@host:{port}/name", REDIS_URL="redis://h/0")
    assert refusal().startswith("DATABASE_URL is not valid")


@pytest.mark.parametrize("end", ["", "/", "/name?pool=hello"])
def test_a_database_without_a_name_or_with_a_pool_of_its_own_is_refused(environment, end):
    environment(DATABASE_URL=f"postgresql://user:pass-word@host{end}", REDIS_URL="redis://h/0")
    assert refusal() == "DATABASE_URL is not valid: expected a database's name, and no pool of its own."


@pytest.mark.parametrize("name", ["DATABASE_URL", "REDIS_URL"])
@pytest.mark.parametrize("in_file", [False, True])
def test_one_server_without_the_other_is_refused(environment, secret_file, name, in_file):
    environment(**({f"{name}_FILE": secret_file(SECRETS[name].encode())} if in_file else {name: SECRETS[name]}))
    assert refusal() == (
        "DATABASE_URL and REDIS_URL go together: set both, or neither for one process without servers."
    )


def test_settings_are_read_by_those_readers_alone():
    """A setting read past ``env`` would stand in no table, and nonsense in it would end in a traceback."""
    source = SETTINGS.read_text()
    assert "os.environ" not in source
    assert "getenv" not in source
