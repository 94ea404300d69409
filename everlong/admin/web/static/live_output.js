// Live output: what the running steps of a thread write, while they write it. Best effort: the journal has
// what is missed, and the page reads it when a step ends.
const RETRY_MS = 1000;
const RETRY_MS_MAX = 30000;
// Between two refreshes of the page: each aborts the one before, so a flood of short steps must not
// start one after another.
const REFRESH_MS = 500;
// The journal has a reply some milliseconds after its step has ended. Then the page is asked again.
const AGAIN_MS = [250, 750, 2000];
// Then its entry is on another page of a long conversation.
const KEPT_MS = 5000;
// Tools of one reply, and the reply; more are not shown.
const STEPS_MAX = 40;
const WAIT_MS = 50;
const NEAR_PX = 120;
const CUT_OFF = {
  silent: "Cut off: its worker does not answer. A retry replaces this.",
  failed: "Cut off: this attempt failed.",
  full: "Not shown further: there is too much live output. The reply follows when it is complete.",
};

export function startLiveOutput() {
  for (const place of document.querySelectorAll("[data-live-output]")) new LiveOutput(place);
}

class LiveOutput {
  constructor(place) {
    this.place = place;
    place.dataset.kept = ""; // Updates of the page leave it as it is.
    this.steps = new Map(); // By `reply`, or by the id of the tool call.
    this.failures = 0;
    this.refreshedAt = -Infinity;
    // A browser has six connections for a server: pages in the background give theirs back.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", () => this.open());
    this.open();
  }

  open() {
    if (this.source || document.hidden) return;
    clearTimeout(this.retry);
    const source = (this.source = new EventSource(this.place.dataset.stream));
    const on = (name, handle) =>
      source.addEventListener(name, (event) => {
        // The browser has an event `open` of its own, without data.
        if (event.data !== undefined && source === this.source) handle.call(this, JSON.parse(event.data));
      });
    on("open", this.begin);
    on("start", this.start);
    on("delta", this.append);
    on("progress", this.progress);
    on("cut", this.cut);
    on("done", this.finish);
    on("dropped", this.reopen);
    source.onerror = () => this.reopen();
  }

  close() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }

  reopen() {
    this.close();
    if (document.hidden) return;
    // With jitter: all pages lose their streams at once when the server restarts.
    const ms = Math.min(RETRY_MS_MAX, RETRY_MS * 2 ** this.failures) * (0.5 + Math.random() / 2);
    this.failures += 1;
    this.retry = setTimeout(() => this.open(), ms);
  }

  // The stream begins with what runs now. What was missed is in the journal.
  begin() {
    this.failures = 0;
    for (const step of [...this.steps.values()]) step.remove();
    if (this.wasOpen) this.refresh();
    this.wasOpen = true;
  }

  start(report) {
    const key = report.kind === "reply" ? "reply" : `call ${report.call_id}`;
    this.steps.get(key)?.remove();
    // The results of earlier tools are part of the context of a reply: the journal has them.
    if (report.kind === "reply") for (const step of [...this.steps.values()]) if (step.isOver) step.remove();
    if (this.steps.size >= STEPS_MAX) return;
    this.keepAtEnd(() => this.steps.set(key, new Step(this, key, report)));
  }

  append(report) {
    this.keepAtEnd(() => this.find(report)?.append(report));
  }

  progress(report) {
    this.find(report)?.show(report.text);
  }

  cut(report) {
    this.find(report)?.cut(report.reason);
    this.refresh();
  }

  finish(report) {
    this.find(report)?.finish();
    this.refresh();
    if (report.kind === "reply") for (const ms of AGAIN_MS) setTimeout(() => this.refreshUnlessShown(report.seq), ms);
    else setTimeout(() => this.refresh(), AGAIN_MS[0]);
  }

  find(report) {
    return [...this.steps.values()].find((step) => step.id === report.step);
  }

  refreshUnlessShown(seq) {
    if (!document.getElementById(`entry-${seq}`)) this.refresh();
  }

  refresh() {
    if (this.refreshing || document.hidden) return;
    const wait = Math.max(0, this.refreshedAt + REFRESH_MS - performance.now());
    this.refreshing = setTimeout(() => {
      this.refreshing = null;
      this.refreshedAt = performance.now();
      document.dispatchEvent(new CustomEvent("everlong:refresh"));
    }, wait);
  }

  // A page that is at its end follows the text; one that is read elsewhere stays in place.
  keepAtEnd(change) {
    const root = document.documentElement;
    const wasAtEnd = root.scrollHeight - innerHeight - scrollY < NEAR_PX;
    change();
    if (wasAtEnd) scrollTo({ top: root.scrollHeight, behavior: "instant" });
  }
}

// A reply or a tool call that runs.
class Step {
  constructor(output, key, report) {
    this.output = output;
    this.key = key;
    this.id = report.step;
    this.kind = report.kind;
    this.seq = report.seq;
    this.tool = report.tool;
    this.isOver = false;
    this.chars = 0;
    this.element = build("div", `live-step ${report.kind}`);
    this.element.dataset.state = "running";
    const attempt = report.attempt > 1 ? `, attempt ${report.attempt}` : "";
    // A screen reader announces the line, and not each word.
    this.line = build("p", "live-line");
    this.line.setAttribute("aria-live", "polite");
    this.line.textContent = report.kind === "reply" ? `Writing a reply${attempt}` : `Running ${report.tool}${attempt}`;
    this.text = build("div", "live-text");
    this.text.setAttribute("aria-live", "off");
    this.words = this.text.appendChild(document.createTextNode(""));
    this.element.append(this.line, this.text);
    output.place.append(this.element);
  }

  append({ offset, text }) {
    const begin = offset < this.chars ? this.chars - offset : 0;
    // Offsets count characters, where the length of a text counts some of them twice.
    const piece = begin ? [...text].slice(begin).join("") : text;
    this.words.appendData(piece);
    this.chars = Math.max(this.chars, offset + [...text].length);
  }

  show(text) {
    this.words.data = text;
  }

  cut(reason) {
    this.isOver = true;
    this.element.dataset.state = "cut";
    // Without a retry, the entry says why the turn ended.
    this.removeWhenShown(Infinity);
    this.line.textContent = CUT_OFF[reason] || CUT_OFF.failed;
  }

  // The reply stays until the conversation has it, so that no text disappears in between.
  finish() {
    this.isOver = true;
    this.element.dataset.state = "done";
    if (this.kind === "tool") this.line.textContent = `${this.tool}: done`;
    this.removeWhenShown(performance.now() + KEPT_MS);
  }

  removeWhenShown(ends) {
    clearTimeout(this.waiting);
    const isShown = this.kind === "reply" && document.getElementById(`entry-${this.seq}`);
    if (isShown || performance.now() > ends) this.remove();
    else this.waiting = setTimeout(() => this.removeWhenShown(ends), WAIT_MS);
  }

  remove() {
    clearTimeout(this.waiting);
    this.output.keepAtEnd(() => this.element.remove());
    if (this.output.steps.get(this.key) === this) this.output.steps.delete(this.key);
  }
}

function build(name, className) {
  const element = document.createElement(name);
  element.className = className;
  return element;
}
