// Columns and saved views of the list of threads. Both are URLs: the server renders what the URL says.
// This browser remembers the columns and the named views; a link shares either with another person.
const COLUMNS = "everlong-columns";
const VIEWS = "everlong-views";
const VIEWS_MAX = 30;
const NAME_CHARS_MAX = 60;

export function startViews() {
  const list = document.getElementById("threads");
  useColumns(list);
  if (!list) return;
  const columns = document.querySelector("form[data-columns]");
  columns.addEventListener("formdata", (event) => joinColumns(columns, event.formData));
  document.querySelector("[data-columns-reset]").addEventListener("click", () => localStorage.removeItem(COLUMNS));
  new Views(document.querySelector("[data-views]"));
  for (const menu of document.querySelectorAll("[data-menu]")) closeOutside(menu);
}

// Returns the columns that this browser remembers. Anything else in its storage is ignored.
function readColumns() {
  const text = localStorage.getItem(COLUMNS) || "";
  return /^[a-z,]{1,200}$/.test(text) ? text : "";
}

// Adds the remembered columns to links to the list, and to the list itself if its URL has none.
function useColumns(list) {
  const columns = readColumns();
  if (!columns) return;
  for (const link of document.querySelectorAll('a[href="/"]')) link.href = `/?columns=${columns}`;
  const url = new URL(location.href);
  if (!list || url.searchParams.has("columns")) return;
  url.searchParams.set("columns", columns);
  location.replace(url.href.replaceAll("%2C", ","));
}

// The form repeats its field for each box; the URL has one list, and none for the default columns.
function joinColumns(form, data) {
  const boxes = [...form.querySelectorAll("input[type=checkbox]")];
  const names = boxes.filter((box) => box.checked).map((box) => box.value).join(",") || "none";
  data.delete("columns");
  if (boxes.every((box) => box.checked === box.hasAttribute("data-default"))) {
    localStorage.removeItem(COLUMNS);
    return;
  }
  localStorage.setItem(COLUMNS, names);
  data.set("columns", names);
}

class Views {
  constructor(menu) {
    this.menu = menu;
    this.list = menu.querySelector("[data-views-list]");
    this.form = menu.querySelector("form");
    menu.hidden = false;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.save(this.form.elements.name.value.trim());
    });
    this.list.addEventListener("click", (event) => {
      const button = event.target.closest("[data-remove]");
      if (button) this.remove(button.dataset.remove);
    });
    this.show();
  }

  write(views) {
    localStorage.setItem(VIEWS, JSON.stringify(views));
    this.show();
  }

  save(name) {
    const others = readViews().filter((view) => view.name !== name);
    const problem = this.menu.querySelector("[data-error]");
    problem.textContent = "";
    if (others.length >= VIEWS_MAX) {
      problem.textContent = `At most ${VIEWS_MAX} views are kept. Remove one first.`;
      return;
    }
    const query = new URLSearchParams(location.search);
    for (const place of ["offset", "cursor"]) query.delete(place);
    const view = { name: name.slice(0, NAME_CHARS_MAX), query: `?${query}` };
    this.write([...others, view].sort((a, b) => a.name.localeCompare(b.name)));
    this.form.reset();
  }

  remove(name) {
    this.write(readViews().filter((view) => view.name !== name));
    this.menu.querySelector("summary").focus();
  }

  show() {
    const items = readViews().map(({ name, query }) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = `/${query}`;
      link.textContent = name;
      const remove = document.createElement("button");
      remove.type = "button";
      remove.className = "quiet";
      remove.dataset.remove = name;
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove the view ${name}`);
      item.append(link, remove);
      return item;
    });
    this.menu.querySelector("[data-views-empty]").hidden = items.length > 0;
    this.list.replaceChildren(...items);
  }
}

// Returns the saved views: name and query. Anything else in the browser's storage is ignored.
export function readViews() {
  try {
    const found = JSON.parse(localStorage.getItem(VIEWS) || "[]");
    return found.filter((view) => typeof view.name === "string" && isQuery(view.query)).slice(0, VIEWS_MAX);
  } catch {
    return [];
  }
}

// A view is a query of the list, and never another address.
function isQuery(text) {
  return typeof text === "string" && text.startsWith("?") && text.length < 2000;
}

function closeOutside(menu) {
  document.addEventListener("click", (event) => {
    if (menu.open && !menu.contains(event.target)) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}
