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
