"""The Celery tasks that beat runs. Each makes its domain calls and may run any number of times, also at once."""

from celery import shared_task

from conversations.attachments import store
from conversations.deliveries import outbox
from conversations.engine import tainted_texts
from conversations.engine.channels import from_channels
from conversations.engine.consent import approval_notices, questions
from conversations.engine.replaying import evaluations, grading
from conversations.engine.retention import forget_transient
from conversations.engine.worker import forget_dead_workers
from nanohost.lib import clock
from scheduler import retention as aged
from scheduler import runs
from scheduler.check_in import ask_agents
from scheduler.daily import summarise_day
from scheduler.job_runs import forget_old as forget_old_job_runs
from scheduler.job_runs import recorded, told
from scheduler.ticking import tick as fire_what_is_due


@shared_task
def tick() -> None:
    """Fire the schedules that are due."""
    with recorded("tick") as report:
        report.did = told(fire_what_is_due(), "turn made", "turns made")


@shared_task
def daily_summary() -> None:
    """Have the day before summarised, in each conversation in which something was said."""
    with recorded("daily_summary") as report:
        report.did = told(summarise_day(now=clock.read()), "summary asked for", "summaries asked for")


@shared_task(name="scheduler.tasks.heartbeat")  # the name that beat's rows have it by
def check_in() -> None:
    """Look after the agents that have something to do by themselves."""
    with recorded("heartbeat") as report:
        report.did = told(ask_agents(now=clock.read()), "agent asked", "agents asked")


@shared_task
def retention() -> None:
    """Forget what is kept for a while only."""
    with recorded("retention") as report:
        workers, rows = forget_dead_workers(), runs.forget_old() + forget_old_job_runs() + outbox.forget_old()
        rows += from_channels.forget_old() + tainted_texts.forget_old()
        rows += questions.forget_old() + approval_notices.forget_old()
        files = store.collect()
        did = (told(workers, "worker forgotten", "workers forgotten"), told(rows, "old row", "old rows"))
        report.did = ", ".join(filter(None, (*did, told(files, "file deleted", "files deleted"))))


@shared_task(name="scheduler.tasks.evaluations")
def evaluate_sets() -> None:
    """Look after sets of cases and their runs."""
    with recorded("evaluations") as report:
        reports = grading.settle_all()
        did = (told(evaluations.look_after(), "run or decision", "runs and decisions"),)
        report.did = ", ".join(filter(None, (told(reports, "report stored", "reports stored"), *did)))


@shared_task
def data_retention() -> None:
    """Delete what is older than its agent keeps it. Not for long: a worker receives no notification meanwhile."""
    with recorded("data_retention") as report:
        transient = forget_transient(seconds=aged.RUN_SECONDS)
        report.did = ", ".join(
            filter(
                None,
                (
                    told(aged.go_on(), "row deleted by its age", "rows deleted by their age"),
                    told(transient, "transient conversation deleted", "transient conversations deleted"),
                ),
            )
        )
