// Parts that follow the server: asked for every two seconds while the page is looked at, by ETag, so
// that what has not changed costs nothing. What takes long is asked for less often.
import { toLoginIfNeeded } from "./asking.js";
import { morph } from "./morphing.js";
import { localise } from "./times.js";

const EVERY_MS = 2000;
const EVERY_MS_MAX = 30000;
const parts = [];

export function startLive() {
  for (const element of document.querySelectorAll("[data-live]")) parts.push(new Part(element));
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
}

// Asks for all live parts now: something was just done.
export function refresh() {
  return Promise.all(parts.map((part) => part.now()));
}

class Part {
  constructor(element) {
    this.element = element;
    this.etag = element.dataset.etag || "";
    this.every = Number(element.dataset.liveMs || EVERY_MS);
    this.failures = 0;
    this.schedule(this.every);
  }

  schedule(ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.now(), ms);
  }

  async now() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    const began = performance.now();
    // What was asked before tells of earlier: its answer must not come after this one's.
    this.asking?.abort();
    const { signal } = (this.asking = new AbortController());
    try {
      await this.ask(signal);
      if (signal.aborted) return;
      this.failures = 0;
      this.say("live", "Live");
    } catch (error) {
      if (signal.aborted) return;
      this.failures += 1;
      this.say("lost", "Not live: the server does not answer");
    }
    const took = performance.now() - began;
    this.schedule(Math.min(EVERY_MS_MAX, Math.max(this.every, 4 * took) * 2 ** Math.min(this.failures, 4)));
  }

  async ask(signal) {
    const headers = this.etag ? { "If-None-Match": this.etag } : {};
    const response = await fetch(this.element.dataset.live, { headers, cache: "no-store", signal });
    if (response.status === 304) return;
    toLoginIfNeeded(response);
    if (!response.ok) throw new Error(`${response.status}`);
    const fresh = document.createElement("template");
    fresh.innerHTML = await response.text();
    if (signal.aborted) return;
    this.etag = response.headers.get("ETag") || "";
    const focused = document.activeElement;
    const changed = morph(this.element, fresh.content);
    // A row that moved has lost it.
    if (focused !== document.activeElement && this.element.contains(focused)) focused.focus({ preventScroll: true });
    localise(this.element);
    for (const each of changed) mark(each);
    tellWaiting(this.element.querySelector("[data-waiting]"));
    this.element.dispatchEvent(new CustomEvent("updated", { bubbles: true }));
  }

  say(state, text) {
    // Looked for each time: it may be a part of what was replaced.
    const status = document.querySelector(`[data-live-status="${this.element.id}"]`);
    if (!status || status.dataset.state === state) return;
    status.dataset.state = state;
    status.textContent = text;
  }
}

// How many calls wait for a person stands beside the name of their page, wherever one is.
function tellWaiting(told) {
  const badge = document.querySelector("[data-badge]");
  if (!told || !badge) return;
  badge.hidden = told.dataset.waiting === "0";
  badge.querySelector("[data-badge-count]").textContent = Number(told.dataset.waiting).toLocaleString("en");
}

function mark(element) {
  element.classList.remove("changed");
  // Read once, so that the mark begins again for a row that changes again.
  void element.offsetWidth;
  element.classList.add("changed");
  setTimeout(() => element.classList.remove("changed"), 2500);
}
