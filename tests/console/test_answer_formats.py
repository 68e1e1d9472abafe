"""The form of answers in the console: an agent's schema, and what became of answers that did not fit it."""

import json

import pytest
from django.urls import reverse

from agent.models import Agent
from tests.support.openai_server import completion
from tests.support.working import settle

pytestmark = pytest.mark.django_db(transaction=True)

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORM = json.dumps({"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}})


def change(client, agent, **fields):
    form = client.get(reverse("admin:agent_agent_change", args=[agent.pk])).context["adminform"].form
    values = {name: form[name].value() for name in form.fields}
    values = {name: value for name, value in values.items() if value not in (None, False)}
    values["approvals"] = json.dumps(agent.approvals)
    values["fallback_models"] = "\n".join(agent.fallback_models)
    return client.post(reverse("admin:agent_agent_change", args=[agent.pk]), values | fields)


def test_a_schema_is_given_to_an_agent_and_shown(admin_client, agent):
    text = json.dumps(SCHEMA, indent=2)
    assert change(admin_client, agent, answer_schema=text).status_code == 302
    agent.refresh_from_db()
    assert json.loads(agent.answer_schema) == SCHEMA
    assert agent.versions.first().changed == "answer_schema"
    page = admin_client.get(reverse("admin:agent_agent_whole", args=[agent.pk])).content.decode()
    assert "&quot;city&quot;" in page


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "schema: this is not JSON"),
        ("[]", "schema: an object is needed"),
        ('{"type": "strin"}', "schema.type: this is not a JSON Schema"),
        ('{"$ref": "https://example.org"}', "schema.$ref: it has to point into this schema"),
        ('{"pattern": "(?=a)"}', "look-around"),
        ("[" * 40_000, "nested too deeply"),
    ],
)
def test_what_is_none_is_refused_with_what_to_change(admin_client, agent, text, words):
    answer = change(admin_client, agent, answer_schema=text)
    assert answer.status_code == 200
    assert words in "".join(answer.context["adminform"].form.errors["answer_schema"])
    assert Agent.objects.get(pk=agent.pk).answer_schema == ""


def test_both_answers_are_shown_with_what_was_wrong(admin_client, model, say):
    invalid = "<b>It is cold.</b>"
    model.answer(completion(invalid), completion('{"city": 7}'))
    (turn,) = settle([say("How is Oslo?", response_format=FORM)])
    address = reverse("admin:conversations_turn_sent", args=[turn.pk])
    first = admin_client.get(f"{address}?call=1").content.decode()
    assert "It is no JSON" in first
    assert "&lt;b&gt;It is cold.&lt;/b&gt;" in first
    assert "the format of its answer was sent to its provider" in first
    assert "byte by byte" in first
    assert "&quot;response_format&quot;" in first
    second = admin_client.get(f"{address}?call=2").content.decode()
    assert "city: expected string" in second
    assert "requested once more" in second
    assert "byte by byte" in second
    page = admin_client.get(reverse("admin:conversations_turn_change", args=[turn.pk])).content.decode()
    assert "city: expected string" in page
