"""The tools web_search and web_fetch, against fakes on loopback: Brave's API, a SearXNG, pages, and a proxy."""

import base64
import json
import re
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.hosts import ROOT
from tools import registry
from tools.agent_tools import http_get, web_fetch, web_search
from tools.outbound.addresses import PUBLIC, policy_of
from tools.outbound.client import NotFetched, Proxy
from tools.web import Engine, read_page

pytestmark = pytest.mark.shapeless(reason="the tools run in processes that know no database")

KEY = "brave-key-0123456789"
GREEN = "<html><head><script>alert(1)</script></head><body><h1>Green tea</h1>"
GREEN += "<p>Brew it at 80 degrees.</p></body></html>"


def result(number, **more):
    return {"title": f"Tea <strong>{number}</strong> &amp; more", "url": f"https://tea.example/{number}"} | more


class Fake(BaseHTTPRequestHandler):
    """Answers as the services do, and notes who asked for what."""

    seen: list = []
    said: dict = {}

    def do_GET(self):
        url = urlsplit(self.path)
        Fake.seen.append((url.path, parse_qs(url.query), dict(self.headers)))
        status, kind, body = Fake.said.get(url.path, (404, "text/plain", b""))
        self.send_response(status)
        self.send_header("Location" if status == 302 else "Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Fake) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield SimpleNamespace(at=f"http://127.0.0.1:{made.server_port}", port=made.server_port)
        made.shutdown()


@pytest.fixture(autouse=True)
def web(server, settings, monkeypatch):
    settings.HTTP_ALLOWED_PRIVATE_CIDRS, settings.HTTP_ALLOWED_PORTS = ["127.0.0.0/8"], [str(server.port)]
    for name in ("BRAVE_API_KEY", "WEB_PROXY", "SEARXNG_URL"):
        monkeypatch.delenv(name, raising=False)
    Fake.seen.clear()
    Fake.said.clear()
    Fake.said["/green"] = (200, "text/html", GREEN.encode())


@pytest.fixture
def policy(server):
    return policy_of(private_cidrs=["127.0.0.0/8"], ports=[str(server.port)])


def says(path, body, status=200, kind="application/json"):
    Fake.said[path] = (status, kind, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_the_pages_examples_are_what_happens(server, monkeypatch):
    page = (ROOT / "docs" / "tools.md").read_text().replace("http://tea.example", server.at)
    examples = dict(re.findall(r"^\| `((?:web_|http_)\w+ \{.*?\})` \| `(.*)` \|$", page, re.MULTILINE))
    assert len(examples) == 3
    monkeypatch.setenv("SEARXNG_URL", server.at)
    found = {"title": "Green tea", "url": f"{server.at}/green", "content": "How it is brewed."}
    says("/search", {"results": [found, found]})
    for call, said in examples.items():
        name, arguments = call.split(" ", 1)
        came = {"web_search": web_search, "web_fetch": web_fetch, "http_get": http_get}[name](**json.loads(arguments))
        if isinstance(came, str):
            assert came == said.replace("⏎", "\n")
        else:
            assert came == json.loads(said.replace("\\\\", "\\"))


def test_they_reach_out_only_read_and_bring_what_is_untrusted():
    for name, secrets in (("web_search", ("BRAVE_API_KEY", "WEB_PROXY")), ("web_fetch", ("WEB_PROXY",))):
        tool = registry.get(name)
        assert (tool.permissions, tool.effects, tool.untrusted, tool.secrets) == (("NET_HTTP",), "read", True, secrets)


# --- searching ---------------------------------------------------------------------------------------------------


def test_brave_is_asked_with_its_key_and_its_results_are_plain_and_bounded(server, policy):
    odd = [5, {"url": "javascript:alert(1)"}, {"title": "no url"}, result(3, description="x" * 10_000)]
    says("/brave", {"web": {"results": [result(1, description="<b>How</b>\n to"), *odd, result(4)]}})
    engine = Engine(policy=policy, key=KEY, brave=f"{server.at}/brave")
    first, second = engine.search("  green\n tea ", count=2, seconds=5)
    assert str(first) == "Tea 1 & more\n   https://tea.example/1\n   How to"
    assert len(second.snippet) == 500
    path, query, headers = Fake.seen[0]
    assert (path, query, headers["X-Subscription-Token"]) == ("/brave", {"q": ["green tea"], "count": ["2"]}, KEY)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (429, b"", "its limit is reached"),
        (401, b"", "its key is not accepted"),
        (200, b"<html>", "not JSON"),
        (200, b"[" * 100_000, "not JSON"),
    ],
)
def test_what_an_engine_cannot_answer_is_said_without_its_key(server, policy, status, body, words):
    says("/brave", body, status)
    with pytest.raises(ValueError, match=words) as said:
        Engine(policy=policy, key=KEY, brave=f"{server.at}/brave").search("tea", count=5, seconds=5)
    assert KEY not in str(said.value)
    for shape in ([], {"web": 1}, {"web": {"results": {"a": 1}}}):
        says("/brave", shape)
        assert Engine(policy=policy, key=KEY, brave=f"{server.at}/brave").search("tea", count=5, seconds=5) == []


def test_without_an_engine_or_a_query_it_says_what_to_do():
    with pytest.raises(ValueError, match="BRAVE_API_KEY nor SEARXNG_URL"):
        web_search("tea")
    with pytest.raises(ValueError, match="1 to 400"):
        Engine(policy=PUBLIC, key=KEY).search(" ", count=5, seconds=1)


