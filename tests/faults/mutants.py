"""Guarantees, each taken out of a copy of the code: the tests named here must then fail, and say why."""

import ast
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.faults.servers import leashed
from tests.shapes import EMBEDDED, PRODUCTION
from tests.support.hosts import ROOT

NOT_COPIED = (".venv", ".git", "var", "__pycache__", ".*_cache", ".hypothesis")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """``edits``: a place (``module:qualname``, or a module), what stands there exactly once, and what takes its place.

    ``says``: part of the failure.

    ``shape``: the one on which the loss shows.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    caught_by: tuple[str, ...]
    says: str
    shape: str = EMBEDDED


MUTANTS = (
    Mutant(
        name="a compaction is stored bit by bit",
        edits=(
            (
                "conversations.engine.compacting.compaction:store",
                "    with transaction.atomic():\n        # Conversation, then what belongs to it",
                "    if True:\n        # Conversation, then what belongs to it",
            ),
        ),
        caught_by=("tests/faults/test_compaction.py::test_thirty_kills_lose_nothing_and_repeat_nothing",),
        says="assert",
    ),
    Mutant(
        name="a compaction moves a pointer that was moved meanwhile",
        edits=(
            (
                "conversations.engine.compacting.compaction:_move",
                'pk=Given("id"), consolidated_through=Given("consolidated_through"), starts_at_seq=Given("starts_at")',
                'pk=Given("id")',
            ),
        ),
        caught_by=("tests/engine/test_compaction.py::test_a_conversation_that_was_moved_on_meanwhile_is_left_alone",),
        says="DID NOT RAISE Overtaken",
    ),
    Mutant(
        name="the memory is rewritten whoever was first",
        edits=(
            (
                "memory.documents:rewrite",
                "head = Memory.objects.filter(owner_id=owner_id, agent=agent, version=base)",
                "head = Memory.objects.filter(owner_id=owner_id, agent=agent)",
            ),
        ),
        caught_by=("tests/engine/test_compaction.py::test_a_memory_that_was_changed_meanwhile_is_read_again",),
        says="assert",
    ),
    Mutant(
        name="the window leaves a gap",
        edits=(
            (
                "conversations.engine.compacting.compaction:_pass_on",
                "through=part.through,",
                "through=part.through + 4,",
            ),
        ),
        caught_by=(
            "tests/engine/test_compaction.py::test_the_next_prompt_has_the_summary_and_what_it_does_not_cover",
            "tests/engine/test_compaction.py::test_a_later_compaction_goes_on_where_the_one_before_ended",
        ),
        says="assert",
    ),
    Mutant(
        name="no fence check",
        edits=(
            (
                "conversations.engine.lease:mine",
                'held = Turn.objects.held(Given("turn_id"), Given("fence"))',
                'held = Turn.objects.filter(pk=Given("turn_id"))',
            ),
            (
                "conversations.engine.steps:_end",
                "mine = Turn.objects.held(claim.turn_id, claim.fence)",
                "mine = Turn.objects.filter(pk=claim.turn_id)",
            ),
        ),
        caught_by=("tests/engine/test_guarantees.py::test_a_worker_that_was_taken_over_writes_nothing",),
        says="DID NOT RAISE FenceLost",
    ),
    Mutant(
        name="a call's outcome is stored without its fence",
        edits=(
            (
                "tools.calls:_held",
                'ToolCall.objects.held(Given("id"), Given("fence"))',
                'ToolCall.objects.filter(pk=Given("id"))',
            ),
        ),
        caught_by=("tests/unit/tools/test_gate.py::test_an_outcome_that_comes_after_another_does_not_overwrite_it",),
        says="assert ('SUCCESS', '') == ",
    ),
    Mutant(
        name="no unique index",
        edits=(
            (
                "conversations.migrations.0003_growth:Migration",
                """fields=("conversation",),
                name="one_active_turn_a_conversation",""",
                """fields=("id",),
                name="one_active_turn_a_conversation",""",
            ),
        ),
        caught_by=(
            "tests/engine/test_guarantees.py::test_the_database_admits_one_active_turn_a_conversation",
            "tests/engine/test_guarantees.py::test_a_claim_that_the_index_refuses_is_no_claim",
        ),
        says="DID NOT RAISE IntegrityError",
    ),
    Mutant(
        name="a turn overtakes the one before it",
        edits=(
            (
                "conversations.models.turn:TurnQuerySet.claimable",
                "self.due().filter(~Exists(earlier), ",
                "self.due().filter(",
            ),
        ),
        caught_by=("tests/engine/test_claims.py::test_a_turn_is_not_claimed_while_an_earlier_one_is_open",),
        says="is None",
    ),
    Mutant(
        name="notification before commit",
        edits=(
            (
                "conversations.engine.doorbell:notify",
                "transaction.on_commit(lambda: _publish(kind, row_id))",
                "_publish(kind, row_id)",
            ),
        ),
        caught_by=(
            "tests/engine/test_guarantees.py::test_nobody_hears_a_notification_before_its_commit",
            "tests/engine/test_guarantees.py::test_a_notification_whose_transaction_fails_is_never_heard",
        ),
        says="Left contains one more item: ('turn', UUID(",
    ),
    Mutant(
        name="ack late",
        edits=(
            (
                "conversations.tasks:pass_on.hear",
                "        message.ack_log_error(logger, consumer.connection_errors)\n",
                "",
            ),
            ("nanohost.lib.broker:Transport._deliver", "        if not hear or ", "        if hear or "),
            ("nanohost.settings", '"ack_emulation": False,', '"ack_emulation": True,'),
        ),
        caught_by=(
            "tests/engine/test_guarantees.py::test_a_notification_is_acknowledged_when_it_is_heard_and_not_when_its_work_is_done",
        ),
        says="not within 60 s",
        shape=PRODUCTION,
    ),
    Mutant(
        name="no sweeper",
        edits=(
            (
                "conversations.engine.worker:Runtime._serve",
                "            asyncio.create_task(self._every(settings.SWEEP_SECONDS, self._sweep)),\n",
                "",
            ),
        ),
        caught_by=(
            "tests/engine/test_guarantees.py::test_the_sweeper_takes_a_turn_whose_worker_is_gone",
            "tests/engine/test_guarantees.py::test_the_sweeper_takes_a_turn_when_every_notification_was_lost",
            "tests/engine/test_guarantees.py::test_the_sweeper_takes_a_call_when_every_notification_was_lost",
        ),
        says="not within 60 s",
    ),
    Mutant(
        name="sweepers wait for one another",
        edits=(
            (
                "nanohost.lib.lease:LeaseQuerySet.find",
                "rows.select_for_update(skip_locked=True)",
                "rows.select_for_update()",
            ),
        ),
        caught_by=("tests/engine/test_guarantees.py::test_a_sweep_passes_over_what_another_worker_holds",),
        says="lock timeout",
        shape=PRODUCTION,
    ),
    Mutant(
        name="lease by local clock",
        edits=(
            (
                "nanohost.lib.clock:from_now",
                "return ExpressionWrapper(Now() + after, output_field=DateTimeField())",
                "return ExpressionWrapper(Here() + after, output_field=DateTimeField())",
            ),
            (
                "nanohost.lib.clock",
                "\n\ndef from_now(",
                "\n\nclass Here(Now):\n"
                "    def as_sqlite(self, compiler, connection, **extra):\n"
                '        return "%s", [timezone.now().replace(tzinfo=None).isoformat(" ")]\n\n\n'
                "def from_now(",
            ),
            (
                "nanohost.lib.clock",
                "from django.db.models.functions import Now\n",
                "from django.db.models.functions import Now\nfrom django.utils import timezone\n",
            ),
        ),
        caught_by=(
            "tests/engine/test_guarantees.py::test_a_worker_whose_clock_is_wrong_takes_leases_of_the_right_length",
        ),
        says="has another value each time it is written",
    ),
    Mutant(
        name="no heartbeat",
        edits=(("conversations.engine.worker:Runtime._beat", "await runner.renew(self._heart)", "pass"),),
        caught_by=("tests/engine/test_worker.py::test_the_heartbeat_renews_leases_and_reports_its_pool",),
        says="not within 60 s",
    ),
    Mutant(
        # As READ COMMITTED shows them: siblings that end at the same time have not committed yet when they are counted.
        name="siblings counted, and only the last call notifies",
        edits=(
            (
                "tools.gate:run",
                "            if not outcome.stored:\n",
                "            siblings = ToolCall.objects.open().filter(turn_id=call.turn_id).exclude(pk=call.pk)\n"
                "            siblings = siblings.count()\n"
                "            if not outcome.stored:\n",
            ),
            (
                "tools.gate:run",
                "        _audit(call, outcome, duration_ms)\n        then(call)\n",
                "        _audit(call, outcome, duration_ms)\n        if not siblings:\n            then(call)\n",
            ),
        ),
        caught_by=("tests/engine/test_guarantees.py::test_calls_that_end_side_by_side_notify_their_turn",),
        says="nobody notified of the turn",
    ),
    Mutant(
        name="siblings counted in the transaction that ends the call",
        edits=(
            (
                "tools.gate:run",
                "            if not outcome.stored:\n"
                '                _stored("an outcome", partial(_end, call, outcome, duration_ms, storing))\n',
                "            with transaction.atomic():\n"
                "                calls.end(call, outcome, duration_ms=duration_ms)\n"
                "                siblings = ToolCall.objects.open().filter(turn_id=call.turn_id).count()\n",
            ),
            (
                "tools.gate:run",
                "        _audit(call, outcome, duration_ms)\n        then(call)\n",
                "        _audit(call, outcome, duration_ms)\n        if not siblings:\n            then(call)\n",
            ),
        ),
        caught_by=("tests/engine/test_guarantees.py::test_calls_that_end_side_by_side_notify_their_turn",),
        says="nobody notified of the turn",
        shape=PRODUCTION,
    ),
    Mutant(
        name="the intake is not looked at with each message",
        edits=(
            (
                "conversations.engine.inbox:_take_unless_paused",
                "_taking(lambda: _place().filter(~Exists(IntakePause.objects.current())))",
                "_taking(_place)",
            ),
        ),
        caught_by=("tests/engine/test_intake.py::test_a_new_turn_is_refused_and_nothing_is_stored",),
        says="assert 202 == 503",
    ),
    Mutant(
        name="what is held is not let in by itself",
        edits=(
            (
                "conversations.models.turn:TurnQuerySet.due",
                "~Q(waiting_for=WaitingFor.INTAKE) | ~Exists(IntakePause.objects.current())",
                "~Q(waiting_for=WaitingFor.INTAKE)",
            ),
        ),
        caught_by=(
            "tests/engine/test_intake.py::test_one_that_is_held_is_let_in_also_if_it_was_stored_as_the_intake_was_resumed",
        ),
        says="assert",
    ),
    Mutant(
        name="what is held is worked on",
        edits=(
            (
                "conversations.models.turn:TurnQuerySet.due",
                "Q(status=TurnStatus.QUEUED) & on_time & is_let_in",
                "Q(status=TurnStatus.QUEUED) & on_time",
            ),
        ),
        caught_by=("tests/engine/test_intake.py::test_a_schedules_run_is_held_and_begins_when_the_intake_is_resumed",),
        says="assert",
    ),
    Mutant(
        name="a requeued turn stays with its worker",
        edits=(
            (
                "conversations.engine.turn_control:_take_away",
                """            status=TurnStatus.WAITING,
            waiting_for=WaitingFor.RETRY,
            fence=F("fence") + 1,
            lease_until=None,
            **_anew(),
