/** The simulate page: a deployment in an editor with faults at the key, and its simulated latencies. */

import { call } from "/static/js/api.js";
import { barStyle, draw, seriesStyle } from "/static/js/charts.js";
import { csvRows, jobPage } from "/static/js/job_page.js";
import {
  button,
  cards,
  debounced,
  el,
  fill,
  fold,
  partsBar,
  problemNote,
  shareButton,
  table,
} from "/static/js/parts.js";
import { ownModel } from "/static/js/uploads.js";
import { urlState } from "/static/js/url_state.js";
import { counted, digits, grouped, percent, seconds } from "/static/js/words.js";

const at = (id) => document.getElementById(id);
const form = at("simulation");
const text = at("deployment");
const place = { problem: at("problem"), job: at("job"), answer: at("answer") };
const state = urlState(form, { kept: ["job"] });
const jobs = jobPage({ path: "/simulations", place, save: (job) => state.save({ job }, { push: true }), show });
let checking = null;
let checked = null; // the last answer of the check, with the text that it is of

const check = debounced(checkNow, 250);
fill(
  at("own-model"),
  ownModel((name) => {
    const line = `model: ${name}`;
    text.value = /^model:.*$/m.test(text.value) ? text.value.replace(/^model:.*$/m, line) : `${line}\n${text.value}`;
    text.dispatchEvent(new Event("input", { bubbles: true }));
  }),
);
text.addEventListener("input", () => {
  numberLines();
  check();
});
text.addEventListener("scroll", () => {
  at("lines").scrollTop = text.scrollTop;
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
form.addEventListener("input", () => state.save());
form.addEventListener("reset", (event) => {
  event.preventDefault();
  restore("");
  state.save({ job: "" });
});
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  await checkNow();
  if (!checked?.deployment) {
    at("faults").querySelector("button")?.focus();
    return;
  }
  const values = Object.fromEntries(
    ["rate", "requests", "input_tokens", "output_tokens", "seed"]
      .map((name) => [name, form.elements[name].value])
      .filter(([, value]) => value !== "")
      .map(([name, value]) => [name, Number(value)]),
  );
  jobs.run({ deployment: checked.deployment, workload: form.elements.workload.value, ...values });
});
window.addEventListener("popstate", async () => {
  restore();
  written(await jobs.back());
});
fill(at("share"), shareButton());
call("/workloads")
  .then(({ items }) => {
    const known = new Set([...form.elements.workload.options].map((option) => option.value));
    for (const item of items)
      if (!known.has(item.name)) form.elements.workload.append(new Option(item.name, item.name));
  })
  .catch(() => {});
restore();
written(await jobs.resume());

/** Write the question of the job of a link into the form, if the link holds no deployment itself. */
function written(job) {
  if (job && !new URLSearchParams(window.location.search).has("deployment")) fromQuestion(job.question);
}

function restore(query) {
  state.restore(query);
  numberLines();
  checkNow();
}

/** Write the question of a job into the form. */
function fromQuestion(question) {
  const line = ([key, value]) =>
    `${key}: ${value !== null && typeof value === "object" ? JSON.stringify(value) : value}`;
  text.value = `${Object.entries(question.deployment).map(line).join("\n")}\n`;
  for (const name of ["workload", "rate", "requests", "input_tokens", "output_tokens", "seed"]) {
    const control = form.elements[name];
    const value = String(question[name] ?? "");
    if (control.tagName === "SELECT" && value && ![...control.options].some((option) => option.value === value))
      control.append(new Option(value, value));
    if (value || control.tagName !== "SELECT") control.value = value;
  }
  numberLines();
  state.save();
  checkNow();
}

function numberLines(wrong = new Set()) {
  const n = text.value.split("\n").length;
  fill(
    at("lines"),
    Array.from({ length: n }, (_, i) => el("div", { class: wrong.has(i + 1) ? "wrong" : null }, String(i + 1))),
  );
  at("lines").scrollTop = text.scrollTop;
}

async function checkNow() {
  checking?.abort();
  checking = new AbortController();
  try {
    const found = await call("/deployments/check", {
      method: "POST",
      body: { text: text.value },
      signal: checking.signal,
    });
    checked = found;
    numberLines(new Set(found.faults.map((fault) => fault.line)));
    text.setAttribute("aria-invalid", String(found.faults.length > 0));
    fill(at("faults"), found.faults.length ? el("ul", { class: "faults" }, found.faults.map(faultNote)) : null);
    fill(at("resolved"), found.resolved ? resolvedFold(found) : null);
  } catch (error) {
    if (error.name === "AbortError") return;
    checked = null;
    fill(at("faults"), problemNote(error));
  }
}

