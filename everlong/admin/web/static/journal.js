// Bodies of entries, in the journal and in the conversation: loaded when they are opened, long ones in
// slices. The pages of the journal.
import { loadFragment } from "./requests.js";
import { morph } from "./morph.js";
import { localise } from "./times.js";

export function startJournal() {
  document.addEventListener("toggle", (event) => loadBody(event.target), true);
  loadOpenBodies(document);
  document.addEventListener("click", (event) => {
    const more = event.target.closest("[data-more]");
    if (more) loadMore(more);
    const form = event.target.closest("[data-form-url]");
    if (form) switchForm(form);
  });
  const journal = document.querySelector("[data-journal]");
  if (!journal) return;
  journal.addEventListener("click", (event) => {
    const page = event.target.closest("[data-page]");
    if (page) turnPage(journal, page.dataset.page);
  });
  document.querySelector("[data-jump]")?.addEventListener("submit", (event) => {
    event.preventDefault();
    const seq = Number(event.target.elements.seq.value);
    if (seq >= 1) turnPage(journal, `${journal.dataset.url}&before=${seq + 1}`);
  });
  // The newest page follows the thread: new entries appear.
  document.addEventListener("updated", (event) => {
    const head = event.target.querySelector("[data-last-seq]")?.dataset.lastSeq;
    const list = journal.querySelector("[data-entries]");
    // The list exists from the first entry on.
    const isNewest = list ? list.dataset.newest === "true" && list.dataset.lastSeq !== head : head !== "0";
    if (head && isNewest) {
      turnPage(journal, journal.dataset.url, true);
    }
  });
}

// Loads the bodies of details that are open: an update may have replaced their contents.
export function loadOpenBodies(root) {
  for (const entry of root.querySelectorAll("details[open]")) loadBody(entry);
}

async function loadBody(entry) {
  const place = entry.open && entry.querySelector(":scope > [data-body]");
  if (!place || place.dataset.state) return;
  place.dataset.state = "asked";
  try {
    place.innerHTML = await loadFragment(place.dataset.body);
    localise(place);
  } catch (error) {
    place.textContent = error.message;
    delete place.dataset.state;
  }
}

// Shows the same body in its other form, text or JSON.
async function switchForm(button) {
  const place = button.closest("[data-body]");
  try {
    place.innerHTML = await loadFragment(button.dataset.formUrl);
    place.querySelector("[data-form-url]")?.focus();
  } catch (error) {
    button.textContent = error.message;
  }
}

async function loadMore(button) {
  button.disabled = true;
  try {
    const fresh = document.createElement("template");
    fresh.innerHTML = await loadFragment(button.dataset.more);
    const text = fresh.content.querySelector("[data-slice]").textContent;
    button.closest("[data-body]").querySelector("[data-slice]").append(text);
    const rest = fresh.content.querySelector("[data-rest]");
    const place = button.closest("[data-body]");
    button.closest("[data-rest]").replaceWith(rest);
    (rest.querySelector("button") || place.querySelector("[data-slice]")).focus();
  } catch (error) {
    button.disabled = false;
    button.textContent = error.message;
  }
}

// The request in flight. A page that the user asked for is not replaced by a live update.
let turning = null;

async function turnPage(journal, url, isLive = false) {
  if (isLive && turning && !turning.isLive) return;
  turning?.reading.abort();
  const mine = (turning = { isLive, reading: new AbortController() });
  journal.setAttribute("aria-busy", "true");
  try {
    const fresh = document.createElement("template");
    fresh.innerHTML = await loadFragment(url, { signal: mine.reading.signal });
    if (mine !== turning) return;
    morph(journal, fresh.content);
    localise(journal);
    if (!isLive) journal.querySelector("[data-entries]")?.focus();
  } catch (error) {
    if (mine !== turning) return;
    const place = journal.querySelector("[data-journal-error]");
    if (place) place.textContent = error.message;
  }
  turning = null;
  journal.removeAttribute("aria-busy");
}
