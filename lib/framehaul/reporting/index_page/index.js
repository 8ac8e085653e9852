// The view is in the address: #database=postgres&direction=write&sort=-speed&open=... Nothing is kept elsewhere.

const FILTERS = {
  run: "Run", machine: "Machine", database: "Database", direction: "Direction", frame: "Frame", origin: "Origin",
  contract: "Class of write", table: "Table", road: "Network", rows: "Rows", study: "Study", status: "Status", type: "Carries the type",
};
const WORDS = {
  postgres: "PostgreSQL", clickhouse: "ClickHouse", polars: "Polars", batches: "record batches",
  none: "none: the server alone", baseline: "the server alone", "": "none",
};
const STATES = {
  exact: "exact", converted: "exact after a stated conversion", lost: "lost silently", refused: "refused with an error",
};
const CARRIED = ["exact", "converted"];
const COMPARED = 2;

const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (one) => one.charCodeAt(0));
const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
const { runs, columns, rows, techniques, blocks } = await new Response(stream).json();

const machines = new Map(runs.map((run) => [run.name, run]));
const measurements = rows.map((values, id) => {
  const one = Object.fromEntries(columns.map((name, at) => [name, values[at]]));
  one.id = id;
  one.key = [one.database, one.direction, one.technique].join("/");
  one.of = techniques[one.key];
  one.machine = machines.get(one.run).machine;
  // What a link names: the technique and its place, whatever else was measured since.
  one.link = [one.run, one.study, one.key, one.table, one.road, one.variant, one.rows].join("|");
  return one;
});
const byLink = new Map(measurements.map((one) => [one.link, one]));

const [{ run, study, database, direction, table: usual, road }] = measurements;
const START = { run, study, database, direction, table: usual, road };
const view = { filters: {}, search: "", sort: "-speed", open: "", compare: [] };

