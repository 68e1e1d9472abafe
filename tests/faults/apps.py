import os

from django.apps import AppConfig


class FaultsConfig(AppConfig):
    name = "tests.faults"
    label = "faults"

    def ready(self) -> None:
        from tests.faults.kill import Fault, install

        if point := os.environ.get("FAULT_AT"):
            install(Fault(point))
