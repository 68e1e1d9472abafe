// The chat. What it shows is what the API tells; what it does not know yet, it asks again.
import { ask, follow, newId, Problem } from "./api.js";
import { rendered } from "./markdown.js";

const at = (id) => document.getElementById(id);
const mayDecide = Boolean(at("chat").dataset.mayDecide);
const PAGE = 50;

// --- what is known -----------------------------------------------------------------------------------------------

let current = null; // the conversation that is shown; null: one that is not made yet
let earlier = null; // where the messages before the first shown one are
let older = null; // where the conversations before the last shown one are
const open = new Map(); // turns that are not done: id -> { node, source, parts }
const others = "BroadcastChannel" in window ? new BroadcastChannel("nanohost-chat") : null;

const here = () => location.pathname.match(/^\/chat\/([0-9a-f-]{36})\/$/)?.[1] ?? null;
const path = (link) => {
  if (!link) return null;
  const { pathname, search } = new URL(link, location.href);
  return pathname.replace("/api/v1", "") + search;
};

function make(tag, { text, ...given } = {}, ...children) {
  const node = Object.assign(document.createElement(tag), given);
  if (text !== undefined) node.textContent = text;
  node.append(...children);
  return node;
}

// --- the list of conversations -----------------------------------------------------------------------------------

async function list(address = "/conversations?limit=50") {
  const page = await ask("GET", address);
  const rows = page.results.map(entry);
  if (address.includes("cursor=")) at("conversations").append(...rows);
  else at("conversations").replaceChildren(...rows);
  older = path(page.next);
  at("older").hidden = !older;
  mark();
}

function entry({ conversationId, title, agent, updatedAt }) {
  const name = title?.trim() || "No messages yet";
  const link = make("a", { href: `/chat/${conversationId}/`, text: name, title: `${agent}, ${local(updatedAt)}` });
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(conversationId);
  });
  const remove = make("button", { type: "button", text: "✕", ariaLabel: `Delete ${name}` });
  remove.addEventListener("click", () => drop(conversationId, name));
  const row = make("li", {}, link, remove);
  row.dataset.id = conversationId;
  return row;
}

async function drop(conversationId, name) {
  if (!confirm(`Delete “${name}” with all its messages? This cannot be undone.`)) return;
  await ask("DELETE", `/conversations/${conversationId}`).catch(tell);
  others?.postMessage("list");
  await list();
  if (current === conversationId) go(null);
}

function mark() {
  for (const row of at("conversations").children) {
    row.classList.toggle("current", row.dataset.id === current);
    if (row.dataset.id !== current) continue;
    at("title").textContent = row.firstChild.textContent;
  }
  if (!current) at("title").textContent = "New conversation";
}

