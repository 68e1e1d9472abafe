"""Stop a host in the middle of everything, and start it again: what the rows say in between, and how it all ends."""

import json
import signal
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.support.hosts import Host


class StoppedHost:
    """``between``: the rows while nothing ran; ``after``: the turns once a new host has ended them."""

    def __init__(self, data_dir: Path, stop_with: signal.Signals) -> None:
        self.effects, self.looks = data_dir / "effects", data_dir / "looks"
        settings = {"CHAT_WAIT_SECONDS": "0.02", "TOOL_TIMEOUT_SECONDS": "30", "TOOL_SANDBOX": "none"}
        host = Host(data_dir, NANOHOST_EXTRA_APPS="tests.toolbox,tests.faults", **settings)
        try:
            host.start(seconds=120)
            host.allow("append_line", "look", grants=("FS_WRITE",))
            with host.client() as client:
                scripts = self._scripts()
                self.turns = {name: _ask(client, scripts[name]) for name in ("short write", "long write", "read")}
                _wait(lambda: _lines(self.effects) == 2 and _lines(self.looks) == 1)
                self.turns["model"] = _ask(client, scripts["model"])
                _wait(lambda: client.get(f"/turns/{self.turns['model']}").json()["status"] == "running")
            began = time.monotonic()
            assert host.process is not None
            host.process.send_signal(stop_with)
            host.process.wait(timeout=30)
            self.seconds = time.monotonic() - began
            self.between = {name: _rows(host, turn_id) for name, turn_id in self.turns.items()}
            host.start(seconds=120)
            with host.client() as client:
                _wait(lambda: all(_turn(client, turn_id)["endedAt"] for turn_id in self.turns.values()))
                self.after = {name: _turn(client, turn_id) for name, turn_id in self.turns.items()}
        finally:
            host.kill()

    def _scripts(self) -> dict[str, list[dict[str, Any]]]:
        def writes(line: str, seconds: float) -> dict[str, Any]:
            return {"name": "append_line", "arguments": {"path": str(self.effects), "line": line, "after": seconds}}

        looks = {"name": "look", "arguments": {"path": str(self.looks), "mark": "looked", "seconds": 3}}
        return {
            "short write": [{"call": [writes("short", 2)]}, {"say": "{results}"}],
            "long write": [{"call": [writes("long", 25)]}, {"say": "{results}"}],
            "read": [{"call": [looks]}, {"say": "{results}"}],
            "model": [{"sleep": 2, "say": "at last"}],
        }


def _ask(client: Any, script: list[dict[str, Any]]) -> str:
    conversation = client.post("/conversations").json()["conversationId"]
    response = client.post(f"/conversations/{conversation}/chat", json={"message": json.dumps({"script": script})})
    assert response.status_code == 202, response.text
    return str(response.json()["turnId"])


def _turn(client: Any, turn_id: str) -> dict[str, Any]:
    turn: dict[str, Any] = client.get(f"/turns/{turn_id}").json()
    return turn


def _rows(host: Host, turn_id: str) -> dict[str, Any]:
    (turn,) = host.sql("SELECT status, waiting_for, attempts FROM conversations_turn WHERE id = ?", UUID(turn_id))
    calls = host.sql("SELECT status, attempts FROM tools_toolcall WHERE turn_id = ?", UUID(turn_id))
    return {"turn": list(turn.values()), "calls": [list(call.values()) for call in calls]}


def _wait(condition: Any, *, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to that in time"
        time.sleep(0.02)


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0
