// The API, as whoever is signed in may use it.
const ROOT = "/api/v1";

export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || body?.title || `The host answered ${status}.`);
    this.status = status;
    this.code = body?.code ?? "";
  }
}

function cookie(name) {
  return document.cookie.split("; ").find((each) => each.startsWith(`${name}=`))?.slice(name.length + 1);
}

// Asks once. Throws a Problem for what the host refuses, and a TypeError while it cannot be reached.
export async function ask(method, address, body, headers = {}) {
  const token = document.querySelector("input[name=csrfmiddlewaretoken]")?.value ?? cookie("csrftoken");
  const answer = await fetch(ROOT + address, {
    method,
    headers: {
      "X-CSRFToken": token,
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      ...headers,
    },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.status === 401) location.assign(`/chat/sign-in/?next=${encodeURIComponent(location.pathname)}`);
  const told = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (!answer.ok) throw new Problem(answer.status, told);
  return told;
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const EVENTS = [
  ..."turn.queued turn.started reasoning.delta message.delta message.reset tool.started tool.finished".split(" "),
  ..."approval.requested approval.decided turn.completed turn.failed turn.cancelled turn.reset".split(" "),
];

// Reads a turn's events until it has ended; the browser reconnects by itself, from the last event that it has seen.
export function follow(turnId, { on, connected }) {
  const source = new EventSource(`${ROOT}/turns/${turnId}/events`);
  for (const name of EVENTS)
    source.addEventListener(name, (event) => {
      connected(true);
      if (["turn.completed", "turn.failed", "turn.cancelled"].includes(name)) source.close();
      on(name, JSON.parse(event.data));
    });
  source.onopen = () => connected(true);
  source.onerror = () => connected(source.readyState === EventSource.OPEN);
  return source;
}
