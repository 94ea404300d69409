// What every page has: local times, the theme, live parts, dialogs. Pages work without it for reading.
import { startActing } from "./acting.js";
import { startApprovals } from "./approvals.js";
import { startJournal } from "./journal.js";
import { startLazy } from "./lazy.js";
import { startLive } from "./live.js";
import { startPast } from "./past.js";
import { startQuery } from "./query.js";
import { startSweeping } from "./sweeping.js";
import { startTheme } from "./themes.js";
import { localise } from "./times.js";

const FILTERED = "everlong-filtered";

localise(document);
startTheme();
startLive();
startActing();
startApprovals();
startJournal();
startPast();
startQuery();
startLazy();
startSweeping();

// A page of results is found by its address, so fields that say nothing stay out of it.
for (const form of document.querySelectorAll("form[data-filters]")) {
  form.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) {
      if (value === "") event.formData.delete(name);
    }
  });
}
// A filter that is chosen is meant, also one that was chosen before this script had come; a search is
// sent by Enter, as everywhere.
for (const filter of document.querySelectorAll("form[data-filters] select")) {
  const submit = () => {
    sessionStorage.setItem(FILTERED, filter.id); // With the keyboard, each step is a choice.
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
  location.assign("/login");
});
// From here on buttons do what they say.
document.documentElement.dataset.ready = "";
