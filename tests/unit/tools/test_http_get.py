"""The tool http_get: what a model gets back, what it may not, and that it ends within its three seconds."""

import json

import pytest
from django.core.exceptions import ImproperlyConfigured

from tests.support.network.lab import Lab, answer, need_a_lab, redirect
from tests.support.sources import read_settings
from tests.support.tool_calls import ask, run
from tools import registry
from tools.agent_tools import http_get
from tools.models import CallStatus
from tools.readable import readable
from tools.sandbox.forkserver import PASSED_ON

# --- through the gate --------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
class TestThroughTheGate:
    def test_nobody_may_use_it_at_first(self, tool_settings):
        call = ask("http_get", url="http://93.184.216.34/")
        assert (call.status, call.rule) == (CallStatus.REJECTED, "not_enabled")

    def test_enabled_it_needs_its_permission(self, tool_settings):
        tool_settings("http_get")
        call = ask("http_get", url="http://93.184.216.34/")
        assert (call.status, call.rule) == (CallStatus.REJECTED, "permission:NET_HTTP")

    def test_a_refusal_is_told_to_the_model_with_its_rule(self, tool_settings):
        tool_settings("http_get", grants=["NET_HTTP"])
        call = run(ask("http_get", url="http://169.254.169.254/latest/meta-data/"))
        assert (call.status, call.rule) == (CallStatus.FAILED, "raised")
        assert call.result.startswith("FAILED: NotFetched: http:address: http://169.254.169.254/latest/meta-data/: ")

    def test_what_is_no_url_is_told_too(self, tool_settings):
        tool_settings("http_get", grants=["NET_HTTP"])
        call = run(ask("http_get", url="the weather in Berlin"))
        assert "http:scheme" in call.result
        assert "http:header" in run(ask("http_get", url="http://x.test/", headers={"Host": "y"})).result


