"""All settings, read from the environment. docs/settings.md names each; a test keeps it complete."""

import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dj_database_url
from csp import constants as csp
from django.core.exceptions import ImproperlyConfigured
from kombu import Queue

from agent.llm import providers
from conversations import kinds
from nanohost.lib import env, logs, redaction, traces
from tools.outbound import addresses

BASE_DIR = Path(__file__).resolve().parent.parent

# More threads than this is a slip of the hand.
MAX_THREADS = 1000

# --- where and how it runs ---------------------------------------------------------------------------------------
HOST = env.string("HOST", "127.0.0.1")
PORT = env.integer("PORT", 8000, minimum=0)
DATA_DIR = env.path("DATA_DIR", BASE_DIR / "var")
# `manage.py serve` sets it: web, worker and beat live in one process, started and stopped by the ASGI lifespan.
EMBEDDED = False
WEB_THREADS = env.integer("WEB_THREADS", 8, maximum=MAX_THREADS)
# Asked to stop, a web node says so many seconds that it is not ready, and still serves, before it closes its door.
WEB_DRAIN_SECONDS = env.integer("WEB_DRAIN_SECONDS", 0, minimum=0, maximum=600)
WORKER_ALIVE_FILE = env.string("WORKER_ALIVE_FILE")
MAX_BODY_BYTES = env.integer("MAX_BODY_BYTES", 1024 * 1024)
# Of a message's files together, and how many they may be. With them, its body may be larger: base64 takes four thirds.
ATTACHMENTS_MAX = env.integer("ATTACHMENTS_MAX", 10, minimum=0, maximum=100)
ATTACHMENTS_MAX_BYTES = env.integer("ATTACHMENTS_MAX_BYTES", 15 * 1024 * 1024, maximum=256 * 1024 * 1024)
MAX_MESSAGE_BYTES = MAX_BODY_BYTES + (ATTACHMENTS_MAX_BYTES * 4 // 3 + 4096 if ATTACHMENTS_MAX else 0)
# Of a message's addresses together; of each file that is read.
ATTACHMENT_FETCH_SECONDS = env.seconds("ATTACHMENT_FETCH_SECONDS", 10)
ATTACHMENT_READ_SECONDS = env.seconds("ATTACHMENT_READ_SECONDS", 10)
ATTACHMENT_TEXT_CHARS = env.integer("ATTACHMENT_TEXT_CHARS", 100_000, maximum=10_000_000)
CHAT_WAIT_SECONDS = env.seconds("CHAT_WAIT_SECONDS", 120)
# A turn that waits for tools of its caller's is cancelled after so long.
CALLER_WAIT_SECONDS = env.integer("CALLER_WAIT_SECONDS", 7 * 24 * 3600)
# Conversations of requests to /v1 that brought their whole history are kept for so many days.
TRANSIENT_DAYS = env.integer("TRANSIENT_DAYS", 30, maximum=36_500)
# Pages of these origins may call /v1 from a browser; * is every page there is.
CORS_ALLOWED_ORIGINS = env.origins("CORS_ALLOWED_ORIGINS")

# --- which shape -------------------------------------------------------------------------------------------------
# Without servers, one process on SQLite; with them, any number of processes.
DATABASE_URL = env.server("DATABASE_URL", schemes=("postgresql", "postgres"))
REDIS_URL = env.server("REDIS_URL", schemes=("redis", "rediss"))
PRODUCTION = bool(DATABASE_URL)
if bool(DATABASE_URL) != bool(REDIS_URL):
    raise ImproperlyConfigured(
        "DATABASE_URL and REDIS_URL go together: set both, or neither for one process without servers."
    )

# A tool's process sets Django up for the models and settings a tool's code may import, without what they open.
NANOHOST_TOOL_PROCESS = env.boolean("NANOHOST_TOOL_PROCESS", False)
# What `manage.py import_config` has put there, for the host that is one process. In production, each process is given
# what it is to have, and nothing else.
env.keep_in(DATA_DIR / "secrets", names=() if PRODUCTION or NANOHOST_TOOL_PROCESS else providers.KEPT)

# --- models ------------------------------------------------------------------------------------------------------
# A key each; agent/llm/providers.py is the table of those who want them.
OPENAI_API_KEY = env.key("OPENAI_API_KEY")
ANTHROPIC_API_KEY = env.key("ANTHROPIC_API_KEY")
AZURE_OPENAI_API_KEY = env.key("AZURE_OPENAI_API_KEY")
OPENROUTER_API_KEY = env.key("OPENROUTER_API_KEY")
AIHUBMIX_API_KEY = env.key("AIHUBMIX_API_KEY")
SILICONFLOW_API_KEY = env.key("SILICONFLOW_API_KEY")
VOLCENGINE_API_KEY = env.key("VOLCENGINE_API_KEY")
DEEPSEEK_API_KEY = env.key("DEEPSEEK_API_KEY")
GEMINI_API_KEY = env.key("GEMINI_API_KEY")
ZHIPUAI_API_KEY = env.key("ZHIPUAI_API_KEY")  # what others call it
ZAI_API_KEY = env.key("ZAI_API_KEY") or ZHIPUAI_API_KEY
DASHSCOPE_API_KEY = env.key("DASHSCOPE_API_KEY")
MOONSHOT_API_KEY = env.key("MOONSHOT_API_KEY")
MINIMAX_API_KEY = env.key("MINIMAX_API_KEY")
GROQ_API_KEY = env.key("GROQ_API_KEY")
HOSTED_VLLM_API_KEY = env.key("HOSTED_VLLM_API_KEY")
CUSTOM_API_KEY = env.key("CUSTOM_API_KEY")
OPENAI_CODEX_TOKEN = env.key("OPENAI_CODEX_TOKEN")
GITHUB_COPILOT_TOKEN = env.key("GITHUB_COPILOT_TOKEN")
GITHUB_COPILOT_TOKEN_URL = env.address("GITHUB_COPILOT_TOKEN_URL", "https://api.github.com/copilot_internal/v2/token")
LLM_BASE_URL = env.address("LLM_BASE_URL")
LLM_BASE_URLS = env.addresses_by_name("LLM_BASE_URLS", names=providers.PROVIDERS)
LLM_HEADERS = env.headers("LLM_HEADERS", names=providers.PROVIDERS)
AZURE_OPENAI_API_VERSION = env.string("AZURE_OPENAI_API_VERSION", "2024-10-21")
LLM_PROVIDER = env.choice("LLM_PROVIDER", "", choices=(providers.AUTO, providers.MOCK, *providers.PROVIDERS))
_configured = providers.accesses(globals().__getitem__)
LLM_PROVIDER = LLM_PROVIDER or (providers.AUTO if _configured else providers.MOCK)
LLM_MODEL_DEFAULT = env.string("LLM_MODEL_DEFAULT", "gpt-4.1-mini")
LLM_MODELS = env.words("LLM_MODELS")
LLM_TIMEOUT_SECONDS = env.seconds("LLM_TIMEOUT_SECONDS", 120)
LLM_RETRY_SECONDS = env.seconds("LLM_RETRY_SECONDS", 600)
# How long a model that fails is tried before its agent's next one is asked; and how long a provider that fails for
# everybody is left alone at first, 0 for never.
LLM_FALLBACK_SECONDS = env.seconds("LLM_FALLBACK_SECONDS", 20)
LLM_REST_SECONDS = env.integer("LLM_REST_SECONDS", 30, minimum=0, maximum=3600)
LLM_CONTEXT_WINDOW = env.integer("LLM_CONTEXT_WINDOW", 128_000, minimum=1024)
LLM_OUTPUT_RESERVE = env.integer("LLM_OUTPUT_RESERVE", 8_000, minimum=128)
CURRENCY = env.currency("CURRENCY", "USD")

if LLM_OUTPUT_RESERVE > LLM_CONTEXT_WINDOW // 2:
    raise ImproperlyConfigured("LLM_OUTPUT_RESERVE is not valid: it is more than half of LLM_CONTEXT_WINDOW.")
if LLM_PROVIDER in providers.PROVIDERS and LLM_PROVIDER not in _configured:
    raise ImproperlyConfigured(
        f"LLM_PROVIDER={LLM_PROVIDER} needs {providers.PROVIDERS[LLM_PROVIDER].key}, or LLM_BASE_URL for a server that"
        " asks none."
    )
if LLM_PROVIDER == providers.AUTO and not _configured:
    raise ImproperlyConfigured("LLM_PROVIDER=auto needs the key of a provider, or LLM_BASE_URL.")
if LLM_MODELS and LLM_MODEL_DEFAULT not in LLM_MODELS:
    raise ImproperlyConfigured(f"LLM_MODEL_DEFAULT={LLM_MODEL_DEFAULT!r} is not among LLM_MODELS.")

# --- tools -------------------------------------------------------------------------------------------------------
# The ceiling: empty means every registered tool. What the admin enables counts within it.
TOOLS_ALLOWED = env.words("TOOLS_ALLOWED")
# Whether a tool may be granted SHELL at all, which runs commands.
SHELL_GRANTABLE = env.boolean("SHELL_GRANTABLE", False)
_GRANTABLE = ["NET_HTTP", "FS_READ", "FS_WRITE", *(["SHELL"] if SHELL_GRANTABLE else [])]
PERMISSIONS_GRANTED = env.words("PERMISSIONS_GRANTED", _GRANTABLE)
# What is enabled at each start, as an admin would; the last word counts (docs/decisions/tools-enabled.md).
TOOLS_ENABLED = env.words("TOOLS_ENABLED")
TOOL_TIMEOUT_SECONDS = env.seconds("TOOL_TIMEOUT_SECONDS", 3)
TOOL_MAX_INPUT_BYTES = env.integer("TOOL_MAX_INPUT_BYTES", 64 * 1024)
TOOL_MAX_OUTPUT_BYTES = env.integer("TOOL_MAX_OUTPUT_BYTES", 64 * 1024)
TOOL_RESULT_PROMPT_CHARS = env.integer("TOOL_RESULT_PROMPT_CHARS", 16_000, minimum=100)
# After which nobody need decide on a call any more: it is denied. Seven days.
APPROVAL_EXPIRY_SECONDS = env.seconds("APPROVAL_EXPIRY_SECONDS", 7 * 24 * 3600)
# Who is told of each call that waits, by e-mail, and where the link in it leads.
APPROVAL_EMAILS = env.addresses("APPROVAL_EMAILS")
PUBLIC_URL = env.address("PUBLIC_URL").rstrip("/")
TOOL_CONCURRENCY = env.integer("TOOL_CONCURRENCY", 8, maximum=MAX_THREADS)
# Of each process a tool runs in or starts. Less than the minimum would not hold what is imported.
TOOL_MEMORY_MB = env.integer("TOOL_MEMORY_MB", 512, minimum=128, maximum=1 << 20)

# The sandbox of tools' processes: tools/sandbox/modes.py tells which is in force.
TOOL_SANDBOX = env.choice("TOOL_SANDBOX", "auto", choices=("auto", "bubblewrap", "landlock", "none"))
# All of this machine's files besides code that a tool may be granted: FS_READ, FS_WRITE.
TOOL_FOLDERS = env.words("TOOL_FOLDERS")

# The files that agents work with: a folder for each agent and owner, or for each agent.
WORKSPACES_DIR = env.path("WORKSPACES_DIR", DATA_DIR / "workspaces")
WORKSPACE_SHARED = env.boolean("WORKSPACE_SHARED", False)
WORKSPACE_MAX_BYTES = env.integer("WORKSPACE_MAX_BYTES", 100_000_000, maximum=2**40)
WORKSPACE_MAX_FILES = env.integer("WORKSPACE_MAX_FILES", 2000, maximum=100_000)
WORKSPACE_FILE_MAX_BYTES = env.integer("WORKSPACE_FILE_MAX_BYTES", 5_000_000, maximum=256 * 1024 * 1024)
# Of the request that puts one there: base64 takes four thirds.
MAX_FILE_BODY_BYTES = MAX_BODY_BYTES + WORKSPACE_FILE_MAX_BYTES * 4 // 3
# What no tool changes there, as patterns; and folders of this machine that may be read besides, or also written to.
WORKSPACE_PROTECTED_PATHS = env.patterns("WORKSPACE_PROTECTED_PATHS")
WORKSPACE_READ_FOLDERS = env.folders("WORKSPACE_READ_FOLDERS")
WORKSPACE_WRITE_FOLDERS = env.folders("WORKSPACE_WRITE_FOLDERS")

# Whether Python files in the folder tools/ of a workspace may become tools, once somebody has seen them.
CUSTOM_TOOLS = env.boolean("CUSTOM_TOOLS", False)

# MCP servers of this host, which are added and enabled at each start; secrets are named, as in the console.
MCP_SERVERS = env.objects("MCP_SERVERS", '{"clock": {"command": "python3", "args": ["-m", "mcp_server_time"]}}')

# The folder of this host's skills.
NANOHOST_SKILLS = env.string("NANOHOST_SKILLS")
# And of those that people upload in the console.
SKILLS_DIR = env.path("SKILLS_DIR", DATA_DIR / "skills")

# The tool exec: its time, folders of programs besides the system's, and texts that no command may hold.
EXEC_TIMEOUT_SECONDS = env.seconds("EXEC_TIMEOUT_SECONDS", 60)
EXEC_PATH_APPEND = env.words("EXEC_PATH_APPEND")
# Folders that programs of MCP servers see as well, such as a virtual environment of theirs.
MCP_FOLDERS = env.words("MCP_FOLDERS")
EXEC_DENY = env.words("EXEC_DENY")

# Files of messages, unless they are in a bucket.
ATTACHMENTS_DIR = env.path("ATTACHMENTS_DIR", DATA_DIR / "attachments")

_SEEN = {
    "TOOL_FOLDERS": TOOL_FOLDERS,
    "WORKSPACE_READ_FOLDERS": WORKSPACE_READ_FOLDERS,
    "WORKSPACE_WRITE_FOLDERS": WORKSPACE_WRITE_FOLDERS,
    "EXEC_PATH_APPEND": EXEC_PATH_APPEND,
    "MCP_FOLDERS": MCP_FOLDERS,
    "NANOHOST_SKILLS": [NANOHOST_SKILLS] if NANOHOST_SKILLS else [],
}
_KEPT = {
    "DATA_DIR": DATA_DIR,
    "WORKSPACES_DIR": WORKSPACES_DIR,
    "SKILLS_DIR": SKILLS_DIR,
    "ATTACHMENTS_DIR": ATTACHMENTS_DIR,
}
for name, folders in _SEEN.items():
    for folder in map(Path, folders):
        if not folder.is_absolute():
            raise ImproperlyConfigured(f"{name} is not valid: {folder} is no absolute path.")
        for reached, kept in _KEPT.items():
            if kept.is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(kept):
                raise ImproperlyConfigured(f"{name} is not valid: with {folder}, tools would reach {reached}.")
# Of a folder that is in another, a file would have two former versions and two locks.
for folder in map(Path, WORKSPACE_WRITE_FOLDERS):
    others = [Path(each) for each in WORKSPACE_WRITE_FOLDERS if each != str(folder)]
    if outer := next((each for each in others if folder.resolve().is_relative_to(each.resolve())), None):
        raise ImproperlyConfigured(f"WORKSPACE_WRITE_FOLDERS is not valid: {folder} is {outer}, or lies in it.")
# Models are told to follow what stands there, so no tool may write it.
if any(
    Path(NANOHOST_SKILLS).resolve().is_relative_to(Path(folder).resolve())
    or Path(folder).resolve().is_relative_to(Path(NANOHOST_SKILLS).resolve())
    for folder in ([*TOOL_FOLDERS, *WORKSPACE_WRITE_FOLDERS] if NANOHOST_SKILLS else [])
):
    raise ImproperlyConfigured(
        f"NANOHOST_SKILLS is not valid: {NANOHOST_SKILLS} is in one of TOOL_FOLDERS or"
        " WORKSPACE_WRITE_FOLDERS, or holds one, so that tools would write skills."
    )
if unknown := set(PERMISSIONS_GRANTED) - set(_GRANTABLE):
    raise ImproperlyConfigured(
        f"PERMISSIONS_GRANTED is not valid: {', '.join(sorted(unknown))} is not one of {', '.join(_GRANTABLE)}"
        + ("." if SHELL_GRANTABLE else " (SHELL is grantable only with SHELL_GRANTABLE=true).")
    )

# What requests to the outside may reach besides public addresses, and by which ports. Never the admin's to change.
HTTP_ALLOWED_PRIVATE_CIDRS = env.words("HTTP_ALLOWED_PRIVATE_CIDRS")
HTTP_ALLOWED_PORTS = env.words("HTTP_ALLOWED_PORTS", ["80", "443"])

# The tools web_search and web_fetch; what they are given besides are secrets: BRAVE_API_KEY, WEB_PROXY.
SEARXNG_URL = env.address("SEARXNG_URL")
WEB_SEARCH_MAX_RESULTS = env.integer("WEB_SEARCH_MAX_RESULTS", 5, maximum=10)

try:
    addresses.networks(HTTP_ALLOWED_PRIVATE_CIDRS)
except ValueError as error:
    raise ImproperlyConfigured(f"HTTP_ALLOWED_PRIVATE_CIDRS is not valid: {error}.") from None
try:
    addresses.port_numbers(HTTP_ALLOWED_PORTS)
except ValueError as error:
    raise ImproperlyConfigured(f"HTTP_ALLOWED_PORTS is not valid: {error}.") from None

# --- memory ------------------------------------------------------------------------------------------------------
# Past the first, whoever rewrites a long-term memory is asked to shorten it; nobody gets it past twice that.
MEMORY_MAX_CHARS = env.integer("MEMORY_MAX_CHARS", 16_000, minimum=100, maximum=1_000_000)
MEMORY_MOST_DROPPED = env.share("MEMORY_MOST_DROPPED", 0.5)

# --- turns -------------------------------------------------------------------------------------------------------
AGENT_MAX_TOOL_ROUNDS = env.integer("AGENT_MAX_TOOL_ROUNDS", 2, minimum=0)
MEMORY_WINDOW = env.integer("MEMORY_WINDOW", 20)
MEMORY_COMPACT_AFTER = env.integer("MEMORY_COMPACT_AFTER", 2 * MEMORY_WINDOW)
if MEMORY_COMPACT_AFTER < MEMORY_WINDOW:
    raise ImproperlyConfigured("MEMORY_COMPACT_AFTER is not valid: it is less than MEMORY_WINDOW, which is kept.")
TURN_TIMEOUT_SECONDS = env.seconds("TURN_TIMEOUT_SECONDS", 600)
TURN_MAX_ATTEMPTS = env.integer("TURN_MAX_ATTEMPTS", 5)
TURN_LEASE_SECONDS = env.seconds("TURN_LEASE_SECONDS", 30)
SWEEP_SECONDS = env.seconds("SWEEP_SECONDS", 5)
WORKER_MAX_TURNS = env.integer("WORKER_MAX_TURNS", 200, maximum=100_000)
WORKER_DB_THREADS = env.integer("WORKER_DB_THREADS", 4, maximum=MAX_THREADS)
DATABASE_POOL_SIZE = env.integer("DATABASE_POOL_SIZE", 10, maximum=MAX_THREADS)
ONE_CORE = env.boolean("ONE_CORE", True)

# --- schedules ---------------------------------------------------------------------------------------------------
SCHEDULE_GRACE_SECONDS = env.seconds("SCHEDULE_GRACE_SECONDS", 300)
SCHEDULE_MAX_FAILURES = env.integer("SCHEDULE_MAX_FAILURES", 3)
# What agents may make by the tool; people may make more, and more frequent ones.
SCHEDULE_TOOL_MOST = env.integer("SCHEDULE_TOOL_MOST", 20)
SCHEDULE_TOOL_LEAST_SECONDS = env.seconds("SCHEDULE_TOOL_LEAST_SECONDS", 600)
# Of sub-agents, which agents start by the tool spawn.
SPAWN_MAX_OPEN = env.integer("SPAWN_MAX_OPEN", 5)
SPAWN_MAX_DEPTH = env.integer("SPAWN_MAX_DEPTH", 2, maximum=10)
# Of the tokens that are left to the turn that starts one, if that has a limit.
SPAWN_BUDGET_PERCENT = env.integer("SPAWN_BUDGET_PERCENT", 50, minimum=1, maximum=100)
HEARTBEAT_MINUTES = env.integer("HEARTBEAT_MINUTES", 30, maximum=1440)
HEARTBEAT_TOKENS_A_DAY = env.integer("HEARTBEAT_TOKENS_A_DAY", 100_000)
# Of the first start: from then on, what stands in the admin counts.
SCHEDULER_DAILY_SUMMARY_ENABLED = env.boolean("SCHEDULER_DAILY_SUMMARY_ENABLED", False)
SCHEDULER_DAILY_SUMMARY_CRON = env.cron("SCHEDULER_DAILY_SUMMARY_CRON", "0 0 9 * * *")
SCHEDULER_DAILY_SUMMARY_COVERS = env.choice(
    "SCHEDULER_DAILY_SUMMARY_COVERS", "yesterday", choices=("yesterday", "last-24h")
)

# --- e-mail: Django's own settings -------------------------------------------------------------------------------
EMAIL_HOST = env.string("EMAIL_HOST")
EMAIL_PORT = env.integer("EMAIL_PORT", 25, maximum=65_535)
EMAIL_HOST_USER = env.string("EMAIL_HOST_USER")
EMAIL_HOST_PASSWORD = env.secret("EMAIL_HOST_PASSWORD")
EMAIL_USE_TLS = env.boolean("EMAIL_USE_TLS", False)
EMAIL_USE_SSL = env.boolean("EMAIL_USE_SSL", False)
EMAIL_TIMEOUT = 15
DEFAULT_FROM_EMAIL = env.string("DEFAULT_FROM_EMAIL", "nanohost@localhost")

if EMAIL_USE_TLS and EMAIL_USE_SSL:
    raise ImproperlyConfigured("EMAIL_USE_TLS and EMAIL_USE_SSL are both set; set one.")
if APPROVAL_EMAILS and not EMAIL_HOST:
    raise ImproperlyConfigured("APPROVAL_EMAILS needs EMAIL_HOST, the mail server that takes them.")

# --- metrics -----------------------------------------------------------------------------------------------------
# Whoever sends it may read /metrics; without it, this machine alone.
METRICS_TOKEN = env.key("METRICS_TOKEN")

# --- logs --------------------------------------------------------------------------------------------------------
LOG_LEVEL = env.choice("LOG_LEVEL", "INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
LOG_FORMAT = env.choice("LOG_FORMAT", "auto", choices=("auto", "json", "text"))
LOG_CONTENT = env.boolean("LOG_CONTENT", False)

# --- telemetry: by the variables that OpenTelemetry has for it ---------------------------------------------------
OTEL_SDK_DISABLED = env.boolean("OTEL_SDK_DISABLED", False)
OTEL_EXPORTER_OTLP_ENDPOINT = env.address("OTEL_EXPORTER_OTLP_ENDPOINT")
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = env.address("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
OTEL_EXPORTER_OTLP_METRICS_ENDPOINT = env.address("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
OTEL_EXPORTER_OTLP_LOGS_ENDPOINT = env.address("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT")
OTEL_EXPORTER_OTLP_HEADERS = env.secret("OTEL_EXPORTER_OTLP_HEADERS")
OTEL_EXPORTER_OTLP_PROTOCOL = env.choice("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", choices=("http/protobuf",))
OTEL_EXPORTER_OTLP_COMPRESSION = env.choice("OTEL_EXPORTER_OTLP_COMPRESSION", "none", choices=("none", "gzip"))
OTEL_EXPORTER_OTLP_CERTIFICATE = env.string("OTEL_EXPORTER_OTLP_CERTIFICATE")
OTEL_EXPORTER_OTLP_TIMEOUT = env.integer("OTEL_EXPORTER_OTLP_TIMEOUT", 10_000, maximum=600_000)
OTEL_TRACES_EXPORTER = env.choice("OTEL_TRACES_EXPORTER", "otlp", choices=("otlp", "none"))
OTEL_METRICS_EXPORTER = env.choice("OTEL_METRICS_EXPORTER", "otlp", choices=("otlp", "none"))
OTEL_LOGS_EXPORTER = env.choice("OTEL_LOGS_EXPORTER", "otlp", choices=("otlp", "none"))
OTEL_TRACES_SAMPLER = env.choice("OTEL_TRACES_SAMPLER", "parentbased_always_on", choices=traces.SAMPLERS)
OTEL_TRACES_SAMPLER_ARG = env.share("OTEL_TRACES_SAMPLER_ARG", 1.0)
OTEL_SERVICE_NAME = env.string("OTEL_SERVICE_NAME")
OTEL_RESOURCE_ATTRIBUTES = env.string("OTEL_RESOURCE_ATTRIBUTES")
# Milliseconds between batches; spans that may wait, and that are in one batch at most.
OTEL_BSP_SCHEDULE_DELAY = env.integer("OTEL_BSP_SCHEDULE_DELAY", 1000, minimum=10, maximum=600_000)
OTEL_BSP_MAX_QUEUE_SIZE = env.integer("OTEL_BSP_MAX_QUEUE_SIZE", 8192, maximum=1_000_000)
OTEL_BSP_MAX_EXPORT_BATCH_SIZE = env.integer("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, maximum=1_000_000)
OTEL_METRIC_EXPORT_INTERVAL = env.integer("OTEL_METRIC_EXPORT_INTERVAL", 60_000, minimum=10, maximum=86_400_000)


def _exported() -> dict[str, str]:
    """Where each signal goes; those that go nowhere are missing."""
    found = {}
    for signal in ("traces", "metrics", "logs"):
        name = signal.upper()
        own, everybodys = globals()[f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT"], OTEL_EXPORTER_OTLP_ENDPOINT.rstrip("/")
        if (own or everybodys) and globals()[f"OTEL_{name}_EXPORTER"] == "otlp":
            found[signal] = own or f"{everybodys}/v1/{signal}"
    return {} if OTEL_SDK_DISABLED or NANOHOST_TOOL_PROCESS else found


TELEMETRY = _exported()
traces.configure(
    on="traces" in TELEMETRY,
    sampler=OTEL_TRACES_SAMPLER,
    share=OTEL_TRACES_SAMPLER_ARG,
    most=OTEL_BSP_MAX_QUEUE_SIZE,
)


def _set_up_telemetry() -> None:
    import nanohost
    from nanohost.lib import telemetry

    told: dict[str, dict[str, str]] = {}
    for name in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_RESOURCE_ATTRIBUTES"):
        try:
            told[name] = telemetry.attributes_of(globals()[name])
            if name == "OTEL_EXPORTER_OTLP_HEADERS":
                env.check_headers(told[name])
        except ValueError as error:
            raise ImproperlyConfigured(f"{name} is not valid: {error}.") from None
    for header, value in told["OTEL_EXPORTER_OTLP_HEADERS"].items():
        if header.lower() not in env.PUBLIC_HEADERS:
            redaction.remember(f"OTEL_EXPORTER_OTLP_HEADERS {header}", value)
            redaction.remember(f"OTEL_EXPORTER_OTLP_HEADERS {header} alone", value.rpartition(" ")[2])
    attributes = told["OTEL_RESOURCE_ATTRIBUTES"]
    telemetry.configure(
        telemetry.Target(
            urls=TELEMETRY,
            headers=told["OTEL_EXPORTER_OTLP_HEADERS"],
            service=OTEL_SERVICE_NAME or attributes.get("service.name", "nanohost"),
            version=nanohost.__version__,
            attributes=attributes,
            seconds=OTEL_EXPORTER_OTLP_TIMEOUT / 1000,
            compresses=OTEL_EXPORTER_OTLP_COMPRESSION == "gzip",
            certificate=OTEL_EXPORTER_OTLP_CERTIFICATE,
            every=OTEL_BSP_SCHEDULE_DELAY / 1000,
            metrics_every=OTEL_METRIC_EXPORT_INTERVAL / 1000,
            batch=OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
        )
    )


if TELEMETRY:
    _set_up_telemetry()

# --- Django ------------------------------------------------------------------------------------------------------
DEBUG = env.boolean("DEBUG", False)
ALLOWED_HOSTS = env.words("ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]", f"[{HOST}]" if ":" in HOST else HOST])
if not ALLOWED_HOSTS:
    raise ImproperlyConfigured("ALLOWED_HOSTS is not valid: it names no host.")
CSRF_TRUSTED_ORIGINS = env.words("CSRF_TRUSTED_ORIGINS")
TIME_ZONE = env.time_zone("TIME_ZONE", "UTC")
NANOHOST_EXTRA_APPS = env.words("NANOHOST_EXTRA_APPS")


def _secret_key() -> str:
    """The environment's, or the one `manage.py serve` keeps in DATA_DIR; without either, one for this process."""
    if NANOHOST_TOOL_PROCESS:
        return secrets.token_urlsafe(48)
    try:
        kept = (DATA_DIR / "secret_key").read_text().strip()
    except (OSError, UnicodeError):  # what is no text, the start refuses
        kept = ""
    return env.secret("SECRET_KEY") or kept or secrets.token_urlsafe(48)


SECRET_KEY = _secret_key()
redaction.remember("SECRET_KEY", SECRET_KEY)
# The secrets of webhooks are made of it: by the web nodes that show one, and by the workers that sign with it.
WEBHOOK_KEY = env.secret("WEBHOOK_KEY") or ("" if PRODUCTION else env.derived(SECRET_KEY, "webhooks"))
redaction.remember("WEBHOOK_KEY", WEBHOOK_KEY)
# What no setting holds, and few processes read.
env.have_redacted(("NANOHOST_ADMIN_PASSWORD", "NANOHOST_API_KEY"))
# What DEBUG shows of an exception: without secrets, to this machine alone.
DEFAULT_EXCEPTION_REPORTER = "nanohost.lib.debugging.Reporter"
DEFAULT_EXCEPTION_REPORTER_FILTER = "nanohost.lib.debugging.SecretsFilter"
USE_TZ = True
USE_I18N = True
LANGUAGE_CODE = "en-us"
ROOT_URLCONF = "nanohost.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
# Browsers and clients come through a proxy that ends TLS. It must set X-Forwarded-Proto, and drop what a client sent.
HTTPS = env.boolean("HTTPS", PRODUCTION)
if HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = True
    SECURE_REDIRECT_EXEMPT = ["^health/", "^metrics$"]  # those who probe come without the proxy
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    # Browsers' preload lists take no domain with less than a year: nobody gets a domain onto them by this alone.
    SECURE_HSTS_SECONDS = 30 * 86_400
    SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = True
# How many proxies a request comes through: from which address failed sign-ins are counted.
TRUSTED_PROXIES = env.integer("TRUSTED_PROXIES", 1 if HTTPS else 0, minimum=0, maximum=10)
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
# The gateway bounds the body before Django sees it; this bound is for what does not come through it.
DATA_UPLOAD_MAX_MEMORY_SIZE = max(MAX_MESSAGE_BYTES, MAX_FILE_BODY_BYTES)
# The body is in memory already; there may be no disk to put a file of a form on.
FILE_UPLOAD_MAX_MEMORY_SIZE = DATA_UPLOAD_MAX_MEMORY_SIZE

# Signing in by OpenID Connect. django-allauth is loaded where a provider is named, and nowhere else.
OIDC_ISSUER = env.address("OIDC_ISSUER")
OIDC_NAME = env.string("OIDC_NAME", "OpenID Connect")
OIDC_CLIENT_ID = env.string("OIDC_CLIENT_ID")
OIDC_CLIENT_SECRET = env.secret("OIDC_CLIENT_SECRET")
OIDC_SCOPES = env.words("OIDC_SCOPES", ["openid", "profile", "email"])
OIDC_GROUPS_CLAIM = env.string("OIDC_GROUPS_CLAIM", "groups")
# By the provider's groups, "*" for whoever it lets in: who may do what. "chat": the chat alone.
OIDC_ROLES = env.pairs("OIDC_ROLES", values=("viewer", "operator", "admin", "chat"))
OIDC_PRIVATE_CIDRS = env.words("OIDC_PRIVATE_CIDRS")
try:
    addresses.networks(OIDC_PRIVATE_CIDRS)
except ValueError as error:
    raise ImproperlyConfigured(f"OIDC_PRIVATE_CIDRS is not valid: {error}.") from None
if OIDC_ISSUER and not (OIDC_CLIENT_ID and OIDC_ROLES):
    raise ImproperlyConfigured("OIDC_ISSUER needs OIDC_CLIENT_ID and OIDC_ROLES; otherwise nobody can sign in with it.")
if OIDC_ISSUER.startswith("http://") and urlsplit(OIDC_ISSUER).hostname not in ("localhost", "127.0.0.1", "::1"):
    raise ImproperlyConfigured("OIDC_ISSUER is not valid: without TLS, a provider is on this machine.")

_ALLAUTH = ["allauth", "nanohost.console.allauth_accounts.AllauthAccounts", "allauth.socialaccount"]
SOCIALACCOUNT_ADAPTER = "nanohost.console.single_sign_on.Adapter"

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",  # before the admin, whose templates it replaces
    "nanohost.console.admin_app.ConsoleAdmin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_celery_beat",
    "axes",
    *(_ALLAUTH if OIDC_ISSUER else []),
    "nanohost",
    "nanohost.accounts",
    "tools",
    "memory",
    "agent",
    "conversations",
    "scheduler",
    "nanohost.nanobot_config",
    "nanohost.console",
    "nanohost.chat",
    *NANOHOST_EXTRA_APPS,
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "nanohost.console.middleware.Policy",
    "nanohost.console.middleware.Sessions",
    "nanohost.console.middleware.LargeForms",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "nanohost.console.middleware.Redaction",
    "nanohost.console.middleware.Users",
    "nanohost.console.middleware.Actors",
    "nanohost.console.middleware.Messages",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",  # the last: what it answers passes all others
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "nanohost" / "console" / "templates"],  # before the theme's
        "APP_DIRS": True,
        "OPTIONS": {
            "builtins": ["nanohost.lib.filters"],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# Seconds. A worker that is stopped in the middle of a transaction must not hold a row for good; a server that is silent
# is noticed; a request that gets no connection is told so while its client still waits.
_POSTGRESQL_OPTIONS: dict[str, Any] = {
    "connect_timeout": 3,
    # Statements are read and planned once a connection: a third to a half of what a short one costs.
    "server_side_binding": True,
    "prepare_threshold": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,  # milliseconds
    "options": "-c statement_timeout=30s -c lock_timeout=10s -c idle_in_transaction_session_timeout=10s",
    # Tries to connect go on for as long as somebody waits who began them.
    "pool": {"min_size": 1, "max_size": DATABASE_POOL_SIZE, "timeout": 4, "reconnect_timeout": 4},
}


def _postgresql() -> dict[str, Any]:
    database: dict[str, Any] = dict(
        dj_database_url.parse(DATABASE_URL, engine="nanohost.lib.postgresql", conn_max_age=0, conn_health_checks=False)
    )
    options = database.get("OPTIONS", {})
    if not database["NAME"] or "pool" in options:
        raise ImproperlyConfigured("DATABASE_URL is not valid: expected a database's name, and no pool of its own.")
    database["OPTIONS"] = _POSTGRESQL_OPTIONS | options
    return database


_SQLITE: dict[str, Any] = {
    "ENGINE": "nanohost.lib.sqlite",
    "NAME": DATA_DIR / "nanohost.sqlite3",
    "CONN_MAX_AGE": None,
    "OPTIONS": {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        # synchronous=FULL: a commit that was answered with 2xx is on the disk, also when the power fails.
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;",
    },
}
DATABASES: dict[str, dict[str, Any]] = {"default": _postgresql() if PRODUCTION else _SQLITE}
if NANOHOST_TOOL_PROCESS:
    DATABASES = {"default": {"ENGINE": "django.db.backends.dummy"}}

# --- files of messages: in a folder, or in a bucket of S3 or what speaks its language -----------------------------
ATTACHMENTS_BUCKET = env.string("ATTACHMENTS_BUCKET")
ATTACHMENTS_BUCKET_ENDPOINT = env.address("ATTACHMENTS_BUCKET_ENDPOINT")
ATTACHMENTS_BUCKET_REGION = env.string("ATTACHMENTS_BUCKET_REGION")
ATTACHMENTS_BUCKET_KEY_ID = env.string("ATTACHMENTS_BUCKET_KEY_ID")
ATTACHMENTS_BUCKET_KEY = env.secret("ATTACHMENTS_BUCKET_KEY")
redaction.remember("ATTACHMENTS_BUCKET_KEY", ATTACHMENTS_BUCKET_KEY)


def _attachments() -> dict[str, Any]:
    if not ATTACHMENTS_BUCKET:
        # Whoever else is on this machine reads none of them.
        modes = {"file_permissions_mode": 0o600, "directory_permissions_mode": 0o700}
        options: dict[str, Any] = {"location": ATTACHMENTS_DIR, **modes}
        return {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": options}
    from botocore.config import Config  # type: ignore[import-untyped]  # who has no bucket need not import it

    options = {
        "bucket_name": ATTACHMENTS_BUCKET,
        # A client waits meanwhile: by itself, botocore would go on for minutes.
        "client_config": Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 2}),
        "endpoint_url": ATTACHMENTS_BUCKET_ENDPOINT or None,
        "region_name": ATTACHMENTS_BUCKET_REGION or None,
        # Without them, boto3 finds those of the machine.
        "access_key": ATTACHMENTS_BUCKET_KEY_ID or None,
        "secret_key": ATTACHMENTS_BUCKET_KEY or None,
        "default_acl": None,
        "querystring_auth": True,
    }
    return {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options}


STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "attachments": _attachments(),
}

STATIC_URL = "static/"
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# --- the console -------------------------------------------------------------------------------------------------
# Our one accent, from light to dark; tests/unit/console/test_colours.py holds its contrast.
ACCENT = {
    "50": "#f0fdfa",
    "100": "#ccfbf1",
    "200": "#99f6e4",
    "300": "#5eead4",
    "400": "#2dd4bf",
    "500": "#14b8a6",
    "600": "#0f766e",
    "700": "#115e59",
    "800": "#134e4a",
    "900": "#0f3d3a",
    "950": "#042f2e",
}
UNFOLD = {
    "SITE_TITLE": "nanohost",
    "SITE_HEADER": "nanohost",
    "SITE_SYMBOL": "forum",
    "SITE_URL": None,
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": "/static/console/icon.svg"}],
    "COLORS": {"primary": ACCENT},
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "DASHBOARD_CALLBACK": "nanohost.console.dashboard.callback",
    "SIDEBAR": {"navigation": "nanohost.console.navigation.groups"},
}
# What a page of the console may load and run: what we serve, and no script that stands in the page. Alpine's strict
# build evaluates nothing; it sets styles of single elements, which does no harm (docs/decisions/console-policy.md).
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [csp.SELF],
        "script-src": [csp.SELF],
        "style-src": [csp.SELF, csp.NONCE],
        "style-src-attr": [csp.UNSAFE_INLINE],
        "img-src": [csp.SELF, "data:"],
        "object-src": [csp.NONE],
        "base-uri": [csp.NONE],
        "form-action": [csp.SELF],
        "frame-ancestors": [csp.NONE],
    }
}
CSRF_FAILURE_VIEW = "nanohost.console.problems.csrf_failure"
LOGIN_URL, LOGIN_REDIRECT_URL = "/admin/login/", "/admin/"
# Signing in: five failures from an address, and it has to wait a quarter of an hour.
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_LOCKOUT_PARAMETERS = ["ip_address"]
# Whoever tries meanwhile does not wait longer for it: the time that the page tells is kept.
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_RESET_ON_SUCCESS = True
AXES_CLIENT_IP_CALLABLE = "nanohost.console.signin.network_of"
AXES_LOCKOUT_CALLABLE = "nanohost.console.signin.locked_out"
AXES_DISABLE_ACCESS_LOG = True
AXES_ENABLE_ADMIN = False  # the console has a page of its own
AXES_VERBOSE = False
AXES_SENSITIVE_PARAMETERS = ["username"]  # neither logged nor kept with what was sent: it may be a password

# --- API ---------------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "nanohost.accounts.authentication.ApiKeyAuthentication",
        "nanohost.chat.authentication.BrowserAuthentication",
        "nanohost.chat.embed.EmbedAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["nanohost.accounts.authentication.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["nanohost.lib.rest.RedactedJSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["nanohost.lib.rest.StorableJSONParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "nanohost.lib.rest.AlwaysJSON",
    "DEFAULT_SCHEMA_CLASS": "nanohost.accounts.openapi.ScopedSchema",
    "EXCEPTION_HANDLER": "nanohost.lib.rest.problem_response",
    "UNAUTHENTICATED_USER": None,
    # OPTIONS is a method like others that an address does not take; the schema tells what it would.
    "DEFAULT_METADATA_CLASS": None,
    "URL_FORMAT_OVERRIDE": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "nanohost",
    "DESCRIPTION": "Conversations with LLM agents: chat, turns, messages and tools.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    # OpenAI's API has a document of its own.
    "PREPROCESSING_HOOKS": ["conversations.openai_api.schema.leave_out"],
    "SERVE_PUBLIC": True,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "TurnStatus": "conversations.statuses.CHOICES",
        "KeyState": "nanohost.accounts.models.STATES",
        "Scope": "nanohost.accounts.models.Scope",
        "CallStatus": "tools.models.CallStatus",
        "ApprovalState": "tools.models.ApprovalState",
        "MessageType": "conversations.models.Message.Type",
        "Rating": "conversations.feedback_models.Rating",
    },
}

