"""The admin's app with the console's own site."""

from django.contrib.admin.apps import SimpleAdminConfig


class ConsoleAdmin(SimpleAdminConfig):
    """Django's admin, whose site is the console. Its pages are loaded when they are asked for
    (:func:`nanohost.console.site.model_pages`)."""

    default = False  # it is named in the settings
    default_site = "nanohost.console.site.ConsoleSite"
