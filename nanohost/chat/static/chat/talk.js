// The talk: a window of a conversation's messages, and the turns that go on in it.
import { address, ask, follow, path } from "./api.js";
import { askFor, at, button, copy, local, make, size } from "./dom.js";
import { rendered } from "./markdown.js";

const box = at("talk");
const { mayDecide } = box.dataset;
const PAGE = 50;
// More messages than that are taken out at the other end: a page of 10,000 would stutter.
const MAX_ROWS = 300;

// What the page around it does: `send` says something, `again` says something in a branch, `changed` is told of ends.
export const around = { send() {}, changed() {}, connection() {} };

export let current = null; // the conversation that is shown; null: one that is not made yet
const open = new Map(); // turns that are not done: id -> what is shown of them
let pages = []; // of what is shown, in its order: { rows, older, newer, last }
let isAtTail = true; // whether the last of them is the conversation's last
let results = new Map(); // of tools, whose calls are on a page that is not shown yet
let moving = null; // a page that is being loaded
let asked = 0; // how often what is stored was asked for: only the last answer counts,
let wantsAnew = false; // for all that was asked with those before it
let revision = 0; // how often something was sent meanwhile, of which an answer may not know yet

export const isBusy = () => open.size > 0;

const live = make("div", { id: "live" });
const earlier = button("Show earlier messages", () => showOlder(), { id: "earlier", hidden: true });
const later = button("Show later messages", () => showNewer(), { id: "later", hidden: true });
box.append(earlier, later, live);

// --- messages as nodes -------------------------------------------------------------------------------------------

function bubble(role, when) {
  const who = role === "user" ? "You" : "Agent";
  const node = make("article", { className: `message ${role}` });
  node.append(make("p", { className: "who", text: when ? `${who}, ${local(when)}` : who }));
  node.extras = make("div");
  node.text = make("div", { className: "text", dir: "auto" });
  node.tools = make("div", { className: "tools" });
  node.append(node.extras, node.text, node.tools);
  node.said = "";
  return node;
}

function say(node, text, { plain = false } = {}) {
  node.said = text;
  node.text.replaceChildren(plain ? document.createTextNode(text) : rendered(text));
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

const STATUSES = {
  ...{ SUCCESS: "✓ done", REJECTED: "⊘ not allowed", FAILED: "✗ failed", UNKNOWN: "? interrupted" },
  ...{ WAITING: "⏸ waits for somebody", QUEUED: "… waits", RUNNING: "… running" },
};

function folded(summary, status, ...texts) {
  const shown = texts.filter(Boolean).map((text) => make("pre", { text, tabIndex: 0, dir: "auto" }));
  const head = make("summary", { text: summary });
  if (status) head.append(" ", make("span", { className: "status", text: status }));
  return make("details", { className: "folded" }, head, ...shown);
}

const foldedCall = (name, status, given, result) =>
  saidBy(name, status, given) ??
  folded(`Tool: ${name}`, STATUSES[status] ?? "", pretty(given ?? ""), pretty(result ?? ""));

// What the agent has said in mid-turn, where it was spoken to, is no call to people.
function saidBy(name, status, given) {
  if (name !== "message" || status !== "SUCCESS") return null;
  let wanted = {};
  try {
    wanted = JSON.parse(given);
  } catch {
    return null; // it was deleted
  }
  if ((wanted.destination ?? "origin") !== "origin") return null;
  return make("div", { className: "said", dir: "auto" }, rendered(String(wanted.content)));
}

function files(attachments, { areSent = true } = {}) {
  const list = make("ul", { className: "files" });
  for (const { id, name, type, size: bytes, width, height, data } of attachments) {
    const link = areSent ? make("a", { href: address(`/attachments/${id}`), download: name }) : make("span");
    if (type.startsWith("image/")) {
      const src = areSent ? address(`/attachments/${id}/thumbnail`) : `data:${type};base64,${data}`;
      const scale = width ? Math.min(1, 256 / Math.max(width, height)) : 1;
      const room = width ? { width: Math.ceil(width * scale), height: Math.ceil(height * scale) } : {};
      link.append(make("img", { src, alt: name, loading: "lazy", ...room }));
    } else link.append(make("span", { className: "file", text: `📄 ${name}` }), ` ${bytes ? size(bytes) : ""}`);
    list.append(make("li", {}, link));
  }
  return list;
}

// Messages as nodes: an assistant's calls have their results with them.
function rowsOf(messages) {
  for (const each of messages) if (each.role === "TOOL") results.set(each.turnId + each.toolCallId, each.content);
  const nodes = [];
  for (const each of messages) {
    if (each.role === "TOOL" || each.role === "SYSTEM" || each.type === "SUMMARY") continue;
    const isUser = each.role === "USER";
    const node = bubble(isUser ? "user" : "assistant", each.createdAt);
    Object.assign(node.dataset, { turn: each.turnId ?? "", seq: each.seq });
    node.message = each;
    if (each.reasoning) node.extras.append(folded("Reasoning", "", each.reasoning));
    for (const { toolCallId, toolName, status, arguments: given } of each.toolCalls ?? []) {
      const key = each.turnId + toolCallId;
      node.extras.append(foldedCall(toolName, status, given, results.get(key)));
    }
    if (each.attachments?.length) node.extras.append(files(each.attachments));
    say(node, each.content ?? "", { plain: isUser || each.kind === "command" });
    node.text.hidden = !node.said;
    tools(node, isUser, each);
    nodes.push(node);
  }
  return nodes;
}

function tools(node, isUser, { kind, content }) {
  if (content) node.tools.append(button("Copy", ({ currentTarget }) => copy(node.said, currentTarget)));
  if (kind !== "said" || !around.again) return;
  if (isUser) node.tools.append(button("Edit", () => edit(node)));
  else if (content) node.tools.append(button("Retry", () => retry(node)), ...thumbs(node));
}

const thumbs = (node) =>
  Object.entries({ up: ["Good", "Good answer"], down: ["Bad", "Bad answer"] }).map(([value, [text, ariaLabel]]) =>
    button(
      text,
      ({ currentTarget }) => import("./feedback.js").then((it) => it.rate(node, currentTarget, around.tell)).catch(around.tell),
      { value, ariaLabel, ariaPressed: String(node.message.feedback === value) },
    ),
  );

// --- saying something else: in a branch, where this conversation stays as it is ----------------------------------

function edit(node) {
  if (node.querySelector("form")) return;
  const input = make("textarea", { value: node.said, rows: 3, ariaLabel: "Edit the message", dir: "auto" });
  const save = make("button", { type: "submit", text: "Send in a branch", className: "primary" });
  const close = () => {
    form.remove();
    node.text.hidden = !node.said;
    node.tools.hidden = false;
  };
  const form = make("form", { className: "edit" }, input, make("div", { className: "row end" }, button("Cancel", close), save));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value.trim() || node.message.attachments.length) around.again(node.message, input.value).catch(around.tell);
  });
  form.addEventListener("keydown", ({ key }) => key === "Escape" && close());
  node.text.hidden = node.tools.hidden = true;
  node.text.after(form);
  input.focus();
}

