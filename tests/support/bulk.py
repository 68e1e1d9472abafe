"""A database with much in it: what a host has after its first million messages. PostgreSQL only; made in seconds.

200 owners, the first of whom has every fourth of 20,000 conversations; the first conversation has 100,000 messages.
200,000 turns have ended, with 5 messages and 2 tool calls each; 500 are open. Of 2,000 requests of the last owner each
has had a conversation of its own, and half of them a round of its caller's. Ids sort by time, as those of the host. The
audit log has 420,000 entries. Of 20,000 files each came with two messages.
"""

import time
from typing import Any

from django.db import connection, transaction

OWNERS, CONVERSATIONS, TURNS = 200, 20_000, 200_000
REQUESTS = 2_000
MESSAGES_A_TURN, CALLS_A_TURN = 5, 2

# Those that refer to others first: a table that is logged may not refer to one that is not.
_TABLES = (
    *(
        "conversations_attachmentuse",
        "conversations_attachment",
        *("conversations_channelevent", "conversations_outgoingfile", "conversations_delivery"),
        *("conversations_question", "conversations_replay", "conversations_replaycase", "conversations_feedback"),
        "conversations_webhookendpoint",
        "conversations_latermessage",
        "conversations_compaction",
        "conversations_callerround",
        "conversations_response",
        "conversations_share",
        "conversations_message",
        "conversations_turn",
        "conversations_conversation",
    ),
    "tools_toolcall",
    *("tools_approvalvote", "tools_approval"),
    *("accounts_auditentry", "accounts_auditseal"),
)

# One turn every 150 s, the last one now: about a year. In milliseconds; IMMUTABLE functions of SQL cost nothing.
_STEP = 150_000
_SETUP = f"""
CREATE FUNCTION pg_temp.at(n bigint) RETURNS timestamptz IMMUTABLE LANGUAGE sql AS
    $$ SELECT to_timestamp((__BEGAN__ + n::bigint * {_STEP}) / 1000.0) $$;
CREATE FUNCTION pg_temp.id(kind text, n bigint, ms bigint) RETURNS uuid IMMUTABLE LANGUAGE sql AS
    $$ SELECT (lpad(to_hex(__BEGAN__ + ms), 12, '0') || '7' || kind || '8' || lpad(to_hex(n), 15, '0'))::uuid $$;
-- Every tenth turn is the first conversation's, the others go round.
CREATE FUNCTION pg_temp.of_turn(n bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS
    $$ SELECT CASE WHEN n % 10 = 0 THEN 1 ELSE 2 + (n - n / 10 - 1) % {CONVERSATIONS - 1} END $$;
CREATE FUNCTION pg_temp.number(n bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS
    $$ SELECT CASE WHEN n % 10 = 0 THEN n / 10 ELSE 1 + (n - n / 10 - 1) / {CONVERSATIONS - 1} END $$;
CREATE FUNCTION pg_temp.owner(conversation bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS
    $$ SELECT CASE WHEN conversation % 4 = 1 THEN 1 ELSE 2 + conversation % {OWNERS - 1} END $$;
CREATE FUNCTION pg_temp.conversation(n bigint) RETURNS uuid IMMUTABLE LANGUAGE sql AS
    $$ SELECT pg_temp.id('c00', n, n::bigint * {_STEP * (TURNS // CONVERSATIONS)}) $$;
CREATE FUNCTION pg_temp.turn(n bigint) RETURNS uuid IMMUTABLE LANGUAGE sql AS
    $$ SELECT pg_temp.id('a00', n, n::bigint * {_STEP}) $$;
CREATE FUNCTION pg_temp.of_request(kind text, n bigint) RETURNS uuid IMMUTABLE LANGUAGE sql AS
    $$ SELECT pg_temp.id(kind, n, {TURNS * _STEP}::bigint + n) $$;

INSERT INTO auth_user (id, username, password, is_superuser, is_staff, is_active, first_name, last_name, email,
                       date_joined)
    SELECT n, 'owner-' || n, '', false, false, true, '', '', '', now() FROM generate_series(1, {OWNERS}) n;
SELECT setval(pg_get_serial_sequence('auth_user', 'id'), {OWNERS});
"""

