"""kill -9 where people answer, and where a platform is listened to: nothing is lost, nothing counts twice, and a
platform has one connection."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from conversations.channel_models import ChannelEvent, Listener
from conversations.models import Message, Turn
from conversations.question_models import Question, QuestionState
from conversations.statuses import TurnStatus
from tests.faults.answering import POINTS, event_id
from tests.support.chat_platforms import SECRETS, DiscordServer
from tests.support.platforms import WebhookProgram
from tests.support.scripts import script
from tests.support.wait import wait_until
from tests.support.working import advance, run_call, settle
from tools.models import CallStatus, ToolCall

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.faults, pytest.mark.timeout(900)]

ASKS = {"call": [{"name": "ask", "arguments": {"question": "Which?", "options": ["Red", "Blue"]}}]}


@pytest.fixture
def dying() -> Iterator[subprocess.Popen[str]]:
    """Where hosts die, on this test's database."""
    arguments = [sys.executable, "-m", "tests.faults.answering", str(connection.settings_dict["NAME"])]
    running = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield running
    assert running.stdin
    running.stdin.close()
    assert running.wait(timeout=60) == 0


def test_an_answer_by_which_a_host_dies_is_taken_once(dying, settings, owner, tool_settings):
    tool_settings("ask")
    program, deaths = WebhookProgram(settings), 0
    try:
        program.channel(owner)
        for number, point in enumerate(POINTS):
            program.tell(script(ASKS, {"say": "Done."}), event_id=f"asks {number}")
            turn = Turn.objects.order_by("-number")[0]
            advance(turn)
            call = ToolCall.objects.get(turn_id=turn.pk)
            run_call(call)
            question = Question.objects.get(state=QuestionState.PENDING)
            dying.stdin.write(f"{question.pk} {point}\n")
            dying.stdin.flush()
            deaths += int(dying.stdout.readline()) == -signal.SIGKILL
            # The platform has heard nothing, and tells of it again.
            for _ in range(2):
                assert program.tell("Blue", event_id=event_id(question.pk)).status_code == 202
            question.refresh_from_db()
            call.refresh_from_db()
            assert (question.state, question.answer) == (QuestionState.ANSWERED, "Blue"), point
            assert (call.status, json.loads(call.result)["answer"]) == (CallStatus.SUCCESS, "Blue"), point
            settle([turn])
            turn.refresh_from_db()
            assert turn.status == TurnStatus.SUCCEEDED, point
            assert ChannelEvent.objects.filter(external_id=event_id(question.pk)).count() == 1, point
            # The answer is no message besides.
            assert Message.objects.filter(role="user").count() == Turn.objects.count() == number + 1, point
    finally:
        program.close()
    assert deaths > 3


class Workers:
    """Processes that listen, by their names."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> None:
        reaches = {"HTTP_ALLOWED_PRIVATE_CIDRS": "127.0.0.0/8", "TURN_LEASE_SECONDS": "3"}
        reaches["HTTP_ALLOWED_PORTS"] = ",".join(self._settings.HTTP_ALLOWED_PORTS)
        arguments = [sys.executable, "-m", "tests.faults.listening", str(connection.settings_dict["NAME"]), name]
        self.running[name] = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=os.environ | reaches)

    def kill(self, name: str) -> None:
        """kill -9."""
        victim = self.running.pop(name)
        victim.kill()
        victim.wait()


@pytest.fixture
def workers(settings: Any) -> Iterator[Workers]:
    made = Workers(settings)
    yield made
    for name in list(made.running):
        made.kill(name)


def test_three_workers_make_one_connection_and_a_killed_one_is_replaced(workers, settings, owner, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    peer = DiscordServer(settings)
    try:
        peer.channel(owner)
        gateway = peer.gateway
        for name in ("one", "two", "three"):
            workers.start(name)
        for each in workers.running.values():
            assert each.stdout.readline() == "ready\n"

        def hears(text: str) -> None:
            gateway.dispatch("MESSAGE_CREATE", peer.message_of(text))
            wait_until(lambda: Message.objects.filter(content=text).exists(), seconds=120)
            assert Message.objects.filter(content=text).count() == 1

        hears("first")
        assert len(gateway.said) == len(gateway.open) == gateway.identified == 1
        for number in range(2):
            holder = Listener.objects.get().worker
            workers.kill(holder)
            hears(f"after death {number}")
            assert Listener.objects.get().worker in workers.running
            wait_until(lambda: len(gateway.open) == 1)
        # Each went on with the session of the one before: what was told meanwhile is not lost.
        assert (gateway.identified, gateway.resumed) == (1, 2)
        assert Message.objects.filter(role="user").count() == 3
    finally:
        peer.close()
