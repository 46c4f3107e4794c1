/** The analyze page: one engine step by operator, bound, memory, precision and scaling, live as controls move. */

import { call } from "/static/js/api.js";
import { boundWords, useWords } from "/static/js/bounds.js";
import { LEGEND_ABOVE, draw, seriesStyle } from "/static/js/charts.js";
import { jsonButton } from "/static/js/json_button.js";
import { button, cards, codeBlock, download, el, fill, fold, memoryBar, problemNote, table } from "/static/js/parts.js";
import { rooflines } from "/static/js/roofline.js";
import { analyzeCommand, askSetups, notes, stepForm } from "/static/js/step_form.js";
import { digits, gigabytes, grouped, percent, seconds, si } from "/static/js/words.js";

const place = Object.fromEntries(
  ["problem", "answer", "roofline", "more"].map((id) => [id, document.getElementById(id)]),
);
let running = null;
const open = new Set(); // folds that the reader opened, by title

const page = stepForm({ onChange: show });
show();

async function show() {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  place.answer.classList.add("busy-now");
  try {
    const shown = await askSetups(page, "/analyze", signal);
    useWords(shown[0].document.words.bounds);
    fill(place.problem);
    fill(place.answer, summary(shown));
    place.roofline.hidden = false;
    fill(place.roofline, rooflines(shown, place.roofline.clientWidth));
    fill(place.more, details(shown));
  } catch (error) {
    if (error.name === "AbortError") return;
    fill(place.problem, problemNote(error));
  }
  place.answer.classList.remove("busy-now");
}

function summary(shown) {
  if (shown.length > 1) return comparison(shown);
  const { document: found } = shown[0];
  const bound = Object.keys(found.bound_s)[0] ?? "";
  const held = found.memory;
  return [
    el("p", { class: "headline" }, found.words?.headlines?.[0] ?? shown[0].title),
    cards([
      [
        found.step.n_steps > 1 ? `${grouped(found.step.n_steps)} steps` : "One step",
        seconds(found.step.engine_s),
        onDevice(found.step),
      ],
      [
        "At the roofline",
        seconds(found.step.roofline_s),
        `${percent(found.step.roofline_s / found.step.engine_s)} of the step`,
      ],
      ["Tokens per second", digits(found.step.tokens_per_s), "of one replica"],
      ["Mostly bound by", boundWords(bound), `${percent(found.bound_s[bound] / found.step.device_s)} of device time`],
      [
        "Memory",
        el("span", { class: held.fits ? "good" : "bad" }, held.fits ? "It fits" : "It does not fit"),
        `KV ${gigabytes(held.kv_batch_bytes)} of ${gigabytes(held.kv_room_bytes)}`,
      ],
    ]),
    notes(found.notices),
  ];
}

/** Return the time on the device in words; where it is that of the step, no second figure. */
function onDevice({ device_s: device, engine_s: engine }) {
  return Math.abs(device / engine - 1) < 0.01 ? "the device works all the time" : `${seconds(device)} on the device`;
}

function comparison(shown) {
  const rows = [
    ["Step in the engine", (f) => seconds(f.step.engine_s)],
    ["Relative to A", (f) => `× ${digits(f.step.engine_s / shown[0].document.step.engine_s)}`],
    ["On the device", (f) => seconds(f.step.device_s)],
    ["At the roofline", (f) => seconds(f.step.roofline_s)],
    ["Tokens per second", (f) => digits(f.step.tokens_per_s)],
    ["Weights and KV", (f) => `${f.question.weight_dtype}, ${f.question.kv_dtype}`],
    ["Mostly bound by", (f) => boundWords(Object.keys(f.bound_s)[0])],
    ["KV of the batch", (f) => `${gigabytes(f.memory.kv_batch_bytes)} of ${gigabytes(f.memory.kv_room_bytes)}`],
    ["Fits", (f) => el("span", { class: f.memory.fits ? "good" : "bad" }, f.memory.fits ? "yes" : "no")],
    ["Calibration", (f) => f.calibration.bundle],
  ];
  return [
    table({
      head: ["", ...shown.map((one) => one.title)],
      rows: rows.map(([name, cell]) => [name, ...shown.map((one) => cell(one.document))]),
      label: "The setups side by side",
    }),
    shown.map((one) => (one.document.notices.length ? [el("h2", {}, one.title), notes(one.document.notices)] : null)),
  ];
}

function details(shown) {
  const each = (make) => shown.map((one) => [shown.length > 1 ? el("h2", {}, one.title) : null, make(one)]);
  return [
    kept("Operators", () => each(operators)),
    kept("Memory", () => each(memory)),
    kept("Precision: 16, 8 and 4 bits", () => each(precisions)),
    kept("Scaling with batch and context", () => scaling(shown)),
    kept("The same as a command", () =>
      shown.map((one) => codeBlock(analyzeCommand(one.setup, page.shared()), `Command, ${one.title}`)),
    ),
    el(
      "div",
      { class: "row" },
      jsonButton(
        "analysis.json",
        shown.map((one) => one.document),
      ),
      button("Operators as CSV", () => download("operators.csv", csv(shown), "text/csv"), { class: "small" }),
    ),
  ];
}

/** Return a fold that stays open when the figures change. */
function kept(title, make) {
  const node = fold(title, make, { open: open.has(title) });
  node.addEventListener("toggle", () => (node.open ? open.add(title) : open.delete(title)));
  return node;
}

