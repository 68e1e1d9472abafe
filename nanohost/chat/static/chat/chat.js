// The chat. What it shows is what the API tells; what it does not know yet, it asks again.
import { ask, Problem } from "./api.js";
import * as composer from "./composer.js";
import { at } from "./dom.js";
import * as schedules from "./schedules.js";
import * as sending from "./sending.js";
import * as sidebar from "./sidebar.js";
import * as talk from "./talk.js";

const others = "BroadcastChannel" in window ? new BroadcastChannel("nanohost-chat") : null;
const here = () => location.pathname.match(/^\/chat\/([0-9a-f-]{36})\/$/)?.[1] ?? null;
const quietly = () => {};

const OFFLINE = "You are offline. What you send is kept until you are back.";

function connection(words) {
  const shown = words || (navigator.onLine ? "" : OFFLINE);
  at("connection").textContent = shown;
  at("connection").hidden = !shown;
}

function tell(error) {
  const isTold = error instanceof Problem || !(error instanceof TypeError);
  connection(isTold ? error.message : "The host cannot be reached. Try again in a moment.");
}

async function go(conversationId, { isNew = true } = {}) {
  if (isNew) history.pushState(null, "", conversationId ? `/chat/${conversationId}/` : "/chat/");
  at("side").classList.remove("open");
  at("menu").setAttribute("aria-expanded", "false");
  connection("");
  sidebar.mark(conversationId);
  schedules.load(conversationId, tell).catch(quietly);
  await talk.show(conversationId).catch(tell);
  composer.focus();
}

// Something else is said than a message, or the same once more: in a branch.
async function again(message, text) {
  const files = await sending.filesOf(message);
  const made = await ask("POST", `/conversations/${message.conversationId}/branches`, { before: message.id });
  await go(made.conversationId);
  await sending.send(text, files);
}

Object.assign(talk.around, {
  again,
  tell,
  connection,
  unsent: sending.keptFor,
  resend: async (message, text) => sending.send(text, await sending.filesOf(message)),
  changed({ ended } = {}) {
    at("stop").hidden = !talk.isBusy();
    at("send").hidden = talk.isBusy() && matchMedia("(max-width: 48rem)").matches;
    at("agent-choice").hidden = Boolean(talk.current);
    at("welcome").hidden = Boolean(talk.current);
    if (!ended) return;
    others?.postMessage(talk.current);
    schedules.load(talk.current, tell).catch(quietly);
    sidebar.load().catch(quietly);
  },
});
Object.assign(sending.around, {
  tell,
  connection,
  async begin() {
    const made = await ask("POST", "/conversations", { agent: at("agent").value });
    history.pushState(null, "", `/chat/${made.conversationId}/`);
    talk.made(made.conversationId);
    sidebar.mark(made.conversationId);
  },
  said(conversationId) {
    others?.postMessage(conversationId);
    sidebar.load().catch(quietly);
  },
});
Object.assign(sidebar.around, { go, tell, changed: () => others?.postMessage("list") });
composer.attachTo({ send: sending.send, tell });
at("stop").addEventListener("click", talk.cancel);

at("menu").addEventListener("click", () => {
  const isOpen = at("side").classList.toggle("open");
  at("menu").setAttribute("aria-expanded", isOpen);
  if (isOpen) at("new").focus();
});
at("side").addEventListener("keydown", ({ key }) => {
  if (key !== "Escape" || !at("side").classList.contains("open")) return;
  at("menu").click();
  at("menu").focus();
});
at("new").addEventListener("click", (event) => {
  event.preventDefault();
  go(null);
});
at("branch-of").addEventListener("click", (event) => {
  event.preventDefault();
  go(new URL(event.currentTarget.href).pathname.split("/")[2]);
});
addEventListener("popstate", () => go(here(), { isNew: false }));
addEventListener("offline", () => connection(OFFLINE));
addEventListener("online", () => {
  connection("");
  sending.flush();
  talk.load().catch(quietly);
});
// Another device may have gone on meanwhile.
document.addEventListener("visibilitychange", () => {
  if (document.hidden || talk.isBusy()) return;
  talk.load().catch(quietly);
  sidebar.load().catch(quietly);
});
others?.addEventListener("message", ({ data }) => {
  if (data === talk.current && !talk.isBusy()) talk.load().catch(quietly);
  sidebar.load().catch(quietly);
});
addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || !event.shiftKey || event.code !== "KeyO") return;
  event.preventDefault();
  go(null);
});

sidebar.load().catch(tell);
go(here(), { isNew: false });
sending.flush().catch(quietly);
