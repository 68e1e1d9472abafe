"""What a model can do besides text. A provider's row says what its API takes; of some models it is known that they take
less. Of others nothing is known: they are asked, and their provider's refusal is told."""

import re

from agent import llm
from agent.errors import NoProvider

# Names of models, behind what names a vendor, that take text alone: by their providers' own lists.
_BLIND = re.compile(
    r"gpt-3\.5|gpt-4-(?:0314|0613|32k)|gpt-4\Z|o1-mini|o1-preview|o3-mini|gpt-oss|claude-2|claude-instant|claude-3-5-haiku"
    r"|deepseek(?!-vl|-ocr)|mi[sx]tral-(?:7b|8x|nemo|tiny)|codestral|llama-?(?:2|3\.1|3\.3|3-)|llama3(?:\.[13])?(?![.0-9])"
    r"|qwen(?!.*(?:vl|omni|qvq))(?:1\.5|2\.5|2|3)?(?!\.)-|qwq|glm-(?:4|4\.[5-7]|5)(?!v|\.\dv)|moonshot-v1-(?!.*vision)|kimi-k2(?!\.5)"
    r"|minimax-m|command-r|phi-[123](?!.*vision)"
)


def can_see(model: str, provider: str = "") -> bool:
    """Whether a model may be sent pictures. ``provider``: the one that its agent names, if it names one."""
    try:
        choice = llm.choose(model, provider)
    except NoProvider:
        return True  # nobody is asked: that is what is told
    name = choice.model.rsplit("/", 1)[-1].lower()
    return choice.provider.images and not _BLIND.match(name)
