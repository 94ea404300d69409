// Queries: the editor, the library, and results as a table or CSV.
import { send } from "./requests.js";

export function startQuery() {
  const form = document.querySelector("[data-query]");
  if (!form) return;
  const editor = form.elements.sql;
  const status = document.querySelector("[data-query-status]");
  const results = document.querySelector("[data-results]");
  const download = document.querySelector("[data-download]");
  const cancel = form.querySelector("[data-cancel]");
  const leftOut = document.querySelector("[data-left-out]");
  let last = null;
  let running = null;

  async function run() {
    // Cancel the older query: its rows do not belong to the statement in the editor.
    running?.abort();
    const { signal } = (running = new AbortController());
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    cancel.disabled = false;
    status.className = "muted";
    status.textContent = "Running …";
    const began = performance.now();
    try {
      const found = await send(form.dataset.query, { sql: editor.value }, { signal });
      if (signal.aborted) return;
      last = found;
      results.replaceChildren(buildTable(last));
      leftOut.replaceChildren(...(last.left_out || []).map(makeItem));
      const seconds = ((performance.now() - began) / 1000).toFixed(2);
      const more = last.truncated ? ", and there are more" : "";
      status.textContent = `${last.rows.length} ${last.rows.length === 1 ? "row" : "rows"}${more}, in ${seconds} s.`;
    } catch (error) {
      if (signal.aborted) return;
      showEmpty();
      status.className = "error-text";
      status.textContent = error.message;
    }
    end();
  }

  function showEmpty() {
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
    running?.abort();
    showEmpty();
    status.textContent = "Cancelled.";
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
    link.href = URL.createObjectURL(new Blob([formatCsv(last)], { type: "text/csv" }));
    link.download = "everlong-query.csv";
    link.click();
    URL.revokeObjectURL(link.href);
  });
}

// Lists what the query could not read, since its rows lack it.
function makeItem(text) {
  const element = document.createElement("li");
  element.textContent = text;
  return element;
}

function buildTable(found) {
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
      cell.textContent = formatValue(value);
      cell.title = cell.textContent;
      if (typeof value === "number") cell.className = "num";
    }
  }
  return element;
}

function formatValue(value) {
  if (value === null) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function formatCsv(found) {
  const lines = [found.columns, ...found.rows].map((row) => row.map(formatCell).join(","));
  return `${lines.join("\r\n")}\r\n`;
}

// CSV injection: a quote keeps spreadsheets from running untrusted text as a formula.
function formatCell(value) {
  let text = formatValue(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