""",
                "            **_anew(),\n",
            ),
        ),
        caught_by=("tests/engine/test_endings.py::test_a_turn_that_is_requeued_is_taken_from_its_worker",),
        says="DID NOT RAISE FenceLost",
    ),
    Mutant(
        name="a requeued turn has its calls run again",
        edits=(
            (
                "conversations.engine.turn_control:_hurry",
                "            for call_id in ToolCall.objects.open()",
                """            ToolCall.objects.open().filter(turn_id=turn.pk).update(status="QUEUED")
            for call_id in ToolCall.objects.open()""",
            ),
        ),
        caught_by=("tests/engine/test_endings.py::test_a_requeued_turn_runs_no_call_again_whose_effects_are_unknown",),
        says="'SUCCESS'",
    ),
    Mutant(
        name="whoever sees the queue may act on it",
        edits=(
            (
                "nanohost.console.queue_page:steer",
                "if act is None or not _may(request, act):",
                "if act is None:",
            ),
        ),
        caught_by=("tests/console/test_console_queue.py::test_nobody_else_does_anything",),
        says="assert 302 == 403",
    ),
    Mutant(
        name="what people do to turns is not logged",
        edits=(("conversations.admin.bulk_actions:steer", "    if done:\n", "    if not done:\n"),),
        caught_by=(
            "tests/console/test_console_queue.py::test_one_or_many_are_acted_on_once_it_is_confirmed_with_a_reason",
        ),
        says="assert set() == ",
    ),
    Mutant(
        name="numbers read before they are taken",
        edits=(
            (
                "conversations.engine.inbox:_take_number",
                "    taken = _take_unless_paused(conversation_id=conversation_id)\n",
                """    mine = Conversation.objects.filter(pk=conversation_id)
    if (number := mine.values_list("next_turn", flat=True).first()) is None:
        raise NotFound()
    mine.update(next_turn=number + 1, updated_at=Now())
    from nanohost.lib.clock import read
    taken = [(number + 1, 0, read())]
