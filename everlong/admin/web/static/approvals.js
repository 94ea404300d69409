// Approvals: only the buttons decide, never Enter in the reason field.
import { send } from "./requests.js";
import { refresh } from "./live.js";
import { showToast } from "./toasts.js";

export function startApprovals() {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches("[data-decide] input")) event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-decide] [data-approve]");
    if (button) decide(button);
  });
}

async function decide(button) {
  const form = button.closest("[data-decide]");
  const approve = button.dataset.approve === "true";
  const buttons = form.querySelectorAll("button");
  for (const each of buttons) each.disabled = true;
  const body = { approve, reason: form.elements.reason.value };
  if (form.elements.by) body.by = form.elements.by.value;
  try {
    await send(form.dataset.url, body);
    showToast(`${approve ? "Approved" : "Denied"}: ${form.dataset.tool}.`);
    form.closest("[data-ask]").dataset.decided = "";
    focusNext(form);
    await refresh();
  } catch (error) {
    showToast(error.message, true);
    for (const each of buttons) each.disabled = false;
  }
}

// Move the focus to the next pending call, or to the conversation or the heading: the decided call
// disappears. The page does not scroll.
function focusNext(form) {
  const others = [...document.querySelectorAll("[data-ask]:not([data-decided]) [data-decide] input")];
  const target = others[0] || document.querySelector("[data-talk] [data-turns]") || document.querySelector("main h1");
  target.focus({ preventScroll: others.length === 0 });
}
