"""Sets of stored turns: replayed, graded, compared with the run before."""

import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.utils import timezone

from conversations import turn_search
from conversations.engine import inbox, retention
from conversations.engine.replaying import grading, replay_sets, replays
from conversations.engine.replaying.frozen import Changes
from conversations.errors import CannotReplay
from conversations.feedback_models import Feedback, Rating
from conversations.models import Message, Replay, ReplayCase, ReplayRun, ReplaySet
from nanohost.accounts.models import AuditEntry
from nanohost.lib.erasing import Erased
from nanohost.lib.ids import new_id
from tests.support.openai_server import completion
from tests.support.replaying import run as work_on
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
    told = AuditEntry.objects.get(action="evaluation.exported")
    assert (told.object_name, json.loads(told.after)) == ("all", {"cases": 200})


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
    with pytest.raises(CommandError, match="Case 1"):
        call_command("evaluate", "set", "--cases", str(file))
    with pytest.raises(CommandError, match="No turn that has ended matches"):
        call_command("evaluate", "set", "--filter", "status=failed")
    file.write_text("")
    with pytest.raises(CommandError, match="there are no cases"):
        call_command("evaluate", "set", "--cases", str(file))


def test_a_judge_is_a_model_with_its_prompt_kept_and_a_schema_is_held_against(say, model, capsys, tmp_path):
    model.answer(completion("A rose."))
    (turn,) = settle([say("Name a flower.")])
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "required": ["flower"]}')
    verdicts = {"PASS It is one.": True, "**Pass**\n\nIt is one.": True, "FAIL: no.": False, "I cannot say": False}
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


def set_of(*turns, name="set", **options):
    return replay_sets.create(name, cases=[(turn, None) for turn in turns], **options)


def ids_of(run):
    return list(run.replays.order_by("pk").values_list("pk", flat=True))


def test_a_run_of_a_stored_set_has_its_report_stored_once_all_of_it_has_ended(say, capsys):
    turns = settle([say("one"), say("two")])
    of_set = set_of(*turns, graders=[{"kind": "exact"}])
    run = replay_sets.start(of_set, Changes(model="other"), by="anna")
    first, last = ids_of(run)
    work_on(first)
    run.refresh_from_db()
    assert (run.report, run.ended_at, grading.told(run)["open"]) == (None, None, 1)
    work_on(last)
    run.refresh_from_db()
    assert (run.report["cases"], run.report["passed"], run.report["open"]) == (2, 2, 0)
    assert run.ended_at is not None
    # What is stored stays, though its replays go.
    Replay.objects.all().delete()
    assert not grading.settle(run.pk)
    assert grading.told(ReplayRun.objects.get(pk=run.pk)) == run.report
    report, complaint = evaluate(capsys, "set", "--min-passed", "1")
    assert (report["cases"], report["before"], complaint) == (2, str(run.pk), "")
    # Its own bound is held, unless another is named.
    ReplaySet.objects.update(graders=[{"kind": "contains", "texts": ["one"]}])
    assert evaluate(capsys, "set")[1] == "1 of 2 passed; 1 of them have to."
    assert evaluate(capsys, "set", "--min-passed", "0.5")[1] == ""
    ReplaySet.objects.update(min_passed=0.5)
    assert evaluate(capsys, "set")[1] == ""
    assert evaluate(capsys, "set", "--min-passed", "1")[1] == "1 of 2 passed; 1 of them have to."
    with pytest.raises(CommandError, match="no set named"):
        call_command("evaluate", "unknown")
    with pytest.raises(CommandError, match="graders of its own"):
        call_command("evaluate", "set", "--exact")


def test_a_report_that_no_worker_lived_to_store_is_stored_later_and_no_open_one_is(say):
    (turn,) = settle([say("one")])
    of_set = set_of(turn)
    ended, opened = (replay_sets.start(of_set, Changes(), by="anna") for _ in range(2))
    (replay_id,) = ids_of(ended)
    hold = replays.claim(replay_id, worker="killed")
    replays.fail(hold, code="turn_error", detail="")
    assert ReplayRun.objects.get(pk=ended.pk).report is None
    assert (grading.settle_all(), grading.settle_all()) == (1, 0)
    assert ReplayRun.objects.get(pk=ended.pk).report["failed"] == 1
    assert ReplayRun.objects.get(pk=opened.pk).report is None
    # A run that is under way is none to compare with.
    third = replay_sets.start(of_set, Changes(), by="anna")
    assert third.before() == ended


