// What pages are made of: elements, menus, dialogs, times.

export const at = (id) => document.getElementById(id);

// `text` is text, whatever stands in it.
export function make(tag, { text, data, ...given } = {}, ...children) {
  const node = Object.assign(document.createElement(tag), given);
  if (text !== undefined) node.textContent = text;
  Object.assign(node.dataset, data ?? {});
  node.append(...children);
  return node;
}

export function button(text, onclick, given = {}) {
  const node = make("button", { type: "button", text, ...given });
  node.addEventListener("click", onclick);
  return node;
}

export const local = (iso) => new Date(iso).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

export function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1_000_000 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1_000_000).toFixed(1)} MB`;
}

// A file of the browser's own making, as a download.
export function save(name, type, ...texts) {
  const link = make("a", { href: URL.createObjectURL(new Blob(texts, { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export async function copy(text, node) {
  try {
    await navigator.clipboard.writeText(text);
    node.textContent = "Copied";
  } catch {
    node.textContent = "Not allowed";
  }
  setTimeout(() => (node.textContent = "Copy"), 2000);
}

// A menu that opens at a button. `items`: pairs of a label and what it does.
export function menu(opener, items) {
  const box = make("div", { className: "menu", popover: "auto", role: "menu", ariaLabel: opener.ariaLabel });
  for (const [label, act] of items) {
    const item = button(
      label,
      () => {
        box.hidePopover();
        act();
      },
      { role: "menuitem", tabIndex: -1 },
    );
    box.append(item);
  }
  box.addEventListener("keydown", (event) => {
    const all = [...box.children];
    const step = { ArrowDown: 1, ArrowUp: -1, Home: -all.length, End: all.length }[event.key];
    if (event.key === "Tab") box.hidePopover();
    if (!step) return;
    event.preventDefault();
    const now = all.indexOf(document.activeElement);
    const wanted = Math.abs(step) > 1 ? Math.max(0, Math.min(all.length - 1, now + step)) : now + step + all.length;
    all[wanted % all.length].focus();
  });
  box.addEventListener("toggle", ({ newState }) => {
    if (newState !== "closed") return;
    opener.setAttribute("aria-expanded", "false");
    if (box.contains(document.activeElement) || document.activeElement === document.body) opener.focus();
    box.remove();
  });
  (opener.closest("nav, main") ?? document.body).append(box);
  box.showPopover();
  const { left, right, bottom, top } = opener.getBoundingClientRect();
  const { offsetWidth: across, offsetHeight: down } = box;
  const begins = document.dir === "rtl" ? left : right - across;
  box.style.left = `${Math.max(4, Math.min(begins, innerWidth - across - 4))}px`;
  box.style.top = `${bottom + down + 4 > innerHeight ? Math.max(4, top - down) : bottom}px`;
  opener.setAttribute("aria-expanded", "true");
  box.firstChild.focus();
}

// Asks people something; resolves to the form's values, or to null if they think better of it.
export function askFor({ title, words = "", ok, isGrave = false }, ...fields) {
  const no = make("button", { type: "submit", value: "", text: "Cancel", formNoValidate: true });
  const yes = make("button", { type: "submit", value: "ok", text: ok, className: isGrave ? "grave" : "primary" });
  const form = make("form", { method: "dialog" }, make("h2", { text: title, id: "dialog-title" }));
  if (words) form.append(make("p", { text: words }));
  // The first one is what Enter presses.
  form.append(...fields, make("div", { className: "row end" }, yes, no));
  const box = make("dialog", {}, form);
  box.setAttribute("aria-labelledby", "dialog-title");
  document.body.append(box);
  box.showModal();
  form.querySelector("input:not([type=checkbox])")?.select();
  return new Promise((resolve) =>
    box.addEventListener("close", () => {
      resolve(box.returnValue === "ok" ? Object.fromEntries(new FormData(form)) : null);
      box.remove();
    }),
  );
}

export function field(label, input) {
  return make("label", {}, make("span", { text: label }), input);
}
