/** The plan page: a question, its estimate, the job that answers it, and the answer. */

import { call, query } from "/static/js/api.js";
import { showAnswer } from "/static/js/answer.js";
import { failure, follow, progressBox, resultLinks, sensitivityOffer } from "/static/js/job.js";
import { liveStrip } from "/static/js/live.js";
import { announce, codeBlock, el, fill, fold, problemNote, shareButton } from "/static/js/parts.js";
import { questionForm } from "/static/js/question/form.js";
import { isJob } from "/static/js/url_state.js";
import { digits } from "/static/js/words.js";

const place = Object.fromEntries(
  ["live", "problem", "job", "answer", "spelled"].map((id) => [id, document.getElementById(id)]),
);
const strip = liveStrip(place.live);
let stop = () => {};
let shown = null; // the question of the answer on the page, as a query
let current = null; // the id of the job on the page

const page = questionForm({
  kept: ["job"],
  takesNetworks: true,
  onChange: () => {
    fill(place.problem);
    changed();
  },
});

function changed() {
  strip(page.asQuery(), page.complete());
  if (shown === null) return;
  const stale = page.asQuery() !== shown;
  place.live.hidden = !stale; // an answer needs no estimate
  place.answer.querySelector(".stale")?.remove();
  if (stale) place.answer.prepend(el("p", { class: "stale" }, "The question has changed since this answer."));
}

/** Leave the job and the answer on the page; the job goes on. */
function clear() {
  stop();
  for (const part of [place.problem, place.job, place.answer, place.spelled]) fill(part);
  shown = null;
  current = null;
  place.live.hidden = false;
}

async function plan() {
  clear();
  try {
    const job = await call("/plans", { method: "POST", body: page.question() });
    page.state.save({ job: job.id }, { push: true });
    watch(job, page.asQuery());
  } catch (error) {
    fill(place.job);
    fill(place.problem, problemNote(error));
  }
}

function watch(job, asked) {
  current = job.id;
  const show = progressBox(place.job, job);
  place.job.scrollIntoView({ block: "nearest" });
  stop = follow(job, {
    onProgress: show,
    onEnd: (found) => ended(found, asked),
    onError: (error) => fill(place.job, problemNote(error)),
  });
}

async function ended(job, asked) {
  fill(place.job);
  if (!job.links.result) {
    fill(place.answer, failure(job));
    place.answer.scrollIntoView({ block: "nearest" });
    return;
  }
  let view;
  try {
    const answer = await call(`/jobs/${encodeURIComponent(job.id)}/result`);
    if (answer.best_so_far) {
      fill(place.answer, stopped(answer.best_so_far));
      return;
    }
    view = await call("/answers/view", { method: "POST", body: answer });
  } catch (error) {
    fill(place.answer, problemNote(error));
    return;
  }
  const note =
    job.status === "cancelled"
      ? el("p", { class: "note" }, "Cancelled: this is the best plan that had been found.")
      : null;
  showAnswer(place.answer, view, {
    files: [...resultLinks(job), shareButton()],
    offer: sensitivityOffer(job),
    note,
    onChange: again,
  });
  shown = asked;
  changed();
  announce(view.feasible ? `Answer: ${view.headline}` : "No plan meets the objectives");
  spelled();
}

/** Return what a search had found when it was stopped before it could write an answer. */
function stopped(best) {
  const yaml = Object.entries(best.deployment)
    .map(([name, value]) => `${name}: ${JSON.stringify(value)}\n`)
    .join("");
  return [
    el("h2", { class: "verdict" }, "Stopped: the best so far"),
    el("p", {}, `${best.words}, on ${best.hardware}: ${digits(best.requests_per_s)} requests/s.`),
    el(
      "p",
      { class: "soft" },
      "The search ended before it compared all candidates, and before the full simulation of this one. " +
        "Plan again for an answer with its confidence and cost.",
    ),
    el(
      "div",
      { class: "row" },
      el("a", { class: "button small", href: `/simulate?${query({ deployment: yaml })}` }, "Simulate it"),
    ),
    codeBlock(yaml, "deployment.yaml"),
  ];
}

function again(changes, words) {
  page.change(changes);
  announce(words);
  setTimeout(plan, 0);
}

/** Return the request of a question as a command of curl. */
function curl(question) {
  const address = `${window.location.origin}/api/v1/plans`;
  const body = JSON.stringify(question).replaceAll("'", "'\\''");
  return `curl -X POST ${address} -H 'Content-Type: application/json' -d '${body}'`;
}

/** Show the question as a command, a scenario file and a body of the API. */
async function spelled() {
  try {
    const found = await call("/question", { method: "POST", body: page.question() });
    fill(
      place.spelled,
      fold("The same question as a command, a file or a request", () => [
        codeBlock(found.command, "Command"),
        codeBlock(found.scenario, "Scenario file"),
        codeBlock(curl(found.question), "Request to the API"),
      ]),
    );
  } catch (error) {
    fill(place.spelled, problemNote(error));
  }
}

page.form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!page.complete()) {
    const missing = page.form.elements.model.value.trim()
      ? document.getElementById("hardware-search")
      : page.form.elements.model;
    fill(place.problem, problemNote(new Error("Name a model, hardware and at least one objective.")));
    missing.focus();
    return;
  }
  plan();
});

/** Show the job of a link; the address also holds the question, which may have changed since the job. */
async function showLinked(id) {
  let job;
  try {
    job = await call(`/jobs/${encodeURIComponent(id)}`);
  } catch {
    if (page.complete()) plan(); // another server, or an expired job: the same question has the same answer
    return;
  }
  if (!page.complete()) {
    page.write(job.question);
    changed(); // the estimate of a job that has no answer is that of its question
  }
  let same = false;
  try {
    const own = await call("/question", { method: "POST", body: page.question() });
    same = own.key === job.key;
    if (!same && JSON.stringify(own.question) === JSON.stringify(job.question)) {
      fill(
        place.problem,
        el(
          "p",
          { class: "note" },
          "This answer was made with another version or calibration. Plan again to bring it up to date.",
        ),
      );
      same = true;
    }
  } catch (error) {
    fill(place.problem, problemNote(error));
  }
  watch(job, same ? page.asQuery() : "");
}

/** Show the job that the address names, unless it is on the page already; none if it names none. */
function followAddress() {
  const named = new URLSearchParams(window.location.search).getAll("job").find(isJob) ?? null;
  if (named === current) return;
  clear();
  if (named) showLinked(named);
}

changed();
followAddress();
window.addEventListener("popstate", followAddress); // after that of the form, which restores the question
