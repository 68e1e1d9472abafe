"""What a process that stays does first: it keeps others of the same user out, tools above all."""

from agent.llm.providers import PROVIDERS
from nanohost.lib import env
from nanohost.lib.process import close_to_others
from tools import registry

# Secrets of ours that may be variables; those of tools are the tools' to name.
SECRETS = (
    *("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "METRICS_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"),
    *("NANOHOST_ADMIN_PASSWORD", "NANOHOST_API_KEY", "WEBHOOK_KEY", "EMAIL_HOST_PASSWORD"),
    "OIDC_CLIENT_SECRET",
    *("ATTACHMENTS_BUCKET_KEY", "LLM_HEADERS", "ZHIPUAI_API_KEY"),
    *(provider.key for provider in PROVIDERS.values()),
)

# What the variables begin with that rows name.
NAMED = ("CHANNEL_SECRET_", "MCP_SECRET_")


def harden() -> None:
    """Let nobody but root read this process's memory and the environment it was started with, and take the secrets out
    of the one that it hands on."""
    close_to_others()
    declared = {name for tool in registry.registered() for name in tool.secrets}
    env.take_out({*SECRETS, *declared, *env.beginning_with(NAMED)})
