"""The Celery application. The database is the queue; what travels over the broker is only "look at row N"."""

import gc
import os
import signal
from typing import Any

from celery import Celery
from celery.bootsteps import StartStopStep
from celery.signals import (
    beat_init,
    celeryd_init,
    import_modules,
    setup_logging,
    worker_init,
    worker_shutdown,
    worker_shutting_down,
)
from django.conf import settings
from django.core.management.base import CommandError
from django.db import connections

from nanohost.lib import garbage
from nanohost.lib.one_core import keep_to_one_core
from nanohost.lib.redaction import redact

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nanohost.settings")
gc.disable()  # as manage.py does; this is where a worker and beat begin


def make_app(*, current: bool = True) -> Celery:
    """A configured application. A process that runs several workers needs one each: it carries the choice of queues."""
    made = Celery("nanohost", set_as_current=current)
    made.config_from_object("django.conf:settings", namespace="CELERY")
    made.autodiscover_tasks()
    return made


@import_modules.connect
def _skip_checks(**_: Any) -> None:
    """Celery has Django's checks run, and does nothing with what they find; `prepare`, `serve` and `web` refuse to go
    on with that. They would load every page of the console, of which a worker shows none. This is connected before
    Celery's own receiver, which :func:`make_app` connects."""
    os.environ.setdefault("CELERY_SKIP_CHECKS", "true")


app = make_app()


class _StopOnce(StartStopStep):
    """Once a worker was asked to stop, further SIGTERMs are not for it: Celery's handler takes a lock, and one that
    comes in the midst of another would wait for itself. Whoever's parent dies gets as many as that had threads. SIGHUP,
    upon which Celery would start itself anew without the secrets that it has read, stops it too."""

    def start(self, parent: Any) -> None:
        begin_to_stop: Any = signal.getsignal(signal.SIGTERM)

        def stop(*args: Any) -> None:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            begin_to_stop(*args)

        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop)


app.steps["worker"].add(_StopOnce)


@setup_logging.connect
def _leave_logging_alone(**_: Any) -> None:
    """Django has set logging up; with a receiver here, Celery does not do it over."""


@celeryd_init.connect
def _refuse_unknown_queues(conf: Any, options: dict[str, Any], **_: Any) -> None:
    known = [queue.name for queue in conf.task_queues]
    if unknown := sorted(set(options.get("queues") or ()) - set(known)):
        raise SystemExit(f"--queues names no queue: {', '.join(unknown)}; there are: {', '.join(known)}.")


@worker_init.connect
def _start_runtime(sender: Any, **_: Any) -> None:
    from conversations.engine.worker import start_runtime
    from conversations.kinds import BY_QUEUE
    from nanohost.hardening import harden
    from nanohost.preparation import await_database
    from tools.sandbox.modes import SandboxMissing

    if settings.EMBEDDED:  # there, the lifespan starts and stops it
        return
    harden()
    if settings.TELEMETRY:
        from nanohost.lib import telemetry

        telemetry.start()
    kinds = [BY_QUEUE[queue] for queue in sender.app.amqp.queues.consume_from]
    if len(kinds) > 1 and any(kind.is_alone for kind in kinds):
        raise SystemExit("Tools run in workers of their own, which hold no key: --queues tools, or --queues turns,...")
    if "solo" not in str(sender.pool_cls):
        raise SystemExit("Turns live on one event loop a process: --pool solo, which is the default here.")
    try:
        await_database()
        start_runtime(kinds)
        garbage.leave_out_what_there_is()
        if settings.ONE_CORE:
            keep_to_one_core()
    except (CommandError, SandboxMissing) as error:
        raise SystemExit(str(error)) from None
    except Exception as error:
        # Celery would log it, go on, and consume notifications that nobody acts on.
        raise SystemExit(redact(f"The worker could not start: {type(error).__name__}: {error}")) from error
    finally:
        # In a moment Celery closes the socket of whatever this thread still holds, as it would after a fork; the pool
        # would lend it on, by a number that is another file's by then.
        connections.close_all()


@beat_init.connect
def _harden_beat(**_: Any) -> None:
    from nanohost.hardening import harden

    harden()


@worker_shutting_down.connect
def _wind_down(**_: Any) -> None:
    from conversations.engine.worker import runtime

    if not settings.EMBEDDED:
        runtime().wind_down()


@worker_shutdown.connect
def _stop_runtime(**_: Any) -> None:
    from conversations.engine.worker import runtime

    if not settings.EMBEDDED:
        runtime().stop()
        if settings.TELEMETRY:
            from nanohost.lib import telemetry

            telemetry.stop()
