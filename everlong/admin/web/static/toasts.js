// Toasts: results of actions. At most three are shown; errors stay until they are closed.
const SHOWN_MAX = 3;
const SHOWN_MS = 8000;

export function showToast(text, isBad = false) {
  const all = document.querySelector("[data-toasts]");
  const box = document.createElement("div");
  box.className = isBad ? "toast bad" : "toast";
  const message = document.createElement("p");
  message.textContent = text;
  const close = document.createElement("button");
  close.type = "button";
  close.className = "quiet";
  close.textContent = "Close";
  close.addEventListener("click", () => box.remove());
  box.append(message, close);
  all.append(box);
  while (all.children.length > SHOWN_MAX) all.firstElementChild.remove();
  if (!isBad) setTimeout(() => box.remove(), SHOWN_MS);
}
