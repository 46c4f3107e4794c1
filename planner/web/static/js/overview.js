/** The overview: links to three pages, and the most recent jobs. */

import { call } from "/static/js/api.js";
import { watchJobs } from "/static/js/job_table.js";
import { fill, problemNote } from "/static/js/parts.js";

const place = document.getElementById("jobs");

watchJobs(place, {
  load: async () => (await call("/jobs?limit=5")).items,
  empty: "No jobs yet. A plan, a simulation or a front that you start appears here.",
  onError: (error) => fill(place, problemNote(error)),
});
