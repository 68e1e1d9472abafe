"""The admin's app with the console's own site."""

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.apps import SimpleAdminConfig


class ConsoleAdmin(SimpleAdminConfig):
    """Django's admin, whose site is the console. Its pages are loaded when they are asked for
    (:func:`nanohost.console.site.model_pages`)."""

    default = False  # it is named in the settings
    default_site = "nanohost.console.site.ConsoleSite"

    def ready(self) -> None:
        super().ready()
        _ = admin.site.name  # which makes the site: Django checks those that there are
        if settings.NANOHOST_EXTRA_APPS:
            # What other people's apps do to the admin as they are loaded, they do to one whose pages are there.
            from nanohost.console.site import model_pages

            model_pages()
