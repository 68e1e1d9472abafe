"""The admin's site that the console is."""

from functools import cache
from typing import Any, cast

from django.contrib import admin
from django.core.checks import CheckMessage
from django.db.models import Model
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from unfold.sites import UnfoldAdminSite


class ConsoleSite(UnfoldAdminSite):
    """The theme's, whose pages do not pay for a list that they do not show."""

    def get_urls(self) -> list[Any]:
        """The addresses of its pages."""
        model_pages()
        return cast(list[Any], super().get_urls())

    def check(self, app_configs: Any) -> list[CheckMessage]:
        """What Django finds wrong with its pages."""
        model_pages()
        return super().check(app_configs)

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Every app with its models and their addresses, once somebody looks at it.

        Django makes it for each page: four permissions and two addresses of some sixty models, a third of the
        processor time of a page whose side shows the doors instead.
        """
        made = super().get_app_list
        return cast(list[Any], SimpleLazyObject(lambda: made(request, app_label)))


def model_pages() -> dict[type[Model], Any]:
    """The console's pages by their models. Every app's are loaded when they are first asked for: workers and beat show
    none, and do without their 15 MB."""
    _load_pages()
    return admin.site._registry


@cache
def _load_pages() -> None:
    admin.autodiscover()
