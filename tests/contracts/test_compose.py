"""docker-compose.yml and the image: each command, queue and variable against the code."""

import importlib
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from celery.app.utils import find_app
from celery.bin.celery import celery
from click import Context
from django.conf import settings
from django.core.management import get_commands, load_command_class

from agent.llm.providers import PROVIDERS
from nanohost.stack import read_services
from tests.support.sources import READ_ELSEWHERE, ROOT, readers, tracked_files
from tools import registry
from tools.runners import InChild
from tools.sandbox.children import place_of
from tools.sandbox.forkserver import MORE_PROCESSES

pytestmark = pytest.mark.shapeless(reason="it reads files")

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
OURS = read_services()
DOCKERFILE = (ROOT / "Dockerfile").read_text()

# Settings that docker-compose.yml does not set or pass on, each with its reason.
NOT_IN_COMPOSE = {
    "DATA_DIR": "of the embedded shape; a container keeps nothing",
    "DEBUG": "for developers",
    "ZHIPUAI_API_KEY": "another name of ZAI_API_KEY, into whose file `make secrets` writes it",
    "NANOHOST_TOOL_PROCESS": "set by the toolbox itself, in its tools' processes",
}


def environment(service: str) -> dict[str, str | None]:
    return SERVICES[service].get("environment", {})


# --- commands and queues ------------------------------------------------------------------------------------------


def test_the_services_are_those_of_the_design():
    assert set(OURS) == {"migrate", "web", "worker", "toolbox", "beat"}
    assert set(SERVICES) == {"postgres", "redis", *OURS, "flower"}
    assert [name for name in SERVICES if SERVICES[name].get("profiles")] == ["flower"]


@pytest.mark.parametrize("name", OURS)
def test_each_command_is_one_its_program_knows(name):
    """Parsed by the program itself, options and all."""
    program, *arguments = OURS[name].command
    if program == "python":
        script, command, *options = arguments
        assert script == "manage.py"
        parser = load_command_class(get_commands()[command], command).create_parser(script, command)
        parser.parse_args(options)
        return
    assert program == "celery"
    with celery.make_context(program, list(arguments)) as context:
        assert find_app(context.params["app"]).main == "nanohost"
        word, command, options = celery.resolve_command(context, [*context._protected_args, *context.args])
        assert word == "beat"
        command.make_parser(Context(command)).parse_args(options)


def queues_of(service: str) -> list[str]:
    _program, *arguments = OURS[service].command
    if arguments[:2] != ["manage.py", "worker"]:
        return []
    parser = load_command_class("nanohost", "worker").create_parser("manage.py", "worker")
    return str(parser.parse_args(arguments[2:]).queues).split(",")


def test_every_queue_has_its_worker_and_tools_have_one_of_their_own():
    served = [queue for service in OURS for queue in queues_of(service)]
    assert sorted(served) == sorted(queue.name for queue in settings.CELERY_TASK_QUEUES)
    assert queues_of("toolbox") == ["tools"]
    assert {route["queue"] for route in settings.CELERY_TASK_ROUTES.values()} <= set(served)


def test_every_queue_has_a_routing_key_of_its_own():
    """Or a notification that is sent by exchange and key would reach every worker."""
    assert [queue.routing_key for queue in settings.CELERY_TASK_QUEUES] == [
        queue.name for queue in settings.CELERY_TASK_QUEUES
    ]


def test_beat_s_scheduler_is_the_code_s():
    module, _, name = settings.CELERY_BEAT_SCHEDULER.partition(":")
    assert hasattr(importlib.import_module(module), name)


def test_flower_reads_the_same_broker():
    assert f"--broker={environment('worker')['REDIS_URL']}" in SERVICES["flower"]["command"]


# --- variables and secrets ----------------------------------------------------------------------------------------

SETTINGS = {reader.name for reader in readers()} | set(READ_ELSEWHERE)
# Those that may also stand in a file.
SECRETS = {reader.name for reader in readers() if reader.kind in ("secret", "key", "server", "headers")} | set(
    READ_ELSEWHERE
)


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting(name):
    for variable in environment(name):
        if variable.endswith("_FILE") and variable not in SETTINGS:
            assert variable.removesuffix("_FILE") in SECRETS
        else:
            assert variable in SETTINGS


def test_every_setting_reaches_somebody():
    reached = {variable for name in OURS for variable in environment(name)}
    reached |= {variable.removesuffix("_FILE") for variable in reached}
    assert SETTINGS - reached == set(NOT_IN_COMPOSE)


@pytest.mark.parametrize("name", OURS)
def test_a_setting_that_is_passed_to_others_reaches_all_whose_code_reads_it(name):
    """Two processes that disagree on a limit would each keep another."""
    assert packages_read_by(name) <= {variable.removesuffix("_FILE") for variable in environment(name)}


