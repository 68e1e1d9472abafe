import os

from django.apps import AppConfig


class FaultsConfig(AppConfig):
    name = "tests.faults"
    label = "faults"

    def ready(self) -> None:
        from tests.faults import kill, witness

        if point := os.environ.get("FAULT_AT"):
            kill.install(kill.Fault(point))
        if os.environ.get("FAULT_LEDGER"):
            witness.watch_models()
            witness.watch_notifications()
        if shift := os.environ.get("FAULT_CLOCK"):
            witness.shift_clock(float(shift))
