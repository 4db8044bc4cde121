// Tables that change in place: a row keeps its element, focus and tick for as long as its key exists.
import { html } from "./charts.js";

// columns: [{class?, header?, cell: (row) → text or node; text that is the same is not written again}]
export function fill(table, rows, key, columns, empty) {
  const body = table.tBodies[0];
  // Headings are aligned like their numbers.
  columns.forEach((column, n) => table.tHead.rows[0].cells[n].classList.toggle("n", (column.class ?? "").split(" ").includes("n")));
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  if (!rows.length) {
    if (body.rows.length !== 1 || body.rows[0].dataset.key !== "") {
      body.replaceChildren(html("tr", { "data-key": "" }, html("td", { class: "empty", colspan: String(columns.length) }, empty)));
    }
    return;
  }
  rows.forEach((each, place) => {
    const name = String(key(each));
    let row = known.get(name);
    known.delete(name);
    // On a phone each row is a card that repeats the headings beside its values.
    const headings = [...table.tHead.rows[0].cells].map((each) => each.textContent);
    if (!row) row = html("tr", { "data-key": name }, ...columns.map((column, n) => html(column.header ? "th" : "td", { "data-label": headings[n], ...(column.header ? { scope: "row" } : {}) })));
    columns.forEach((column, n) => set(row.cells[n], column, each));
    if (body.rows[place] !== row) body.insertBefore(row, body.rows[place] ?? null);
  });
  for (const row of known.values()) row.remove();
}

function set(cell, column, row) {
  const level = column.level?.(row) ?? "";
  const name = `${column.class ?? ""} ${level}`.trim();
  if (cell.className !== name) cell.className = name;
  if (column.keep && cell.hasChildNodes()) return;
  const value = column.cell(row);
  if (value instanceof Node) {
    if (cell.firstElementChild?.outerHTML === value.outerHTML) return;
    // The button has been used and replaced: move the focus to its replacement.
    const focused = cell.contains(document.activeElement);
    cell.replaceChildren(value);
    if (focused) (value.matches("button") ? value : value.querySelector("button"))?.focus();
  } else if (cell.textContent !== String(value)) cell.textContent = value;
}
