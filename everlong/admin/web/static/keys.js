// Keyboard shortcuts. A key in a field, in a dialog, or with Ctrl, Alt or Meta is never one, and a
// checkbox in the help switches off all single keys.
import { openPalette } from "./palette.js";

const OFF = "everlong-keys-off";
const SEQUENCE_MS = 1500;
const ITEMS = "[data-item], [data-ask], [data-talk] .turn[data-seq]";
const PLACES = { t: "/", a: "/approvals", r: "/archives", f: "/fleet", q: "/query" };

let began = 0; // When `g` was pressed, the first key of a sequence.
let asked = null; // The button of the decision that the dialog asks about.
let last = null; // The item that had the focus last: a live update may have taken the focus away.

export function startKeys() {
  const help = document.getElementById("keys-help");
  if (!help) return; // The login page.
  const box = document.getElementById("keys-on");
  box.checked = !isOff();
  box.addEventListener("change", () => {
    if (box.checked) localStorage.removeItem(OFF);
    else localStorage.setItem(OFF, "true");
  });
  document.querySelector("#keys-confirm form").addEventListener("submit", () => {
    if (asked && asked.isConnected) asked.click();
  });
  document.addEventListener("keydown", (event) => {
    if (!isShortcut(event)) return;
    if (act(event.key, help)) event.preventDefault();
  });
}

function isOff() {
  return localStorage.getItem(OFF) === "true";
}

function isShortcut(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || event.defaultPrevented) return false;
  if (isOff() || document.querySelector("dialog[open]")) return false;
  return !isField(event.target);
}

// Returns whether keys that are typed into an element belong to it.
export function isField(element) {
  return element.isContentEditable || element.matches("input:not([type=checkbox], [type=radio], [type=button]), textarea, select");
}

// Does what a key stands for. Returns whether it stands for something.
function act(key, help) {
  const isSecond = performance.now() - began < SEQUENCE_MS && began > 0;
  began = 0;
  if (isSecond && PLACES[key]) return go(PLACES[key]);
  switch (key) {
    case "g":
      began = performance.now();
      return true;
    case "j":
    case "k":
      return move(key === "j" ? 1 : -1);
    case "x":
      return pick();
    case "a":
    case "d":
      return ask(key === "a");
    case "/":
      return search();
    case "?":
      help.showModal();
      return true;
  }
  return false;
}

// Follows the link of the bar, which the role may lack and which has the remembered columns.
function go(path) {
  const link = [...document.querySelectorAll(".nav a")].find((each) => new URL(each.href).pathname === path);
  if (link) link.click();
  return Boolean(link);
}

function findCurrent() {
  const focused = document.activeElement.closest(ITEMS);
  if (focused) return focused;
  return last && last.isConnected ? last : null;
}

function move(step) {
  const items = [...document.querySelectorAll(ITEMS)].filter((each) => each.checkVisibility());
  if (items.length === 0) return false;
  const at = items.indexOf(findCurrent());
  const next = at < 0 ? 0 : Math.max(0, Math.min(items.length - 1, at + step));
  focusItem(items[next]);
  return true;
}

function focusItem(item) {
  last = item;
  const target = item.querySelector("[data-open]") || item;
  if (target === item && !item.hasAttribute("tabindex")) item.tabIndex = -1;
  target.focus({ preventScroll: true });
  item.scrollIntoView({ block: "nearest" });
}

function pick() {
  const box = findCurrent()?.querySelector("[data-pick]");
  if (!box) return false;
  box.click();
  return true;
}

function search() {
  const field = document.querySelector("[data-search]");
  if (!field) return openPalette();
  field.focus();
  field.select();
  return true;
}

// Asks before an approval is decided. Without the focus on one, the first one gets it: no key decides
// a call that the person may not have seen.
function ask(approve) {
  const calls = [...document.querySelectorAll("[data-ask]:not([data-decided])")].filter((each) => each.querySelector("[data-approve]"));
  if (calls.length === 0) return false;
  const call = calls.find((each) => each.contains(document.activeElement));
  if (!call) {
    focusItem(calls[0]);
    return true;
  }
  const button = call.querySelector(`[data-approve="${approve}"]`);
  const dialog = document.getElementById("keys-confirm");
  const name = button.textContent.trim().replace(/\s+/g, " ");
  dialog.querySelector("[data-question]").textContent = `${name}?`;
  const edited = call.querySelector("textarea[name=arguments]");
  const isEdited = approve && edited && edited.value !== edited.defaultValue;
  const text = isEdited ? edited.value : call.querySelector(".arguments")?.textContent;
  dialog.querySelector("[data-question-arguments]").textContent = text || "";
  const submit = dialog.querySelector("[type=submit]");
  submit.textContent = approve ? "Approve" : "Deny";
  submit.classList.toggle("danger", !approve);
  asked = button;
  dialog.showModal();
  return true;
}
