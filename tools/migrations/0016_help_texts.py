from django.db import migrations

from nanohost.lib.help_texts import SetHelpTexts

TEXTS = {
    "approval": {
        "approved_hash": "SHA-256 of the approved arguments: only these may run.",
        "arguments": "As the model wrote them, with secrets removed.",
        "arguments_hash": "SHA-256 of the arguments including secrets, hexadecimal.",
        "call_id": "The call to be approved.",
        "expires_at": "If nobody has decided by then, it is denied.",
        "private_proposed": "The same with their secrets; deleted when the approval is decided.",
        "proposed": "Arguments changed by a reviewer, with secrets removed.",
        "reason": "The reason. For a denial, it is passed to the model.",
        "request_id": "Id of the request that started the turn.",
        "rule": "The rule that requires approval.",
    },
    "approvalvote": {
        "approval": "The approval this is a vote on.",
        "arguments_hash": "SHA-256 of the arguments they voted for.",
    },
    "customtool": {
        "changed_at": "When a change was last found.",
        "description": "Description from its source.",
        "file": "Its file name in the workspace.",
        "flagged": "Findings of the scan that a person should review.",
        "full_name": "The name that models use, and under which it is enabled.",
        "gone": "Whether it no longer exists at its source.",
        "hash": "SHA-256 of the content that has to be reviewed.",
        "owner": "The owner of the workspace. Empty: it is shared.",
        "seen_by": "Who reviewed it.",
        "seen_hash": "The hash of the reviewed content.",
        "seen_source": "The reviewed content.",
        "source": "The content of the file.",
        "unfit": "Why it cannot be used as a tool.",
        "workspace": "The agent and owner whose workspace has it.",
    },
    "mcpserver": {
        "by_setting": "Whether it is managed by the setting MCP_SERVERS.",
        "check_asked_at": "When somebody asked to reload its tools.",
        "failures": "Consecutive failures.",
        "last_error": "The last error.",
        "listed_at": "When its tools were last listed.",
        "network": "Whether its program may use the network.",
        "timeout_seconds": "Time limit of a call, in seconds; a tool's own setting takes precedence.",
        "transport": "How nanohost connects to it.",
        "unfit": "Its tools that cannot be used here, each with the reason.",
        "url": "Address of an HTTP server, or the name of the secret that has it: https://example.org/mcp.",
    },
    "mcptool": {
        "changed_at": "When a change was last found.",
        "description": "Description from its source.",
        "full_name": "The name that models use, and under which it is enabled.",
        "gone": "Whether it no longer exists at its source.",
        "hash": "SHA-256 of the content that has to be reviewed.",
        "hints_read": "Whether the server declares it read-only.",
        "name": "Its name on the server.",
        "reads": "It is read-only: an administrator has confirmed the server's declaration.",
        "seen_by": "Who reviewed it.",
        "seen_description": "The reviewed description.",
        "seen_hash": "The hash of the reviewed content.",
        "seen_schema": "The reviewed schema.",
        "server": "The server that provides it.",
    },
    "settingchange": {
        "after": "The values after the change.",
        "before": "The values before the change.",
    },
    "skillsetting": {
        "name": "Name of the skill.",
    },
    "toolcall": {
        "arguments": "As the model wrote them, with secrets removed.",
        "consent": "The rule that requires approval, if any: the call runs exactly as approved, or not at all.",
        "erased_at": "When its arguments and result were deleted; the rest of the row is kept.",
        "fence": "Increased by each claim; only the latest holder may write.",
        "lease_until": "No other worker may claim it before then.",
        "private_arguments": "With their secrets; deleted when the call has ended.",
        "rule": "The rule that refused it, or the reason it ended.",
        "tainted_by": "The source of untrusted text in its result. Empty: none.",
        "worker": "The worker that claimed it last.",
    },
    "toolsetting": {
        "approval": "When calls wait for approval. An agent can require approval more often than this, never less often.",
        "calls_per_minute_conversation": "Calls in any 60 seconds; further calls are refused and not counted. Empty: no limit.",
        "calls_per_minute_owner": "The same limit for all conversations of an owner together. Empty: no limit.",
        "max_input_bytes": "In bytes; larger arguments are refused. At most TOOL_MAX_INPUT_BYTES; empty: that.",
        "max_output_bytes": "In bytes; longer results are cut. At most TOOL_MAX_OUTPUT_BYTES; empty: that.",
    },
}


class Migration(migrations.Migration):
    dependencies = [("tools", "0015_mcp_servers_of_the_setting")]

    operations = [SetHelpTexts(TEXTS)]
