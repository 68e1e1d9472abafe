"""Getting started: from a host where nothing is set up to an answer, and to the lines for programs."""

import json
import re
from threading import Barrier

import pytest
from django.test import Client
from django.urls import reverse

from agent.models import Agent
from conversations.models import Conversation, Turn
from nanohost.accounts.models import ApiKey, AuditEntry
from nanohost.console.models import Dismissal
from tests.support.openai_server import OpenAIServer
from tests.support.threads import in_threads
from tests.support.working import settle
from tools.models import SettingChange, ToolSetting, sync_settings

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = reverse("first_run")
INDEX = reverse("admin:index")


def done(answer):
    assert answer.status_code == 302, answer.content.decode()
    return answer.url


def test_step_by_step_to_an_answer_and_a_key_for_programs(admin_client, client):
    sync_settings()
    wrong = admin_client.post(reverse("first_run_agent"), {"template": "assistant", "name": "no blanks"})
    assert (wrong.status_code, "valid “slug”" in wrong.content.decode()) == (400, True)
    at = done(admin_client.post(reverse("first_run_agent"), {"template": "assistant", "name": "anna", "model": "m-1"}))
    agent = Agent.objects.get(name="anna")
    assert (agent.model, agent.versions.get().made_by, "schedule" in agent.tools) == ("m-1", "admin", True)
    assert "Not allowed yet." in admin_client.get(at).content.decode()

    there, query = at.split("#")[0].split("?")
    chosen = {"agent": "anna", "tools": ["time", "schedule", "http_get"]}  # the last is not on its list
    at = done(admin_client.post(f"{reverse('first_run_tools')}?{query}", chosen))
    assert set(ToolSetting.objects.filter(enabled=True).values_list("name", flat=True)) == {"time", "schedule"}
    assert set(SettingChange.objects.values_list("tool_name", "changed_by")) >= {("schedule", "admin")}

    at = done(admin_client.post(f"{reverse('first_run_hello')}?{query}", {"agent": "anna", "hello": "Hello there!"}))
    turn = Turn.objects.get()
    assert (turn.owner.username, turn.conversation.agent.name) == ("admin", "anna")
    fragment = reverse("first_run_turn", args=[turn.pk])
    assert 'hx-trigger="load' in admin_client.get(fragment).content.decode()
    settle([turn])
    told = admin_client.get(fragment).content.decode()
    assert ("It has answered." in told, "hx-trigger" in told) == (True, False)
    assert "It has answered." in admin_client.get(at).content.decode()
    assert "It has answered." not in admin_client.get(f"{there}?agent=anna&turn={Conversation.objects.get().pk}")

    shown = admin_client.post(f"{reverse('first_run_key')}?{query}", {"agent": "anna"})
    keys = set(re.findall(r"nh_[\w-]+", shown.content.decode()))
    (text,) = keys
    assert shown.content.decode().count(text) == 2
    assert "no-store" in shown["Cache-Control"]
    key = ApiKey.objects.recognise(text)
    assert (key.owner.username, key.agent_names, key.scopes) == ("admin", ["anna"], ["chat", "read"])
    listed = client.get("/v1/models", headers={"Authorization": f"Bearer {text}"}).json()
    assert [each["id"] for each in listed["data"]] == ["anna"]
    did = set(AuditEntry.objects.filter(actor="user admin").values_list("action", flat=True))
    assert did >= {"agent.made", "tool_setting.changed", "key.made"}


def test_an_agent_that_is_made_by_two_clicks_at_once_is_one(admin_user):
    def made(name):
        admin = Client()
        admin.force_login(admin_user)
        together = Barrier(2)

        def deed():
            together.wait(30)
            return admin.post(reverse("first_run_agent"), {"template": "assistant", "name": name}).status_code

        return in_threads([deed, deed])

    assert {tuple(sorted(made(f"twin-{number}"))) for number in range(20)} == {(302, 400)}
    assert Agent.objects.filter(name__startswith="twin-").count() == 20


def test_a_model_is_tried_with_the_host_s_key_which_is_shown_nowhere(admin_client, settings):
    ask = reverse("first_run_model")
    assert "The scripted model answers" in admin_client.post(ask, {"model": ""}).content.decode()
    server = OpenAIServer(key="sk-canary-0123456789").start()
    try:
        settings.LLM_PROVIDER, settings.LLM_BASE_URLS = "auto", {"deepseek": server.url}
        settings.DEEPSEEK_API_KEY = "sk-canary-0123456789"
        works = admin_client.post(ask, {"model": "deepseek-chat"}).content.decode()
        assert ("It works." in works, "deepseek: deepseek-chat answers" in works) == (True, True)
        assert server.requests[-1].body["max_tokens"] == 16
        settings.DEEPSEEK_API_KEY = "sk-wrong-0123456789"
        fails = admin_client.post(ask, {"model": "deepseek-chat"}).content.decode()
        assert ("It does not work." in fails, "llm_auth" in fails) == (True, True)
        nobody = admin_client.post(ask, {"model": "x", "provider": "groq"})
        assert (nobody.status_code, "set GROQ_API_KEY" in nobody.content.decode()) == (400, True)
        assert "sk-" not in works + fails
    finally:
        server.stop()
    checked = AuditEntry.objects.filter(action="provider.checked").order_by("id").values_list("object_id", "after")
    assert [(name, json.loads(after)["works"]) for name, after in checked] == [("deepseek", True), ("deepseek", False)]


def test_whoever_signs_in_first_is_led_to_it_until_something_is_set_up_or_it_is_closed(django_user_model):
    boss = django_user_model.objects.create_superuser("boss", password="right")
    django_user_model.objects.create_user("clerk", password="right", is_staff=True)

    def sign_in(name="boss", **to):
        visitor = Client()
        return visitor, done(visitor.post(reverse("admin:login"), {"username": name, "password": "right", **to}))

    visitor, at = sign_in()
    assert at == PAGE
    assert sign_in(next="/admin/queue/")[1] == "/admin/queue/"
    assert sign_in("clerk")[1] == INDEX
    assert 'id="first-run"' in visitor.get(INDEX).content.decode()
    assert done(visitor.post(reverse("first_run_dismiss"))) == INDEX
    assert 'id="first-run"' not in visitor.get(INDEX).content.decode()
    assert (sign_in()[1], visitor.get(PAGE).status_code) == (INDEX, 200)
    assert PAGE in visitor.get(reverse("settings")).content.decode()
    Dismissal.objects.all().delete()
    assert sign_in()[1] == PAGE
    Conversation.objects.create(owner=boss, agent=Agent.objects.get(name="default"), key="test:1")
    assert sign_in()[1] == INDEX
