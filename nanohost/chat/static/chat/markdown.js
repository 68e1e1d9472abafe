// A model's Markdown as nodes. No HTML of a model runs, and nothing it names is fetched: pictures stay folded links.
import { button, copy, make } from "./dom.js";
import MarkdownIt from "./vendor/markdown-it.mjs";
import DOMPurify from "./vendor/purify.mjs";

const markdown = new MarkdownIt({ html: false, linkify: false, breaks: true });
const escaped = markdown.utils.escapeHtml;

markdown.renderer.rules.image = (tokens, at) => {
  const { content } = tokens[at];
  const address = tokens[at].attrGet("src") ?? "";
  return `<a class="picture" href="${escaped(address)}">${escaped(content || address)}</a>`;
};

// --- formulas: between $, $$, \( \) and \[ \] --------------------------------------------------------------------

const LONGEST_FORMULA = 2000;
const DELIMITERS = [
  ["$$", "$$", true],
  ["\\[", "\\]", true],
  ["\\(", "\\)", false],
  ["$", "$", false],
];

function inlineFormula(state, isSilent) {
  const { src, pos } = state;
  const [open, close, isDisplay] = DELIMITERS.find(([open]) => src.startsWith(open, pos)) ?? [];
  if (!open) return false;
  const rest = src.slice(pos + open.length, pos + open.length + LONGEST_FORMULA);
  const end = rest.indexOf(close);
  const tex = rest.slice(0, end);
  if (end < 1 || !tex.trim() || pos + open.length + end + close.length > state.posMax) return false;
  // Prices are none.
  if (open === "$" && (/^\s|\s$|\n\n/.test(tex) || /\d/.test(rest[end + 1] ?? ""))) return false;
  if (!isSilent) addFormula(state.push("formula", "", 0), tex, isDisplay);
  state.pos = pos + open.length + end + close.length;
  return true;
}

function blockFormula(state, first, last, isSilent) {
  const line = (at) => state.src.slice(state.bMarks[at] + state.tShift[at], state.eMarks[at]).trim();
  const close = { $$: "$$", "\\[": "\\]" }[line(first).slice(0, 2)];
  if (!close || state.sCount[first] - state.blkIndent >= 4) return false;
  let end = first;
  const isClosed = (at) => line(at).endsWith(close) && (at > first || line(at).length > 4);
  while (!isClosed(end)) if (++end >= last || end > first + 100 || state.sCount[end] < state.blkIndent) return false;
  if (isSilent) return true;
  const lines = Array.from({ length: end - first + 1 }, (_, n) => line(first + n)).join("\n");
  addFormula(state.push("formula", "", 0), lines.slice(2, -2).slice(0, LONGEST_FORMULA), true);
  state.line = end + 1;
  return true;
}

function addFormula(token, tex, isDisplay) {
  token.content = tex.trim();
  token.info = isDisplay ? "formula display" : "formula";
}

markdown.inline.ruler.before("escape", "formula", inlineFormula);
markdown.block.ruler.before("fence", "formula", blockFormula, { alt: ["paragraph", "blockquote", "list"] });
markdown.renderer.rules.formula = (tokens, at) => {
  const { info, content } = tokens[at];
  return `<code class="${info}">${escaped(content)}</code>`;
};

// --- from text to nodes ------------------------------------------------------------------------------------------

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
const MAX_CHARS = 200_000;

// `isWhole`: nothing more comes, and code and formulas are worth the time that they take.
export function rendered(text, { isWhole = true } = {}) {
  if (text.length > MAX_CHARS) return document.createTextNode(text);
  const nodes = DOMPurify.sanitize(markdown.render(text), LIMITS);
  for (const link of nodes.querySelectorAll("a")) mark(link);
  for (const table of nodes.querySelectorAll("table")) {
    // It scrolls by itself where it is wide, with the keyboard too.
    const box = make("div", { className: "wide", tabIndex: 0, role: "region", ariaLabel: "Table" });
    table.replaceWith(box);
    box.append(table);
  }
  for (const code of nodes.querySelectorAll("pre > code")) frame(code, isWhole);
  if (isWhole) for (const code of nodes.querySelectorAll("code.formula")) typeset(code);
  return nodes;
}

// Its text, as a reader sees it, is in the direction of its own first letter.
function mark(link) {
  if (!link.href) return link.classList.contains("picture") && link.replaceWith(`Picture: ${link.textContent}`);
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
  link.title ||= link.href;
  if (!link.classList.contains("picture")) return;
  const summary = make("summary", { text: `Picture: ${link.textContent}` });
  const shown = make("a", { href: link.href, target: "_blank", rel: link.rel, text: link.href });
  link.replaceWith(make("details", { className: "picture" }, summary, "Not loaded. Its address: ", shown));
}

// --- code --------------------------------------------------------------------------------------------------------

const NAMES = {
  ...{ sh: "bash", shell: "bash", zsh: "bash", console: "bash", "c++": "cpp", cs: "csharp", "c#": "csharp" },
  ...{ docker: "dockerfile", golang: "go", toml: "ini", js: "javascript", jsx: "javascript", mjs: "javascript" },
  ...{ kt: "kotlin", md: "markdown", py: "python", rb: "ruby", rs: "rust", ts: "typescript", tsx: "typescript" },
  ...{ html: "xml", svg: "xml", yml: "yaml", jsonc: "json", patch: "diff" },
};
const LANGUAGES = new Set(
  "bash c cpp csharp css diff dockerfile go ini java javascript json kotlin markdown php python ruby rust sql typescript xml yaml".split(
    " ",
  ),
);
const MAX_HIGHLIGHTED = 50_000;

function frame(code, isWhole) {
  const said = code.className.match(/^language-(.{1,30})$/)?.[1] ?? "";
  const pre = code.parentElement;
  pre.tabIndex = 0;
  pre.dir = "ltr";
  const head = make("div", { className: "code-head" }, make("span", { text: said || "code" }));
  head.append(button("Copy", ({ currentTarget }) => copy(code.textContent, currentTarget)));
  const box = make("div", { className: "code" });
  pre.replaceWith(box);
  box.append(head, pre);
  const language = NAMES[said.toLowerCase()] ?? said.toLowerCase();
  if (isWhole && LANGUAGES.has(language) && code.textContent.length <= MAX_HIGHLIGHTED) colour(code, language);
}

async function colour(code, language) {
  try {
    const [{ default: core }, { default: grammar }] = await Promise.all([
      import("./vendor/highlight/core.mjs"),
      import(`./vendor/highlight/${language}.mjs`),
    ]);
    if (!core.getLanguage(language)) core.registerLanguage(language, grammar);
    const { value } = core.highlight(code.textContent, { language, ignoreIllegals: true });
    const limits = { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true };
    code.replaceChildren(DOMPurify.sanitize(value, limits));
  } catch {
    // It stands there as it is.
  }
}

async function typeset(code) {
  try {
    const { default: temml } = await import("./vendor/temml.mjs");
    const displayMode = code.classList.contains("display");
    const options = { displayMode, throwOnError: true, trust: false, maxExpand: 300, maxSize: [20, 20] };
    const made = temml.renderToString(code.textContent, options);
    const limits = { USE_PROFILES: { mathMl: true }, FORBID_ATTR: ["href", "xlink:href", "src", "id"] };
    const nodes = DOMPurify.sanitize(made, { ...limits, RETURN_DOM_FRAGMENT: true });
    const box = make("span", { className: code.className, dir: "ltr", tabIndex: displayMode ? 0 : -1 }, nodes);
    if (box.querySelector("math")) code.replaceWith(box);
  } catch {
    // What is no TeX stays what it is.
  }
}