@pytest.mark.shapeless(reason="the schema is of the function alone")
def test_the_model_is_told_how_to_use_it():
    known = registry.get("http_get")
    assert (known.permissions, known.effects, known.timeout) == (("NET_HTTP",), "read", 3)
    assert known.schema["required"] == ["url"]
    assert set(known.schema["properties"]) == {"url", "headers", "readable"}


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.shapeless(reason="it reads the environment")
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("HTTP_ALLOWED_PRIVATE_CIDRS", "10.0.0.0/8, intranet", "'intranet' is no network"),
        ("HTTP_ALLOWED_PRIVATE_CIDRS", "10.0.0.1/8", "has host bits set"),
        ("HTTP_ALLOWED_PRIVATE_CIDRS", "0.0.0.0/0", "is not in a private network"),
        ("HTTP_ALLOWED_PRIVATE_CIDRS", "169.254.169.254/32", "is never opened"),
        ("HTTP_ALLOWED_PORTS", "80, http", "'http' is no port"),
        ("HTTP_ALLOWED_PORTS", "0", "'0' is no port"),
        ("HTTP_ALLOWED_PORTS", ",", "it names no port"),
    ],
)
def test_a_setting_that_makes_no_sense_keeps_the_host_from_starting(monkeypatch, name, value, says):
    monkeypatch.setenv(name, value)
    with pytest.raises(ImproperlyConfigured) as refused:
        read_settings()
    assert str(refused.value).startswith(f"{name} is not valid: ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.shapeless(reason="it reads the environment")
def test_the_settings_reach_the_tools_process(monkeypatch):
    monkeypatch.setenv("HTTP_ALLOWED_PRIVATE_CIDRS", "10.0.0.0/8, fd12::/16")
    monkeypatch.setenv("HTTP_ALLOWED_PORTS", "443,8443")
    read = read_settings()
    assert read["HTTP_ALLOWED_PRIVATE_CIDRS"] == ["10.0.0.0/8", "fd12::/16"]
    assert read["HTTP_ALLOWED_PORTS"] == ["443", "8443"]
    assert {"HTTP_ALLOWED_PRIVATE_CIDRS", "HTTP_ALLOWED_PORTS"} <= set(PASSED_ON)


# --- in a tool's process, in the lab -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    need_a_lab()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HTTP_ALLOWED_PRIVATE_CIDRS", "10.20.0.0/16")
        environment.setenv("HTTP_ALLOWED_PORTS", "80,8080")
        lab = Lab(tmp_path_factory.mktemp("lab"))
    lab.name("public.test", a=["93.184.216.34"])
    yield lab
    lab.close()


def get(lab: Lab, url: str, **arguments) -> dict:
    """What the model sees of a call that succeeds."""
    told = lab.tool(url=url, **arguments)
    assert told["ok"], told
    return json.loads(told["text"])


in_the_lab = pytest.mark.shapeless(reason="the tool's process knows no database")


@in_the_lab
def test_a_page_comes_with_its_status_type_and_last_url(lab):
    lab.page("http://public.test/old", redirect("/new"))
    lab.page("http://public.test/new", answer("not here", status=404, content_type="text/plain; charset=utf-8"))
    assert get(lab, "http://public.test/old") == {
        "status": 404,
        "contentType": "text/plain; charset=utf-8",
        "url": "http://public.test/new",
        "text": "not here",
    }


@in_the_lab
def test_headers_are_sent(lab):
    lab.requests()
    get(lab, "http://public.test/", headers={"Accept-Language": "de"})
    assert "Accept-Language: de" in lab.requests()[0]


@in_the_lab
def test_a_body_that_is_no_text_is_not_shown(lab):
    image = answer(b"\x89PNG\r\n\x1a\n\x00\x00", content_type="image/png")
    assert get(lab, lab.page("http://public.test/image", image))["text"] == "[not text: 10 bytes of image/png]"
    endless = lab.page("http://public.test/bytes", b"HTTP/1.1 200 OK\r\n\r\n", bytes(65536), endless=True)
    told = get(lab, endless)
    assert (told["text"], told["cut"]) == ("[not text: more than 262144 bytes of an unnamed type]", True)


@in_the_lab
@pytest.mark.parametrize("letter", ["x", "ü", "\n", '"', "\x7f", "𝄞"])
def test_a_long_text_is_cut_so_that_the_result_is_whole(lab, letter):
    url = lab.page("http://public.test/long", answer(letter * 150_000, content_type="text/plain"))
    told = get(lab, url)
    assert told["cut"]
    assert len(told["text"]) > 5000
    assert set(told["text"]) <= {letter, "�"}


@in_the_lab
def test_what_the_settings_open_is_reached_and_metadata_is_not(lab):
    lab.connections()
    assert get(lab, "http://10.20.0.1:8080/")["status"] == 200
    assert lab.connections() == ["10.20.0.1 8080"]
    for url, rule in (
        ("http://10.21.0.1/", "http:address"),
        ("http://169.254.169.254/", "http:address"),
        ("https://public.test/", "http:port"),
    ):
        assert lab.tool(url=url)["text"].startswith(f"NotFetched: {rule}: {url}: ")
    assert lab.connections() == []


@in_the_lab
@pytest.mark.parametrize("readable", [False, True])
def test_what_is_slow_is_told_by_the_tool_itself_before_it_is_stopped(lab, readable):
    url = lab.page("http://public.test/slow", b"HTTP/1.1 200 OK\r\n\r\n", b".", pause=0.2, endless=True)
    told = lab.tool(url=url, readable=readable)
    assert told["rule"] == "raised"
    assert told["text"].startswith("NotFetched: http:time: ")


ARTICLE = """<!doctype html><html><head><title>On hosts</title><style>p {color: red}</style></head><body>
<script>alert("no")</script><nav><ul><li>Home</li><li>About</li></ul></nav>
<h1>On hosts</h1><p>They are <b>kind</b>, <a href="/x">mostly</a>.</p><!-- not this --><p>Grüße &amp; more</p></body>"""


@in_the_lab
def test_a_page_is_made_readable_when_asked(lab):
    url = lab.page("http://public.test/article", answer(ARTICLE, content_type="text/html; charset=utf-8"))
    assert get(lab, url)["text"] == ARTICLE
    lines = [line for line in get(lab, url, readable=True)["text"].split("\n") if line]
    assert lines == ["On hosts", "Home", "About", "On hosts", "They are kind, mostly.", "Grüße & more"]


@in_the_lab
def test_a_page_of_very_many_tags_is_cut(lab):
    url = lab.page("http://public.test/tags", answer("seen" + "<br>" * 20_000 + "not seen", content_type="text/html"))
    told = get(lab, url, readable=True)
    assert (told.get("cut"), told["text"]) == (True, "seen")


@in_the_lab
def test_what_is_no_html_stays_as_it_is(lab):
    url = lab.page("http://public.test/json", answer('{"a": "<b>"}', content_type="application/json"))
    assert get(lab, url, readable=True)["text"] == '{"a": "<b>"}'


SIZE = 512 * 1024
HOSTILE = {
    "nested": "<div>" * (SIZE // 5),
    "nested text": "<blockquote>x" * (SIZE // 13),
    "lists": "<ul><li>x" * (SIZE // 9),
    "tables": "<table><tr><td>" * (SIZE // 15),
    "wide cells": "<table>" + "<tr><td colspan=1000000 rowspan=1000000>x" * (SIZE // 41),
    "attributes": "<p " + " ".join(f"a{number}=1" for number in range(SIZE // 9)) + ">x",
    "formatting": "<p><font>" * (SIZE // 9),
    "entities": "&amp;" * (SIZE // 5),
    "angles": "<" * SIZE,
    "comments": "<!--" * (SIZE // 4),
    "control": "<p>\x01\x0b</p>" * (SIZE // 9),
    "blanks": " " * SIZE,
}


@in_the_lab
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_html_ends_in_time_and_in_no_error(lab, kind):
    url = lab.page("http://public.test/hostile", answer(HOSTILE[kind], content_type="text/html"))
    assert get(lab, url, readable=True)["status"] == 200


@in_the_lab
def test_html_that_takes_too_long_is_given_up():
    assert readable("<p " + " ".join(f"a{number}=1" for number in range(15_000)) + ">x", seconds=0.05) is None
    assert readable("<p>one<p>two", seconds=20) == "one\n\ntwo"


@in_the_lab
def test_called_as_a_function_it_does_the_same():
    with pytest.raises(Exception, match="http:address") as refused:
        http_get("http://127.0.0.1/")
    assert type(refused.value).__name__ == "NotFetched"
