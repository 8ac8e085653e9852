// Everything can be reached without this: it opens and closes what is folded.
const contents = document.querySelector(".contents details");
if (contents) {
  const beside = matchMedia("(min-width: 75em)");
  const fit = () => { contents.open = beside.matches; };
  fit();
  beside.addEventListener("change", fit);
  contents.addEventListener("click", (event) => { if (event.target.closest("a")) fit(); });
}
const button = document.querySelector(".all-code");
const folds = [...document.querySelectorAll("details.code")];
button.hidden = folds.length === 0;
button.addEventListener("click", () => {
  const open = folds.some((fold) => !fold.open);
  for (const fold of folds) fold.open = open;
  button.textContent = open ? "Hide all code" : "Show all code";
});
// What scrolls can be reached by keyboard, and is told apart by its name; what fits is no stop on the way.
const reachable = () => {
  for (const one of document.querySelectorAll("main pre, main .listing, main .dt-layout-cell, main table")) {
    const scrolls = one.scrollWidth > one.clientWidth && getComputedStyle(one).overflowX !== "visible";
    if (scrolls) one.tabIndex = 0;
    else if (one.getAttribute("tabindex") === "0") one.removeAttribute("tabindex");
  }
};
// Tables that can be sorted are wider than they were before.
for (const event of ["load", "resize"]) addEventListener(event, reachable);
document.addEventListener("toggle", reachable, true);
