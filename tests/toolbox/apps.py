from django.apps import AppConfig


class ToolboxConfig(AppConfig):
    name = "tests.toolbox"
    label = "toolbox"
