"""A worker of tool calls that kills itself at a point: as :mod:`tests.faults.compacting`, for calls.

All that is written while a call is run counts as the gate's: ``gate.run:inside:3`` is its third statement that writes,
``gate.run:before:2`` its second commit.
"""

import os
import sys
from uuid import UUID

from tests.faults.compacting import main


def work(call_id: UUID, point: str) -> None:
    """Claim the call and run it, or die on the way."""
    from tests.faults import kill
    from tools import gate

    kill.PLACES = {"tools.gate": "gate"}
    kill.install(kill.Fault(point))
    gate.run(
        call_id,
        agent_tools=lambda claimed: gate.AgentTools(names=None),
        worker=f"worker-{os.getpid()}",
        on_start=lambda claimed: None,
        then=lambda ended: None,
    )


if __name__ == "__main__":
    main(sys.argv[1], work)