_ROWS = f"""
INSERT INTO conversations_conversation
    (id, key, owner_id, agent_id, next_seq, next_turn, metadata, created_at, updated_at)
    SELECT pg_temp.conversation(n), 'api:' || n, pg_temp.owner(n), (SELECT min(id) FROM agent_agent),
           CASE WHEN n = 1 THEN {TURNS // 10 * MESSAGES_A_TURN} ELSE 100 END + 1,
           CASE WHEN n = 1 THEN {TURNS // 10} ELSE 20 END + 1,
           '{{}}', pg_temp.at(n * {TURNS // CONVERSATIONS}), now()
    FROM generate_series(1, {CONVERSATIONS}) n;

INSERT INTO conversations_turn
    (id, conversation_id, owner_id, number, status, waiting_for, model, request_id, idempotency_key, body_hash, fence,
     worker, deadline, attempts, retries, rung_at, cancel_requested, prompt_tokens, completion_tokens, error_code,
     error_detail, created_at, started_at, ended_at)
    SELECT pg_temp.turn(n), pg_temp.conversation(pg_temp.of_turn(n)), pg_temp.owner(pg_temp.of_turn(n)),
           pg_temp.number(n),
           CASE WHEN n % 100 < 2 THEN 'failed' WHEN n % 100 = 2 THEN 'cancelled' ELSE 'succeeded' END, '', 'model',
           md5('request' || n), CASE WHEN n % 2 = 0 THEN 'key-' || n END, md5('body' || n), 2, 'host:1:' || n / 10000,
           at + interval '10 minutes', 0, 0, at, n % 100 = 2, 900, 80,
           CASE WHEN n % 1000 = 0 THEN 'turn_timeout' WHEN n % 100 < 2 THEN 'llm_unavailable'
                WHEN n % 100 = 2 THEN 'turn_cancelled' ELSE '' END,
           '', at, at, at + interval '9 seconds'
    FROM generate_series(1, {TURNS}) n, LATERAL (SELECT pg_temp.at(n)) made (at);

INSERT INTO conversations_message
    (id, conversation_id, turn_id, seq, role, type, content, tool_calls, tool_call_id, tool_name, created_at)
    SELECT pg_temp.id('e00', n * {MESSAGES_A_TURN} + k, n::bigint * {_STEP} + k * 1000),
           pg_temp.conversation(pg_temp.of_turn(n)), pg_temp.turn(n),
           (pg_temp.number(n) - 1) * {MESSAGES_A_TURN} + k,
           CASE WHEN k = 1 THEN 'user' WHEN k IN (2, 5) THEN 'assistant' ELSE 'tool' END, 'NORMAL',
           repeat('words of a message ', 5), CASE WHEN k = 2 THEN '[]'::jsonb END,
           CASE WHEN k IN (3, 4) THEN 'call_' || k - 3 ELSE '' END, CASE WHEN k IN (3, 4) THEN 'time' ELSE '' END,
           at + k * interval '1 second'
    FROM generate_series(1, {TURNS}) n, LATERAL (SELECT pg_temp.at(n)) made (at),
         generate_series(1, {MESSAGES_A_TURN}) k;

INSERT INTO tools_toolcall
    (id, conversation_id, turn_id, owner_id, agent, request_id, call_id, position, tool_name, arguments, arguments_hash,
     effects, status, rule, result, fence, attempts, worker, rung_at, created_at, started_at, ended_at, duration_ms)
    SELECT pg_temp.id('d00', n * {CALLS_A_TURN} + k, n::bigint * {_STEP}),
           pg_temp.conversation(pg_temp.of_turn(n)), pg_temp.turn(n), pg_temp.owner(pg_temp.of_turn(n)),
           'default', md5('request' || n), 'call_' || k, k, CASE WHEN n % 5000 = 0 THEN 'append_line' ELSE 'time' END,
           '{{}}', md5('') || md5(''), 'read', CASE WHEN n % 200 = 0 THEN 'REJECTED' ELSE 'SUCCESS' END,
           CASE WHEN n % 2000 = 0 THEN 'input_size' WHEN n % 200 = 0 THEN 'not_enabled' ELSE '' END,
           repeat('result ', 10), 1, 1, 'host:1:1', at, at, at, at, 5
    FROM generate_series(1, {TURNS}) n, LATERAL (SELECT pg_temp.at(n)) made (at),
         generate_series(0, {CALLS_A_TURN - 1}) k;

INSERT INTO conversations_compaction
    (id, conversation_id, turn_id, kind, status, keep_tokens, fence, worker, failures, error, first_seq, through_seq,
     summary_seq, is_stub, model, prompt_tokens, completion_tokens, created_at, ended_at)
    SELECT pg_temp.id('b00', n, n::bigint * {_STEP}), pg_temp.conversation(pg_temp.of_turn(n)), pg_temp.turn(n),
           'rolling', 'done', 1000, 1, 'host:1:1', 0, '', 5 * pg_temp.number(n) - 4, 5 * pg_temp.number(n),
           5 * pg_temp.number(n), false, 'model', 900, 80, at, at
    FROM generate_series(1, {TURNS}) n, LATERAL (SELECT pg_temp.at(n)) made (at) WHERE n % 3 = 0;

INSERT INTO conversations_latermessage
    (id, conversation_id, kind, content, model, request_id, state, run_after, tries, turn_id, created_at)
    SELECT pg_temp.id('700', n, n::bigint * {_STEP}), pg_temp.conversation(pg_temp.of_turn(n)),
           CASE WHEN n % 8 = 0 THEN 'wake' ELSE 'context' END, 'words', '', md5('later' || n), 'done', at, 1,
           pg_temp.turn(n), at
    FROM generate_series(1, {TURNS}) n, LATERAL (SELECT pg_temp.at(n)) made (at) WHERE n % 4 = 0;

-- Every fifth turn was asked with a file; each file came twice.
INSERT INTO conversations_attachment
    (id, owner_id, sha256, path, is_stored, media_type, size, width, height, has_thumbnail, text, problem, used_at)
    SELECT pg_temp.id('600', n, n::bigint * {_STEP}), pg_temp.owner(pg_temp.of_turn(n)), md5('a' || n) || md5('b' || n),
           'at/' || n, true, 'image/png', 50000, 640, 480, true, '', '', at
    FROM generate_series(1, {TURNS}) n, LATERAL (SELECT pg_temp.at(n)) made (at) WHERE n % 10 = 0;
INSERT INTO conversations_attachmentuse (attachment_id, conversation_id, message_id, name)
    SELECT pg_temp.id('600', n, n::bigint * {_STEP}), pg_temp.conversation(pg_temp.of_turn(m)),
           pg_temp.id('e00', m * {MESSAGES_A_TURN} + 1, m::bigint * {_STEP} + 1000), 'a picture'
    FROM generate_series(1, {TURNS}) n, LATERAL (VALUES (n), (n - 5)) said (m) WHERE n % 10 = 0;

INSERT INTO tools_approval
    (id, call_id, conversation_id, turn_id, owner_id, agent, tool_name, rule, request_id, arguments, arguments_hash,
     proposed, private_proposed, approved_hash, four_eyes, state, reason, decided_by, requested_at, expires_at,
     decided_at)
    SELECT pg_temp.id('500', n, n::bigint * {_STEP}), pg_temp.id('d00', n, n::bigint * {_STEP}),
           pg_temp.conversation(pg_temp.of_turn(n)), pg_temp.turn(n), 2 + n % {OWNERS - 1}, 'scribe',
           'time', 'consent:always', md5('turn' || n), '{{}}', md5('') || md5(''), '', '', md5('') || md5(''), false,
           CASE WHEN n % 20 = 0 THEN 'denied' ELSE 'approved' END, '', 'owner-1', at, at + interval '7 days', at
    FROM generate_series(1, {TURNS}) n, LATERAL (SELECT pg_temp.at(n)) made (at) WHERE n % 4 = 0;
-- Of each call, that it was admitted or refused, and how it ended; and now and then somebody signs in.
INSERT INTO accounts_auditentry
    (at, actor, action, object_type, object_id, object_name, before, after, reason, request_id)
    SELECT at, CASE WHEN k = 2 THEN 'user owner-' || 1 + n / 10 % {OWNERS} ELSE 'agent default' END,
           CASE WHEN k = 2 THEN 'signed_in' WHEN k = 1 THEN 'tool.ended' WHEN n % 200 = 0 THEN 'tool.refused'
                ELSE 'tool.admitted' END,
           CASE WHEN k = 2 THEN 'auth.user' ELSE 'tools.toolcall' END,
           CASE WHEN k = 2 THEN (1 + n / 10 % {OWNERS})::text
                ELSE pg_temp.id('d00', n * {CALLS_A_TURN}, n::bigint * {_STEP})::text END,
           CASE WHEN k = 2 THEN 'owner-' || 1 + n / 10 % {OWNERS} WHEN n % 5000 = 0 THEN 'append_line' ELSE 'time' END,
           '', '{{}}', '', md5('request' || n)
    FROM generate_series(1, {TURNS}) n, LATERAL (SELECT pg_temp.at(n)) made (at), generate_series(0, 2) k
    WHERE k < 2 OR n % 10 = 0 ORDER BY n, k;
INSERT INTO accounts_auditseal (number, entry_id, hash)
    SELECT row_number() OVER (ORDER BY id), id, md5(id::text) || md5('') FROM accounts_auditentry;
INSERT INTO conversations_webhookendpoint
    (id, name, url, kinds, is_active, disabled_because, seed, former_seed, digest, made_by, created_at)
    SELECT n, 'hook ' || n, 'https://example.org/', '["turn.succeeded", "audit.head"]', n < 10, '', md5('seed' || n),
           '', '', '', now()
    FROM generate_series(1, 10) n;
SELECT setval(pg_get_serial_sequence('conversations_webhookendpoint', 'id'), 10);
-- Which are kept for 30 days.
INSERT INTO conversations_delivery
    (id, channel, endpoint_id, kind, data, owner_id, status, fence, worker, rung_at, expires_at, attempts, tries,
     last_status, error, created_at, ended_at)
    SELECT pg_temp.id('800', n, {TURNS * _STEP}::bigint - ({TURNS} - n)::bigint * 12000), 'webhook', 1 + n % 10,
           'turn.succeeded', '{{}}', 1,
           CASE WHEN n % 100 = 0 THEN 'failed' ELSE 'delivered' END, 1, 'host:1:1', at, at + interval '1 day', 1, '[]',
           204, '', at, at
    FROM generate_series(1, {TURNS}) n, LATERAL (SELECT now() - ({TURNS} - n) * interval '12 seconds') made (at);

-- What was said in chats: 50 messages in each of 1,000 chats, and 3 that wait in each of 100.
INSERT INTO conversations_channel
    (id, name, kind, agent_id, owner_id, settings, is_active, allow_from, unknown, in_doubt, seed, former_seed,
     pairing_digest, error, made_by, created_at)
    SELECT 1, 'shop', 'webhook', (SELECT min(id) FROM agent_agent), 1, '{{}}', true, '["*"]', 'strict', 'leave',
           md5('seed'), '', '', '', '', now();
SELECT setval(pg_get_serial_sequence('conversations_channel', 'id'), 1);
INSERT INTO conversations_chat (id, channel_id, owner_id, key, chat_id, thread, next_number, created_at)
    SELECT n, 1, 1, 'shop:' || n, n, '', 100, now() FROM generate_series(1, 1000) n;
SELECT setval(pg_get_serial_sequence('conversations_chat', 'id'), 1000);
INSERT INTO conversations_delivery
    (id, channel, account_id, chat_id, number, conversation_id, turn_id, kind, data, owner_id, status, fence, worker,
     rung_at, run_after, expires_at, attempts, tries, error, created_at, ended_at, external_id)
    SELECT pg_temp.id('801', k * 1000 + n, ({TURNS} - 60 + k) * {_STEP}::bigint), 'chat', 1, n, k,
           pg_temp.conversation(n), pg_temp.turn(n), 'chat', '{{"text": "words"}}', 1,
           CASE WHEN k <= 50 THEN 'delivered' ELSE 'queued' END, 1, 'host:1:1', at,
           CASE WHEN k > 50 THEN now() + interval '1 day' END, at + interval '1 day', 1, '[]', '', at,
           CASE WHEN k <= 50 THEN at END, CASE WHEN k <= 50 THEN 'sent ' || (k * 1000 + n) ELSE '' END
    FROM generate_series(1, 53) k, generate_series(1, 1000) n,
         LATERAL (SELECT now() - (60 - k) * interval '9000 s') made (at)
    WHERE k <= 50 OR n <= 100;
-- And 5,000 more in one of them.
INSERT INTO conversations_delivery
    (id, channel, account_id, chat_id, number, conversation_id, turn_id, kind, data, owner_id, status, fence, worker,
     rung_at, expires_at, attempts, tries, error, created_at, ended_at, external_id)
    SELECT pg_temp.id('803', k, ({TURNS} - 6000 + k) * {_STEP}::bigint), 'chat', 1, 900, 100 + k,
           pg_temp.conversation(900), pg_temp.turn(900), 'chat', '{{"text": "words"}}', 1, 'delivered', 1, 'host:1:1',
           at, at + interval '1 day', 1, '[]', '', at, at, 'many ' || k
    FROM generate_series(1, 5000) k, LATERAL (SELECT now() - (6000 - k) * interval '9 s') made (at);
UPDATE conversations_chat SET next_number = 6000 WHERE id = 900;
INSERT INTO conversations_channelevent (id, channel_id, external_id, message_id, turn_id, created_at)
    SELECT pg_temp.id('900', n, n::bigint * {_STEP}), 1, 'event ' || n, 'message ' || n, pg_temp.turn(n),
           now() - ({TURNS} - n) * interval '12 seconds'
    FROM generate_series(1, {TURNS}) n;

-- Of requests to /v1, one in 9,000 s: a conversation, a turn and two messages each, and of half of them a round.
INSERT INTO conversations_conversation
    (id, key, owner_id, agent_id, next_seq, next_turn, metadata, is_transient, created_at, updated_at)
    SELECT pg_temp.of_request('c01', n), 'openai:' || n, {OWNERS},
           (SELECT min(id) FROM agent_agent), 3, 2, '{{}}', true, at, at
    FROM generate_series(1, {REQUESTS}) n, LATERAL (SELECT now() - ({REQUESTS} - n) * interval '9000 s') made (at);
INSERT INTO conversations_turn
    (id, conversation_id, owner_id, number, status, waiting_for, model, request_id, body_hash, options, fence, worker,
     deadline, attempts, retries, rung_at, cancel_requested, prompt_tokens, completion_tokens, error_code, error_detail,
     created_at, started_at, ended_at)
    SELECT pg_temp.of_request('a01', n), pg_temp.of_request('c01', n), {OWNERS}, 1,
           CASE WHEN n % 100 = 2 THEN 'cancelled' ELSE 'succeeded' END, '', 'model', md5('v1' || n),
           md5('asked' || n), '{{}}', 1,
           'host:1:1', at, 0, 0, at, false, 9, 9, '', '', at, at, at
    FROM generate_series(1, {REQUESTS}) n, LATERAL (SELECT now() - ({REQUESTS} - n) * interval '9000 s') made (at);
INSERT INTO conversations_message
    (id, conversation_id, turn_id, seq, role, type, content, tool_call_id, tool_name, created_at)
    SELECT pg_temp.of_request('e01', 2 * n + k), pg_temp.of_request('c01', n),
           pg_temp.of_request('a01', n), k, CASE WHEN k = 1 THEN 'user' ELSE 'assistant' END, 'NORMAL',
           'words', '', '', at
    FROM generate_series(1, {REQUESTS}) n, LATERAL (SELECT now() - ({REQUESTS} - n) * interval '9000 s') made (at),
         generate_series(1, 2) k;
INSERT INTO conversations_response (id, turn_id, number, asked, is_background, created_at)
    SELECT pg_temp.of_request('b01', n), pg_temp.of_request('a01', n), 0, '{{"model": "default"}}', false, now()
    FROM generate_series(1, {REQUESTS}) n;
INSERT INTO conversations_callerround
    (id, turn_id, number, calls, messages, prompt_tokens, completion_tokens, cached_tokens, outputs_hash, created_at,
     answered_at)
    SELECT pg_temp.of_request('f01', n), pg_temp.of_request('a01', n), 0, '[]', 1, 9, 9, 0,
           '', now(), now()
    FROM generate_series(1, {REQUESTS}) n WHERE n % 2 = 0;

-- What is going on: 300 turns queued, 100 run, 80 wait for tools, 20 for a retry, in as many conversations.
INSERT INTO conversations_turn
    (id, conversation_id, owner_id, number, status, waiting_for, model, request_id, body_hash, fence, worker,
     lease_until, deadline, attempts, retries, run_after, rung_at, cancel_requested, prompt_tokens, completion_tokens,
     error_code, error_detail, created_at)
    SELECT pg_temp.turn({TURNS} + n), pg_temp.conversation(1000 + n), pg_temp.owner(1000 + n), 20,
           CASE WHEN n <= 300 THEN 'queued' WHEN n <= 400 THEN 'running' ELSE 'waiting' END,
           CASE WHEN n <= 400 THEN '' WHEN n <= 480 THEN 'tools' ELSE 'retry' END,
           'model', md5('open' || n), md5('body' || n), 1, 'host:1:1',
           CASE WHEN n BETWEEN 301 AND 400 THEN now() + interval '1 day' END, now() + interval '1 day', 0, 0,
           CASE WHEN n > 480 THEN now() + interval '1 day' END, now() - n * interval '1 second', false, 0, 0, '', '',
           now() + n * interval '1 millisecond'
    FROM generate_series(1, 500) n;
INSERT INTO conversations_message
    (id, conversation_id, turn_id, seq, role, type, content, tool_call_id, tool_name, created_at)
    SELECT pg_temp.id('e00', 100000000 + n, ({TURNS} + n) * {_STEP}::bigint),
           pg_temp.conversation(1000 + n), pg_temp.turn({TURNS} + n),
           CASE WHEN n > 300 THEN 99 END, 'user', 'NORMAL', 'words', '', '', now()
    FROM generate_series(1, 500) n;
INSERT INTO tools_toolcall
    (id, conversation_id, turn_id, owner_id, agent, request_id, call_id, position, tool_name, arguments, arguments_hash,
     effects, status, rule, result, fence, attempts, worker, lease_until, rung_at, created_at)
    SELECT pg_temp.id('d00', 100000000 + n, ({TURNS} + n) * {_STEP}::bigint),
           pg_temp.conversation(1000 + n), pg_temp.turn({TURNS} + n), pg_temp.owner(1000 + n),
           'default', md5('open' || n), 'call_0', 0, 'time', '{{}}', md5('') || md5(''), 'read',
           CASE WHEN n % 2 = 0 THEN 'QUEUED' ELSE 'RUNNING' END, '', '', 1, 1, 'host:1:1', now() + interval '1 day',
           now() - interval '1 minute', now()
    FROM generate_series(401, 480) n;
INSERT INTO conversations_delivery
    (id, channel, endpoint_id, kind, data, owner_id, status, fence, worker, lease_until, run_after, rung_at, expires_at,
     attempts, tries, error, created_at)
    SELECT pg_temp.id('800', 100000000 + n, ({TURNS} + n) * {_STEP}::bigint), 'webhook', 1 + n % 8, 'turn.succeeded',
           '{{}}', 1, CASE WHEN n <= 8 THEN 'running' ELSE 'queued' END, 1, 'host:1:1',
           CASE WHEN n <= 8 THEN now() + interval '1 day' END, CASE WHEN n > 300 THEN now() + interval '1 day' END,
           now() - interval '1 minute', now() + interval '1 day', 1, '[]', '', now() + n * interval '1 millisecond'
    FROM generate_series(1, 500) n;
"""


