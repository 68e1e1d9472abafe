"""The tool exec: through the gate, in a box of its own, in one agent's folder for one owner; and what hostile commands
get at, which is nothing."""

import json
import os
import re
import secrets
import socket
import subprocess
import threading
import time

import pytest
from django.db import connections

from tests.support.hosts import ROOT
from tests.support.tool_calls import EVERY_TOOL, ask, run
from tests.support.wait import wait_until
from tools import gate
from tools.gate import AgentTools
from tools.models import CallStatus, SettingChange, ToolCall, ToolSetting, sync_settings
from tools.sandbox import bubblewrap, cgroup, commands
from tools.workspace import beneath
from tools.workspace.store import open_workspace

GRANTS = ["SHELL", "FS_READ", "FS_WRITE"]
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(bool(beneath.why_missing()), reason=beneath.why_missing()),
    pytest.mark.skipif(not bubblewrap.program(), reason="NOT TRIED: bubblewrap is not installed"),
]


@pytest.fixture(autouse=True)
def shell(settings, tmp_path, tool_settings):
    settings.WORKSPACES_DIR = tmp_path / "workspaces"
    settings.SHELL_GRANTABLE = True
    settings.PERMISSIONS_GRANTED = [*settings.PERMISSIONS_GRANTED, "SHELL"]
    tool_settings("exec", grants=GRANTS)
    ToolSetting.objects.filter(name="exec").update(approval="never")


@pytest.fixture
def sh(owner):
    """``sh("id")``: the call, as it ended."""

    def sh(command, *, timeout=20, owner_id=owner.pk):
        ToolSetting.objects.filter(name="exec").update(timeout_seconds=timeout)
        return run(ask("exec", owner_id=owner_id, command=command))

    return sh


@pytest.fixture
def files(settings, owner):
    with open_workspace(agent="default", owner_id=owner.pk) as workspace:
        return workspace.root / "files"


def test_the_pages_examples_are_what_happens(sh):
    page = (ROOT / "docs" / "tools.md").read_text().split("\n## Commands\n")[1].split("\n## ")[0]
    examples = re.findall(r"^\| `exec (\{.*\})` \| `(.*)` \|$", page, re.MULTILINE)
    assert len(examples) > 2
    for arguments, result in examples:
        call = sh(json.loads(arguments.replace("\\|", "|"))["command"])
        assert (call.status, call.result) == (CallStatus.SUCCESS, result.replace("⏎", "\n"))


# --- who may -----------------------------------------------------------------------------------------------------


def test_shell_is_granted_by_a_setting_of_the_host_alone(settings):
    settings.SHELL_GRANTABLE = False
    assert ask("exec", command="id").rule == "permission_ceiling:SHELL"
    settings.SHELL_GRANTABLE = True
    settings.PERMISSIONS_GRANTED = ["FS_READ", "FS_WRITE"]
    assert ask("exec", command="id").rule == "permission_ceiling:SHELL"


def test_each_command_needs_consent_until_an_admin_says_otherwise():
    ToolSetting.objects.filter(name="exec").delete()
    sync_settings()
    setting = ToolSetting.objects.get(name="exec")
    assert (setting.enabled, setting.grants, setting.approval) == (False, [], "always")
    ToolSetting.objects.filter(name="exec").update(enabled=True, grants=GRANTS, approval="never")
    sync_settings()  # nobody has said so
    assert ask("exec", command="id").status == CallStatus.WAITING
    SettingChange.objects.create(tool_name="exec", changed_by="anna", before={}, after={"approval": "never"})
    ToolSetting.objects.filter(name="exec").update(approval="never")
    sync_settings()
    assert ask("exec", command="id").status == CallStatus.QUEUED


def test_what_is_denied_is_refused_before_anybody_is_asked(settings):
    ToolSetting.objects.filter(name="exec").update(approval="always")
    settings.EXEC_DENY = ["git push"]
    commands = ["rm -rf /", "RM  -f x", "mkfs.ext4 /dev/sda", "dd if=/dev/zero of=x", "echo > /dev/sda", "reboot"]
    for command in [*commands, ":(){ :|:& };:", "git push origin"]:
        call = ask("exec", command=command)
        assert (call.status, call.rule) == (CallStatus.REJECTED, "denied"), command
    assert (
        gate.simulate("exec", '{"command": "reboot"}', agent_tools=EVERY_TOOL, owner_id=None).refusal.rule == "denied"
    )
    assert ask("exec", command="rmdir x; echo platform -r").status == CallStatus.WAITING


def test_a_machine_without_a_sandbox_runs_none_and_says_why(sh, settings, files):
    settings.TOOL_SANDBOX = "landlock"
    call = sh("touch ran")
    assert (call.status, call.rule) == (CallStatus.REJECTED, "requires:bubblewrap")
    assert "TOOL_SANDBOX=none" in call.result
    assert os.listdir(files) == []
    settings.TOOL_SANDBOX = "none"
    assert sh("touch ran").status == CallStatus.SUCCESS
    assert os.listdir(files) == ["ran"]


