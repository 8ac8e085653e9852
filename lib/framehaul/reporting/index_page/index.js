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
const USUAL = "-speed";
// What two can differ in, and what of it makes their rounds no rounds of one race.
const APART = {
  run: "run", machine: "machine", study: "study", database: "database", direction: "direction",
  contract: "class of write", table: "table", road: "network", rows: "rows", variant: "variant",
};
const ANOTHER_RACE = ["run", "study", "database", "direction", "table", "road", "rows"];

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
const view = { filters: {}, search: "", sort: USUAL, open: "", compare: [], page: 1, lost: false };

// --- small helpers -------------------------------------------------------------------------------------------------

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}
const text = (value) => (Object.hasOwn(WORDS, value) ? WORDS[value] : String(value));
const escaped = (value) => el("i", {}, String(value ?? "")).innerHTML.replaceAll('"', "&quot;");
// An arrow stays whole where a line breaks.
const arrowed = (value) => escaped(value).replaceAll("-&gt;", '<span class="arrow">-&gt;</span>');
const heading = (value) => value.split("->").flatMap((part, at) => (at ? [el("span", { class: "arrow" }, "->"), part] : [part]));
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
  const parts = {
    database: `${text(one.database)} ${one.direction}`, table: one.table, road: one.road, run: one.run, study: one.study,
  };
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
    title: "Technique", name: "technique", className: "technique", data: null, orderSequence: ["asc", "desc"],
    render: (one, type) => {
      if (type === "display")
        return `<button type="button" class="name" data-open="${one.id}">${arrowed(label(one))}</button>` +
          `<br><small>${escaped(one.technique)}</small><span class="narrow">${escaped(unsaid(one).join(", "))}</span>`;
      const words = [label(one), one.technique, one.family, one.of.driver, one.status, one.reason ?? ""].join(" ");
      return type === "filter" ? escaped(words) : words; // what is searched is taken for markup
    },
  },
  {
    title: "Origin", name: "origin", className: "wide", data: null, orderSequence: ["asc", "desc"],
    render: (one) => escaped([text(one.origin), one.contract].filter(Boolean).join(", ")),
  },
  {
    title: "Rows/s", name: "speed", className: "speed", data: null, type: "measured", searchable: false,
    orderSequence: ["desc", "asc"],
    render: (one, type) => {
      if (type !== "display") return one.speed;
      if (one.speed === null)
        return `<span class="${escaped(one.status)}"><strong>${escaped(one.status)}</strong> ${escaped(one.reason)}</span>`;
      const range = `${speed(one.slowest)} to ${speed(one.fastest)}${one.unstable ? ", unstable" : ""}`;
      const bar = `--v:${one.speed};--low:${one.slowest};--high:${one.fastest}`;
      return `${speed(one.speed)} <small>(${range})</small><span class="bar" style="${bar}" aria-hidden="true"><i></i><b></b></span>`;
    },
  },
  {
    title: "To best published", name: "ratio", data: null, className: "number wide", type: "measured",
    searchable: false, orderSequence: ["desc", "asc"],
    render: (one, type) => {
      if (type !== "display") return one.ratio;
      const [ratio, ends] = one.ratio_text.split(" (");
      return escaped(ratio) + (ends ? `<br><small>${escaped(ends.replace(")", ""))}</small>` : "");
    },
  },
  number("CPU s / M rows", "cpu", (one) => one.cpu, digits),
  number("Memory", "memory", (one) => one.memory, megabytes),
  number("Wire", "wire", (one) => one.wire, megabytes),
  {
    title: "Dtypes", name: "dtypes", className: "wide", data: null, orderSequence: ["asc", "desc"],
    render: (one) => escaped(one.status === "ok" ? one.dtypes : ""),
  },
  {
    title: "Where", name: "place", className: "wide", data: null, orderSequence: ["asc", "desc"],
    render: (one) => escaped(unsaid(one).join(", ")),
  },
];

function number(title, name, value, form) {
  return {
    title, name, data: null, className: "number wide", type: "measured", searchable: false, orderSequence: ["asc", "desc"],
    render: (one, type) => (type === "display" ? form(value(one)) : value(one)),
  };
}
// What was not measured comes last, whichever way.
const last = (sign) => (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : sign * (a - b));
DataTable.type("measured", { order: { asc: last(1), desc: last(-1) } });

