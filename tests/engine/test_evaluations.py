"""Sets of stored turns: replayed, graded, compared with the run before."""

import json

import pytest
from django.core.management import CommandError, call_command

from conversations.engine import inbox
from conversations.engine.replaying import grading
from conversations.models import Message, Replay, ReplayRun
from tests.support.openai_server import completion
from tests.support.scripts import script
from tests.support.working import settle
from tools.models import ToolCall

pytestmark = pytest.mark.django_db(transaction=True)


def evaluate(capsys, *arguments):
    """The report; and what the command complains of."""
    complaint = ""
    try:
        call_command("evaluate", *arguments)
    except CommandError as error:
        complaint = str(error)
    return json.loads(capsys.readouterr().out), complaint


def test_200_stored_turns_are_replayed_on_another_model_and_the_report_is_read(
    owner, say, tool_settings, capsys, tmp_path
):
    tool_settings("time")
    asks = script({"call": [{"name": "time", "arguments": {"timezone": "UTC"}}]}, {"say": "It is {results}"})
    turns = []
    for number in range(20):
        conversation = inbox.start_conversation(owner_id=owner.pk, metadata={})
        said = [asks if number < 2 and at == 0 else f"Words {number} {at}" for at in range(10)]
        turns += settle([say(words, conversation=conversation) for words in said])
    before = Message.objects.count(), ToolCall.objects.count()
    file = tmp_path / "results.jsonl"
    report, complaint = evaluate(
        *(capsys, "all", "--filter", "status=succeeded", "--model", "another", "--exact", "--min-passed", "1"),
        *("--export", str(file)),
    )
    assert not complaint
    assert (report["cases"], report["passed"], report["sameWords"], report["open"]) == (200, 200, 200, 0)
    assert report["replay"]["promptTokens"] == report["original"]["promptTokens"] > 0
    assert (Message.objects.count(), ToolCall.objects.count()) == before
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["turnId"] for line in lines} == {str(turn.pk) for turn in turns}
    assert {(line["model"], line["original"]["model"]) for line in lines} == {("another", turns[0].model)}
    assert sum(len(line["replay"]["calls"]) for line in lines) == 2
    assert Replay.objects.filter(run=ReplayRun.objects.get(), status="succeeded").count() == 200


def test_what_is_worse_than_in_the_run_before_breaks_a_bound(say, capsys, tmp_path, admin_client):
    first, second = settle([say("one"), say("two")])
    file = tmp_path / "cases.jsonl"
    cases = [{"turn": str(first.pk), "contain": ["one"]}, {"turn": str(second.pk), "expected": "other"}]
    file.write_text("\n".join(map(json.dumps, cases)))
    asked = (capsys, "set", "--cases", str(file))
    report, complaint = evaluate(*asked, "--no-worse", "--min-passed", "1")
    assert (report["passed"], report["before"], complaint) == (2, None, "")
    report, complaint = evaluate(*asked, "--exact", "--no-worse")
    assert report["worse"] == [str(second.pk)]
    assert "1 passed in the run before" in complaint
    report, complaint = evaluate(*asked, "--exact", "--contains", "nowhere", "--min-passed", "0.5")
    assert "0 of 2 passed" in complaint
    report, complaint = evaluate(*asked)
    assert set(report["better"]) == {str(first.pk), str(second.pk)}
    page = admin_client.get(f"/admin/conversations/replayrun/{report['runId']}/change/").content.decode()
    assert "2 better, 0 worse" in page
    assert str(first.pk) in page
    file.write_text('{"turn": 7}')
    with pytest.raises(CommandError, match="case 1"):
        call_command("evaluate", "set", "--cases", str(file))
    with pytest.raises(CommandError, match="no such turn"):
        call_command("evaluate", "set", "--filter", "status=failed")


def test_a_judge_is_a_model_with_its_prompt_kept_and_a_schema_is_held_against(say, model, capsys, tmp_path):
    model.answer(completion("A rose."))
    (turn,) = settle([say("Name a flower.")])
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "required": ["flower"]}')
    verdicts = {"PASS It is one.": True, "FAIL: no.": False, "I cannot say": False}
    for said, passed in verdicts.items():
        model.answer(completion('{"flower": "rose"}'), completion(said))
        report, _ = evaluate(
            *(capsys, "flowers", "--filter", "status=succeeded", "--schema", str(schema)),
            *("--judge", "judge-model", "--judge-prompt", "Is it a flower?"),
        )
        assert report["passed"] == passed, said
    asked = model.requests[-1].body
    assert asked["model"] == "judge-model"
    assert "Is it a flower?" in asked["messages"][0]["content"]
    assert json.loads(asked["messages"][1]["content"])["known"] == "A rose."
    assert ReplayRun.objects.latest("pk").graders[1]["prompt"] == "Is it a flower?"
    # What the judge has cost is paid as well.
    assert Replay.objects.filter(turn=turn).latest("pk").model_calls == 2
    graded = grading.grade({"kind": "schema", "schema": schema.read_text()}, "no JSON", {}, original="")
    assert not graded["passed"]
    schema.write_text('{"type": 7}')
    with pytest.raises(CommandError, match="schema"):
        call_command("evaluate", "set", "--filter", "status=succeeded", "--schema", str(schema))