def test_it_has_effects_and_its_output_is_untrusted(sh):
    tainted = AgentTools(names=None, tainted_by="the tool http_get", taint="refuse")
    assert ask("exec", agent_tools=tainted, command="id").rule == "tainted"
    assert ToolCall.objects.get(pk=sh("echo hello").pk).tainted_by == "the tool exec"


# --- what it is given --------------------------------------------------------------------------------------------


def test_its_environment_holds_no_secret_and_its_path_what_is_appended(sh, settings, monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "canary-0123456789")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "greet").write_text("#!/bin/sh\necho hello from more\n")
    (tmp_path / "more" / "greet").chmod(0o755)
    settings.EXEC_PATH_APPEND = [str(tmp_path / "more")]
    call = sh("env | cut -d= -f1 | sort | tr '\\n' ' '; greet; touch $(command -v greet)")
    assert call.result.startswith("HOME LANG PATH PWD TERM TZ hello from more\n")
    assert "Read-only file system" in call.result


def test_output_streams_while_it_runs_and_secrets_in_it_are_hidden(owner, files):
    told, call = (
        [],
        ask("exec", owner_id=owner.pk, command="echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"),
    )

    def tell(claimed, offset, text):
        told.append((offset, text))
        (files / "go").touch()  # it goes on because it was heard

    gate.run(
        call.pk,
        agent_tools=lambda claimed: EVERY_TOOL,
        worker="w",
        on_start=lambda claimed: None,
        then=lambda ended: None,
        on_output=tell,
    )
    assert ToolCall.objects.get(pk=call.pk).result == "one\ntwo\n"
    assert told[0] == (0, "one")
    assert "".join(text for _, text in told) == "one\ntwo\n"
    heard = []
    commands.run(
        ["/bin/sh", "-c", "echo password=hunter2hunter2; seq 1 100000"],
        workspace=files,
        seconds=20,
        tell=lambda offset, text: heard.append(text),
    )
    assert "hunter2" not in "".join(heard)
    assert commands.MAX_TOLD <= len("".join(heard)) + 8 < 2 * commands.MAX_TOLD


def test_a_program_of_a_host_that_keeps_to_one_core_may_use_all(files, on_one_core):
    ended = commands.run(["nproc"], workspace=files, seconds=20)
    assert ended.output == f"{len(on_one_core)}\n"


# --- what it is kept from ----------------------------------------------------------------------------------------

# Each prints "out" if it got out, or what it got.
HOSTILE = {
    "the host's files": "cat SECRET; ls DATA; ls /root /home /work /etc/shadow",
    "by a descriptor": "for f in /proc/[0-9]*/fd/*; do cat $f/../../../../../../../../../..SECRET; done 2>/dev/null",
    "by a link": "ln -s SECRET link; cat link; ln -s / root; cat root/SECRET; ln SECRET hard",
    "other processes": "cat /proc/HOST/environ /proc/HOST/cmdline; kill -9 HOST; kill -STOP HOST",
    "the kernel": "echo x > /proc/sys/kernel/core_pattern && echo out; mount -t tmpfs x /mnt && echo out; mknod d b 8 0"
    " && echo out",
    "a namespace": "unshare -Ur echo out",
    "the system": "touch /usr/bin/planted /etc/planted && echo out; touch CODE/planted && echo out",
    "the network": "exec 3<>/dev/tcp/127.0.0.1/PORT && echo out",
    "a user's program": "cp /bin/sh s; chmod u+s s && echo out",
    "other owners' files": "ls ..; cat ../../*/files/* ../*/files/* /WORKSPACES/*/*/files/*",
}


