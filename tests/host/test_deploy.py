"""A web node with production's settings: ``manage.py check --deploy``, HTTPS behind a proxy, and a stop that drains."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from nanohost.checks import agents_write_no_code
from nanohost.stack import read_services
from tests import shapes
from tests.faults.servers import free_port
from tests.support import servers
from tests.support.hosts import KEY, ROOT
from tests.support.wait import wait_until

SECRETS = {
    "database_url": "postgresql://nanohost:of-nobody@127.0.0.1:1/nanohost",
    "secret_key": "sign-with-this-secret-key-0123456789-0123456789-0123456789",
    "webhook_key": "make-secrets-of-webhooks-of-this-key",
    "attachments_bucket_key": "",
    "oidc_client_secret": "",
}

# How long the nodes of these tests drain.
DRAIN_SECONDS = 1


def variables_in(folder: Path) -> dict[str, str]:
    """Exactly the variables docker-compose.yml gives a web node, where nobody has set one; secrets are in files."""
    web = read_services()["web"]
    for name in web.secrets:
        (folder / name).write_text(SECRETS[name] + "\n")
    given = {
        name: value.replace("/run/secrets", str(folder)) for name, value in web.environment.items() if value is not None
    }
    return {"PATH": "/usr/bin:/bin", "HOME": "/tmp"} | given | {"WEB_DRAIN_SECONDS": str(DRAIN_SECONDS)}


@pytest.fixture
def variables(tmp_path):
    return variables_in(tmp_path)


def manage(variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60
    )


# --- manage.py check ----------------------------------------------------------------------------------------------


@pytest.mark.shapeless(reason="it touches no server")
def test_the_check_of_a_deployment_is_clean(variables):
    checked = manage(variables, "check", "--deploy", "--fail-level", "WARNING")
    assert checked.returncode == 0, checked.stderr
    assert "System check identified no issues (0 silenced)." in checked.stdout


@pytest.mark.shapeless(reason="it touches no server")
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"SECRET_KEY_FILE": ""}, {"nanohost.E001"}),
        (
            {"HTTPS": "false", "DEBUG": "true", "SECRET_KEY_FILE": "", "SECRET_KEY": "short"},
            {"security.W010", "security.W018", "security.W009"},
        ),
    ],
)
def test_the_check_sees_what_is_wrong(variables, changed, says):
    checked = manage(variables | changed, "check", "--deploy", "--fail-level", "WARNING")
    assert checked.returncode == 1
    assert says <= set(re.findall(r"\((\w+\.[EW]\d+)\)", checked.stderr))


@pytest.mark.shapeless(reason="it touches no server")
@pytest.mark.parametrize("folder", [ROOT, ROOT / "tools", ROOT.parent, sys.prefix])
def test_no_folder_that_agents_write_to_holds_code(settings, tmp_path, folder):
    settings.WORKSPACE_WRITE_FOLDERS = [str(tmp_path / "notes")]
    assert agents_write_no_code() == []
    (tmp_path / "link").symlink_to(folder)
    settings.WORKSPACE_WRITE_FOLDERS = [str(tmp_path / "notes"), str(tmp_path / "link")]
    (error,) = agents_write_no_code()
    assert error.id == "nanohost.E002"
    assert str(tmp_path / "link") in error.msg


@pytest.mark.shapeless(reason="it touches no server")
@pytest.mark.parametrize("runs", ["EXEC_PATH_APPEND", "MCP_FOLDERS", "sys.path"])
def test_no_folder_that_agents_write_to_holds_programs(settings, monkeypatch, tmp_path, runs):
    if runs == "sys.path":
        monkeypatch.syspath_prepend(tmp_path / "programs")  # in which there are no modules yet
    else:
        setattr(settings, runs, [str(tmp_path / "programs")])
    for folder in (tmp_path, tmp_path / "programs" / "one"):
        settings.WORKSPACE_WRITE_FOLDERS = [str(folder)]
        assert [error.id for error in agents_write_no_code()] == ["nanohost.E002"]


@pytest.mark.shapeless(reason="it touches no server")
def test_a_web_node_without_the_secret_key_does_not_start(variables):
    ended = manage(variables | {"SECRET_KEY_FILE": "", "PORT": "0", "HOST": "127.0.0.1"}, "web")
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("CommandError: A web node needs SECRET_KEY, or SECRET_KEY_FILE")
    assert line.endswith("(nanohost.E001)")


# --- a web node behind a proxy ------------------------------------------------------------------------------------

BY_PROXY = {"X-Forwarded-Proto": "https"}


@contextmanager
def running_node(folder: Path, *, drain: int = DRAIN_SECONDS) -> Iterator[httpx2.Client]:
    """A web node, as docker-compose.yml starts it, but on the tests' servers; there is no worker."""
    variables = variables_in(folder)
    servers.create(servers.name_of("deploy"), template=servers.name_of("prepared"))
    (folder / "database_url").write_text(servers.url_of(servers.name_of("deploy")))
    variables |= {"HOST": "127.0.0.1", "PORT": str(free_port()), "REDIS_URL": shapes.named_servers().redis_url}
    variables["WEB_DRAIN_SECONDS"] = str(drain)
    variables["PATH"] = f"{sys.prefix}/bin:/usr/bin:/bin"
    with (folder / "log").open("w") as log:
        node = subprocess.Popen(read_services()["web"].command, cwd=ROOT, env=variables, stdout=log, stderr=log)
    wait_until(lambda: "listening on" in (folder / "log").read_text() or node.poll() is not None, seconds=60)
    with httpx2.Client(base_url=f"http://127.0.0.1:{variables['PORT']}", timeout=20) as client:
        client.node = node
        client.get("/health/live")  # it is told of as soon as it listens; from the first answer on it drains
        yield client
    if node.poll() is None:
        node.kill()
        node.wait()


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    """A node that tests share."""
    with running_node(tmp_path_factory.mktemp("web")) as web:
        yield web


