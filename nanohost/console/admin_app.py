"""The admin's app with the console's own site."""

from django.contrib.admin.apps import AdminConfig


class ConsoleAdmin(AdminConfig):
    """Django's admin, whose site is the console."""

    default = False  # it is named in the settings
    default_site = "nanohost.console.site.ConsoleSite"