function faultNote(fault) {
  const use =
    fault.nearest && fault.key && !fault.nearest.includes(",") && fault.value === null ? () => replaceKey(fault) : null;
  return el(
    "li",
    {},
    button(`Line ${fault.line}`, () => goTo(fault.line, fault.column), { class: "quiet" }),
    ` ${fault.rule}`,
    fault.value !== null ? [": ", el("code", {}, fault.value)] : null,
    fault.nearest ? [". Nearest valid choice: ", el("code", {}, fault.nearest)] : null,
    use ? button("Use it", use) : null,
    fault.hint ? `. ${fault.hint}` : null,
  );
}

function goTo(line, column) {
  const start =
    text.value
      .split("\n")
      .slice(0, line - 1)
      .reduce((sum, one) => sum + one.length + 1, 0) +
    column -
    1;
  const end = text.value.indexOf("\n", start);
  text.focus();
  text.setSelectionRange(start, end < 0 ? text.value.length : end);
}

function replaceKey({ line, key, nearest }) {
  const rows = text.value.split("\n");
  rows[line - 1] = rows[line - 1].replace(key.split(".").at(-1), nearest);
  text.value = rows.join("\n");
  numberLines();
  state.save();
  checkNow();
  text.focus();
}

function resolvedFold(found) {
  const written = new Set(Object.keys(found.deployment));
  const words = (value) =>
    value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value);
  return fold("The deployment as the engine runs it", () => [
    found.notices.length
      ? el(
          "ul",
          {},
          found.notices.map((line) => el("li", {}, line)),
        )
      : null,
    found.resolved.map((pool, i) =>
      table({
        head: ["Key", "Value", ""],
        rows: Object.entries(pool)
          .filter(([, value]) => value !== null && value !== false)
          .map(([key, value]) => [key, words(value), written.has(key) ? "written" : "default"]),
        label: `Keys of pool ${i + 1}`,
      }),
    ),
  ]);
}

async function show(result, job) {
  const { metrics } = result;
  const base = `/api/v1/jobs/${encodeURIComponent(job.id)}`;
  const link = (name, words) =>
    job.links[name] ? el("a", { class: "button", href: `${base}/${name}`, download: "" }, words) : null;
  const latency = [
    ["Time to first token", metrics.ttft_s],
    ["Time per output token", metrics.tpot_s],
    ["Between two tokens", metrics.itl_s],
    ["End to end", metrics.e2e_s],
    ["Waiting", metrics.queue_s],
  ].filter(([, stats]) => stats);
  const stats = ["mean", "p50", "p90", "p95", "p99"];
  const unfinished = metrics.n_arrived - metrics.n_completed;
  const curve = el("div", {});
  const series = el("div", {});
  const phases = el("div", {});
  place.answer.append(
    cards([
      ["First token, p99", value(metrics.ttft_s?.p99), `median ${value(metrics.ttft_s?.p50)}`],
      ["Per output token, p99", value(metrics.tpot_s?.p99), `median ${value(metrics.tpot_s?.p50)}`],
      [
        "Throughput",
        `${digits(metrics.requests_per_s)} req/s`,
        `${digits(metrics.output_tokens_per_s)} output tokens/s`,
      ],
      [
        "Requests",
        grouped(metrics.n_completed),
        unfinished
          ? el("span", { class: "bad" }, `${counted(unfinished, "request")} without an answer`)
          : "all completed",
      ],
      [
        "Power of a GPU",
        metrics.power ? `${digits(metrics.power.gpu_w_mean)} W` : "unknown",
        metrics.energy?.gpu_j_per_output_token ? `${digits(metrics.energy.gpu_j_per_output_token)} J per token` : "",
      ],
    ]),
    el("figure", {}, curve, el("figcaption", {}, "Share of the requests that are at least as fast.")),
    fold(
      "Latencies as a table",
      () =>
        table({
          head: ["", ...stats],
          rows: latency.map(([name, row]) => [name, ...stats.map((stat) => value(row[stat]))]),
          numeric: [1, 2, 3, 4, 5],
          label: "Latencies",
        }),
      { open: true },
    ),
    fold("Over time", () => {
      timeSeries(series, base);
      return series;
    }),
    fold("Phases of a request", () => [typical(result.explain), phases]),
    fold("Where the time goes", () => breakdown(result)),
    result.notices?.length
      ? fold("Notices", () =>
          el(
            "ul",
            {},
            result.notices.map((line) => el("li", {}, line)),
          ),
        )
      : "",
    el(
      "p",
      { class: "row" },
      link("trace.json", "Trace for Perfetto"),
      link("requests.csv", "Requests as CSV"),
      link("time_series.csv", "Time series as CSV"),
      link("result", "JSON"),
    ),
    el("p", { class: "soft" }, "Open the trace at ui.perfetto.dev, or in any other Perfetto."),
  );
  const requests = csvRows(await (await fetch(`${base}/requests.csv`)).text());
  distribution(curve, requests);
  showPhases(phases, requests);
}

