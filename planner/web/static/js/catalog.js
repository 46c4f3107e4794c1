/** The catalog page: one searchable, sortable table for each catalog, with sources and dates, as CSV and JSON too. */

import { call } from "/static/js/api.js";
import { matches } from "/static/js/combobox.js";
import { button, debounced, download, el, fill, problemNote, shareButton } from "/static/js/parts.js";
import { urlState } from "/static/js/url_state.js";
import { counted, digits, dollars, gigabytes, grouped, parameters, si } from "/static/js/words.js";

const amount = (words) => (value) => (value === null || value === undefined ? "" : words(value));
const source = { key: "source", head: "Source" };

/** The columns of each catalog: key, heading, how a value is shown, and whether it is a number. */
const COLUMNS = {
  models: [
    { key: "name", head: "Model", link: (item) => `/plan?model=${encodeURIComponent(item.name)}` },
    { key: "params", head: "Parameters", show: amount(parameters), number: true },
    { key: "active_params", head: "Active", show: amount(parameters), number: true },
    { key: "max_position_tokens", head: "Context, tokens", show: amount(grouped), number: true },
    { key: "attention", head: "Attention" },
    { key: "weight_dtype", head: "Weights" },
    { key: "weight_bytes", head: "Size", show: amount(gigabytes), number: true },
    {
      key: "checkpoints",
      head: "Quantised checkpoints",
      show: (found) => found.map((c) => `${c.repository} (${c.weight_dtype}, ${c.as_of})`).join("; "),
    },
    source,
  ],
  networks: [
    { key: "name", head: "Network", link: (item) => `/plan?model=${encodeURIComponent(item.name)}` },
    { key: "family", head: "What it does" },
    { key: "params", head: "Parameters", show: amount(parameters), number: true },
    { key: "flops", head: "Default job", show: amount((x) => si(x, "FLOP")), number: true },
    { key: "job", head: "Its sizes" },
    { key: "steps", head: "Steps", show: amount(grouped), number: true },
    { key: "unit", head: "Yields" },
    source,
  ],
  hardware: [
    { key: "name", head: "Hardware", link: (item) => `/plan?hardware=${encodeURIComponent(`${item.name}x1`)}` },
    { key: "full_name", head: "Full name" },
    { key: "memory_bytes", head: "Memory", show: amount(gigabytes), number: true },
    { key: "memory_bytes_per_s", head: "Bandwidth", show: amount((x) => si(x, "B/s")), number: true },
    {
      key: "peak_flops",
      head: "Peak",
      show: (peaks) =>
        Object.entries(peaks)
          .map(([name, x]) => `${name} ${si(x, "FLOP/s")}`)
          .join(", "),
    },
    { key: "tdp_w", head: "TDP", show: amount((x) => `${grouped(x)} W`), number: true },
    { key: "node_sizes", head: "Per node", show: (sizes) => String(Math.max(...sizes)), number: true },
    {
      key: "price",
      head: "Lowest price of one",
      show: (price) => (price ? `${dollars(price.usd_per_hour)}/h, ${price.place}, ${price.date}` : "unknown"),
    },
    {
      key: "calibrated",
      head: "Step times",
      show: (words, item) =>
        ({ measured: "measured", borrowed: `borrowed from ${item.calibrated_on}`, none: "roofline only" })[words],
    },
    source,
  ],
  engines: [
    { key: "name", head: "Engine" },
    { key: "version", head: "Version" },
    { key: "supported", head: "Simulated", show: (x) => (x ? "yes" : "no") },
    source,
  ],
  workloads: [
    { key: "name", head: "Workload", link: (item) => `/plan?workload=${encodeURIComponent(item.name)}` },
    { key: "input_tokens_mean", head: "Mean input tokens", show: amount(digits), number: true },
    { key: "output_tokens_mean", head: "Mean output tokens", show: amount(digits), number: true },
    { key: "requests_per_s", head: "Requests per second", show: amount(digits), number: true },
    source,
  ],
  prices: [
    { key: "hardware", head: "Hardware" },
    { key: "cloud", head: "Cloud" },
    { key: "region", head: "Region" },
    { key: "instance", head: "Instance" },
    { key: "accelerators", head: "Accelerators", number: true, show: amount(String) },
    { key: "on_demand_usd_per_hour", head: "On demand, per hour", show: amount(dollars), number: true },
    { key: "spot_usd_per_hour", head: "Spot", show: amount(dollars), number: true },
    { key: "reserved_1y_usd_per_hour", head: "Reserved, one year", show: amount(dollars), number: true },
    { key: "as_of", head: "Date" },
    source,
  ],
  grids: [
    { key: "region", head: "Grid" },
    { key: "name", head: "Name" },
    { key: "gco2e_per_kwh", head: "gCO2e per kWh", show: amount(digits), number: true },
    { key: "usd_per_kwh", head: "USD per kWh", show: amount(dollars), number: true },
    { key: "gco2e_source", head: "Source" },
  ],
  regions: [
    { key: "region", head: "Region" },
    { key: "cloud", head: "Cloud" },
    { key: "place", head: "Place" },
    { key: "grid", head: "Grid" },
    { key: "gco2e_per_kwh", head: "gCO2e per kWh", show: amount(digits), number: true },
    source,
  ],
};

