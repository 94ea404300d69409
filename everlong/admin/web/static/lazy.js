// Sections that are loaded when they are opened.
import { loadFragment } from "./requests.js";
import { localise } from "./times.js";

export function startLazy() {
  for (const part of document.querySelectorAll("[data-lazy]")) {
    const place = part.querySelector("[data-lazy-place]");
    const readIfOpen = () => {
      if (part.open && !place.dataset.state) load(place, part.dataset.lazy);
    };
    part.addEventListener("toggle", readIfOpen);
    readIfOpen(); // The user may have opened it before this script loaded.
    part.addEventListener("click", (event) => {
      const next = event.target.closest("[data-lazy-next]");
      if (next) load(place, next.dataset.lazyNext).then(() => place.focus());
    });
  }
}

async function load(place, url) {
  place.dataset.state = "asked";
  place.setAttribute("aria-busy", "true");
  try {
    place.innerHTML = await loadFragment(url);
    localise(place);
  } catch (error) {
    place.textContent = error.message;
    delete place.dataset.state;
  }
  place.removeAttribute("aria-busy");
}
