"use strict";
// Header buttons sort their table: numbers by data-value, the rest by what is written.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const header = button.closest("th");
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of header.parentElement.children) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = header.closest("table").tBodies[0];
    const key = (row) => {
      const cell = row.cells[header.cellIndex];
      return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
    };
    const compare = (a, b) =>
      typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(key(a), key(b)));
    body.append(...rows);
  });
}
// On paper nothing unfolds: what is folded is opened for as long as the page prints.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const each of opened) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of opened) each.open = false;
});
