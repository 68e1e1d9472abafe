// The chat in somebody else's page: one conversation, with a token for it alone, which this tab keeps.
import { Problem, use } from "./api.js";
import * as composer from "./composer.js";
import { at } from "./dom.js";
import * as sending from "./sending.js";
import * as talk from "./talk.js";

const KEPT = `nanohost-embed-${document.body.dataset.embed}`;

function connection(words) {
  at("connection").textContent = words;
  at("connection").hidden = !words;
}

function tell(error) {
  if (error.status === 401) sessionStorage.removeItem(KEPT);
  connection(error instanceof Problem ? error.message : "The host cannot be reached. Try again in a moment.");
}

async function begin() {
  const answer = await fetch(`${location.pathname}begin/`, { method: "POST", credentials: "omit" });
  const made = await answer.json().catch(() => null);
  if (!answer.ok) throw new Problem(answer.status, made);
  sessionStorage.setItem(KEPT, JSON.stringify(made));
  use(made.token);
  talk.made(made.conversationId);
}

Object.assign(talk.around, {
  tell,
  connection,
  unsent: sending.keptFor,
  changed: () => (at("stop").hidden = !talk.isBusy()),
});
Object.assign(sending.around, { tell, connection, begin });
composer.attachTo({ send: sending.send, tell });
at("stop").addEventListener("click", talk.cancel);
at("again").addEventListener("click", () => {
  sessionStorage.removeItem(KEPT);
  connection("");
  talk.show(null);
  composer.focus();
});
addEventListener("online", () => sending.flush());

const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "null");
if (kept) {
  use(kept.token);
  talk.show(kept.conversationId).catch(tell);
  sending.flush().catch(() => {});
}
