// Filter, sort and compare all measurements. The view is in the address
// (#database=postgres&direction=write&sort=-rows_per_s&open=...), so that a link restores it; nothing else is stored.

const FILTERS = {
  run: "Run", machine: "Machine", database: "Database", direction: "Direction", frame: "Frame", origin: "Origin",
  contract: "Class of write", table: "Table", network: "Network", rows: "Rows", study: "Study", status: "Status",
  type: "Carries the type",
};
const NAMES = {
  postgres: "PostgreSQL", clickhouse: "ClickHouse", polars: "Polars", batches: "record batches",
  none: "none (server only)", baseline: "server only", "": "none",
};
const TYPE_STATES = {
  exact: "exact", converted: "exact after a documented conversion", lost: "silently changed",
  refused: "refused with an error",
};
const LOSSLESS = ["exact", "converted"];
const ROWS_PER_STEP = 100;
// Rounds of two measurements are paired if the fields of RACE are equal; speeds are comparable if COMPARABLE are.
const RACE = ["run", "study", "database", "direction", "table", "network", "rows"];
const COMPARABLE = [...RACE, "contract", "variant"];

// --- data ----------------------------------------------------------------------------------------------------------

const packed = Uint8Array.from(atob(byId("data").textContent), (character) => character.charCodeAt(0));
const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
const { runs, columns, rows, techniques } = await new Response(unpacked).json();

const runByName = new Map(runs.map((run) => [run.name, run]));
const measurements = rows.map((values, id) => {
  const row = Object.fromEntries(columns.map((name, at) => [name, values[at]]));
  row.id = id;
  row.machine = runByName.get(row.run).machine;
  row.key = [row.database, row.direction, row.technique].join("/");
  row.about = techniques[row.key];
  row.type = Object.keys(row.about.types).filter((type) => LOSSLESS.includes(row.about.types[type]));
  // A link contains the technique and its place, so it stays valid when measurements are added.
  row.link = [row.run, row.study, row.key, row.table, row.network, row.variant, row.rows].join("|");
  row.words = [row.label, row.variant, row.technique, row.family, row.about.driver, row.status, row.reason, row.dtypes]
    .join(" ").toLowerCase();
  return row;
});
const byLink = new Map(measurements.map((row) => [row.link, row]));

const START = { filters: {}, search: "", sort: "-rows_per_s", open: "", compare: [] };
for (const name of RACE.filter((name) => name !== "rows")) START.filters[name] = measurements[0][name];
let view = START;
let rowLimit = ROWS_PER_STEP;

// --- text and elements ---------------------------------------------------------------------------------------------

