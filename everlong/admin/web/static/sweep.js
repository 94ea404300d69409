// Sweeps on the fleet page: a dry run counts, a real sweep needs a confirmation.
import { send, waitForJob } from "./requests.js";
import { toast } from "./toasts.js";
import { size } from "./sizes.js";

export function startSweep() {
  const said = document.querySelector("[data-sweep-said]");
  for (const button of document.querySelectorAll("[data-sweep]")) {
    button.addEventListener("click", () => sweep(button.dataset.sweep, true, button, said));
  }
  const form = document.querySelector("[data-sweeping]");
  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    form.closest("dialog").close();
    sweep(form.dataset.sweeping, false, form.querySelector("[type=submit]"), said);
  });
}

async function sweep(url, isDry, button, said) {
  button.disabled = true;
  try {
    const job = await waitForJob(await send(url, { dry_run: isDry }), (text) => {
      said.replaceChildren(line(`Running: ${text}`));
    });
    said.replaceChildren(...describe(job).map(line));
    toast(isDry ? "Dry run: nothing was changed." : "Swept.");
  } catch (error) {
    toast(error.message, true);
  }
  button.disabled = false;
}

function describe(job) {
  const { reachable, stored, incomplete } = job.swept;
  const kept = `${size(reachable.bytes)} of ${size(stored.bytes)} are reachable.`;
  return [job.text, kept, ...incomplete.slice(1)];
}

function line(text) {
  const element = document.createElement("p");
  element.textContent = text;
  return element;
}
