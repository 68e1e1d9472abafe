// What is about to be said: words, and files by button, by paste and by drag.
import { at, button, make, size } from "./dom.js";

const form = at("say");
const input = at("message");
const MOST = Number(form.dataset.maxFiles ?? 0);
const MAX_BYTES = Number(form.dataset.maxBytes ?? 0);

let files = []; // { name, type, size, data }, data in base64

export function attachTo({ send, tell }) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value;
    if (!text.trim() && !files.length) return;
    const said = files;
    put("", []);
    send(text, said);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  // Until now a browser would have sent the form by itself, and loaded the page again.
  at("send").disabled = false;
  if (!MOST) return;
  // One after the other: two that come at once must not each think that they are the last that there is room for.
  let adding = Promise.resolve();
  const add = (list) => {
    const given = [...list];
    return (adding = adding.then(() => take(given)).catch(tell));
  };
  at("attach").addEventListener("click", () => at("files").click());
  at("files").addEventListener("change", ({ target }) => add(target.files).then(() => (target.value = "")));
  input.addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    add(event.clipboardData.files);
  });
  const place = document.querySelector("main");
  const isOver = (is) => (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    place.classList.toggle("over", is);
  };
  for (const name of ["dragenter", "dragover"]) place.addEventListener(name, isOver(true));
  for (const name of ["dragleave", "drop"]) place.addEventListener(name, isOver(false));
  place.addEventListener("drop", ({ dataTransfer }) => add(dataTransfer.files));
}

// Puts words and files back that could not be sent, unless something else stands there by now.
export function giveBack(text, sent) {
  if (!input.value && !files.length) put(text, sent);
}

export const focus = () => input.focus({ preventScroll: true });

async function take(list) {
  for (const file of list) {
    const before = files.reduce((sum, each) => sum + each.size, 0);
    if (files.length >= MOST) throw new Error(`${file.name}: a message takes ${MOST} files.`);
    if (before + file.size > MAX_BYTES)
      throw new Error(`${file.name}: the files of a message may have ${size(MAX_BYTES)} together.`);
    const data = await base64(file);
    files = [...files, { name: file.name, type: file.type, size: file.size, data }];
    draw();
  }
  input.focus();
}

export function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error(`${file.name ?? "The file"} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

function put(text, list) {
  input.value = text;
  files = list;
  draw();
}

const SHOWN = /^image\/(png|jpeg|gif|webp)$/;

function draw() {
  const list = at("attached");
  list.hidden = !files.length;
  list.replaceChildren(
    ...files.map((file) => {
      const { name, type, data } = file;
      const isPicture = SHOWN.test(type);
      const shown = isPicture
        ? make("img", { src: `data:${type};base64,${data}`, alt: "", height: 48 })
        : make("span", { text: "📄" });
      const remove = button("✕", () => put(input.value, files.filter((each) => each !== file)), { ariaLabel: `Remove ${name}` });
      return make("li", {}, shown, make("span", { text: `${name}, ${size(file.size)}` }), remove);
    }),
  );
}
