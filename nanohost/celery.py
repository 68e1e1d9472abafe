"""The Celery application. The database is the queue; what travels over the broker is only "look at row N"."""

import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_init, worker_shutdown, worker_shutting_down
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "nanohost.settings")


def make_app(*, current: bool = True) -> Celery:
    """A configured application. A process that runs several workers needs one each: it carries the choice of queues."""
    made = Celery("nanohost", set_as_current=current)
    made.config_from_object("django.conf:settings", namespace="CELERY")
    made.autodiscover_tasks()
    return made


app = make_app()


@setup_logging.connect
def _leave_logging_alone(**_: Any) -> None:
    """Django has set logging up; with a receiver here, Celery does not do it over."""


@worker_init.connect
def _start_runtime(**_: Any) -> None:
    from conversations.worker import runtime

    if not settings.EMBEDDED:  # there, the lifespan starts and stops it
        runtime().start()


@worker_shutting_down.connect
def _stop_tools(**_: Any) -> None:
    from tools import gate

    if not settings.EMBEDDED:
        gate.stop_tools()


@worker_shutdown.connect
def _stop_runtime(**_: Any) -> None:
    from conversations.worker import runtime
    from tools import gate

    if not settings.EMBEDDED:
        runtime().stop()
        gate.close_tools()