function operators({ document: found, title }) {
  const total = found.step.device_s;
  const rows = found.operators.map((op) => [
    op.name,
    boundWords(op.bound),
    grouped(op.count),
    op.flops ? si(op.flops, "") : "",
    si(op.bytes, "B"),
    op.flops ? digits(op.flops_per_byte) : "",
    seconds(op.roofline_s),
    seconds(op.seconds),
    percent(op.seconds / total),
    origin(op),
  ]);
  return table({
    head: ["Operator", "Bound by", "Count", "FLOP", "Bytes", "FLOP/B", "Roofline", "Time", "Share", "Origin"],
    rows,
    numeric: [2, 3, 4, 5, 6, 7, 8],
    caption: `On one accelerator, all executions together. Calibration: ${found.calibration.bundle}.`,
    label: `Operators, ${title}`,
  });
}

/** Return in words how the time of an operator is known. */
export function origin({ seconds: all, measured_s: measured, interpolated_s: between }) {
  const parts = [
    ["measured", measured / all],
    ["interpolated", between / all],
    ["roofline", 1 - (measured + between) / all],
  ].filter(([, share]) => share > 0.005);
  return parts.length === 1 ? parts[0][0] : parts.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
}

function memory({ document: found, setup, title }) {
  const held = found.memory;
  const { weights_bytes: weights, activation_bytes: activations, runtime_bytes: runtime, kv_batch_bytes: kv } = held;
  const sizes = { weights, activations, runtime, "KV of this batch": kv };
  const layers = el("div", {});
  const i = page.setups().findIndex((one) => one.model === setup.model && one.hardware === setup.hardware);
  call(`/memory?${page.queryOf(Math.max(i, 0))}`)
    .then((all) => fill(layers, byLayer(all, title)))
    .catch((error) => {
      if (error.status !== 404) fill(layers, problemNote(error));
    });
  return [memoryBar(Object.entries(sizes), held.device_bytes), layers];
}

function byLayer(all, title) {
  const rows = (all.layers ?? []).map((row) => [
    row.kind ?? row.name,
    grouped(row.count ?? row.layers ?? 1),
    si(row.weights_bytes ?? 0, "B"),
    si(row.kv_bytes ?? 0, "B"),
    si(row.activation_bytes ?? 0, "B"),
  ]);
  if (!rows.length) return null;
  return table({
    head: ["Layers", "Number", "Weights", "KV of this batch", "Activations"],
    rows,
    numeric: [1, 2, 3, 4],
    caption: "One layer of each kind, on one accelerator. Layers share the memory of their activations.",
    label: `Memory of layers, ${title}`,
  });
}

function precisions({ document: found, title }) {
  const rows = found.precisions.map((p) => [
    String(p.bits),
    `${p.weight_dtype}, ${p.kv_dtype}`,
    si(p.bytes, "B"),
    seconds(p.time.roofline_s),
    seconds(p.time.engine_s),
    `× ${digits(p.time.engine_s / found.step.engine_s)}`,
    gigabytes(p.held.weights_bytes),
    gigabytes(p.held.kv_batch_bytes),
    p.held.kv_batch_bytes <= p.held.kv_room_bytes ? "yes" : "no",
  ]);
  return table({
    head: ["Bits", "Weights, KV", "Moved", "Roofline", "Engine", "Relative", "Weights stored", "KV stored", "Fits"],
    rows,
    numeric: [2, 3, 4, 5, 6, 7],
    caption: "The same step with other weights and KV cache; activations stay at 16 bits.",
    label: `Precisions, ${title}`,
  });
}

function scaling(shown) {
  const charts = ["batch", "context"].flatMap((quantity) =>
    [
      ["Step time", "s", (row) => row.time.engine_s],
      ["Tokens per second", "", (row) => row.tokens_per_s],
    ].map(([name, unit, value]) => {
      const node = el("div", {});
      const data = shown.map(({ title, document: found }, i) => {
        const rows = found.scaling.filter((row) => row.quantity === quantity);
        return {
          type: "scatter",
          mode: "lines+markers",
          name: title,
          x: rows.map((row) => row.value),
          y: rows.map(value),
          ...seriesStyle(i),
        };
      });
      const what = quantity === "batch" ? "Sequences in the batch" : "Tokens of each sequence";
      const layout = {
        xaxis: { type: "log", title: { text: what }, dtick: Math.log10(2) },
        yaxis: { title: { text: name }, rangemode: "tozero", ticksuffix: unit ? ` ${unit}` : "", exponentformat: "SI" },
        showlegend: shown.length > 1,
        legend: LEGEND_ABOVE,
      };
      requestAnimationFrame(() =>
        draw(node, { data, layout }, { label: `${name} by ${what.toLowerCase()}`, height: 260 }),
      );
      return node;
    }),
  );
  const rows = shown[0].document.scaling.map((row, i) => [
    `${row.quantity} ${grouped(row.value)}`,
    ...shown.flatMap(({ document: found }) => {
      const own = found.scaling[i];
      return own ? [seconds(own.time.engine_s), digits(own.tokens_per_s)] : ["", ""];
    }),
  ]);
  return [
    el("div", { class: "two" }, charts),
    table({
      head: [
        "With",
        ...shown.flatMap((one, i) =>
          shown.length > 1 ? [`Engine, ${"ABC"[i]}`, `Tokens/s, ${"ABC"[i]}`] : ["Engine", "Tokens/s"],
        ),
      ],
      rows,
      numeric: [1, 2, 3, 4, 5, 6],
    }),
  ];
}

function csv(shown) {
  const columns = [
    "name",
    "kind",
    "bound",
    "count",
    "flops",
    "bytes",
    "flops_per_byte",
    "roofline_s",
    "seconds",
    "measured_s",
    "interpolated_s",
  ];
  const quoted = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  const lines = shown.flatMap(({ setup, document: found }) =>
    found.operators.map((op) =>
      [setup.model, setup.hardware, ...columns.map((name) => op[name])].map(quoted).join(","),
    ),
  );
  return `${["model", "hardware", ...columns].join(",")}\n${lines.join("\n")}\n`;
}