async function retry(node) {
  const before = pages.flatMap(({ rows }) => rows);
  const asked = before.slice(0, before.indexOf(node)).findLast((each) => each.message.role === "USER");
  if (asked) return around.again(asked.message, asked.said).catch(around.tell);
  if (pages[0]?.older) await showOlder().then(() => retry(node));
}

// --- the window --------------------------------------------------------------------------------------------------

const isAtEnd = () => isAtTail && box.scrollHeight - box.scrollTop - box.clientHeight < 80;
export const toEnd = () => (box.scrollTop = box.scrollHeight);

// Whatever is put in or taken out around it, what is in view stays where it is.
function holding(change) {
  const top = box.getBoundingClientRect().top;
  const seen = [...box.children].find((node) => node !== earlier && node.getBoundingClientRect().bottom > top);
  const before = seen?.getBoundingClientRect().top;
  change();
  if (seen?.isConnected) box.scrollTop += seen.getBoundingClientRect().top - before;
}

function pageOf({ results: messages, next, previous }) {
  const rows = messages.toReversed();
  return { rows: rowsOf(rows), older: path(next), newer: path(previous), last: rows.at(-1)?.seq ?? 0 };
}

const count = () => pages.reduce((sum, { rows }) => sum + rows.length, 0);

function drop(page) {
  for (const node of page.rows) node.remove();
}

function ends() {
  earlier.hidden = !pages[0]?.older;
  later.hidden = isAtTail;
  live.hidden = !isAtTail;
}

async function moved(link, put) {
  if (!link || moving) return moving;
  const wanted = current;
  moving = ask("GET", link)
    .then((found) => wanted === current && holding(() => put(pageOf(found))))
    .catch(around.tell)
    .finally(() => (moving = null));
  return moving;
}

function showOlder() {
  return moved(pages[0]?.older, (page) => {
    earlier.after(...page.rows);
    pages.unshift(page);
    while (count() > MAX_ROWS && pages.length > 1) {
      drop(pages.pop());
      isAtTail = false;
    }
    ends();
  });
}

function showNewer() {
  const last = pages.at(-1);
  if (isAtTail) return null;
  if (!last?.newer) return load({ anew: true });
  return moved(last.newer, (page) => {
    later.before(...page.rows);
    pages.push(page);
    isAtTail = !page.newer;
    while (count() > MAX_ROWS && pages.length > 1) drop(pages.shift());
    ends();
  });
}