// --- small helpers -------------------------------------------------------------------------------------------------

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}
const text = (value) => WORDS[value] ?? String(value);
const escaped = (value) => el("i", {}, String(value ?? "")).innerHTML.replaceAll('"', "&quot;");
const grouped = (value) => (value === null ? "" : value.toLocaleString("en"));
const digits = (value, unit = "") => (value === null ? "" : `${Number(value.toPrecision(3)).toLocaleString("en")}${unit}`);
const megabytes = (value) => (value === null ? "" : digits(value / 1e6, " MB"));
function speed(value) {
  if (value === null) return "";
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)}M`;
  return value >= 1e4 ? `${Math.round(value / 1e3)}k` : grouped(Math.round(value));
}
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
const label = (one) => (one.variant ? `${one.label}, ${one.variant}` : one.label);
const place = (one) => [one.table, one.road, `${grouped(one.rows)} rows`].join(", ");
function unsaid(one) {
  // Of where it was measured, what the filters do not say already.
  const parts = { database: `${text(one.database)} ${one.direction}`, table: one.table, road: one.road, run: one.run };
  const open = Object.keys(parts).filter((name) => view.filters[name] === undefined);
  return [`${grouped(one.rows)} rows`, ...open.map((name) => parts[name])];
}
const outcome = (one) => (one.status === "ok" ? one.dtypes : `${one.status}: ${one.reason ?? ""}`);

// --- the table -----------------------------------------------------------------------------------------------------

const COLUMNS = [
  {
    title: "Pair", name: "pair", orderable: false, searchable: false, data: null,
    render: (one) =>
      `<input type="checkbox" data-pair="${one.id}" aria-label="compare ${escaped(label(one))}, ${escaped(place(one))}"` +
      `${view.compare.includes(one.link) ? " checked" : ""}>`,
  },
  {
    title: "Technique", name: "technique", className: "technique", data: null, export: (one) => `${label(one)} (${one.technique})`,
    render: (one, type) =>
      type === "display"
        ? `<button type="button" class="name" data-open="${one.id}">${escaped(label(one))}</button>` +
          `<br><small>${escaped(one.technique)}</small>`
        : [label(one), one.technique, one.family, one.of.driver, one.reason ?? ""].join(" "),
  },
  {
    title: "Origin", name: "origin", className: "wide", data: null, export: (one) => text(one.origin),
    render: (one) => escaped([text(one.origin), one.contract].filter(Boolean).join(", ")),
  },
  {
    title: "Rows/s", name: "speed", className: "speed", data: null, export: (one) => one.speed ?? one.status,
    type: "num",
    render: (one, type) => {
      if (type !== "display") return one.speed ?? -1;
      if (one.speed === null)
        return `<span class="${escaped(one.status)}"><strong>${escaped(one.status)}</strong> ${escaped(one.reason)}</span>`;
      const range = `${speed(one.slowest)} to ${speed(one.fastest)}${one.unstable ? ", unstable" : ""}`;
      const bar = `--v:${one.speed};--low:${one.slowest};--high:${one.fastest}`;
      return `${speed(one.speed)} <small>(${range})</small><span class="bar" style="${bar}" aria-hidden="true"><i></i><b></b></span>`;
    },
  },
  {
    title: "To best published", name: "ratio", data: null, className: "number wide", type: "num",
    export: (one) => one.ratio_text,
    render: (one, type) => {
      if (type !== "display") return one.ratio ?? -1;
      const [ratio, ends] = one.ratio_text.split(" (");
      return escaped(ratio) + (ends ? `<br><small>${escaped(ends.replace(")", ""))}</small>` : "");
    },
  },
  number("CPU s / M rows", "cpu", (one) => one.cpu, digits),
  number("Memory", "memory", (one) => one.memory, megabytes),
  number("Wire", "wire", (one) => one.wire, megabytes),
  {
    title: "Dtypes", name: "dtypes", className: "wide", data: null, export: (one) => one.dtypes,
    render: (one) => escaped(one.status === "ok" ? one.dtypes : ""),
  },
  {
    title: "Where", name: "place", className: "wide", data: null, export: (one) => `${place(one)}, ${one.run}`,
    render: (one) => escaped(unsaid(one).join(", ")),
  },
];

function number(title, name, value, form) {
  return {
    title, name, data: null, className: "number wide", type: "num", export: (one) => value(one) ?? "",
    render: (one, type) => (type === "display" ? form(value(one)) : (value(one) ?? -1)),
  };
}

document.getElementById("app").hidden = false;
const table = new DataTable("#measurements", {
  columns: COLUMNS, deferRender: true, autoWidth: false, pageLength: 100, lengthChange: false,
  order: [[3, "desc"]], layout: { topStart: null, topEnd: null, bottomStart: null, bottomEnd: "paging" },
  rowCallback: (row, one) => row.classList.toggle("chosen", view.compare.includes(one.link)),
});
const shown = () => table.rows({ search: "applied", order: "applied" }).data().toArray();

function fits(one, ...without) {
  return Object.entries(view.filters).every(([name, wanted]) => {
    if (without.includes(name)) return true;
    if (name === "type") return CARRIED.includes(one.of.types[wanted]);
    return String(one[name]) === wanted;
  });
}
table.search.fixed("filters", (_, one) => fits(one));
table.rows.add(measurements);

// --- filters -------------------------------------------------------------------------------------------------------

const form = document.getElementById("filters");
form.addEventListener("submit", (event) => event.preventDefault());
const search = el("input", { type: "search", name: "search", oninput: () => change({ search: search.value }) });
const selects = Object.fromEntries(
  Object.keys(FILTERS).map((name) => [
    name, el("select", { name, onchange: (event) => filter(name, event.target.value) }),
  ]),
);
form.append(...Object.entries(FILTERS).map(([name, title]) => el("label", {}, title, selects[name])));
form.append(el("label", {}, "Search", search));

function filter(name, value) {
  view.filters = { ...view.filters };
  delete view.filters[name];
  if (value !== "any") view.filters[name] = value;
  // A study measures one thing: who asks for another one means another study.
  const { study } = view.filters;
  if (study !== undefined && name !== "study" && !measurements.some((one) => fits(one)))
    view.filters.study = measurements.find((one) => fits(one, "study"))?.study ?? study;
  change({});
}

function offered(name) {
  // What a list offers is what the others leave, whichever study it is of: nobody chooses what is not there.
  const counts = new Map();
  for (const one of measurements.filter((one) => fits(one, name, "study")))
    for (const value of name === "type" ? carriedBy(one) : [String(one[name])])
      counts.set(value, (counts.get(value) ?? 0) + (fits(one, name) ? 1 : 0));
  if (view.filters[name] !== undefined && !counts.has(view.filters[name])) counts.set(view.filters[name], 0);
  const order = name === "rows" ? (a, b) => a - b : name === "run" ? () => 0 : undefined;
  return [...counts.keys()].sort(order).map((value) => [value, counts.get(value)]);
}
function carriedBy(one) {
  return Object.keys(one.of.types).filter((type) => CARRIED.includes(one.of.types[type]));
}

function fill(name) {
  const chosen = view.filters[name] ?? "any";
  const options = offered(name).map(([value, count]) => {
    const words = name === "rows" ? grouped(Number(value)) : text(value);
    return el("option", { value, selected: value === chosen }, count ? `${words} (${count})` : words);
  });
  selects[name].replaceChildren(el("option", { value: "any", selected: chosen === "any" }, "any"), ...options);
  selects[name].value = chosen;
  selects[name].classList.toggle("chosen", chosen !== "any");
}

// --- the view and the address --------------------------------------------------------------------------------------

function address() {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(view.filters)) words.set(name, value);
  if (view.search) words.set("search", view.search);
  if (view.sort !== "-speed") words.set("sort", view.sort);
  if (view.open) words.set("open", view.open);
  for (const link of view.compare) words.append("compare", link);
  return `#${words}`;
}

