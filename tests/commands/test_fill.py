"""manage.py fill: rows to try the console with, and nowhere else."""

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from conversations.models import Conversation, Message, Turn
from nanohost.console import dashboard, figures
from tools.models import ToolCall

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def development(settings):
    settings.DEBUG = True


def test_it_makes_what_is_asked_for_over_the_days_asked_for():
    call_command("fill", conversations=10, turns=2, messages=3, calls=1, days=20)
    counted = [kind.objects.count() for kind in (Conversation, Turn, Message, ToolCall)]
    assert counted == [10, 20, 60, 20]
    assert not Turn.objects.open().exists()
    days = {(timezone.now() - turn.created_at).days for turn in Turn.objects.all()}
    assert len(days) > 5
    assert max(days) <= 20
    call_command("fill", conversations=1, days=5)  # more of the same
    figures.refresh(seconds=60)
    assert dashboard.overview(dashboard.WINDOWS[-1])["turns"] == 23


def test_it_leaves_a_database_alone_that_somebody_uses(conversation):
    with pytest.raises(CommandError, match="--force"):
        call_command("fill", conversations=1)
    assert Conversation.objects.count() == 1
    call_command("fill", conversations=1, force=True)
    assert Conversation.objects.count() == 2


def test_it_is_for_development(settings):
    settings.DEBUG = False
    with pytest.raises(CommandError, match="DEBUG=true"):
        call_command("fill", conversations=1, force=True)
    assert not Conversation.objects.exists()
