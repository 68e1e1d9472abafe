"""/metrics: what Prometheus reads, who may read it, and that what docs/monitoring asks for is there."""

import json
import re

import pytest
import yaml
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from conversations.models import Worker
from nanohost.console.models import Total
from tests.scripts import script
from tests.source import ROOT
from tests.work import advance, settle

MONITORING = ROOT / "docs" / "monitoring"


def scrape(**headers):
    """Every sample, by its name and labels, counted anew."""
    Total.objects.update(counted_at=None)
    answer = Client(headers=headers).get("/metrics")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.content.decode()))
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


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


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("address", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("::1", {}, 200),
        ("192.0.2.1", {}, 403),
        ("127.0.0.1", {"X-Forwarded-For": "127.0.0.1"}, 403),
        ("127.0.0.1", {"Forwarded": "for=127.0.0.1"}, 403),
        ("192.0.2.1", {"X-Forwarded-For": "127.0.0.1"}, 403),
        ("192.0.2.1", {"Authorization": "Bearer scrape-0123456789"}, 200),
        ("192.0.2.1", {"Authorization": "Bearer scrape-012345678"}, 403),
        ("192.0.2.1", {"Authorization": "Basic scrape-0123456789"}, 403),
        ("192.0.2.1", {"Authorization": "Bearer "}, 403),
        ("192.0.2.1", {"Authorization": "Bearer \u00e9"}, 403),
    ],
)
def test_it_is_for_this_machine_and_for_whoever_knows_the_token(settings, address, headers, status):
    settings.METRICS_TOKEN = "scrape-0123456789"
    assert Client(headers=headers).get("/metrics", REMOTE_ADDR=address).status_code == status


@pytest.mark.django_db
def test_without_a_token_nobody_else_gets_in(settings):
    settings.METRICS_TOKEN = ""
    for authorization in ("Bearer", "Bearer ", "Bearer None"):
        client = Client(headers={"Authorization": authorization})
        assert client.get("/metrics", REMOTE_ADDR="192.0.2.1").status_code == 403


def test_a_running_host_tells_this_machine_and_nobody_behind_a_proxy(host):
    with host.client(key=None) as client:
        address = f"{host.address}/metrics"
        assert b"nanohost_turns_open" in client.get(address).content
        assert client.get(address, headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 403


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
