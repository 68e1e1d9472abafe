// A shared conversation: answers as Markdown, and times by the reader's clock. Without it, they are texts.
import { local } from "./dom.js";
import { rendered } from "./markdown.js";

for (const node of document.querySelectorAll("[data-markdown]")) {
  const text = node.textContent;
  node.removeAttribute("data-markdown");
  node.replaceChildren(rendered(text));
}
for (const time of document.querySelectorAll("time")) time.textContent = local(time.dateTime);
