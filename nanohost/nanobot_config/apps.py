from django.apps import AppConfig


class NanobotConfigConfig(AppConfig):
    name = "nanohost.nanobot_config"
    label = "nanobot_config"
    verbose_name = "nanobot's configuration"
