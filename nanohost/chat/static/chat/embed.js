// Puts a button in the corner of a page, which opens a chat in an iframe:
//   <script src="https://HOST/static/chat/embed.js" data-key="PREFIX" data-label="Ask us" async></script>
(() => {
  const { src, dataset } = document.currentScript;
  const label = dataset.label || "Chat";
  const place = { position: "fixed", insetBlockEnd: "1rem", insetInlineEnd: "1rem", zIndex: 2147483000 };

  const frame = document.createElement("iframe");
  frame.title = label;
  frame.hidden = true;
  Object.assign(frame.style, place, {
    ...{ insetBlockEnd: "4.5rem", width: "min(26rem, calc(100vw - 2rem))", height: "min(40rem, calc(100vh - 6rem))" },
    ...{ border: "1px solid #8b8b96", borderRadius: "12px", background: "Canvas" },
  });

  const opener = document.createElement("button");
  opener.type = "button";
  opener.textContent = label;
  opener.setAttribute("aria-expanded", "false");
  Object.assign(opener.style, place, {
    ...{ font: "16px system-ui, sans-serif", padding: "0.6rem 1.2rem", border: 0, borderRadius: "2rem" },
    ...{ background: "#0f766e", color: "#ffffff", cursor: "pointer" },
  });
  opener.addEventListener("click", () => {
    // Nothing is asked of the host before somebody wants it.
    frame.src ||= `${new URL(src).origin}/chat/embed/${encodeURIComponent(dataset.key)}/`;
    frame.hidden = !frame.hidden;
    opener.setAttribute("aria-expanded", String(!frame.hidden));
    if (!frame.hidden) frame.focus();
  });
  const put = () => document.body.append(frame, opener);
  if (document.body) put();
  else addEventListener("DOMContentLoaded", put);
})();