function byId(id) {
  return document.getElementById(id);
}
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const nameOf = (value) => (Object.hasOwn(NAMES, value) ? NAMES[value] : String(value ?? ""));
const grouped = (value) => value.toLocaleString("en");
const rounded = (value) => (value === null ? "" : grouped(Number(value.toPrecision(3))));
const megabytes = (value) => (value === null ? "" : `${rounded(value / 1e6)} MB`);
function thousands(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)}M`;
  return value >= 1e4 ? `${Math.round(value / 1e3)}k` : grouped(Math.round(value));
}
const labelOf = (row) => (row.variant ? `${row.label}, ${row.variant}` : row.label);
const placeOf = (row) => [row.table, row.network, row.variant, `${grouped(row.rows)} rows`].filter(Boolean).join(", ");
const rangeOf = (row) => `${thousands(row.slowest)} to ${thousands(row.fastest)}${row.unstable ? ", unstable" : ""}`;
const outcomeOf = ({ rows_per_s: speed, status, reason }) =>
  speed === null ? `${status}: ${reason}` : `${thousands(speed)} rows/s`;
// The parts of a measurement's place that no filter fixes.
function openPlaceOf(row) {
  const open = RACE.filter((name) => !view.filters[name] && name !== "rows");
  return [`${grouped(row.rows)} rows`, ...open.map((name) => nameOf(row[name]))].join(", ");
}
const differing = (names, compared) => names.filter((name) => new Set(compared.map((row) => row[name])).size > 1);
const titleOf = (name) => (FILTERS[name] ?? name).toLowerCase();

// --- table ---------------------------------------------------------------------------------------------------------

const COLUMNS = [
  { name: "label", title: "Technique", value: labelOf, content: techniqueCell },
  { name: "origin", title: "Origin", value: (row) => [nameOf(row.origin), row.contract].filter(Boolean).join(", ") },
  { name: "rows_per_s", title: "Rows/s", numeric: true, content: speedCell },
  { name: "ratio", title: "To best published", numeric: true, content: (row) => row.ratio_text },
  { name: "cpu_s", title: "CPU s / M rows", numeric: true, content: (row) => rounded(row.cpu_s) },
  { name: "memory_bytes", title: "Memory", numeric: true, content: (row) => megabytes(row.memory_bytes) },
  { name: "wire_bytes", title: "Wire", numeric: true, content: (row) => megabytes(row.wire_bytes) },
  { name: "dtypes", title: "Dtypes", value: (row) => row.dtypes ?? "" },
  { name: "place", title: "Where", value: openPlaceOf },
];
const valueOf = (column, row) => (column.value ?? ((row) => row[column.name]))(row);
const sortColumn = () => COLUMNS.find((column) => column.name === view.sort.replace("-", "")) ?? COLUMNS[2];

function techniqueCell(row) {
  const open = () => update({ open: row.link }, "pushState");
  const name = element("button", { type: "button", class: "name", "data-open": row.id, onclick: open }, labelOf(row));
  const place = element("span", { class: "narrow" }, openPlaceOf(row));
  return element("div", {}, name, element("br"), element("small", {}, row.technique), place);
}
function speedCell(row) {
  if (row.rows_per_s === null) return element("span", { class: row.status }, outcomeOf(row));
  const bar = `--median: ${row.rows_per_s}; --low: ${row.slowest}; --high: ${row.fastest}`;
  return element("div", {}, `${thousands(row.rows_per_s)} `, element("small", {}, `(${rangeOf(row)})`),
    element("span", { class: "bar", style: bar, "aria-hidden": "true" }, element("i"), element("b")));
}
function tableRow(row) {
  const toggle = ({ target }) => {
    const others = view.compare.filter((link) => link !== row.link);
    update({ compare: target.checked ? [...others, row.link].slice(-2) : others });
    document.querySelector(`[data-pair="${row.id}"]`)?.focus();
  };
  const name = `compare ${labelOf(row)}, ${placeOf(row)}`;
  const box = element("input", { type: "checkbox", "data-pair": row.id, "aria-label": name, onchange: toggle });
  box.checked = view.compare.includes(row.link);
  const cells = COLUMNS.map((column) =>
    element("td", { class: column.name }, (column.content ?? column.value)(row)));
  return element("tr", { class: box.checked ? "chosen" : "" }, element("td", {}, box), ...cells);
}

const heads = COLUMNS.map((column) => {
  const sort = () => {
    const [first, second] = column.numeric ? ["-", ""] : ["", "-"];
    update({ sort: (view.sort === first + column.name ? second : first) + column.name }, "pushState");
  };
  const button = element("button", { type: "button", onclick: sort }, column.title);
  return element("th", { class: column.name, scope: "col" }, button);
});
const body = element("tbody");
const headRow = element("tr", {}, element("th", { scope: "col" }, "Pair"), ...heads);
byId("measurements").append(element("thead", {}, headRow), body);
byId("more").addEventListener("click", () => {
  rowLimit += ROWS_PER_STEP;
  draw();
});

function matching() {
  const words = view.search.toLowerCase().split(/\s+/);
  const column = sortColumn();
  const order = (a, b) => {
    const [first, second] = [valueOf(column, a), valueOf(column, b)];
    if (first === null || second === null) return (first === null) - (second === null); // missing values come last
    const ascending = column.numeric ? first - second : first.localeCompare(second, "en");
    return view.sort.startsWith("-") ? -ascending : ascending;
  };
  return measurements.filter((row) => fits(row) && words.every((word) => row.words.includes(word))).sort(order);
}

// --- filters -------------------------------------------------------------------------------------------------------

const form = byId("filters");
form.addEventListener("submit", (event) => event.preventDefault());
const search = element("input", { type: "search", name: "search", oninput: () => update({ search: search.value }) });
// Telephones show two columns, and this list sorts by all.
const sorting = element("select", { name: "sort", onchange: () => update({ sort: sorting.value }, "pushState") });
for (const { title, name, numeric } of COLUMNS)
  sorting.append(element("option", { value: name }, `${title}, ${numeric ? "lowest first" : "A to Z"}`),
    element("option", { value: `-${name}` }, `${title}, ${numeric ? "highest first" : "Z to A"}`));
const selects = {};
for (const [name, title] of Object.entries(FILTERS)) {
  selects[name] = element("select", { name, onchange: (event) => filter(name, event.target.value) });
  form.append(element("label", {}, title, selects[name]));
}
form.append(element("label", {}, "Search", search), element("label", { class: "narrow" }, "Sort", sorting));

const valuesOf = (row, name) => [row[name]].flat().map(String);
function fits(row, filters = view.filters, ...ignored) {
  const names = Object.keys(filters).filter((name) => !ignored.includes(name));
  return names.every((name) => valuesOf(row, name).includes(filters[name]));
}
function filter(name, value) {
  const { [name]: _, ...filters } = view.filters;
  if (value !== "any") filters[name] = value;
  // A study measures one direction or one question: if it lacks the chosen value, switch to a study that has it.
  if (filters.study && name !== "study" && !measurements.some((row) => fits(row, filters)))
    filters.study = measurements.find((row) => fits(row, filters, "study"))?.study ?? filters.study;
  update({ filters }, "pushState");
}
// A list has the values that fit the other filters, in any study, with their numbers of measurements.
function fillSelect(name) {
  const chosen = view.filters[name] ?? "any";
  const counts = new Map(chosen === "any" ? [] : [[chosen, 0]]);
  for (const row of measurements.filter((row) => fits(row, view.filters, name, "study")))
    for (const value of valuesOf(row, name))
      counts.set(value, (counts.get(value) ?? 0) + fits(row, view.filters, name));
  const order = name === "rows" ? (a, b) => a - b : undefined;
  const options = [...counts.keys()].sort(order).map((value) => {
    const title = name === "rows" ? grouped(Number(value)) : nameOf(value);
    return element("option", { value }, counts.get(value) ? `${title} (${counts.get(value)})` : title);
  });
  selects[name].replaceChildren(element("option", { value: "any" }, "any"), ...options);
  selects[name].value = chosen;
  selects[name].classList.toggle("chosen", chosen !== "any");
}

// --- view and address ----------------------------------------------------------------------------------------------

function address() {
  const words = new URLSearchParams({ ...view.filters, sort: view.sort });
  if (view.search) words.set("search", view.search);
  if (view.open) words.set("open", view.open);
  for (const link of view.compare) words.append("compare", link);
  return `#${words}`;
}
function viewFromAddress() {
  if (!location.hash.includes("=")) return START;
  const words = new URLSearchParams(location.hash.slice(1));
  return {
    filters: Object.fromEntries([...words].filter(([name, value]) => name in FILTERS && value !== "any")),
    search: words.get("search") ?? "", sort: words.get("sort") ?? START.sort, open: words.get("open") ?? "",
    compare: [...new Set(words.getAll("compare"))].filter((link) => byLink.has(link)).slice(0, 2),
  };
}
// With `pushState`, the browser's Back button undoes the change.
function update(changes, method = "replaceState") {
  view = { ...view, ...changes };
  if (address() !== location.hash) history[method](null, "", address());
  rowLimit = ROWS_PER_STEP;
  draw();
}
addEventListener("hashchange", () => {
  // A link to a heading of this page keeps the view.
  if (location.hash && !location.hash.includes("=")) history.replaceState(null, "", address());
  else view = viewFromAddress();
  draw();
});

