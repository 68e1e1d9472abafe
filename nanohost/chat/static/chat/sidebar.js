// The list of conversations: pinned ones first, then by day; what people do with them; search; the archive.
import { ask, path } from "./api.js";
import { askFor, at, button, field, local, make, menu, save } from "./dom.js";

// `go` shows a conversation, `changed` is told when the list is another one than it was, `tell` of what went wrong.
export const around = { go() {}, changed() {}, tell() {} };

const list = at("conversations");
let current = null;
let older = null;
let isArchive = false;
let rows = [];
let asked = 0;
let answered = 0;

const words = () => at("find").value.trim();

export async function load() {
  const wanted = `${isArchive}${words()}`;
  const number = ++asked;
  const search = words() ? `&search=${encodeURIComponent(words())}` : "";
  const rest = `/conversations?limit=50&archived=${isArchive}${search}`;
  const [pinned, page] = await Promise.all([
    search || isArchive ? null : ask("GET", "/conversations?limit=200&archived=false&pinned=true"),
    ask("GET", search || isArchive ? rest : `${rest}&pinned=false`),
  ]);
  // An answer that was overtaken by a later one would show the list as it was.
  if (wanted !== `${isArchive}${words()}` || number < answered) return;
  answered = number;
  draw([...(pinned?.results ?? []), ...page.results]);
  const none = search ? "No results." : isArchive ? "Nothing is archived." : "No conversations yet.";
  if (!rows.length) list.append(make("li", { className: "empty", text: none }));
  older = path(page.next);
  at("older").hidden = !older;
  at("archive").setAttribute("aria-pressed", isArchive);
  mark();
}

// Shows these rows. Who stands in one by the keyboard, or has its menu open, stays there: a row that was shown before is
// the same element, and only what is no longer listed is taken out.
function draw(found) {
  rows = found;
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  const place = [...list.children].indexOf(focused?.closest("li"));
  const shown = new Map([...list.children].map((node) => [node.dataset.id, node]));
  const wanted = [];
  let heading = null;
  for (const row of found) {
    const day = row.pinned && !isArchive && !words() ? "Pinned" : dayOf(row.createdAt);
    if (day !== heading) wanted.push(make("li", { className: "day", text: day }));
    heading = day;
    wanted.push(filled(shown.get(row.conversationId) ?? entry(), row));
  }
  const stays = new Set(wanted);
  for (const node of [...list.children]) if (!stays.has(node)) node.remove();
  let next = list.firstChild;
  for (const node of wanted) {
    if (node === next) next = next.nextSibling;
    else list.insertBefore(node, next);
  }
  if (focused && focused !== document.activeElement) refocus(focused, place);
}

// A row that was moved keeps the focus; of one that is gone, the row that stands in its place has it.
function refocus(focused, place) {
  const links = [...list.children].slice(Math.max(0, place)).concat([...list.children].reverse());
  const instead = links.find((node) => node.dataset.id)?.firstChild ?? at("new");
  (focused.isConnected ? focused : instead).focus({ preventScroll: true });
}

function dayOf(iso) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  const days = (midnight - new Date(iso).setHours(0, 0, 0, 0)) / 86_400_000;
  if (days < 0.5) return "Today";
  if (days < 1.5) return "Yesterday";
  if (days < 7.5) return "Last 7 days";
  return new Date(iso).toLocaleDateString([], { month: "long", year: "numeric" });
}

// A row to be filled. What its menu does, it does to the row as it is by then.
function entry() {
  const link = make("a", { dir: "auto" });
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    around.go(node.row.conversationId);
  });
  const more = button("⋯", () => menu(more, choices(node.row)), { ariaHasPopup: "menu", className: "more" });
  more.setAttribute("aria-expanded", "false");
  const node = make("li", {}, link, more);
  return node;
}

const nameOf = ({ title }) => title?.trim() || "No messages yet";

function filled(node, row) {
  const { conversationId, agent, createdAt, branchOf } = row;
  const name = nameOf(row);
  const [link, more] = node.children;
  Object.assign(link, { href: `/chat/${conversationId}/`, title: `${name}\n${agent}, ${local(createdAt)}` });
  const sign = branchOf ? [make("span", { className: "branch", text: "↳ ", title: "A branch" })] : [];
  link.replaceChildren(...sign, name);
  more.ariaLabel = `More actions for ${name}`;
  node.dataset.id = conversationId;
  node.row = row;
  return node;
}

