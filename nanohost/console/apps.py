from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "nanohost.console"
    label = "console"
    verbose_name = "console"
