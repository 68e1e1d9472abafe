// What was said and is not known to be with the host yet: it outlasts the page, and files are too large for
// localStorage. Rows: { key, conversationId, text, files: [{ name, type, data }] }, with data in base64.

// What is said in other people's pages is sent by these alone.
const NAME = document.body.dataset.embed ? `nanohost-embed-${document.body.dataset.embed}` : "nanohost-chat";

const opened = new Promise((resolve, reject) => {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore("unsent", { keyPath: "id", autoIncrement: true });
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function within(mode, act) {
  const store = (await opened).transaction("unsent", mode).objectStore("unsent");
  const request = act(store);
  return new Promise((resolve, reject) => {
    store.transaction.oncomplete = () => resolve(request.result);
    store.transaction.onerror = store.transaction.onabort = () => reject(store.transaction.error);
  });
}

// In the order in which they were said.
export const unsent = () => within("readonly", (store) => store.getAll());
export const keep = (row) => within("readwrite", (store) => store.add(row));
export const drop = (row) => within("readwrite", (store) => store.delete(row.id));
