// Actions on a thread: a dialog previews the effect, asks for a reason and, for final actions, a
// confirmation.
import { send, waitForJob } from "./requests.js";
import { refresh } from "./live.js";
import { formatSize } from "./sizes.js";
import { showToast } from "./toasts.js";

const PAUSE_MS = 250;

export function startActions() {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    if (opener) open(document.getElementById(opener.dataset.dialog), opener);
    const closer = event.target.closest("[data-close]");
    if (closer) closer.closest("dialog").close();
  });
  for (const form of document.querySelectorAll("dialog form[data-act]")) new ActionForm(form);
}

function open(dialog, opener) {
  const form = dialog.querySelector("form");
  form.reset();
  for (const [name, value] of Object.entries(opener.dataset)) {
    if (name.startsWith("set")) form.elements[name.slice(3).toLowerCase()].value = value;
  }
  // Live updates replace the button but not the dialog, so the button has the present values.
  const now = JSON.parse(opener.dataset.now || "{}");
  for (const hint of form.querySelectorAll("[data-hint]")) {
    hint.textContent = hint.dataset.hint in now ? `now ${now[hint.dataset.hint]}` : "";
  }
  dialog.showModal();
  form.dispatchEvent(new CustomEvent("opened"));
}

class ActionForm {
  constructor(form) {
    this.form = form;
    this.preview = form.querySelector("[data-preview]");
    this.error = form.querySelector("[data-error]");
    this.submit = form.querySelector("[type=submit]");
    this.confirming = form.querySelector("[data-confirming]");
    this.confirm = "";
    // Whether the preview of the present fields is shown. The action is disabled until then.
    this.seen = false;
    form.addEventListener("opened", () => this.loadPreview());
    form.addEventListener("input", (event) => {
      // The effect of a rerun does not depend on its text, which may be long.
      const isPreviewed = !event.target.hasAttribute("data-unpreviewed");
      if (isPreviewed && event.target.closest("[data-argument]")) this.schedulePreview();
      this.updateButton();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.isAllowed()) this.act();
    });
  }

  readFields(only) {
    const found = {};
    for (const element of this.form.elements) {
      if (!element.name || element.name === "confirm") continue;
      if (only && (!element.closest(only) || element.hasAttribute("data-unpreviewed"))) continue;
      if (element.type === "radio" && !element.checked) continue;
      const value = element.type === "checkbox" ? element.checked : readValue(element);
      if (value === undefined) continue;
      if (element.dataset.into) (found[element.dataset.into] ||= {})[element.name] = value;
      else found[element.name] = value;
    }
    for (const group of this.form.querySelectorAll("[data-group]")) found[group.dataset.group] ||= {};
    return found;
  }

  // A preview that is shown, or still loading, belongs to other values of the fields.
  dropPreview() {
    clearTimeout(this.timer);
    if (this.loading) this.loading.abort();
    this.seen = false;
  }

  schedulePreview() {
    this.dropPreview();
    this.timer = setTimeout(() => this.loadPreview(), PAUSE_MS);
  }

  async loadPreview() {
    this.dropPreview();
    this.error.textContent = "";
    const { signal } = (this.loading = new AbortController());
    this.preview.setAttribute("aria-busy", "true");
    this.updateButton();
    try {
      const found = await send(
        this.form.dataset.preview,
        { action: this.form.dataset.act, arguments: this.readFields("[data-argument]") },
        { signal },
      );
      if (signal.aborted) return;
      this.show(found);
    } catch (error) {
      if (signal.aborted) return;
      const advice = makeLine("p", "The action is disabled until its effect is known. Open the dialog again to retry.", "muted small");
      this.preview.replaceChildren(makeLine("p", error.message, "error-text"), advice);
    }
    this.preview.removeAttribute("aria-busy");
    this.updateButton();
  }

  show(found) {
    const parts = [makeLine("p", found.sentence)];
    if (found.before_bytes !== null && found.after_bytes !== null) {
      const bytes = makeLine("p", `${formatSize(found.before_bytes)} → ${formatSize(found.after_bytes)}`, "bytes");
      bytes.append(makeLine("span", describeChange(found.before_bytes, found.after_bytes), "muted small"));
      parts.push(bytes);
    }
    if (found.warnings && found.warnings.length) {
      const list = document.createElement("ul");
      list.append(...found.warnings.map((text) => makeLine("li", text)));
      parts.push(list);
    }
    parts.push(makeLine("p", found.is_reversible ? "Nothing is lost." : "This cannot be undone.", "muted small"));
    this.preview.replaceChildren(...parts);
    for (const field of this.form.querySelectorAll("[data-fill]")) field.value ||= found.text || "";
    this.confirm = found.confirm || "";
    this.confirming.hidden = !this.confirm;
    this.submit.classList.toggle("danger", this.confirm !== "");
    this.confirming.querySelector("[data-word]").textContent = this.confirm;
    this.seen = true;
  }

  isAllowed() {
    if (this.busy || !this.seen) return false;
    return this.confirm === "" || this.form.elements.confirm.value === this.confirm;
  }

  updateButton() {
    this.submit.disabled = !this.isAllowed();
  }

  async act() {
    this.busy = true;
    this.updateButton();
    this.error.textContent = "";
    try {
      const body = this.readFields();
      if (this.confirm) body.confirm = this.form.elements.confirm.value;
      const answer = await waitForJob(await send(this.form.dataset.url, body), (text) => {
        this.preview.replaceChildren(makeLine("p", `Running: ${text}`));
      });
      this.form.closest("dialog").close();
      showToast(getResultText(answer) || this.form.dataset.done);
      const next = this.form.dataset.next;
      if (next) location.assign(next + encodeURIComponent(body.new_id));
      await refresh();
    } catch (error) {
      this.error.textContent = error.message;
    } finally {
      this.busy = false;
      this.updateButton();
    }
  }
}

function describeChange(before, after) {
  if (after === before) return "no change";
  return after > before ? `${formatSize(after - before)} more` : `${Math.round((100 * after) / before)}% remains`;
}

function getResultText(answer) {
  return answer && typeof answer.text === "string" ? answer.text : "";
}

// An empty field is left out, so that the server's default applies.
function readValue(element) {
  const text = element.value;
  if (text === "" && !element.required) return undefined;
  if (element.type === "number") return Number(text);
  return text;
}

function makeLine(tag, text, className = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}
