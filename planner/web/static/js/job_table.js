/** A table of jobs with their states, results and actions, which stays up to date while a job runs. */

import { call } from "/static/js/api.js";
import { resultLinks, stateTag } from "/static/js/job.js";
import { announce, button, el, problemNote, table } from "/static/js/parts.js";
import { duration, moment } from "/static/js/words.js";

/** Return whether a job waits or runs. */
export function isActive(job) {
  return job.status === "queued" || job.status === "running";
}

/** Return the table of jobs; `onChange` runs after an action. */
export function jobTable(jobs, onChange) {
  return table({
    head: ["Job", "Kind", "State", "Created", "Took", "Results", ""],
    rows: jobs.map((job) => row(job, onChange)),
    label: "Jobs",
    stacked: true,
  });
}

function row(job, onChange) {
  const title = job.links.page ? el("a", { href: job.links.page }, job.title) : job.title;
  const verdict = job.verdict === "no" ? el("span", { class: "tag bad" }, "answer: no") : null;
  const done = job.status === "running" && job.progress?.total ? ` ${job.progress.done} of ${job.progress.total}` : "";
  const act = async (event, done) => {
    event.target.disabled = true;
    try {
      await call(`/jobs/${encodeURIComponent(job.id)}`, { method: "DELETE" });
      announce(done);
    } catch (error) {
      event.target.after(problemNote(error));
    }
    onChange();
  };
  const action = isActive(job)
    ? button("Cancel", (event) => act(event, "Cancelled"), { class: "small", "aria-label": `Cancel ${job.title}` })
    : button("Delete", (event) => act(event, "Deleted"), { class: "small", "aria-label": `Delete ${job.title}` });
  return [
    title,
    job.kind,
    el("span", { class: "row" }, stateTag(job), verdict, done),
    el("span", { class: "whole" }, moment(job.created)),
    el(
      "span",
      { class: "whole" },
      job.started && job.ended ? duration((new Date(job.ended) - new Date(job.started)) / 1000) : "",
    ),
    el("span", { class: "row" }, resultLinks(job)),
    action,
  ];
}

/** Show jobs in `place` and look again every two seconds while one of them is active and the page is visible. */
export function watchJobs(place, { load, empty, onError = () => {} }) {
  let timer = null;
  const refresh = async () => {
    clearTimeout(timer);
    try {
      const jobs = await load();
      const focused = document.activeElement?.getAttribute("aria-label");
      place.replaceChildren(jobs.length ? jobTable(jobs, refresh) : el("p", { class: "soft" }, empty));
      if (focused)
        [...place.querySelectorAll("[aria-label]")]
          .find((node) => node.getAttribute("aria-label") === focused)
          ?.focus();
      if (jobs.some(isActive)) timer = setTimeout(() => (document.hidden ? null : refresh()), 2000);
    } catch (error) {
      onError(error);
    }
  };
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
  refresh();
  return refresh;
}
