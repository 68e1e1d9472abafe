"""Servers that others have written, started on loopback, each with its data in a folder of its own: Dovecot, a mailbox,
and Synapse, a Matrix homeserver. What is not installed is not there: see ``docs/contributing.md``."""

import grp
import json
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from imaplib import IMAP4
from pathlib import Path
from typing import Any

from tests.support.sources import ROOT
from tests.support.wait import wait_until

# An environment of its own, since Synapse wants other versions of what the host uses.
SYNAPSE_PYTHON = Path(os.environ.get("SYNAPSE_PYTHON") or ROOT / ".venv/peers/bin/python")

NO_DOVECOT = "" if shutil.which("dovecot") else "it needs Dovecot: install dovecot-imapd"
NO_SYNAPSE = "" if SYNAPSE_PYTHON.exists() else "it needs Synapse: install the group peers into .venv/peers"


def free_port() -> int:
    """One that nobody listens at just now."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port: int = asked.getsockname()[1]
        return port


class Server:
    """A process with a folder, both gone at the end."""

    def __init__(self, name: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"nanohost-{name}-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *command: str, **options: Any) -> None:
        out = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=out, **options)
        out.close()
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def close(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)


class Dovecot(Server):
    """One mailbox, of whoever knows the password; as a user without rights."""

    def __init__(self, user: str, password: str) -> None:
        super().__init__("dovecot")
        self.user, self.password = user, password
        runs_as = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        group = grp.getgrgid(runs_as.pw_gid).gr_name
        settings = f"""
protocols = imap
listen = 127.0.0.1
base_dir = {self.folder}/run
state_dir = {self.folder}/state
log_path = {self.folder}/dovecot.log
ssl = no
disable_plaintext_auth = no
default_internal_user = {runs_as.pw_name}
default_login_user = {runs_as.pw_name}
default_internal_group = {group}
first_valid_uid = {runs_as.pw_uid}
last_valid_uid = 0
first_valid_gid = {runs_as.pw_gid}
mail_location = maildir:{self.folder}/mail
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid={runs_as.pw_uid} gid={runs_as.pw_gid} home={self.folder}/home
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {self.port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service anvil {{
  chroot =
}}
"""
        (self.folder / "dovecot.conf").write_text(settings)
        os.chmod(self.folder, 0o755)
        options: dict[str, Any] = {}
        if os.getuid() == 0:
            shutil.chown(self.folder, runs_as.pw_uid, runs_as.pw_gid)
            options = {"user": runs_as.pw_uid, "group": runs_as.pw_gid, "extra_groups": []}
        self.start("dovecot", "-F", "-c", str(self.folder / "dovecot.conf"), **options)

    def append(self, message: bytes) -> None:
        """Put a message into the mailbox."""
        with IMAP4("127.0.0.1", self.port) as box:
            box.login(self.user, self.password)
            answer, told = box.append("INBOX", "", None, message)
            assert answer == "OK", told


class Synapse(Server):
    """A homeserver, whose people are made as they are named."""

    def __init__(self) -> None:
        super().__init__("synapse")
        config = self.folder / "homeserver.yaml"
        make = (SYNAPSE_PYTHON, "-m", "synapse.app.homeserver", "--server-name", "example.org", "--generate-config")
        subprocess.run([*make, "--report-stats=no", "-c", config], cwd=self.folder, check=True, capture_output=True)
        # Each key once: what stands there counts no more.
        own = {
            "listeners": [
                {
                    "port": self.port,
                    "type": "http",
                    "bind_addresses": ["127.0.0.1"],
                    "resources": [{"names": ["client"], "compress": False}],
                }
            ],
            "trusted_key_servers": [],
            "enable_registration": True,
            "enable_registration_without_verification": True,
            "rc_message": {"per_second": 1000, "burst_count": 1000},
            "rc_registration": {"per_second": 1000, "burst_count": 1000},
        }
        (self.folder / "own.yaml").write_text(json.dumps(own))
        self.url = f"http://127.0.0.1:{self.port}"
        self.start(
            str(SYNAPSE_PYTHON), "-m", "synapse.app.homeserver", "-c", str(config), "-c", str(self.folder / "own.yaml")
        )
        wait_until(lambda: self.ask("GET", "/_matrix/client/versions"))

    def person(self, name: str) -> str:
        """Register somebody, and return their access token."""
        said = {"username": name, "password": f"password of {name}", "auth": {"type": "m.login.dummy"}}
        token: str = self.ask("POST", "/_matrix/client/v3/register", said)["access_token"]
        return token

    def ask(self, method: str, path: str, said: Mapping[str, Any] | None = None, *, token: str = "") -> Any:
        """Do something as a client."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        body = None if said is None else json.dumps(dict(said)).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=body, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