""",
            ),
        ),
        caught_by=("tests/engine/test_inbox.py::test_concurrent_messages_get_numbers_without_gaps",),
        says="one_turn_a_number",
        shape=PRODUCTION,
    ),
    Mutant(
        name="the gate decides only once",
        edits=(
            (
                "tools.gate:_decide_and_run",
                "        tool, setting = admit(call.tool_name, agent_tools=allowed)\n        arguments",
                "        tool, setting = registry.get(call.tool_name), ToolSetting()\n        arguments",
            ),
        ),
        caught_by=("tests/unit/tools/test_gate.py::test_what_is_taken_back_before_the_start_is_refused_at_the_start",),
        says="('SUCCESS', '') == ",
    ),
    Mutant(
        name="taint counts only when a call is asked for",
        edits=(("tools.gate:_decide_and_run", "        check_taint(tool, allowed)\n", ""),),
        caught_by=("tests/engine/test_taint.py::test_a_call_is_decided_on_again_when_it_starts",),
        says="('SUCCESS', '') == ",
    ),
    Mutant(
        name="what a cancelled turn has read taints nothing",
        edits=(
            (
                "conversations.engine.steps:close_round",
                "take_seqs(conversation_id, len(results), marks=marks)",
                "take_seqs(conversation_id, len(results))",
            ),
        ),
        caught_by=("tests/engine/test_taint.py::test_a_round_that_is_cut_short_taints_all_the_same",),
        says="assert '' == 'the tool http_get'",
    ),
    Mutant(
        name="what is learnt of untrusted text is not marked",
        edits=(
            ("conversations.engine.compacting.compaction:apply", '    came_from["tainted_by"] = part.learnt_in\n', ""),
        ),
        caught_by=("tests/engine/test_taint.py::test_it_survives_a_summary_which_is_marked",),
        says="== 'conversation ",
    ),
    Mutant(
        name="what a dead worker started is run again",
        edits=(
            (
                "tools.calls:_again",
                'Q(effects__in=REPEATABLE, attempts__lt=Given("most_attempts"))',
                'Q(attempts__lt=Given("most_attempts"))',
            ),
        ),
        caught_by=(
            "tests/unit/tools/test_gate.py::test_a_call_with_side_effects_whose_worker_died_is_unknown_and_never_run_again",
        ),
        says="('SUCCESS', '', 2) == ",
    ),
    Mutant(
        name="an answer is stored once or lost",
        edits=(
            (
                "conversations.engine.turns:TurnRunner._stored",
                'self.database.store(self._tries("what became of a turn", claim), store, claim, *args, **kwargs)',
                "self.database(store, claim, *args, **kwargs)",
            ),
        ),
        caught_by=("tests/engine/test_worker.py::test_an_answer_outlives_a_database_that_is_away_for_a_moment",),
        says="['model call', 'model call'] == ['model call']",
    ),
    Mutant(
        name="an outcome is stored again over the connection that was cut",
        edits=(
            (
                "nanohost.lib.database:store_again",
                "            with borrowed_connection():\n                return store()\n",
                "            return store()\n",
            ),
        ),
        caught_by=("tests/engine/test_cut_connections.py::test_what_one_statement_stores_outlives_the_connection_too",),
        says="OperationalError",
        shape=PRODUCTION,
    ),
    Mutant(
        name="a connection is held while a tool runs",
        edits=(
            (
                "tools.sandbox.children:run_in_child",
                "    close_old_connections()  # none is kept while the tool runs\n",
                "",
            ),
        ),
        caught_by=("tests/engine/test_guarantees.py::test_no_connection_is_held_while_a_tool_runs",),
        says="('SUCCESS', 1) == ",
        shape=PRODUCTION,
    ),
    Mutant(
        name="connections are held while a model is silent",
        edits=(
            (
                "nanohost.lib.database_threads:DatabaseThreads.__call__.call",
                "            with borrowed_connection():\n                return context.run(",
                "            if True:\n                return context.run(",
            ),
        ),
        caught_by=("tests/engine/test_guarantees.py::test_no_connection_is_held_while_a_model_is_silent",),
        says="not within 60 s",
        shape=PRODUCTION,
    ),
    Mutant(
        name="a silent broker is tried again and again",
        edits=(
            (
                "conversations.engine.doorbell:Broker.notify",
                "if time.monotonic() - failed_at < LEFT_ALONE_SECONDS or not self._trying",
                "if not self._trying",
            ),
        ),
        caught_by=(
            "tests/engine/test_doorbell.py::test_a_broker_that_never_answers_holds_nobody_up_and_is_then_left_alone",
        ),
        says="assert 3 == 1",
    ),
)


def _edits_of(name: str) -> tuple[tuple[str, str, str], ...]:
    return next(mutant.edits for mutant in MUTANTS if mutant.name == name)


# Taken out of the whole production shape, on servers of its own: the trials see it too.
_CLOCK = "from nanohost.lib.clock import Now, from_now\n"
_TRIALS = "tests/faults/test_production.py::"
MUTANTS += (
    Mutant(
        name="no sweeper, on trial",
        edits=_edits_of("no sweeper"),
        caught_by=(f"{_TRIALS}test_redis_is_lost[once-FLUSHALL]",),
        says="not ended within 60 s",
    ),
    Mutant(
        # Of turns, and as it would be written: taken and looked at by a worker's own clock. Were only the first so, the
        # worker's own sweep would find, and pass over, what others could have stolen.
        name="lease by local clock, on trial",
        edits=(
            (
                "conversations.engine.lease:_claimed_now",
                'lease=Given("lease", DurationField())),',
                'lease=Given("lease", DurationField())) | {"lease_until": Given("lease")},',
            ),
            (
                "conversations.engine.lease:claim",
                '"lease": lease_length()',
                '"lease": timezone.now() + lease_length()',
            ),
            (
                "conversations.models.turn:Turn.renewed",
                "Least(from_now(lease), ",
                "Least(timezone.now() + timedelta(seconds=lease), ",
            ),
            (
                "conversations.models.turn",
                "import re\n",
                "import re\nfrom datetime import timedelta\n\nfrom django.utils import timezone\n",
            ),
            (
                "nanohost.lib.lease:Leased.expired",
                "Q(status=cls.LEASED, lease_until__lt=Now())",
                "Q(status=cls.LEASED, lease_until__lt=from_now(ahead()))",
            ),
            (
                "conversations.engine.lease",
                "from django.conf import settings\n",
                "from django.conf import settings\nfrom django.utils import timezone\n",
            ),
            # A statement that would freeze the time is refused, so it is told by how far its clock is ahead.
            (
                "nanohost.lib.lease",
                _CLOCK,
                f"from django.utils import timezone\n{_CLOCK}from nanohost.lib.clock import read\n\n\n"
                "def ahead():\n    return round((timezone.now() - read()).total_seconds(), -1)\n",
            ),
        ),
        caught_by=(f"{_TRIALS}test_clocks_ten_minutes_apart_steal_no_lease[1]",),
        says="two models at once",
    ),
    Mutant(
        name="whoever notifies waits for a silent broker, on trial",
        edits=(("nanohost.settings", '        "socket_timeout": 1,\n', ""),),
        caught_by=(f"{_TRIALS}test_redis_is_lost[once-hang]",),
        says="an answer waited for Redis",
    ),
    Mutant(
        name="a stop waits for no tool, on trial",
        edits=(
            (
                "tools.sandbox.children:ChildPool.stop",
                "def stop(self, *, grace: float = 4.0)",
                "def stop(self, *, grace: float = 0.0)",
            ),
        ),
        caught_by=(f"{_TRIALS}test_rolling_restarts_fail_no_turn[1-1-4]",),
        says="'UNKNOWN', ",
    ),
    Mutant(
        name="a schedule is fired whoever was first",
        edits=(
            (
                "scheduler.ticking:_take",
                'active=True, next_at=Given("next_at"), revision=Given("revision")',
                'active=True, revision=Given("revision")',
            ),
        ),
        caught_by=("tests/unit/scheduler/test_ticking.py::test_who_comes_second_with_an_earlier_look_fires_nothing",),
        says="assert 2 == 1",
    ),
    Mutant(
        name="a schedule is fired as it was before it was changed",
        edits=(
            (
                "scheduler.ticking:_take",
                'next_at=Given("next_at"), revision=Given("revision")',
                'next_at=Given("next_at")',
            ),
        ),
        caught_by=(
            "tests/unit/scheduler/test_ticking.py::test_what_was_changed_since_it_was_looked_at_is_not_fired_as_it_was",
        ),
        says="assert 1 == 0",
    ),
    Mutant(
        name="a schedule moves on in one transaction and speaks in another",
        edits=(
            (
                "scheduler.ticking:fire",
                "    with transaction.atomic():\n        try:\n            planned",
                "    if True:\n        try:\n            planned",
            ),
        ),
        caught_by=("tests/unit/scheduler/test_ticking.py::test_a_tick_that_dies_in_between_has_done_nothing",),
        says="assert",
    ),
    Mutant(
        name="a scheduled run does not wait for the one before it",
        edits=(("scheduler.ticking:plan", " - runs.count_open(schedule)", ""),),
        caught_by=("tests/unit/scheduler/test_ticking.py::test_a_run_that_has_not_ended_lets_the_next_pass",),
        says="skipped",
    ),
    Mutant(
        name="the hour that comes twice",
        edits=(
            (
                "scheduler.times:Cron._fixed",
                "if (at := _first_instant(wall, self.zone)) > last:",
                "if at := _first_instant(wall, self.zone):",
            ),
        ),
        caught_by=("tests/unit/scheduler/test_times.py::test_cron_runs_when_a_walk_over_every_minute_says",),
        says="assert",
    ),
    Mutant(
        name="the last run of a schedule is tried once",
        edits=(
            (
                "scheduler.runs:_may_be_tried_again",
                'return not schedule.cancelled_at and (schedule.state != "paused" or run.by_hand)',
                "return schedule.active or run.by_hand",
            ),
        ),
        caught_by=(
            "tests/unit/scheduler/test_ticking.py::test_the_last_run_of_a_schedule_is_tried_again_as_well_and_its_owner_is_told",
            "tests/unit/scheduler/test_ticking.py::test_a_run_by_hand_that_fails_after_its_schedule_was_cancelled_is_not_tried_again",
        ),
        says="assert 0 == 1",
    ),
    Mutant(
        name="an agent has the schedules of all owners",
        edits=(("scheduler.agent_tools:_own", "filter(owner=caller.owner_id, agent__name", "filter(agent__name"),),
        caught_by=(
            "tests/unit/scheduler/test_schedule_tool.py::test_what_is_not_its_own_answers_as_if_it_did_not_exist",
            "tests/unit/scheduler/test_schedule_tool.py::test_a_list_has_its_own_owners_and_agents_alone",
        ),
        says="SUCCESS",
    ),
    Mutant(
        name="an agent has the schedules of its owner's other agents",
        edits=(
            ("scheduler.agent_tools:_own", "owner=caller.owner_id, agent__name=caller.agent", "owner=caller.owner_id"),
        ),
        caught_by=(
            "tests/unit/scheduler/test_schedule_tool.py::test_what_is_not_its_own_answers_as_if_it_did_not_exist",
            "tests/unit/scheduler/test_schedule_tool.py::test_a_list_has_its_own_owners_and_agents_alone",
        ),
        says="SUCCESS",
    ),
    Mutant(
        name="an outage is waited for by count, and not by time",
        edits=(
            (
                "conversations.engine.turns:_next_try",
                "(code not in OUTAGES and before >= settings.TURN_MAX_ATTEMPTS)",
                "before >= settings.TURN_MAX_ATTEMPTS",
            ),
        ),
        caught_by=("tests/engine/test_retries.py::test_nobody_listens_for_minutes",),
        says="assert",
    ),
    Mutant(
        name="a wait that a provider asks for is taken at its word, however short",
        edits=(
            ("agent.llm.answers:retry_after", "seconds if seconds >= 1 and math", "seconds if math"),
            (
                "conversations.engine.turns:_next_try",
                "seconds = max(seconds, wait * random",
                "seconds = wait * (random",
            ),
        ),
        caught_by=(
            "tests/engine/test_retries.py::test_an_outage_of_five_minutes_loses_no_answer"
            "[429 and next to no Retry-After]",
        ),
        says="it has ended after",
    ),
    Mutant(
        name="a beat waits until its clock has caught up",
        edits=(
            (
                "scheduler.beat:SystemScheduler._come_back_from_the_future",
                "        if not ahead:\n",
                "        if True:\n",
            ),
        ),
        caught_by=(
            "tests/unit/scheduler/test_beat.py::test_a_job_that_last_ran_in_the_future_is_due_by_the_clock_as_it_is",
        ),
        says="not within",
    ),
    Mutant(
        name="schedules are made by schedules",
        edits=(("scheduler.agent_tools:schedule", "if is_scheduled(caller.turn_id) and", "if False and"),),
        caught_by=("tests/unit/scheduler/test_schedule_tool.py::test_a_turn_of_the_clock_may_not_use_it",),
        says="A turn that was begun by the clock",
    ),
    Mutant(
        name="schedules are counted without a lock",
        edits=(("scheduler.agent_tools:schedule", "objects.select_for_update(no_key=True).get", "objects.get"),),
        caught_by=(
            "tests/unit/scheduler/test_schedule_tool.py::test_calls_side_by_side_do_not_both_get_the_last_place",
        ),
        says="assert",
        shape=PRODUCTION,
    ),
    Mutant(
        name="an agent has several open check-ins",
        edits=(("scheduler.migrations.0002_heartbeat:Migration", 'fields=("agent",)', 'fields=("id",)'),),
        caught_by=(
            "tests/unit/scheduler/test_check_in.py::test_one_that_has_not_ended_lets_the_next_pass",
            "tests/unit/scheduler/test_check_in.py::test_many_who_look_at_once_ask_once",
        ),
        says="skipped",
    ),
    Mutant(
        name="a check-in without anything to do",
        edits=(
            ("scheduler.check_in:_look_after", "if not has_something_to_do(agent.documents[HEARTBEAT]):", "if False:"),
        ),
        caught_by=("tests/unit/scheduler/test_check_in.py::test_there_is_nothing_to_do_and_no_model_is_asked",),
        says="assert [1, 0, 0] == [0, 0, 0]",
    ),
    Mutant(
        name="check-ins without a cap",
        edits=(("scheduler.check_in:_look_after", ">= settings.HEARTBEAT_TOKENS_A_DAY:", "< 0:"),),
        caught_by=(
            "tests/unit/scheduler/test_check_in.py::test_the_tokens_of_a_day_are_capped_and_its_owner_is_told_once",
        ),
        says="capped",
    ),
    Mutant(
        name="what a check-in has to tell is told twice",
        edits=(("scheduler.check_in:_settle", "filter(pk=row.pk, ended_at=None).update", "filter(pk=row.pk).update"),),
        caught_by=("tests/unit/scheduler/test_check_in.py::test_many_who_see_the_answer_deliver_it_once",),
        says="assert",
    ),
    Mutant(
        name="the host speaks into the middle of a turn",
        edits=(
            (
                "conversations.engine.inbox:note",
                "if Turn.objects.filter(conversation_id=conversation_id, status__in=ACTIVE).exists():",
                "if False:",
            ),
        ),
        caught_by=(
            "tests/unit/scheduler/test_ticking.py::test_its_owner_is_told_between_turns_and_nothing_is_lost_meanwhile",
        ),
        says="assert",
    ),
)


def copy_of_the_code(to: Path) -> Path:
    """The tree without what is made from it."""
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(*NOT_COPIED))
    return to


def file_of(place: str) -> str:
    """The file of an edit's place, below the root."""
    return f"{place.partition(':')[0].replace('.', '/')}.py"