box.addEventListener(
  "scroll",
  () => {
    if (box.scrollTop < 800) showOlder();
    else if (!isAtTail && box.scrollHeight - box.scrollTop - box.clientHeight < 800) showNewer();
  },
  { passive: true },
);

// Shows what is stored now, at the conversation's end. Where people read further up, it stays as it is.
export async function load({ anew = false } = {}) {
  const wanted = current;
  if (!wanted) return;
  const [mine, sentBefore] = [++asked, revision];
  wantsAnew ||= anew;
  const [found, turns, kept] = await Promise.all([
    ask("GET", `/conversations/${wanted}/messages?limit=${PAGE}&order=newest`),
    ask("GET", `/conversations/${wanted}/turns?limit=20`),
    around.unsent(wanted),
  ]);
  if (mine !== asked) return;
  if (sentBefore !== revision) return load();
  anew = wantsAnew;
  wantsAnew = false;
  if (!isAtTail && !anew) return;
  const follows = anew || isAtEnd() || !pages.length;
  const unfinished = turns.results.filter((turn) => ["queued", "running", "waiting"].includes(turn.status)).reverse();
  const ids = new Set(unfinished.map((turn) => turn.turnId));
  const first = found.results.at(-1)?.seq ?? 0;
  // What a turn that goes on has said so far comes with its events.
  found.results = found.results.filter((each) => each.role === "USER" || !ids.has(each.turnId));
  holding(() => {
    replaceTail(pageOf(found), first, anew);
    for (const turn of open.values()) stop(turn);
    open.clear();
    live.replaceChildren(...kept.map(pending));
    for (const node of box.querySelectorAll(".problem")) node.remove();
    for (const turn of turns.results.toReversed()) if (turn.error) fail(turn.turnId, turn.error.message);
    for (const turn of unfinished) read(turn.turnId);
    ends();
  });
  if (follows) toEnd();
  around.changed();
}

// `first`: the number of the first message that was asked for with it.
function replaceTail(page, first, anew) {
  const seq = (node) => Number(node?.dataset.seq ?? first);
  while (pages.length && (anew || seq(pages.at(-1).rows[0]) >= first)) drop(pages.pop());
  // So much has come meanwhile that something is missing in between.
  if (pages.length && pages.at(-1).last < first - 1) while (pages.length) drop(pages.pop());
  const last = pages.at(-1);
  if (last) {
    for (const node of last.rows.filter((each) => seq(each) >= first)) node.remove();
    last.rows = last.rows.filter((each) => seq(each) < first);
    last.newer = null;
  }
  later.before(...page.rows);
  pages.push(page);
  while (count() > MAX_ROWS && pages.length > 1) drop(pages.shift());
  isAtTail = true;
}

export async function show(conversationId) {
  for (const turn of open.values()) stop(turn);
  open.clear();
  for (const page of pages) drop(page);
  pages = [];
  results = new Map();
  isAtTail = true;
  current = conversationId;
  asked += 1;
  live.replaceChildren();
  for (const node of box.querySelectorAll(".problem")) node.remove();
  ends();
  around.changed();
  await load({ anew: true });
}

// The conversation that was shown before it was made.
export function made(conversationId) {
  current = conversationId;
  around.changed();
}

function fail(turnId, words) {
  const theirs = pages.flatMap(({ rows }) => rows).filter((node) => node.dataset.turn === turnId);
  if (!theirs.length) return;
  const node = make("p", { className: "problem", text: `No answer: ${words} ` });
  const asked = theirs.find((each) => each.message.role === "USER");
  if (asked && around.resend)
    node.append(button("Try again", () => around.resend(asked.message, asked.said).catch(around.tell)));
  theirs.at(-1).after(node);
}

// --- what is not sent yet ----------------------------------------------------------------------------------------

function pending({ key, text, files: sent = [] }) {
  const node = bubble("user");
  node.dataset.key = key;
  if (sent.length) node.extras.append(files(sent, { areSent: false }));
  say(node, text, { plain: true });
  node.text.hidden = !text;
  node.append(make("p", { className: "status", text: "Not sent yet." }));
  return node;
}

export async function showPending(row) {
  if (!isAtTail) await load({ anew: true }).catch(() => {});
  revision += 1;
  if (!live.querySelector(`[data-key="${row.key}"]`)) live.append(pending(row));
  toEnd();
}

export function sent(key, turn) {
  revision += 1;
  const node = live.querySelector(`[data-key="${key}"]`);
  if (!turn) return node?.remove();
  if (node) {
    node.dataset.turn = turn.turnId;
    node.lastChild.remove();
  }
  read(turn.turnId);
}

// --- a turn that goes on -----------------------------------------------------------------------------------------

function stop(turn) {
  turn.source.close();
  clearTimeout(turn.due);
}

