// Links by which others read a conversation: made, listed, revoked.
import { ask } from "./api.js";
import { askFor, button, copy, field, local, make } from "./dom.js";

// Of one conversation; without one, all links there are.
export async function open(conversationId, name) {
  const rows = await links(conversationId);
  if (!conversationId) return askFor({ title: "Shared links", ok: "Done" }, rows);
  const days = make("input", { name: "days", type: "number", min: 1, max: 365, value: 30, required: true });
  const tools = make("input", { name: "tools", type: "checkbox" });
  const chosen = make("label", { className: "check" }, tools, make("span", { text: "Show tool calls, with arguments and results" }));
  const words = `Anyone with the link can read “${name}” as it is now, without files. Later messages are not shown.`;
  const given = await askFor({ title: "Share a link", words, ok: "Make a link" }, field("Expires after days", days), chosen, rows);
  if (!given) return null;
  const wanted = { days: Number(given.days), withTools: Boolean(given.tools) };
  const made = await ask("POST", `/conversations/${conversationId}/shares`, wanted);
  const input = make("input", { value: `${location.origin}/chat/shared/${made.token}/`, readOnly: true });
  const button_ = button("Copy", ({ currentTarget }) => copy(input.value, currentTarget));
  const told = `It is shown only once. It expires on ${local(made.expiresAt)}.`;
  return askFor({ title: "The link", words: told, ok: "Done" }, field("Link", input), button_);
}

async function links(conversationId) {
  const of = conversationId ? `&conversationId=${conversationId}` : "";
  const { results } = await ask("GET", `/shares?limit=200${of}`);
  const list = make("ul", { className: "links", ariaLabel: "Links" });
  for (const each of results) {
    const until = { active: `until ${local(each.expiresAt)}` }[each.state] ?? each.state;
    const said = make("span", { text: `Made ${local(each.createdAt)}, ${until}${each.withTools ? ", with tools" : ""}` });
    const row = make("li", {}, said);
    if (!conversationId) row.prepend(make("a", { href: `/chat/${each.conversationId}/`, text: "Conversation" }));
    const revoke = async ({ currentTarget }) => {
      await ask("DELETE", `/shares/${each.shareId}`);
      said.textContent = `Made ${local(each.createdAt)}, revoked`;
      currentTarget.remove();
    };
    if (each.state === "active") row.append(button("Revoke", (event) => revoke(event).catch((error) => (said.textContent = error.message))));
    list.append(row);
  }
  if (!results.length) list.append(make("li", { className: "status", text: "Nothing is shared." }));
  return list;
}
