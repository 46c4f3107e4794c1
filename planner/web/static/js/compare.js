/** The compare page: finished plans side by side. */

import { call, query } from "/static/js/api.js";
import { barStyle, draw } from "/static/js/charts.js";
import { resultLinks } from "/static/js/job.js";
import { jobPage } from "/static/js/job_page.js";
import { jsonButton } from "/static/js/json_button.js";
import { cards, el, fill, fold, problemNote, shareButton, table } from "/static/js/parts.js";
import { changeWords, digits, dollars, moment, percent, seconds, surePercent } from "/static/js/words.js";

const MOST = 4;
const place = Object.fromEntries(["plans", "problem", "answer"].map((id) => [id, document.getElementById(id)]));
const chosen = new URLSearchParams(window.location.search).getAll("job").slice(0, MOST);
const at = (id) => document.getElementById(id);
const whatIfs = jobPage({
  path: "/whatifs",
  place: { problem: at("whatif-problem"), job: at("job"), answer: at("changed") },
  save: (job) => window.history.pushState(null, "", `${window.location.pathname}?job=${encodeURIComponent(job)}`),
  show: showWhatIf,
});
at("whatif").addEventListener("submit", (event) => {
  event.preventDefault();
  const changes = Object.fromEntries(
    ["rate", "hardware"].map((name) => [name, at(name).value.trim()]).filter(([, text]) => text),
  );
  whatIfs.run({ job: at("plan").value, changes });
});
for (const id of ["choice", "whatif"]) at(id).inert = false; // each has its handler now
window.addEventListener("popstate", () => {
  if (!window.location.hash) window.location.reload();
});
let running = null;
const subjects = new Map(); // what each finished plan is for, by the id of its job

try {
  const { items } = await call("/jobs?kind=plan&limit=100");
  const done = items.filter((job) => job.status === "done" && job.subject !== "agents"); // those are not compared
  for (const job of done) subjects.set(job.id, job.subject);
  fill(
    at("plan"),
    done.filter((job) => job.verdict !== "no").map((job) => new Option(job.title, job.id)),
  );
  if (chosen.length === 1 && !items.some((job) => job.id === chosen[0])) {
    chosen.length = 0; // a link to a what-if
    const linked = await whatIfs.resume();
    if (linked?.parent) at("plan").value = linked.parent;
  }
  fill(
    place.plans,
    done.length
      ? done.map(choice)
      : el("p", { class: "soft" }, "There are no finished plans yet. ", el("a", { href: "/plan" }, "Make a plan")),
  );
  if (!chosen.length && done.length > 1) {
    const alike = done.filter((job) => job.subject === done[0].subject);
    for (const job of alike.slice(0, 2)) chosen.push(job.id);
    place.plans.querySelectorAll("input").forEach((box) => {
      box.checked = chosen.includes(box.value);
    });
  }
  limit();
  show();
} catch (error) {
  fill(place.problem, problemNote(error));
}

function choice(job) {
  const box = el("input", {
    type: "checkbox",
    value: job.id,
    on: {
      change: (event) => {
        if (event.target.checked) chosen.push(job.id);
        else chosen.splice(chosen.indexOf(job.id), 1);
        limit();
        window.history.replaceState(
          null,
          "",
          `${window.location.pathname}${chosen.length ? `?${query({ job: chosen })}` : ""}`,
        );
        show();
      },
    },
  });
  box.checked = chosen.includes(job.id);
  return el(
    "label",
    { class: "choice" },
    box,
    el(
      "span",
      {},
      job.title,
      job.verdict === "no" ? " (answer: no)" : "",
      " ",
      el("span", { class: "soft" }, moment(job.created)),
    ),
  );
}

/** Enable the plans that can join the chosen ones: while there is room, and only those for the same subject. */
function limit() {
  place.plans.querySelectorAll("input").forEach((box) => {
    const isOther = chosen.length > 0 && subjects.get(box.value) !== subjects.get(chosen[0]);
    box.disabled = !box.checked && (isOther || chosen.length >= MOST);
    box.parentElement.title = isOther && !box.checked ? "Networks and language models have no figures in common." : "";
  });
}

async function show() {
  running?.abort();
  running = new AbortController();
  fill(place.problem);
  if (chosen.length < 2) {
    fill(place.answer, el("p", { class: "soft" }, "Choose two plans or more."));
    return;
  }
  try {
    showComparison(await call(`/comparison?${query({ job: chosen })}`, { signal: running.signal }));
  } catch (error) {
    if (error.name !== "AbortError") fill(place.problem, problemNote(error));
  }
}

