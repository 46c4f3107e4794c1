/** The calibrate page: what is calibrated and how well, a profile of this machine, and a plan against a load test. */

import { call } from "/static/js/api.js";
import { LEGEND_ABOVE, draw, seriesStyle } from "/static/js/charts.js";
import { resultLinks } from "/static/js/job.js";
import { jobPage } from "/static/js/job_page.js";
import { cards, el, fill, fold, problemNote, shareButton, table } from "/static/js/parts.js";
import { upload } from "/static/js/uploads.js";
import { digits, grouped, percent, seconds, si, withSign } from "/static/js/words.js";

const at = (id) => document.getElementById(id);
const place = { problem: at("problem"), job: at("job"), answer: at("answer") };
const save = (job) => window.history.pushState(null, "", `${window.location.pathname}?job=${encodeURIComponent(job)}`);
const shows = { profile: showProfile, verification: showVerification, import: showImport };
const show = (result, job) => shows[job.kind](result, job);
const profiles = jobPage({ path: "/profiles", place, save, show });
const verifications = jobPage({ path: "/verifications", place, save, show });
const imports = jobPage({ path: "/imports", place, save, show });

/** Words for the ways in which the costs of an accelerator are known. */
const KNOWN = { measured: ["measured", "good"], borrowed: ["borrowed", ""], none: ["roofline only", "bad"] };

known();
plans();
profiles.resume();
window.addEventListener("popstate", () => profiles.back());

at("profile").addEventListener("submit", (event) => {
  event.preventDefault();
  const { budget_s: budget, threads, model } = event.target.elements;
  profiles.run({
    budget_s: Number(budget.value),
    ...(threads.value ? { threads: Number(threads.value) } : {}),
    ...(model.value.trim() ? { model: model.value.trim() } : {}),
  });
});
at("verification").addEventListener("submit", async (event) => {
  event.preventDefault();
  const results = await uploaded(at("results"));
  if (results) verifications.run({ job: at("plan").value, results });
});
/** What becomes of the files of each type of import. */
const IMPORTS = {
  results: "Results of vllm bench serve, GuideLLM, AIPerf or inference-perf become one table.",
  tables:
    "One file for each operator family, FAMILY.parquet or FAMILY.csv, with the columns of calibrate profile: the " +
    "shape, seconds and source of each row. Their fit replaces the calibration of this hardware on this server; " +
    "operators without a table have roofline times then.",
  calibration: "The archive that calibrate export writes. It is installed on this server, and later plans use it.",
};
const importing = () => {
  at("what-note").textContent = IMPORTS[at("what").value];
  at("import-hardware-field").hidden = at("what").value !== "tables";
  at("import-hardware").required = at("what").value === "tables";
};
at("what").addEventListener("change", importing);
importing();
at("import").addEventListener("submit", async (event) => {
  event.preventDefault();
  const files = await uploaded(at("files"));
  const what = at("what").value;
  const hardware = what === "tables" ? { hardware: at("import-hardware").value.trim() } : {};
  if (files) imports.run({ [what]: what === "calibration" ? files[0] : files, ...hardware });
});

for (const id of ["profile", "verification", "import"]) at(id).inert = false; // each has its handler now

/** Upload the files of a control and return their names; null if one is refused. */
async function uploaded(control) {
  const found = [];
  for (const file of control.files) {
    const done = await upload(file, control.form);
    if (!done) return null;
    found.push(done.upload);
  }
  return found;
}

async function plans() {
  try {
    const { items } = await call("/jobs?kind=plan&limit=100");
    const done = items.filter((job) => job.status === "done" && job.verdict !== "no");
    fill(
      at("plan"),
      done.length ? done.map((job) => new Option(job.title, job.id)) : new Option("no finished plans yet", ""),
    );
  } catch (error) {
    fill(place.problem, problemNote(error));
  }
}

async function known() {
  try {
    const { items, whole_runs: runs } = await call("/calibrations");
    const count = (kind) => items.filter((item) => item.calibrated === kind).length;
    const sorted = [...items].sort((a, b) => order(a) - order(b) || a.name.localeCompare(b.name));
    const chart = el("div", {});
    fill(
      at("known"),
      cards([
        ["Measured", grouped(count("measured")), "accelerators"],
        ["Borrowed from a neighbour", grouped(count("borrowed")), "accelerators"],
        ["Roofline only", grouped(count("none")), "accelerators"],
      ]),
      el(
        "figure",
        {},
        chart,
        el(
          "figcaption",
          {},
          "Median errors of each kind of operator on shapes that were held out of the fit, by accelerator.",
        ),
      ),
      fold("By accelerator", () =>
        table({
          head: ["Accelerator", "Costs", "From", "Median error on shapes held out", "Notices"],
          label: "Calibration by accelerator",
          rows: sorted.map((item) => [
            item.name,
            tag(item),
            item.bundle,
            errors(item),
            (item.notices ?? []).join("; "),
          ]),
        }),
      ),
      fold("Whole runs: how far latencies were from measured ones", () => wholeRuns(runs)),
    );
    errorChart(
      chart,
      sorted.filter((item) => item.calibrated === "measured"),
    );
  } catch (error) {
    fill(place.problem, problemNote(error));
  }
}

