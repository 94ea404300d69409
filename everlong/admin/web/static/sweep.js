// Sweeps on the fleet page: a dry run counts, a real sweep needs a confirmation.
import { send, waitForJob } from "./requests.js";
import { showToast } from "./toasts.js";
import { formatSize } from "./sizes.js";

export function startSweep() {
  const result = document.querySelector("[data-sweep-result]");
  for (const button of document.querySelectorAll("[data-sweep]")) {
    button.addEventListener("click", () => sweep(button.dataset.sweep, true, button, result));
  }
  const form = document.querySelector("[data-sweeping]");
  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    form.closest("dialog").close();
    sweep(form.dataset.sweeping, false, form.querySelector("[type=submit]"), result);
  });
}

async function sweep(url, isDry, button, result) {
  button.disabled = true;
  try {
    const job = await waitForJob(await send(url, { dry_run: isDry }), (text) => {
      result.replaceChildren(makeLine(`Running: ${text}`));
    });
    result.replaceChildren(...describe(job).map(makeLine));
    showToast(isDry ? "Dry run: nothing was changed." : "Swept.");
  } catch (error) {
    showToast(error.message, true);
  }
  button.disabled = false;
}

function describe(job) {
  const { reachable, stored, incomplete } = job.swept;
  const kept = `${formatSize(reachable.bytes)} of ${formatSize(stored.bytes)} are reachable.`;
  return [job.text, kept, ...incomplete.slice(1)];
}

function makeLine(text) {
  const element = document.createElement("p");
  element.textContent = text;
  return element;
}
