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
 * @returns {{run: (body: object) => Promise<void>, resume: () => Promise<object|null>,
 *   back: () => Promise<object|null>}}
 */
export function jobPage({ path, place, save, show }) {
  let stop = () => {};
  let current = null; // the id of the job on the page
  const named = () => new URLSearchParams(window.location.search).get("job");

  function watch(job) {
    stop();
    current = job.id;
    const progress = progressBox(place.job, job);
    stop = follow(job, { onProgress: progress, onEnd: ended, onError: (error) => fill(place.job, problemNote(error)) });
  }

  async function ended(job) {
    fill(place.job);
    if (!job.links.result) {
      fill(place.answer, failure(job));
      place.answer.scrollIntoView({ block: "nearest" });
      return;
    }
    try {
      const result = await call(`/jobs/${encodeURIComponent(job.id)}/result`);
      fill(
        place.answer,
        job.status === "cancelled" ? el("p", { class: "note" }, "Cancelled: this is the partial result.") : null,
      );
      show(result, job);
      announce("Result ready");
    } catch (error) {
      fill(place.answer, problemNote(error));
    }
  }

  /** Show the job of the address; return it, or null if there is none. */
  async function resume() {
    const id = named();
    if (!id) return null;
    try {
      const job = await call(`/jobs/${encodeURIComponent(id)}`);
      watch(job);
      return job;
    } catch {
      fill(
        place.problem,
        el("p", { class: "note" }, "The job of this link is not on this server. The same question can be sent again."),
      );
      return null;
    }
  }

  return {
    resume,
    /** Follow the address after a step through the history: show its job, or none; return the job if it is another. */
    async back() {
      if (named() === current) return null;
      stop();
      current = null;
      for (const part of Object.values(place)) fill(part);
      return resume();
    },
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
        place.job.scrollIntoView({ block: "nearest" });
      } catch (error) {
        fill(place.problem, problemNote(error));
        place.problem.scrollIntoView({ block: "nearest" });
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
    return Object.fromEntries(
      names.map((name, i) => [
        name,
        cells[i] === "" || cells[i] === undefined ? null : Number.isNaN(Number(cells[i])) ? cells[i] : Number(cells[i]),
      ]),
    );
  });
}