def test_a_run_ends_once_it_has_used_its_tokens(say, model):
    turns = settle([say(words) for words in ("one", "two", "three")])
    asked = len(model.requests)
    model.answer(*(completion("Yes.", usage={"prompt_tokens": 60, "completion_tokens": 5}) for _ in turns))
    run = replay_sets.start(set_of(*turns, max_tokens=100), Changes(model="m"), by="anna")
    work_on(*ids_of(run))
    told = ReplayRun.objects.get().report
    assert (told["passed"], told["failed"]) == (2, 1)
    assert len(model.requests) - asked == 2
    refused = Replay.objects.get(status="failed")
    assert (refused.error_code, refused.error_detail) == (
        "run_budget",
        "Its run has used the 100 tokens that it may use.",
    )


def test_who_waits_for_a_set_has_only_the_latest_turns_looked_at(say, monkeypatch):
    monkeypatch.setattr(turn_search, "STRETCH", 2)
    first, *_ = [*settle([say("roses")]), *(settle([say("weeds")])[0] for _ in range(4))]
    Feedback.objects.create(turn=first, by="anna", rating=Rating.DOWN)
    bad = {"feedback": Rating.DOWN}
    assert replay_sets.found(bad, limit=10, stretches=2) == []
    assert replay_sets.found(bad, limit=10, stretches=3) == replay_sets.found(bad, limit=10) == [(first, None)]


def test_what_makes_no_set_is_refused_and_nothing_of_it_is_stored(say, monkeypatch):
    (turn,) = settle([say("one")])
    open_turn = say("two")
    of_set = set_of(turn)
    for wrong in (
        *({"kind": "nice"}, "exact", {"kind": "judge"}, {"kind": "judge", "model": 7}, {"kind": "schema"}),
        *({"kind": "contains", "texts": "one"}, {"kind": "exact", "words": "one"}, {"kind": "schema", "schema": "{"}),
    ):
        with pytest.raises(CannotReplay, match="grader"):
            set_of(turn, name="other", graders=[wrong])
    with pytest.raises(CannotReplay, match="a list of 10 at most"):
        set_of(turn, name="other", graders={"kind": "exact"})
    with pytest.raises(CannotReplay, match="already"):
        set_of(turn)
    with pytest.raises(CannotReplay, match="has not ended"):
        set_of(turn, open_turn, name="other")
    with pytest.raises(CannotReplay, match="no cases"):
        replay_sets.start(set_of(name="empty"), Changes(), by="anna")
    line = json.dumps({"turn": str(turn.pk)})
    assert replay_sets.read(f"{line}\n\n") == [(turn, {"contains": []})]
    with pytest.raises(CannotReplay, match="Case 1: there is no turn"):
        replay_sets.read(json.dumps({"turn": str(new_id())}))
    for wrong in ("7", "{", "[" * 100_000, '{"turn": "x"}', '{"turn": 1}', line[:-1] + ', "contain": "x"}'):
        with pytest.raises(CannotReplay, match="Case 2"):
            replay_sets.read(f"{line}\n{wrong}")
    monkeypatch.setattr(grading, "MAX_CASES", 1)
    (another,) = settle([open_turn])
    with pytest.raises(CannotReplay, match="1 are allowed"):
        replay_sets.add(of_set, [(another, None)])
    assert replay_sets.add(of_set, [(turn, {"words": "other"})]) == 1
    assert [(case.turn, case.expected) for case in ReplayCase.objects.all()] == [(turn, {"words": "other"})]


def test_cases_go_with_what_was_said_in_their_turns(say):
    (turn,) = settle([say("one")])
    set_of(turn)
    of_all = {"before": timezone.now() + timedelta(hours=1), "rows": 100}
    with transaction.atomic():
        retention.erase_messages(turn.conversation_id, **of_all, erased=Erased())
    assert not ReplayCase.objects.exists()
