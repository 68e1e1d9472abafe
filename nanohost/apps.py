"""The project as an app, so that its own commands are found."""

from django.apps import AppConfig


class NanohostConfig(AppConfig):
    """Composes the other apps; owns no models."""

    name = "nanohost"

    def ready(self) -> None:
        # Whoever sends notifications, in whatever process and thread, sends them by this application.
        from nanohost import checks  # noqa: F401 -- registers them
        from nanohost.celery import app
        from nanohost.lib import garbage, logs, process

        app.set_default()
        logs.log_uncaught()
        process.share_one_heap()
        garbage.look_seldom()
