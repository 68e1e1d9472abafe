"""How a turn stands: every value is described, and what reads the descriptions does as they say."""

import pytest
from drf_spectacular.generators import SchemaGenerator

from conversations import waits
from conversations.engine import intake
from conversations.engine.turn_control import cancel_turn
from conversations.models import Turn
from conversations.statuses import FINAL, OPEN, TURN_STATUSES, WAITING_FOR, EndedBy, TurnStatus, WaitingFor, describe
from nanohost.console import diagnosis
from nanohost.lib import clock
from nanohost.lib.clock import from_now

pytestmark = pytest.mark.django_db(transaction=True)

# What an open turn's two columns may be.
STANDS = [
    (TurnStatus.QUEUED, ""),
    (TurnStatus.QUEUED, WaitingFor.INTAKE),
    (TurnStatus.RUNNING, ""),
    (TurnStatus.WAITING, WaitingFor.TOOLS),
    (TurnStatus.WAITING, WaitingFor.APPROVAL),
    (TurnStatus.WAITING, WaitingFor.CALLER),
    (TurnStatus.WAITING, WaitingFor.ANSWER),
    (TurnStatus.WAITING, WaitingFor.RETRY),
]


@pytest.fixture
def standing_so(say):
    """``standing_so("waiting", "tools")``: a turn that stands so."""

    def make(status, waiting_for=""):
        lease = from_now(60) if status == TurnStatus.RUNNING else None
        turn = say("Hello")
        Turn.objects.filter(pk=turn.pk).update(status=status, waiting_for=waiting_for, lease_until=lease)
        turn.refresh_from_db()
        return turn

    return make


@pytest.mark.parametrize(("values", "described"), [(TurnStatus, TURN_STATUSES), (WaitingFor, WAITING_FOR)])
def test_every_value_is_described_and_nothing_else(values, described):
    assert list(described) == list(values)
    for each in described.values():
        assert each.label == each.label.lower() != ""
        assert each.words[0].isupper()
        assert not each.words.endswith(".")


def test_every_value_is_one_that_a_turn_can_have():
    assert {status for status, _ in STANDS} == set(OPEN)
    assert {waiting_for for _, waiting_for in STANDS} == {"", *WaitingFor}
    assert {*OPEN, *FINAL} == set(TurnStatus)
    assert not {*OPEN} & {*FINAL}


@pytest.mark.parametrize(("status", "waiting_for"), STANDS)
def test_an_open_turn_is_counted_shown_and_told_of_as_its_description_says(standing_so, status, waiting_for):
    turn, described = standing_so(status, waiting_for), describe(status, waiting_for)
    left = intake.left()
    assert {state: number for state, number in left.by_state.items() if number} == {described.label: 1}
    assert waits.stands(turn, clock.read()) == f"{described.words}."
    (found,) = diagnosis.most_urgent((described.label,), diagnosis.workers_alive(left))
    assert (found.turn, found.state) == (turn, described.label)


@pytest.mark.parametrize(("status", "waiting_for"), [*STANDS, *((status, "") for status in FINAL)])
def test_a_turn_is_ended_by_whom_its_description_names(standing_so, status, waiting_for):
    turn, described = standing_so(status, waiting_for), describe(status, waiting_for)
    assert turn.ended is not described.is_open
    assert cancel_turn(turn) is described.is_open
    turn.refresh_from_db()
    ended_at_once = described.ended_by == EndedBy.CANCELLER
    assert turn.status == (TurnStatus.CANCELLED if ended_at_once else status)
    assert turn.cancel_requested is described.is_open


def test_what_a_newer_version_has_it_wait_for_is_told_by_its_status():
    assert describe(TurnStatus.WAITING, "tomorrow") == TURN_STATUSES[TurnStatus.WAITING]


def test_the_api_s_schema_says_what_each_status_means():
    schemas = SchemaGenerator().get_schema(request=None, public=True)["components"]["schemas"]
    assert schemas["TurnStatus"]["enum"] == list(TurnStatus)
    for status, described in TURN_STATUSES.items():
        assert f"* `{status}` - {described.words}." in schemas["TurnStatus"]["description"]
