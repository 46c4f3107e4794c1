/** The simulate page: a deployment in an editor with faults at the key, and its simulated latencies. */

import { call } from "/static/js/api.js";
import { jobPage } from "/static/js/job_page.js";
import { button, debounced, el, fill, fold, problemNote, shareButton, table } from "/static/js/parts.js";
import { showSimulation } from "/static/js/simulation_result.js";
import { ownModel } from "/static/js/uploads.js";
import { urlState } from "/static/js/url_state.js";

const at = (id) => document.getElementById(id);
const form = at("simulation");
const text = at("deployment");
const place = { problem: at("problem"), job: at("job"), answer: at("answer") };
const state = urlState(form, { kept: ["job"] });
const jobs = jobPage({
  path: "/simulations",
  place,
  save: (job) => state.save({ job }, { push: true }),
  show: (result, job) => showSimulation(place.answer, result, job),
});
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