const at = (id) => document.getElementById(id);
const form = at("filter");
const state = urlState(form);
const loaded = {};
let order = null; // {key, down}

async function show() {
  const kind = form.elements.kind.value;
  const columns = COLUMNS[kind];
  try {
    loaded[kind] ??= (await call(`/${kind}`)).items;
  } catch (error) {
    return fill(at("problem"), problemNote(error));
  }
  if (kind !== form.elements.kind.value) return null; // another catalog was chosen meanwhile
  fill(at("problem"));
  const cells = (item) => columns.map(({ key, show: words }) => (words ? words(item[key], item) : (item[key] ?? "")));
  const rows = loaded[kind]
    .map((item) => ({ item, cells: cells(item) }))
    .filter((row) =>
      matches(
        `${row.cells.join(" ")} ${row.item.other_names?.join(" ") ?? ""} ${row.item.architecture ?? ""}`,
        form.elements.search.value,
      ),
    );
  if (order) rows.sort((a, b) => compare(a.item[order.key], b.item[order.key]) * (order.down ? -1 : 1));
  at("count").textContent =
    `${counted(rows.length, "entry").replace("entrys", "entries")} of ${grouped(loaded[kind].length)}`;
  fill(
    at("exports"),
    shareButton(),
    button("CSV", () => download(`${kind}.csv`, csv(columns, rows), "text/csv"), { class: "quiet" }),
    button(
      "JSON",
      () =>
        download(
          `${kind}.json`,
          JSON.stringify(
            rows.map((row) => row.item),
            null,
            2,
          ),
        ),
      { class: "quiet" },
    ),
  );
  const focused = document.activeElement?.dataset?.sort;
  const heads = columns.map((column) =>
    el(
      "th",
      {
        scope: "col",
        class: column.number ? "number" : null,
        "aria-sort": order?.key === column.key ? (order.down ? "descending" : "ascending") : null,
      },
      button(
        `${column.head}${order?.key === column.key ? (order.down ? " ↓" : " ↑") : ""}`,
        () => {
          order = { key: column.key, down: order?.key === column.key ? !order.down : Boolean(column.number) };
          show();
        },
        { class: "sort", "data-sort": column.key },
      ),
    ),
  );
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      row.cells.map((text, i) => {
        const column = columns[i];
        const shown = column.link ? el("a", { href: column.link(row.item), title: "Plan with it" }, text) : text;
        return el(
          i ? "td" : "th",
          { scope: i ? null : "row", class: column.number ? "number" : text.length > 60 ? "long" : null },
          shown,
        );
      }),
    ),
  );
  fill(
    at("rows"),
    el(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": `Catalog of ${kind}` },
      el("table", {}, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, body)),
    ),
  );
  if (focused) at("rows").querySelector(`[data-sort="${focused}"]`)?.focus();
  return null;
}

function compare(a, b) {
  const [x, y] = [a, b].map((value) =>
    value !== null && typeof value === "object" ? (value.usd_per_hour ?? Object.values(value)[0] ?? "") : value,
  );
  if (x === null || x === undefined || x === "") return y === null || y === undefined || y === "" ? 0 : 1;
  if (y === null || y === undefined || y === "") return -1;
  return typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
}

function csv(columns, rows) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const plain = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value ?? ""));
  const line = (cells) => cells.map((cell) => quoted(/^[=+@\t]|^-(?!\d)/.test(cell) ? `'${cell}` : cell)).join(",");
  const cellsOf = ({ item }) => columns.map((column) => plain(item[column.key]));
  return `${[columns.map((column) => column.key), ...rows.map(cellsOf)].map(line).join("\n")}\n`;
}

fill(
  form.elements.kind,
  Object.keys(COLUMNS).map((kind, i) => new Option(kind, kind, i === 0)),
);
state.restore();
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener(
  "input",
  debounced(() => {
    state.save();
    show();
  }, 80),
);
form.elements.kind.addEventListener("change", () => {
  order = null;
});
window.addEventListener("popstate", () => {
  state.restore();
  show();
});
show();
