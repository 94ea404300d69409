// Queries: the editor, the library, and results as a table or CSV.
import { send } from "./requests.js";

export function startQuery() {
  const form = document.querySelector("[data-query]");
  if (!form) return;
  const editor = form.elements.sql;
  const said = document.querySelector("[data-query-said]");
  const results = document.querySelector("[data-results]");
  const download = document.querySelector("[data-download]");
  const cancel = form.querySelector("[data-cancel]");
  const leftOut = document.querySelector("[data-left-out]");
  let last = null;
  let asking = null;

  async function run() {
    // Cancel the older query: its rows do not belong to the statement in the editor.
    asking?.abort();
    const { signal } = (asking = new AbortController());
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    cancel.disabled = false;
    said.className = "muted";
    said.textContent = "Running …";
    const began = performance.now();
    try {
      const found = await send(form.dataset.query, { sql: editor.value }, { signal });
      if (signal.aborted) return;
      last = found;
      results.replaceChildren(table(last));
      leftOut.replaceChildren(...(last.left_out || []).map(item));
      const seconds = ((performance.now() - began) / 1000).toFixed(2);
      const more = last.truncated ? ", and there are more" : "";
      said.textContent = `${last.rows.length} ${last.rows.length === 1 ? "row" : "rows"}${more}, in ${seconds} s.`;
    } catch (error) {
      if (signal.aborted) return;
      showNone();
      said.className = "error-text";
      said.textContent = error.message;
    }
    end();
  }

  function showNone() {
    last = null;
    const none = document.createElement("p");
    none.className = "empty";
    none.textContent = "No result.";
    results.replaceChildren(none);
    leftOut.replaceChildren();
  }

  function end() {
    download.disabled = !last || !last.rows.length;
    cancel.disabled = true;
    form.querySelector("[type=submit]").disabled = false;
  }

  // The server stops a query whose request is closed.
  cancel.addEventListener("click", () => {
    asking?.abort();
    showNone();
    said.textContent = "Cancelled.";
    end();
    editor.focus();
  });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    }
  });
  for (const button of document.querySelectorAll("[data-sql]")) {
    button.addEventListener("click", () => {
      editor.value = button.dataset.sql;
      run();
    });
  }
  download.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(last)], { type: "text/csv" }));
    link.download = "everlong-query.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

// Lists what the query could not read, since its rows lack it.
function item(text) {
  const element = document.createElement("li");
  element.textContent = text;
  return element;
}

function table(found) {
  const element = document.createElement("table");
  element.className = "results";
  const head = element.createTHead().insertRow();
  for (const [column, name] of found.columns.entries()) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = name;
    if (found.rows.some((row) => typeof row[column] === "number")) cell.className = "num";
    head.append(cell);
  }
  const body = element.createTBody();
  for (const row of found.rows) {
    const line = body.insertRow();
    for (const value of row) {
      const cell = line.insertCell();
      cell.textContent = shown(value);
      cell.title = cell.textContent;
      if (typeof value === "number") cell.className = "num";
    }
  }
  return element;
}

function shown(value) {
  if (value === null) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function csv(found) {
  const lines = [found.columns, ...found.rows].map((row) => row.map(cell).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

// CSV injection: a quote keeps spreadsheets from running untrusted text as a formula.
function cell(value) {
  let text = shown(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
