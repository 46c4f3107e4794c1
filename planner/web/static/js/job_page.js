/** A page with one job: send a question, follow the job, show its result; a link with the job shows it again. */

import { call } from "/static/js/api.js";
import { failure, follow, progressBox } from "/static/js/job.js";
import { announce, el, fill, problemNote } from "/static/js/parts.js";

/**
 * Connect a page with its jobs.
 *
 * @param {{path: string, place: {problem: HTMLElement, job: HTMLElement, answer: HTMLElement},
 *   save: (job: string) => void, show: (result: object, job: object) => void}} page The address that takes questions,
 *   where things are shown, what writes the id of the job into the address of the page, and what shows a result.
 * @returns {{run: (body: object) => Promise<void>, resume: () => Promise<object|null>}}
 */
export function jobPage({ path, place, save, show }) {
  let stop = () => {};

  function watch(job) {
    stop();
    const progress = progressBox(place.job, job);
    stop = follow(job, { onProgress: progress, onEnd: ended, onError: (error) => fill(place.job, problemNote(error)) });
  }

  async function ended(job) {
    fill(place.job);
    if (!job.links.result) {
      fill(place.answer, failure(job));
      return;
    }
    try {
      const result = await call(`/jobs/${encodeURIComponent(job.id)}/result`);
      fill(place.answer, job.status === "cancelled" ? el("p", { class: "note" }, "Cancelled: this is the partial result.") : null);
      show(result, job);
      announce("Result ready");
    } catch (error) {
      fill(place.answer, problemNote(error));
    }
  }

  return {
    /** Send a question; an equal one that was answered before shows its result at once. */
    async run(body) {
      stop();
      fill(place.problem);
      fill(place.answer);
      fill(place.job);
      try {
        const job = await call(path, { method: "POST", body });
        save(job.id);
        watch(job);
      } catch (error) {
        fill(place.problem, problemNote(error));
        place.problem.scrollIntoView({ block: "nearest" });
      }
    },
    /** Show the job of the address; return it, or null if there is none. */
    async resume() {
      const id = new URLSearchParams(window.location.search).get("job");
      if (!id) return null;
      try {
        const job = await call(`/jobs/${encodeURIComponent(id)}`);
        watch(job);
        return job;
      } catch {
        fill(place.problem, el("p", { class: "note" }, "The job of this link is not on this server. The same question can be sent again."));
        return null;
      }
    },
  };
}

/** Return the rows of a CSV file without quoted cells as objects; numbers are numbers, empty cells are null. */
export function csvRows(text) {
  const [head, ...lines] = text.trim().split(/\r?\n/);
  const names = head.split(",");
  return lines.map((line) => {
    const cells = line.split(",");
    return Object.fromEntries(names.map((name, i) => [name, cells[i] === "" || cells[i] === undefined ? null : Number.isNaN(Number(cells[i])) ? cells[i] : Number(cells[i])]));
  });
}
