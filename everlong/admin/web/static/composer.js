// The composer of a conversation. A message has an id, so that it is queued once however often it is sent.
// The draft is kept in this tab until it is sent.
import { loadFragment, send } from "./requests.js";
import { refresh } from "./live.js";
import { showToast } from "./toasts.js";

const DRAFT_CHARS_MAX = 64 * 1024;

export function startComposer() {
  const form = document.querySelector("[data-composer]");
  if (form) new Composer(form);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-again]");
    if (button) sendAgain(button);
  });
}

class Composer {
  constructor(form) {
    this.form = form;
    this.text = form.elements.text;
    this.error = form.querySelector("[data-error]");
    this.button = form.querySelector("[type=submit]");
    this.key = `everlong-draft-${form.dataset.thread}`;
    this.id = makeId();
    if (/Mac|iPhone|iPad/.test(navigator.platform)) form.querySelector("[data-hint]").textContent = "Cmd-Enter sends";
    const draft = sessionStorage.getItem(this.key);
    if (draft && !this.text.value) this.text.value = draft;
    this.fit();
    this.text.addEventListener("input", () => this.keep());
    this.text.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      form.requestSubmit();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  // A changed text is another message.
  keep() {
    this.id = makeId();
    sessionStorage.setItem(this.key, this.text.value.slice(0, DRAFT_CHARS_MAX));
    this.fit();
  }

  fit() {
    this.text.rows = Math.min(8, Math.max(2, this.text.value.split("\n").length));
  }

  async send() {
    const text = this.text.value;
    if (this.busy || text.trim() === "") return;
    this.busy = this.button.disabled = this.text.readOnly = true;
    this.error.textContent = "";
    const body = { text, message_id: this.id };
    if (this.form.elements.by) body.by = this.form.elements.by.value;
    try {
      await send(this.form.dataset.url, body);
      this.text.value = "";
      sessionStorage.removeItem(this.key);
      this.id = makeId();
      this.fit();
      await refresh();
      document.dispatchEvent(new CustomEvent("everlong:to-end"));
    } catch (error) {
      this.error.textContent = error.message;
    } finally {
      this.busy = this.button.disabled = this.text.readOnly = false;
      this.text.focus();
    }
  }
}

// Sends the message of a failed turn again: once for each failure, from any page.
async function sendAgain(button) {
  button.disabled = true;
  try {
    const text = await loadFragment(button.dataset.again);
    await send(button.dataset.url, { text, message_id: button.dataset.messageId });
    await refresh();
  } catch (error) {
    showToast(error.message, true);
    button.disabled = false;
  }
}

// Not `randomUUID`: browsers have it on secure origins only.
function makeId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `page-${[...bytes].map((each) => each.toString(16).padStart(2, "0")).join("")}`;
}
