/** The graph page: the operators of a step as a graph, one or several setups beside each other, and as a table. */

import { boundWords, legend, useWords } from "/static/js/bounds.js";
import { jsonButton } from "/static/js/json_button.js";
import { SIZES, operatorGraph } from "/static/js/operator_graph.js";
import { button, debounced, download, el, fill, fold, problemNote, table } from "/static/js/parts.js";
import { analyzeCommand, askSetups, notes, stepForm } from "/static/js/step_form.js";
import { counted, digits, grouped, percent, seconds, si } from "/static/js/words.js";

const place = Object.fromEntries(
  ["problem", "answer", "keys", "graphs", "details", "more", "size", "find", "found"].map((id) => [
    id,
    document.getElementById(id),
  ]),
);
let running = null;
let shown = [];
let chosen = null; // id of the chosen operator

const page = stepForm({ onChange: show, kept: ["node"] });
chosen = new URLSearchParams(window.location.search).get("node");
place.size.addEventListener("change", () => {
  page.state.save();
  draw();
});
place.find.addEventListener(
  "input",
  debounced(() => {
    page.state.save();
    find();
  }),
);
place.find.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  const first = place.graphs.querySelector(".node:not(.other)");
  if (first && place.find.value.trim()) focusNode(first);
});
show();

async function show() {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  place.graphs.classList.add("busy-now");
  try {
    shown = await askSetups(page, "/graph", signal);
    useWords(shown[0].document.bounds);
    fill(place.problem);
    draw();
  } catch (error) {
    if (error.name !== "AbortError") fill(place.problem, problemNote(error));
  }
  if (!signal.aborted) place.graphs.classList.remove("busy-now");
}

function draw() {
  const size = place.size.value;
  const most = Math.max(...shown.flatMap(({ document }) => document.nodes.map(SIZES[size].of)));
  fill(
    place.answer,
    shown.map(({ title, document }) =>
      el(
        "p",
        { class: shown.length > 1 ? "" : "headline" },
        shown.length > 1 ? el("strong", {}, `${title}: `) : null,
        sum(document),
      ),
    ),
    shown.length > 1 ? null : notes(shown[0].document.notices),
  );
  fill(place.keys, legend(new Set(shown.flatMap(({ document }) => document.nodes.map((node) => node.bound)))));
  place.graphs.parentElement.classList.toggle("several", shown.length > 1);
  fill(
    place.graphs,
    shown.map(({ title, document }, i) =>
      el(
        "div",
        { class: "panel" },
        shown.length > 1 ? el("h2", {}, title) : null,
        el(
          "div",
          { class: "graph" },
          operatorGraph(document, {
            title,
            size,
            most,
            choose,
            width: Math.min(
              place.graphs.clientWidth,
              shown.length > 1 ? place.graphs.clientWidth / Math.min(shown.length, 2) : Infinity,
            ),
          }),
        ),
      ),
    ),
  );
  find();
  details();
  fill(
    place.more,
    fold("The same as a table", () => shown.map(asTable)),
    el(
      "div",
      { class: "row" },
      jsonButton(
        "graph.json",
        shown.map((one) => one.document),
      ),
      button("CSV", () => download("graph.csv", csv(), "text/csv"), { class: "small" }),
    ),
  );
}

function sum({ nodes, step_s: step, n_steps: n, question }) {
  const largest = [...nodes].sort((a, b) => b.total_s - a.total_s)[0];
  const what = n > 1 ? `${grouped(n)} steps take` : `One ${question.stage} step takes`;
  return `${what} ${seconds(step)}; the largest share is that of ${largest.label}, ${percent(largest.share)}.`;
}

function choose(node) {
  chosen = node.id;
  page.state.save({ node: chosen });
  place.graphs
    .querySelectorAll(".node")
    .forEach((other) => other.setAttribute("aria-pressed", String(other.dataset.id === chosen)));
  details();
}

/** Show the chosen operator, of every setup that has it. */
function details() {
  const found = shown
    .map(({ title, document }) => ({ title, document, node: document.nodes.find((node) => node.id === chosen) }))
    .filter((one) => one.node);
  place.graphs
    .querySelectorAll(".node")
    .forEach((other) => other.setAttribute("aria-pressed", String(other.dataset.id === chosen)));
  if (!found.length) {
    fill(
      place.details,
      el("p", { class: "soft" }, "Choose an operator for its shape, work, time, and how the time is known."),
    );
    return;
  }
  fill(
    place.details,
    el("h2", {}, found[0].node.label),
    found.map(({ title, node }) => [shown.length > 1 ? el("p", {}, el("strong", {}, title)) : null, figures(node)]),
  );
}