def mutate(root: Path, mutant: Mutant) -> None:
    """Apply the edits; fails if the code no longer reads as they expect."""
    for place, old, new in mutant.edits:
        file = root / file_of(place)
        text = file.read_text()
        start, end = _span(text, place.partition(":")[2])
        found = text[start:end].count(old)
        assert found == 1, f"{place} has changed: {found} places read {old!r}"
        file.write_text(text[:start] + text[start:end].replace(old, new) + text[end:])


def _span(source: str, qualname: str) -> tuple[int, int]:
    """Where the lines of a function, class or assigned name begin and end; those of the module without a name."""
    found: ast.AST = ast.parse(source)
    for name in filter(None, qualname.split(".")):
        defined = [node for node in ast.walk(found) if node is not found and name in _names(node)]
        assert defined, f"there is no {qualname}"
        found = defined[0]
    if isinstance(found, ast.Module):
        return 0, len(source)
    lines = source.splitlines(keepends=True)
    first = min(node.lineno for node in (found, *getattr(found, "decorator_list", ())))
    return len("".join(lines[: first - 1])), len("".join(lines[: found.end_lineno]))


def _names(node: ast.AST) -> list[str]:
    """What a statement defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def run_tests(root: Path, tests: tuple[str, ...], *, shape: str) -> subprocess.CompletedProcess[str]:
    """Run tests of a copy on a shape, with this environment's Python and servers, and nothing else of it."""
    passed_on = ("PATH", "HOME", "LANG", "TMPDIR", "TEST_DATABASE_URL", "TEST_REDIS_URL")
    environment = {name: os.environ[name] for name in passed_on if name in os.environ} | {"TEST_SHAPE": shape}
    return subprocess.run(
        leashed([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--numprocesses", "0", "-m", "", *tests]),
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