function draw() {
  Object.keys(FILTERS).forEach(fillSelect);
  if (search.value !== view.search) search.value = view.search;
  sorting.value = view.sort;
  for (const head of heads) head.removeAttribute("aria-sort");
  const order = view.sort.startsWith("-") ? "descending" : "ascending";
  heads[COLUMNS.indexOf(sortColumn())].setAttribute("aria-sort", order);
  const shown = matching();
  byId("scroll").style.setProperty("--max", Math.max(...shown.map((row) => row.fastest ?? 0), 1));
  body.replaceChildren(...shown.slice(0, rowLimit).map(tableRow));
  byId("more").hidden = shown.length <= rowLimit;
  const apart = differing(COMPARABLE, shown).map(titleOf).join(", ");
  byId("count").textContent = !shown.length ? "No measurement matches: set a list to “any”, or reset."
    : `${shown.length} of ${measurements.length} measurements. Bars are medians of passes; thin lines reach from the ` +
      `slowest to the fastest pass. ${apart && `These differ in ${apart}: compare speeds where that is the same.`}`;
  const chosen = view.compare.length;
  byId("compare").disabled = chosen < 2;
  byId("compare").textContent = ["Compare: choose two", "Compare: choose one more", "Compare the two"][chosen];
  drawDialog();
}

