"""What agents remember, in the admin: changed as new versions, compared, restored, decided on, searched."""

import re
from datetime import UTC, date, datetime, timedelta

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext

from memory import documents, log
from memory.models import Memory, MemoryVersion
from tests.support.console_client import HOSTILE, page
from tests.support.factories import OwnerFactory

pytestmark = pytest.mark.django_db

FIVE = "\n".join(f"- anna likes {what}" for what in ("tea", "snow", "jazz", "bees", "ink"))


@pytest.fixture
def rewrite(owner):
    def write(base, content, **options):
        options = {"agent": "default", "owner_id": owner.pk, "source": "compaction", "model": "model-1"} | options
        return documents.rewrite(base=base, content=content, **options)

    return write


def head():
    return Memory.objects.get()


def save(client, content, *, read_version):
    return client.post(page("memory_memory", "change", head().pk), {"content": content, "read_version": read_version})


def act(client, action, *versions):
    chosen = {"action": action, "_selected_action": [version.pk for version in versions]}
    return client.post(page("memory_memoryversion"), chosen, follow=True)


# --- the document ------------------------------------------------------------------------------------------------


def test_the_list_shows_whose_it_is_and_how_full(admin_client, rewrite):
    rewrite(0, "Likes tea.")
    shown = admin_client.get(page("memory_memory")).content.decode()
    assert "10 of 16000" in shown
    assert re.search(r'<td class="field-owner[^>]*>\s*owner\s*</td>', shown)


def test_a_person_makes_a_new_version(admin_client, rewrite):
    rewrite(0, FIVE)
    shown = admin_client.get(page("memory_memory", "change", head().pk)).content.decode()
    assert '<input type="hidden" name="read_version" value="1"' in shown
    assert save(admin_client, "Likes milk.\r\nAnd rain.", read_version=1).status_code == 302
    assert (head().version, head().content) == (2, "Likes milk.\nAnd rain.")
    version = MemoryVersion.objects.get(number=2)
    assert (version.source, version.made_by, version.base) == ("person", "admin", 1)


def test_saving_without_a_change_makes_no_version(admin_client, rewrite):
    rewrite(0, FIVE)
    assert save(admin_client, FIVE.replace("\n", "\r\n"), read_version=1).status_code == 302
    assert head().version == MemoryVersion.objects.count() == 1


def test_what_was_rewritten_in_between_is_not_overwritten(admin_client, rewrite):
    rewrite(0, "Likes tea.")
    rewrite(1, "Likes coffee.")
    refused = save(admin_client, "Likes milk.", read_version=1)
    assert refused.status_code == 200
    assert "Yours is version 1, the latest is 2." in refused.content.decode()
    assert "Likes milk." in refused.content.decode()
    assert head().content == "Likes coffee."


def test_what_is_too_long_is_refused(admin_client, rewrite, settings):
    settings.MEMORY_MAX_CHARS = 100
    rewrite(0, "Likes tea.")
    refused = save(admin_client, "x" * 201, read_version=1)
    assert "It has 201 characters; 200 is the most a memory may have." in refused.content.decode()
    assert head().version == 1


def test_who_may_only_look_changes_nothing(client, rewrite):
    first, aside = rewrite(0, FIVE), rewrite(1, "nothing of it")
    staff = OwnerFactory(username="staff", is_staff=True)
    names = ("view_memory", "view_memoryversion", "view_historyentry")
    staff.user_permissions.set(Permission.objects.filter(codename__in=names))
    client.force_login(staff)
    for name in ("memory_memory", "memory_memoryversion", "memory_historyentry"):
        assert client.get(page(name)).status_code == 200
    assert save(client, "Mine.", read_version=1).status_code == 403
    for action in ("take", "dismiss"):
        act(client, action, aside)
    act(client, "take", first)
    aside.refresh_from_db()
    assert (head().version, head().content, aside.settled_at) == (1, FIVE, None)


@pytest.mark.parametrize("name", ["memory_memory", "memory_memoryversion", "memory_historyentry"])
def test_nobody_deletes_or_adds(admin_client, rewrite, owner, name):
    rewrite(0, "Likes tea.")
    log.append(agent="default", owner_id=owner.pk, content="rain", happened_at=datetime.now(UTC))
    pk = admin_client.get(page(name)).context["cl"].queryset.get().pk
    assert admin_client.get(page(name, "add")).status_code == 403
    assert admin_client.post(page(name, "delete", pk), {"post": "yes"}).status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": [pk], "post": "yes"}
    admin_client.post(page(name), chosen)
    assert admin_client.get(page(name)).context["cl"].queryset.count() == 1


# --- its versions ------------------------------------------------------------------------------------------------


def test_a_version_shows_where_it_came_from_and_what_changed(admin_client, rewrite):
    rewrite(0, FIVE)
    version = rewrite(1, FIVE.replace("jazz", f"rock {HOSTILE}"), first_seq=3, last_seq=9)
    shown = admin_client.get(page("memory_memoryversion", "change", version.pk)).content.decode()
    assert "<del>-- anna likes jazz</del>" in shown
    assert "<ins>+- anna likes rock &lt;script&gt;" in shown
    assert HOSTILE not in shown
    assert "model-1" in shown
    assert page("memory_memory", "change", head().pk) in shown


