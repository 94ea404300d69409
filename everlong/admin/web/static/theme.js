// Runs before the page is painted, so that a chosen theme does not flash. "system" is no choice.
const chosen = localStorage.getItem("everlong-theme");
if (chosen === "light" || chosen === "dark") {
  document.documentElement.dataset.theme = chosen;
}