const value = (x) => (x === null || x === undefined ? "none" : seconds(x));

function distribution(node, requests) {
  const lines = [
    ["Time to first token", "ttft_s"],
    ["Time per output token", "tpot_s"],
    ["End to end", "e2e_s"],
  ];
  const data = lines.map(([name, key], i) => {
    const sorted = requests
      .map((row) => row[key])
      .filter((x) => x !== null)
      .sort((a, b) => a - b);
    const step = Math.max(1, Math.floor(sorted.length / 400));
    const kept = sorted
      .map((x, rank) => [x, (rank + 1) / sorted.length])
      .filter((_, rank) => rank % step === 0 || rank === sorted.length - 1);
    return {
      type: "scatter",
      mode: "lines",
      name,
      x: kept.map(([x]) => x),
      y: kept.map(([, share]) => share),
      line: seriesStyle(i).line,
      hovertemplate: "%{y:.1%} within %{x:.3s}s<extra></extra>",
    };
  });
  const layout = {
    xaxis: { type: "log", title: { text: "Seconds" }, exponentformat: "SI" },
    yaxis: { tickformat: ".0%", range: [0, 1.02] },
    legend: { orientation: "h", y: 1.15 },
  };
  draw(node, { data, layout }, { label: "Distribution of the latencies", height: 320 });
}

async function timeSeries(node, base) {
  try {
    const rows = csvRows(await (await fetch(`${base}/time_series.csv`)).text()).filter(
      (row) => row.replica === -1 || row.replica === "all",
    );
    const panels = [
      [
        "Requests",
        [
          ["waiting", "queue"],
          ["running", "running"],
        ],
      ],
      ["KV cache in use", [["share", "kv_fraction"]]],
      [
        "Tokens per second",
        [
          ["input", "input_tokens_per_s"],
          ["output", "output_tokens_per_s"],
        ],
      ],
      ["Power, W", [["all GPUs", "power_w"]]],
    ];
    const step = Math.max(1, Math.floor(rows.length / 800));
    const kept = rows.filter((_, i) => i % step === 0);
    fill(
      node,
      el(
        "div",
        { class: "two" },
        panels.map(([title, lines]) => {
          const chart = el("div", {});
          const data = lines.map(([name, key], i) => ({
            type: "scatter",
            mode: "lines",
            name,
            x: kept.map((row) => row.time_s),
            y: kept.map((row) => row[key]),
            line: seriesStyle(i).line,
          }));
          const layout = {
            title: { text: title, font: { size: 13 }, x: 0 },
            xaxis: { title: { text: "Seconds since the start" } },
            yaxis: { rangemode: "tozero", tickformat: title.startsWith("KV") ? ".0%" : "" },
            showlegend: lines.length > 1,
            legend: { orientation: "h", y: 1.2, x: 0.4 },
            margin: { t: 40 },
          };
          requestAnimationFrame(() => draw(chart, { data, layout }, { label: `${title} over time`, height: 240 }));
          return chart;
        }),
      ),
    );
  } catch (error) {
    fill(node, problemNote(error));
  }
}

