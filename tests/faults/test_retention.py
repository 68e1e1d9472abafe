"""A deletion that is killed in its midst: what is gone is told of, what is told of is gone, and another goes on."""

import json
import signal
import threading
from collections import Counter

import pytest

from nanohost.lib.erasing import from_pairs
from tests.support import warm
from tests.support.hosts import Host, environment_of
from tests.support.wait import wait_until

ROWS = 3000

PLANT = f"""
from datetime import timedelta
from django.contrib.auth.models import User
from django.utils import timezone
from agent.models import Agent
from conversations.models import Conversation, Message
from memory.models import HistoryEntry

agent, owner = Agent.objects.get(), User.objects.get()
agent.retention = {{"messages": 30}}
agent.save_version(by="anna")
long_ago = timezone.now() - timedelta(days=40)
for number in range(20):
    conversation = Conversation.objects.create(owner=owner, agent=agent, key=f"a:{{number}}", next_seq={ROWS // 20} + 1)
    Message.objects.bulk_create(
        Message(conversation=conversation, seq=seq, role="user", content="words") for seq in range(1, {ROWS // 20} + 1)
    )
Message.objects.update(created_at=long_ago)
"""


@pytest.fixture
def full(tmp_path):
    host = Host(tmp_path)
    assert host.manage("shell", "--no-imports", "-c", PLANT).stderr == ""
    return host


def count(host):
    (row,) = host.sql("SELECT count(*) AS n FROM conversations_message")
    return row["n"]


def told(host, action):
    """What the audit log has been told of: rows by table."""
    rows = host.sql("SELECT after FROM accounts_auditentry WHERE action = ?", action)
    counts = Counter()
    for row in rows:
        counts += from_pairs(json.loads(row["after"])["rows"])
    return counts


def is_consistent(host, action):
    """Whether the pointers, the record and the rows agree."""
    behind = host.sql(
        "SELECT 1 AS one FROM conversations_message message JOIN conversations_conversation conversation"
        " ON conversation.id = message.conversation_id WHERE seq <= erased_through OR seq < starts_at_seq LIMIT 1"
    )
    return not behind and told(host, action)["conversations_message"] == ROWS - count(host)


def kill_in_the_midst(host, *arguments):
    """Run a command, and kill it once it has deleted something; fails if it is done before."""
    with host.log.open("ab") as log:
        printed = log.fileno()
        running = warm.start(
            ("manage.py", *arguments), env=environment_of(host.data_dir), stdout=printed, stderr=printed
        )
    wait_until(lambda: count(host) < ROWS, seconds=60)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert 0 < count(host) < ROWS


@pytest.mark.parametrize(
    ("arguments", "action"), [(["retention"], "retention.erased"), (["erase", "admin", "--yes"], "user.erasing")]
)
def test_what_was_killed_is_whole_and_goes_on(full, arguments, action):
    kill_in_the_midst(full, *arguments)
    assert is_consistent(full, action)
    again = full.manage(*arguments)
    assert again.returncode == 0, again.stderr
    assert count(full) == 0
    assert told(full, action)["conversations_message"] == ROWS
    assert full.manage("audit", "verify").returncode == 0


def test_two_at_once_delete_each_row_once(full):
    done = []
    threads = [threading.Thread(target=lambda: done.append(full.manage("retention"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
    assert count(full) == 0
    assert told(full, "retention.erased")["conversations_message"] == ROWS
    assert is_consistent(full, "retention.erased")


@pytest.mark.production(reason="SQLite has no tables in parts")
def test_a_table_in_parts_is_deleted_from_part_by_part(full):
    done = full.manage("partition_messages", "--parts", "4")
    assert "in 4 parts" in done.stdout, done.stderr
    assert full.manage("retention").returncode == 0
    assert count(full) == 0
    assert is_consistent(full, "retention.erased")
