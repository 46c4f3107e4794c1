/** The jobs page: all jobs with cancel, delete and download. */

import { call, query } from "/static/js/api.js";
import { watchJobs } from "/static/js/job_table.js";
import { button, fill, problemNote } from "/static/js/parts.js";
import { urlState } from "/static/js/url_state.js";

const form = document.getElementById("filter");
const place = document.getElementById("jobs");
const state = urlState(form);
let pages = 1;

async function load() {
  const items = [];
  let before = null;
  for (let i = 0; i < pages; i += 1) {
    const found = await call(`/jobs?${query({ limit: 50, kind: form.elements.kind.value, before })}`);
    items.push(...found.items);
    before = found.next;
    if (!before) break;
  }
  fill(
    document.getElementById("more"),
    before
      ? button("Show older jobs", () => {
          pages += 1;
          refresh();
        })
      : null,
  );
  fill(document.getElementById("problem"));
  return items;
}

state.restore();
const refresh = watchJobs(place, {
  load,
  empty: "No jobs.",
  onError: (error) => fill(document.getElementById("problem"), problemNote(error)),
});
form.addEventListener("change", () => {
  pages = 1;
  state.save();
  refresh();
});
window.addEventListener("popstate", () => {
  state.restore();
  refresh();
});