def test_hostile_commands_get_at_nothing(sh, files, owner, tmp_path, settings):
    secret = tmp_path / "secret"
    secret.write_text("canary-of-the-host")
    with open_workspace(agent="default", owner_id=owner.pk + 1) as other:
        other.write("theirs.txt", b"canary-of-the-host", trusted=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for name, command in HOSTILE.items():
            facts = {"SECRET": secret, "DATA": tmp_path, "HOST": os.getpid(), "CODE": ROOT / "tools"}
            facts |= {"PORT": listener.getsockname()[1], "/WORKSPACES": settings.WORKSPACES_DIR}
            for word, fact in facts.items():
                command = re.sub(rf"(?<![A-Z]){word}(?![A-Z])", str(fact), command)
            call = sh(f"bash -c {json.dumps(command).replace('$', chr(92) + '$')}")
            assert call.status == CallStatus.SUCCESS, (name, call.result)
            assert "canary" not in call.result, name
            assert "\nout" not in f"\n{call.result}", (name, call.result)
    assert not (ROOT / "tools" / "planted").exists()
    # What a command leaves, no file tool follows.
    with open_workspace(agent="default", owner_id=owner.pk) as mine:
        for link in ("link", f"root{secret}"):
            with pytest.raises(beneath.PathRefused):
                mine.read(link)


FLOODS = {
    "timeout": ("while :; do :; done", 1),
    "output": ("yes", 30),
    "processes": ("f() { f & f & wait; }; f", 30),
    "memory": ("MANY", 30),
    "disk": ("while :; do head -c 4000000 /dev/urandom > f$((i = i + 1)); done", 30),
}


def test_what_takes_too_much_is_ended_with_all_that_it_started(sh, files, settings):
    settings.WORKSPACE_MAX_BYTES = 10_000_000
    many = "for i in 1 2 3 4; do python3 -c 'b = bytearray(200 << 20); input()' < fifo & done; exec 3<>fifo; wait"
    os.mkfifo(files / "fifo")
    for rule, (command, seconds) in FLOODS.items():
        token = secrets.token_hex(8)
        call = sh(f": {token}; {many if command == 'MANY' else command}", timeout=seconds)
        assert (call.status, call.rule) == (CallStatus.UNKNOWN, rule), call.result[:400]
        assert not _running(token), rule
    assert sum(each.stat().st_size for each in files.iterdir()) < 60_000_000


@pytest.mark.skipif(os.geteuid() != 0, reason="for other users than root, RLIMIT_NPROC holds")
def test_the_kernel_bounds_processes_of_root_too():
    script = ["/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 3 & done; kill 0"]
    with cgroup.bounded(8, script) as bounded:
        if bounded.folder is None:
            pytest.skip("NOT TRIED: this machine lets nobody make a control group")
        assert not bounded.was_reached()
        ran = subprocess.run(bounded.command, capture_output=True, text=True, start_new_session=True, check=False)
        assert bounded.was_reached()
    assert "fork" in ran.stderr.lower()


@pytest.mark.skipif(os.geteuid() != 0, reason="for other users than root, nobody counts what the kernel refuses")
def test_whoever_ends_at_the_kernels_bound_before_anybody_looks_started_too_much(sh, monkeypatch):
    with cgroup.bounded(8, ["true"]) as bounded:
        if bounded.folder is None:
            pytest.skip("NOT TRIED: this machine lets nobody make a control group")
    monkeypatch.setattr(commands, "LOOK_SECONDS", 3.0)
    call = sh("for i in $(seq 300); do sleep 1 & done; kill 0", timeout=30)
    assert (call.status, call.rule) == (CallStatus.UNKNOWN, "processes"), call.result[:400]


def test_whoever_starts_again_after_a_stop_runs_commands(sh):
    gate.stop_tools()
    assert sh("echo one").status == CallStatus.QUEUED, "left to whoever comes next"
    gate.close_tools()
    assert sh("echo one").result == "one\n"


def test_what_it_leaves_running_ends_with_its_call(sh, files):
    began, token = time.monotonic(), secrets.token_hex(8)
    daemon = f"setsid sh -c ': {token}; trap \"\" TERM HUP; while :; do date > alive; sleep 0.05; done'"
    call = sh(f"({daemon} > /dev/null 2>&1 &); sleep 0.3")
    assert call.status == CallStatus.SUCCESS
    assert time.monotonic() - began < 15
    assert (files / "alive").exists()
    assert not _running(token)


def _running(token):
    """Whether any process of this machine has been given this token."""
    return any(token.encode() in _command(pid) for pid in os.listdir("/proc") if pid.isdigit())


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_protected_files_are_read_and_not_changed(sh, files, settings):
    settings.WORKSPACE_PROTECTED_PATHS = ["policy/**", "RULES.md"]
    (files / "policy").mkdir()
    (files / "policy" / "a.md").write_text("policy")
    (files / "docs").mkdir()
    (files / "docs" / "RULES.md").write_text("rules")
    call = sh(
        "cat policy/a.md docs/RULES.md; echo x > policy/a.md; echo x >> docs/RULES.md; mv docs d; mv policy p;"
        " unlink docs/RULES.md; touch docs/other"
    )
    assert call.result.startswith("policyrules")
    assert (files / "policy" / "a.md").read_text() == "policy"
    assert (files / "docs" / "RULES.md").read_text() == "rules"
    assert (files / "docs" / "other").exists()


def test_a_call_that_nobody_wants_any_more_ends(sh, files, owner):
    token = secrets.token_hex(8)
    call = ask("exec", owner_id=owner.pk, command=f": {token}; touch began; sleep 60; true")
    thread = threading.Thread(target=lambda: (wait_until(lambda: (files / "began").exists()), gate_end(call)))
    thread.start()
    began = time.monotonic()
    ended = run(call)
    thread.join()
    assert time.monotonic() - began < 30
    assert ended.status != CallStatus.SUCCESS
    assert not _running(token)


def gate_end(call):
    gate.end_open([call.turn_id], rule="cancelled", reason="The turn was cancelled.")
    connections.close_all()


def test_network_is_had_where_it_is_granted(sh, tool_settings):
    command = "ls /sys/class/net 2>/dev/null; grep -c : /proc/net/dev"
    without = sh(command).result
    tool_settings("exec", grants=[*GRANTS, "NET_HTTP"])
    assert int(sh(command).result.split()[-1]) > int(without.split()[-1])