def packages_read_by(service: str) -> set[str]:
    """The settings that some service sets or passes on, and that this one's code reads."""
    passed = {variable.removesuffix("_FILE") for name in OURS for variable in environment(name)}
    files = {
        "web": [
            "conversations/web",
            "conversations/engine/inbox.py",
            "conversations/events",
            "conversations/api",
            "conversations/openai_api",
            "nanohost/serving.py",
        ],
        "worker": [
            "conversations/engine/turns.py",
            "conversations/engine/lease.py",
            "conversations/engine/snapshot.py",
            "conversations/engine/steps.py",
            "conversations/engine/deadlines.py",
            "nanohost/lib/lease.py",
            "agent",
        ],
        "toolbox": ["tools"],
        "beat": ["scheduler"],
        "migrate": ["nanohost/preparation.py"],
    }[service]
    paths = [
        path for name in files for path in ([ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("*.py"))
    ]
    read = {found for path in paths for found in re.findall(r"\bsettings\.([A-Z_]+)\b", path.read_text())}
    return (read & passed) - {"DATABASE_URL", "REDIS_URL"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_secret_that_is_named_is_mounted_and_no_other(name):
    values = [value for value in environment(name).values() if value]
    named = {found for value in values for found in re.findall(r"^/run/secrets/(\w+)$", value)}
    assert named == set(SERVICES[name].get("secrets", []))
    assert named <= set(COMPOSE["secrets"])


def test_each_secret_is_given_to_those_who_use_it_alone():
    holders = {
        secret: [name for name in SERVICES if secret in SERVICES[name].get("secrets", [])]
        for secret in COMPOSE["secrets"]
    }
    assert holders == {
        "postgres_password": ["postgres"],
        "database_url": ["migrate", "web", "worker", "toolbox", "beat"],
        "secret_key": ["web"],
        "webhook_key": ["web", "worker"],
        "oidc_client_secret": ["web"],
        "attachments_bucket_key": ["web", "worker"],
        "email_host_password": ["worker"],
        **{provider.key.lower(): ["worker"] for provider in PROVIDERS.values()},
        "llm_headers": ["worker"],
    }


def test_what_the_documentation_mounts_of_a_tool_s_secrets_reaches_every_process_that_stays(tmp_path):
    """Each of them masks what it knows. Compose merges maps, and lists of secrets, by their names."""
    text = (ROOT / "docs" / "operations.md").read_text()
    (block,) = [
        found for found in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL) if "tool" in found
    ]
    override = yaml.safe_load(block)
    assert set(override["services"]) == set(OURS) - {"migrate"}
    (secret,) = override["secrets"]
    secret_file = tmp_path / secret
    secret_file.write_text("a-secret-of-the-weather")
    for name, added in override["services"].items():
        ((variable, mounted),) = added["environment"].items()
        assert (variable, mounted) == (f"{secret.upper()}_FILE", f"/run/secrets/{secret}")
        assert added["secrets"] == [secret]
        # As the toolbox's tools would: the process knows it before any tool has run.
        assert masks(environment(name) | {variable: str(secret_file)}, tmp_path), name


def masks(variables: dict[str, str | None], folder: Path) -> bool:
    """Whether a process of that environment masks the secret of a tool of an app that it was named."""
    app = folder / "weather"
    app.mkdir(exist_ok=True)
    (app / "__init__.py").touch()
    (app / "agent_tools.py").write_text(
        "from tools.registry import tool\n\n\n"
        '@tool(effects="read", secrets=["WEATHER_KEY"])\n'
        'def weather() -> str:\n    """The weather."""\n    return ""\n'
    )
    said = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import django; django.setup(); from nanohost.lib.redaction import redact;"
            "print(redact('x a-secret-of-the-weather x'))",
        ],
        cwd=ROOT,
        env={key: value for key, value in variables.items() if value and "$" not in value and "/run/" not in value}
        | {"DATABASE_URL": "postgresql://u:p@127.0.0.1/x", "SECRET_KEY": "x" * 50, "PATH": ""}
        | {"PYTHONPATH": str(folder), "NANOHOST_EXTRA_APPS": "weather", "DATA_DIR": str(folder)}
        | {"DJANGO_SETTINGS_MODULE": "nanohost.settings"},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    return said.stdout == "x [redacted] x\n"


def test_the_toolbox_is_given_no_key():
    suspicious = [name for name in environment("toolbox") if re.search("KEY|SECRET|PASSWORD|TOKEN|LLM", name)]
    assert suspicious == []
    files = {name for name in environment("toolbox") if name.endswith("_FILE")}
    assert files == {"DATABASE_URL_FILE", "WORKER_ALIVE_FILE"}


def test_no_secret_stands_in_the_file():
    for name in OURS:
        for variable, value in environment(name).items():
            if variable in SECRETS - {"REDIS_URL"}:
                assert value is None


def test_what_stack_understands_is_all_there_is():
    """``make stack`` reads ``${NAME:-default}`` as a whole value, and no more of compose's language."""
    for service in OURS.values():
        assert "$" not in " ".join(service.command)
        for value in service.environment.values():
            assert value is None or "$" not in value or re.fullmatch(r"\$\{\w+:-\w*\}", value)


# --- how they run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_nobody_is_root_or_may_write_to_the_root_file_system(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert "/tmp" in [mount.partition(":")[0] for mount in service["tmpfs"]]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] not in ("root", "0", "0:0")
    assert "privileged" not in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "migrate"])
