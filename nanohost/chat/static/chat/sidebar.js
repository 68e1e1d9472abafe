// The list of conversations: pinned ones first, then by day; what people do with them; search; the archive.
import { ask, path } from "./api.js";
import { askFor, at, button, field, local, make, menu, save } from "./dom.js";
import * as sharing from "./sharing.js";

// `go` shows a conversation, `changed` is told when the list is another one than it was, `tell` of what went wrong.
export const around = { go() {}, changed() {}, tell() {} };

const list = at("conversations");
let current = null;
let older = null;
let isArchive = false;

const words = () => at("find").value.trim();

export async function load() {
  const wanted = `${isArchive}${words()}`;
  const search = words() ? `&search=${encodeURIComponent(words())}` : "";
  const rest = `/conversations?limit=50&archived=${isArchive}${search}`;
  const [pinned, page] = await Promise.all([
    search || isArchive ? null : ask("GET", "/conversations?limit=200&archived=false&pinned=true"),
    ask("GET", search || isArchive ? rest : `${rest}&pinned=false`),
  ]);
  if (wanted !== `${isArchive}${words()}`) return;
  const found = [...(pinned?.results ?? []), ...page.results];
  const focused = focusedIn(list);
  list.replaceChildren();
  put(found);
  focused?.();
  const none = search ? "Nothing is called that or says that." : isArchive ? "Nothing is archived." : "No conversations yet.";
  if (!found.length) list.append(make("li", { className: "empty", text: none }));
  older = path(page.next);
  at("older").hidden = !older;
  at("archive").setAttribute("aria-pressed", isArchive);
  mark();
}

// What puts the focus back where it is, once the rows are others; null if it is elsewhere.
function focusedIn(rows) {
  const control = document.activeElement?.closest("a, .more");
  const id = rows.contains(control) ? control.closest("li").dataset.id : null;
  const name = control?.matches(".more") ? ".more" : "a";
  return id && (() => rows.querySelector(`li[data-id="${id}"] > ${name}`)?.focus());
}

function put(rows) {
  for (const row of rows) {
    const day = row.pinned && !isArchive && !words() ? "Pinned" : dayOf(row.createdAt);
    const last = [...list.querySelectorAll(".day")].at(-1);
    if (last?.textContent !== day) list.append(make("li", { className: "day", text: day }));
    list.append(entry(row));
  }
}

function dayOf(iso) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  const days = (midnight - new Date(iso).setHours(0, 0, 0, 0)) / 86_400_000;
  if (days < 0.5) return "Today";
  if (days < 1.5) return "Yesterday";
  if (days < 7.5) return "Last 7 days";
  return new Date(iso).toLocaleDateString([], { month: "long", year: "numeric" });
}

function entry(row) {
  const { conversationId, title, agent, createdAt, pinned, archived, branchOf } = row;
  const name = title?.trim() || "No messages yet";
  const link = make("a", { href: `/chat/${conversationId}/`, title: `${name}\n${agent}, ${local(createdAt)}`, dir: "auto" });
  if (branchOf) link.append(make("span", { className: "branch", text: "↳ ", title: "A branch" }));
  link.append(name);
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    around.go(conversationId);
  });
  const more = button(
    "⋯",
    () =>
      menu(more, [
        ["Rename", () => rename(row, name)],
        [pinned ? "Unpin" : "Pin", () => change(row, { pinned: !pinned })],
        [archived ? "Take out of the archive" : "Archive", () => change(row, { archived: !archived })],
        ["Share", () => sharing.open(conversationId, name).catch(around.tell)],
        ["Export as Markdown", () => exported(row, name, asMarkdown, "md", "text/markdown").catch(around.tell)],
        ["Export as JSON", () => exported(row, name, asJson, "json", "application/json").catch(around.tell)],
        ["Delete", () => remove(row, name)],
      ]),
    { ariaLabel: `More about ${name}`, ariaHasPopup: "menu", className: "more" },
  );
  more.setAttribute("aria-expanded", "false");
  const node = make("li", { data: { id: conversationId } }, link, more);
  node.row = row;
  return node;
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

async function exported({ conversationId, agent }, name, write, suffix, type) {
  const messages = [];
  for (let at = `/conversations/${conversationId}/messages?limit=200`; at; ) {
    const page = await ask("GET", at);
    messages.push(...page.results);
    at = path(page.next);
  }
  const file = name.replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 60) || "conversation";
  save(`${file}.${suffix}`, type, write(name, agent, messages));
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
  put(page.results);
  older = path(page.next);
  at("older").hidden = !older;
  mark();
});
at("archive").addEventListener("click", () => {
  isArchive = !isArchive;
  load().catch(around.tell);
});
at("shared").addEventListener("click", () => sharing.open(null).catch(around.tell));