function showPhases(node, requests) {
  const done = requests.filter((row) => row.e2e_s !== null);
  const slowest = [...done].sort((a, b) => b.e2e_s - a.e2e_s).slice(0, 20);
  const parts = [
    ["waiting", (row) => row.queue_s ?? 0],
    ["prefill", (row) => Math.max(row.ttft_s - (row.queue_s ?? 0), 0)],
    ["decode", (row) => Math.max(row.e2e_s - row.ttft_s, 0)],
  ];
  const chart = el("div", {});
  const names = slowest.map((row) => `request ${row.request_id}`);
  const data = parts.map(([name, of], i) => ({
    type: "bar",
    orientation: "h",
    name,
    y: names,
    x: slowest.map(of),
    marker: barStyle(i),
    hovertemplate: `${name} %{x:.3s}s<extra>%{y}</extra>`,
  }));
  const layout = {
    barmode: "stack",
    xaxis: { title: { text: "Seconds since its arrival" } },
    yaxis: { autorange: "reversed" },
    legend: { orientation: "h", y: 1.12 },
  };
  requestAnimationFrame(() =>
    draw(chart, { data, layout }, { label: "Phases of the slowest requests", height: 60 + 22 * slowest.length }),
  );
  const rows = slowest.map((row) => [
    `${row.request_id}`,
    seconds(row.arrival_s),
    grouped(row.input_tokens),
    grouped(row.output_tokens),
    ...parts.map(([, of]) => seconds(of(row))),
    seconds(row.e2e_s),
    grouped(row.preemptions ?? 0),
    row.status,
  ]);
  fill(
    node,
    el("p", { class: "soft" }, `The ${slowest.length} slowest of ${counted(done.length, "request")}.`),
    chart,
    table({
      head: [
        "Request",
        "Arrived",
        "Input tokens",
        "Output tokens",
        "Waiting",
        "Prefill",
        "Decode",
        "End to end",
        "Preempted",
        "Status",
      ],
      rows,
      numeric: [1, 2, 3, 4, 5, 6, 7, 8],
      label: "Phases of the slowest requests, as a table",
    }),
  );
}

function breakdown({ time_breakdown: times, calibration, explain }) {
  const parts = Object.entries(times ?? {})
    .filter(([, s]) => typeof s === "number" && s > 0)
    .sort((a, b) => b[1] - a[1]);
  const total = parts.reduce((sum, [, s]) => sum + s, 0);
  return [
    partsBar(
      parts.map(([name, size], i) => ({
        name: name.replaceAll("_", " "),
        size,
        words: `${percent(size / total)}`,
        pattern: i % 6,
      })),
      total,
      "Time of the replicas",
    ),
    calibration
      ? el(
          "p",
          { class: "soft" },
          `Calibration ${calibration.bundle}: ${percent(calibration.measured_fraction)} of the time measured, ${percent(calibration.interpolated_fraction)} interpolated, ${percent(calibration.roofline_fraction)} from the roofline.`,
        )
      : null,
    explain?.bound_by
      ? el(
          "p",
          {},
          `Mostly bound by ${words(explain.bound_by)}: ${Object.entries(explain.bounds)
            .filter(([, share]) => share >= 0.005)
            .sort((a, b) => b[1] - a[1])
            .map(([name, share]) => `${words(name)} ${percent(share)}`)
            .join(", ")} of the time of the replicas.`,
        )
      : null,
  ];
}

const words = (name) => name.replaceAll("_", " ");

/** Return a chart of the phases of a mean, a median and a slow request. */
function typical(explain) {
  const rows = [
    ["e2e", "End to end"],
    ["ttft", "First token"],
  ].flatMap(([metric, name]) =>
    Object.entries(explain?.latency?.[metric] ?? {}).map(([stat, found]) => [`${name}, ${stat}`, found.phases_s]),
  );
  const phases = [...new Set(rows.flatMap(([, found]) => Object.keys(found)))].filter((phase) =>
    rows.some(([, found]) => found[phase] > 1e-6),
  );
  if (!phases.length) return null;
  const node = el("div", {});
  const data = phases.map((phase, i) => ({
    type: "bar",
    orientation: "h",
    name: words(phase),
    y: rows.map(([name]) => name),
    x: rows.map(([, found]) => found[phase]),
    marker: barStyle(i),
    hovertemplate: `${words(phase)} %{x:.3s}s<extra>%{y}</extra>`,
  }));
  const layout = {
    barmode: "stack",
    xaxis: { title: { text: "Seconds" } },
    yaxis: { autorange: "reversed" },
    legend: { orientation: "h", y: 1.2 },
  };
  requestAnimationFrame(() =>
    draw(
      node,
      { data, layout },
      { label: "Phases of the latencies at their mean and percentiles", height: 110 + 30 * rows.length },
    ),
  );
  return el("figure", {}, node, el("figcaption", {}, "Mean of the phases of the requests at each statistic."));
}