function read() {
  const given = location.hash.slice(1);
  if (!given.includes("=")) return { filters: START, search: "", sort: "-speed", open: "", compare: [] };
  const words = new URLSearchParams(given);
  const filters = {};
  for (const name of Object.keys(FILTERS)) if (words.has(name)) filters[name] = words.get(name);
  return {
    filters, search: words.get("search") ?? "", sort: words.get("sort") ?? "-speed", open: words.get("open") ?? "",
    compare: words.getAll("compare").filter((link) => byLink.has(link)).slice(0, COMPARED),
  };
}

function change(what, write = true) {
  Object.assign(view, what);
  if (write) history.replaceState(null, "", address());
  draw();
}

let drawing = false, drawn = false;
function draw() {
  Object.keys(FILTERS).forEach(fill);
  if (search.value !== view.search) search.value = view.search;
  const name = view.sort.replace(/^-/, "");
  const at = Math.max(COLUMNS.findIndex((column) => column.name === name), 1);
  drawing = true;
  table.order([at, view.sort.startsWith("-") ? "desc" : "asc"]).search(view.search);
  // Cells say what the filters do not, and who is compared.
  if (drawn) table.rows().invalidate();
  table.draw();
  [drawing, drawn] = [false, true];
  const found = shown();
  const fastest = Math.max(...found.map((one) => one.fastest ?? 0), 1);
  document.getElementById("scroll").style.setProperty("--max", fastest);
  const several = (of) => new Set(found.map((one) => JSON.stringify(of(one)))).size > 1;
  document.getElementById("count").textContent = !found.length
    ? "Nothing fits: set a list to “any”, or reset."
    : `${found.length} of ${measurements.length} measurements. ` +
      (several((one) => [one.run, one.study, one.database, one.direction, one.table, one.road])
        ? "Of several places: compare speeds within one. "
        : several((one) => one.rows) ? "Not all moved as many rows: who falls behind in a race moves fewer. " : "") +
      "Bars are medians of passes, lines their slowest and fastest.";
  const compare = document.getElementById("compare");
  compare.disabled = view.compare.length < COMPARED;
  compare.textContent = ["Compare: choose two", "Compare: choose one more", "Compare the two"][view.compare.length];
  show();
}