function figures(node) {
  const rows = [
    ["Time", `${seconds(node.total_s)}, ${percent(node.share)} of the step`],
    ["Executions", `${grouped(node.count)} of ${seconds(node.seconds)} each`],
    ["Bound by", boundWords(node.bound)],
    ["Origin of the time", origins(node)],
    node.roofline_s ? ["At the roofline", `${seconds(node.roofline_s)} each`] : null,
    node.flops ? ["Arithmetic", `${si(node.flops, "FLOP")} each`] : null,
    node.bytes ? ["Bytes", `${si(node.bytes, "B")} each`] : null,
    node.flops && node.bytes ? ["Intensity", `${digits(node.intensity)} FLOP/B`] : null,
    ["Part of", node.layer_kind],
    ...Object.entries(node.shape).map(([name, value]) => [
      name.replaceAll("_", " "),
      typeof value === "number" ? grouped(value, Number.isInteger(value) ? 0 : 2) : String(value),
    ]),
  ].filter(Boolean);
  return el(
    "dl",
    {},
    rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

function origins(node) {
  const shares = Object.entries(node.origin_shares ?? {})
    .filter(([, share]) => share > 0.005)
    .map(([name, share]) => [name.replace("_fraction", ""), share]);
  if (shares.length < 2) return (shares[0]?.[0] ?? node.origin).replace("roofline", "roofline only");
  return shares.map(([name, share]) => `${name} ${percent(share)}`).join(", ");
}

function find() {
  const text = place.find.value.trim().toLowerCase();
  let n = 0;
  for (const made of place.graphs.querySelectorAll(".node")) {
    const node = shown.flatMap(({ document }) => document.nodes).find((other) => other.id === made.dataset.id);
    const hit =
      !text || `${node.label} ${node.id} ${node.op} ${node.operator_class} ${node.bound}`.toLowerCase().includes(text);
    made.classList.toggle("other", !hit);
    n += text && hit ? 1 : 0;
  }
  place.found.textContent = text ? counted(n, "operator") : "";
}

function focusNode(node) {
  node.parentNode.querySelectorAll(".node").forEach((other) => other.setAttribute("tabindex", other === node ? 0 : -1));
  node.focus();
}

function asTable({ setup, title, document: found }) {
  const rows = found.nodes.map((node) => [
    node.label,
    node.layer_kind,
    grouped(node.count),
    node.flops ? si(node.flops, "") : "",
    node.bytes ? si(node.bytes, "B") : "",
    node.flops && node.bytes ? digits(node.intensity) : "",
    seconds(node.seconds),
    seconds(node.total_s),
    percent(node.share),
    boundWords(node.bound),
    origins(node),
  ]);
  const total = found.nodes.reduce((all, node) => all + node.count * node.seconds, 0);
  rows.push(["Sum", "", "", "", "", "", "", seconds(total), "100 %", "", ""]);
  return [
    table({
      head: [
        "Operator",
        "Part of",
        "Times",
        "FLOP each",
        "Bytes each",
        "FLOP/B",
        "Time each",
        "Time",
        "Share",
        "Bound by",
        "Known from",
      ],
      rows,
      numeric: [2, 3, 4, 5, 6, 7, 8],
      caption: [
        `${title}. The times of all operators, with that of the host, add up to the step: ${seconds(found.step_s)}.`,
        `Calibration: ${found.calibration}.`,
      ].join(" "),
    }),
    el("p", { class: "soft" }, "The command: ", el("code", {}, analyzeCommand(setup, page.shared()))),
  ];
}

function csv() {
  const columns = [
    "id",
    "op",
    "layer_kind",
    "count",
    "flops",
    "bytes",
    "intensity",
    "seconds",
    "total_s",
    "bound",
    "origin",
  ];
  const quoted = (value) => (/[",\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
  const lines = shown.flatMap(({ setup, document: found }) =>
    found.nodes.map((node) =>
      [setup.model, setup.hardware, ...columns.map((name) => node[name])].map(quoted).join(","),
    ),
  );
  return `${["model", "hardware", ...columns].join(",")}\n${lines.join("\n")}\n`;
}