production = pytest.mark.production(reason="a web node is of the production shape")


@production
def test_what_came_without_tls_is_sent_to_https(web):
    answer = web.get("/admin/login/")
    assert answer.status_code == 301
    assert answer.headers["location"] == f"https://127.0.0.1:{web.base_url.port}/admin/login/"
    assert web.get("/api/v1/tools", headers={"Authorization": f"Bearer {KEY}"}).status_code == 301


@production
def test_what_came_through_the_proxy_is_answered(web):
    answer = web.get("/admin/login/", headers=BY_PROXY)
    assert answer.status_code == 200
    assert answer.headers["strict-transport-security"] == "max-age=2592000; includeSubDomains; preload"
    assert re.search(r"csrftoken=.*; Secure", answer.headers["set-cookie"])
    assert web.get("/api/v1/tools", headers=BY_PROXY | {"Authorization": f"Bearer {KEY}"}).status_code == 200


@production
def test_those_who_probe_need_no_tls(web):
    assert web.get("/health/live").json() == {"status": "ok"}
    answer = web.get("/health/ready")
    assert (answer.status_code, answer.json()["checks"]["database"]) == (503, "ok")  # there is no worker


@production
def test_a_node_that_stops_says_so_and_serves_on_until_it_is_asked_twice(tmp_path):
    """Or for ten minutes."""
    with running_node(tmp_path, drain=600) as web:
        web.node.send_signal(signal.SIGTERM)
        wait_until(lambda: web.get("/health/ready").json() == {"status": "unavailable", "checks": {"web": "draining"}})
        assert web.get("/health/ready").status_code == 503
        assert web.get("/health/live").status_code == 200
        tools = web.get("/api/v1/tools", headers=BY_PROXY | {"Authorization": f"Bearer {KEY}"})
        assert tools.status_code == 200
        web.node.send_signal(signal.SIGTERM)
        assert web.node.wait(timeout=60) == 0


@production
def test_a_node_that_has_drained_ends_by_itself(tmp_path):
    with running_node(tmp_path) as web:
        web.node.send_signal(signal.SIGTERM)
        assert web.node.wait(timeout=60) == 0
