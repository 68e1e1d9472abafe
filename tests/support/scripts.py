"""Messages that tell the scripted model what to do."""

import json
from typing import Any


def script(*steps: dict[str, Any]) -> str:
    """A message the scripted model follows, a step a call; see ``agent/llm/scripted.py``."""
    return json.dumps({"script": steps})