function choices(row) {
  const { conversationId, pinned, archived } = row;
  const name = nameOf(row);
  return [
    ["Rename", () => rename(row, name)],
    [pinned ? "Unpin" : "Pin", () => change(row, { pinned: !pinned })],
    [archived ? "Remove from the archive" : "Archive", () => change(row, { archived: !archived })],
    ["Share", () => share(conversationId, name).catch(around.tell)],
    ["Export as Markdown", () => exported(row, asMarkdown, "md", "text/markdown").catch(around.tell)],
    ["Export as JSON", () => exported(row, asJson, "json", "application/json").catch(around.tell)],
    ["Delete", () => remove(row, name)],
  ];
}

async function change({ conversationId }, changes) {
  const done = await ask("PATCH", `/conversations/${conversationId}`, changes).catch(around.tell);
  if (!done) return;
  around.changed();
  await load().catch(around.tell);
}

async function rename(row, name) {
  const input = make("input", { name: "title", value: name, maxLength: 120, required: true, dir: "auto" });
  const given = await askFor({ title: "Rename", ok: "Save" }, field("Name", input));
  if (given) await change(row, { title: given.title });
}

async function remove({ conversationId }, name) {
  const words = `“${name}” is deleted with all its messages. This cannot be undone.`;
  if (!(await askFor({ title: "Delete this conversation?", words, ok: "Delete", isGrave: true }))) return;
  try {
    await ask("DELETE", `/conversations/${conversationId}`);
  } catch (error) {
    return around.tell(error);
  }
  around.changed();
  if (current === conversationId) around.go(null);
  await load().catch(around.tell);
}

// --- export ------------------------------------------------------------------------------------------------------

// The row may be older than the conversation's title: that is asked for.
async function exported({ conversationId }, write, suffix, type) {
  const conversation = await ask("GET", `/conversations/${conversationId}`);
  const name = nameOf(conversation);
  const messages = [];
  for (let at = `/conversations/${conversationId}/messages?limit=200`; at; ) {
    const page = await ask("GET", at);
    messages.push(...page.results);
    at = path(page.next);
  }
  const file = name.replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 60) || "conversation";
  save(`${file}.${suffix}`, type, write(name, conversation.agent, messages));
}

const asJson = (title, agent, messages) => JSON.stringify({ title, agent, messages }, null, 2);

function asMarkdown(title, agent, messages) {
  const parts = [`# ${title}\n`];
  for (const { role, type, content, createdAt, attachments, toolCalls } of messages) {
    if (role === "TOOL" || role === "SYSTEM" || type === "SUMMARY") continue;
    parts.push(`## ${role === "USER" ? "You" : agent}, ${local(createdAt)}\n`);
    for (const { name } of attachments ?? []) parts.push(`- 📄 ${name}\n`);
    for (const { toolName } of toolCalls ?? []) parts.push(`- Tool: ${toolName}\n`);
    if (content) parts.push(`${content}\n`);
  }
  return parts.join("\n");
}

// --- which one is shown ------------------------------------------------------------------------------------------

export function mark(conversationId = current) {
  current = conversationId;
  let shown = null;
  for (const node of list.children) {
    const isCurrent = Boolean(current) && node.dataset.id === current;
    node.classList.toggle("current", isCurrent);
    if (isCurrent) node.firstChild.setAttribute("aria-current", "page");
    else node.firstChild?.removeAttribute?.("aria-current");
    if (isCurrent) shown = node.row;
  }
  if (shown) name(shown);
  else if (!current) name(null);
  else if (at("title").dataset.id !== current) ask("GET", `/conversations/${current}`).then(name, () => {});
}

function name(row) {
  if (row && row.conversationId !== current) return;
  at("title").textContent = row ? row.title?.trim() || "New conversation" : "New conversation";
  at("title").dataset.id = row?.conversationId ?? "";
  at("with").textContent = row ? row.agent : "";
  at("branch-of").hidden = !row?.branchOf;
  at("branch-of").href = row?.branchOf ? `/chat/${row.branchOf}/` : "";
  document.title = `${at("title").textContent} | nanohost`;
}

let searching = 0;
at("find").addEventListener("input", () => {
  clearTimeout(searching);
  searching = setTimeout(() => load().catch(around.tell), 200);
});
at("older").addEventListener("click", async () => {
  const page = await ask("GET", older).catch(around.tell);
  if (!page) return;
  draw([...rows, ...page.results]);
  older = path(page.next);
  at("older").hidden = !older;
  mark();
});
// Loaded by those who share.
async function share(...of) {
  return (await import("./sharing.js")).open(...of);
}

at("archive").addEventListener("click", () => {
  isArchive = !isArchive;
  load().catch(around.tell);
});
at("shared").addEventListener("click", () => share(null).catch(around.tell));
