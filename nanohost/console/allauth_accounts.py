"""allauth's accounts, where its sign-in is used: its models alone. Its own configuration asks for a middleware for each
request, which only its pages need."""

from typing import Any

from django.apps import AppConfig


class AllauthAccounts(AppConfig):
    name = "allauth.account"
    default_auto_field: Any = "django.db.models.AutoField"
