// Updates a live page: loads it again, and replaces the parts that may change.
// The server renders everything; this script never creates HTML from text.

const SETTLE_MS = 150; // Events come in bursts; one reload per burst is enough.
const RETRY_MS = 5000; // Until the next attempt to follow events after a rejection.
const TIMEOUT_MS = 60_000; // Timeout of a response, for which other loads wait.

const statusLine = document.getElementById("status");
const lost = document.getElementById("lost");
const out = document.getElementById("out");

// Opens the sign-in, unless the user would lose unsaved text.
function leave() {
  const isWriting = [...document.querySelectorAll("textarea")].some((each) => each.value !== each.defaultValue);
  if (isWriting) out.hidden = false;
  else location.reload();
}

// Loads pages one at a time. If several loads are requested during a load, only the last of them is started.
function loader(done) {
  let isLoading = false;
  let next = null;
  return function load(url) {
    if (isLoading) {
      next = url;
      return;
    }
    isLoading = true;
    const request = new XMLHttpRequest();
    request.open("GET", url);
    request.responseType = "document";
    request.onload = () => {
      lost.hidden = request.response !== null; // A response that is not a document did not come from the page.
      if (request.status === 401) {
        leave();
        return;
      }
      out.hidden = true;
      if (request.response) done(request.response, request.status === 200);
    };
    request.timeout = TIMEOUT_MS;
    request.onerror = request.ontimeout = () => (lost.hidden = false);
    request.onloadend = () => {
      isLoading = false;
      const then = next;
      next = null;
      if (then) load(then);
    };
    request.send();
  };
}

// Returns a key that identifies a focusable element in the old part and in the new one.
function nameOf(each) {
  return [each.tagName, each.id, each.form?.action, each.getAttribute("href") ?? each.textContent.trim()].join("\n");
}

function replace(part, other) {
  const focus = part.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  const open = [...part.querySelectorAll("details")].map((each) => [each.id, each.open]);
  part.replaceChildren(...document.importNode(other, true).childNodes);
  for (const [id, isOpen] of open) {
    const found = id && document.getElementById(id);
    if (found) found.open = isOpen;
  }
  if (focus !== null) {
    const able = [...part.querySelectorAll("a, button, input, summary, [tabindex]")];
    const same = able.find((each) => nameOf(each) === focus);
    (same || document.getElementById("main")).focus({preventScroll: true});
  }
}

const loadView = loader((fresh) => {
  for (const part of document.querySelectorAll("[data-swap]")) {
    const other = fresh.getElementById(part.id);
    if (other && !other.isEqualNode(part)) replace(part, other);
  }
});

function reload() {
  loadView(location.href);
}

// -- events

const kinds = document.body.dataset.live.split(" ").filter(Boolean);
let stream = null;
let timer = null;

function reloadSoon(text) {
  timer ??= setTimeout(() => {
    timer = null;
    statusLine.textContent = text;
    reload();
  }, SETTLE_MS);
}

function follow() {
  stream = new EventSource(document.body.dataset.events);
  stream.onopen = () => (lost.hidden = true);
  stream.onerror = () => {
    if (stream?.readyState === EventSource.CLOSED) { // It was rejected; a reload shows the reason.
      stream = null;
      reload();
      setTimeout(seen, RETRY_MS);
    } else lost.hidden = false; // It reconnects automatically.
  };
  if (kinds.includes("memory")) stream.addEventListener("memory_changed", () => reloadSoon("The memory has changed."));
  stream.addEventListener("task", () => reloadSoon(kinds.includes("task") ? "A task has changed." : ""));
  stream.addEventListener("resync", () => reloadSoon(""));
}

// A browser has six connections to a server: a hidden page releases its connection.
function seen() {
  if (document.hidden) {
    stream?.close();
    stream = null;
  } else if (!stream) {
    follow();
    reload();
  }
}

if (kinds.length) {
  document.addEventListener("visibilitychange", seen);
  addEventListener("pagehide", () => stream?.close());
  addEventListener("pageshow", (event) => {
    if (event.persisted) {
      stream = null;
      seen();
    }
  });
  if (!document.hidden) follow();
}

// -- search as you type

const field = document.querySelector("[data-as-you-type]");
if (field) {
  const results = document.getElementById(field.dataset.asYouType);
  field.setSelectionRange(field.value.length, field.value.length);
  const find = loader((fresh, isFound) => replace(results, isFound ? fresh.getElementById(results.id) : fresh.querySelector("main")));
  field.addEventListener("input", () => {
    const url = new URL(field.form.action);
    url.searchParams.set("q", field.value);
    history.replaceState(null, "", url);
    find(url.href);
  });
}

// -- keys

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  document.querySelector("#quick, #q")?.focus();
});