function amount(value, unit) {
  if (value === null || value === undefined) return "none";
  return { seconds, usd: dollars, share: percent, confidence: surePercent }[unit]?.(value) ?? digits(value);
}

function showComparison(found) {
  const letters = found.answers.map((_, i) => "ABCD"[i]);
  const heads = found.answers.map((answer, i) => `${letters[i]}: ${answer.model} on ${answer.hardware ?? "nothing"}`);
  const wins = found.answers.map((_, i) =>
    found.figures.filter((figure) => figure.best.includes(i)).map((figure) => figure.name),
  );
  const cost = found.figures.find((figure) => figure.name.startsWith("$ per ") && figure.name !== "$ per hour");
  const costWords = `Dollars${cost?.name.slice(1) ?? ""}`;
  const chart = el("div", {});
  fill(
    place.answer,
    cards(
      found.answers.map((answer, i) => [
        heads[i],
        answer.feasible
          ? `${wins[i].length} of ${found.figures.filter((f) => f.best.length).length} figures`
          : el("span", { class: "bad" }, "infeasible"),
        answer.feasible ? "best or equal to the best" : "its closest plan is compared",
      ]),
    ),
    cost && cost.values.filter((v) => v !== null).length > 1
      ? el("figure", {}, chart, el("figcaption", {}, `${costWords}.`))
      : null,
    table({
      head: ["", ...heads],
      numeric: letters.map((_, i) => i + 1),
      label: "Figures side by side",
      caption: "The best value of a row is marked; values within 2 % count as equal.",
      rows: found.figures.map((figure) => [
        figure.name,
        ...figure.values.map((value, i) =>
          figure.best.includes(i)
            ? el("span", { class: "good" }, `✓ ${amount(value, figure.unit)}`)
            : amount(value, figure.unit),
        ),
      ]),
    }),
    fold(
      `What differs (${found.differs.length})`,
      () =>
        table({
          head: ["Key", ...heads],
          rows: found.differs.map((row) => [row.what, ...row.values]),
          label: "What differs",
        }),
      { open: true },
    ),
    found.notes.length
      ? el(
          "ul",
          { class: "soft" },
          found.notes.map((note) => el("li", {}, note)),
        )
      : null,
    el(
      "div",
      { class: "row" },
      shareButton(),
      jsonButton("comparison.json", [found]),
    ),
  );
  if (chart.isConnected) {
    const each = cost.values.map((value, i) => `${letters[i]} ${dollars(value)}`);
    const data = [
      {
        type: "bar",
        orientation: "h",
        y: letters.map((letter, i) => `${letter} `),
        x: cost.values,
        marker: barStyle(0),
        text: cost.values.map((value) => dollars(value)),
        textposition: "auto",
        hoverinfo: "skip",
      },
    ];
    draw(
      chart,
      { data, layout: { yaxis: { autorange: "reversed" }, xaxis: { rangemode: "tozero", tickprefix: "$" } } },
      {
        label: `${costWords}: ${each.join(", ")}`,
        height: 60 + 42 * letters.length,
      },
    );
  }
}

function showWhatIf(result, job) {
  const { comparison, holds, breaks } = result;
  at("changed").append(
    ...[
      el("h3", {}, holds ? el("span", { class: "good" }, "It still holds") : el("span", { class: "bad" }, "It breaks")),
      breaks.length
        ? el(
            "ul",
            {},
            breaks.map((words) => el("li", {}, words)),
          )
        : null,
      table({
        head: ["", "As planned", "Changed", "Change"],
        numeric: [1, 2, 3],
        label: "The plan and the changed plan",
        rows: comparison.figures.map((figure) => [
          figure.name,
          amount(figure.a, figure.unit),
          amount(figure.b, figure.unit),
          changeWords(figure),
        ]),
      }),
      comparison.differs.length
        ? fold(`What differs (${comparison.differs.length})`, () =>
            table({
              head: ["Key", "As planned", "Changed"],
              rows: comparison.differs.map((row) => [row.what, row.a, row.b]),
              label: "What differs in the changed plan",
            }),
          )
        : null,
      comparison.notes.length
        ? el(
            "ul",
            { class: "soft" },
            comparison.notes.map((note) => el("li", {}, note)),
          )
        : null,
      el("div", { class: "row" }, resultLinks(job)),
    ].filter(Boolean),
  );
}