document.getElementById("app").hidden = false;
const table = new DataTable("#measurements", {
  columns: COLUMNS, deferRender: true, autoWidth: false, pageLength: 100, lengthChange: false,
  order: [[3, "desc"]], orderMulti: false, layout: { topStart: null, topEnd: null, bottomStart: null, bottomEnd: "paging" },
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
const search = el("input", { type: "search", name: "search", oninput: () => change({ search: search.value, page: 1 }) });
// A phone shows two columns; what the others have can be sorted by all the same.
const sorting = el("select", { name: "sort", onchange: () => change({ sort: sorting.value, page: 1 }, "pushState") },
  ...COLUMNS.slice(1).flatMap(({ title, name, type }) =>
    (type ? [["-", "most first"], ["", "least first"]] : [["", "A to Z"], ["-", "Z to A"]]).map(([sign, how]) =>
      el("option", { value: sign + name }, `${title}, ${how}`))));
const selects = Object.fromEntries(
  Object.keys(FILTERS).map((name) => [
    name, el("select", { name, onchange: (event) => filter(name, event.target.value) }),
  ]),
);
form.append(...Object.entries(FILTERS).map(([name, title]) => el("label", {}, title, selects[name])));
form.append(el("label", {}, "Search", search), el("label", { class: "narrow" }, "Sort", sorting));

function filter(name, value) {
  view.filters = { ...view.filters };
  delete view.filters[name];
  if (value !== "any") view.filters[name] = value;
  // A study measures one thing: who asks for another one means another study.
  const { study } = view.filters;
  if (study !== undefined && name !== "study" && !measurements.some((one) => fits(one)))
    view.filters.study = measurements.find((one) => fits(one, "study"))?.study ?? study;
  change({ page: 1, lost: false }, "pushState");
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
  words.set("sort", view.sort); // always, so that the view of everything has an address as well
  if (view.page > 1) words.set("page", view.page);
  if (view.open) words.set("open", view.open);
  for (const link of view.compare) words.append("compare", link);
  return `#${words}`;
}

function read() {
  const given = location.hash.slice(1);
  if (!given.includes("=")) return { filters: START, search: "", sort: USUAL, open: "", compare: [], page: 1, lost: false };
  const words = new URLSearchParams(given);
  const filters = {};
  for (const name of Object.keys(FILTERS))
    if (words.has(name) && words.get(name) !== "any") filters[name] = words.get(name);
  const named = [...new Set(words.getAll("compare"))];
  const compare = named.filter((link) => byLink.has(link)).slice(0, COMPARED);
  const open = words.get("open") ?? "";
  const known = !open || byLink.has(open) || (open === "pair" && compare.length === COMPARED);
  return {
    filters, search: words.get("search") ?? "", sort: words.get("sort") ?? USUAL, open: known ? open : "", compare,
    page: Math.max(1, Math.trunc(Number(words.get("page"))) || 1), lost: !known || compare.length < named.length,
  };
}

function change(what, how = "replaceState") {
  // A step that the browser's Back takes back is pushed, what only follows another is not.
  Object.assign(view, what);
  if (how && address() !== location.hash) history[how](null, "", address());
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
  view.page = Math.min(view.page, Math.max(table.page.info().pages, 1));
  if (view.page > 1) table.page(view.page - 1).draw("page");
  [drawing, drawn] = [false, true];
  sorting.value = view.sort;
  const found = shown();
  const fastest = Math.max(...found.map((one) => one.fastest ?? 0), 1);
  document.getElementById("scroll").style.setProperty("--max", fastest);
  const several = (of) => new Set(found.map((one) => JSON.stringify(of(one)))).size > 1;
  const lost = view.lost ? "What the link names is not on this page. " : "";
  document.getElementById("count").textContent = lost + (!found.length
    ? "Nothing fits: set a list to “any”, or reset."
    : `${found.length} of ${measurements.length} measurements. ` +
      (several((one) => [one.run, one.study, one.database, one.direction, one.table, one.road])
        ? "Of several places: compare speeds within one. "
        : several((one) => [one.variant, one.contract]) ? "Of several classes or variants: compare within one. "
        : several((one) => one.rows) ? "Not all moved as many rows: who falls behind in a race moves fewer. " : "") +
      "Bars are medians of passes, lines their slowest and fastest.");
  const compare = document.getElementById("compare");
  compare.disabled = view.compare.length < COMPARED;
  compare.textContent = ["Compare: choose two", "Compare: choose one more", "Compare the two"][view.compare.length];
  show();
}

table.on("order", () => {
  const [[at, direction]] = table.order().length ? table.order() : [[3, "desc"]];
  const sort = (direction === "desc" ? "-" : "") + COLUMNS[at].name;
  if (!drawing && sort !== view.sort) {
    Object.assign(view, { sort, page: 1 });
    sorting.value = sort;
    history.pushState(null, "", address());
  }
});
table.on("page", () => {
  if (drawing) return;
  view.page = table.page() + 1;
  history.replaceState(null, "", address());
});
document.querySelector("#measurements thead").addEventListener("keydown", (event) => {
  if (event.key !== " " || !event.target.matches(".dt-column-order")) return;
  event.preventDefault();
  event.target.click();
});
addEventListener("hashchange", () => {
  if (location.hash.includes("=") || !location.hash) change(read(), "");
  else history.replaceState(null, "", address()); // an anchor of the page: it has scrolled, and the view stays
});
document.getElementById("measurements").addEventListener("click", (event) => {
  const { open, pair } = event.target.closest("[data-open], [data-pair]")?.dataset ?? {};
  if (open !== undefined) change({ open: measurements[open].link, lost: false }, "pushState");
  if (pair !== undefined) {
    const link = measurements[pair].link;
    const kept = view.compare.filter((one) => one !== link);
    change({ compare: event.target.checked ? [...kept, link].slice(-COMPARED) : kept });
    document.querySelector(`[data-pair="${pair}"]`)?.focus();
  }
});

// --- a technique, and two beside each other ------------------------------------------------------------------------

const dialog = document.getElementById("detail");
let opened;
dialog.addEventListener("close", () => {
  if (view.open) change({ open: "" });
  document.querySelector(`[data-open="${opened}"]`)?.focus();
});
// A click beside it closes it: one that began there, too, for a mark may end there.
const beside = ({ target, clientX: x, clientY: y }) => {
  const box = dialog.getBoundingClientRect();
  return target === dialog && (x < box.left || x > box.right || y < box.top || y > box.bottom);
};
let began = false;
dialog.addEventListener("pointerdown", (event) => (began = beside(event)));
dialog.addEventListener("click", (event) => began && beside(event) && dialog.close());
document.getElementById("compare").addEventListener("click", () => change({ open: "pair" }, "pushState"));

function show() {
  const pair = view.open === "pair" && view.compare.length === COMPARED;
  const one = byLink.get(view.open);
  if (!pair && !one) {
    if (dialog.open) dialog.close();
    return;
  }
  opened = one?.id;
  const close = el("button", { type: "button", class: "close", onclick: () => dialog.close() }, "Close");
  const said = el("span", { role: "status", class: "said unseen" });
  dialog.replaceChildren(close, said, ...(pair ? compared(...view.compare.map((link) => byLink.get(link))) : detail(one)));
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
    el("button", { type: "button", onclick: (event) => copy(joined(one.of.code), event.target) }, "Copy code"),
    el("pre", { tabindex: "0", role: "region", "aria-label": name }, el("code", {}, joined(one.of.code))),
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
    el("h2", { id: "detail-title" }, ...heading(label(one))),
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
  const half = (one) => {
    const name = `${one === a ? "First" : "Second"}: ${label(one)}`;
    return el("section", { "aria-label": name }, el("h3", {}, ...heading(name)), facts(one), ...code(one));
  };
  return [
    el("h2", { id: "detail-title" }, "Two beside each other"),
    el("p", {}, difference(a, b)),
    el("div", { class: "pair" }, half(a), half(b)),
  ];
}

function difference(a, b) {
  const other = Object.keys(APART).filter((key) => a[key] !== b[key]);
  const named = (key) => `${APART[key]} (${text(a[key] ?? "")}; ${text(b[key] ?? "")})`;
  const said = other.length ? ` They differ in ${other.map(named).join(", ")}.` : "";
  return `${ratioOf(a, b)}${said}`;
}

function ratioOf(a, b) {
  if (a.speed === null || b.speed === null) return "One of them has no speed: see its reason.";
  const name = (one) => `the ${one === a ? "first" : "second"} (${label(one)})`;
  const [fast, slow] = a.speed >= b.speed ? [a, b] : [b, a];
  const times = (value) => `${value.toFixed(2)}x`;
  const slowByPass = new Map(slow.rounds);
  const pairs = fast.rounds.filter(([pass]) => slowByPass.has(pass)).map(([pass, value]) => value / slowByPass.get(pass));
  const same = ANOTHER_RACE.every((key) => a[key] === b[key]);
  const begin = name(fast).replace("the", "The");
  if (!same || !pairs.length)
    return `${begin} has ${times(fast.speed / slow.speed)} the rows/s of ${name(slow)}: medians of different ` +
      "places, runs or work, where more than the technique differs.";
  const ends = `${times(Math.min(...pairs))} to ${times(Math.max(...pairs))}`;
  const told = Math.min(...pairs) > 1 ? "" : " Passes overlap: this does not tell who is faster.";
  return `${begin} has ${times(median(pairs))} the rows/s of ${name(slow)} (${ends} in ${pairs.length} rounds, ` +
    `round by round; a range, no interval).${told}`;
}

// --- copies --------------------------------------------------------------------------------------------------------

const EXPORTED = {
  Technique: (one) => `${label(one)} (${one.technique})`, Database: (one) => text(one.database),
  Direction: (one) => one.direction, "Class of write": (one) => one.contract, Origin: (one) => text(one.origin),
  Frame: (one) => text(one.frame), "Rows/s": (one) => one.speed, Slowest: (one) => one.slowest,
  Fastest: (one) => one.fastest, Passes: (one) => one.rounds.length || "", Unstable: (one) => (one.unstable ? "yes" : ""),
  Status: (one) => one.status, Reason: (one) => one.reason, "To best published": (one) => one.ratio_text,
  "CPU s / M rows": (one) => one.cpu, "Memory, bytes": (one) => one.memory, "Wire, bytes": (one) => one.wire,
  Dtypes: (one) => one.dtypes, Rows: (one) => one.rows, Table: (one) => one.table, Network: (one) => one.road,
  Study: (one) => one.study, Run: (one) => one.run, Machine: (one) => one.machine,
};
function cells() {
  // Columns in which something stands, and always who it is of.
  const made = shown().map((one) => Object.values(EXPORTED).map((of) => String(of(one) ?? "")));
  const kept = Object.keys(EXPORTED).map((_, at) => !at || made.some((row) => row[at]));
  return [Object.keys(EXPORTED), ...made].map((row) => row.filter((_, at) => kept[at]));
}
const quoted = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
const asCsv = () => cells().map((row) => row.map(quoted).join(",")).join("\n") + "\n";
function asMarkdown() {
  const clean = (value) => value.replaceAll("\\", "\\\\").replaceAll("|", "\\|").replace(/[\r\n]+/g, " ");
  const [head, ...body] = cells();
  const lines = [head, head.map(() => "---"), ...body.map((row) => row.map(clean))];
  return lines.map((row) => `| ${row.join(" | ")} |`).join("\n") + "\n";
}

async function copy(content, button) {
  const words = (button.dataset.words ??= button.textContent);
  const said = (button.closest("dialog") ?? document).querySelector(".said");
  said.textContent = "";
  try {
    await navigator.clipboard.writeText(content);
    button.textContent = said.textContent = "Copied";
  } catch {
    // Browsers that lend no clipboard to a file: the text stands there, marked, for Ctrl+C.
    const area = el("textarea", { rows: "6", cols: "60", "aria-label": "what was asked for, to be copied" });
    area.value = content;
    if (button.nextElementSibling?.matches("textarea")) button.nextElementSibling.remove();
    button.after(area);
    area.select();
  }
  setTimeout(() => (button.textContent = words), 1500);
}
for (const [id, made] of Object.entries({ "copy-link": () => location.href.split("#")[0] + address(), "copy-csv": asCsv, "copy-markdown": asMarkdown }))
  document.getElementById(id).addEventListener("click", (event) => copy(made(), event.target));
document.getElementById("reset").addEventListener("click", () => {
  history.pushState(null, "", location.pathname + location.search);
  change(read(), "");
});

change(read(), "");