def test_a_memory_leads_to_its_versions_and_its_log(admin_client, rewrite, owner, outsider):
    rewrite(0, "Likes tea.")
    rewrite(0, "Likes milk.", owner_id=outsider.pk)
    memory = Memory.objects.get(owner=owner)
    shown = admin_client.get(page("memory_memory", "change", memory.pk)).content.decode()
    for name, count in [("memory_memoryversion", 1), ("memory_historyentry", 0)]:
        link = f"{page(name)}?owner__exact={owner.pk}&amp;agent__exact=default"
        assert link in shown
        assert admin_client.get(link.replace("&amp;", "&")).context["cl"].queryset.count() == count


def test_two_versions_are_compared(admin_client, rewrite):
    first, _, third = rewrite(0, "Likes tea."), rewrite(1, "Likes milk."), rewrite(2, f"Likes rain {HOSTILE}")
    shown = act(admin_client, "compare", third, first).content.decode()
    assert "<del>-Likes tea.</del>" in shown
    assert "<ins>+Likes rain &lt;script&gt;" in shown
    assert HOSTILE not in shown
    assert "milk" not in shown
    assert "Select two versions." in act(admin_client, "compare", third).content.decode()


def test_an_older_version_is_restored_as_a_new_one(admin_client, rewrite):
    first, second = rewrite(0, "Likes tea."), rewrite(1, "Likes milk.")
    assert "Version 3 has its content." in act(admin_client, "take", first).content.decode()
    assert (head().version, head().content) == (3, "Likes tea.")
    assert MemoryVersion.objects.get(number=3).made_by == "admin"
    assert "Select one version." in act(admin_client, "take", first, second).content.decode()
    assert "has this content already" in act(admin_client, "take", first).content.decode()
    assert head().version == 3


def test_what_was_kept_aside_is_found_with_its_reason_and_taken(admin_client, rewrite):
    rewrite(0, FIVE)
    aside = rewrite(1, "nothing of it")
    waiting = admin_client.get(page("memory_memoryversion"), {"aside": "open"})
    assert list(waiting.context["cl"].queryset) == [aside]
    assert "It drops 5 of 5 lines" in waiting.content.decode()
    act(admin_client, "take", aside)
    assert head().content == "nothing of it"
    settled = admin_client.get(page("memory_memoryversion"), {"aside": "settled"}).context["cl"].queryset
    assert [version.settled_by for version in settled] == ["admin"]
    assert not admin_client.get(page("memory_memoryversion"), {"aside": "open"}).context["cl"].queryset.exists()


def test_what_was_kept_aside_is_dismissed_and_kept(admin_client, rewrite):
    first, aside = rewrite(0, FIVE), rewrite(1, "nothing of it")
    act(admin_client, "dismiss", first, aside)
    assert head().content == FIVE
    assert list(MemoryVersion.objects.values_list("number", "settled_by")) == [(None, "admin"), (1, "")]


def test_what_is_too_long_is_not_restored(admin_client, rewrite, settings):
    settings.MEMORY_MAX_CHARS = 100
    aside = rewrite(0, "x" * 201)
    assert "It has 201 characters" in act(admin_client, "take", aside).content.decode()
    assert head().version == 0


# --- the history log ---------------------------------------------------------------------------------------------


def test_the_log_of_one_agent_and_owner_is_searched_by_words(admin_client, owner, outsider):
    at = datetime(2026, 3, 10, tzinfo=UTC)
    for index, (who, agent) in enumerate([(owner, "default"), (outsider, "default"), (owner, "other")]):
        for text in ("Rain in Rome", "Snow"):
            when = at + timedelta(hours=index)
            log.append(agent=agent, owner_id=who.pk, content=f"{text} {who} {agent}", happened_at=when)
    log.note(agent="default", owner_id=owner.pk, text="rainy, long ago", today=date(2020, 1, 1))
    whose = {"owner__exact": owner.pk, "agent__exact": "default"}

    def found(words, **filters):
        shown = admin_client.get(page("memory_historyentry"), filters | {"q": words})
        return [entry.content for entry in shown.context["cl"].queryset]

    assert found("RAIN", **whose) == ["rainy, long ago", "Rain in Rome owner default"]
    assert found("rain rome", **whose) == ["Rain in Rome owner default"]
    assert found("sun", **whose) == []
    assert found("rain") == []  # in everybody's, nothing is found by words
    assert len(found("owner")) == 5
    assert len(found("outsider")) == 2


def test_no_list_asks_more_for_more_rows(admin_client, rewrite, owner):
    def queries():
        with CaptureQueriesContext(connection) as asked:
            for name in ("memory_memory", "memory_memoryversion", "memory_historyentry"):
                admin_client.get(page(name))
        return len(asked)

    rewrite(0, "Version 0")
    queries()
    few = queries()
    for number in range(10):
        rewrite(number + 1, f"Version {number + 1}")
        rewrite(0, "0", owner_id=OwnerFactory().pk)
        log.append(agent="default", owner_id=owner.pk, content="rain", happened_at=datetime.now(UTC))
    assert queries() <= few + 1  # the owners of the log's entries