at("find").addEventListener("input", ({ target }) => {
  const wanted = target.value.trim().toLowerCase();
  for (const row of at("conversations").children) row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
at("older").addEventListener("click", () => list(older).catch(tell));

// --- the talk ----------------------------------------------------------------------------------------------------

const local = (iso) => new Date(iso).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

function bubble(role, when) {
  const who = role === "user" ? "You" : "Agent";
  const node = make("article", { className: `message ${role}` });
  node.append(make("p", { className: "who", text: when ? `${who}, ${local(when)}` : who }));
  node.text = make("div", { className: "text" });
  node.extras = make("div");
  node.append(node.extras, node.text);
  return node;
}

function folded(summary, ...texts) {
  const shown = texts.filter(Boolean).map((text) => make("pre", { text }));
  return make("details", {}, make("summary", { text: summary }), ...shown);
}

function say(node, text, { plain = false } = {}) {
  node.text.replaceChildren(plain ? document.createTextNode(text) : rendered(text));
  if (!plain && text && !node.tools) {
    const copy = make("button", { type: "button", text: "Copy" });
    copy.addEventListener("click", async () => {
      await navigator.clipboard?.writeText(node.said);
      copy.textContent = "Copied";
    });
    node.tools = make("div", { className: "tools" }, copy);
    node.append(node.tools);
  }
  node.said = text;
}

// Messages as nodes: an assistant's calls have their results with them.
function shown(messages) {
  const results = new Map(messages.filter((each) => each.role === "TOOL").map((each) => [each.toolCallId, each]));
  const nodes = [];
  for (const each of messages) {
    if (each.role === "TOOL" || each.role === "SYSTEM" || each.type === "SUMMARY") continue;
    const node = bubble(each.role === "USER" ? "user" : "assistant", each.createdAt);
    node.dataset.turn = each.turnId ?? "";
    if (each.reasoning) node.extras.append(folded("Reasoning", each.reasoning));
    for (const call of each.toolCalls ?? [])
      node.extras.append(folded(`Tool: ${call.toolName}`, call.arguments, results.get(call.toolCallId)?.content));
    say(node, each.content ?? "", { plain: each.role === "USER" || each.kind === "command" });
    nodes.push(node);
  }
  return nodes;
}

const isAtEnd = () => at("talk").scrollHeight - at("talk").scrollTop - at("talk").clientHeight < 80;
const toEnd = () => (at("talk").scrollTop = at("talk").scrollHeight);

async function load() {
  const wanted = current;
  if (!wanted) return;
  const [page, turns] = await Promise.all([
    ask("GET", `/conversations/${wanted}/messages?limit=${PAGE}&order=newest`),
    ask("GET", `/conversations/${wanted}/turns?limit=20`),
  ]);
  if (wanted !== current) return;
  const stays = !isAtEnd() && at("talk").childElementCount;
  const unfinished = turns.results.filter((turn) => ["queued", "running", "waiting"].includes(turn.status)).reverse();
  const ids = new Set(unfinished.map((turn) => turn.turnId));
  // What a turn that goes on has said so far comes with its events.
  const messages = page.results.reverse().filter((each) => each.role === "USER" || !ids.has(each.turnId));
  for (const { source } of open.values()) source.close();
  open.clear();
  at("talk").replaceChildren(...shown(messages), ...pending(wanted));
  for (const turn of turns.results.slice().reverse()) if (turn.error) fail(turn.turnId, turn.error.message);
  for (const turn of unfinished) read(turn.turnId);
  earlier = path(page.next);
  at("earlier").hidden = !earlier;
  if (!stays) toEnd();
  buttons();
}

at("earlier").addEventListener("click", async () => {
  const page = await ask("GET", earlier).catch(tell);
  if (!page) return;
  earlier = path(page.next);
  at("earlier").hidden = !earlier;
  const before = at("talk").scrollHeight;
  at("talk").prepend(...shown(page.results.reverse()));
  at("talk").scrollTop += at("talk").scrollHeight - before;
});

function fail(turnId, words) {
  const theirs = [...at("talk").children].filter((node) => node.dataset.turn === turnId);
  const node = make("p", { className: "problem", text: `No answer: ${words} ` });
  node.dataset.failed = turnId;
  const asked = theirs.find((each) => each.classList.contains("user"));
  if (asked) {
    const again = make("button", { type: "button", text: "Try again" });
    again.addEventListener("click", () => send(asked.said));
    node.append(again);
  }
  if (theirs.length) theirs.at(-1).after(node);
  else at("talk").append(node);
}

// --- a turn that goes on -----------------------------------------------------------------------------------------

function read(turnId) {
  if (open.has(turnId)) return;
  const node = bubble("assistant");
  node.dataset.turn = turnId;
  const status = make("p", { className: "status", text: "Waiting …" });
  node.append(status);
  at("talk").append(node);
  const turn = { node, status, texts: new Map(), thoughts: new Map(), calls: new Map(), due: 0 };
  turn.source = follow(turnId, {
    connected: (well) => connection(well ? "" : "The connection was lost. Reconnecting …"),
    on: (name, data) => happened(turnId, turn, name, data),
  });
  open.set(turnId, turn);
  buttons();
}

function happened(turnId, turn, name, data) {
  const follows = isAtEnd();
  const { node, status } = turn;
  if (name === "turn.started") status.textContent = "Answering …";
  else if (name === "message.delta") piece(turn.texts, data);
  else if (name === "reasoning.delta") piece(turn.thoughts, data);
  else if (name === "message.reset") {
    turn.texts.delete(data.message);
    turn.thoughts.delete(data.message);
  } else if (name === "turn.reset") {
    turn.texts.clear();
    turn.thoughts.clear();
    turn.calls.clear();
  } else if (name === "tool.started") turn.calls.set(data.callId, `Tool: ${data.toolName}, running`);
  else if (name === "tool.finished") turn.calls.set(data.callId, `Tool: ${data.toolName}, ${data.status}`);
  else if (name === "approval.requested") consent(node, data);
  else if (name === "approval.decided") node.querySelector(`[data-approval="${data.approvalId}"]`)?.remove();
  else if (name.startsWith("turn.") && name !== "turn.queued") return ended(turnId, name, data);
  // Pieces come faster than a screen shows them.
  turn.due ||= requestAnimationFrame(() => {
    turn.due = 0;
    draw(turn);
    if (follows) toEnd();
  });
}

function piece(texts, { message, offset, text }) {
  const before = texts.get(message) ?? "";
  if (offset <= before.length) texts.set(message, before.slice(0, offset) + text);
}

function draw({ node, texts, thoughts, calls }) {
  const wereOpen = node.querySelector("details[open]") !== null;
  const told = [...thoughts.values()].join("\n\n");
  node.extras.replaceChildren(
    ...(told ? [Object.assign(folded("Reasoning", told), { open: wereOpen })] : []),
    ...[...calls.values()].map((words) => make("p", { className: "status", text: words })),
  );
  node.text.replaceChildren(rendered([...texts.values()].join("\n\n")));
}

async function ended(turnId, name, data) {
  const turn = open.get(turnId);
  turn?.source.close();
  open.delete(turnId);
  if (turn?.due) cancelAnimationFrame(turn.due);
  others?.postMessage(current);
  buttons();
  await load().catch(() => {
    // What it said stands here all the same.
    if (name === "turn.completed") say(turn.node, data.assistantMessage ?? "");
    else turn.node.text.textContent = data.detail ?? "";
  });
  if (name === "turn.completed") list().catch(() => {});
}

function consent(node, { approvalId, toolName, rule, arguments: given, expiresAt }) {
  const words = `${toolName} needs approval (${rule}), until ${local(expiresAt)}.`;
  const box = make("div", { className: "approval" }, make("p", { text: words }), make("pre", { text: given }));
  box.dataset.approval = approvalId;
  if (mayDecide)
    for (const [decision, label] of [
      ["approve", "Approve"],
      ["deny", "Deny"],
    ]) {
      const button = make("button", { type: "button", text: label });
      button.addEventListener("click", async () => {
        const done = await ask("POST", `/approvals/${approvalId}/decide`, { decision }).catch(tell);
        if (done) box.replaceChildren(make("p", { text: `${toolName}: ${done.state}.` }));
      });
      box.append(button, " ");
    }
  node.append(box);
}

// --- sending -----------------------------------------------------------------------------------------------------
// A message is kept until the host has it, with the key by which the host knows one that comes twice.

const KEPT = "nanohost-unsent";
const unsent = () => JSON.parse(localStorage.getItem(KEPT) ?? "[]");
const keep = (rows) => localStorage.setItem(KEPT, JSON.stringify(rows));

function pending(conversationId) {
  return unsent()
    .filter((each) => each.conversationId === conversationId)
    .map(({ key, text }) => {
      const node = bubble("user");
      node.dataset.key = key;
      say(node, text, { plain: true });
      node.append(make("p", { className: "status", text: "Not sent yet." }));
      return node;
    });
}

async function send(text) {
  const key = newId();
  try {
    if (!current) {
      const made = await ask("POST", "/conversations", { agent: at("agent").value });
      current = made.conversationId;
      history.pushState(null, "", `/chat/${current}/`);
      buttons();
    }
  } catch (error) {
    at("message").value = text;
    return tell(error);
  }
  keep([...unsent(), { key, text, conversationId: current }]);
  at("talk").append(...pending(current).slice(-1));
  toEnd();
  await flush();
}

let flushing = false;

async function flush() {
  if (flushing) return;
  flushing = true;
  try {
    for (const each of unsent()) {
      let turn = null;
      try {
        const body = { message: each.text };
        turn = await ask("POST", `/conversations/${each.conversationId}/turns`, body, { "Idempotency-Key": each.key });
        connection("");
      } catch (error) {
        if (!(error instanceof Problem) || error.status >= 500 || error.status === 429) {
          connection("Not sent yet: the host cannot be reached. It is tried again.");
          return setTimeout(flush, 3000);
        }
        if (each.conversationId === current) at("message").value ||= each.text;
        tell(error);
      }
      keep(unsent().filter((row) => row.key !== each.key));
      if (each.conversationId !== current) continue;
      const node = at("talk").querySelector(`[data-key="${each.key}"]`);
      if (!turn) node?.remove();
      else {
        if (node) {
          node.dataset.turn = turn.turnId;
          node.lastChild.remove();
        }
        read(turn.turnId);
        others?.postMessage(current);
        list().catch(() => {});
      }
    }
  } finally {
    flushing = false;
  }
}

at("say").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("message").value;
  if (!text.trim()) return;
  at("message").value = "";
  send(text);
});
at("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("say").requestSubmit();
});
at("stop").addEventListener("click", () => {
  for (const turnId of open.keys()) ask("POST", `/turns/${turnId}/cancel`, {}).catch(tell);
});

