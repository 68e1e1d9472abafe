// A model's Markdown as nodes. No HTML of a model runs, and nothing it names is fetched: pictures become links.
import MarkdownIt from "./vendor/markdown-it.mjs";
import DOMPurify from "./vendor/purify.mjs";

const markdown = new MarkdownIt({ html: false, linkify: false, breaks: true });

markdown.renderer.rules.image = (tokens, at) => {
  const { content } = tokens[at];
  const address = tokens[at].attrGet("src") ?? "";
  const words = markdown.utils.escapeHtml(`Picture: ${content || address}`);
  return `<a href="${markdown.utils.escapeHtml(address)}">${words}</a>`;
};

// A second net, should the first one tear.
const LIMITS = {
  ALLOWED_TAGS: [
    ..."a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre s strong table tbody td th thead tr ul".split(" "),
  ],
  ALLOWED_ATTR: ["href", "title", "start", "class"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

// A text with more than so many characters is shown as it is: to read it as Markdown would hold up the page.
const MOST_CHARS = 200_000;

export function rendered(text) {
  if (text.length > MOST_CHARS) return document.createTextNode(text);
  const nodes = DOMPurify.sanitize(markdown.render(text), LIMITS);
  for (const link of nodes.querySelectorAll("a")) {
    if (!link.href) continue;
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  return nodes;
}