const order = (item) => ["measured", "borrowed", "none"].indexOf(item.calibrated);

function tag(item) {
  const [words, kind] = KNOWN[item.calibrated] ?? [item.calibrated, ""];
  return el("span", { class: `tag ${kind}` }, item.own ? `${words} here` : words);
}

function errorChart(node, items) {
  const kinds = [
    ...new Set(
      items.flatMap((item) => item.families.filter((family) => family.measured).map((family) => family.family)),
    ),
  ];
  const data = kinds.map((kind, i) => {
    const found = items
      .map((item) => [item.name, item.families.find((family) => family.family === kind && family.measured)?.error])
      .filter(([, error]) => error !== undefined);
    return {
      type: "scatter",
      mode: "markers",
      name: kind.replaceAll("_", " "),
      x: found.map(([, error]) => error),
      y: found.map(([name]) => name),
      marker: { ...seriesStyle(i).marker, size: 10 },
      hovertemplate: "%{y}: %{x:.1%}<extra>%{fullData.name}</extra>",
    };
  });
  draw(
    node,
    {
      data,
      layout: {
        xaxis: { tickformat: ".0%", rangemode: "tozero", title: { text: "Median error" } },
        yaxis: { autorange: "reversed" },
        legend: LEGEND_ABOVE,
      },
    },
    { label: "Errors of single operators by accelerator", height: 110 + 30 * items.length },
  );
}

function errors(item) {
  const families = item.families.filter((family) => family.measured);
  if (!families.length) return "none measured";
  return el(
    "details",
    {},
    el(
      "summary",
      {},
      `${percent(median(families.map((family) => family.error)))} over ${families.length} kinds of operator`,
    ),
    table({
      head: ["Operator", "Error", "Rows"],
      rows: families.map((family) => [
        family.family.replaceAll("_", " "),
        percent(family.error),
        grouped(family.rows?.rows_in ?? 0),
      ]),
      numeric: [1, 2],
      label: `Errors of ${item.name}`,
    }),
  );
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length % 2
    ? sorted[(sorted.length - 1) / 2]
    : (sorted[sorted.length / 2 - 1] + sorted[sorted.length / 2]) / 2;
}

function wholeRuns(runs) {
  const names = ["ttft", "tpot", "itl", "e2e"];
  const signed = (x) => `${withSign(100 * x)} %`;
  const range = ([low, high]) => `${signed(low)} to ${signed(high)}`;
  return table({
    head: ["Engine", ...names.map((name) => name.toUpperCase()), "Runs", "Source"],
    label: "Errors of whole runs",
    rows: runs.map((run) => [
      run.engine,
      ...names.map((name) => (run.intervals[name] ? range(run.intervals[name]) : "none")),
      String(Math.max(...Object.values(run.runs))),
      run.source,
    ]),
    caption: "The true value relative to the simulated one, in nine of ten measured runs.",
  });
}

function showProfile(result, job) {
  place.answer.append(
    cards([
      ["Machine", result.hardware, result.installed ? "installed: later plans use it" : "not installed"],
      ["Memory bandwidth", si(result.memory_bandwidth_bytes_per_s, "B/s"), ""],
      ...Object.entries(result.peak_flops)
        .slice(0, 3)
        .map(([dtype, flops]) => [`Peak, ${dtype}`, si(flops, "FLOP/s"), ""]),
    ]),
    fold("Errors on shapes held out", () => errorTable(result.errors), { open: true }),
    result.notices.length
      ? fold("Notices", () =>
          el(
            "ul",
            {},
            result.notices.map((line) => el("li", {}, line)),
          ),
        )
      : "",
    el("div", { class: "row" }, shareButton(), resultLinks(job)),
  );
  known();
}

