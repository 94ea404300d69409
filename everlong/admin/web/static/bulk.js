// Bulk actions on the selected threads: one preview with the effect on each, one confirmation.
import { send, waitForJob } from "./requests.js";
import { refresh } from "./live.js";
import { showToast } from "./toasts.js";

const PAUSE_MS = 250;
// As many as the server takes.
const THREADS_MAX = 200;

export function startBulk() {
  const dialog = document.getElementById("bulk");
  if (dialog) new Bulk(dialog, document.querySelector("[data-bulk-bar]"));
}

class Bulk {
  constructor(dialog, bar) {
    this.dialog = dialog;
    this.bar = bar;
    this.form = dialog.querySelector("form");
    this.summary = dialog.querySelector("[data-bulk-summary]");
    this.items = dialog.querySelector("[data-bulk-items]");
    this.error = dialog.querySelector("[data-error]");
    this.submit = dialog.querySelector("[type=submit]");
    this.confirming = dialog.querySelector("[data-bulk-confirming]");
    const list = document.getElementById("threads");
    list.addEventListener("change", () => this.count());
    // A live update may have removed selected rows.
    list.addEventListener("updated", () => this.count());
    bar.addEventListener("click", (event) => this.click(event.target));
    this.form.addEventListener("input", (event) => {
      if (event.target.hasAttribute("data-argument")) this.schedulePreview();
      this.updateButton();
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.isAllowed()) this.act();
    });
    this.count(); // A browser restores boxes after a reload.
  }

  picked() {
    return [...document.querySelectorAll("[data-pick]:checked")].map((box) => box.value).slice(0, THREADS_MAX);
  }

  count() {
    const count = this.picked().length;
    const hadFocus = this.bar.contains(document.activeElement);
    this.bar.hidden = count === 0;
    this.bar.querySelector("[data-bulk-count]").textContent = count ? `${countThreads(count)} selected` : "";
    if (this.bar.hidden && hadFocus) document.querySelector("main h1").focus();
  }

  click(target) {
    const button = target.closest("button");
    if (!button) return;
    if (button.dataset.bulk) this.open(button.dataset.bulk);
    else {
      const isWanted = button.hasAttribute("data-bulk-all");
      for (const box of document.querySelectorAll("[data-pick]")) box.checked = isWanted;
      this.count();
    }
  }

  open(action) {
    this.action = action;
    this.ids = this.picked();
    this.form.reset();
    this.busy = this.done = false;
    for (const part of this.form.querySelectorAll("[data-options]")) part.hidden = part.dataset.options !== action;
    for (const part of this.form.querySelectorAll("[data-bulk-fields]")) part.hidden = false;
    const name = action[0].toUpperCase() + action.slice(1);
    this.dialog.querySelector("[data-bulk-title]").textContent = `${name} ${countThreads(this.ids.length)}`;
    this.submit.textContent = name;
    this.submit.hidden = false;
    this.items.replaceChildren();
    this.dialog.showModal();
    this.loadPreview();
  }

  readOptions() {
    const { elements } = this.form;
    const options = { action: this.action, thread_ids: this.ids };
    if (this.action === "archive") options.then = elements.then.value;
    if (this.action === "label") {
      options.add = splitWords(elements.add.value);
      options.remove = splitWords(elements.remove.value);
    }
    return options;
  }

  // A preview that is shown, or still loading, belongs to other options.
  dropPreview() {
    clearTimeout(this.timer);
    if (this.loading) this.loading.abort();
    this.seen = null;
    this.updateButton();
  }

  schedulePreview() {
    this.dropPreview();
    this.timer = setTimeout(() => this.loadPreview(), PAUSE_MS);
  }

  async loadPreview() {
    this.dropPreview();
    this.error.textContent = "";
    this.confirming.hidden = true;
    const options = this.readOptions();
    if (this.action === "label" && !options.add.length && !options.remove.length) {
      this.summary.textContent = "Name a label to add, or one to remove.";
      this.items.replaceChildren();
      return;
    }
    const { signal } = (this.loading = new AbortController());
    this.summary.textContent = "Loading the preview …";
    try {
      const found = await send("/api/v1/bulk/preview", options, { signal });
      if (!signal.aborted) this.show(found);
    } catch (error) {
      if (signal.aborted) return;
      this.summary.textContent = "The action is disabled until its effect is known.";
      this.error.textContent = error.message;
    }
    this.updateButton();
  }

  show(found) {
    const refused = found.items.length - found.acts;
    const last = found.is_reversible ? "Nothing is lost." : "This cannot be undone.";
    const left = refused ? ` On ${countThreads(refused)}, nothing happens.` : "";
    this.summary.textContent = found.acts ? `Acts on ${countThreads(found.acts)}.${left} ${last}` : "It would act on no thread.";
    // What is refused comes first: it is what a person has not expected.
    const items = [...found.items].sort((a, b) => (a.refused ? 0 : 1) - (b.refused ? 0 : 1));
    this.items.replaceChildren(...items.map((item) => makeItem(item.thread_id, item.refused || item.effect, item.refused ? "refused" : "")));
    this.confirming.hidden = !found.confirm;
    this.confirming.querySelector("[data-word]").textContent = found.confirm;
    this.submit.classList.toggle("danger", found.confirm !== "");
    this.seen = found;
  }

  isAllowed() {
    if (this.busy || this.done || !this.seen || !this.seen.acts) return false;
    return this.form.elements.confirm.value === this.seen.confirm;
  }

  updateButton() {
    this.submit.disabled = !this.isAllowed();
  }

  async act() {
    this.busy = true;
    this.updateButton();
    this.error.textContent = "";
    const { elements } = this.form;
    const body = { ...this.readOptions(), confirm: elements.confirm.value, reason: elements.reason.value };
    if (elements.by) body.by = elements.by.value;
    try {
      const job = await waitForJob(await send("/api/v1/bulk", body), (text) => {
        this.summary.textContent = `Running: ${text}`;
      });
      this.showResults(job);
      await refresh();
    } catch (error) {
      this.error.textContent = error.message;
    } finally {
      this.busy = false;
      this.updateButton();
    }
  }

  showResults(job) {
    this.done = true;
    this.summary.textContent = job.text;
    const order = { failed: 0, refused: 1, done: 2 };
    const results = [...job.bulk].sort((a, b) => order[a.state] - order[b.state]);
    this.items.replaceChildren(...results.map((each) => makeItem(each.thread_id, each.text, each.state)));
    this.confirming.hidden = this.submit.hidden = true;
    for (const part of this.form.querySelectorAll("[data-bulk-fields], [data-options]")) part.hidden = true;
    this.dialog.querySelector("[data-bulk-title]").focus();
    for (const box of document.querySelectorAll("[data-pick]:checked")) box.checked = false;
    this.count();
    if (!this.dialog.open) showToast(job.text, results.some((each) => each.state === "failed"));
  }
}

function makeItem(id, text, state) {
  const item = document.createElement("li");
  if (state) item.className = state;
  const name = document.createElement("strong");
  name.textContent = id;
  const effect = document.createElement("span");
  effect.textContent = state === "refused" || state === "failed" ? `${state === "failed" ? "Failed" : "Nothing happens"}: ${text}` : text;
  item.append(name, effect);
  return item;
}

function countThreads(count) {
  return count === 1 ? "1 thread" : `${count} threads`;
}

function splitWords(text) {
  return text.split(/\s+/).filter(Boolean);
}