# --- Celery: the database is the queue, the broker a doorbell ----------------------------------------------------
CELERY_BROKER_URL = REDIS_URL or "memory://localhost/"
CELERY_BROKER_TRANSPORT = "nanohost.lib.broker:Transport" if REDIS_URL else None
# Whoever notifies waits a second at most for a broker that is silent, to connect as well, and does not try twice. The
# consumers' own blocking reads outlast this.
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, Any] = (
    {
        "socket_timeout": 1,
        "socket_connect_timeout": 1,
        "socket_keepalive": True,
        "health_check_interval": 5,
        "max_retries": 0,
        # All threads notify by one channel, each by a connection of its own, of which there are 10 otherwise.
        "max_connections": 1000,
        "priority_steps": [0],
        # A notification is taken off the queue when it is heard. Were it kept until its task is taken up, each would
        # cost four commands more, a fifth of a worker's time; one that is lost is found by the sweep.
        "ack_emulation": False,
    }
    if REDIS_URL
    # The memory transport looks once a second unless told otherwise. The process takes its own while it has room,
    # so this is how long one waits that found none; each look costs CPU.
    else {"polling_interval": 0.05}
)
# Of those who send Celery's tasks; or they would wait for one another at a broker that is silent.
CELERY_BROKER_POOL_LIMIT = WEB_THREADS + WORKER_DB_THREADS + TOOL_CONCURRENCY
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Also after an error's reply, such as a demoted replica's: without this, a worker ends at it.
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
# Of those acknowledged late, of which there are none; unset, each reconnection would warn of it.
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # for ever: meanwhile the sweeper works without it
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_EXPIRES = None  # or beat would keep a job that cleans up results there are none of
CELERY_TASK_STORE_ERRORS_EVEN_IF_IGNORED = False
CELERY_TASK_QUEUES = [Queue(kind.queue, routing_key=kind.queue) for kind in kinds.KINDS]
CELERY_TASK_DEFAULT_QUEUE = kinds.TURNS.queue
CELERY_TASK_CREATE_MISSING_QUEUES = False
CELERY_TASK_ROUTES = {
    **{kind.task: {"queue": kind.queue} for kind in kinds.KINDS},
    "scheduler.tasks.*": {"queue": kinds.TURNS.queue},
    "nanohost.console.tasks.*": {"queue": kinds.TURNS.queue},
    "tools.tasks.*": {"queue": kinds.TOOLS.queue},
}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
# Notifications only pass through, in the thread that hears them: what they are about runs on the runtime's own loop and
# threads. A worker without room hears no more of them meanwhile, and leaves them to others.
CELERY_WORKER_POOL = "solo"
CELERY_WORKER_CONCURRENCY = 1
WORKER_EVENTS = env.boolean("WORKER_EVENTS", False)
CELERY_WORKER_ENABLE_REMOTE_CONTROL = CELERY_WORKER_SEND_TASK_EVENTS = WORKER_EVENTS
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_REDIRECT_STDOUTS = False
CELERY_BEAT_SCHEDULER = "scheduler.beat:SystemScheduler"
CELERY_TIMEZONE = TIME_ZONE

