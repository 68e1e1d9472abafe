"""Conversations are found by what was said in them, on both databases, by nobody else's words and by no secret."""

from uuid import UUID

import pytest
from django.db import connection
from django.urls import reverse

from conversations import search
from conversations.engine import inbox, turn_control
from conversations.engine.turns import TurnRunner
from conversations.models import Message
from nanohost.lib.database_threads import DatabaseThreads
from tests.support.factories import OwnerFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def hold(owner):
    """A conversation in which this was said: ``hold("text")``."""

    def make(*texts, whose=None, **fields):
        made = inbox.start_conversation(owner_id=(whose or owner).pk, metadata={})
        for seq, text in enumerate(texts, 1):
            row = {"role": "user", "seq": seq, "content": text} | fields
            Message.objects.create(conversation=made, **row)
        return made

    return make


def test_words_are_found_by_their_beginnings_and_all_in_one_message(hold):
    rain, sun = hold("It will RAIN in Kraków tomorrow."), hold("The sun shines.", "Tomorrow as well.")
    assert search.find("rain tomorrow") == [rain.pk]
    assert search.find("tomor") == [sun.pk, rain.pk]
    assert search.find("sun tomorrow") == []
    assert search.find("") == search.find("?!") == []


def test_quotes_and_operators_are_words_at_most(hold):
    made = hold("a and b or not c")
    for text in ('"', 'a" OR b', "a:*", "' | 'x", "NOT a", "content:a", "-a", "a* AND", "\\", "(", "a & !b"):
        assert set(search.find(text)) <= {made.pk}, text


def test_of_an_owner_nothing_is_found_that_is_another_s(hold):
    other = OwnerFactory()
    mine, theirs = hold("a needle"), hold("a needle", whose=other)
    assert search.find("needle") == [theirs.pk, mine.pk]
    assert search.find("needle", owner_id=mine.owner_id) == [mine.pk]
    assert search.find("needle", owner_id=other.pk) == [theirs.pk]


def test_what_tools_and_commands_say_is_not_searched(hold):
    hold("needle", role="tool")
    hold("needle", kind="command")
    assert search.find("needle") == []


@pytest.mark.parametrize("is_indexed", [True, False])
def test_what_is_changed_or_deleted_is_found_no_more(hold, is_indexed):
    changed, deleted, gone = hold("needle one"), hold("needle two"), hold("needle three")
    if is_indexed:
        search.take_in()
    Message.objects.filter(conversation=changed).update(content="hay")
    Message.objects.filter(conversation=deleted).delete()
    turn_control.delete_conversation(gone.pk)
    assert search.find("needle") == []
    assert search.find("hay") == [changed.pk]
    search.forget_deleted()
    assert search.find("hay") == [changed.pk]


of_sqlite = pytest.mark.embedded(reason="PostgreSQL indexes what is said as it is stored")


@of_sqlite
def test_what_is_said_is_taken_in_by_a_sweep_and_a_turn_writes_no_index(hold):
    made = hold("a needle", "and hay")
    assert (len(unindexed()), indexed()) == (2, 0)
    database = DatabaseThreads(1)
    TurnRunner(worker="worker-1", database=database).before_sweep()
    database.close()
    assert (unindexed(), indexed()) == ([], 2)
    Message.objects.filter(conversation=made, seq=2).update(content="and another")
    Message.objects.filter(conversation=made, seq=2).update(content="and more hay")
    assert len(unindexed()) == 2
    assert search.find("hay") == search.find("needle") == [made.pk]
    assert search.find("another") == unindexed() == []


@of_sqlite
@pytest.mark.parametrize("count", [search.MAX_TAKEN - 1, search.MAX_TAKEN, 2 * search.MAX_TAKEN + 1])
def test_however_many_wait_they_are_taken_in_before_anybody_searches(hold, count):
    made = hold(*(f"word{number}" for number in range(count)), "end")
    assert search.find("end") == search.find("word0") == search.find(f"word{count - 1}") == [made.pk]
    assert unindexed() == []


def indexed():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM conversations_said")
        return cursor.fetchone()[0]


def unindexed():
    with connection.cursor() as cursor:
        cursor.execute("SELECT message_id FROM conversations_unsaid")
        return cursor.fetchall()


def test_no_secret_is_found_nor_a_part_of_one(hold, monkeypatch):
    made = hold("the key is opensesame42, keep it")
    assert search.find("opensesame42") == [made.pk]
    monkeypatch.setattr(search, "redact_known", lambda text: text.replace("opensesame42", "***"))
    assert search.find("opens") == []
    assert search.find("keep") == [made.pk]


def test_the_list_tells_what_was_said_and_is_searched_by_it(admin_client, hold):
    rain = hold("It will rain.", "Take an umbrella.")
    hold("The sun shines.")
    address = reverse("admin:conversations_conversation_changelist")
    page = admin_client.get(address, {"q": "umbrella"})
    assert [row.pk for row in page.context["cl"].result_list] == [rain.pk]
    assert "It will rain." in page.content.decode()
    found = admin_client.get(address, {"q": str(rain.pk)[:20]})
    assert rain.pk in [row.pk for row in found.context["cl"].result_list]


def test_the_list_s_queries_do_not_grow_with_its_rows(admin_client, hold, django_assert_max_num_queries):
    address = reverse("admin:conversations_conversation_changelist")
    hold("one")
    with django_assert_max_num_queries(40) as few:
        admin_client.get(address)
    for _ in range(20):
        hold("more")
    with django_assert_max_num_queries(len(few)):
        admin_client.get(address)


def test_a_uuid_comes_back(hold):
    hold("x1")
    assert all(isinstance(each, UUID) for each in search.find("x1"))
