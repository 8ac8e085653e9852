// Fold code and contents, and sort and search long tables. A page is complete without this script.

const contents = document.querySelector(".contents details");
if (contents) {
  const besideText = matchMedia("(min-width: 75em)");
  const unfoldWhereItFits = () => { contents.open = besideText.matches; };
  unfoldWhereItFits();
  besideText.addEventListener("change", unfoldWhereItFits);
  contents.addEventListener("click", (event) => { if (event.target.closest("a")) unfoldWhereItFits(); });
}

const codeButton = document.querySelector(".all-code");
const foldedCode = [...document.querySelectorAll("details.code")];
codeButton.hidden = foldedCode.length === 0;
codeButton.addEventListener("click", () => {
  const unfold = foldedCode.some((fold) => !fold.open);
  for (const fold of foldedCode) fold.open = unfold;
  codeButton.textContent = unfold ? "Hide all code" : "Show all code";
});

function makeSortable(table) {
  const rows = [...table.tBodies[0].rows];
  const number = (row, at) => Number(row.cells[at].dataset.order ?? NaN);
  const text = (row, at) => row.cells[at].textContent;
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const order = head.ariaSort === "ascending" ? "descending" : "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.ariaSort = order;
      const sign = order === "ascending" ? 1 : -1;
      // Missing numbers come last in both orders.
      const compare = head.classList.contains("number")
        ? (a, b) => isNaN(number(a, at)) - isNaN(number(b, at)) || sign * (number(a, at) - number(b, at)) || 0
        : (a, b) => sign * text(a, at).localeCompare(text(b, at));
      table.tBodies[0].append(...rows.sort(compare));
    });
  });
  const search = document.createElement("input");
  Object.assign(search, { type: "search", placeholder: "Search this table", ariaLabel: "Search this table" });
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  table.before(search);
}
document.querySelectorAll("table.sortable").forEach(makeSortable);

// Make elements that scroll reachable by keyboard.
function setTabStops() {
  for (const box of document.querySelectorAll("main pre, main .listing, main table, .jp-OutputArea-output")) {
    if (box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX !== "visible") box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
for (const event of ["load", "resize"]) addEventListener(event, setTabStops);
document.addEventListener("toggle", setTabStops, true);
