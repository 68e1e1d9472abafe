"""``python -m tests.bench.deliveries [COUNT]``: what a turn takes while 10,000 deliveries wait for a slow platform, to
what one takes on the same host before.

One embedded host, whose turns and deliveries share a process: the harder case. The platform takes a second for each
message, and four at once go to it, so that most of them wait until the end. It takes a minute, and writes nothing.
"""

import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.bench import hosts, results
from tests.bench.clients import BenchClient
from tests.bench.hosts import ONE_WORD
from tests.support.hosts import KEY, ROOT

DELIVERIES, TURNS, CHATS = 10_000, 100, 100
SECONDS = 1.0


class SlowPlatform:
    """Takes each message, after a while."""

    def __init__(self) -> None:
        self.taken, over = 0, threading.Event()
        platform, self._over = self, over

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                over.wait(SECONDS)
                platform.taken += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()


def main(count: int) -> None:
    """Measure, and show a table."""
    with tempfile.TemporaryDirectory(prefix="nanohost-bench-") as place, ExitStack() as keep:
        directory = Path(place)
        platform = SlowPlatform()
        keep.callback(platform.close)
        model = keep.enter_context(hosts.model(directory))
        reaches = {"HTTP_ALLOWED_PRIVATE_CIDRS": "127.0.0.1/32", "HTTP_ALLOWED_PORTS": str(platform.port)}
        host = keep.enter_context(hosts.embedded(directory / "embedded", **hosts.asks(model), **reaches))
        asker = BenchClient(host.address, KEY)
        keep.callback(asker.close)
        asker.ask(ONE_WORD)  # its caches are filled
        before = _median(asker)
        _fill(host.environment, count, f"http://127.0.0.1:{platform.port}/hook")
        hosts.until(lambda: platform.taken, "nothing is delivered", host.log)
        taken = platform.taken
        meanwhile = _median(asker)
        row = [f"{count:,}", f"{before:.1f}", f"{meanwhile:.1f}", f"{meanwhile / before:.2f}"]
        row += [str(platform.taken - taken), f"{count - platform.taken:,}"]
    head = ["deliveries", "a turn before, ms", "a turn meanwhile, ms", "ratio", "delivered meanwhile", "left"]
    print(results.table(head, [row]), flush=True)  # noqa: T201 -- a command


def _median(asker: BenchClient) -> float:
    return statistics.median(asker.ask(ONE_WORD).whole for _ in range(TURNS))


def _fill(environment: Mapping[str, str], count: int, url: str) -> None:
    command = [sys.executable, "-m", "tests.bench.deliveries", "fill", str(count), url]
    ran = subprocess.run(command, cwd=ROOT, env=dict(environment), capture_output=True, text=True, timeout=600)
    if ran.returncode:
        raise RuntimeError(ran.stderr)


def fill(count: int, url: str) -> None:
    """Have so many messages said in chats, in a host's environment."""
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.db import transaction

    from agent.models import Agent
    from conversations.channel_models import Chat
    from conversations.channels import accounts
    from conversations.deliveries import outbox
    from conversations.deliveries.outbox import Said

    owner, agent = User.objects.create_user("of many chats"), Agent.objects.get(name="default")
    channel, _ = accounts.make(name="slow", kind="webhook", agent=agent, owner=owner, settings={"url": url})
    with transaction.atomic():  # a host that delivers the first ones meanwhile keeps SQLite for itself
        for number in range(CHATS):
            chat = Chat.objects.create(channel=channel, owner=owner, key=f"slow:{number}", chat_id=str(number))
            outbox.put_in_chat(chat, [Said(kind="chat", data={"text": "Hello"}) for _ in range(count // CHATS)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["fill"]:
        fill(int(sys.argv[2]), sys.argv[3])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else DELIVERIES)
