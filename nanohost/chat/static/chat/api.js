// The API, as whoever is signed in may use it; or, where a page has a token, as that one may.
const ROOT = "/api/v1";
let token = null;

export const use = (given) => (token = given);

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

function credentials() {
  if (token) return { "X-Embed-Token": token };
  return { "X-CSRFToken": document.querySelector("input[name=csrfmiddlewaretoken]")?.value ?? cookie("csrftoken") };
}

// Asks once. Throws a Problem for what the host refuses, and a TypeError while it cannot be reached.
export async function ask(method, address, body, headers = {}) {
  const type = body === undefined ? {} : { "Content-Type": "application/json" };
  const answer = await fetch(ROOT + address, {
    method,
    headers: { ...credentials(), ...type, ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: token ? "omit" : "same-origin",
  });
  if (answer.status === 401 && !token)
    location.assign(`/chat/sign-in/?next=${encodeURIComponent(location.pathname)}`);
  const told = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (!answer.ok) throw new Problem(answer.status, told);
  return told;
}

// The part of an API's link that `ask` takes.
export function path(link) {
  if (!link) return null;
  const { pathname, search } = new URL(link, location.href);
  return pathname.replace(ROOT, "") + search;
}

export const address = (of) => ROOT + of;

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const EVENTS = [
  ..."turn.queued turn.started reasoning.delta message.delta message.reset tool.started tool.finished".split(" "),
  ..."approval.requested approval.decided question.asked question.answered turn.completed turn.failed turn.cancelled turn.reset".split(" "),
];
const LAST = ["turn.completed", "turn.failed", "turn.cancelled"];

// Reads a turn's events until it has ended; after a break it goes on behind the last event that it has seen.
export function follow(turnId, { on, connected }) {
  const source = token ? new TokenSource(turnId) : new EventSource(`${ROOT}/turns/${turnId}/events`);
  for (const name of EVENTS)
    source.addEventListener(name, (event) => {
      connected(true);
      if (LAST.includes(name)) source.close();
      on(name, JSON.parse(event.data));
    });
  source.onopen = () => connected(true);
  source.onerror = () => connected(source.readyState === EventSource.OPEN);
  return source;
}

// An EventSource that has a token to send, which the browser's own cannot.
class TokenSource extends EventTarget {
  readyState = EventSource.CONNECTING;
  #seen = "";
  #stop = new AbortController();

  constructor(turnId) {
    super();
    this.#run(turnId);
  }

  close() {
    this.readyState = EventSource.CLOSED;
    this.#stop.abort();
  }

  async #run(turnId) {
    while (this.readyState !== EventSource.CLOSED) {
      try {
        const headers = { ...credentials(), ...(this.#seen ? { "Last-Event-ID": this.#seen } : {}) };
        const answer = await fetch(`${ROOT}/turns/${turnId}/events`, { headers, signal: this.#stop.signal });
        if (answer.status === 204 || (answer.status >= 400 && answer.status < 500)) return this.close();
        if (answer.ok) await this.#read(answer.body);
      } catch {
        // It is tried again.
      }
      if (this.readyState === EventSource.CLOSED) return;
      this.readyState = EventSource.CONNECTING;
      this.onerror?.();
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }

  async #read(body) {
    this.readyState = EventSource.OPEN;
    this.onopen?.();
    let text = "";
    for await (const piece of body.pipeThrough(new TextDecoderStream())) {
      const events = (text + piece).split("\n\n");
      text = events.pop();
      for (const event of events) this.#tell(event);
    }
  }

  #tell(event) {
    const said = { event: "message", data: [] };
    for (const line of event.split("\n")) {
      const [, name, value] = line.match(/^(\w+): ?(.*)$/) ?? [];
      if (name === "data") said.data.push(value);
      else if (name === "event") said.event = value;
      else if (name === "id") this.#seen = value;
    }
    if (said.data.length) this.dispatchEvent(new MessageEvent(said.event, { data: said.data.join("\n") }));
  }
}