def fill() -> None:
    """Fill an empty, migrated database."""
    with transaction.atomic(), connection.cursor() as cursor:
        # Nobody checks each foreign key of what is right by construction; and indexes are made when all rows are there.
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute("SET LOCAL maintenance_work_mem = '128MB'")
        for table in _TABLES:
            cursor.execute(f"ALTER TABLE {table} SET UNLOGGED")
        make_again = _drop_indexes(cursor)
        began = round(time.time() * 1000) - TURNS * _STEP
        cursor.execute(f"{_SETUP}{_ROWS}{';'.join(make_again)}".replace("__BEGAN__", str(began)))
    analyze()


def analyze() -> None:
    """Have PostgreSQL count what there is, and take what was undone out of every index, which it may postpone
    otherwise."""
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        tables = ", ".join((*_TABLES, "conversations_chat", "auth_user", "agent_agent"))
        cursor.execute(f"VACUUM (ANALYZE, INDEX_CLEANUP ON) {tables}")


def _drop_indexes(cursor: Any) -> list[str]:
    """Drop all indexes but those of primary keys; returns what makes them again."""
    cursor.execute(
        """
        SELECT format('ALTER TABLE %%s DROP CONSTRAINT %%I', conrelid::regclass, conname),
               format('ALTER TABLE %%s ADD CONSTRAINT %%I %%s', conrelid::regclass, conname, pg_get_constraintdef(oid))
        FROM pg_constraint WHERE contype = 'u' AND conrelid = ANY(%s::regclass[])
        UNION ALL
        SELECT format('DROP INDEX %%I', indexrelid::regclass), pg_get_indexdef(indexrelid)
        FROM pg_index WHERE indrelid = ANY(%s::regclass[])
          AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid)
        """,
        [list(_TABLES), list(_TABLES)],
    )
    drops, makes = zip(*cursor.fetchall(), strict=True)
    cursor.execute(";".join(drops))
    return list(makes)
