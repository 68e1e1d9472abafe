// Feedback on an answer; loaded when somebody gives some.
import { ask } from "./api.js";
import { button, make } from "./dom.js";

// A thumb was pressed: it counts, and a comment may follow; pressed again, it is taken back.
export async function rate(node, pressed, tell) {
  const { turn } = node.dataset;
  const rating = pressed.value;
  const isBack = pressed.ariaPressed === "true";
  await ask(isBack ? "DELETE" : "POST", `/turns/${turn}/feedback`, isBack ? undefined : { rating });
  for (const each of pressed.parentNode.querySelectorAll("[aria-pressed]")) each.ariaPressed = String(each === pressed && !isBack);
  node.querySelector("form.why")?.remove();
  if (!isBack) node.tools.after(why(turn, rating, tell));
}

function why(turn, rating, tell) {
  const input = make("input", { maxLength: 2000, ariaLabel: "Why? (optional)", placeholder: "Why? (optional)", dir: "auto" });
  const send = make("button", { type: "submit", text: "Tell" });
  const form = make("form", { className: "why row" }, input, send, button("Close", () => form.remove()));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const done = () => form.replaceWith(make("p", { className: "status", text: "Thank you." }));
    ask("POST", `/turns/${turn}/feedback`, { rating, comment: input.value.trim() }).then(done).catch(tell);
  });
  return form;
}
