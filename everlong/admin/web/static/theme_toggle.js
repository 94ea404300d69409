// Theme button: the system's theme is the default, a click changes to the other one.
const KEY = "everlong-theme";

export function startTheme() {
  const button = document.querySelector("[data-theme-toggle]");
  if (!button) return;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const name = () => button.setAttribute("aria-label", isDark() ? "Use the light theme" : "Use the dark theme");
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem(KEY, theme);
    name();
  });
  system.addEventListener("change", name);
  name();
}
