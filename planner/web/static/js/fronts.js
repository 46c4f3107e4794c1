/** The fronts page: a Pareto front of deployments and loads, with its best balance. */

import { LEGEND_ABOVE, draw, logAxis, seriesStyle } from "/static/js/charts.js";
import { jobPage } from "/static/js/job_page.js";
import { resultLinks } from "/static/js/job.js";
import { cards, codeBlock, el, fill, fold, problemNote, shareButton, table } from "/static/js/parts.js";
import { questionForm } from "/static/js/question/form.js";
import { counted, digits, dollars, grouped } from "/static/js/words.js";

const at = (id) => document.getElementById(id);

/** Keys that the question of a front may have, by dotted name; the others belong to plans. */
const KEYS = at("axes").dataset.keys.split(" ");
const place = { problem: at("problem"), job: at("job"), answer: at("answer") };
const controls = [0, 1, 2].map((i) => at(`axis-${i}`));

const page = await questionForm({ kept: ["job", "axes"], onChange: () => {} });
const jobs = jobPage({
  path: "/fronts",
  place,
  save: (job) => page.state.save({ job, axes: axes().join(",") }, { push: true }),
  show,
});

restoreAxes();
hideOthers();
controls.forEach((control) => control.addEventListener("change", () => page.state.save({ axes: axes().join(",") })));
window.addEventListener("popstate", async () => {
  restoreAxes();
  written(await jobs.back());
});
page.form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!page.complete()) {
    fill(place.problem, problemNote(new Error("Name a model and hardware.")));
    return;
  }
  const question = page.question();
  jobs.run({ ...onlyKeys(question), axes: axes() });
});
written(await jobs.resume());

/** Write the question of the job of a link into the form, if the link holds no question itself. */
function written(job) {
  if (!job || page.complete()) return;
  const { axes: named, ...question } = job.question;
  page.write(question);
  (named ?? []).forEach((name, i) => pick(controls[i], name));
}

/** Return the part of a question that a front takes. */
function onlyKeys(question, prefix = "") {
  const found = {};
  for (const [name, value] of Object.entries(question)) {
    if (KEYS.includes(prefix + name)) found[name] = value;
    else if (!prefix && KEYS.some((key) => key.startsWith(`${name}.`))) found[name] = onlyKeys(value, `${name}.`);
  }
  return found;
}

/** Hide the controls of keys that a front does not have. */
function hideOthers() {
  for (const control of page.form.elements) {
    if (control.name && !KEYS.includes(control.name)) (control.closest(".field, .choice") ?? control).hidden = true;
  }
  for (const group of page.form.querySelectorAll("details")) {
    const parts = [...group.querySelectorAll(".field, .choice, .button")];
    group.hidden = parts.length > 0 && parts.every((part) => part.hidden);
  }
}

function axes() {
  return [...new Set(controls.map((control) => control.value).filter(Boolean))];
}

function restoreAxes() {
  const given = new URLSearchParams(window.location.search).get("axes")?.split(/,(?![^[]*\])/);
  controls.forEach((control, i) => (given ? pick(control, given[i] ?? "") : null));
}

function pick(control, name) {
  if (!control) return;
  if (![...control.options].some((option) => option.value === name)) control.append(new Option(name, name));
  control.value = name;
}

function show(result, job) {
  const { axes: names, front, simulated } = result;
  if (!front.length) {
    place.answer.append(
      el("h2", { class: "verdict" }, el("span", { class: "bad" }, "No"), ": no deployment meets the limits"),
      el("p", {}, `${counted(simulated.length, "point")} simulated.`),
      el("p", { class: "row" }, resultLinks(job)),
    );
    return;
  }
  const best = front[result.best_balance];
  const chart = el("div", {});
  place.answer.append(
    el("h2", { class: "verdict" }, `Best balance: ${best.words}`),
    el(
      "p",
      {},
      [
        `On ${best.hardware} at ${digits(best.requests_per_s)} requests/s.`,
        "It is the point of the front that is nearest to the best value of every axis,",
        "each from the best to the worst of the front on a logarithmic scale.",
      ].join(" "),
    ),
    cards([
      ...names.map((axis) => [axis.words, amount(best.values[axis.name], axis.unit), ""]),
      ["Price", best.usd_per_hour === null ? "unknown" : `${dollars(best.usd_per_hour)}/h`, ""],
    ]),
    el("figure", {}, chart, el("figcaption", {}, captionOf(names, simulated))),
    el("div", { class: "row" }, shareButton(), resultLinks(job)),
    fold(
      `The front as a table (${counted(front.length, "point")})`,
      () =>
        table({
          head: ["Deployment", "Hardware", "Requests/s", "Price", ...names.map((axis) => axis.name)],
          rows: front.map((p) => [
            p === best ? el("strong", {}, `★ ${p.words}`) : p.words,
            p.hardware,
            digits(p.requests_per_s),
            p.usd_per_hour === null ? "unknown" : `${dollars(p.usd_per_hour)}/h`,
            ...names.map((axis) => amount(p.values[axis.name], axis.unit)),
          ]),
          numeric: [2, 3, ...names.map((_, i) => i + 4)],
          label: "The front",
        }),
      { open: true },
    ),
    fold("The deployment of the best balance", () => codeBlock(yaml(best.deployment), "deployment.yaml")),
    result.notices.length
      ? fold("Notices", () =>
          el(
            "ul",
            {},
            result.notices.map((line) => el("li", {}, line)),
          ),
        )
      : "",
  );
  const chosen = el("div", { "aria-live": "polite" });
  chart.after(chosen);
  draw(chart, figure(result, best), {
    label: `Front of ${names.map((axis) => axis.words).join(" and ")}`,
    height: 440,
    onClick: ({ points }) => {
      const point = points[0]?.customdata;
      const found = point === undefined ? null : front[point];
      if (found)
        fill(
          chosen,
          el(
            "p",
            {},
            el("strong", {}, found.words),
            ` on ${found.hardware}, ${digits(found.requests_per_s)} requests/s`,
          ),
          codeBlock(yaml(found.deployment), "deployment.yaml of the chosen point"),
        );
    },
  });
}

