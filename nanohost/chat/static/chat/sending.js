// Sending once: a message is kept in the browser, with the key by which the host knows one that comes twice, until the
// host has answered.
import { address, ask, newId, Problem } from "./api.js";
import { base64, giveBack } from "./composer.js";
import { drop, keep, unsent } from "./outbox.js";
import * as talk from "./talk.js";

// `begin` makes the conversation that something is said in first; `said` is told of each that the host has.
export const around = { begin: null, said() {}, connection() {}, tell() {} };

export const keptFor = async (conversationId) =>
  (await unsent()).filter((each) => each.conversationId === conversationId);

export async function send(text, files = []) {
  try {
    if (!talk.current) await around.begin();
    const row = { key: newId(), conversationId: talk.current, text, files };
    await keep(row);
    await talk.showPending(row);
  } catch (error) {
    giveBack(text, files);
    return around.tell(error);
  }
  await flush();
}

const part = ({ name, type, data }) => ({ type: type.startsWith("image/") ? "image" : "file", name, data });

function bodyOf({ text, files }) {
  if (!files.length) return { message: text };
  return { content: [...(text.trim() ? [{ type: "text", text }] : []), ...files.map(part)] };
}

let flushing = false;

export async function flush() {
  if (flushing) return;
  flushing = true;
  try {
    // What is said meanwhile is sent as well.
    for (let row; (row = (await unsent())[0]); ) if (!(await put(row))) return;
  } finally {
    flushing = false;
  }
}

// Whether the host has answered.
async function put(row) {
  const { conversationId, key, text, files } = row;
  let turn = null;
  try {
    const known = { "Idempotency-Key": key };
    turn = await ask("POST", `/conversations/${conversationId}/turns`, bodyOf(row), known);
    around.connection("");
  } catch (error) {
    if (!(error instanceof Problem) || error.status >= 500 || [401, 408, 429].includes(error.status)) {
      around.connection("Not sent yet: the host cannot be reached. Sending is retried.");
      setTimeout(flush, 3000);
      return false;
    }
    if (conversationId === talk.current) giveBack(text, files);
    around.tell(error);
  }
  await drop(row);
  if (conversationId === talk.current) talk.sent(key, turn);
  if (turn) around.said(conversationId);
  return true;
}

// The files of a message, to be sent once more.
export function filesOf({ attachments }) {
  return Promise.all(
    (attachments ?? []).map(async ({ id, name, type }) => {
      const answer = await fetch(address(`/attachments/${id}`));
      if (!answer.ok) throw new Error(`${name} is gone.`);
      return { name, type, data: await base64(await answer.blob()) };
    }),
  );
}
