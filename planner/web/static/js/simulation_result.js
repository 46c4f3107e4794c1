/** The result of a simulation: its latencies, time series, phases of requests, and where the time goes. */

import { LEGEND_ABOVE, barStyle, draw, seriesStyle } from "/static/js/charts.js";
import { csvRows } from "/static/js/job_page.js";
import { bullets, cards, el, fill, fold, partsBar, problemNote, table } from "/static/js/parts.js";
import { counted, digits, grouped, percent, seconds } from "/static/js/words.js";

/** Show the result of a simulation in `place`. */
export async function showSimulation(place, result, job) {
  const base = `/api/v1/jobs/${encodeURIComponent(job.id)}`;
  const [curve, series, phases] = [el("div", {}), el("div", {}), el("div", {})];
  place.append(
    summaryCards(result.metrics),
    el("figure", {}, curve, el("figcaption", {}, "Share of the requests that are at least as fast.")),
    fold("Latencies as a table", () => latencyTable(result.metrics), { open: true }),
    fold("Over time", () => {
      timeSeries(series, base);
      return series;
    }),
    fold("Phases of a request", () => [typical(result.explain), phases]),
    fold("Where the time goes", () => breakdown(result)),
    result.notices?.length ? fold("Notices", () => bullets(result.notices)) : "",
    ...downloads(job, base),
  );
  const requests = csvRows(await (await fetch(`${base}/requests.csv`)).text());
  distribution(curve, requests);
  showPhases(phases, requests);
}

/** Return the most important figures of a simulation. */
function summaryCards(metrics) {
  const unfinished = metrics.n_arrived - metrics.n_completed;
  const lost = () => el("span", { class: "bad" }, `${counted(unfinished, "request")} without an answer`);
  const joules = metrics.energy?.gpu_j_per_output_token;
  const rates = [`${digits(metrics.requests_per_s)} req/s`, `${digits(metrics.output_tokens_per_s)} output tokens/s`];
  const watts = metrics.power ? `${digits(metrics.power.gpu_w_mean)} W` : "unknown";
  return cards([
    ["First token, p99", value(metrics.ttft_s?.p99), `median ${value(metrics.ttft_s?.p50)}`],
    ["Per output token, p99", value(metrics.tpot_s?.p99), `median ${value(metrics.tpot_s?.p50)}`],
    ["Throughput", ...rates],
    ["Requests", grouped(metrics.n_completed), unfinished ? lost() : "all completed"],
    ["Power of a GPU", watts, joules ? `${digits(joules)} J per token` : ""],
  ]);
}

/** Return the statistics of every latency. */
function latencyTable(metrics) {
  const stats = ["mean", "p50", "p90", "p95", "p99"];
  const latencies = {
    "Time to first token": metrics.ttft_s,
    "Time per output token": metrics.tpot_s,
    "Between two tokens": metrics.itl_s,
    "End to end": metrics.e2e_s,
    Waiting: metrics.queue_s,
  };
  const known = Object.entries(latencies).filter(([, found]) => found);
  return table({
    head: ["", ...stats],
    rows: known.map(([name, found]) => [name, ...stats.map((stat) => value(found[stat]))]),
    numeric: [1, 2, 3, 4, 5],
    label: "Latencies",
  });
}

/** Return links to the files of a simulation. */
function downloads(job, base) {
  const files = {
    "trace.json": "Trace for Perfetto",
    "requests.csv": "Requests as CSV",
    "time_series.csv": "Time series as CSV",
    result: "JSON",
  };
  const known = Object.entries(files).filter(([name]) => job.links[name]);
  const links = known.map(([name, words]) =>
    el("a", { class: "button", href: `${base}/${name}`, download: "" }, words),
  );
  return [
    el("p", { class: "row" }, links),
    el("p", { class: "soft" }, "Open the trace at ui.perfetto.dev, or in any other Perfetto."),
  ];
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
    legend: LEGEND_ABOVE,
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
            legend: { ...LEGEND_ABOVE, x: 0.4 },
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
    legend: LEGEND_ABOVE,
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
    calibration ? el("p", { class: "soft" }, calibrationWords(calibration)) : null,
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

function calibrationWords({ bundle, ...shares }) {
  const of = (name) => percent(shares[`${name}_fraction`]);
  const known = `${of("measured")} of the time measured, ${of("interpolated")} interpolated`;
  return `Calibration ${bundle}: ${known}, ${of("roofline")} from the roofline.`;
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
    legend: LEGEND_ABOVE,
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
