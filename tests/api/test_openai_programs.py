"""Programs that others wrote use agents as models: openai-agents, LangChain, pydantic-ai and llm, as they are.

They live in an environment of their own, which `make test` makes (docs/decisions/clients-of-the-openai-api.md); each is
started once.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.agents import another_agent
from tests.support.hosts import KEY, ROOT, Host
from tests.support.openai_client import openai_client
from tests.support.scripts import script

PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="`make test` installs the programs")

USES_WEATHER = script({"call": [{"name": "weather", "arguments": {"city": "Oslo"}}]}, {"say": "It says: {results}"})


def run(host: Host, program: str, *asked: str) -> list[str]:
    """The lines that a program prints."""
    environment = {"OPENAI_BASE_URL": f"{host.address}/v1", "OPENAI_API_KEY": KEY, "PATH": "", "NO_PROXY": "*"}
    command = [PYTHON, ROOT / program, *asked]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout.splitlines()


def test_openai_agents_streams_uses_its_tool_and_keeps_its_session_here(host):
    *answers, conversation_id = run(host, "examples/openai_agents.py", "Hello", USES_WEATHER, "And now?")
    assert answers == ["You said: Hello", "It says: Rain in Oslo.", "You said: And now?"]
    with openai_client(host) as client:
        items = list(client.conversations.items.list(conversation_id, order="asc"))
    kinds = [item.type if item.type != "message" else item.role for item in items]
    own = ["user", "assistant", "user", "function_call", "function_call_output", "assistant", "user", "assistant"]
    assert kinds == own
    with host.client() as api:
        shown = api.get(f"/conversations/{UUID(conversation_id[5:])}/messages").json()["results"]
    assert shown[0]["content"] == "Hello"


def test_langchain_streams_and_uses_its_tool(host):
    answers = run(host, "examples/langchain_chat.py", "Hello", USES_WEATHER, "And now?")
    assert answers == ["You said: Hello", "It says: Rain in Oslo.", "You said: And now?"]


def test_pydantic_ai_does_all_of_it_by_both_apis(host):
    form = script({"say": '{"city": "Oslo", "degrees": 3}'})
    (told,) = run(host, "tests/clients/pydantic_chat.py", USES_WEATHER, form)
    expected = {
        "first": "You said: Hello",
        "again": "You said: And now?",
        "streamed": "You said: Streamed",
        "tool": "It says: Rain in Oslo.",
        "form": {"city": "Oslo", "degrees": 3},
    }
    assert json.loads(told) == [expected, expected]


def test_llm_talks_has_an_answer_in_a_form_and_uses_its_tool_by_both_apis(host, tmp_path):
    (shown,) = re.findall(r"```yaml\n(- model_id: nanohost\n.*?)```", (ROOT / "docs/openai.md").read_text(), re.S)
    one = shown.replace("http://HOST:8000", host.address)
    other = one.replace("model_id: nanohost", "model_id: other") + "  responses: true\n"
    (tmp_path / "extra-openai-models.yaml").write_text(one + other)
    (tmp_path / "keys.json").write_text(json.dumps({"nanohost": KEY}))

    def llm(*arguments: str) -> str:
        environment = {"LLM_USER_PATH": str(tmp_path), "PATH": "", "NO_PROXY": "*", "HOME": str(tmp_path)}
        command = [PYTHON, "-m", "llm", *arguments]
        ran = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    assert llm("-m", "nanohost", "Hello") == "You said: Hello"
    assert llm("-c", "--no-stream", "And now?") == "You said: And now?"
    form = script({"say": '{"city": "Oslo", "degrees": 3}'})
    assert json.loads(llm("-m", "nanohost", "--schema", "city, degrees int", form)) == {"city": "Oslo", "degrees": 3}
    weather = "def weather(city: str) -> str:\n    return f'Rain in {city}.'"
    for model in ("nanohost", "other"):
        assert llm("-m", model, "--functions", weather, USES_WEATHER) == "It says: Rain in Oslo."


def test_openai_agents_keeps_what_was_said_in_all_its_ways(host):
    form = script({"say": '{"city": "Oslo", "degrees": 3}'})
    with another_agent(host, "gpt-guide") as name:
        (told,) = run(host, "tests/clients/agents_cases.py", USES_WEATHER, form, name)
    weather, formed = "It says: Rain in Oslo.", {"city": "Oslo", "degrees": 3}
    assert json.loads(told) == {
        "tool": weather,
        "tool in a chain": weather,
        "form": formed,
        "streamed form": formed,
        "chain": ["You said: And now?", "You said: And then?"],
        "replay": "You said: Again?",
        "conversation": weather,
        "said in it": 6,
        "own session": "You said: And now?",
        "left of a session": ["assistant", 1],
        "compacted by input": ["You said: And now?", ["message", "message", "compaction"]],
        "compacted by previous_response_id": ["You said: And now?", ["message", "message", "compaction"]],
    }
