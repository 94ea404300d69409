// Actions on a thread: a dialog previews the effect, asks for a reason, and wants a confirmation for
// what cannot be undone.
import { send, waitForJob } from "./requests.js";
import { refresh } from "./live.js";
import { size } from "./sizes.js";
import { toast } from "./toasts.js";

const PAUSE_MS = 250;

export function startActions() {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    if (opener) open(document.getElementById(opener.dataset.dialog), opener);
    const closer = event.target.closest("[data-close]");
    if (closer) closer.closest("dialog").close();
  });
  for (const form of document.querySelectorAll("dialog form[data-act]")) new Act(form);
}

function open(dialog, opener) {
  const form = dialog.querySelector("form");
  form.reset();
  for (const [name, value] of Object.entries(opener.dataset)) {
    if (name.startsWith("set")) form.elements[name.slice(3).toLowerCase()].value = value;
  }
  // The button has the present values: live updates replace it, and not the dialog.
  const now = JSON.parse(opener.dataset.now || "{}");
  for (const hint of form.querySelectorAll("[data-hint]")) {
    hint.textContent = hint.dataset.hint in now ? `now ${now[hint.dataset.hint]}` : "";
  }
  dialog.showModal();
  form.dispatchEvent(new CustomEvent("opened"));
}

class Act {
  constructor(form) {
    this.form = form;
    this.preview = form.querySelector("[data-preview]");
    this.error = form.querySelector("[data-error]");
    this.submit = form.querySelector("[type=submit]");
    this.confirming = form.querySelector("[data-confirming]");
    this.confirm = "";
    // Whether the preview of the present fields is shown. The action is disabled until then.
    this.seen = false;
    form.addEventListener("opened", () => this.look());
    form.addEventListener("input", (event) => {
      if (event.target.closest("[data-argument]")) this.lookSoon();
      this.allow();
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.isAllowed()) this.act();
    });
  }

  fields(only) {
    const found = {};
    for (const element of this.form.elements) {
      if (!element.name || element.name === "confirm") continue;
      if (only && !element.closest(only)) continue;
      if (element.type === "radio" && !element.checked) continue;
      const value = element.type === "checkbox" ? element.checked : typed(element);
      if (value === undefined) continue;
      if (element.dataset.into) (found[element.dataset.into] ||= {})[element.name] = value;
      else found[element.name] = value;
    }
    for (const group of this.form.querySelectorAll("[data-group]")) found[group.dataset.group] ||= {};
    return found;
  }

  // A preview that is shown, or still loading, belongs to other values of the fields.
  forget() {
    clearTimeout(this.timer);
    if (this.looking) this.looking.abort();
    this.seen = false;
  }

  lookSoon() {
    this.forget();
    this.timer = setTimeout(() => this.look(), PAUSE_MS);
  }

  async look() {
    this.forget();
    this.error.textContent = "";
    const { signal } = (this.looking = new AbortController());
    this.preview.setAttribute("aria-busy", "true");
    this.allow();
    try {
      const found = await send(
        this.form.dataset.preview,
        { action: this.form.dataset.act, arguments: this.fields("[data-argument]") },
        { signal },
      );
      if (signal.aborted) return;
      this.show(found);
    } catch (error) {
      if (signal.aborted) return;
      const advice = line("p", "The action is disabled until its effect is known. Open the dialog again to retry.", "muted small");
      this.preview.replaceChildren(line("p", error.message, "error-text"), advice);
    }
    this.preview.removeAttribute("aria-busy");
    this.allow();
  }

  show(found) {
    const parts = [line("p", found.sentence)];
    if (found.before_bytes !== null && found.after_bytes !== null) {
      const bytes = line("p", `${size(found.before_bytes)} → ${size(found.after_bytes)}`, "bytes");
      bytes.append(line("span", difference(found.before_bytes, found.after_bytes), "muted small"));
      parts.push(bytes);
    }
    if (found.warnings && found.warnings.length) {
      const list = document.createElement("ul");
      list.append(...found.warnings.map((text) => line("li", text)));
      parts.push(list);
    }
    parts.push(line("p", found.is_reversible ? "Nothing is lost." : "This cannot be undone.", "muted small"));
    this.preview.replaceChildren(...parts);
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

  allow() {
    this.submit.disabled = !this.isAllowed();
  }

  async act() {
    this.busy = true;
    this.allow();
    this.error.textContent = "";
    try {
      const body = this.fields();
      if (this.confirm) body.confirm = this.form.elements.confirm.value;
      const answer = await waitForJob(await send(this.form.dataset.url, body), (text) => {
        this.preview.replaceChildren(line("p", `Running: ${text}`));
      });
      this.form.closest("dialog").close();
      toast(resultText(answer) || this.form.dataset.done);
      const next = this.form.dataset.next;
      if (next) location.assign(next + encodeURIComponent(body.new_id));
      await refresh();
    } catch (error) {
      this.error.textContent = error.message;
    } finally {
      this.busy = false;
      this.allow();
    }
  }
}

function difference(before, after) {
  if (after === before) return "no change";
  return after > before ? `${size(after - before)} more` : `${Math.round((100 * after) / before)}% remains`;
}

function resultText(answer) {
  return answer && typeof answer.text === "string" ? answer.text : "";
}

// An empty field is left out, so that the server's default applies.
function typed(element) {
  const text = element.value;
  if (text === "" && !element.required) return undefined;
  if (element.type === "number") return Number(text);
  return text;
}

function line(tag, text, className = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}