/** Return what the marks of the chart are. */
function captionOf(names, simulated) {
  const others = counted(simulated.filter((p) => !p.on_front && p.holds).length, "simulated point");
  const third = names.length > 2 ? ` The third axis, ${names[2].words}, is the size of a mark.` : "";
  const star = "the star is the best balance";
  const missed = simulated.filter((p) => !p.holds).length;
  const out = missed ? ` Not shown: ${counted(missed, "point")} that missed a limit or could not keep up.` : "";
  const marks = `Filled marks are the front, hollow ones the other ${others}; ${star}.`;
  return `${marks}${third}${out} Choose one for its deployment.`;
}

function figure({ axes: names, front, simulated }, best) {
  const [x, y, z] = names;
  const value = (p, axis) => p.values[axis.name];
  const largest = z ? Math.max(...front.map((p) => value(p, z))) : 1;
  const size = (p) => (z ? 7 + 16 * Math.sqrt(value(p, z) / largest) : 10);
  const others = simulated.filter((p) => !p.on_front && p.holds && value(p, x) !== null && value(p, y) !== null);
  const valueWords = (p) => names.map((axis) => `${axis.words}: ${amount(value(p, axis), axis.unit)}`);
  const hover = (p) =>
    [`${p.words} on ${p.hardware}`, `${digits(p.requests_per_s)} requests/s`, ...valueWords(p)].join("<br>");
  const sorted = front.map((p, i) => [p, i]).sort(([a], [b]) => value(a, x) - value(b, x));
  const style = seriesStyle(0);
  const data = [
    {
      type: "scatter",
      mode: "markers",
      name: "simulated",
      x: others.map((p) => value(p, x)),
      y: others.map((p) => value(p, y)),
      text: others.map(hover),
      hoverinfo: "text",
      marker: { symbol: "circle-open", size: 7, color: "#8C8C8C" },
    },
    {
      type: "scatter",
      mode: z ? "markers" : "lines+markers",
      name: "front",
      x: sorted.map(([p]) => value(p, x)),
      y: sorted.map(([p]) => value(p, y)),
      text: sorted.map(([p]) => hover(p)),
      hoverinfo: "text",
      customdata: sorted.map(([, i]) => i),
      line: { ...style.line, shape: "hv", width: 1.5 },
      marker: { ...style.marker, size: sorted.map(([p]) => size(p)) },
    },
    {
      type: "scatter",
      mode: "markers",
      name: "best balance",
      x: [value(best, x)],
      y: [value(best, y)],
      hoverinfo: "skip",
      marker: { symbol: "star", size: 18, color: "#D55E00" },
    },
  ];
  const shown = [...others, ...front];
  const axis = (one) => logAxis(`${one.words}, ${one.unit}`, shown.map((p) => value(p, one)));
  return {
    data,
    layout: { xaxis: axis(x), yaxis: axis(y), legend: LEGEND_ABOVE, hovermode: "closest" },
  };
}

function amount(x, unit) {
  return x === null || x === undefined ? "none" : `${x >= 1000 ? grouped(x) : Number(x.toPrecision(3))} ${unit}`;
}

function yaml(deployment) {
  return Object.entries(deployment)
    .filter(([, value]) => value !== null)
    .map(([key, value]) => `${key}: ${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join("\n");
}
