/** The inference task page: requests to an endpoint of the server's list, measured, beside their simulation. */

import { call } from "/static/js/api.js";
import { LEGEND_ABOVE, draw, seriesStyle } from "/static/js/charts.js";
import { resultLinks } from "/static/js/job.js";
import { jobPage } from "/static/js/job_page.js";
import { bullets, cards, codeBlock, el, fill, fold, problemNote, shareButton, table } from "/static/js/parts.js";
import { urlState } from "/static/js/url_state.js";
import { counted, digits, dollars, grouped, seconds } from "/static/js/words.js";

const EXAMPLE = `local-vllm:
  url: http://localhost:8000/v1
  models: [meta-llama/Llama-3.1-8B-Instruct]
  deployment: {model: llama3.1-8b, engine: vllm, hardware: h100x1}
`;

/** Words for the forms of requests. */
const FORMS = { chat: "OpenAI chat completions", completions: "OpenAI completions", vertex: "Vertex AI predict" };

const at = (id) => document.getElementById(id);
const form = at("task");
const place = { problem: at("problem"), job: at("job"), answer: at("answer") };
const state = urlState(form, { kept: ["job"] });
const jobs = jobPage({ path: "/inference-tasks", place, save: (job) => state.save({ job }, { push: true }), show });
let endpoints = [];

try {
  endpoints = (await call("/endpoints")).items;
} catch (error) {
  fill(place.problem, problemNote(error));
}
fill(
  form.elements.endpoint,
  endpoints.map((one) => new Option(one.name, one.name)),
);
at("go").disabled = !endpoints.length;
if (!endpoints.length && !place.problem.children.length) {
  fill(
    place.problem,
    el(
      "div",
      { class: "note" },
      el(
        "p",
        {},
        "This server has no endpoints. Its operator lists them in a file and starts ",
        el("code", {}, "plan serve --endpoints endpoints.yaml"),
        ".",
      ),
      codeBlock(EXAMPLE, "Example of endpoints.yaml"),
    ),
  );
}
restore();
form.addEventListener("input", () => {
  follow();
  state.save();
});
form.addEventListener("reset", (event) => {
  event.preventDefault();
  restore("");
  state.save({ job: "" });
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  jobs.run(body());
});
window.addEventListener("popstate", async () => {
  restore();
  written(await jobs.back());
});
fill(at("share"), shareButton());
written(await jobs.resume());

function written(job) {
  if (job) fromQuestion(job.question);
}

function restore(query) {
  follow();
  state.restore(query);
  follow();
  if (query === undefined) state.restore(query); // the models of the endpoint are known now
}

function follow() {
  const chosen = endpoints.find((one) => one.name === form.elements.endpoint.value);
  const models = chosen?.models ?? [];
  const model = form.elements.model;
  if ([...model.options].map((option) => option.value).join("\n") !== models.join("\n"))
    fill(
      model,
      models.map((name) => new Option(name, name)),
    );
  at("model-field").hidden = models.length === 0;
  at("endpoint-note").textContent = chosen ? limits(chosen) : "";
  const random = form.elements.prompts.value === "random";
  at("prompt-field").hidden = random;
  at("input-field").hidden = !random;
}

/** Return the form and the limits of an endpoint in words. */
function limits({ form: kind, most_requests: requests, most_concurrency: together, most_output_tokens: tokens }) {
  const most = `${counted(requests, "request")}, ${grouped(together)} at once, ${grouped(tokens)} tokens each`;
  return `${FORMS[kind] ?? kind}; at most ${most}.`;
}

function body() {
  const { endpoint, model, prompts, prompt, input_tokens: inputs, stream } = form.elements;
  const number = (name) => Number(form.elements[name].value);
  return {
    endpoint: endpoint.value,
    ...(model.value ? { model: model.value } : {}),
    ...(prompts.value === "random" ? { input_tokens: Number(inputs.value) } : { prompt: prompt.value }),
    output_tokens: number("output_tokens"),
    requests: number("requests"),
    concurrency: number("concurrency"),
    stream: stream.checked,
  };
}

function fromQuestion(question) {
  if (new URLSearchParams(window.location.search).size > 1) return;
  for (const name of ["endpoint", "model", "prompt", "input_tokens", "output_tokens", "requests", "concurrency"])
    if (question[name] !== undefined) form.elements[name].value = question[name];
  form.elements.prompts.value = question.prompt === undefined ? "random" : "text";
  form.elements.stream.checked = question.stream !== false;
  follow();
}

