// Labels of a thread: adds and removes one at a time.
import { send } from "./requests.js";
import { refresh } from "./live.js";
import { showToast } from "./toasts.js";

export function startLabels() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-unlabel]");
    if (button) change(button, { remove: [button.dataset.unlabel] });
  });
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-label]");
    if (!form) return;
    event.preventDefault();
    change(form, { add: [form.elements.label.value.trim()] });
  });
}

async function change(element, body) {
  const place = element.closest("[data-labels]");
  const form = place.querySelector("form[data-label]");
  try {
    showToast((await send(place.dataset.labels, body)).text);
    if (body.add) form.reset();
    await refresh();
  } catch (error) {
    showToast(error.message, true);
  }
  form?.elements.label.focus();
}
