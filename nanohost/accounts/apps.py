from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "nanohost.accounts"
    label = "accounts"
    verbose_name = "accounts"
