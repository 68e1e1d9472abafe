"""An attack over the API and the console at once: of two who decide one wins, and who may no more decides nothing."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from conversations.models import Turn
from nanohost.accounts.models import EVERY_AGENT, ApiKey, AuditEntry
from nanohost.console.roles import OPERATOR, sync_roles
from tests.support.factories import OwnerFactory
from tests.support.scripts import script
from tests.support.threads import in_threads
from tests.support.wait import wait_until
from tests.support.working import advance, run_call
from tools.models import Approval, ApprovalState, CallStatus, ToolCall, ToolSetting

pytestmark = pytest.mark.django_db(transaction=True)

REFUSED = {401, 403, 404}


@pytest.fixture
def written(marks: Any) -> Path:
    """What the call would write."""
    return Path(marks) / "written"


@pytest.fixture
def ask(say: Any, tool_settings: Any, written: Path) -> Callable[[], Approval]:
    """Have a call with effects wait for consent."""
    tool_settings("append_line", grants=["FS_WRITE"])
    ToolSetting.objects.filter(name="append_line").update(approval="always")
    call = {"name": "append_line", "arguments": {"path": str(written), "line": "one"}}

    def waits() -> Approval:
        turn = advance(say(script({"call": [call]}, {"say": "{results}"})))
        assert turn is not None
        return Approval.objects.get(turn_id=turn.pk)

    return waits


@pytest.fixture
def key(owner: Any) -> tuple[ApiKey, Client]:
    made, text = ApiKey.objects.issue(owner=owner, scopes=["approve"], agent_names=[EVERY_AGENT])
    return made, Client(headers={"Authorization": f"Bearer {text}"})


@pytest.fixture
def operator() -> tuple[Any, Client]:
    sync_roles()
    user = OwnerFactory(username="operator", is_staff=True)
    user.groups.add(Group.objects.get(name=OPERATOR))
    client = Client()
    client.force_login(user)
    return user, client


def by_the_api(client: Client, approval: Approval, decision: str) -> str:
    """What became of it: the state that was decided, ``told`` who was first, or the status of a refusal."""
    path = f"/api/v1/approvals/{approval.pk}/decide"
    answer = client.post(path, {"decision": decision}, content_type="application/json", secure=True)
    if answer.status_code == 409:
        assert answer.json()["code"] == "already_decided"
        return "told"
    return str(answer.json()["state"]) if answer.status_code == 200 else str(answer.status_code)


def in_the_console(client: Client, approval: Approval, decision: str) -> str:
    """The same."""
    address = reverse("admin:conversations_approval_decide", args=[approval.pk])
    answer = client.post(address, {"decision": decision}, secure=True, follow=True)
    if answer.status_code != 200:
        return str(answer.status_code)
    (said,) = [str(each) for each in answer.context["messages"]]
    return "told" if said.endswith("already; nothing was changed.") else said.strip(".").lower()


def finish(approval: Approval) -> Turn | None:
    for call in ToolCall.objects.filter(turn_id=approval.turn_id, status=CallStatus.QUEUED):
        run_call(call)
    return advance(Turn.objects.get(pk=approval.turn_id))


def decisions_on(approval: Approval) -> int:
    return AuditEntry.objects.filter(action="consent.decided", object_id=str(approval.pk)).count()


def test_of_one_by_the_api_and_one_in_the_console_one_wins_and_the_other_is_told(ask, key, operator, written):
    for first, second in [("approve", "deny"), ("deny", "approve"), ("approve", "approve"), ("deny", "deny")] * 2:
        approval = ask()
        ended = in_threads(
            [
                lambda: by_the_api(key[1], approval, first),  # noqa: B023 -- done before the next
                lambda: in_the_console(operator[1], approval, second),  # noqa: B023 -- the same
            ]
        )
        assert ended.count("told") == 1, ended
        (became,) = [each for each in ended if each != "told"]
        approval.refresh_from_db()
        assert (approval.state, became) in {(state, str(state)) for state in ApprovalState}
        assert decisions_on(approval) == 1
        finish(approval)
        assert written.exists() == (became == "approved")
        written.unlink(missing_ok=True)


def test_who_lost_it_between_two_requests_decides_nothing(ask, key, operator, written):
    approval = ask()
    ApiKey.objects.filter(pk=key[0].pk).update(scopes=["chat"])
    assert by_the_api(key[1], approval, "approve") == "403"
    key[0].refresh_from_db()
    key[0].revoke()
    assert by_the_api(key[1], approval, "approve") == "401"
    operator[0].groups.clear()  # its session goes on
    assert in_the_console(operator[1], approval, "approve") == "403"
    approval.refresh_from_db()
    assert approval.state == ApprovalState.PENDING
    finish(approval)
    assert not written.exists()
    assert decisions_on(approval) == 0


def are_waiting(count: int) -> bool:
    """Whether so many of this database's sessions wait for a lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # what was seen first is seen to the end of a transaction
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0] == count)


@pytest.mark.production(reason="SQLite has one writer, whom nobody else sees wait")
def test_who_loses_it_while_the_request_is_under_way_decides_nothing(ask, key, operator, written):
    approval = ask()

    def do(deed: Callable[[Client, Approval, str], str], client: Client) -> str:
        try:
            return deed(client, approval, "approve")
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        with transaction.atomic():
            Turn.objects.select_for_update().get(pk=approval.turn_id)  # for which both have to wait
            doing = [threads.submit(do, by_the_api, key[1]), threads.submit(do, in_the_console, operator[1])]
            wait_until(lambda: are_waiting(2), seconds=60)
            key[0].revoke()
            operator[0].groups.clear()
        assert {int(each.result()) for each in doing} <= REFUSED
    approval.refresh_from_db()
    assert approval.state == ApprovalState.PENDING
    finish(approval)
    assert not written.exists()
    assert decisions_on(approval) == 0