table.on("order", () => {
  const [[at, direction]] = table.order().length ? table.order() : [[3, "desc"]];
  const sort = (direction === "desc" ? "-" : "") + COLUMNS[at].name;
  if (!drawing && sort !== view.sort) {
    view.sort = sort;
    history.replaceState(null, "", address());
  }
});
addEventListener("hashchange", () => {
  if (location.hash.includes("=") || !location.hash) change(read(), false);
});
document.getElementById("measurements").addEventListener("click", (event) => {
  const { open, pair } = event.target.dataset;
  if (open !== undefined) change({ open: measurements[open].link });
  if (pair !== undefined) {
    const link = measurements[pair].link;
    const kept = view.compare.filter((one) => one !== link);
    change({ compare: event.target.checked ? [...kept, link].slice(-COMPARED) : kept });
    document.querySelector(`[data-pair="${pair}"]`)?.focus();
  }
});

// --- a technique, and two beside each other ------------------------------------------------------------------------

const dialog = document.getElementById("detail");
dialog.addEventListener("close", () => {
  if (!view.open) return;
  const opened = byLink.get(view.open);
  change({ open: "" });
  if (opened) document.querySelector(`[data-open="${opened.id}"]`)?.focus();
});
dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
document.getElementById("compare").addEventListener("click", () => change({ open: "pair" }));