function showImport(result, job) {
  if (!result.runs) {
    place.answer.append(
      el("h2", { class: "good" }, `Installed for ${result.hardware}`),
      errorTable(result.errors),
      result.notices.length
        ? el(
            "ul",
            { class: "soft" },
            result.notices.map((line) => el("li", {}, line)),
          )
        : "",
    );
    known();
    return;
  }
  const stats = ["p50", "p99"];
  const metrics = ["ttft_s", "tpot_s", "itl_s", "e2e_s"];
  place.answer.append(
    table({
      head: [
        "Run",
        "Requests",
        "Failed",
        "Requests/s",
        ...metrics.flatMap((metric) => stats.map((stat) => `${metric.replace("_s", "").toUpperCase()} ${stat}`)),
      ],
      rows: result.runs.map((run) => [
        `${run.source} (${run.client})`,
        grouped(run.n),
        grouped(run.n_failed),
        digits(run.requests_per_s),
        ...metrics.flatMap((metric) =>
          stats.map((stat) => (run[metric][stat] === null ? "none" : seconds(run[metric][stat]))),
        ),
      ]),
      numeric: Array.from({ length: 11 }, (_, i) => i + 1),
      label: "Measured runs",
    }),
    ...result.runs
      .filter((run) => run.notes.length)
      .map((run) =>
        el(
          "ul",
          { class: "soft" },
          run.notes.map((note) => el("li", {}, note)),
        ),
      ),
    el("div", { class: "row" }, shareButton(), resultLinks(job)),
  );
}

function errorTable(found) {
  const rows = Object.entries(found ?? {}).flatMap(([family, regions]) =>
    (Array.isArray(regions) ? regions : []).map((row) => [
      family.replaceAll("_", " "),
      row.region,
      percent(row.median_abs_rel_error),
      percent(row.p90_abs_rel_error),
      grouped(row.n),
    ]),
  );
  return rows.length
    ? table({
        head: ["Operator", "Region", "Median error", "p90 error", "Shapes"],
        rows,
        numeric: [2, 3, 4],
        label: "Errors of the profile",
      })
    : el("pre", {}, JSON.stringify(found, null, 2));
}

function showVerification(result, job) {
  const runs = result.runs ?? [result];
  const rows = runs.flatMap((run, i) =>
    run.latencies.map((row) => ({
      ...row,
      name: `${row.metric}.${row.stat}${runs.length > 1 ? `, run ${i + 1}` : ""}`,
    })),
  );
  const chart = el("div", {});
  const interval = (low, high) => `${seconds(low)} to ${seconds(high)}`;
  place.answer.append(
    ...[
      el(
        "h2",
        {},
        result.holds
          ? el("span", { class: "good" }, "The prediction holds")
          : el("span", { class: "bad" }, "The prediction does not hold"),
      ),
      el(
        "figure",
        {},
        chart,
        el("figcaption", {}, "Measured against predicted, with their intervals; on the line both are equal."),
      ),
      table({
        head: ["Statistic", "Predicted", "Interval", "Measured", "Interval", "Finding", "Objective"],
        numeric: [1, 3],
        label: "Measured against predicted",
        rows: rows.map((row) => [
          row.name,
          seconds(row.value_s),
          interval(row.low_s, row.high_s),
          seconds(row.measured_s),
          interval(row.measured_low_s, row.measured_high_s),
          row.finding,
          row.objective_met === null ? "" : row.objective_met ? "met" : el("span", { class: "bad" }, "missed"),
        ]),
      }),
      ...runs.map((run) =>
        run.notes.length
          ? el(
              "ul",
              { class: "soft" },
              run.notes.map((note) => el("li", {}, note)),
            )
          : null,
      ),
      el("div", { class: "row" }, shareButton(), resultLinks(job)),
    ].filter(Boolean),
  );
  const all = rows.flatMap((row) => [row.value_s, row.measured_s]);
  const ends = [Math.min(...all) * 0.7, Math.max(...all) * 1.4];
  const error = (of, low, high) => ({
    type: "data",
    symmetric: false,
    array: rows.map((row) => Math.max((row[high] ?? row[of]) - row[of], 0)),
    arrayminus: rows.map((row) => Math.max(row[of] - (row[low] ?? row[of]), 0)),
    thickness: 1,
  });
  draw(
    chart,
    {
      data: [
        {
          type: "scatter",
          mode: "lines",
          name: "equal",
          x: ends,
          y: ends,
          line: { color: "#8C8C8C", dash: "dash", width: 1 },
          hoverinfo: "skip",
        },
        {
          type: "scatter",
          mode: "markers+text",
          name: "statistics",
          x: rows.map((row) => row.value_s),
          y: rows.map((row) => row.measured_s),
          error_x: error("value_s", "low_s", "high_s"),
          error_y: error("measured_s", "measured_low_s", "measured_high_s"),
          text: rows.map((row) => row.name),
          textposition: "top center",
          marker: seriesStyle(0).marker,
        },
      ],
      layout: {
        showlegend: false,
        xaxis: { type: "log", title: { text: "Predicted, s" } },
        yaxis: { type: "log", title: { text: "Measured, s" } },
      },
    },
    { label: "Measured against predicted latencies", height: 400 },
  );
}