# --- events: what happens in turns, told to those who wait and read ----------------------------------------------
EVENTS_TRANSPORT = f"conversations.events.{'redis.RedisTransport' if REDIS_URL else 'local.LocalTransport'}"
EVENTS_PREFIX = "nanohost:"

# --- the audit log: where it is told how far it has come, beside the log stream -----------------------------------
# Containers' file systems are read-only, and go with them.
AUDIT_HEADS = None if PRODUCTION else DATA_DIR / "audit-heads.jsonl"

# --- logging -----------------------------------------------------------------------------------------------------
logs.configure()
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"lines": {"()": lambda: logs.formatter(LOG_FORMAT)}},
    "handlers": {
        "stderr": {
            "class": "nanohost.lib.logs.Exported" if "logs" in TELEMETRY else "logging.StreamHandler",
            "formatter": "lines",
        }
    },
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        # Django's own handlers would write a second, unredacted line.
        "django": {"handlers": [], "level": LOG_LEVEL, "propagate": True},
        "django.server": {"handlers": [], "propagate": True},
        # A 4xx is the caller's business; the access line tells of it.
        "django.request": {"level": "ERROR"},
        "django.security": {"level": "CRITICAL"},
        # With DEBUG, a traceback for each name that a page of the console asks for in vain: hundreds a page.
        "django.template": {"level": "INFO"},
        "axes": {"level": "WARNING"},
        # Of a server that is away it would tell at each try, several times a second; who asked in vain tells it once.
        "psycopg.pool": {"level": "ERROR"},
        "celery": {"level": "WARNING"},
        "kombu": {"level": "WARNING"},
        "httpx2": {"level": "WARNING"},
        "httpcore2": {"level": "WARNING"},
        "openai": {"level": "WARNING"},
        "uvicorn.error": {"level": "WARNING"},
    },
}