// --- the page ----------------------------------------------------------------------------------------------------

function buttons() {
  at("stop").hidden = !open.size;
  at("agent").hidden = at("agent-label").hidden = Boolean(current);
}

function connection(words) {
  at("connection").textContent = words;
  at("connection").hidden = !words;
}

function tell(error) {
  connection(error instanceof Problem ? error.message : "The host cannot be reached. Try again in a moment.");
}

async function go(conversationId, { isNew = true } = {}) {
  if (isNew) history.pushState(null, "", conversationId ? `/chat/${conversationId}/` : "/chat/");
  for (const { source } of open.values()) source.close();
  open.clear();
  current = conversationId;
  at("talk").replaceChildren();
  at("earlier").hidden = true;
  at("side").classList.remove("open");
  connection("");
  buttons();
  mark();
  await load().catch(tell);
  at("message").focus();
}

at("menu").addEventListener("click", () => {
  const isOpen = at("side").classList.toggle("open");
  at("menu").setAttribute("aria-expanded", isOpen);
});
at("new").addEventListener("click", (event) => {
  event.preventDefault();
  go(null);
});
addEventListener("popstate", () => go(here(), { isNew: false }));
addEventListener("offline", () => connection("You are offline. What you send is kept until you are back."));
addEventListener("online", () => {
  connection("");
  flush();
  load().catch(() => {});
});
// Another device may have gone on meanwhile.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !open.size) load().catch(() => {});
});
others?.addEventListener("message", ({ data }) => {
  if (data === "list") list().catch(() => {});
  else if (data === current && !open.size) load().catch(() => {});
});

list().catch(tell);
go(here(), { isNew: false });
flush();
