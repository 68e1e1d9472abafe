"""Somebody who decides on an approval and kills their process at a point: as :mod:`tests.faults.compacting`.

``approvals.decide:inside:3`` is the decision's third statement that writes.
"""

import sys
from uuid import UUID

from tests.faults.compacting import main


def work(approval_id: UUID, point: str) -> None:
    """Approve it, or die on the way."""
    from conversations.engine.consent import approvals
    from tests.faults import kill
    from tests.support.voters import ANNA

    kill.PLACES = {"conversations.engine.consent.approvals": "approvals"}
    kill.install(kill.Fault(point))
    approvals.decide(approval_id, by=ANNA, decision="approve")


if __name__ == "__main__":
    main(sys.argv[1], work)
