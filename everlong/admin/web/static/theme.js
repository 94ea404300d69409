// Sets a chosen theme before the first paint, so that the other one does not flash.
const chosen = localStorage.getItem("everlong-theme");
if (chosen === "light" || chosen === "dark") {
  document.documentElement.dataset.theme = chosen;
}
