"""/metrics: what Prometheus reads, who may read it, and that what docs/monitoring asks for is there."""

import json
import re

import pytest
import yaml
from django.test import Client
from django.utils import timezone
from prometheus_client.openmetrics import parser as openmetrics

from conversations.models import Worker
from nanohost.console.models import Total
from nanohost.lib import traces
from tests import shapes
from tests.support.scraping import TOKEN, scrape
from tests.support.scripts import script
from tests.support.sources import ROOT
from tests.support.working import advance, settle

MONITORING = ROOT / "docs" / "monitoring"


@pytest.mark.django_db(transaction=True)
def test_after_real_turns_it_tells_of_them(say, tool_settings):
    tool_settings("time")
    turns = [
        say(script({"call": [{"name": "time"}, {"name": "no_such_tool"}]}, {"say": "So."})),
        say("hello"),
        say(script({"fail": "auth"})),
    ]
    settle(turns)
    say("waits")
    told = scrape()
    model = ("model", turns[0].model)
    assert told["nanohost_turns_total", ("outcome", "succeeded")] == 2
    assert told["nanohost_turns_total", ("outcome", "failed")] == 1
    assert told["nanohost_turns_open", ("status", "queued")] == 1
    assert told["nanohost_tool_calls_total", ("status", "SUCCESS")] == 1
    assert told["nanohost_tool_calls_total", ("status", "REJECTED")] == 1
    assert told["nanohost_tokens_total", ("kind", "prompt"), model] == sum(turn.prompt_tokens for turn in settle(turns))
    assert (
        told["nanohost_turn_seconds_count", model] == told["nanohost_turn_seconds_bucket", ("le", "+Inf"), model] == 2
    )
    assert 0 < told["nanohost_turn_seconds_sum", model] < 60
    assert told["nanohost_model_call_seconds_count", model] == 3
    assert 0 < told["nanohost_model_call_seconds_sum", model] < told["nanohost_turn_seconds_sum", model]
    assert 0 < told["nanohost_queue_oldest_seconds",] < 60


@pytest.mark.django_db(transaction=True)
def test_counters_never_fall_and_gauges_do(say):
    turn = say("hello")
    advance(turn)
    before = scrape()
    turn.conversation.delete()
    after = scrape()
    counters = [key for key in before if key[0].endswith(("_total", "_bucket", "_count", "_sum"))]
    assert len(counters) > 20
    assert all(after[key] >= before[key] for key in counters)


@pytest.mark.django_db
def test_an_empty_host_tells_zeros_and_its_workers():
    told = scrape()
    assert told["nanohost_turns_total", ("outcome", "failed")] == 0
    assert told["nanohost_workers_alive", ("queue", "turns")] == 0
    Worker.objects.create(name="a", version="0", turns_most=1, heartbeat_at=timezone.now(), queues="turns")
    assert scrape()["nanohost_workers_alive", ("queue", "turns")] == 1


# --- who may read it ---------------------------------------------------------------------------------------------


