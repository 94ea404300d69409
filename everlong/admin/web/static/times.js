// Localises times: the server sends ISO times, and the title keeps them.
const clock = { hour: "2-digit", minute: "2-digit" };
const date = { month: "short", day: "numeric" };
const FORMS = {
  full: { dateStyle: "medium", timeStyle: "medium" },
  date,
  day: { ...date, ...clock },
  minute: clock,
  second: { ...clock, second: "2-digit" },
};
const formats = Object.fromEntries(
  Object.entries(FORMS).map(([name, form]) => [name, new Intl.DateTimeFormat(undefined, form)]),
);

export function localise(root) {
  for (const element of root.querySelectorAll("time[datetime]:not([data-countdown])")) {
    const time = new Date(element.dateTime);
    const today = time.toDateString() === new Date().toDateString();
    setText(element, time, element.dataset.form || (today ? "second" : "day"));
  }
  // SVG has no time element.
  for (const element of root.querySelectorAll("[data-time]")) {
    setText(element, new Date(element.dataset.time), element.dataset.form);
  }
}

function setText(element, time, form) {
  if (Number.isNaN(time.valueOf())) return;
  const text = (element.dataset.before || "") + formats[form].format(time);
  if (element.textContent !== text) element.textContent = text;
}
