// Questions of agents to people, in the talk; loaded when there is one.
import { ask } from "./api.js";
import { button, local, make } from "./dom.js";

// What happened to a question: it was asked, or answered.
export function told(node, name, data, tell) {
  const shown = node.querySelector(`[data-question="${data.questionId}"]`);
  if (name === "question.answered") shown?.remove();
  else if (!shown) show(node, data, tell);
}

function show(node, { questionId, text, options, expiresAt, isInChat }, tell) {
  const card = make("div", { className: "approval", data: { question: questionId } }, make("p", { text, dir: "auto" }));
  const status = make("p", { className: "status", text: `The agent waits until ${local(expiresAt)}.` });
  const answer = async (said) => {
    const done = await ask("POST", `/questions/${questionId}/answer`, { answer: said }).catch(tell);
    if (done) card.replaceChildren(make("p", { text: `${text} → ${done.answer}`, dir: "auto" }));
  };
  const input = make("input", { maxLength: 4000, ariaLabel: "Another answer", dir: "auto" });
  const own = () => input.value.trim() && answer(input.value);
  input.addEventListener("keydown", (event) => event.key === "Enter" && !event.isComposing && own());
  const buttons = options.flatMap((each) => [button(each, () => answer(each), { className: "primary" }), " "]);
  if (isInChat) status.textContent = "Only the person in the chat can answer.";
  else card.append(...buttons, input, " ", button("Answer", own));
  card.append(status);
  node.append(card);
}
