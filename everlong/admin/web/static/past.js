// Time travel: loads the state at the slider's entry once it rests, and cancels older requests.
import { loadFragment } from "./requests.js";
import { localise } from "./times.js";

const REST_MS = 250;

export function startPast() {
  const past = document.querySelector("[data-past]");
  if (!past) return;
  const range = past.querySelector("input[type=range]");
  const number = past.querySelector("input[type=number]");
  const place = past.querySelector("[data-scene]");
  const fork = past.querySelector("[data-set-seq]");
  let timer;
  let reading;

  async function show() {
    if (reading) reading.abort();
    reading = new AbortController();
    place.setAttribute("aria-busy", "true");
    try {
      place.innerHTML = await loadFragment(`${past.dataset.past}&seq=${range.value}`, { signal: reading.signal });
      localise(place);
      place.dataset.seq = range.value;
    } catch (error) {
      if (error.name === "AbortError") return;
      place.textContent = error.message;
    }
    place.removeAttribute("aria-busy");
  }

  function moveTo(from, to) {
    const seq = Math.min(Math.max(1, Math.round(Number(from.value) || 1)), Number(range.max));
    range.value = seq;
    if (to !== number || document.activeElement !== number) number.value = seq;
    range.setAttribute("aria-valuetext", `entry ${seq} of ${range.max}`);
    if (fork) fork.dataset.setSeq = seq;
    clearTimeout(timer);
    timer = setTimeout(show, REST_MS);
  }

  past.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  range.addEventListener("input", () => moveTo(range, number));
  number.addEventListener("input", () => moveTo(number, range));
  document.addEventListener("updated", (event) => {
    const last = event.target.querySelector("[data-last-seq]")?.dataset.lastSeq;
    if (!last || Number(last) < 1) return;
    past.hidden = false;
    document.querySelector("[data-past-empty]")?.remove();
    if (!place.dataset.seq) show();
    if (Number(last) > Number(range.max)) {
      range.max = last;
      number.max = last;
    }
  });
  // The slider may have moved before this script loaded.
  if (!past.hidden && range.value !== place.dataset.seq) moveTo(range, number);
}
