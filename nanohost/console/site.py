"""The admin's site that the console is."""

from typing import Any, cast

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from unfold.sites import UnfoldAdminSite


class ConsoleSite(UnfoldAdminSite):
    """The theme's, whose pages do not pay for a list that they do not show."""

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Every app with its models and their addresses, once somebody looks at it.

        Django makes it for each page: four permissions and two addresses of some sixty models, a third of the
        processor time of a page whose side shows the doors instead.
        """
        made = super().get_app_list
        return cast(list[Any], SimpleLazyObject(lambda: made(request, app_label)))
