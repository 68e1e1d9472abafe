"""The inside of the lab: ``python -m tests.support.network.inside DIRECTORY``, in namespaces of its own.

Makes every address local and itself the source of all names, then serves, and does what it is told on standard input, a
line of JSON each.
"""

import base64
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trustme

# HTTP, TLS, and what a machine or an intranet listens on.
PORTS = (80, 443, 22, 25, 3128, 5432, 6379, 8000, 8080, 9200)

# The one address that leads nowhere.
UNREACHABLE = "93.184.216.99"

# Those of the servers that are asked for by address, over TLS.
ADDRESSES_WITH_CERTIFICATE = ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946")

TYPES = {1: "A", 28: "AAAA"}

# Connected to by the lab itself, to see that all who came before were counted.
MARKS = ("127.99.99.99", "9999::9999")


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


def make_network(directory: Path) -> None:
    """Every address leads here, and this machine's own names and files of names are not asked."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo")
    run("ip", "-6", "route", "add", "local", "::/0", "dev", "lo")
    run("ip", "route", "add", "unreachable", UNREACHABLE, "table", "local")
    for name, content in {
        "resolv.conf": "nameserver 127.0.0.1\noptions timeout:30 attempts:1\n",
        "nsswitch.conf": "hosts: files dns\n",
        "hosts": "127.0.0.1 localhost\n",
    }.items():
        (directory / name).write_text(content)
        run("mount", "--bind", str(directory / name), os.path.realpath(f"/etc/{name}"))
    if os.path.isdir("/var/run/nscd"):
        run("mount", "-t", "tmpfs", "none", os.path.realpath("/var/run/nscd"))


# --- names -------------------------------------------------------------------------------------------------------


@dataclass
class Name:
    records: dict[str, list[list[str]]]
    cname: str = ""
    silent: bool = False

    def next(self, kind: str) -> list[str]:
        answers = self.records.get(kind, [[]])
        return answers.pop(0) if len(answers) > 1 else answers[0]


@dataclass
class Names:
    """A DNS server, over UDP."""

    known: dict[str, Name] = field(default_factory=dict)

    def serve(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.bind(("127.0.0.1", 53))
            while True:
                question, asker = server.recvfrom(4096)
                if reply := self.reply(question):
                    server.sendto(reply, asker)

    def reply(self, question: bytes) -> bytes:
        labels, at = [], 12
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length].decode())
            at += 1 + length
        asked = question[12 : at + 5]
        (kind,) = struct.unpack_from(">H", question, at + 1)
        found = self.known.get(".".join(labels).lower())
        if found and found.silent:
            return b""
        records: list[bytes] = []
        owner = b"\xc0\x0c"  # the name asked for
        while found and found.cname:
            target = wire_name(found.cname)
            records.append(record(owner, 5, target))
            owner, found = target, self.known.get(found.cname)
        if found and kind in TYPES:
            family = socket.AF_INET if kind == 1 else socket.AF_INET6
            records += [record(owner, kind, socket.inet_pton(family, each)) for each in found.next(TYPES[kind])]
        code = 0 if found else 3  # there is no such name
        return question[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, len(records), 0, 0) + asked + b"".join(records)


def wire_name(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def record(owner: bytes, kind: int, data: bytes) -> bytes:
    return owner + struct.pack(">HHIH", kind, 1, 0, len(data)) + data


# --- servers -----------------------------------------------------------------------------------------------------


@dataclass
class HostilePage:
    chunks: list[bytes]
    pause: float
    endless: bool


@dataclass
class Servers:
    """Listen on every address, count who comes, and answer with pages."""

    authority: trustme.CA
    pages: dict[str, HostilePage] = field(default_factory=dict)
    connections: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    contexts: dict[str, ssl.SSLContext] = field(default_factory=dict)

    def start(self) -> None:
        # For those who ask for no name.
        self.contexts[""] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(*ADDRESSES_WITH_CERTIFICATE).configure_cert(self.contexts[""])
        self.contexts[""].sni_callback = self.choose_certificate
        for port in PORTS:
            for family, any_address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
                listener = socket.socket(family, socket.SOCK_STREAM)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((any_address, port))
                listener.listen(128)
                threading.Thread(target=self.listen, args=(listener,), daemon=True).start()

    def catch_up(self) -> None:
        """Return once whoever has connected is counted: listeners take connections in the order they are made."""
        for port in PORTS:
            for address in MARKS:
                socket.create_connection((address, port)).close()
                while f"{address} {port}" not in self.connections:
                    time.sleep(0.001)

    def choose_certificate(self, connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        """A certificate of the name asked for; of another, for names that begin with ``wrong-``."""
        if name and name not in self.contexts:
            self.contexts[name] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            named = "another.test" if name.startswith("wrong-") else name
            self.authority.issue_cert(named).configure_cert(self.contexts[name])
        if name:
            connection.context = self.contexts[name]

    def listen(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            address, port = connection.getsockname()[:2]
            self.connections.append(f"{address} {port}")
            threading.Thread(target=self.serve, args=(connection, port), daemon=True).start()

    def serve(self, connection: socket.socket, port: int) -> None:
        # The client may leave at any moment.
        with suppress(OSError), connection:
            if port == 443:
                with self.contexts[""].wrap_socket(connection, server_side=True) as secured:
                    self.answer(secured)
            else:
                self.answer(connection)

    def answer(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (part := connection.recv(65536)):
                return
            head += part
        text = head.decode("latin-1")
        self.requests.append(text)
        path = text.split(" ")[1]
        host = next(line[5:].strip() for line in text.split("\r\n") if line.lower().startswith("host:"))
        page = self.pages.get(f"{host}{path}", CANARY)
        for chunk in page.chunks:
            connection.sendall(chunk)
            time.sleep(page.pause)
        while page.endless:
            connection.sendall(page.chunks[-1])
            time.sleep(page.pause)


CANARY = HostilePage(
    [b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nContent-Type: text/plain\r\n\r\nthe canary\n"], 0, False
)


# --- commands ----------------------------------------------------------------------------------------------------


class Inside:
    """What the lab is told to do; whatever it does not know, the client's process does."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(directory / "authority.pem"))
        self.names, self.servers = Names(), Servers(authority)
        self.servers.start()
        threading.Thread(target=self.names.serve, daemon=True).start()
        proxy = "http://127.0.0.1:3128"
        proxies = {f"{kind}_PROXY": proxy for kind in ("HTTP", "HTTPS", "ALL")} | {"http_proxy": proxy}
        self.client = subprocess.Popen(
            [sys.executable, "-m", "tests.support.network.client"],
            env=os.environ | proxies | {"SSL_CERT_FILE": str(directory / "authority.pem")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, line: str) -> str:
        told = json.loads(line)
        command = getattr(self, f"do_{told.pop('command')}", None)
        if command:
            return json.dumps({"value": command(**told)})
        assert self.client.stdin
        assert self.client.stdout
        self.client.stdin.write(line)
        self.client.stdin.flush()
        return self.client.stdout.readline().strip() or json.dumps({"trace": "the client has ended"})

    def do_name(self, name: str, **how: Any) -> None:
        self.names.known[name] = Name(**how)

    def do_page(self, url: str, chunks: list[str], pause: float, endless: bool) -> None:
        parts = urlsplit(url)
        place = f"{parts.netloc}{parts.path}" + (f"?{parts.query}" if parts.query else "")
        self.servers.pages[place] = HostilePage([base64.b64decode(chunk) for chunk in chunks], pause, endless)

    def do_connections(self) -> list[str]:
        self.servers.catch_up()
        taken, self.servers.connections[:] = list(self.servers.connections), []
        return [each for each in taken if each.split(" ")[0] not in MARKS]

    def do_requests(self) -> list[str]:
        taken, self.servers.requests[:] = list(self.servers.requests), []
        return taken


def main() -> None:
    directory = Path(sys.argv[1])
    make_network(directory)
    inside = Inside(directory)
    for line in sys.stdin:
        try:
            answer = inside.do(line)
        except Exception:
            answer = json.dumps({"trace": traceback.format_exc()})
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()
    inside.client.kill()
    inside.client.wait()


if __name__ == "__main__":
    main()