def test_whoever_stays_is_watched_and_started_again(name):
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert SERVICES[name]["logging"]["options"]["max-size"]


@pytest.mark.parametrize("name", OURS)
def test_there_is_time_for_a_clean_stop(name):
    drain = int(environment("web")["WEB_DRAIN_SECONDS"].removeprefix("${WEB_DRAIN_SECONDS:-").removesuffix("}"))
    assert OURS[name].grace >= 10 + drain + 10
    assert SERVICES[name]["init"] is True


# A toolbox's own threads, and how many apps' tools of the user's own there is room for beside nanohost's.
OWN_THREADS, OWN_PLACES = 64, 4


def test_each_place_of_tools_has_room_for_its_processes_and_those_that_fork_without_end_do_not_fill_the_machine():
    tools = [
        tool
        for tool in registry.registered()
        if isinstance(tool.runner, InChild) and not tool.module.startswith("tests.")
    ]
    ours = {place_of(tool) for tool in tools}
    assert ours
    each = 2 * settings.TOOL_CONCURRENCY + MORE_PROCESSES
    assert OWN_THREADS + (len(ours) + OWN_PLACES) * each <= SERVICES["toolbox"]["pids_limit"] <= 1500


def test_nor_do_tools_that_fill_their_temporary_files():
    (mount,) = SERVICES["toolbox"]["tmpfs"]
    assert re.fullmatch(r"/tmp:size=\d{2,3}m", mount)


@pytest.mark.parametrize("name", ["web", "worker", "toolbox", "beat"])
def test_who_works_waits_for_the_release_s_preparation(name):
    assert SERVICES[name]["depends_on"] == {
        "postgres": {"condition": "service_healthy"},
        "redis": {"condition": "service_healthy"},
        "migrate": {"condition": "service_completed_successfully"},
    }


def test_the_preparation_runs_once():
    assert SERVICES["migrate"]["restart"] == "no"


def test_redis_keeps_what_it_took():
    assert "--maxmemory-policy noeviction" in SERVICES["redis"]["command"]


# --- the image ----------------------------------------------------------------------------------------------------


def test_the_image_s_user_is_the_file_s():
    (user,) = re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert {SERVICES[name]["user"] for name in OURS} == {user}
    assert DOCKERFILE.rindex("USER") > DOCKERFILE.rindex("RUN")


def test_the_image_holds_what_runs_and_nothing_else(tmp_path):
    """``COPY . .`` takes what .dockerignore lets through; that much is put into a folder, and runs."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    taken = [line.removeprefix("!") for line in lines if line.startswith("!")]
    for path in tracked_files():
        name = path.relative_to(ROOT)
        if str(name).startswith(tuple(f"{each}/" for each in taken)) or str(name) in taken:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(taken)
    ran = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    ran = subprocess.run(
        [sys.executable, "-c", "import nanohost.asgi, conversations.tasks, tools.sandbox.child"],
        cwd=tmp_path,
        env={"DJANGO_SETTINGS_MODULE": "nanohost.settings"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr


# --- make secrets -------------------------------------------------------------------------------------------------


@pytest.fixture
def secrets(tmp_path):
    """The folder that ``make secrets`` makes, with its files' texts."""
    shutil.copy(ROOT / "Makefile", tmp_path)

    def make(**variables: str) -> dict[str, str]:
        ran = subprocess.run(
            ["make", "secrets"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
        return {path.name: path.read_text().strip() for path in (tmp_path / "secrets").iterdir()}

    make.folder = tmp_path / "secrets"
    return make


def test_make_secrets_makes_every_secret(secrets):
    made = secrets(OPENAI_API_KEY="sk-mine", EMAIL_HOST_PASSWORD="of-the-mail")
    assert {f"./secrets/{name}" for name in made} == {each["file"] for each in COMPOSE["secrets"].values()}
    assert (made["openai_api_key"], made["email_host_password"]) == ("sk-mine", "of-the-mail")
    assert made["database_url"] == f"postgresql://nanohost:{made['postgres_password']}@postgres:5432/nanohost"
    assert re.fullmatch("[A-Za-z0-9]{64}", made["secret_key"])
    assert len({made[name] for name in ("secret_key", "webhook_key", "postgres_password")}) == 3


def test_make_secrets_leaves_alone_what_there_is(secrets):
    first = secrets()
    assert first["openai_api_key"] == ""  # the scripted model answers
    (secrets.folder / "openai_api_key").write_text("sk-mine")
    assert secrets() == first | {"openai_api_key": "sk-mine"}


def test_secrets_are_their_owner_s_alone_and_readable_in_a_container(secrets):
    """A container sees a file, not the folder it is in, and by another user's eyes."""
    secrets()
    assert stat.S_IMODE(secrets.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets.folder.iterdir()} == {0o644}


def test_secrets_are_in_no_commit():
    ran = subprocess.run(
        ["git", "check-ignore", "secrets/secret_key", ".env"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.stdout.split() == ["secrets/secret_key", ".env"]


def test_make_stack_takes_the_number_of_workers():
    said = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "stack", "N=3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.splitlines()[-1].endswith("manage.py stack --workers 3")
