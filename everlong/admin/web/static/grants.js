// Grants: calls that need no approval. A second click revokes one.
import { send } from "./requests.js";
import { refresh } from "./live.js";
import { showToast } from "./toasts.js";

const ARMED_MS = 6000;

export function startGrants() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-revoke]");
    if (!button) return;
    if (button.dataset.armed) revoke(button);
    else arm(button);
  });
}

function arm(button) {
  const word = button.querySelector("[data-word]");
  button.dataset.armed = "true";
  word.textContent = "Revoke now";
  setTimeout(() => {
    delete button.dataset.armed;
    word.textContent = "Revoke";
  }, ARMED_MS);
}

async function revoke(button) {
  button.disabled = true;
  try {
    const answer = await send(button.dataset.revoke, {});
    showToast(answer.text);
    document.querySelector("main h1").focus();
    await refresh();
  } catch (error) {
    showToast(error.message, true);
  }
  button.disabled = false;
}