// --- details of one technique, and comparison of two ---------------------------------------------------------------

const dialog = byId("detail");
dialog.addEventListener("close", () => {
  const { id } = byLink.get(view.open) ?? {};
  if (view.open) update({ open: "" });
  document.querySelector(`[data-open="${id}"]`)?.focus();
});
byId("compare").addEventListener("click", () => update({ open: "pair" }, "pushState"));

function drawDialog() {
  if (!view.open) return dialog.close();
  const opened = (view.open === "pair" ? view.compare : [view.open]).map((link) => byLink.get(link));
  const content = !opened[0] ? [element("h2", { id: "detail-title" }, "This page has no such measurement")]
    : opened[1] ? comparison(...opened) : details(opened[0]);
  const close = element("button", { type: "button", class: "close", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(close, element("span", { role: "status", class: "status unseen" }), ...content);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}
function definitions(values) {
  const lines = Object.entries(values).filter(([, value]) => value);
  return element("dl", {}, ...lines.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}
function facts(row) {
  const { started, commit, machine } = runByName.get(row.run);
  return definitions({
    where: `${nameOf(row.database)} ${row.direction}, ${placeOf(row)}`,
    run: [row.run, started, commit && `commit ${commit}`, machine].filter(Boolean).join(", "),
    outcome: outcomeOf(row), range: row.rounds.length && `${rangeOf(row)}; ${row.rounds.length} passes`,
    "ratio to the best published": row.ratio_text, "client CPU, s per million rows": rounded(row.cpu_s),
    "growth of memory": megabytes(row.memory_bytes), "bytes on the wire": megabytes(row.wire_bytes), dtypes: row.dtypes,
    origin: `${nameOf(row.origin)}; ${row.family}; ${row.about.driver}; frame: ${nameOf(row.frame)}`,
    "class of write": row.contract, ...row.about.terms, requirements: row.about.asks?.join("; "),
  });
}
function codeOf(row) {
  const { code, module } = row.about;
  if (!code) return [element("p", {}, "Its code is in its study, or the technique is no longer in this checkout.")];
  return [
    element("p", {}, element("small", {}, `${row.technique} in ${module}, as it is in this checkout.`)),
    element("button", { type: "button", onclick: (event) => copy(code, event.target) }, "Copy code"),
    element("pre", { tabindex: "0", role: "region", "aria-label": `code of ${row.technique}` }, code),
  ];
}
function details(row) {
  const types = Object.entries(row.about.types);
  const typesIn = (state) => types.filter(([, found]) => found === state).map(([type]) => type).join(", ");
  const elsewhere = measurements.filter((other) => other.key === row.key && other !== row);
  const line = (other) => [placeOf(other), other.run, outcomeOf(other), other.ratio_text].filter(Boolean).join("; ");
  return [
    element("h2", { id: "detail-title" }, labelOf(row)), element("p", {}, row.about.about ?? ""), facts(row),
    element("h3", {}, "Types that it carries"),
    definitions(Object.fromEntries(Object.entries(TYPE_STATES).map(([state, title]) => [title, typesIn(state)]))),
    element("h3", {}, "Its other measurements"),
    element("ul", {}, ...elsewhere.map((other) => element("li", {}, line(other)))),
    element("h3", {}, "Code"), ...codeOf(row),
  ];
}
function comparison(first, second) {
  const half = (row, which) => {
    const title = `${which}: ${labelOf(row)}`;
    return element("section", { "aria-label": title }, element("h3", {}, title), facts(row), ...codeOf(row));
  };
  const apart = differing([...COMPARABLE, "machine"], [first, second])
    .map((name) => `${titleOf(name)} (${nameOf(first[name])}; ${nameOf(second[name])})`).join(", ");
  return [
    element("h2", { id: "detail-title" }, "Comparison of two"),
    element("p", {}, `${ratioText(first, second)} ${apart && `They differ in ${apart}.`}`),
    element("div", { class: "pair" }, half(first, "First"), half(second, "Second")),
  ];
}
function ratioText(first, second) {
  if (first.rows_per_s === null || second.rows_per_s === null) return "There is no ratio: one of them has no speed.";
  const [fast, slow] = first.rows_per_s >= second.rows_per_s ? [first, second] : [second, first];
  const name = (row) => `${row === first ? "first" : "second"} (${labelOf(row)})`;
  const text = (ratio) => `The ${name(fast)} has ${ratio.toFixed(2)}x the rows/s of the ${name(slow)}`;
  const slowRounds = new Map(slow.rounds);
  const ratios = fast.rounds.filter(([round]) => slowRounds.has(round))
    .map(([round, speed]) => speed / slowRounds.get(round)).sort((a, b) => a - b);
  if (!ratios.length || differing(RACE, [first, second]).length)
    return `${text(fast.rows_per_s / slow.rows_per_s)}: these are medians of different places, runs or studies.`;
  const half = (ratios.length - 1) / 2;
  const median = (ratios[Math.floor(half)] + ratios[Math.ceil(half)]) / 2;
  const overlap = ratios[0] > 1 ? "" : " The range includes 1: this does not show which is faster.";
  return `${text(median)} (${ratios[0].toFixed(2)}x to ${ratios.at(-1).toFixed(2)}x in ${ratios.length} rounds): the ` +
    `median and the range of per-round ratios.${overlap}`;
}

// --- copies --------------------------------------------------------------------------------------------------------

// The cells of the matching measurements, without empty columns.
function exportedCells() {
  const names = ["label", ...columns.filter((name) => !["label", "rounds", "ratio"].includes(name)), "machine"];
  const shown = matching();
  const filled = names.filter((name) => shown.some((row) => String(row[name] ?? "")));
  return [filled, ...shown.map((row) => filled.map((name) => String(row[name] ?? "")))];
}
function asCsv() {
  const quoted = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  return exportedCells().map((line) => `${line.map(quoted).join(",")}\n`).join("");
}
function asMarkdown() {
  const escaped = (value) => value.replaceAll("\\", "\\\\").replaceAll("|", "\\|").replace(/[\r\n]+/g, " ");
  const [head, ...lines] = exportedCells();
  return [head, head.map(() => "---"), ...lines].map((line) => `| ${line.map(escaped).join(" | ")} |\n`).join("");
}
async function copy(content, button) {
  const title = (button.dataset.title ??= button.textContent);
  const status = (button.closest("dialog") ?? document).querySelector(".status");
  status.textContent = "";
  try {
    await navigator.clipboard.writeText(content);
    button.textContent = status.textContent = "Copied";
  } catch {
    // Some browsers deny files access to the clipboard: show the text selected, for Ctrl+C.
    const area = element("textarea", { rows: "6", cols: "60", "aria-label": "text to copy" });
    area.value = content;
    if (button.nextElementSibling?.matches("textarea")) button.nextElementSibling.remove();
    button.after(area);
    area.select();
  }
  setTimeout(() => (button.textContent = title), 1500);
}
const linkToView = () => location.href.split("#")[0] + address();
for (const [id, content] of Object.entries({ "copy-link": linkToView, "copy-csv": asCsv, "copy-markdown": asMarkdown }))
  byId(id).addEventListener("click", (event) => copy(content(), event.target));
byId("reset").addEventListener("click", () => update(START, "pushState"));

byId("app").hidden = false;
view = viewFromAddress();
draw();
