"""Whoever writes into the audit log and seals it, and is killed in the midst of it.

``python -m tests.faults.auditing DATABASE`` reads lines of milliseconds. It starts a process that does nothing else,
kills it so long after it has begun, and prints a line.
"""

import os
import signal
import sys
import time

import django
from django.conf import settings


def write_and_seal(begun: int) -> None:
    """For ever: entries, transactions that are rolled back, and rounds of the sealer. ``begun``: a pipe that is told of
    the first round."""
    from django.db import transaction

    from nanohost.accounts import audit

    number = 0
    while True:
        number += 1
        with transaction.atomic():
            for _ in range(number % 4):
                audit.record("host.tried", kind="process", key=os.getpid(), after={"number": number})
            if number % 5 == 0:
                transaction.set_rollback(True)
        if number % 2:
            audit.seal()
        if number == 1:
            os.write(begun, b".")


def main(database: str) -> None:
    settings.DATABASES["default"]["NAME"] = database
    django.setup()
    from django.db import connection, transaction

    from nanohost.accounts import audit

    with transaction.atomic():  # what is made at the first use, a child need not make again
        audit.record("host.tried")
        audit.seal()
        transaction.set_rollback(True)
    connection.close()
    if connection.vendor == "postgresql":
        connection.close_pool()
    for line in sys.stdin:
        begun, begins = os.pipe()
        child = os.fork()
        if not child:
            write_and_seal(begins)
        os.read(begun, 1)
        os.close(begun)
        os.close(begins)
        time.sleep(float(line) / 1000)  # the moment of a kill is by chance
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print("killed", flush=True)  # noqa: T201 -- its answer to who started it


if __name__ == "__main__":
    main(sys.argv[1])