def test_a_searxng_of_a_private_network_is_reached_and_what_it_leads_to_is_not(server, settings, monkeypatch):
    settings.HTTP_ALLOWED_PRIVATE_CIDRS = []
    monkeypatch.setenv("SEARXNG_URL", f"{server.at}/")
    says("/search", {"results": [result(number) for number in range(9)]})
    assert web_search("tea").count("https://tea.example/") == 5
    monkeypatch.setenv("WEB_SEARCH_MAX_RESULTS", "2")
    assert web_search("tea").count("https://tea.example/") == 2
    assert web_search("tea", count=7).count("https://tea.example/") == 7
    Fake.said["/search"] = (302, "http://169.254.169.254/", b"")
    with pytest.raises(NotFetched, match=r"http:(port|address)"):
        web_search("tea")
    with pytest.raises(NotFetched, match=r"http:(port|address)"):
        web_fetch(f"{server.at}/green")  # the engine's address is the engine's alone


# --- reading -----------------------------------------------------------------------------------------------------


def test_a_page_is_read_through_its_redirects_and_truncated(server, policy):
    Fake.said["/moved"] = (302, "/green", b"")
    page = web_fetch(f"{server.at}/moved")
    assert (page["status"], page["url"], page["text"]) == (
        200,
        f"{server.at}/green",
        "Green tea\n\nBrew it at 80 degrees.",
    )
    assert "truncated" not in page
    says("/long", ("<p>" + "leaf " * 100_000).encode(), kind="text/html")
    long = web_fetch(f"{server.at}/long", max_chars=1000)
    assert (len(long["text"]), long["truncated"]) == (1000, True)
    assert len(json.dumps(web_fetch(f"{server.at}/long"))) < 60_000
    says("/picture", b"\x89PNG\x00", kind="image/png")
    assert web_fetch(f"{server.at}/picture")["text"] == "[not text: 5 bytes of image/png]"
    Fake.said["/inside"] = (302, "http://10.0.0.1/", b"")
    with pytest.raises(NotFetched, match=r"http:(port|address)"):
        web_fetch(f"{server.at}/inside")


HOSTILE = {
    "tags": b"<b>" * 340_000,
    "attributes": b"<a " + b"a=1 " * 260_000 + b">",
    "entities": b"&amp;" * 200_000,
    "brackets": b"<" * 1_000_000,
    "comments": b"<!--" * 250_000,
}


def test_a_megabyte_of_hostile_html_is_given_up_in_time(server, policy):
    for name, page in HOSTILE.items():
        says("/hostile", page, kind="text/html")
        began = time.monotonic()
        assert read_page(f"{server.at}/hostile", max_chars=100, policy=policy, seconds=6)["status"] == 200
        assert time.monotonic() - began < 30, name  # it is 1.5 s of parsing; the rest is for a busy machine


# --- the proxy ---------------------------------------------------------------------------------------------------


@pytest.fixture
def proxy():
    """A proxy that makes tunnels; ``asked``: the heads it was sent."""
    made = SimpleNamespace(asked=[], answer=b"HTTP/1.1 200 OK\r\n\r\n")
    listener = socket.create_server(("127.0.0.1", 0))
    made.port = listener.getsockname()[1]

    def serve():
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=tunnel, args=(client,), daemon=True).start()

    def tunnel(client):
        with suppress(OSError), client:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += client.recv(1)
            made.asked.append(head.decode())
            client.sendall(made.answer)
            if not made.answer.startswith(b"HTTP/1.1 200"):
                return
            host, port = head.split()[1].decode().rsplit(":", 1)
            with socket.create_connection((host, int(port))) as there:
                threading.Thread(target=pipe, args=(client, there), daemon=True).start()
                pipe(there, client)

    def pipe(one, other):
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    yield made
    listener.close()


def test_the_named_proxy_is_used_for_checked_addresses_alone(server, proxy, policy, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # the environment's, which nobody asks
    monkeypatch.setenv("WEB_PROXY", f"http://u%40x:secret-of-proxy@127.0.0.1:{proxy.port}")
    assert web_fetch(f"{server.at}/green")["status"] == 200
    (head,) = proxy.asked
    assert head.startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n")
    assert base64.b64encode(b"u@x:secret-of-proxy").decode() in head
    assert "secret-of-proxy" not in str(Fake.seen)
    with pytest.raises(NotFetched, match="http:address"):
        web_fetch(f"http://10.0.0.1:{server.port}/")
    assert len(proxy.asked) == 1
    proxy.answer = b"HTTP/1.1 407 No\r\n\r\n"
    with pytest.raises(NotFetched, match=r"http:proxy.*407") as refused:
        web_fetch(f"{server.at}/green")
    assert "secret-of-proxy" not in str(refused.value)
    proxy.answer = b"x" * 20_000
    with pytest.raises(NotFetched, match="http:proxy"):
        web_fetch(f"{server.at}/green")


def test_an_address_that_is_no_proxy_is_refused_without_being_quoted():
    for address in ("socks5://u:hunter2@h:1", "http://u:hunter2@h", "hunter2", "http://u:hunter2@h:x"):
        with pytest.raises(ValueError, match="no http://host:port") as refused:
            Proxy.of(address)
        assert "hunter2" not in str(refused.value)