function read(turnId) {
  if (open.has(turnId)) return;
  const node = bubble("assistant");
  node.dataset.turn = turnId;
  node.tools.remove();
  const status = make("p", { className: "status waiting", text: "Waiting …" });
  node.append(status);
  live.append(node);
  const turn = { node, status, texts: new Map(), thoughts: new Map(), calls: new Map(), due: 0, pause: 0 };
  turn.source = follow(turnId, {
    connected: (well) => around.connection(well ? "" : "The connection was lost. Reconnecting …"),
    on: (name, data) => happened(turnId, turn, name, data),
  });
  open.set(turnId, turn);
  around.changed();
}

function happened(turnId, turn, name, data) {
  const { node, status, texts, thoughts, calls } = turn;
  if (name === "turn.started") status.textContent = "Answering …";
  else if (name === "message.delta") piece(texts, data);
  else if (name === "reasoning.delta") piece(thoughts, data);
  else if (name === "message.reset") {
    texts.delete(data.message);
    thoughts.delete(data.message);
  } else if (name === "turn.reset") for (const each of [texts, thoughts, calls]) each.clear();
  else if (name === "tool.started") calls.set(data.callId, { ...data, status: "RUNNING" });
  else if (name === "tool.finished") calls.set(data.callId, { ...calls.get(data.callId), ...data });
  else if (name === "approval.requested") consent(node, data);
  else if (name.startsWith("question.")) import("./questions.js").then((it) => it.told(node, name, data, around.tell));
  else if (name === "approval.decided") node.querySelector(`[data-approval="${data.approvalId}"]`)?.remove();
  else if (name.startsWith("turn.") && name !== "turn.queued") return ended(turnId, name, data);
  // Pieces come faster than a screen shows them, and a long answer takes longer to read each time.
  turn.due ||= setTimeout(() => {
    const follows = isAtEnd();
    const began = performance.now();
    turn.due = 0;
    draw(turn);
    turn.pause = Math.min(1000, 3 * (performance.now() - began));
    if (follows) toEnd();
  }, Math.max(16, turn.pause));
}

function piece(texts, { message, offset, text }) {
  const before = texts.get(message) ?? "";
  if (offset <= before.length) texts.set(message, before.slice(0, offset) + text);
}

function draw({ node, texts, thoughts, calls }) {
  // What people have unfolded stays so.
  const unfolded = [...node.extras.children].map((each) => each.open);
  const told = [...thoughts.values()].join("\n\n");
  const shown = told ? [folded("Reasoning", "", told)] : [];
  for (const call of calls.values())
    shown.push(foldedCall(call.toolName, call.status, call.arguments, call.result));
  shown.forEach((each, n) => (each.open = unfolded[n] ?? false));
  node.extras.replaceChildren(...shown);
  node.said = [...texts.values()].join("\n\n");
  node.text.replaceChildren(rendered(node.said, { isWhole: false }));
}

async function ended(turnId, name, data) {
  const turn = open.get(turnId);
  if (turn) stop(turn);
  open.delete(turnId);
  around.changed({ ended: name });
  await load().catch(() => {
    // What it said stands here all the same.
    if (name === "turn.completed") say(turn.node, data.assistantMessage ?? "");
    else turn.node.text.textContent = data.detail ?? "";
    turn.status.remove();
  });
}

export function cancel() {
  for (const turnId of open.keys()) ask("POST", `/turns/${turnId}/cancel`, {}).catch(around.tell);
}

function consent(node, { approvalId, toolName, rule, arguments: given, expiresAt }) {
  if (node.querySelector(`[data-approval="${approvalId}"]`)) return;
  const words = `${toolName} needs approval (${rule}), until ${local(expiresAt)}.`;
  const about = make("pre", { text: pretty(given), tabIndex: 0, dir: "auto" });
  const card = make("div", { className: "approval", data: { approval: approvalId } }, make("p", { text: words }), about);
  const decide = (decision) => async () => {
    const reason = decision === "deny" ? await why(toolName) : {};
    if (!reason) return;
    const done = await ask("POST", `/approvals/${approvalId}/decide`, { decision, ...reason }).catch(around.tell);
    if (done) card.replaceChildren(make("p", { text: `${toolName}: ${done.state}.` }));
  };
  if (mayDecide)
    card.append(button("Approve", decide("approve"), { className: "primary" }), " ", button("Deny", decide("deny")));
  else card.append(make("p", { className: "status", text: "You do not have the permission to decide. It waits for somebody who has." }));
  node.append(card);
}

async function why(toolName) {
  const input = make("input", { name: "reason", maxLength: 500 });
  const label = make("label", {}, make("span", { text: "Reason, passed to the agent (optional)" }), input);
  const given = await askFor({ title: `Deny ${toolName}?`, ok: "Deny" }, label);
  return given && (given.reason ? { reason: given.reason } : {});
}
