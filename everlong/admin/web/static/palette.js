// Command palette: finds pages, actions of this page, saved views, and threads by the beginning of their
// ids. It does only what links and buttons of the page do.
import { readViews } from "./views.js";
import { isField } from "./keys.js";

const PAUSE_MS = 120;
const THREADS_MAX = 8;
const SHOWN_MAX = 20;
const ACTIONS = "main [data-dialog], main [data-bulk], [data-theme-toggle], [data-logout]";

let palette = null;

export function startPalette() {
  const dialog = document.getElementById("palette");
  if (!dialog) return; // The login page.
  palette = new Palette(dialog);
  document.addEventListener("keydown", (event) => {
    const isKey = event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey;
    if (!isKey || isField(event.target) || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    openPalette();
  });
  document.querySelector("[data-palette]")?.addEventListener("click", openPalette);
}

export function openPalette() {
  palette.open();
  return true;
}

class Palette {
  constructor(dialog) {
    this.dialog = dialog;
    this.input = dialog.querySelector("input");
    this.list = dialog.querySelector("[role=listbox]");
    this.status = dialog.querySelector("[data-palette-count]");
    this.input.addEventListener("input", () => this.update());
    this.input.addEventListener("keydown", (event) => this.press(event));
    this.list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.choose(Number(option.dataset.at));
    });
    // A click outside the dialog closes it.
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    dialog.addEventListener("close", () => this.stop());
  }

  open() {
    this.input.value = "";
    this.entries = listEntries();
    this.threads = [];
    this.dialog.showModal();
    this.input.focus();
    this.update();
  }

  stop() {
    clearTimeout(this.timer);
    this.loading?.abort();
  }

  update() {
    this.stop();
    this.threads = [];
    this.show();
    const text = this.input.value.trim();
    if (text) this.timer = setTimeout(() => this.loadThreads(text), PAUSE_MS);
  }

  async loadThreads(text) {
    const { signal } = (this.loading = new AbortController());
    const query = new URLSearchParams({ text, limit: THREADS_MAX });
    try {
      const response = await fetch(`/api/v1/threads?${query}`, { headers: { Accept: "application/json" }, signal });
      if (!response.ok) return;
      const { rows } = await response.json();
      if (signal.aborted) return;
      // Ids that begin with the text come first. Up to 20,000 threads, others contain it.
      const begins = (row) => (row.thread_id.toLowerCase().startsWith(text.toLowerCase()) ? 0 : 1);
      this.threads = rows.sort((a, b) => begins(a) - begins(b)).map((row) => ({
        kind: "thread",
        name: row.thread_id,
        note: row.status,
        run: () => location.assign(`/threads/?id=${encodeURIComponent(row.thread_id)}`),
      }));
      this.show();
    } catch (error) {
      if (error.name !== "AbortError") this.status.textContent = "Threads cannot be searched now.";
    }
  }

  show() {
    const text = this.input.value.trim().toLowerCase();
    const fits = this.entries.filter((each) => each.name.toLowerCase().includes(text));
    const begins = (each) => (each.name.toLowerCase().startsWith(text) ? 0 : 1);
    fits.sort((a, b) => begins(a) - begins(b));
    this.shown = [...this.threads, ...fits].slice(0, SHOWN_MAX);
    this.list.replaceChildren(...this.shown.map((entry, at) => makeOption(entry, at)));
    this.status.textContent = this.shown.length === 1 ? "1 result" : `${this.shown.length} results`;
    this.mark(0);
  }

  mark(at) {
    this.at = this.shown.length ? (at + this.shown.length) % this.shown.length : -1;
    for (const option of this.list.children) {
      const isMarked = Number(option.dataset.at) === this.at;
      option.setAttribute("aria-selected", String(isMarked));
      if (isMarked) option.scrollIntoView({ block: "nearest" });
    }
    if (this.at >= 0) this.input.setAttribute("aria-activedescendant", `palette-${this.at}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  press(event) {
    if (event.isComposing) return;
    if (event.key === "ArrowDown") this.mark(this.at + 1);
    else if (event.key === "ArrowUp") this.mark(this.at - 1);
    else if (event.key === "Enter") this.choose(this.at);
    else return;
    event.preventDefault();
  }

  choose(at) {
    const entry = this.shown[at];
    if (!entry) return;
    this.dialog.close();
    entry.run();
  }
}

function listEntries() {
  const pages = [...document.querySelectorAll(".nav a")].map((link) => ({
    kind: "page",
    name: readName(link),
    run: () => link.click(),
  }));
  const views = readViews().map(({ name, query }) => ({ kind: "view", name, run: () => location.assign(`/${query}`) }));
  const help = document.getElementById("keys-help");
  const found = [{ kind: "help", name: "Keyboard shortcuts", run: () => help.showModal() }];
  const names = new Set();
  for (const button of document.querySelectorAll(ACTIONS)) {
    const name = readName(button);
    // One of several buttons with the same dialog, say for each entry, would be ambiguous.
    if (button.disabled || !button.checkVisibility() || button.matches("[data-set-seq].rerun") || names.has(name)) continue;
    names.add(name);
    found.push({ kind: "action", name, run: () => button.click() });
  }
  return [...pages, ...views, ...found];
}

function readName(element) {
  const label = element.getAttribute("aria-label");
  if (label) return label;
  const copy = element.cloneNode(true);
  for (const each of copy.querySelectorAll(".hidden-visually, .count")) each.remove();
  return copy.textContent.replace("…", "").replace(/\s+/g, " ").trim();
}

function makeOption(entry, at) {
  const option = document.createElement("li");
  option.id = `palette-${at}`;
  option.dataset.at = at;
  option.setAttribute("role", "option");
  const name = document.createElement("span");
  name.textContent = entry.name;
  const note = document.createElement("span");
  note.className = "muted small";
  note.textContent = entry.note ? `${entry.kind}, ${entry.note}` : entry.kind;
  option.append(name, note);
  return option;
}
