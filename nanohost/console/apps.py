from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "nanohost.console"
    label = "console"
    verbose_name = "console"

    def ready(self) -> None:
        from nanohost.console import audited, holding

        audited.connect()
        holding.connect()
