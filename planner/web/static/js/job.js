/** Jobs: start one, follow it to its end, cancel it. */

import { Problem, call } from "/static/js/api.js";
import { announce, button, el, fill, problemNote } from "/static/js/parts.js";
import { rate } from "/static/js/words.js";

/** Words for the states of a job, and the class of its tag. */
export const STATES = {
  queued: ["queued", "busy"],
  running: ["running", "busy"],
  done: ["done", "good"],
  failed: ["failed", "bad"],
  cancelled: ["cancelled", ""],
};

/** Return the tag of a job's state. */
export function stateTag(job) {
  const [words, kind] = STATES[job.status] ?? [job.status, ""];
  return el("span", { class: `tag ${kind}` }, words);
}

/**
 * Follow a job to its end over server-sent events, which resume by themselves after a broken connection.
 *
 * @param {{id: string}} job The job.
 * @param {{onProgress: (progress: object) => void, onEnd: (job: object) => void, onError: (error: Error) => void}} to
 * @returns {() => void} A function that stops following; the job goes on.
 */
export function follow(job, { onProgress, onEnd, onError }) {
  const ended = (found) => !["queued", "running"].includes(found.status);
  if (ended(job)) {
    onEnd(job);
    return () => {};
  }
  const events = new EventSource(`/api/v1/jobs/${encodeURIComponent(job.id)}/events`);
  events.addEventListener("progress", (event) => onProgress(JSON.parse(event.data)));
  events.addEventListener("done", (event) => {
    events.close();
    onEnd(JSON.parse(event.data));
  });
  events.addEventListener("error", async () => {
    if (events.readyState !== EventSource.CLOSED) return; // the browser connects again
    try {
      const now = await call(`/jobs/${encodeURIComponent(job.id)}`);
      if (ended(now)) onEnd(now);
      else
        onError(new Error("The connection to the server was lost. The job goes on; load the page again to follow it."));
    } catch (error) {
      onError(error);
    }
  });
  return () => events.close();
}

/** Kinds of jobs whose cancelled runs keep a partial result. */
const KEEP = ["plan", "front", "inference-task"];

/**
 * Show the progress of a job in `place`: what is done of how much, the best so far, and Cancel.
 *
 * @returns {(progress: object) => void} A function that shows newer progress.
 */
export function progressBox(place, job) {
  const bar = el("progress", { max: 1, "aria-label": "Progress of the job" });
  const words = el("span", {}, "Waiting for a free worker");
  const count = el("span", { class: "soft" });
  const best = el("p", { class: "soft" });
  const cancel = button(
    KEEP.includes(job.kind) ? "Cancel and keep the best" : "Cancel",
    async () => {
      cancel.disabled = true;
      try {
        await call(`/jobs/${encodeURIComponent(job.id)}`, { method: "DELETE" });
        announce("Cancelled");
      } catch (error) {
        place.append(problemNote(error));
        cancel.disabled = false;
      }
    },
    { class: "small" },
  );
  fill(
    place,
    el(
      "div",
      { class: "progress" },
      el("div", { class: "row between" }, el("div", {}, words, " ", count), cancel),
      bar,
      best,
    ),
  );
  const show = (progress) => {
    if (!progress) return;
    if (progress.total) {
      bar.max = progress.total;
      bar.value = Math.min(progress.done ?? 0, progress.total);
      count.textContent = `${progress.done ?? 0} of ${progress.total}`;
    } else {
      bar.removeAttribute("value");
      count.textContent = "";
    }
    if (progress.words) words.textContent = progress.words;
    best.textContent = progress.best ? `Best so far: ${bestWords(progress.best)}` : "";
  };
  show(job.progress);
  return show;
}

function bestWords(best) {
  const found = [
    best.words,
    best.hardware ? `on ${best.hardware}` : "",
    best.requests_per_s ? `${rate(best.requests_per_s)}` : "",
  ];
  return found.filter(Boolean).join(", ");
}

/** Words for the results of a job, by the name of their link. */
const RESULTS = {
  result: "JSON",
  "result.csv": "CSV",
  "result.parquet": "Parquet",
  "result.html": "Report",
  "files.zip": "Files to deploy (zip)",
};

/** Return links to the results that a job has. */
export function resultLinks(job) {
  const shown = Object.entries(RESULTS).filter(([name]) => name in job.links);
  return shown.map(([name, text]) =>
    el(
      "a",
      {
        class: "button small",
        href: job.links[name],
        download:
          name === "result.html"
            ? null
            : `${job.kind}-${job.id}${name.replace("result", "").replace("files", "") || ".json"}`,
      },
      text,
    ),
  );
}

/** Return the offer of a report that also simulates which inputs change the answer; null for other jobs than plans. */
export function sensitivityOffer(job) {
  const report = job.subject === "language" ? job.links["result.html"] : null;
  if (!report) return null;
  const link = el("a", { href: `${report}?sensitivity=true`, target: "_blank" }, "Report with sensitivity");
  return el(
    "p",
    { class: "soft no-print" },
    link,
    ": it also shows which inputs, such as prompt length, rate and price, change the answer most. " +
      "This takes further simulations, from one minute to several.",
  );
}

/** Return the problem of a failed job. */
export function failure(job) {
  const error = job.error
    ? new Problem(job.error)
    : new Error(
        job.status === "cancelled" ? "Cancelled before there was an answer." : "The job failed without a reason.",
      );
  return problemNote(error);
}
