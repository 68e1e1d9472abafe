"""Runs calls of custom tools. Only the gate may have a call run here; a test walks the code to see that."""

import hashlib
import json
from contextlib import suppress

from django.db import DatabaseError, close_old_connections

from tools.calls import Outcome
from tools.custom import catalogue, reading
from tools.custom.models import CustomTool
from tools.errors import CallLost
from tools.models import CallStatus
from tools.runners import AdmittedCall, InWorkspace
from tools.sandbox import modes
from tools.sandbox.box import NONE
from tools.workspace import beneath
from tools.workspace.errors import Full, PathRefused
from tools.workspace.store import name_of, open_workspace, read_file


def run_custom(runner: InWorkspace, admitted: AdmittedCall) -> Outcome:
    """Run a call once, in a process that nothing else has run in, without network and files, and never without a
    sandbox. What runs is the file as somebody has seen it, or nothing.

    Raises :class:`tools.errors.Interrupted` if a shutdown stopped it, and :class:`CallLost` if it was no longer wanted.
    """
    call = admitted.call
    if modes.in_force().mode == NONE:
        why = f"The tool {call.tool_name} does not run on this machine: there is no sandbox, and it needs one."
        refused = json.dumps({"status": "REJECTED", "rule": "requires:sandbox", "message": why})
        return Outcome(status=CallStatus.REJECTED, result=refused, rule="requires:sandbox")
    assert call.owner_id is not None  # of a version that has this runner
    workspace = name_of(agent=call.agent, owner_id=call.owner_id)
    row = CustomTool.objects.filter(pk=runner.row_id, workspace=workspace, file=runner.file, gone=False).first()
    content = _content(call.agent, call.owner_id, runner.file) if row else None
    if content is None or hashlib.sha256(content).hexdigest() != runner.hash:
        with suppress(OSError, DatabaseError):  # who looks next takes it in otherwise
            catalogue.take_in(workspace)
        text = "its file was changed or no longer exists; it was not run. An administrator has to review it first"
        return Outcome(status=CallStatus.FAILED, result=f"FAILED: {text}", rule="custom_changed")
    close_old_connections()  # none is kept while it runs
    answer = reading.run(
        content.decode(),
        file=runner.file,
        arguments=admitted.arguments,
        seconds=admitted.timeout,
        output_bytes=admitted.output_bytes,
        still_wanted=admitted.still_wanted,
        traceparent=call.traceparent,
    )
    if answer.lost:
        raise CallLost(call.pk)
    if answer.ok:
        return Outcome(status=CallStatus.SUCCESS, result=answer.text)
    return Outcome(status=CallStatus.FAILED, result=f"FAILED: {answer.text}", rule=answer.rule)


def _content(agent: str, owner_id: int, file: str) -> bytes | None:
    try:
        with open_workspace(agent=agent, owner_id=owner_id) as workspace:
            return read_file(workspace.files, beneath.parts_of(f"{catalogue.FOLDER}/{file}"))
    except (FileNotFoundError, PathRefused, Full):
        return None
