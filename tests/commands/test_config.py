"""nanobot's config.json, taken in and written: nothing is lost, nothing secret is told, nothing is half done."""

import json
import os
import stat
import time
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.forms.models import model_to_dict
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from agent.llm import providers
from agent.models import Agent
from conversations.channel_models import Channel
from conversations.channels import accounts
from nanohost.accounts import audit
from nanohost.accounts.models import AuditEntry
from nanohost.lib.known_secrets import KnownSecrets
from nanohost.nanobot_config import exporting, importing, reading, schema
from nanohost.nanobot_config.errors import Refused
from nanohost.nanobot_config.models import ConfigPart, PartKind
from nanohost.nanobot_config.schema import CHANNELS, PROVIDER_NAMES, SCHEMA, ByName, Kind, camel, snake
from nanohost.nanobot_config.secret_files import SecretFiles
from tests.support.factories import AgentFactory
from tests.support.sources import read_settings
from tests.support.tables import readable_tables
from tools.mcp import keeping
from tools.mcp.models import McpServer

pytestmark = pytest.mark.django_db(transaction=True)
shapeless = pytest.mark.shapeless(reason="pure functions")

SECRET = "canary-0123456789-of-a-secret"

WHOLE: dict[str, Any] = {
    "agents": {
        "defaults": {
            "workspace": "~/.nanobot/workspace",
            "model": "anthropic/claude-opus-4-5",
            "provider": "openrouter",
            "maxTokens": 4096,
            "temperature": 0.1,
            "maxToolIterations": 40,
            "memoryWindow": 101,
            "reasoningEffort": "low",
        }
    },
    "channels": {
        "sendProgress": True,
        "telegram": {"enabled": True, "token": f"{SECRET}-1", "allowFrom": ["anna"], "proxy": None},
        "discord": {"enabled": False, "token": f"{SECRET}-2", "allowFrom": [], "groupPolicy": "mention"},
        "slack": {"botToken": f"{SECRET}-3", "allowFrom": ["U1"], "dm": {"enabled": True, "policy": "open"}},
        "mochat": {"clawToken": f"{SECRET}-4", "allowFrom": ["x"], "groups": {"g.1": {"requireMention": True}}},
    },
    "providers": {
        "openrouter": {"apiKey": f"{SECRET}-5", "apiBase": None, "extraHeaders": {"X-Title": "mine"}},
        "azureOpenai": {"apiKey": f"{SECRET}-6", "apiBase": "https://mine.openai.azure.com"},
        "openai": {"apiKey": "", "apiBase": None, "extraHeaders": None},
    },
    "gateway": {"host": "0.0.0.0", "port": 18790, "heartbeat": {"enabled": True, "intervalS": 1800}},
    "tools": {
        "web": {"proxy": f"http://u:{SECRET}-7@proxy:1", "search": {"apiKey": f"{SECRET}-8", "maxResults": 5}},
        "exec": {"timeout": 60, "pathAppend": ""},
        "restrictToWorkspace": True,
        "allowedPaths": ["~/notes"],
        "my": {"enable": True},
        "mcpServers": {
            "files": {
                "command": "npx",
                "args": ["-y", f"{SECRET}-9"],
                "env": {"TOKEN": f"{SECRET}-a", "E": ""},
            },
            "far": {
                "type": "sse",
                "url": f"https://far.example/{SECRET}-b",
                "headers": {"Authorization": f"Bearer {SECRET}-c"},
                "auth": {"scheme": f"{SECRET}-d"},
                "enabledTools": ["one"],
                "toolTimeout": 30,
            },
        },
    },
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder, an environment and secrets of this test alone."""
    for name in [name for name in os.environ if name.startswith("NANOBOT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("nanohost.lib.redaction.known_secrets", KnownSecrets())
    settings.DATA_DIR = tmp_path / "data"
    return tmp_path


def as_file(place: Path, config: Any, name: str = "config.json") -> Path:
    file = place / name
    file.write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
    return file


def take(place: Path, config: Any, *options: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("import_config", str(as_file(place, config)), *options, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def give(place: Path, *options: str) -> Any:
    call_command("export_config", str(place / "out.json"), *options, stdout=StringIO())
    return json.loads((place / "out.json").read_text())


def stored() -> Any:
    """All that an import changes: rows, files with their modes, the agent, the audit log."""
    folder = settings.DATA_DIR / "secrets"
    files = {
        str(path.relative_to(folder)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in folder.rglob("*")
        if path.is_file()
    }
    rows = [model_to_dict(row) for row in ConfigPart.objects.all()]
    return rows, files, [model_to_dict(agent) for agent in Agent.objects.all()], AuditEntry.objects.count()


# --- what becomes of it ------------------------------------------------------------------------------------------


def test_the_agent_gets_its_defaults(place):
    out, _ = take(place, WHOLE)
    agent = Agent.objects.get(name="default")
    assert (agent.model, agent.provider, agent.output_reserve) == ("anthropic/claude-opus-4-5", "openrouter", 4096)
    assert (agent.temperature, agent.max_tool_rounds, agent.reasoning_effort) == (0.1, 40, "low")
    assert (agent.memory_window, agent.check_in_minutes) == (50, 30)
    assert "agents.defaults.memoryWindow: set, memory_window of the agent default is 50" in out
    assert agent.versions.count() == 2


def test_another_agent_is_named_and_the_default_one_stays(place):
    AgentFactory(name="other")
    take(place, WHOLE, "--agent", "other")
    assert Agent.objects.get(name="other").model == "anthropic/claude-opus-4-5"
    assert Agent.objects.get(name="default").model == ""
    with pytest.raises(CommandError, match="no agent named 'nobody'"):
        take(place, WHOLE, "--agent", "nobody")


def test_folders_of_the_whole_host_are_named_and_not_set(place):
    out, _ = take(place, {"tools": {"allowedPaths": ["~/notes", "/srv/a"], "protectedPaths": ["~/notes/policy"]}})
    assert "To have it for the whole host, set WORKSPACE_WRITE_FOLDERS=~/notes,/srv/a\n" in out
    assert "To have it for the whole host, set WORKSPACE_PROTECTED_PATHS=~/notes/policy\n" in out


def test_every_key_has_a_line(place):
    out, _ = take(place, WHOLE)
    document = schema.understood(WHOLE, {})
    assert len(document.keys) > 50
    for key in document.keys:
        assert f"{reading.as_text(key)}: " in out or reading.as_text(key[:-1]) in out, key


@pytest.mark.parametrize("name", PROVIDER_NAMES)
def test_each_provider_gets_its_key_its_address_and_its_headers(place, settings, monkeypatch, name):
    """The settings of the next start have them."""
    row = providers.PROVIDERS[PROVIDER_NAMES[name]]
    given = {"apiKey": SECRET, "apiBase": "https://mine.example/v1", "extraHeaders": {"APP-Code": "X", "X-Own": SECRET}}
    take(place, {"providers": {snake(name): given}})
    file = settings.DATA_DIR / "secrets" / row.key.lower()
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (SECRET, 0o600)
    for variable in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DATA_DIR", str(settings.DATA_DIR))
    read = read_settings()
    access = providers.accesses(read.__getitem__)[row.name]
    assert (access.key, access.base_url) == (SECRET, "https://mine.example/v1")
    assert access.headers.items() >= given["extraHeaders"].items()
    assert read["LLM_PROVIDER"] == "auto"


def test_channels_and_servers_are_stored_and_off(place):
    take(place, WHOLE)
    rows = ConfigPart.objects.filter(kind__in=[PartKind.CHANNEL, PartKind.MCP_SERVER])
    assert sorted(rows.values_list("name", flat=True)) == ["discord", "far", "files", "mochat", "slack", "telegram"]
    assert not rows.filter(enabled=True).exists()
    assert rows.get(name="telegram").was_enabled
    telegram = rows.get(name="telegram")
    assert telegram.settings["token"] is None
    [secret] = telegram.secrets
    file = settings.DATA_DIR / "secrets" / secret["file"]
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (f"{SECRET}-1", 0o600)


def of_all_platforms() -> Any:
    said = {"enabled": True, "allowFrom": ["anna"]}
    mail = {"imapHost": "mail.example.org", "smtpHost": "mail.example.org", "smtpPort": 465, "smtpUseSsl": True}
    mail |= {"imapUsername": "agent@example.org", "imapPassword": f"{SECRET}-m"}
    names = {
        "telegram": {"token": f"{SECRET}-1"},
        "discord": {"token": f"{SECRET}-2", "groupPolicy": "open"},
        "feishu": {f"{each}": f"{SECRET}-{each}" for each in ("appSecret", "encryptKey", "verificationToken")}
        | {"appId": "cli_1"},
        "dingtalk": {"clientId": "ding1", "clientSecret": f"{SECRET}-4"},
        "qq": {"appId": "1020", "secret": f"{SECRET}-5"},
        "matrix": {"homeserver": "https://m.example", "userId": "@a:m.example", "accessToken": f"{SECRET}-6"},
        "email": mail,
        "slack": {"botToken": f"{SECRET}-7"},
        "whatsapp": {"bridgeToken": f"{SECRET}-8"},
        "mochat": {"clawToken": f"{SECRET}-9"},
    }
    return {"channels": {"sendProgress": False} | {name: said | each for name, each in names.items()}}


def test_channels_are_made_off_with_their_secrets_in_files(place, owner):
    config, user = of_all_platforms(), owner.get_username()
    out, _ = take(place, config)
    assert "channels.telegram, name whose it is: --owner" in out
    assert not Channel.objects.exists()
    out, err = take(place, config, "--owner", user, "--dry-run")
    assert not Channel.objects.exists()
    out, err = take(place, config, "--owner", user)
    for name in ("slack", "whatsapp", "mochat"):
        assert f"channels.{name}: " in err
    made = {each.name: each for each in Channel.objects.all()}
    assert set(made) == {"telegram", "discord", "feishu", "dingtalk", "qq", "matrix", "email"}
    for each in made.values():
        assert (each.kind, each.is_active, each.owner, each.allow_from) == (each.name, False, owner, ["anna"])
        assert (each.progress, each.tool_hints) == (False, False)
        assert SECRET not in json.dumps(each.settings)
    assert made["discord"].settings["groups"] == "all"
    assert made["email"].settings["security"] == "tls"
    accounts.change(made["telegram"], is_active=True)
    token = accounts.platform(made["telegram"]).secret("token")
    assert token == f"{SECRET}-1"
    before = stored(), list(Channel.objects.values())
    out, _ = take(place, config, "--owner", user)
    assert (stored(), list(Channel.objects.values())) == before
    assert "Nothing has changed" in out
    # What an import changes is switched off; what somebody has made by hand stays.
    config["channels"]["telegram"]["allowFrom"] = ["bert"]
    take(place, config, "--owner", user)
    changed = Channel.objects.get(name="telegram")
    assert (changed.allow_from, changed.is_active) == (["bert"], False)
    Channel.objects.filter(name="qq").update(settings={"app_id": "7", "secret": "CHANNEL_SECRET_OWN"})
    config["channels"]["qq"]["appId"] = "8"
    _, err = take(place, config, "--owner", user)
    assert "a channel qq already exists, and is not changed" in err
    assert Channel.objects.get(name="qq").settings["app_id"] == "7"


@pytest.mark.parametrize(
    ("name", "said", "why"),
    [
        ("telegram", {"token": "${BOT}"}, "token refers to a variable"),
        ("qq", {"secret": f"{SECRET}-1"}, "app_id is needed"),
        ("email", {"imapUsername": "a@b.example"}, "secured in two ways"),
    ],
)
def test_what_makes_no_channel_is_kept_and_said(place, owner, name, said, why):
    _, err = take(place, {"channels": {name: said}}, "--owner", owner.get_username())
    assert why in err
    assert not Channel.objects.exists()
    assert ConfigPart.objects.filter(name=name).exists()


def test_who_lets_everyone_in_is_told_so_loudly_and_keeps_it(place):
    _, err = take(place, WHOLE)
    assert "WARNING: channels.discord.allowFrom is empty: EVERYONE may talk to this agent by discord" in err
    assert "telegram" not in err
    assert ConfigPart.objects.get(name="discord").settings["allowFrom"] == []
    _, err = take(place, {"channels": {"matrix": {"enabled": True}}})
    assert "WARNING: channels.matrix has no allowFrom: EVERYONE" in err


def test_what_nobody_knows_is_reported_and_kept(place):
    config = {"channels": {"wecom": {"secret": SECRET}}, "providers": {"groq": {"apiKye": SECRET}}, "odd": [SECRET, 1]}
    out, err = take(place, config)
    for name in ("channels.wecom", "providers.groq.apiKye", "odd"):
        assert f"{name}: unknown" in out
        assert f"{name}: no key of this name is known." in err
    assert SECRET not in out + err
    assert give(place, "--with-keys") == config


def test_both_spellings_are_one(place):
    take(place, WHOLE)
    before = stored()
    out, _ = take(place, _in_snake_case(WHOLE, SCHEMA))
    assert "Nothing has changed" in out
    assert stored() == before


def _in_snake_case(config: Any, known: Any) -> Any:
    if not isinstance(config, dict) or isinstance(known, Kind):
        return config
    if isinstance(known, ByName):
        return {name: _in_snake_case(each, known.of) for name, each in config.items()}
    return {snake(name): _in_snake_case(each, known[name]) for name, each in config.items()}


@pytest.mark.parametrize("new", [None, True, False])
def test_the_old_form_is_migrated_unless_the_new_one_is_there(place, new):
    tools: Any = {"exec": {"restrictToWorkspace": True, "timeout": 1}}
    tools |= {} if new is None else {"restrictToWorkspace": new}
    out, _ = take(place, {"tools": tools})
    assert "tools.exec.restrictToWorkspace: moved" in out
    kept = give(place)["tools"]
    assert (kept["restrictToWorkspace"], kept["exec"]) == (new is not False, {"timeout": 1})


def test_other_clients_servers_are_taken(place):
    out, _ = take(place, {"mcpServers": {"files": {"command": "npx", "args": ["-y"], "env": {"A": SECRET}}}})
    assert "mcpServers: moved, read as tools.mcpServers" in out
    assert give(place, "--with-keys")["tools"]["mcpServers"]["files"]["env"] == {"A": SECRET}
    with pytest.raises(CommandError, match=r"tools\.mcpServers has it as well"):
        take(place, {"mcpServers": {"a": {}}, "tools": {"mcpServers": {"a": {}}}})


def test_mcp_servers_are_made_servers_of_this_host_and_off(place, settings):
    out, err = take(place, WHOLE)
    near, far = McpServer.objects.get(name="files"), McpServer.objects.get(name="far")
    assert (near.transport, near.command, far.transport, far.timeout_seconds) == ("stdio", "npx", "sse", 30)
    assert not McpServer.objects.filter(enabled=True).exists()
    assert "The MCP server far is stored, and off. Next: manage.py mcp check far" in out
    assert SECRET not in json.dumps([near.said(), far.said()]) + out + err
    # The worker finds the values in the files.
    spec = keeping.spec_of(far)
    assert (spec["url"], spec["headers"]) == (
        f"https://far.example/{SECRET}-b",
        {"Authorization": f"Bearer {SECRET}-c"},
    )
    settings.TOOL_SANDBOX = "none"
    spec = keeping.spec_of(near)
    assert spec["command"][-3:] == ["npx", "-y", f"{SECRET}-9"]
    assert spec["environment"]["TOKEN"] == f"{SECRET}-a"

    near.enabled = True
    near.save()
    take(place, WHOLE)
    assert McpServer.objects.get(name="files").enabled  # the same file changes nothing
    changed = {"mcpServers": {"files": {"command": "node", "env": {"TOKEN": f"{SECRET}-x"}}}}
    take(place, changed)
    near.refresh_from_db()
    assert (near.command, near.arguments, near.enabled) == ("node", [], False)
    assert keeping.spec_of(near)["environment"]["TOKEN"] == f"{SECRET}-x"
    assert give(place, "--with-keys")["tools"]["mcpServers"]["files"] == changed["mcpServers"]["files"]


def test_servers_that_can_be_none_here_or_are_there_already_are_told(place):
    McpServer.objects.create(name="mine", command="own")
    servers = {
        "mine": {"command": "theirs"},
        "Odd Name!": {"command": "x"},
        "empty": {"enabledTools": ["a"]},
        "preload": {"command": "x", "env": {"LD_PRELOAD": "/x"}},
        "variable": {"command": "x", "env": {"A": "${SECRET_KEY}"}},
    }
    take(place, {"mcpServers": servers}, "--dry-run")
    assert McpServer.objects.count() == 1
    _, err = take(place, {"mcpServers": servers})
    assert "tools.mcpServers.mine: an MCP server mine already exists, and is not changed." in err
    for name, why in (("empty", "neither a command"), ("preload", "LD_PRELOAD"), ("variable", "refers to a variable")):
        (line,) = [line for line in err.splitlines() if line.startswith(f"tools.mcpServers.{name}: ")]
        assert why in line
    assert McpServer.objects.get(name="mine").command == "own"
    assert McpServer.objects.exclude(name="mine").get().name.startswith("odd-name-")
    assert give(place, "--with-keys")["tools"]["mcpServers"] == servers


# --- variables ---------------------------------------------------------------------------------------------------


def test_references_are_looked_up_where_they_count_and_kept(place, monkeypatch):
    monkeypatch.setenv("MY_KEY", SECRET)
    monkeypatch.setenv("MY_MODEL", "model-9")
    config = {
        "agents": {"defaults": {"model": "${MY_MODEL}"}},
        "providers": {"groq": {"apiKey": "${MY_KEY}"}},
        "channels": {"telegram": {"token": "${BOT}", "allowFrom": ["a"]}},
    }
    out, err = take(place, config)
    assert (settings.DATA_DIR / "secrets/groq_api_key").read_text() == SECRET
    assert Agent.objects.get(name="default").model == "model-9"
    assert SECRET not in out + err
    assert give(place, "--with-keys") == give(place) == config


def test_a_reference_to_nothing_leaves_a_key_as_it_is_and_is_refused_for_the_agent(place):
    take(place, {"providers": {"groq": {"apiKey": SECRET}}})
    _, err = take(place, {"providers": {"groq": {"apiKey": "${NO_SUCH_KEY}"}}})
    assert "the variable NO_SUCH_KEY is not set" in err
    assert (settings.DATA_DIR / "secrets/groq_api_key").read_text() == SECRET
    assert "Nothing has changed" in take(place, {"providers": {"groq": {"apiKey": "${NO_SUCH_KEY}"}}})[0]
    with pytest.raises(CommandError, match=r"agents.defaults.model: the variable NO_SUCH_MODEL is not set"):
        take(place, {"agents": {"defaults": {"model": "${NO_SUCH_MODEL}"}}})


def test_variables_say_what_the_file_does_not(place, monkeypatch):
    monkeypatch.setenv("NANOBOT_PROVIDERS__GROQ__API_KEY", SECRET)
    monkeypatch.setenv("NANOBOT_AGENTS__DEFAULTS__MAX_TOKENS", "1024")
    monkeypatch.setenv("NANOBOT_AGENTS__DEFAULTS__MODEL", "of-the-variable")
    monkeypatch.setenv("NANOBOT_TOOLS__ALLOWED_PATHS", '["/a"]')
    monkeypatch.setenv("NANOBOT_NO_KEY", SECRET)
    out, err = take(place, {"agents": {"defaults": {"model": "of-the-file"}}})
    agent = Agent.objects.get(name="default")
    assert (agent.model, agent.output_reserve) == ("of-the-file", 1024)
    assert (settings.DATA_DIR / "secrets/groq_api_key").read_text() == SECRET
    assert "NANOBOT_AGENTS__DEFAULTS__MODEL: not used, the file has agents.defaults.model" in out
    assert "(from NANOBOT_PROVIDERS__GROQ__API_KEY)" in out
    assert "NANOBOT_NO_KEY: no key has this name" in err
    assert give(place)["tools"]["allowedPaths"] == ["/a"]
    monkeypatch.setenv("NANOBOT_TOOLS__PROTECTED_PATHS", "[NaN")
    with pytest.raises(CommandError, match="NANOBOT_TOOLS__PROTECTED_PATHS"):
        take(place, {})


# --- once, whole, or not at all ----------------------------------------------------------------------------------


def test_a_second_import_changes_nothing_and_says_so(place):
    take(place, WHOLE)
    before = stored()
    out, _ = take(place, WHOLE)
    assert "Nothing has changed" in out
    assert stored() == before


def test_a_dry_run_says_the_same_and_changes_nothing(place):
    before = stored()
    out, err = take(place, WHOLE, "--dry-run")
    assert stored() == before
    assert not (settings.DATA_DIR / "secrets").exists()
    real = take(place, WHOLE)
    assert (out.replace("; nothing of it was stored", ""), err) == real


def test_killed_between_files_and_commit_the_same_import_repairs_it(place):
    with transaction.atomic():
        take(place, WHOLE)
        transaction.set_rollback(True)
    assert not ConfigPart.objects.exists()
    assert (settings.DATA_DIR / "secrets/openrouter_api_key").exists()
    out, _ = take(place, WHOLE)
    assert "Nothing has changed" not in out
    assert give(place, "--with-keys") == WHOLE
    assert "Nothing has changed" in take(place, WHOLE)[0]


def test_a_folder_that_cannot_be_written_leaves_no_row(place, settings):
    (settings.DATA_DIR / "secrets/groq_api_key.new").mkdir(parents=True)
    before = Agent.objects.get(name="default").version
    config = {"providers": {"groq": {"apiKey": SECRET}}, "agents": {"defaults": {"model": "model-9"}}}
    with pytest.raises(CommandError, match="Nothing was imported"):
        take(place, config)
    assert not ConfigPart.objects.exists()
    assert Agent.objects.get(name="default").version == before
    assert not AuditEntry.objects.filter(action="config_part.stored").exists()


def test_a_secret_is_never_open_to_others_not_even_for_a_moment(place):
    files = SecretFiles(place / "own")
    with files.held():
        files.write({"one": SECRET, "nanobot/two": SECRET})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (place / "own").rglob("*")}
    assert modes == {"one": 0o600, "nanobot": 0o700, "two": 0o600, "lock": 0o600}


def test_what_is_no_longer_there_is_taken_away(place):
    take(
        place,
        {
            "providers": {"groq": {"apiKey": SECRET, "apiBase": "https://a.example/v1"}},
            "channels": {"qq": {"secret": SECRET}},
        },
    )
    out, _ = take(place, {"providers": {"groq": {"apiKey": ""}}, "channels": {"qq": {"appId": "x"}}})
    assert "providers.groq.apiKey: removed" in out
    assert "channels.qq.secret: removed" in out
    _, files, _, _ = stored()
    assert set(files) == {"lock", "llm_base_urls"}
    assert files["llm_base_urls"][0] == b""
    assert "Nothing has changed" in take(place, {"providers": {"groq": {"apiKey": ""}}})[0]


def test_every_change_is_in_the_audit_log_without_its_secrets(place):
    with audit.acting("manage.py anna"):
        take(place, WHOLE)
    made = AuditEntry.objects.filter(actor="manage.py anna")
    actions = list(made.values_list("action", flat=True))
    assert {"agent.changed", "config_part.stored", "secret_file.written"} <= set(actions)
    assert actions.count("config_part.stored") == ConfigPart.objects.count()
    assert "openrouter_api_key" in made.filter(action="secret_file.written").values_list("object_id", flat=True)
    give(place, "--with-keys")
    assert AuditEntry.objects.filter(action="config.exported").count() == 1


def test_no_secret_is_in_a_row_or_in_what_is_printed(place):
    out, err = take(place, WHOLE)
    changed = json.loads(json.dumps(WHOLE).replace(SECRET, f"another-{SECRET}"))
    again = take(place, changed)
    assert SECRET not in "".join((out, err, *again))
    with connection.cursor() as cursor:
        for table in readable_tables():
            cursor.execute(f'SELECT * FROM "{table}"')
            assert SECRET not in str(cursor.fetchall()), table
    give(place)
    assert SECRET not in (place / "out.json").read_text()


# --- and back ----------------------------------------------------------------------------------------------------


def test_what_was_imported_is_exported_again(place):
    take(place, WHOLE)
    assert give(place, "--with-keys") == WHOLE
    assert stat.S_IMODE((place / "out.json").stat().st_mode) == 0o600


def test_without_keys_variables_stand_for_them_and_the_host_that_has_them_takes_it_as_it_was(place):
    take(place, WHOLE)
    given_back = give(place)
    assert given_back["providers"]["openrouter"]["apiKey"] == "${NANOBOT_PROVIDERS__OPENROUTER__API_KEY}"
    assert given_back["tools"]["mcpServers"]["files"]["env"]["TOKEN"].startswith("${NANOBOT_TOOLS__MCP_SERVERS__")
    before = stored()
    out, _ = take(place, given_back)
    assert "Nothing has changed" in out
    assert stored()[:3] == before[:3]


def test_what_people_have_changed_since_is_exported(place):
    take(place, WHOLE)
    agent = Agent.objects.get(name="default")
    agent.model, agent.memory_window, agent.reasoning_effort, agent.provider = "model-9", 60, "", "azure"
    agent.save_version(by="anna")
    (settings.DATA_DIR / "secrets/openrouter_api_key").write_text("a-newer-key")
    defaults = give(place, "--with-keys")["agents"]["defaults"]
    assert (defaults["model"], defaults["memoryWindow"], defaults["reasoningEffort"]) == ("model-9", 120, None)
    assert defaults["provider"] == "azure_openai"
    assert give(place, "--with-keys")["providers"]["openrouter"]["apiKey"] == "a-newer-key"


def _values(known: Any, place: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    """Configs of a schema: any of its keys, with values that fit."""
    words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
    odd = st.recursive(st.none() | st.booleans() | words, lambda each: st.lists(each, max_size=2), max_leaves=4)
    if isinstance(known, ByName):
        names = st.text("ab.$ -", min_size=1, max_size=4)
        return st.dictionaries(names, _values(known.of, (*place, "*")), max_size=2)
    if isinstance(known, dict):
        each = {name: _values(inner, (*place, name)) for name, inner in known.items()}
        known_keys = st.fixed_dictionaries({}, optional=each)
        return st.builds(dict.__or__, st.dictionaries(st.just("noSuchKey"), odd, max_size=1), known_keys)
    if place[:1] == ("providers",):
        key, header = st.text("abc-0", min_size=1, max_size=9), st.text("xy z", max_size=5)
        fit = {"apiKey": key, "apiBase": st.just("https://a.example/v1")}
        return st.none() | fit.get(
            place[-1], st.dictionaries(st.text("XYZ", min_size=1, max_size=3), header, max_size=2)
        )
    if place[:2] == ("agents", "defaults"):
        fits = {"maxTokens": st.integers(128, 9999), "temperature": st.sampled_from([0.0, 0.1, 1.5])}
        fits |= {"memoryWindow": st.integers(2, 400), "reasoningEffort": st.sampled_from(["low", "high", "odd"])}
        fits |= {"provider": st.sampled_from(["auto", "groq", "azure_openai", "nobody"]), "model": st.just("model-9")}
        return st.none() | fits.get(place[-1], st.integers(0, 50) if known is Kind.INTEGER else words)
    whole = st.integers(-(2**40), 2**40)
    kinds = {Kind.FLAG: st.booleans(), Kind.INTEGER: whole, Kind.TEXTS: st.lists(words, max_size=2)}
    kinds |= {Kind.ARGUMENTS: st.lists(words, max_size=2), Kind.SECRETS: st.dictionaries(words, words, max_size=2)}
    kinds |= {Kind.ANYTHING: odd}
    return st.none() | kinds.get(known, words | st.just("${A_VARIABLE}"))


@hypothesis_settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(config=_values(SCHEMA))
def test_whatever_was_imported_is_exported_again(place, config):
    file = as_file(place, config)
    folder = place / "any"
    with transaction.atomic():
        agent = Agent.objects.get(name="default")
        how = {"agent": agent, "folder": folder, "environment": {}}
        importing.import_config(file, **how, dry_run=False)
        agent.refresh_from_db()
        back = exporting.document(**how, with_secrets=True)
        assert _without_empty(back) == _without_empty(_migrated(config))
        assert not importing.import_config(as_file(place, back), **how, dry_run=False).changed
        assert not importing.import_config(
            as_file(place, exporting.document(**how, with_secrets=False)), **how, dry_run=False
        ).changed
        transaction.set_rollback(True)


def _migrated(config: Any) -> Any:
    config = json.loads(json.dumps(config))
    if "restrictToWorkspace" in config.get("tools", {}).get("exec", {}):
        config["tools"].setdefault("restrictToWorkspace", config["tools"]["exec"].pop("restrictToWorkspace"))
        config["tools"]["exec"].pop("restrictToWorkspace", None)
    return config


def _without_empty(config: Any) -> Any:
    """Objects that had nothing but what moved are as good as none."""
    if not isinstance(config, dict):
        return config
    kept = {name: _without_empty(each) for name, each in config.items()}
    return {name: each for name, each in kept.items() if each != {}}


# --- files of anybody --------------------------------------------------------------------------------------------

BROKEN = [
    (b"", "config.json:1:1: it is broken"),
    (b'{"agents": {\n "defaults": }', "config.json:2:14: it is broken"),
    (b"[]", "an object in braces is needed"),
    (b"null", "an object in braces is needed"),
    (b'{"a": "\xff"}', "config.json:1: it is not UTF-8"),
    ('{"a": 1}'.encode("utf-16"), "it is not UTF-8"),
    (b'{"providers": {"groq": {"apiKey": "x", "apiKey": "y"}}}', "providers.groq.apiKey: the key is there twice"),
    (b'{"providers": {"groq": {"apiKey": "x", "api_key": "y"}}}', "providers.groq.apiKey: the key is there twice"),
    (b'{"providers": {}, "tools": {"exec": {"timeout": NaN}}}', "tools.exec.timeout: NaN is not taken"),
    (b'{"gateway": {"port": -Infinity}}', "gateway.port: -Infinity is not taken"),
    (b'{"gateway": {"port": 1e999}}', "gateway.port: so large a number"),
    (b'{"gateway": {"port": ' + b"9" * 5000 + b"}}", "gateway.port: so large a number"),
    (b'{"gateway": {"port": "eighty"}}', "gateway.port: a whole number is needed, and there is a text"),
    (b'{"gateway": {"port": true}}', "gateway.port: a whole number is needed, and there is true or false"),
    (b'{"channels": {"qq": {"enabled": 2}}}', "channels.qq.enabled: true or false is needed"),
    (b'{"channels": {"qq": {"allowFrom": [1]}}}', "channels.qq.allowFrom: a list of texts is needed"),
    (b'{"channels": []}', "channels: an object is needed, and there is a list"),
    (b'{"providers": {"groq": "k"}}', "providers.groq: an object is needed, and there is a text"),
    (b'{"providers": {"groq": {"apiKey": "two words"}}}', "providers.groq.apiKey: a key is printable ASCII"),
    (b'{"providers": {"groq": {"apiBase": "ftp://h"}}}', "providers.groq.apiBase: an address is needed"),
    (b'{"providers": {"groq": {"apiBase": "http://h/\\nvllm=http://x"}}}', "providers.groq.apiBase: an address is"),
    (b'{"providers": {"groq": {"extraHeaders": {"Host": "x"}}}}', "providers.groq.extraHeaders: 'Host' is no header"),
    (b'{"providers": {"groq": {"extraHeaders": {"X": "a\\r\\nB: c"}}}}', "the value of X is no printable"),
    (b'{"agents": {"defaults": {"model": "sk-proj-0123456789abcdefghij0123456789"}}}', "it looks like a secret"),
    (b'{"a": "\\u0000"}', "a: it has a character that no database stores"),
    (b'{"a": "\\ud800"}', "a: it has a character that no database stores"),
    (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    (b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}", "it is nested more than"),
    (b'{"a": [' + b"1," * 6000 + b"1]}", "more than 5000 values"),
    (b'{"' + b"k" * 201 + b'": 1}', "a key of more than 200 characters"),
    (b" " * ((1 << 20) + 1), "it is larger than 1048576 bytes"),
]


@pytest.mark.parametrize(("content", "said"), BROKEN)
def test_a_broken_file_is_refused_with_where_it_is_broken_and_changes_nothing(place, content, said):
    before = stored()
    with pytest.raises(CommandError) as refused:
        take(place, content)
    assert said in str(refused.value)
    assert str(refused.value).startswith("Nothing was imported. ")
    assert "two words" not in str(refused.value)
    after = stored()
    after[1].pop("lock", None)
    assert after == before


@pytest.mark.parametrize("begin", [b"\xef\xbb\xbf", b""])
@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_mark_of_byte_order_and_any_line_end_are_taken(place, begin, end):
    content = begin + json.dumps(WHOLE, indent=1).encode().replace(b"\n", end)
    take(place, content)
    assert give(place, "--with-keys") == WHOLE


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": "' + b'\\"' * 500_000 + b'"}',
        b'{"a": "' + b"${" * 500_000 + b'"}',
        b'{"providers": {"groq": {"apiKey": "' + b"${A" * 300_000 + b'"}}}',
        b'{"agents": {"defaults": {"workspace": "' + b"token=" * 170_000 + b'"}}}',
        b'{"a": ' + b'{"b":' * 170_000,
        b"[" * 1_000_000,
    ],
)
def test_a_megabyte_of_anything_is_read_in_seconds(place, content):
    began = time.process_time()
    try:
        take(place, content)
    except CommandError as error:
        assert len(str(error)) < 1000  # noqa: PT017 -- either is well
    assert time.process_time() - began < 10


def test_a_file_that_is_none_is_refused(place):
    for name in (place, place / "missing"):
        with pytest.raises(CommandError, match="Nothing was imported"):
            call_command("import_config", str(name))
    os.mkfifo(place / "pipe")
    with pytest.raises(CommandError, match="it is no file"):
        call_command("import_config", str(place / "pipe"))


def test_what_a_terminal_would_act_on_is_escaped(place):
    out, err = take(place, {"evil\x1b[2J\nkey": 1, "tools": {"mcpServers": {"\x1b[31m": {"command": "x"}}}})
    assert "\x1b" not in out + err
    assert "evil\\u001b[2J\\nkey" in out


@shapeless
def test_no_two_secrets_that_are_known_share_a_file_and_every_name_has_two_spellings():
    def names_in(known: Any) -> list[str]:
        inner = known.of if isinstance(known, ByName) else known
        if isinstance(inner, Kind):
            return []
        return [*inner, *(name for each in inner.values() for name in names_in(each))]

    names = names_in(SCHEMA)
    assert len(names) > 120
    assert [name for name in names if camel(snake(name)) != name] == []
    assert set(CHANNELS) | {"sendProgress", "sendToolHints"} == set(SCHEMA["channels"])
    with pytest.raises(Refused):
        reading.parse("{", "x")
