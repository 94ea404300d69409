// Decisions on calls that wait for a person: only the buttons decide, never Enter in a field.
import { send } from "./requests.js";
import { refresh } from "./live.js";
import { showToast } from "./toasts.js";

const FORMS = "[data-decide], [data-resolve]";

export function startApprovals() {
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target.matches("[data-decide] input, [data-resolve] input")) event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-decide] [data-approve]");
    if (button) decide(button);
    const outcome = event.target.closest("[data-resolve] [data-outcome]");
    if (outcome) resolve(outcome);
  });
  document.addEventListener("input", (event) => {
    const form = event.target.closest("[data-decide]");
    if (form) nameButton(form);
  });
}

async function decide(button) {
  const form = button.closest("[data-decide]");
  const approve = button.dataset.approve === "true";
  const body = { approve, reason: form.elements.reason.value };
  if (form.elements.by) body.by = form.elements.by.value;
  if (approve && !isEdited(form) && form.elements.match?.value) {
    const { match, scope, seconds } = form.elements;
    body.always = { match: match.value, scope: scope.value, seconds: seconds.value ? Number(seconds.value) : null };
  }
  const text = approve && isEdited(form) ? form.elements.arguments.value : "";
  const problem = text && findProblem(text);
  if (problem) {
    form.querySelector("[data-error]").textContent = problem;
    form.elements.arguments.focus();
    return;
  }
  // The edited text as it is: a number that JavaScript would round stays whole.
  const sent = text ? `${JSON.stringify(body).slice(0, -1)},"arguments":${text}}` : body;
  await submit(form, sent, `${approve ? "Approved" : "Denied"}: ${form.dataset.tool}.`);
}

async function resolve(button) {
  const form = button.closest("[data-resolve]");
  const outcome = button.dataset.outcome;
  const body = { outcome, reason: form.elements.reason.value };
  if (outcome === "done") body.result = form.elements.result.value;
  if (form.elements.by) body.by = form.elements.by.value;
  await submit(form, body, `${button.firstChild.textContent}: ${form.dataset.tool}.`);
}

async function submit(form, body, text) {
  const buttons = form.querySelectorAll("button");
  for (const each of buttons) each.disabled = true;
  form.querySelector("[data-error]").textContent = "";
  try {
    const answer = await send(form.dataset.url, body);
    showToast(`${text} ${answer.text}`);
    form.closest("[data-ask]").dataset.decided = "";
    focusNext();
    await refresh();
  } catch (error) {
    showToast(error.message, true);
  }
  // Still there: the decision was refused, or others have to decide too.
  for (const each of buttons) each.disabled = false;
}

// Move the focus to the next call that waits, or to the conversation or the heading: the decided call
// disappears. The page does not scroll.
function focusNext() {
  const others = [...document.querySelectorAll("[data-ask]:not([data-decided])")]
    .map((each) => each.querySelector(FORMS)?.querySelector("input"))
    .filter(Boolean);
  const target = others[0] || document.querySelector("[data-talk] [data-turns]") || document.querySelector("main h1");
  target.focus({ preventScroll: others.length === 0 });
}

function isEdited(form) {
  const field = form.elements.arguments;
  return Boolean(field) && field.value !== field.defaultValue;
}

// A changed call is decided alone: it does not say what to do with others.
function nameButton(form) {
  const always = form.querySelector("[data-always]");
  if (always) always.hidden = isEdited(form);
  form.querySelector("[data-approve-word]").textContent = isEdited(form) ? "Approve with these arguments" : "Approve";
}

// Returns why a text cannot be the arguments of a call; empty if it can.
function findProblem(text) {
  try {
    const found = JSON.parse(text);
    if (found && typeof found === "object" && !Array.isArray(found)) return "";
    return "The arguments are not a JSON object, as in {\"service\": \"billing\"}.";
  } catch (error) {
    return `The arguments are not JSON: ${error.message}`;
  }
}
