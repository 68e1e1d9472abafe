// What the theme's expressions name, for Alpine's build that evaluates nothing: it knows no globals.
document.addEventListener("alpine:init", () => {
  // The theme's own components, which it keeps as global functions.
  Alpine.data("theme", theme);
  Alpine.data("searchForm", searchForm);
  Alpine.data("searchDropdown", searchDropdown);
  Alpine.data("searchCommand", searchCommand);

  // The whole page's.
  Alpine.data("page", (firstTab) => ({
    activeTab: "",
    sidebarMobileOpen: false,
    sidebarDesktopOpen: localStorage.getItem("sidebarDesktopOpen") !== "0",
    init() {
      this.activeTab = firstTab ? getCurrentTab() || firstTab : "";
      this.$watch("sidebarDesktopOpen", (open) => localStorage.setItem("sidebarDesktopOpen", open ? "1" : "0"));
    },
    // Not the window: what an expression may read of it.
    window: { location: { pathname: location.pathname, search: location.search } },
    sortRecords,
    moveRecords,
  }));
});

// A box that ticks all boxes of a form.
document.addEventListener("change", ({ target }) => {
  const form = target.dataset.checkAll && document.getElementById(target.dataset.checkAll);
  if (form) for (const box of form.querySelectorAll("input[type=checkbox][name]")) box.checked = target.checked;
});

// The list of what needs attention is read again while somebody looks at it; not under a keyboard that is in it.
const attention = document.getElementById("attention");
if (attention)
  setInterval(async () => {
    if (document.hidden || attention.contains(document.activeElement)) return;
    const answer = await fetch(attention.dataset.again).catch(() => null);
    if (answer?.ok && !answer.redirected) attention.innerHTML = await answer.text();
  }, 15000);

// Parts of a page that are read again while somebody looks: not under a keyboard that is in them, nor with a box ticked.
const live = [...document.querySelectorAll("[data-live]")];
const isHeld = (part) => part.contains(document.activeElement) || part.querySelector("input:checked");
if (live.length)
  setInterval(async () => {
    if (document.hidden || live.every(isHeld)) return;
    const answer = await fetch(location.href).catch(() => null);
    if (!answer?.ok || answer.redirected) return;
    // Without its style, whose nonce is another answer's: the policy would complain.
    const page = (await answer.text()).replace(/<style[^]*?<\/style>/g, "");
    const read = new DOMParser().parseFromString(page, "text/html");
    for (const part of live) {
      const found = read.getElementById(part.id);
      if (found && !isHeld(part)) part.replaceChildren(...found.childNodes);
    }
  }, 5000);

// "2 min ago" stays true while a page is open.
const ago = (seconds) => {
  const away = Math.abs(seconds);
  for (const [most, unit, size] of [[90, "s", 1], [5400, "min", 60], [172800, "h", 3600], [2592000, "days", 86400]])
    if (away < most) return seconds > 0 ? `${Math.round(away / size)} ${unit} ago` : `in ${Math.round(away / size)} ${unit}`;
};
setInterval(() => {
  if (document.hidden) return;
  for (const time of document.querySelectorAll("time[data-ago]"))
    time.textContent = ago((Date.now() - new Date(time.dateTime)) / 1000) ?? time.textContent;
}, 30000);

// On a phone, a field that is empty takes no room: console.css hides what is marked here.
for (const cell of document.querySelectorAll("#result_list td, #result_list th, .readonly"))
  if (["", "-", "–", "[]", "{}"].includes(cell.textContent.trim()) && !cell.querySelector("a, button, img, input, svg"))
    (cell.closest(".field-row, .form-row") ?? cell).classList.add("blank");

// The search over everything: Ctrl-K, arrows, Enter.
const finder = document.getElementById("finder");
if (finder) {
  const input = document.getElementById("finder-input");
  const found = document.getElementById("finder-found");
  let timer, asked = 0;
  const ask = async () => {
    const number = ++asked;
    const answer = await fetch(`${finder.dataset.find}?${new URLSearchParams({ q: input.value })}`).catch(() => null);
    if (number === asked && answer?.ok && !answer.redirected) found.innerHTML = await answer.text();
  };
  const open = () => finder.open || (finder.showModal(), input.select());
  document.addEventListener("keydown", (event) => {
    if (event.key === "k" && (event.ctrlKey || event.metaKey)) event.preventDefault(), open();
  });
  document.addEventListener("click", ({ target }) => target.closest("[data-finder]") && open());
  input.addEventListener("input", () => (clearTimeout(timer), (timer = setTimeout(ask, 200))));
  finder.addEventListener("click", ({ target }) => target === finder && finder.close());
  finder.addEventListener("keydown", (event) => {
    const links = [...found.querySelectorAll("a")];
    const at = links.indexOf(document.activeElement);
    if (event.key === "Enter" && at < 0) event.preventDefault(), links[0]?.click();
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    (links[to] ?? input).focus();
  });
}
