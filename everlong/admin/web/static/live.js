// Live updates: polls each part every two seconds while the page is visible. ETags make unchanged parts
// cheap, and slow parts are polled less often.
import { toLoginIfNeeded } from "./requests.js";
import { morph } from "./morph.js";
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

// Updates all live parts now, after an action.
export function refresh() {
  return Promise.all(parts.map((part) => part.update()));
}

class Part {
  constructor(element) {
    this.element = element;
    this.etag = element.dataset.etag || "";
    this.every = Number(element.dataset.liveMs || EVERY_MS);
    this.failures = 0;
    this.schedule("liveNow" in element.dataset ? 0 : this.every);
  }

  schedule(ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.update(), ms);
  }

  async update() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    const began = performance.now();
    // An older request has an older state: it must not overwrite this one's.
    this.loading?.abort();
    const { signal } = (this.loading = new AbortController());
    try {
      await this.load(signal);
      if (signal.aborted) return;
      this.failures = 0;
      this.showState("live", "Live");
    } catch (error) {
      if (signal.aborted) return;
      this.failures += 1;
      this.showState("lost", "Not live: the server does not answer");
    }
    const took = performance.now() - began;
    this.schedule(Math.min(EVERY_MS_MAX, Math.max(this.every, 4 * took) * 2 ** Math.min(this.failures, 4)));
  }

  async load(signal) {
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
    // A row that moved has lost the focus.
    if (focused !== document.activeElement && this.element.contains(focused)) focused.focus({ preventScroll: true });
    localise(this.element);
    for (const each of changed) mark(each);
    showWaiting(this.element.querySelector("[data-waiting]"));
    this.element.dispatchEvent(new CustomEvent("updated", { bubbles: true }));
  }

  showState(state, text) {
    // Find it each time: an update may have replaced it.
    const status = document.querySelector(`[data-live-status="${this.element.id}"]`);
    if (!status || status.dataset.state === state) return;
    status.dataset.state = state;
    status.textContent = text;
  }
}

// Updates the number of pending approvals in the navigation.
function showWaiting(source) {
  const badge = document.querySelector("[data-badge]");
  if (!source || !badge) return;
  badge.hidden = source.dataset.waiting === "0";
  badge.querySelector("[data-badge-count]").textContent = Number(source.dataset.waiting).toLocaleString("en");
}

function mark(element) {
  element.classList.remove("changed");
  // Force a reflow, so that the animation restarts for a row that changes again.
  void element.offsetWidth;
  element.classList.add("changed");
  setTimeout(() => element.classList.remove("changed"), 2500);
}
