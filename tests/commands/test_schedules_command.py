"""``manage.py schedules``."""

from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command

from scheduler.models import Schedule
from scheduler.series import pause

pytestmark = pytest.mark.django_db


@pytest.fixture
def command(capsys, owner, agent):
    def run(*arguments):
        call_command("schedules", *arguments)
        return capsys.readouterr().out

    return run


def add(command, *arguments):
    return Schedule.objects.get(pk=UUID(command("add", "--owner", "owner", "--prompt", "Hello", *arguments).strip()))


def test_add_makes_a_schedule(command, owner, conversation):
    more = ("--missed", "all", "--missed-most", "3", "--max-runs", "2", "--conversation", str(conversation.pk))
    made = add(command, "--cron", "30 9 * * MON-FRI", "--zone", "Europe/Berlin", "--description", "News", *more)
    assert (made.owner, made.expression, made.zone, str(made)) == (owner, "30 9 * * MON-FRI", "Europe/Berlin", "News")
    assert (made.missed, made.missed_most, made.max_runs, made.conversation_id) == ("all", 3, 2, conversation.pk)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--cron", "0 0 30 2 *"), "never matches"),
        (("--at", "2020-01-01"), "has passed"),
        (("--every", "5"), "from 60 seconds"),
        (("--every", "60", "--zone", "Nowhere"), "There is no zone"),
        (("--every", "60", "--conversation", str(uuid4())), "There is no conversation"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(command, arguments, why):
    with pytest.raises(CommandError, match=why):
        command("add", "--owner", "owner", "--prompt", "Hello", *arguments)


def test_a_user_there_is_none_of_is_named(command):
    with pytest.raises(CommandError, match="There is no user named 'nobody'"):
        command("add", "--owner", "nobody", "--prompt", "Hello", "--every", "60")


def test_list_shows_when_each_runs_next_or_why_not(command, outsider):
    active, paused = add(command, "--every", "60"), add(command, "--at", "2126-05-04T09:00")
    pause(paused, because="It is winter.")
    listed = command("list", "--owner", "owner").splitlines()
    assert [line.split("\t")[0] for line in listed] == [str(active.pk), str(paused.pk)]
    assert "every 60 s\tnext 2" in listed[0]
    assert "\tIt is winter.\t" in listed[1]
    assert command("list", "--owner", "outsider") == ""


def test_remove_cancels(command):
    made = add(command, "--every", "60")
    assert command("remove", str(made.pk)) == f"{made.pk} is cancelled.\n"
    assert command("list") == ""
    with pytest.raises(CommandError, match="schedules list"):
        command("remove", str(made.pk))


def test_preview_shows_times_with_notes_of_a_schedule_or_of_none(command):
    shown = command("preview", "--cron", "30 2 * 3 SUN#5,SUN#4", "--zone", "Europe/Berlin").splitlines()
    assert len(shown) == 10
    assert sum("02:30 does not exist on that day" in line for line in shown) > 1
    made = add(command, "--every", "600", "--max-runs", "2")
    assert len(command("preview", str(made.pk)).splitlines()) == 2
    with pytest.raises(CommandError, match="A schedule needs its times"):
        command("preview")