function show(result, job) {
  const { summary, simulated, requests } = result;
  const done = requests.filter((row) => !row.problem);
  const chart = el("div", {});
  const caption = () => `Measured and simulated latencies. Simulated: ${simulated.calibration.bundle}.`;
  const texts = () =>
    done.slice(0, 50).map((row) => {
      return codeBlock(row.text || "(no text)", `Text of request ${row.position + 1} of ${requests.length}`);
    });
  const parts = [
    failures(requests),
    done.length ? [summaryCards(summary, simulated), firstText(done[0])] : null,
    simulated ? el("figure", {}, chart, el("figcaption", {}, caption())) : null,
    fold(`Each request (${requests.length})`, () => requestTable(requests), { open: requests.length > 1 }),
    requests.length > 1 ? fold("The texts", texts) : null,
    bullets(result.notes, { class: "soft" }),
    el("div", { class: "row" }, shareButton(), resultLinks(job)),
  ];
  place.answer.append(...parts.flat().filter(Boolean));
  if (simulated) compare(chart, summary, simulated);
}

const value = (x) => (x === null || x === undefined ? "none" : seconds(x));

/** Return how many requests failed, and why; null if none did. */
function failures(requests) {
  const failed = requests.filter((row) => row.problem);
  if (!failed.length) return null;
  const reasons = [...new Set(failed.map((row) => row.problem))].slice(0, 5);
  const words = `${failed.length} of ${counted(requests.length, "request")} failed.`;
  return el(
    "div",
    { class: "problem" },
    el("p", {}, el("strong", {}, words)),
    reasons.map((why) => el("p", {}, why)),
  );
}

/** Return the most important figures of a task, beside what is simulated for it. */
function summaryCards(summary, simulated) {
  const beside = (metric) => (simulated ? `simulated ${value(simulated[metric]?.p50)}` : "");
  const latency = (name, metric) => [`${name}, median`, value(summary[metric]?.p50), beside(metric)];
  const tokens = `${grouped(summary.output_tokens)} tokens in ${seconds(summary.duration_s)}`;
  return cards([
    latency("First token", "ttft_s"),
    latency("Between two tokens", "itl_s"),
    latency("End to end", "e2e_s"),
    ["Output", `${digits(summary.output_tokens_per_s)} tokens/s`, tokens],
    costCard(summary),
  ]);
}

function costCard({ usd, usd_of_machines: machines }) {
  if (usd !== null) return ["Cost", dollars(usd), "by tokens"];
  return machines !== null ? ["Cost", dollars(machines), "of the machines meanwhile"] : ["Cost", "unknown", ""];
}

function firstText({ text, text_is_cut: cut }) {
  const note = cut ? el("p", { class: "soft" }, "The text is longer; this is its start.") : null;
  return el("div", {}, codeBlock(text || "(no text)", "Text of the first answer"), note);
}

function requestTable(requests) {
  const latencies = ["First token", "Per token, median", "End to end"];
  const amounts = ["Input tokens", "Output tokens", "Cost"];
  return table({
    head: ["Request", "Sent", ...latencies, ...amounts, "Finish reason"],
    numeric: [0, 1, 2, 3, 4, 5, 6, 7],
    label: "Requests",
    rows: requests.map((row) => [`${row.position + 1}`, seconds(row.sent_s), ...requestCells(row)]),
  });
}

function requestCells(row) {
  if (row.problem) return ["", "", "", "", "", "", el("span", { class: "bad fault" }, row.problem)];
  return [
    value(row.ttft_s),
    value(row.itl_s?.p50),
    value(row.e2e_s),
    row.input_tokens === null ? "unknown" : grouped(row.input_tokens),
    grouped(row.output_tokens),
    row.usd === null ? "unknown" : dollars(row.usd),
    row.finish_reason ?? "",
  ];
}

function compare(node, summary, simulated) {
  const rows = [
    ["First token", "ttft_s"],
    ["Per output token", "tpot_s"],
    ["Between two tokens", "itl_s"],
    ["End to end", "e2e_s"],
  ].filter(([, key]) => summary[key] && simulated[key]);
  const stats = ["p50", "p99"];
  const names = rows.flatMap(([name]) => stats.map((stat) => `${name}, ${stat}`));
  const of = (found) => rows.flatMap(([, key]) => stats.map((stat) => found[key][stat]));
  const data = [
    ["measured", summary],
    ["simulated", simulated],
  ].map(([name, found], i) => ({
    type: "scatter",
    mode: "markers",
    name,
    x: of(found),
    y: names,
    marker: { ...seriesStyle(i).marker, size: 12 },
    hovertemplate: "%{y}: %{x:.3s}s<extra>%{fullData.name}</extra>",
  }));
  draw(
    node,
    {
      data,
      layout: {
        xaxis: { type: "log", title: { text: "Seconds" }, exponentformat: "SI" },
        yaxis: { autorange: "reversed" },
        legend: LEGEND_ABOVE,
      },
    },
    { label: "Measured and simulated latencies", height: 90 + 30 * names.length },
  );
}