function show() {
  const pair = view.open === "pair" && view.compare.length === COMPARED;
  const one = byLink.get(view.open);
  if (!pair && !one) {
    if (dialog.open) dialog.close();
    return;
  }
  const close = el("button", { type: "button", class: "close", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(close, ...(pair ? compared(...view.compare.map((link) => byLink.get(link))) : detail(one)));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

function whole(run) {
  const made = [run.started, run.commit && `commit ${run.commit}`, run.machine].filter(Boolean).join(", ");
  return made ? `${run.name}: ${made}` : run.name;
}

function facts(one) {
  const values = {
    where: `${text(one.database)} ${one.direction}, ${place(one)}`, run: whole(machines.get(one.run)),
    "rows/s": one.speed === null ? "" : `${grouped(Math.round(one.speed))} (${speed(one.slowest)} to ${speed(one.fastest)} in ${one.rounds.length} passes${one.unstable ? ", unstable" : ""})`,
    "to the best published": one.ratio_text, "client CPU, s per million rows": digits(one.cpu),
    "growth of memory": megabytes(one.memory), "on the wire": megabytes(one.wire),
    [one.status === "ok" ? "dtypes" : "outcome"]: outcome(one),
    "comes from": `${text(one.origin)}; ${one.family}; ${one.of.driver}; frame: ${text(one.frame)}`,
    "class of write": one.contract, ...one.of.terms, "asks for": (one.of.asks ?? []).join("; "),
  };
  const lines = Object.entries(values).filter(([, value]) => value);
  return el("dl", {}, ...lines.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function code(one) {
  if (!one.of.code)
    return [el("p", {}, "Its code stands with its study, or this checkout has no technique of this name any more.")];
  const joined = (numbers) => numbers.map((at) => blocks[at]).join("\n\n\n");
  const name = `code of ${one.technique}`;
  return [
    el("p", {}, el("small", {}, `${one.technique} in ${one.of.module}, as it stands in this checkout.`)),
    el("button", { type: "button", onclick: (event) => copy(joined([...one.of.beneath, ...one.of.code]), event.target) }, "Copy code"),
    el("pre", { tabindex: "0", role: "region", "aria-label": name }, el("code", {}, joined(one.of.code))),
    el("details", {}, el("summary", {}, "Imports and conversions"),
      el("pre", { tabindex: "0", role: "region", "aria-label": `imports of ${name}` }, el("code", {}, joined(one.of.beneath)))),
  ];
}

function detail(one) {
  const elsewhere = measurements.filter((other) => other.key === one.key);
  const line = (other) =>
    el("tr", other === one ? { class: "chosen", "aria-current": "true" } : {},
      el("td", {}, [place(other), other.variant].filter(Boolean).join(", ")), el("td", {}, other.run),
      el("td", { class: "number" }, other.speed === null ? other.status : speed(other.speed)),
      el("td", {}, other.ratio_text || (other.status === "ok" ? "" : (other.reason ?? ""))));
  const heads = ["where", "run", "rows/s", "to the best published"].map((head) => el("th", { scope: "col" }, head));
  return [
    el("h2", { id: "detail-title" }, label(one)),
    one.of.about ? el("p", {}, one.of.about) : null,
    facts(one),
    ...types(one),
    el("h3", {}, "Everywhere it was measured"),
    el("table", { class: "plain" }, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...elsewhere.map(line))),
    el("h3", {}, "Code"),
    ...code(one),
  ].filter(Boolean);
}

function types(one) {
  const known = Object.entries(one.of.types);
  if (!known.length) return [];
  const lines = Object.entries(STATES).map(([state, words]) => [
    words, known.filter(([, found]) => found === state).map(([type]) => type).join(", "),
  ]);
  const told = lines.filter(([, names]) => names);
  return [
    el("h3", {}, "Types it carries"),
    el("dl", {}, ...told.flatMap(([words, names]) => [el("dt", {}, words), el("dd", {}, names)])),
  ];
}

function compared(a, b) {
  const half = (one) => el("section", { "aria-label": label(one) }, el("h3", {}, label(one)), facts(one), ...code(one));
  return [
    el("h2", { id: "detail-title" }, "Two beside each other"),
    el("p", {}, difference(a, b)),
    el("div", { class: "pair" }, half(a), half(b)),
  ];
}

function difference(a, b) {
  if (a.speed === null || b.speed === null) return "One of them has no speed: see its reason.";
  const [fast, slow] = a.speed >= b.speed ? [a, b] : [b, a];
  const times = (value) => `${value.toFixed(2)}x`;
  const slowByPass = new Map(slow.rounds);
  const pairs = fast.rounds.filter(([pass]) => slowByPass.has(pass)).map(([pass, value]) => value / slowByPass.get(pass));
  const same = a.run === b.run && a.study === b.study && a.direction === b.direction && place(a) === place(b);
  if (!same || !pairs.length || a.database !== b.database)
    return `${label(fast)} has ${times(fast.speed / slow.speed)} the rows/s of ${label(slow)}: medians of different ` +
      "places or runs, where more than the technique differs.";
  const ends = `${times(Math.min(...pairs))} to ${times(Math.max(...pairs))}`;
  const told = Math.min(...pairs) > 1 ? "" : " Passes overlap: this does not tell who is faster.";
  return `${label(fast)} has ${times(median(pairs))} the rows/s of ${label(slow)} (${ends} in ${pairs.length} rounds, ` +
    `round by round; a range, no interval).${told}`;
}

// --- copies --------------------------------------------------------------------------------------------------------

const exported = () => COLUMNS.filter((column) => column.export);
function cells() {
  return [exported().map((column) => column.title), ...shown().map((one) => exported().map((column) => String(column.export(one) ?? "")))];
}
const quoted = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
const asCsv = () => cells().map((row) => row.map(quoted).join(",")).join("\n") + "\n";
function asMarkdown() {
  const [head, ...body] = cells().map((row) => `| ${row.map((value) => value.replaceAll("|", "\\|").replaceAll("\n", " ")).join(" | ")} |`);
  return [head, `|${" --- |".repeat(exported().length)}`, ...body].join("\n") + "\n";
}

async function copy(content, button) {
  const words = button.textContent;
  try {
    await navigator.clipboard.writeText(content);
    button.textContent = "Copied";
  } catch {
    // Browsers that lend no clipboard to a file: the text stands there, marked, for Ctrl+C.
    const area = el("textarea", { rows: "6", cols: "60", "aria-label": "what was asked for, to be copied" });
    area.value = content;
    button.after(area);
    area.select();
  }
  setTimeout(() => (button.textContent = words), 1500);
}
for (const [id, made] of Object.entries({ "copy-link": () => location.href, "copy-csv": asCsv, "copy-markdown": asMarkdown }))
  document.getElementById(id).addEventListener("click", (event) => copy(made(), event.target));
document.getElementById("reset").addEventListener("click", () => {
  history.replaceState(null, "", location.pathname + location.search);
  change(read(), false);
});

change(read(), false);
