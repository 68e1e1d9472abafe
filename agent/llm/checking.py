"""Whether a provider answers: asked once, by a client of its own, so that whoever tries a key disturbs no turn."""

import asyncio
from dataclasses import dataclass

from django.conf import settings

from agent import llm
from agent.errors import LlmError
from agent.llm.base import LlmClient, ModelRequest

# One token is asked for; a model that thinks aloud first may need some for that.
CHECK_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A provider, whether it works, and what it said; of one that fails, the stable code of why and its meaning."""

    provider: str
    works: bool
    told: str


async def check(name: str, model: str = "", *, asks: bool = False, seconds: float = 0) -> Checked:
    """Ask a provider that is set up. It is enough that it lists its models, as many do; those that do not are asked for
    an answer, if a model of theirs is given. ``asks``: the model is asked in any case. ``seconds``:
    LLM_TIMEOUT_SECONDS if it is 0."""
    client = llm.new_client(name)
    try:
        async with asyncio.timeout(seconds or settings.LLM_TIMEOUT_SECONDS):
            if asks:
                return Checked(provider=name, works=True, told=await _answer(client, model))
            try:
                return Checked(provider=name, works=True, told=f"lists {len(await client.list_models())} models")
            except LlmError as error:
                if error.code == "llm_auth":
                    raise
                if not model:
                    missing = "no model of it is known that could be asked: name one as an agent's or in LLM_MODELS"
                    return Checked(provider=name, works=False, told=f"{error.code}: {error.detail}; {missing}")
            return Checked(provider=name, works=True, told=await _answer(client, model))
    except LlmError as error:
        return Checked(provider=name, works=False, told=f"{error.code}: {error.detail}")
    except TimeoutError:
        return Checked(provider=name, works=False, told="llm_timeout: no answer in time")
    finally:
        await client.close()


async def _answer(client: LlmClient, model: str) -> str:
    messages = [{"role": "user", "content": "Say yes."}]
    await client.complete(ModelRequest(model=model, messages=messages, max_tokens=CHECK_TOKENS))
    return f"{model} answers"


async def check_each(known: dict[str, str]) -> list[Checked]:
    """Each provider that is set up, all at once. ``known``: by provider, a model of it."""
    return list(await asyncio.gather(*[check(name, known.get(name, "")) for name in llm.accesses()]))
