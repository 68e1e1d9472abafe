// Schedules that speak in a conversation, as chips above the message field.
import { ask } from "./api.js";
import { at, button, local, make } from "./dom.js";

const box = at("schedules");
let shown = null;

export async function load(conversationId, tell) {
  shown = conversationId;
  const found = conversationId ? await ask("GET", `/schedules?limit=20&conversationId=${conversationId}`) : { results: [] };
  if (shown !== conversationId) return;
  const rows = found.results.filter(({ state }) => state !== "ended");
  box.replaceChildren(...rows.map((row) => chip(row, () => load(conversationId, tell).catch(tell), tell)));
  box.hidden = !rows.length;
}

function times({ kind, everySeconds, cron, zone }) {
  if (kind === "every") return `Every ${everySeconds % 3600 ? `${Math.round(everySeconds / 60)} min` : `${everySeconds / 3600} h`}`;
  return kind === "cron" ? `${cron} (${zone})` : "Once";
}

function chip(row, again, tell) {
  const { scheduleId, description, prompt, state, nextAt, pausedBecause } = row;
  const name = description || prompt.slice(0, 40);
  const when = state === "paused" ? "paused" : `next ${local(nextAt)}`;
  const summary = make("summary", {}, "⏰ ", make("span", { text: name, dir: "auto" }), `, ${when}`);
  const act = (method, address, body) => () => ask(method, `/schedules/${scheduleId}${address}`, body).then(again, tell);
  const other = state === "paused" ? "resume" : "pause";
  const about = make("div", {}, make("p", { text: `${times(row)}. ${pausedBecause ?? ""}` }), make("p", { text: prompt, dir: "auto" }));
  about.append(
    button(other === "pause" ? "Pause" : "Resume", act("POST", `/${other}`, {})),
    " ",
    button("Cancel it", act("DELETE", "")),
  );
  return make("details", { className: "chip" }, summary, about);
}
