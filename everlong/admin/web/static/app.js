// Entry point of every page: local times, theme, live updates, dialogs. Pages are readable without it.
import { startActions } from "./actions.js";
import { startApprovals } from "./approvals.js";
import { startComposer } from "./composer.js";
import { startConversation } from "./conversation.js";
import { startBulk } from "./bulk.js";
import { startGrants } from "./grants.js";
import { startJournal } from "./journal.js";
import { startKeys } from "./keys.js";
import { startLabels } from "./labels.js";
import { startLazy } from "./lazy.js";
import { startLive } from "./live.js";
import { startPalette } from "./palette.js";
import { startLiveOutput } from "./live_output.js";
import { startPast } from "./past.js";
import { startQuery } from "./query.js";
import { startSweep } from "./sweep.js";
import { startTheme } from "./theme_toggle.js";
import { localise } from "./times.js";
import { startViews } from "./views.js";

const FILTERED = "everlong-filtered";

localise(document);
startTheme();
startLive();
startActions();
startApprovals();
startJournal();
startConversation();
startLiveOutput();
startComposer();
startLabels();
startPast();
startQuery();
startLazy();
startSweep();
startViews();
startBulk();
startGrants();
startKeys();
startPalette();

// Results have a URL to share, so empty fields stay out of it.
for (const form of document.querySelectorAll("form[data-filters]")) {
  form.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) {
      if (value === "") event.formData.delete(name);
    }
  });
}
// A chosen filter is submitted at once, even if it was chosen before this script loaded. A search is
// submitted with Enter.
for (const filter of document.querySelectorAll("form[data-filters] select")) {
  const submit = () => {
    sessionStorage.setItem(FILTERED, filter.id); // Keep the focus: with the keyboard, each step is a change.
    filter.form.requestSubmit();
  };
  filter.addEventListener("change", submit);
  if (sessionStorage.getItem(FILTERED) === filter.id) filter.focus();
  const sent = filter.querySelector("option[selected]") || filter.options[0];
  if (!sent.selected) submit();
}
sessionStorage.removeItem(FILTERED);
document.querySelector("[data-logout]")?.addEventListener("click", async () => {
  await fetch("/api/v1/session", { method: "DELETE" });
  sessionStorage.clear(); // Drafts of this user.
  location.assign("/login");
});
// Buttons work from here on; the style sheet enables them.
document.documentElement.dataset.ready = "";