PROXIES = [
    *("X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "Forwarded", "X-Real-IP", "Via"),
    *("CF-Connecting-IP", "CF-Ray", "True-Client-IP", "X-Client-IP", "X-Cluster-Client-IP", "Fastly-Client-IP"),
    *("X-Original-Forwarded-For", "X-Envoy-External-Address", "X-Amzn-Trace-Id", "X-Azure-ClientIP", "CDN-Loop"),
    *("Client-IP", "WL-Proxy-Client-IP", "Proxy-Connection", "X-Proxy-Of-Tomorrow"),
]
PROMETHEUS = {
    "User-Agent": "Prometheus/3.1.0",
    "Accept": "text/plain",
    "Accept-Encoding": "gzip",
    "X-Prometheus-Scrape-Timeout-Seconds": "10",
}
BROWSER = {"Sec-Fetch-Mode": "navigate", "Upgrade-Insecure-Requests": "1", "Cookie": "a=b", "Referer": "x"}


def asked(address="127.0.0.1", host="localhost:8000", **headers):
    return Client(headers=headers).get("/metrics", REMOTE_ADDR=address, HTTP_HOST=host)


@pytest.fixture
def plain(db, settings):
    """Neither production nor proxies, whatever the tests' shape."""
    settings.PRODUCTION, settings.TRUSTED_PROXIES, settings.METRICS_TOKEN = False, 0, TOKEN
    settings.ALLOWED_HOSTS = [*settings.ALLOWED_HOSTS, "chat.example.org"]
    return settings


@pytest.mark.parametrize(
    ("address", "host", "headers", "status"),
    [
        ("127.0.0.1", "localhost:8000", {}, 200),
        ("127.0.0.1", "127.0.0.1", PROMETHEUS, 200),
        ("127.0.0.1", "LOCALHOST", BROWSER, 200),
        ("::1", "[::1]:8000", {}, 200),
        ("127.0.0.1", "chat.example.org", {}, 403),
        ("127.0.0.1", "chat.example.org:8000", {}, 403),
        ("192.0.2.1", "localhost", {}, 403),
        ("192.0.2.1", "localhost", {"X-Forwarded-For": "127.0.0.1"}, 403),
        ("192.0.2.1", "chat.example.org", {"Authorization": f"Bearer {TOKEN}"}, 200),
        ("127.0.0.1", "chat.example.org", {"Authorization": f"Bearer {TOKEN}", "Via": "1.1 proxy"}, 200),
        ("192.0.2.1", "localhost", {"Authorization": f"Bearer {TOKEN[:-1]}"}, 403),
        ("192.0.2.1", "localhost", {"Authorization": f"Basic {TOKEN}"}, 403),
        ("192.0.2.1", "localhost", {"Authorization": "Bearer "}, 403),
        ("192.0.2.1", "localhost", {"Authorization": "Bearer \u00e9"}, 403),
    ],
)
def test_it_is_for_this_machine_and_for_whoever_knows_the_token(plain, address, host, headers, status):
    assert asked(address, host, **headers).status_code == status


@pytest.mark.parametrize("header", PROXIES)
def test_what_a_proxy_has_passed_on_is_not_of_this_machine(plain, header):
    answer = asked(**{header: "127.0.0.1"})
    assert (answer.status_code, b"with no proxy between" in answer.content) == (403, True)


@pytest.mark.parametrize("setting", [{"PRODUCTION": True}, {"TRUSTED_PROXIES": 1}], ids=str)
def test_in_production_and_behind_proxies_a_token_is_needed(plain, setting):
    """Not every proxy adds a header: nginx, told nothing else, adds none."""
    for name, value in setting.items():
        setattr(plain, name, value)
    answer = asked()
    assert answer.status_code == 403
    assert answer.content.decode() == (
        "In production, and behind proxies, the metrics are for clients that send METRICS_TOKEN as a bearer token.\n"
    )
    plain.METRICS_TOKEN = ""
    assert b"none is set: set one, and restart." in asked().content
    plain.METRICS_TOKEN = TOKEN
    assert asked(Authorization=f"Bearer {TOKEN}").status_code == 200


def test_without_a_token_nobody_else_gets_in(plain):
    plain.METRICS_TOKEN = ""
    for authorization in ("Bearer", "Bearer ", "Bearer None"):
        assert asked("192.0.2.1", Authorization=authorization).status_code == 403


def test_a_running_host_tells_this_machine_and_nobody_behind_a_proxy(host):
    with host.client(key=None) as client:
        address = f"{host.address}/metrics"
        answer = client.get(address)
        assert (b"nanohost_turns_open" in answer.content) is (shapes.shape() == shapes.EMBEDDED)
        for header in ("X-Forwarded-For", "X-Real-IP", "Via", "CF-Connecting-IP", "X_Forwarded_For"):
            assert client.get(address, headers={header: "127.0.0.1"}).status_code == 403, header


# --- docs/monitoring ---------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_the_dashboard_and_the_alarms_ask_for_nothing_that_is_not_told(say):
    advance(say("hello"))
    told = {key[0] for key in scrape()}
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for rule in alarms()]
    named = {name for expression in asked for name in re.findall(r"nanohost_\w+", expression)}
    assert len(named) > 6
    assert named <= told
    labels = {label for key in scrape() for label, _ in key[1:]}
    used = {label for expression in asked for label in re.findall(r"(\w+)(?:=~?|!=)\"", expression)} - {"job"}
    assert used
    assert used <= labels


def alarms():
    return [
        rule for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"] for rule in group["rules"]
    ]


def test_each_alarm_is_explained():
    explained = (ROOT / "docs" / "operations.md").read_text()
    names = [rule["alert"] for rule in alarms()]
    assert re.findall(r"^\| `(Nanohost\w+)` \|", explained, re.MULTILINE) == names
    assert all(rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"] for rule in alarms())


@pytest.mark.django_db(transaction=True)
def test_asked_for_openmetrics_it_tells_a_recent_trace_of_each_bucket(say, settings, monkeypatch):
    settings.METRICS_TOKEN = TOKEN
    monkeypatch.setattr(traces, "is_on", True)
    (turn,) = settle([say("Hello")])
    Total.objects.update(counted_at=None)
    asks = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/openmetrics-text; version=1.0.0, */*;q=0.1"}
    answer = Client(headers=asks).get("/metrics")
    assert answer["Content-Type"].startswith("application/openmetrics-text")
    families = list(openmetrics.text_string_to_metric_families(answer.content.decode()))
    told = [sample.exemplar for family in families for sample in family.samples if sample.exemplar]
    assert [each.labels for each in told] == [{"trace_id": turn.traceparent[3:35]}]
